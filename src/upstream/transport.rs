//! One HTTP request and the headers of its answer: the client, its time limits, and what its failures mean.
//!
//! Follows redirects, because only here is known where credentials must not go. Knows nothing of tokens.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, RANGE};
use http::{HeaderValue, Method};
use reqwest::{Certificate, Client, Identity, Response};
use tokio::time::{Instant, timeout};
use url::Url;

use super::Observer;
use super::error::{BuildError, Error, Phase, chain};
use super::redirect::{self, MAX_REDIRECTS};
use super::settings::Settings;
use super::trust;

/// Idle connections kept for each host.
const MAX_IDLE_CONNECTIONS: usize = 32;
/// After this time an idle connection is not trusted any more: many address translators have forgotten it by then.
const IDLE_CONNECTION_LIFE: Duration = Duration::from_secs(45);
/// How often a silent HTTP/2 connection is asked whether it still lives.
const PING: Duration = Duration::from_secs(5);
/// Receive windows of HTTP/2: together they bound what an unread body can hold in memory.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// A request, without the authorization.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) url: Url,
    /// For the observer.
    pub(super) kind: &'static str,
    pub(super) accept: Option<&'static str>,
    pub(super) range: Option<HeaderValue>,
    pub(super) follow: Follow,
}

/// Which redirects are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follow {
    /// All that are sound.
    All,
    /// Those that stay at the same scheme, host and port; another one is itself the answer.
    SameOrigin,
}

/// An answer whose body is still to be read.
pub(super) struct Answer {
    pub(super) response: Response,
    /// Whether it comes from another scheme, host or port than the request went to at first.
    pub(super) is_foreign: bool,
}

/// The client of one registry.
pub(super) struct Transport {
    client: Client,
    host: String,
    base: Url,
    observer: Arc<dyn Observer>,
    /// From the first attempt to connect to the headers of an answer.
    pub(super) header_timeout: Duration,
    pub(super) idle_timeout: Duration,
}

impl Transport {
    pub(super) fn new(
        settings: &Settings,
        base: Url,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, BuildError> {
        Ok(Self {
            client: client(settings)?,
            host: settings.host.clone(),
            base,
            observer,
            header_timeout: settings.header_timeout.max(settings.connect_timeout),
            idle_timeout: settings.idle_timeout,
        })
    }

    /// The canonical name of the registry.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// The address of the registry.
    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    /// Sends a request and follows where it leads; the authorization stays at the first scheme, host and port.
    pub(super) async fn send(
        &self,
        request: &Request,
        authorization: Option<&HeaderValue>,
    ) -> Result<Answer, Error> {
        let mut url = request.url.clone();
        let mut is_foreign = false;
        for _ in 0..=MAX_REDIRECTS {
            let authorization = authorization.filter(|_| !is_foreign);
            let response = self.hop(request, url.clone(), authorization, is_foreign).await?;
            if !redirect::is_redirect(response.status().as_u16()) {
                return Ok(Answer { response, is_foreign });
            }
            let next = redirect::target(&self.base, &url, response.headers())?;
            let is_leaving = !trust::is_same_origin(&request.url, &next);
            if is_leaving && request.follow == Follow::SameOrigin {
                return Ok(Answer { response, is_foreign });
            }
            is_foreign |= is_leaving;
            url = next;
        }
        Err(Error::invalid(format!("more than {MAX_REDIRECTS} redirects")))
    }

    async fn hop(
        &self,
        request: &Request,
        url: Url,
        authorization: Option<&HeaderValue>,
        is_foreign: bool,
    ) -> Result<Response, Error> {
        let host = host_of(&url);
        let mut builder = self.client.request(request.method.clone(), url);
        // An encoded body could neither be resumed nor be counted in the bytes that its digest is of.
        builder = builder.header(ACCEPT_ENCODING, "identity");
        if let Some(accept) = request.accept {
            builder = builder.header(ACCEPT, accept);
        }
        if let Some(range) = &request.range {
            builder = builder.header(RANGE, range);
        }
        if let Some(authorization) = authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        let began = Instant::now();
        let outcome = match timeout(self.header_timeout, builder.send()).await {
            Ok(outcome) => outcome.map_err(|error| request_error(&host, error)),
            Err(_) => Err(Error::TimedOut {
                host: host.clone(),
                phase: Phase::Headers,
            }),
        };
        let elapsed = began.elapsed();
        let kind = if is_foreign { "redirect" } else { request.kind };
        let status = match &outcome {
            Ok(response) => response.status().as_str().to_owned(),
            Err(Error::TimedOut { .. }) => "timeout".to_owned(),
            Err(Error::Unreachable { .. }) => "unreachable".to_owned(),
            Err(_) => "cut".to_owned(),
        };
        self.observer.response(&self.host, kind, &status, elapsed);
        tracing::debug!(
            upstream = %self.host, %host, method = %request.method, kind, %status,
            ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX), "asked upstream"
        );
        outcome
    }
}

