//! The edge: HTTP in, the service's answers out. Status codes and headers are decided here and nowhere below; nothing
//! here knows where bytes are kept.
//!
//! A [`Listener`](listener::Listener) speaks HTTP and calls the router that [`Edge::router`] makes. That router has one
//! endpoint, which asks [`Route::parse`](route::Route::parse) what is meant and hands on to `manifest`, `blob` or
//! `discovery`, and where the repository is larder's own to `hosted`, which adds `upload` and `push`. Bodies travel as [`body::ContentBody`]. The admin listener is [`admin`].

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, EXPECT, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Version};
use http_body_util::{BodyExt, Limited};

use self::access::Record;
use self::auth::Htpasswd;
use self::connection::Connection;
use self::error::Failure;
use self::headers::{DOCKER_API_VERSION, OCI_NAMESPACE, insert};
use self::route::{PathRules, Query, Route};
use crate::metrics::Metrics;
use crate::oci::ErrorCode;
use crate::registry::{Registry, Repository};

mod access;
pub mod admin;
pub mod auth;
mod blob;
pub mod body;
pub mod connection;
mod discovery;
pub mod error;
pub mod headers;
pub mod health;
mod hosted;
pub mod listener;
mod manifest;
mod push;
pub mod range;
pub mod route;
mod sendfile;
#[cfg(test)]
mod tests;
pub mod tls;
mod upload;
mod wire;

/// The most of an unwanted request body that is read before the answer goes out.
const MAX_DRAINED_BYTES: usize = 1024 * 1024;
/// How long an unwanted request body is waited for.
const DRAIN_PATIENCE: Duration = Duration::from_secs(2);

/// How the edge behaves.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// How paths are laid out.
    pub rules: PathRules,
    /// Headers on every answer under `/v2`.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The most tags on one page.
    pub max_tags: u64,
    /// The most repositories on one page.
    pub max_catalog_entries: u64,
    /// Whether each request is written to the log.
    pub is_access_log_enabled: bool,
}

/// The registry's API over HTTP.
pub struct Edge {
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    settings: Settings,
    login: Option<Htpasswd>,
}

/// A request, understood as far as the path, the query and the headers go.
struct Asked {
    method: Method,
    path: String,
    route: Route,
    query: Query,
    headers: HeaderMap,
    /// The connection it came by, when that speaks HTTP/1.x.
    connection: Option<Arc<Connection>>,
}

impl Edge {
    /// An edge over a service.
    pub fn new(
        registry: Arc<Registry>,
        metrics: Arc<Metrics>,
        settings: Settings,
        login: Option<Htpasswd>,
    ) -> Self {
        Self {
            registry,
            metrics,
            settings,
            login,
        }
    }

    /// The router to serve.
    pub fn router(self) -> Router {
        Router::new().fallback(serve).with_state(Arc::new(self))
    }

    async fn answer(&self, asked: &Asked, body: Body, record: &mut Record) -> Result<Response, Failure> {
        if let (true, Some(login)) = (asked.route.is_under_v2(), &self.login) {
            login.check(&asked.headers).await?;
        }
        if let Some(path) = asked.route.repository() {
            let ns = asked.query.ns.as_deref();
            if let Some(hosted) = self.registry.locate_hosted(path, ns)? {
                record.locate("", hosted.name().as_str());
                return hosted::serve(self, asked, &hosted, body).await;
            }
        }
        let is_tunnel = asked.method == Method::CONNECT;
        if is_tunnel || (asked.is_write() && asked.route.is_under_v2()) {
            refuse_body(asked, body).await;
            return Err(Failure::read_only());
        }
        match &asked.route {
            Route::Root => Ok(root()),
            Route::Base => Ok(base()),
            Route::BaseWithoutSlash => Ok(redirect_to_base(&asked.path)),
            Route::Catalog => discovery::catalog(self, asked).await,
            Route::Malformed => Err(Failure::bad_request(
                ErrorCode::NameInvalid,
                "the path is not well formed",
            )),
            Route::UnknownUnderV2 => Err(Failure::not_found(
                ErrorCode::NameUnknown,
                "no endpoint of the registry has this path",
            )),
            Route::Unknown => Err(Failure::not_found(
                ErrorCode::Unsupported,
                "the registry is at /v2/",
            )),
            Route::Upload { session, .. } => Err(Failure::not_found(
                ErrorCode::BlobUploadUnknown,
                "blob upload unknown to registry",
            )
            .with_detail(session.as_str())),
            Route::Manifest { repository, .. }
            | Route::Blob { repository, .. }
            | Route::Tags { repository }
            | Route::Referrers { repository, .. } => {
                let ns = asked.query.ns.as_deref();
                let repository = self.registry.locate(repository, ns)?;
                record.locate(repository.upstream_host(), repository.name().as_str());
                let mut response = self.within(asked, &repository).await?;
                if let Some(ns) = ns {
                    insert(response.headers_mut(), OCI_NAMESPACE, ns);
                }
                Ok(response)
            }
        }
    }

