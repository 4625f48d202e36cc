//! The records of the index and their encoding: postcard, a field order that only a new schema version may change.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Error;
use crate::oci::Digest;
use crate::oci::manifest::Role;

/// What a tag meant when upstream was last asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagRecord {
    /// The digest it pointed at.
    pub digest: Digest,
    /// When upstream last said so, in milliseconds since the Unix epoch.
    pub checked_at_ms: u64,
}

/// The bytes of one digest, whoever links to them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentRecord {
    /// Size in bytes.
    pub size_bytes: u64,
    /// The type of a manifest; `None` for a blob.
    pub media_type: Option<String>,
    /// Whether it was stored as a manifest.
    pub is_manifest: bool,
    /// When it came, in milliseconds since the Unix epoch.
    pub added_ms: u64,
    /// When its bytes were last found to match the digest; 0 when nobody looked since it was found on the volume.
    pub verified_ms: u64,
    /// How many repositories link to it; without any it is doomed.
    pub link_count: u32,
}

/// One digest in one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// Whether it is linked as a manifest.
    pub is_manifest: bool,
    /// Whether it is never to be expired or evicted: itself, or the repository as a whole.
    pub is_pinned: bool,
    /// When it came to this repository, in milliseconds since the Unix epoch.
    pub added_ms: u64,
    /// When it was last used through this repository, in milliseconds since the Unix epoch.
    pub last_use_ms: u64,
    /// The time under which the queue by use holds it: at most `last_use_ms`, brought up when the queue reaches it.
    pub queued_ms: u64,
}

/// A reference from a manifest to a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeRecord {
    /// What for.
    pub role: Role,
    /// To which digest.
    pub digest: Digest,
    /// Size in bytes as the manifest says it.
    pub size_bytes: u64,
}

/// Sums over the index, kept with each change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Digests with bytes on the volume, manifests among them.
    pub contents: u64,
    /// Those of them that are manifests.
    pub manifests: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Links from repositories to them.
    pub links: u64,
    /// Those of the links that are manifests: the roots.
    pub roots: u64,
}

/// A stored edge: the digest in its key form.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredEdge {
    pub(super) role: Role,
    pub(super) child: Vec<u8>,
    pub(super) size_bytes: u64,
}

/// A stored tag: the digest in its key form.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoredTag {
    pub(super) digest: Vec<u8>,
    pub(super) checked_at_ms: u64,
}

/// Encodes a record.
pub(super) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // Every record is plain data of known length, which postcard cannot refuse.
    postcard::to_stdvec(record).unwrap_or_default()
}

/// Decodes a record of `table`.
pub(super) fn decode<T: DeserializeOwned>(table: &'static str, bytes: &[u8]) -> Result<T, Error> {
    postcard::from_bytes(bytes).map_err(|_| Error::Damaged { table })
}
