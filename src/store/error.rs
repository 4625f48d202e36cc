//! What can go wrong on the volume.

use std::fmt;
use std::io;
use std::sync::Arc;

use thiserror::Error as ThisError;

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Opening the volume.
    Open,
    /// Reading bytes or links.
    Read,
    /// Writing a spool file.
    Write,
    /// Moving verified bytes to their place.
    Commit,
    /// Writing a link.
    Link,
    /// Deleting.
    Delete,
    /// Listing a folder.
    List,
}

impl Operation {
    /// The value of the `operation` label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Read | Self::List => "read",
            Self::Write => "write",
            Self::Commit => "commit",
            Self::Link => "link",
            Self::Delete => "delete",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::List => "list",
            other => other.as_str(),
        })
    }
}

/// A failed operation on the volume.
#[derive(Debug, Clone, ThisError)]
#[error("cannot {operation} `{object}` on the volume: {source}")]
pub struct Error {
    operation: Operation,
    object: String,
    #[source]
    source: Arc<io::Error>,
}

impl Error {
    pub(crate) fn io(operation: Operation, object: String, source: io::Error) -> Self {
        Self {
            operation,
            object,
            source: Arc::new(source),
        }
    }

    pub(crate) fn object(operation: Operation, object: String, source: object_store::Error) -> Self {
        let kind = io_kind(&source);
        Self::io(
            operation,
            object,
            io::Error::new(kind.unwrap_or(io::ErrorKind::Other), source),
        )
    }

    /// What was being done.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Whether the volume has no room: bytes, inodes or quota.
    pub fn is_full(&self) -> bool {
        matches!(
            self.source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        )
    }

    /// The kind of the I/O error behind it.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

/// The kind of the first I/O error in a chain of sources.
fn io_kind(error: &(dyn std::error::Error + 'static)) -> Option<io::ErrorKind> {
    let mut current = Some(error);
    while let Some(error) = current {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io.kind());
        }
        current = error.source();
    }
    None
}