    async fn within(&self, asked: &Asked, repository: &Repository) -> Result<Response, Failure> {
        match &asked.route {
            Route::Manifest { reference, .. } => manifest::serve(self, asked, repository, reference).await,
            Route::Blob { digest, .. } => blob::serve(self, asked, repository, digest).await,
            Route::Referrers { digest, .. } => discovery::referrers(self, asked, repository, digest).await,
            _ => discovery::tags(self, asked, repository).await,
        }
    }

    /// Adds what every answer carries that speaks for the registry: all but the root's, as distribution does. What is
    /// configured is for answers under `/v2`.
    fn add_common_headers(&self, route: &Route, headers: &mut HeaderMap) {
        if *route == Route::Root {
            return;
        }
        headers.insert(DOCKER_API_VERSION, HeaderValue::from_static("registry/2.0"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if route.is_under_v2() {
            self.add_configured_headers(headers);
        }
    }

    /// Sets the configured headers; one that is named twice is sent twice.
    fn add_configured_headers(&self, headers: &mut HeaderMap) {
        let mut replaced: Vec<&HeaderName> = Vec::new();
        for (name, value) in &self.settings.headers {
            if replaced.contains(&name) {
                headers.append(name, value.clone());
            } else {
                headers.insert(name, value.clone());
                replaced.push(name);
            }
        }
    }
}

impl Asked {
    fn new(parts: Parts, rules: &PathRules) -> Self {
        let is_http1 = parts.version <= Version::HTTP_11;
        let connection = parts.extensions.get::<Arc<Connection>>().cloned();
        Self {
            route: Route::parse(parts.uri.path(), rules),
            query: Query::parse(parts.uri.query().unwrap_or_default()),
            path: parts.uri.path().to_owned(),
            method: parts.method,
            headers: parts.headers,
            connection: connection.filter(|_| is_http1),
        }
    }

    fn is_head(&self) -> bool {
        self.method == Method::HEAD
    }

    fn is_write(&self) -> bool {
        let is_question = self.method == Method::OPTIONS && self.route == Route::Base;
        !(matches!(self.method, Method::GET | Method::HEAD) || is_question)
    }
}

async fn serve(State(edge): State<Arc<Edge>>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let remote = parts.extensions.get::<Arc<Connection>>().cloned();
    let asked = Asked::new(parts, &edge.settings.rules);
    let mut record = Record::new(&edge, &asked, remote);
    let mut response = match edge.answer(&asked, body, &mut record).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    };
    edge.add_common_headers(&asked.route, response.headers_mut());
    if asked.is_write() && !response.status().is_success() && asked.must_close() {
        response
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
    }
    record.follow(response)
}

impl Asked {
    /// Whether an unwanted request body is still on its way.
    fn must_close(&self) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|connection| connection.must_linger())
    }
}

/// Reads a body nobody wants, within bounds; past them the connection ends with the answer.
async fn refuse_body(asked: &Asked, body: Body) {
    let is_asking_first = asked.headers.contains_key(EXPECT);
    let drained = Limited::new(body, MAX_DRAINED_BYTES).collect();
    let is_drained =
        !is_asking_first && matches!(tokio::time::timeout(DRAIN_PATIENCE, drained).await, Ok(Ok(_)));
    if let (false, Some(connection)) = (is_drained, &asked.connection) {
        connection.linger();
    }
}

fn root() -> Response {
    let mut response = Response::new(Body::empty());
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn base() -> Response {
    let mut response = Response::new(Body::from("{}"));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn redirect_to_base(path: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    insert(response.headers_mut(), LOCATION, &format!("{path}/"));
    response
}
