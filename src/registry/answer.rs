//! What the service answers with, free of HTTP: values, how they came about, and content as a stream of pieces.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use thiserror::Error;

use crate::oci::{Descriptor, Digest};

/// How an answer came about (rendered as RFC 9211 `Cache-Status`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum How {
    /// From the cache, without asking upstream.
    Hit,
    /// Not here; fetched. `is_collapsed`: by a fetch that another request had begun. `is_stored`: it is kept.
    Miss {
        /// Joined another request's fetch.
        is_collapsed: bool,
        /// Will be kept, as far as is known when the answer begins.
        is_stored: bool,
    },
    /// Here, confirmed upstream just now. `is_collapsed`: by a question that another request had asked.
    Revalidated {
        /// Joined another request's question.
        is_collapsed: bool,
    },
    /// Here, but upstream could not confirm it: the reason.
    Stale(String),
    /// A range fetched from upstream beside the cache.
    Partial,
}

/// An answer with its provenance.
#[derive(Debug, Clone)]
pub struct Answer<T> {
    /// What was asked for.
    pub value: T,
    /// How it came about.
    pub how: How,
    /// Time since upstream last confirmed it, where that is known.
    pub age: Option<Duration>,
}

impl<T> Answer<T> {
    /// Whether it was served without the upstream's bytes.
    pub fn is_hit(&self) -> bool {
        matches!(self.how, How::Hit | How::Revalidated { .. } | How::Stale(_))
    }
}

/// A manifest, whole and verified.
#[derive(Debug, Clone)]
pub struct ManifestContent {
    /// The bytes as received.
    pub bytes: Bytes,
    /// The type to serve it with.
    pub media_type: String,
    /// Its digest, in the algorithm that was asked for.
    pub digest: Digest,
    /// When upstream gave it, in milliseconds since the Unix epoch; 0 where nobody knows.
    pub received_ms: u64,
}

/// A piece of content on its way to a client.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Bytes `range` of a file, all of them written and readable.
    File {
        /// The file, open for reading.
        file: Arc<File>,
        /// Which bytes.
        range: Range<u64>,
    },
    /// Bytes in memory.
    Bytes(Bytes),
}

/// Content in order; an error ends it short, and the client must see that it is short.
pub type Content = BoxStream<'static, Result<Piece, ContentError>>;

/// Why content ended before its end.
#[derive(Debug, Clone, Error)]
pub enum ContentError {
    /// Upstream failed and could not be resumed.
    #[error("upstream failed in mid-body: {0}")]
    Upstream(String),
    /// The bytes do not match the digest.
    #[error("upstream's bytes do not match `{0}`")]
    Wrong(Digest),
    /// A file could not be read.
    #[error("cannot read the cached bytes: {0}")]
    Storage(String),
    /// The process is stopping.
    #[error("shutting down")]
    Stopping,
}

/// A page of names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The names, in order.
    pub entries: Vec<String>,
    /// Where the next page begins: after this entry.
    pub next_after: Option<String>,
}

/// What to list: at most `limit` entries after `after`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// At most so many; `None` leaves it to the service.
    pub limit: Option<u64>,
    /// Only entries that come after this one.
    pub after: Option<String>,
}

/// Manifests that are about another one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Referrers {
    /// Their descriptors.
    pub manifests: Vec<Descriptor>,
    /// Whether the filter by artifact type was applied.
    pub is_filtered: bool,
}
