//! Why the service cannot answer, by what the caller can do about it.

use std::time::Duration;

use thiserror::Error;

/// A request that was not fulfilled. Names no status codes: the edge maps these.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// The client addressed an upstream or a repository that does not exist.
    #[error("repository `{0}` is not known")]
    NameUnknown(String),
    /// No such manifest.
    #[error("manifest `{0}` is not known")]
    ManifestUnknown(String),
    /// No such blob.
    #[error("blob `{0}` is not known")]
    BlobUnknown(String),
    /// Upstream refuses it to larder.
    #[error("upstream denied access: {0}")]
    Denied(String),
    /// Upstream wants to be left alone.
    #[error("upstream limits the rate: {message}")]
    RateLimited {
        /// For how long.
        retry_after: Option<Duration>,
        /// Upstream's word.
        message: String,
    },
    /// Upstream failed, cannot be reached, or answered nonsense.
    #[error("upstream failed: {0}")]
    BadUpstream(String),
    /// Upstream did not answer in time.
    #[error("upstream did not answer in time: {0}")]
    TooSlow(String),
    /// The cache itself failed.
    #[error("{0}")]
    Internal(String),
    /// The process is stopping.
    #[error("shutting down")]
    Stopping,
}
