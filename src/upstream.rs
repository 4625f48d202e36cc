//! The other registry: everything larder asks it, and nothing about what becomes of the answers.
//!
//! An [`Upstream`] knows how to reach one registry: tokens and credentials, redirects to where blobs really are, short
//! repeats of small requests, and leaving a registry alone that said `429`. It keeps no content and no redirect target.
//! Constructing one asks nobody anything; a registry that is down is found out by the first request.
//!
//! Called by `registry`, which decides what an [`Error`] means for the client.

mod auth;
mod blobs;
mod body;
mod challenge;
mod credentials;
mod error;
mod exchange;
mod lease;
mod link;
mod lists;
mod manifests;
mod pause;
mod redirect;
mod refusal;
mod retry;
mod settings;
#[cfg(test)]
mod tests;
mod token;
mod transport;
mod trust;

use std::sync::Arc;
use std::time::Duration;

use url::Url;

use crate::clock::Clock;

pub use blobs::{BlobHead, BlobResponse, Range};
pub use error::{BuildError, Error, Phase};
pub use lists::TagsPage;
pub use manifests::{FetchedManifest, ManifestHead};
pub use settings::{Credentials, Settings};

use auth::Auth;
use pause::Pause;
use transport::Transport;

/// Hears of every answer, or missing answer, of a registry, its token service and the places it redirects to.
pub trait Observer: Send + Sync {
    /// A request to `upstream` (its canonical name) is answered or failed.
    ///
    /// `kind` is `manifest`, `blob`, `tags`, `referrers`, `token` or `redirect` (a request to where the registry sent
    /// us); `status` is the status code, or `timeout`, `unreachable`, `cut`; `elapsed` is the time until the headers.
    fn response(&self, upstream: &str, kind: &'static str, status: &str, elapsed: Duration);
}

/// One registry that larder pulls from. Share it by `Arc`; it has one connection pool and one token cache.
pub struct Upstream {
    transport: Arc<Transport>,
    auth: Auth,
    pause: Arc<Pause>,
    base: Url,
    send_ns: Option<String>,
}

impl Upstream {
    /// Prepares the client. Reads certificate files, but asks nothing over the network.
    ///
    /// # Errors
    /// [`BuildError`] when the URL cannot be a registry's or a certificate file cannot be used.
    pub fn new(settings: Settings, observer: Arc<dyn Observer>, clock: Clock) -> Result<Self, BuildError> {
        let base = settings::base_url(&settings.remote_url)?;
        let pause = Arc::new(Pause::new(clock));
        let transport = Arc::new(Transport::new(&settings, base.clone(), observer)?);
        let auth = Auth::new(&settings, Arc::clone(&transport), Arc::clone(&pause));
        Ok(Self {
            transport,
            auth,
            pause,
            base,
            send_ns: settings.send_ns,
        })
    }

    /// The canonical name of the registry, such as `registry-1.docker.io` or `host:port`.
    pub fn host(&self) -> &str {
        self.transport.host()
    }

    /// Whether no credentials are configured, so that whatever it gives is what it gives to everyone.
    pub fn is_public(&self) -> bool {
        self.auth.is_anonymous()
    }

    /// The URL of `/v2/` + `path` at the registry, with the name space where it wants one.
    fn url(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}/v2/{path}", self.base.path().trim_end_matches('/')));
        if let Some(ns) = &self.send_ns {
            url.query_pairs_mut().append_pair("ns", ns);
        }
        url
    }
}

impl std::fmt::Debug for Upstream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Upstream")
            .field("host", &self.host())
            .field("base", &self.base.as_str())
            .finish_non_exhaustive()
    }
}
