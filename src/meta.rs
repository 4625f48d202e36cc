//! Bookkeeping: the index over the files on the volume. Who refers to what, who used it last, what a tag meant when.
//!
//! The files are the truth. The index can be lost at any moment without losing content: what opens it is told whether
//! it is as it was left ([`Opened`]), and rebuilds it from the files where it is not. The engine (sled) is named in this
//! module alone. Nothing here touches a blob, a link or a manifest on the volume.
//!
//! An entry of a repository, (repository, digest), is one *link*: it mirrors a link file and carries the times of the
//! content's life there. The bytes of a digest are one *content*, shared by all links. A manifest's references are
//! *edges*, written in the same transaction as the manifest, so that the count of a digest is the number of its edges.

mod age;
mod alias;
mod index;
mod key;
mod manifests;
mod open;
mod record;
mod tags;
#[cfg(test)]
mod tests;
mod touches;
mod transaction;
mod walk;

use std::path::PathBuf;

use thiserror::Error as ThisError;

pub use index::Index;
pub use open::{DEFAULT_CACHE_BYTES, Opened};
pub use record::{ContentRecord, EdgeRecord, LinkRecord, TagRecord, Totals};
pub use transaction::Times;
pub use walk::{Link, Order, Place};

/// Why the index did not answer. A caller that can go on without it should: the files are the truth.
#[derive(Debug, ThisError)]
pub enum Error {
    /// Another process has the index open.
    #[error("the index at `{}` is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The index can neither be opened nor made anew.
    #[error("cannot open the index at `{}`", path.display())]
    Unavailable {
        /// Where it should be.
        path: PathBuf,
        /// What failed.
        #[source]
        source: std::io::Error,
    },
    /// The index is closed for the moment, to be opened anew.
    #[error("the index at `{}` is closed", .0.display())]
    Closed(PathBuf),
    /// The engine failed, because of the disk or because its file is damaged.
    #[error("the index failed: {0}")]
    Engine(#[from] EngineError),
    /// A record is not readable.
    #[error("the index has a damaged record in `{table}`")]
    Damaged {
        /// Which table.
        table: &'static str,
    },
}

/// The engine's own word.
#[derive(Debug, ThisError)]
#[error(transparent)]
pub struct EngineError(#[from] sled::Error);

impl From<sled::Error> for Error {
    fn from(error: sled::Error) -> Self {
        Self::Engine(EngineError(error))
    }
}
