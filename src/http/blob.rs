//! Blobs: whole, one range, or several; identical headers however the bytes came here.

use std::ops::Range;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{StreamExt, stream};
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::body::ContentBody;
use super::error::Failure;
use super::headers::{add_identity, add_provenance, insert, is_not_modified, wanted_ranges};
use super::range::{Multipart, Plan, content_range, plan};
use super::{Asked, Edge};
use crate::metrics::Kind;
use crate::oci::{Digest, ErrorCode, media_type};
use crate::registry::{Answer, Blob, Content, ContentError, Error, Piece, Repository, Wants};

/// Answers GET and HEAD of `/v2/<name>/blobs/<digest>`.
pub(super) async fn serve(
    edge: &Edge,
    asked: &Asked,
    repository: &Repository,
    digest: &str,
) -> Result<Response, Failure> {
    let digest = parse(digest)?;
    if is_about_size(asked, &digest) {
        let answer = edge.registry.blob_size(repository, &digest).await?;
        return Ok(respond_size(edge, asked, &digest, &answer));
    }
    let wants = wants(asked, &digest);
    let blob = edge.registry.blob(repository, &digest, &wants).await?;
    respond(edge, asked, &digest, blob, &wants).await
}

/// Whether no body is to be sent.
pub(super) fn is_about_size(asked: &Asked, digest: &Digest) -> bool {
    asked.is_head() || is_not_modified(&asked.headers, digest)
}

/// How much the client wants.
pub(super) fn wants(asked: &Asked, digest: &Digest) -> Wants {
    wanted_ranges(&asked.headers, digest).map_or(Wants::Whole, Wants::Ranges)
}

/// The size of a blob, or that the client has it already.
pub(super) fn respond_size(edge: &Edge, asked: &Asked, digest: &Digest, answer: &Answer<u64>) -> Response {
    edge.metrics.answered(Kind::Blob, answer.is_hit());
    without_body(digest, answer, is_not_modified(&asked.headers, digest))
}

/// What is wanted of an open blob.
pub(super) async fn respond(
    edge: &Edge,
    asked: &Asked,
    digest: &Digest,
    blob: Blob,
    wants: &Wants,
) -> Result<Response, Failure> {
    let mut headers = blob_headers(digest, blob.provenance());
    let is_hit = blob.provenance().is_hit();
    let (status, content, length) = read(blob, wants, &mut headers).await?;
    edge.metrics.answered(Kind::Blob, is_hit);
    if let Some(length) = length {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    let body = ContentBody::new(content, length, asked.connection.clone());
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// Parses the digest of a path that must be one.
///
/// # Errors
/// 400 `DIGEST_INVALID`.
pub(super) fn parse(text: &str) -> Result<Digest, Failure> {
    Digest::parse(text)
        .map_err(|error| Failure::bad_request(ErrorCode::DigestInvalid, error.to_string()).with_detail(text))
}

fn blob_headers<T>(digest: &Digest, provenance: &Answer<T>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type::OCTET_STREAM));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=31536000"));
    add_identity(&mut headers, digest);
    add_provenance(&mut headers, provenance);
    headers
}

fn without_body(digest: &Digest, answer: &Answer<u64>, is_not_modified: bool) -> Response {
    let mut headers = blob_headers(digest, answer);
    let mut response = Response::new(Body::empty());
    if is_not_modified {
        for name in [CONTENT_TYPE, ACCEPT_RANGES] {
            headers.remove(name);
        }
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(answer.value));
    }
    *response.headers_mut() = headers;
    response
}

/// Opens what is wanted: the status, the content, and how long it is where that is known.
async fn read(
    blob: Blob,
    wants: &Wants,
    headers: &mut HeaderMap,
) -> Result<(StatusCode, Content, Option<u64>), Failure> {
    let size_bytes = blob.size_bytes();
    let (Wants::Ranges(specs), Some(size)) = (wants, size_bytes) else {
        return Ok((StatusCode::OK, blob.read(None).await?, size_bytes));
    };
    match plan(specs, size) {
        Plan::Whole => Ok((StatusCode::OK, blob.read(None).await?, size_bytes)),
        Plan::Unsatisfiable => Err(Failure::unsatisfiable(size)),
        Plan::Single(range) => {
            insert(headers, CONTENT_RANGE, &content_range(&range, size));
            let length = range.end - range.start;
            let content = blob.read(Some(range)).await?;
            Ok((StatusCode::PARTIAL_CONTENT, content, Some(length)))
        }
        Plan::Multi(ranges) => {
            let frame = Multipart::new(media_type::OCTET_STREAM, size);
            insert(headers, CONTENT_TYPE, &frame.content_type());
            let length = frame.length(&ranges);
            let content = multipart(Arc::new(blob), frame, ranges);
            Ok((StatusCode::PARTIAL_CONTENT, content, Some(length)))
        }
    }
}

/// The parts one after the other; each is opened when its turn comes.
fn multipart(blob: Arc<Blob>, frame: Multipart, ranges: Vec<Range<u64>>) -> Content {
    let end = frame.end();
    let parts = stream::iter(ranges.into_iter().enumerate()).then(move |(index, range)| {
        let (blob, head) = (blob.clone(), frame.head(index, &range));
        async move {
            let bytes = match blob.read(Some(range)).await {
                Ok(content) => content,
                Err(error) => stream::iter([Err(mid_body(&error))]).boxed(),
            };
            stream::iter([Ok(text(head))]).chain(bytes)
        }
    });
    parts.flatten().chain(stream::iter([Ok(text(end))])).boxed()
}

fn text(text: String) -> Piece {
    Piece::Bytes(Bytes::from(text))
}

/// An error that comes too late for a status code.
fn mid_body(error: &Error) -> ContentError {
    match error {
        Error::Stopping => ContentError::Stopping,
        Error::Internal(message) => ContentError::Storage(message.clone()),
        other => ContentError::Upstream(other.to_string()),
    }
}