/// The host and port of a URL as they are shown.
pub(super) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port()
        .map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn request_error(host: &str, error: reqwest::Error) -> Error {
    // The URL may be a signed one.
    let error = error.without_url();
    let host = host.to_owned();
    if error.is_connect() && error.is_timeout() {
        return Error::TimedOut {
            host,
            phase: Phase::Connect,
        };
    }
    // Any other time that ran out was the connection's own (acknowledgements, pings): it was dead, the registry need not be.
    let reason = chain(&error);
    if error.is_connect() || error.is_builder() {
        Error::Unreachable {
            host,
            reason,
            source: Arc::new(error),
        }
    } else {
        Error::Cut {
            host,
            received: 0,
            reason,
        }
    }
}

fn client(settings: &Settings) -> Result<Client, BuildError> {
    let authorities = if settings.insecure {
        Vec::new()
    } else {
        authorities(settings.extra_ca.as_deref())?
    };
    client_with(settings, authorities)
}

fn client_with(settings: &Settings, authorities: Vec<Certificate>) -> Result<Client, BuildError> {
    let mut builder = Client::builder()
        .user_agent(concat!("larder/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .connect_timeout(settings.connect_timeout)
        .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
        .pool_idle_timeout(IDLE_CONNECTION_LIFE)
        .tcp_keepalive(Duration::from_secs(15))
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(settings.connect_timeout)
        .http2_keep_alive_while_idle(true)
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    // Bytes that nobody acknowledges mean a dead path, not a slow registry: the connection ends before our patience does.
    #[cfg(target_os = "linux")]
    {
        builder = builder.tcp_user_timeout(settings.connect_timeout.max(Duration::from_secs(1)));
    }
    if let Some((certificate, key)) = &settings.client_certificate {
        builder = builder.identity(identity(certificate, key)?);
    }
    builder = if settings.insecure {
        builder.tls_danger_accept_invalid_certs(true)
    } else {
        builder.tls_certs_only(authorities)
    };
    builder.build().map_err(BuildError::Client)
}

/// The certificate authorities of the system (`SSL_CERT_FILE`, `SSL_CERT_DIR`, else the usual places) and the extra one.
///
/// A system without any is no error: a registry without TLS needs none, and another one says so when it is asked.
fn authorities(extra: Option<&Path>) -> Result<Vec<Certificate>, BuildError> {
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::debug!(%error, "a certificate authority of the system is not usable");
    }
    let mut scratch = rustls::RootCertStore::empty();
    let mut authorities = Vec::new();
    for der in native.certs {
        // One that the library cannot read must not keep all others from being used.
        if scratch.add(der.clone()).is_ok() {
            authorities.extend(Certificate::from_der(&der));
        }
    }
    if let Some(path) = extra {
        let unusable = || BuildError::Certificate {
            path: path.to_owned(),
            what: "certificate authority",
        };
        let extra = Certificate::from_pem_bundle(&read(path)?).map_err(|_| unusable())?;
        if extra.is_empty() {
            return Err(unusable());
        }
        authorities.extend(extra);
    }
    Ok(authorities)
}

fn identity(certificate: &Path, key: &Path) -> Result<Identity, BuildError> {
    let mut pem = read(certificate)?;
    pem.push(b'\n');
    pem.extend(read(key)?);
    Identity::from_pem(&pem).map_err(|_| BuildError::Certificate {
        path: certificate.to_owned(),
        what: "client certificate with its key",
    })
}

fn read(path: &Path) -> Result<Vec<u8>, BuildError> {
    std::fs::read(path).map_err(|source| BuildError::Read {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    #[test]
    fn a_system_without_certificate_authorities_does_not_prevent_the_start() {
        client_with(
            &settings(&Url::parse("https://r.example.com").unwrap()),
            Vec::new(),
        )
        .unwrap();
    }
}
