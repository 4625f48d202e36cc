//! The demo's upstream: a small registry on loopback that wants a bearer token, is some milliseconds away and has a
//! bandwidth, and notes what it was asked. It serves one image and knows nothing else.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::image::{Document, INDEX, Image, REPOSITORY, TAG};

/// How long every answer takes.
pub(super) const DELAY: Duration = Duration::from_millis(30);
/// What a body runs at.
pub(super) const BYTES_PER_SECOND: u32 = 40_000_000;

const PIECE_BYTES: u32 = 256 << 10;
const TOKEN: &str = "demo-token";

/// One request that upstream answered.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) status: StatusCode,
}

/// The running upstream; it stops with the token it was started with.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    state: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    image: Image,
    challenge: HeaderValue,
    asked: Mutex<Vec<Asked>>,
}

impl Upstream {
    /// Serves the image on a free port of loopback until `stop`.
    ///
    /// # Errors
    /// When loopback has no port to give.
    pub(super) async fn start(
        image: Image,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let challenge = format!(
            r#"Bearer realm="http://{address}/token",service="demo",scope="repository:{REPOSITORY}:pull""#
        );
        let challenge = HeaderValue::from_str(&challenge).map_err(io::Error::other)?;
        let state = Arc::new(Shared {
            image,
            challenge,
            asked: Mutex::default(),
        });
        let app = Router::new().fallback(answer).with_state(Arc::clone(&state));
        tasks.spawn(async move {
            axum::serve(listener, app)
                .with_graceful_shutdown(stop.cancelled_owned())
                .await
        });
        Ok(Self { address, state })
    }

    /// What was asked since the last call.
    pub(super) fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.state.asked.lock())
    }
}

async fn answer(State(state): State<Arc<Shared>>, request: Request) -> Response {
    tokio::time::sleep(DELAY).await;
    let response = if request.uri().path() == "/token" {
        as_json(StatusCode::OK, &json!({ "token": TOKEN, "expires_in": 300 }))
    } else if has_token(&request) {
        state.content(request.uri().path())
    } else {
        let challenge = [(header::WWW_AUTHENTICATE, state.challenge.clone())];
        (challenge, problem(StatusCode::UNAUTHORIZED, "UNAUTHORIZED")).into_response()
    };
    state.asked.lock().push(Asked {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        status: response.status(),
    });
    response
}

fn has_token(request: &Request) -> bool {
    request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .is_some_and(|token| token == TOKEN)
}

fn problem(status: StatusCode, code: &str) -> Response {
    as_json(
        status,
        &json!({ "errors": [{ "code": code, "message": "from the demo's upstream" }] }),
    )
}

fn as_json(status: StatusCode, value: &Value) -> Response {
    (
        status,
        [(header::CONTENT_TYPE, "application/json")],
        value.to_string(),
    )
        .into_response()
}

impl Shared {
    fn content(&self, path: &str) -> Response {
        let Some(rest) = path.strip_prefix("/v2/") else {
            return problem(StatusCode::NOT_FOUND, "UNSUPPORTED");
        };
        if rest.is_empty() {
            return as_json(StatusCode::OK, &json!({}));
        }
        match rest
            .strip_prefix(REPOSITORY)
            .and_then(|rest| rest.strip_prefix('/'))
        {
            Some("tags/list") => as_json(StatusCode::OK, &json!({ "name": REPOSITORY, "tags": [TAG] })),
            Some(rest) => match rest.split_once('/') {
                Some(("manifests", TAG)) => self.manifest(&self.image.index),
                Some(("manifests", digest)) => self.manifest(digest),
                Some(("blobs", digest)) => self.blob(digest),
                _ => problem(StatusCode::NOT_FOUND, "UNSUPPORTED"),
            },
            None => problem(StatusCode::NOT_FOUND, "NAME_UNKNOWN"),
        }
    }

    fn manifest(&self, digest: &str) -> Response {
        let Some(Document { media_type, bytes }) = self.image.manifests.get(digest) else {
            return problem(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN");
        };
        debug_assert!(
            *media_type != INDEX || digest == self.image.index,
            "there is one index"
        );
        with_digest(digest, media_type, bytes.len(), Body::from(bytes.clone()))
    }

    fn blob(&self, digest: &str) -> Response {
        let Some(bytes) = self.image.blobs.get(digest) else {
            return problem(StatusCode::NOT_FOUND, "BLOB_UNKNOWN");
        };
        with_digest(
            digest,
            "application/octet-stream",
            bytes.len(),
            paced(bytes.clone()),
        )
    }
}

fn with_digest(digest: &str, media_type: &'static str, size: usize, body: Body) -> Response {
    let headers = [
        (header::CONTENT_TYPE.as_str(), media_type.to_owned()),
        (header::CONTENT_LENGTH.as_str(), size.to_string()),
        ("docker-content-digest", digest.to_owned()),
    ];
    (headers, body).into_response()
}

/// A body that keeps to the bandwidth, measured from its beginning so that late timers do not add up.
fn paced(bytes: Bytes) -> Body {
    let piece_time = Duration::from_secs(1) * PIECE_BYTES / BYTES_PER_SECOND;
    let begin = tokio::time::Instant::now();
    Body::from_stream(futures::stream::unfold(
        (bytes, begin),
        move |(mut rest, due)| async move {
            if rest.is_empty() {
                return None;
            }
            tokio::time::sleep_until(due).await;
            let piece = rest.split_to(rest.len().min(PIECE_BYTES as usize));
            Some((Ok::<_, std::convert::Infallible>(piece), (rest, due + piece_time)))
        },
    ))
}
