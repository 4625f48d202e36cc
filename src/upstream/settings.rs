//! What has to be known about a registry before it is asked anything.

use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use super::error::BuildError;
use crate::secret::Secret;

/// How to reach one registry.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its canonical name, such as `registry-1.docker.io` or `host:port`; names it in logs and metrics.
    pub host: String,
    /// Where it is: `http` or `https`; a path goes before `/v2/`.
    pub remote_url: Url,
    /// Who larder is to it.
    pub credentials: Credentials,
    /// The longest a name look-up, a connection and its TLS handshake may take together.
    pub connect_timeout: Duration,
    /// The longest to wait for the headers of an answer, connecting included; not less than `connect_timeout`.
    pub header_timeout: Duration,
    /// The longest pause between two pieces of a body.
    pub idle_timeout: Duration,
    /// Hosts (`host` or `host:port`) of token services that may get the credentials, beyond those that are the registry's own.
    pub realms: Vec<String>,
    /// A PEM file with certificate authorities trusted beside the system's.
    pub extra_ca: Option<PathBuf>,
    /// PEM files with a client certificate and its key.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// Whether any server certificate is believed.
    pub insecure: bool,
    /// The value of `?ns=` to send with each request, where the registry is itself a mirror of several.
    pub send_ns: Option<String>,
}

/// Who larder is to a registry. A user without a password, or the reverse, is nobody.
#[derive(Debug, Clone, Default)]
pub enum Credentials {
    /// Nobody.
    #[default]
    None,
    /// A user and a password.
    Static {
        /// The user.
        username: String,
        /// The password.
        password: Secret,
    },
    /// A user and a file with the password, read anew each time it is needed.
    PasswordFile {
        /// The user.
        username: String,
        /// The file; one line break at its end is not part of the password.
        path: PathBuf,
    },
    /// A Docker credential helper.
    Exec {
        /// The name or path of the program; `get` is its only argument.
        command: String,
        /// How long its answer holds: for good when absent, for one use when zero.
        lifetime: Option<Duration>,
    },
}

impl Credentials {
    /// Whether they stand for nobody.
    pub(super) fn is_none(&self) -> bool {
        match self {
            Self::None => true,
            Self::Static { username, password } => username.is_empty() || password.is_empty(),
            Self::PasswordFile { username, .. } => username.is_empty(),
            Self::Exec { command, .. } => command.is_empty(),
        }
    }
}

/// The registry's address without what only a request may have.
pub(super) fn base_url(remote_url: &Url) -> Result<Url, BuildError> {
    let is_web = matches!(remote_url.scheme(), "http" | "https") && remote_url.host_str().is_some();
    if !is_web {
        return Err(BuildError::Url {
            url: shown(remote_url),
        });
    }
    let mut base = remote_url.clone();
    base.set_query(None);
    base.set_fragment(None);
    // A user in the URL would be sent along with every request, wherever it is redirected to.
    if base.set_username("").is_err() || base.set_password(None).is_err() {
        return Err(BuildError::Url {
            url: shown(remote_url),
        });
    }
    Ok(base)
}

/// A URL without what may be a password.
fn shown(url: &Url) -> String {
    format!(
        "{}://{}{}",
        url.scheme(),
        url.host_str().unwrap_or_default(),
        url.path()
    )
}
