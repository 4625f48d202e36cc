//! What can come of asking a registry, by what the caller can do about it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// Why a registry did not give what was asked. Cheap to clone: everyone who waited gets it.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// It does not have it.
    #[error("upstream does not have it")]
    NotFound,
    /// It does not give it to us.
    #[error("upstream denies access: {message}")]
    Denied {
        /// In the registry's words, or ours where we would not ask.
        message: String,
    },
    /// It wants to be left alone.
    #[error("upstream limits the rate of requests: {message}")]
    RateLimited {
        /// How much longer.
        retry_after: Option<Duration>,
        /// In the registry's words.
        message: String,
    },
    /// It answered that it cannot answer.
    #[error("upstream answered {status}: {message}")]
    Unavailable {
        /// The status code, 5xx.
        status: u16,
        /// In the registry's words.
        message: String,
    },
    /// There is no connection: name, route, port or TLS.
    #[error("cannot reach `{host}`: {reason}")]
    Unreachable {
        /// Which host; not always the registry itself.
        host: String,
        /// The whole chain of causes in one line.
        reason: String,
        /// The cause.
        #[source]
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// It took too long.
    #[error("`{host}` is too slow: no {phase} in time")]
    TimedOut {
        /// Which host; not always the registry itself.
        host: String,
        /// What was waited for.
        phase: Phase,
    },
    /// The connection broke before the answer was whole.
    #[error("the answer of `{host}` ended after {received} bytes: {reason}")]
    Cut {
        /// Which host; not always the registry itself.
        host: String,
        /// Bytes of the body that did arrive.
        received: u64,
        /// The whole chain of causes in one line.
        reason: String,
    },
    /// The answer makes no sense.
    #[error("upstream's answer is not usable: {message}")]
    Invalid {
        /// What is wrong with it.
        message: String,
    },
    /// It has no referrers API; look for the referrers tag.
    #[error("upstream has no referrers API")]
    ReferrersUnsupported,
    /// It does not answer `HEAD` for this; ask with `GET`.
    #[error("upstream refuses HEAD")]
    HeadRefused,
    /// It does not answer requests for a range; ask for the whole.
    #[error("upstream refuses the range with {status}")]
    RangeRefused {
        /// 400 or 416.
        status: u16,
    },
}

impl Error {
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
        }
    }

    pub(super) fn denied(message: impl Into<String>) -> Self {
        Self::Denied {
            message: message.into(),
        }
    }

    /// Whether the same small request may well succeed at once.
    pub(super) fn is_worth_repeating(&self) -> bool {
        matches!(
            self,
            Self::Cut { .. }
                | Self::Unavailable {
                    status: 502..=504,
                    ..
                }
        )
    }

    /// Whether it is the registry that is unwell, and not the request that is wrong.
    pub fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::RateLimited { .. }
                | Self::Unavailable { .. }
                | Self::Unreachable { .. }
                | Self::TimedOut { .. }
                | Self::Cut { .. }
                | Self::Invalid { .. }
        )
    }
}

/// What was waited for when time ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A connection.
    Connect,
    /// The headers of an answer.
    Headers,
    /// The next piece of a body.
    Body,
    /// The credential helper.
    Helper,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connect => "connection",
            Self::Headers => "headers",
            Self::Body => "further bytes",
            Self::Helper => "answer of the credential helper",
        })
    }
}

/// Why an upstream cannot even be tried.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Not the URL of a registry.
    #[error("`{url}` is not an http or https URL with a host")]
    Url {
        /// The URL.
        url: String,
    },
    /// A certificate or key file cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// A file is no certificate or key.
    #[error("`{}` holds no usable {what}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What was looked for in it.
        what: &'static str,
    },
    /// The HTTP client cannot be made.
    #[error("cannot prepare the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// The messages of an error and all its causes, each once, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let message = cause.to_string();
        if !text.contains(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = cause.source();
    }
    text
}
