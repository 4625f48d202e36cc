//! Upstreams on loopback that count what they are asked and answer to order.

mod access;
mod answers;
mod network;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, RANGE, USER_AGENT};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use url::Url;

use super::*;
use crate::oci::{Algorithm, Digest, Name, Reference};

/// A request as it arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Seen {
    method: String,
    /// Path and query, as sent.
    target: String,
    authorization: Option<String>,
    range: Option<String>,
    encoding: Option<String>,
    agent: Option<String>,
}

/// A server on loopback; it ends when dropped.
struct Server {
    url: Url,
    seen: Arc<Mutex<Vec<Seen>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Answers each request by `answer`, which sees how often this was asked before, by method and path.
    async fn start(answer: impl Fn(&Seen, usize) -> Response + Send + Sync + 'static) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
        let (log, answer) = (Arc::clone(&seen), Arc::new(answer));
        let app = Router::new().fallback(move |request: Request| {
            let this = note(&request);
            let before = {
                let mut log = log.lock();
                let path = path_of(&this);
                let before = log
                    .iter()
                    .filter(|s| s.method == this.method && path_of(s) == path)
                    .count();
                log.push(this.clone());
                before
            };
            std::future::ready(answer(&this, before))
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            url,
            seen,
            _tasks: tasks,
        }
    }

    fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// The number of requests whose method and target begin so, such as `GET /token`.
    fn count(&self, line: &str) -> usize {
        self.seen()
            .iter()
            .filter(|seen| format!("{} {}", seen.method, seen.target).starts_with(line))
            .count()
    }

    fn host(&self) -> String {
        transport::host_of(&self.url)
    }
}

fn path_of(seen: &Seen) -> &str {
    seen.target.split('?').next().unwrap_or_default()
}

fn note(request: &Request) -> Seen {
    let header = |name| {
        request
            .headers()
            .get(name)
            .map(|v: &http::HeaderValue| v.to_str().unwrap().to_owned())
    };
    Seen {
        method: request.method().to_string(),
        target: request.uri().path_and_query().unwrap().to_string(),
        authorization: header(AUTHORIZATION),
        range: header(RANGE),
        encoding: header(ACCEPT_ENCODING),
        agent: header(USER_AGENT),
    }
}

/// An answer of a status, headers and a body.
fn reply(status: u16, headers: &[(&str, &str)], body: impl Into<Body>) -> Response {
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body.into()).unwrap()
}

/// What the observer heard: kind and status.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Observer for Heard {
    fn response(&self, _: &str, kind: &'static str, status: &str, _: Duration) {
        self.0.lock().push(format!("{kind} {status}"));
    }
}

pub(super) fn settings(url: &Url) -> Settings {
    Settings {
        host: transport::host_of(url),
        remote_url: url.clone(),
        credentials: Credentials::None,
        connect_timeout: Duration::from_secs(2),
        header_timeout: Duration::from_secs(2),
        idle_timeout: Duration::from_secs(2),
        realms: Vec::new(),
        extra_ca: None,
        client_certificate: None,
        insecure: false,
        send_ns: None,
    }
}

fn connect(settings: Settings) -> Upstream {
    Upstream::new(settings, Arc::new(Heard::default()), Clock::default()).unwrap()
}

fn alice() -> Credentials {
    Credentials::Static {
        username: "alice".to_owned(),
        password: crate::secret::Secret::new("secret"),
    }
}

const ALICE: &str = "Basic YWxpY2U6c2VjcmV0";

fn name() -> Name {
    Name::parse("team/app").unwrap()
}

fn tag() -> Reference {
    Reference::parse("v1").unwrap()
}

fn digest() -> Digest {
    Digest::of(Algorithm::Sha256, b"content")
}

fn blob_path() -> String {
    format!("/v2/team/app/blobs/{}", digest())
}

/// Everything of a blob's body.
async fn read(response: BlobResponse) -> Result<Vec<u8>, Error> {
    use futures::TryStreamExt as _;
    let pieces: Vec<bytes::Bytes> = response.body.try_collect().await?;
    Ok(pieces.concat())
}
