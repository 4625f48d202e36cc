//! Repositories that larder owns: every endpoint of the distribution specification, answered from here.

use axum::body::Body;
use axum::response::Response;
use http::header::{ALLOW, CONTENT_LENGTH};
use http::{HeaderValue, Method, StatusCode};

use super::error::Failure;
use super::headers::{DOCKER_CONTENT_DIGEST, insert};
use super::route::Route;
use super::{Asked, Edge, blob, discovery, manifest, push, refuse_body, upload};
use crate::metrics::Kind;
use crate::oci::{Digest, ErrorCode};
use crate::registry::{HostedRepository, PushError};

/// Answers any request to a hosted repository.
pub(super) async fn serve(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    mut body: Body,
) -> Result<Response, Failure> {
    let is_question = matches!(asked.method, Method::GET | Method::HEAD);
    if is_question {
        return read(edge, asked, repository).await;
    }
    let answer = write(edge, asked, repository, &mut body).await;
    if answer.is_err() {
        // What is still coming must not keep the answer from being read.
        refuse_body(asked, body).await;
    }
    answer
}

async fn read(edge: &Edge, asked: &Asked, repository: &HostedRepository) -> Result<Response, Failure> {
    match &asked.route {
        Route::Manifest { reference, .. } => {
            let reference = manifest::parse(reference)?;
            let answer = edge.registry.hosted_manifest(repository, &reference).await?;
            edge.metrics.answered(Kind::Manifest, answer.is_hit());
            Ok(manifest::respond(&asked.headers, answer))
        }
        Route::Blob { digest, .. } => read_blob(edge, asked, repository, digest).await,
        Route::Referrers { digest, .. } => discovery::hosted_referrers(edge, asked, repository, digest),
        Route::Upload { session, .. } => upload::status(edge, asked, repository, session).await,
        _ => discovery::hosted_tags(edge, asked, repository).await,
    }
}

async fn read_blob(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    digest: &str,
) -> Result<Response, Failure> {
    let digest = blob::parse(digest)?;
    if blob::is_about_size(asked, &digest) {
        let answer = edge.registry.hosted_blob_size(repository, &digest).await?;
        return Ok(blob::respond_size(edge, asked, &digest, &answer));
    }
    let wants = blob::wants(asked, &digest);
    let blob = edge.registry.hosted_blob(repository, &digest).await?;
    blob::respond(edge, asked, &digest, blob, &wants).await
}

async fn write(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    body: &mut Body,
) -> Result<Response, Failure> {
    let method = asked.method.as_str();
    match (method, &asked.route) {
        ("POST", Route::Upload { session, .. }) if session.is_empty() => {
            upload::begin(edge, asked, repository, body).await
        }
        ("PATCH", Route::Upload { session, .. }) if !session.is_empty() => {
            upload::append(edge, asked, repository, session, body).await
        }
        ("PUT", Route::Upload { session, .. }) if !session.is_empty() => {
            upload::close(edge, asked, repository, session, body).await
        }
        ("DELETE", Route::Upload { session, .. }) if !session.is_empty() => {
            upload::cancel(edge, repository, session).await
        }
        ("PUT", Route::Manifest { reference, .. }) => {
            push::manifest(edge, asked, repository, reference, body).await
        }
        ("DELETE", Route::Manifest { reference, .. }) => {
            push::delete_manifest(edge, repository, reference).await
        }
        ("DELETE", Route::Blob { digest, .. }) => push::delete_blob(edge, repository, digest).await,
        (_, route) => Err(not_allowed(allowed(route))),
    }
}

/// The methods of an endpoint.
fn allowed(route: &Route) -> &'static str {
    match route {
        Route::Upload { session, .. } if session.is_empty() => "POST",
        Route::Upload { .. } => "GET, HEAD, PATCH, PUT, DELETE",
        Route::Manifest { .. } => "GET, HEAD, PUT, DELETE",
        Route::Blob { .. } => "GET, HEAD, DELETE",
        _ => "GET, HEAD",
    }
}

fn not_allowed(allow: &'static str) -> Failure {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    Failure::new(status, ErrorCode::Unsupported, "the operation is unsupported")
        .with_header(ALLOW, HeaderValue::from_static(allow))
}

/// An answer without a body.
pub(super) fn empty(status: StatusCode) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    if status != StatusCode::NO_CONTENT {
        response
            .headers_mut()
            .insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    response
}

/// What was pushed is here now: where, and under which digest.
pub(super) fn created(location: &str, digest: &Digest) -> Response {
    let mut response = empty(StatusCode::CREATED);
    let headers = response.headers_mut();
    insert(headers, http::header::LOCATION, location);
    insert(headers, DOCKER_CONTENT_DIGEST, &digest.to_string());
    response
}

/// A path beside the one that was asked for, in the same repository: `tail` in place of everything after the last
/// `marker`. It keeps a prefix, and `ns` where the client sent it.
pub(super) fn beside(asked: &Asked, marker: &str, tail: &str) -> String {
    let root = asked.path.rfind(marker).and_then(|at| asked.path.get(..at));
    let mut location = match root {
        Some(root) => format!("{root}{tail}"),
        // The path spells its endpoint in escapes.
        None => format!("/v2/{}{tail}", asked.route.repository().unwrap_or_default()),
    };
    if let Some(ns) = &asked.query.ns {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        location.push('?');
        location.push_str(&query.append_pair("ns", ns).finish());
    }
    location
}

impl From<PushError> for Failure {
    fn from(error: PushError) -> Self {
        let text = error.to_string();
        let bad = |code| Self::bad_request(code, text.clone());
        match error {
            PushError::UploadUnknown(id) => {
                Self::not_found(ErrorCode::BlobUploadUnknown, "blob upload unknown to registry")
                    .with_detail(id)
            }
            PushError::UploadBusy => Self::new(StatusCode::CONFLICT, ErrorCode::BlobUploadInvalid, text),
            PushError::OutOfOrder { .. } => {
                Self::new(StatusCode::RANGE_NOT_SATISFIABLE, ErrorCode::RangeInvalid, text)
            }
            PushError::SizeInvalid { .. } => bad(ErrorCode::SizeInvalid),
            PushError::DigestMismatch { actual, .. } => {
                bad(ErrorCode::DigestInvalid).with_detail(actual.to_string())
            }
            PushError::Broken(_) => bad(ErrorCode::BlobUploadInvalid),
            PushError::TooSlow => Self::new(StatusCode::REQUEST_TIMEOUT, ErrorCode::BlobUploadInvalid, text),
            PushError::ManifestInvalid(_) => bad(ErrorCode::ManifestInvalid),
            PushError::ManifestTooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::ManifestInvalid, text)
            }
            PushError::BlobsUnknown(digests) => {
                let digests: Vec<String> = digests.iter().map(ToString::to_string).collect();
                bad(ErrorCode::ManifestBlobUnknown).with_detail(serde_json::json!({ "digests": digests }))
            }
            PushError::DeletesDisabled => not_allowed("GET, HEAD"),
            PushError::QuotaExceeded { .. } => Self::new(StatusCode::FORBIDDEN, ErrorCode::Denied, text),
            PushError::Storage(error) if error.is_full() => {
                tracing::error!(%error, "no room for a push");
                let message = "the registry's volume is full";
                Self::new(StatusCode::INSUFFICIENT_STORAGE, ErrorCode::Unknown, message)
            }
            PushError::Storage(error) => {
                tracing::error!(%error, "the volume failed a push");
                let message = "the registry's volume failed";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Unknown, message)
            }
            PushError::Registry(error) => error.into(),
        }
    }
}
