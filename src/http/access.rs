//! What is counted and logged of a request: once, when its answer has ended or was given up.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::USER_AGENT;
use http::{HeaderMap, Method, StatusCode};
use http_body::{Frame, SizeHint};
use prometheus::IntGauge;
use tokio::time::Instant;

use super::connection::Connection;
use super::headers::CACHE_STATUS;
use super::route::Route;
use super::{Asked, Edge};
use crate::metrics::{Kind, Metrics};

/// What the log shows for a client that left before there was an answer, as nginx does.
const CLIENT_LEFT: u16 = 499;

/// A request on its way to the log; written when it is dropped.
pub(super) struct Record {
    metrics: Arc<Metrics>,
    in_flight: IntGauge,
    is_logged: bool,
    began: Instant,
    method: Method,
    path: String,
    handler: &'static str,
    object: Option<String>,
    kind: Option<Kind>,
    upstream: String,
    repository: String,
    user_agent: String,
    cache_status: String,
    status: Option<StatusCode>,
    connection: Option<Arc<Connection>>,
    is_http1: bool,
    written_before: u64,
    body_bytes: u64,
    is_complete: bool,
}

impl Record {
    pub(super) fn new(edge: &Edge, asked: &Asked, connection: Option<Arc<Connection>>) -> Self {
        let (kind, object) = match &asked.route {
            Route::Manifest { reference, .. } => (Some(Kind::Manifest), Some(reference.clone())),
            Route::Blob { digest, .. } => (Some(Kind::Blob), Some(digest.clone())),
            Route::Referrers { digest, .. } => (None, Some(digest.clone())),
            _ => (None, None),
        };
        let handler = asked.route.handler();
        let in_flight = edge.metrics.http_in_flight.with_label_values(&[handler]);
        in_flight.inc();
        Self {
            metrics: edge.metrics.clone(),
            in_flight,
            is_logged: edge.settings.is_access_log_enabled,
            began: Instant::now(),
            method: asked.method.clone(),
            path: asked.path.clone(),
            handler,
            object,
            kind,
            upstream: String::new(),
            repository: asked.route.repository().unwrap_or_default().to_owned(),
            user_agent: text_of(&asked.headers, USER_AGENT),
            cache_status: String::new(),
            status: None,
            written_before: connection
                .as_ref()
                .map_or(0, |connection| connection.written_bytes()),
            connection,
            is_http1: asked.connection.is_some(),
            body_bytes: 0,
            is_complete: false,
        }
    }

    /// Notes what the request was found to mean.
    pub(super) fn locate(&mut self, upstream: &str, repository: &str) {
        upstream.clone_into(&mut self.upstream);
        repository.clone_into(&mut self.repository);
    }

    /// Notes the answer and stays with its body.
    pub(super) fn follow(mut self, response: Response) -> Response {
        self.status = Some(response.status());
        self.cache_status = text_of(response.headers(), CACHE_STATUS);
        response.map(|body| Body::new(Recorded { body, record: self }))
    }

    /// The bytes of the body that left. What hyper had queued when a client went away did not.
    fn moved_bytes(&self) -> u64 {
        match &self.connection {
            Some(connection) if self.is_http1 && !self.is_complete => {
                let written = connection.written_bytes().saturating_sub(self.written_before);
                self.body_bytes.min(written)
            }
            _ => self.body_bytes,
        }
    }

    fn count(&self, moved_bytes: u64) {
        let Some(status) = self.status else {
            return;
        };
        if let (Some(kind), true) = (self.kind, status.is_success()) {
            self.metrics.pushed(kind, moved_bytes);
        }
        let method = match self.method {
            Method::GET => "get",
            Method::HEAD => "head",
            Method::POST => "post",
            Method::PUT => "put",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            Method::OPTIONS => "options",
            _ => "other",
        };
        self.metrics
            .http_answered(status.as_u16(), self.handler, method, self.began.elapsed());
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.in_flight.dec();
        let moved_bytes = self.moved_bytes();
        self.count(moved_bytes);
        if !self.is_logged {
            return;
        }
        tracing::info!(
            target: "larder::access",
            method = %self.method,
            path = self.path,
            upstream = self.upstream,
            repository = self.repository,
            reference = self.object.as_deref().unwrap_or_default(),
            status = self.status.map_or(CLIENT_LEFT, |status| status.as_u16()),
            bytes = moved_bytes,
            duration_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            cache = self.cache_status,
            remote = self.connection.as_ref().map_or("", |connection| connection.remote()),
            user_agent = self.user_agent,
            "answered"
        );
    }
}

fn text_of(headers: &HeaderMap, name: http::HeaderName) -> String {
    let text = headers
        .get(name)
        .map(http::HeaderValue::as_bytes)
        .unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

/// A body whose bytes are counted.
struct Recorded {
    body: Body,
    record: Record,
}

impl http_body::Body for Recorded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let result = Pin::new(&mut self.body).poll_frame(cx);
        match &result {
            Poll::Ready(Some(Ok(frame))) => {
                self.record.body_bytes += frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
                self.record.is_complete = self.body.is_end_stream();
            }
            Poll::Ready(None) => self.record.is_complete = true,
            _ => {}
        }
        result
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
