//! Why the service cannot answer, by what the caller can do about it.

use std::time::Duration;

use thiserror::Error;

use crate::upstream;

/// A request that was not fulfilled. Names no status codes: the edge maps these.
#[derive(Debug, Clone, Error)]
pub enum Error {
    /// The client addressed an upstream or a repository that does not exist.
    #[error("repository `{0}` is not known")]
    NameUnknown(String),
    /// What stands where a repository's name should be is none.
    #[error("{0}")]
    NameInvalid(String),
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

impl Error {
    /// Whether what is held may be served instead, marked stale: upstream failed or refuses, but did not say that the
    /// thing is gone.
    pub fn leaves_what_is_held(&self) -> bool {
        !matches!(
            self,
            Self::NameUnknown(_)
                | Self::NameInvalid(_)
                | Self::ManifestUnknown(_)
                | Self::BlobUnknown(_)
                | Self::Stopping
        )
    }

    /// Whether upstream is out of order, so that the next question is not waited for either.
    pub(super) fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. } | Self::BadUpstream(_) | Self::TooSlow(_)
        )
    }

    /// What an upstream's failure means here; `unknown` is what its `NotFound` means.
    pub(super) fn of_upstream(error: &upstream::Error, unknown: impl FnOnce() -> Self) -> Self {
        match error {
            upstream::Error::NotFound => unknown(),
            upstream::Error::Denied { message } => Self::Denied(message.clone()),
            upstream::Error::RateLimited { retry_after, message } => Self::RateLimited {
                retry_after: *retry_after,
                message: message.clone(),
            },
            upstream::Error::TimedOut { .. } => Self::TooSlow(error.to_string()),
            other => Self::BadUpstream(other.to_string()),
        }
    }
}
