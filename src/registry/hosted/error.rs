//! Why a push or a deletion was refused.

use thiserror::Error as ThisError;

use crate::oci::Digest;
use crate::oci::manifest::{MAX_MANIFEST_BYTES, ManifestError};
use crate::registry::Error;
use crate::store;

/// A push or a deletion that was not done. Names no status codes: the edge maps these.
#[derive(Debug, ThisError)]
pub enum PushError {
    /// There is no such upload, or no more.
    #[error("upload `{0}` is not known")]
    UploadUnknown(String),
    /// Another request is writing to the upload.
    #[error("another request is writing to this upload")]
    UploadBusy,
    /// The piece does not begin where the upload ends; the upload stays as it was.
    #[error("the upload has {size_bytes} bytes, and the piece does not begin there")]
    OutOfOrder {
        /// How many bytes the upload has.
        size_bytes: u64,
    },
    /// More or fewer bytes came than were announced; they were dropped again.
    #[error("{announced_bytes} bytes were announced, but other than that came")]
    SizeInvalid {
        /// How many should have come.
        announced_bytes: u64,
    },
    /// The bytes are not what the digest says.
    #[error("the content is `{actual}`, not `{expected}`")]
    DigestMismatch {
        /// What the client said.
        expected: Digest,
        /// What came.
        actual: Digest,
    },
    /// The client stopped sending.
    #[error("the content ended early: {0}")]
    Broken(String),
    /// The client sent nothing for too long.
    #[error("nothing came for too long")]
    TooSlow,
    /// The bytes are no manifest, or not of the type they came with.
    #[error("the manifest is invalid: {0}")]
    ManifestInvalid(String),
    /// The manifest is larger than is stored.
    #[error("the manifest has more than {0} bytes")]
    ManifestTooLarge(usize),
    /// The manifest refers to blobs that its repository does not have.
    #[error("the repository does not have {}", .0.iter().map(|digest| format!("`{digest}`")).collect::<Vec<_>>().join(", "))]
    BlobsUnknown(Vec<Digest>),
    /// Nothing may be deleted.
    #[error("deleting is not enabled")]
    DeletesDisabled,
    /// Hosted repositories may not take more.
    #[error("hosted repositories may take {quota_bytes} bytes, and no more")]
    QuotaExceeded {
        /// How many they may take.
        quota_bytes: u64,
    },
    /// The volume failed, or is full.
    #[error(transparent)]
    Storage(#[from] store::Error),
    /// What was named is not there, or the service failed.
    #[error(transparent)]
    Registry(#[from] Error),
}

impl From<ManifestError> for PushError {
    fn from(error: ManifestError) -> Self {
        match error {
            ManifestError::TooLarge(_) => Self::ManifestTooLarge(MAX_MANIFEST_BYTES),
            other => Self::ManifestInvalid(other.to_string()),
        }
    }
}
