//! Blobs on their way in (distribution-spec, "Pushing Blobs"): sessions, pieces, mounts.

use axum::body::Body;
use axum::response::Response;
use futures::StreamExt as _;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, LOCATION, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyStream;

use super::error::Failure;
use super::headers::insert;
use super::hosted::{beside, created, empty};
use super::{Asked, Edge, blob};
use crate::oci::{Digest, ErrorCode};
use crate::registry::hosted::{ChunkRange, Incoming, IncomingError};
use crate::registry::{HostedRepository, PushError};
use crate::store::UploadId;

/// The session, for clients that do not look into its address.
const DOCKER_UPLOAD_UUID: HeaderName = HeaderName::from_static("docker-upload-uuid");
/// Where the path of a session begins to differ from that of a blob.
const UPLOADS: &str = "/blobs/uploads";

/// POST: begins a session, mounts a blob, or takes a whole one.
pub(super) async fn begin(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    body: &mut Body,
) -> Result<Response, Failure> {
    if let Some(digest) = &asked.query.mount {
        let digest = blob::parse(digest)?;
        if mount(edge, asked, repository, &digest).await? {
            return Ok(created_blob(asked, &digest));
        }
    } else if let Some(digest) = &asked.query.digest {
        let digest = blob::parse(digest)?;
        let id = edge.registry.begin_upload(repository).await?;
        let incoming = incoming(asked, body)?;
        let closed = edge.registry.close(repository, id, &digest, incoming).await;
        if closed.is_err() {
            // Nobody knows of the session; if it cannot be ended it expires.
            drop(edge.registry.cancel_upload(repository, id).await);
        }
        closed?;
        return Ok(created_blob(asked, &digest));
    }
    let id = edge.registry.begin_upload(repository).await?;
    Ok(session(StatusCode::ACCEPTED, asked, id, 0))
}

/// A blob is mounted from the repository that is named, if that is hosted; without a name, from any that has it.
async fn mount(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    digest: &Digest,
) -> Result<bool, Failure> {
    let from = match asked.query.from.as_deref() {
        None => None,
        Some(from) => match edge.registry.locate_hosted(from, None) {
            Ok(Some(from)) => Some(from),
            Ok(None) | Err(_) => return Ok(false),
        },
    };
    Ok(edge.registry.mount(repository, digest, from.as_ref()).await?)
}

/// GET: how far a session has come.
pub(super) async fn status(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    id: &str,
) -> Result<Response, Failure> {
    let id = parse(id)?;
    let size_bytes = edge.registry.upload_size(repository, id).await?;
    Ok(session(StatusCode::NO_CONTENT, asked, id, size_bytes))
}

/// PATCH: the next piece, or all that is to come.
pub(super) async fn append(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    id: &str,
    body: &mut Body,
) -> Result<Response, Failure> {
    let id = parse(id)?;
    let incoming = incoming(asked, body)?;
    let appended = edge.registry.append(repository, id, incoming).await;
    let size_bytes = appended.map_err(|error| refused(asked, id, error))?;
    Ok(session(StatusCode::ACCEPTED, asked, id, size_bytes))
}

/// PUT: the last piece, which may be empty, and the digest of everything.
pub(super) async fn close(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    id: &str,
    body: &mut Body,
) -> Result<Response, Failure> {
    let id = parse(id)?;
    let Some(digest) = &asked.query.digest else {
        let message = "the digest of the blob is missing";
        return Err(Failure::bad_request(ErrorCode::DigestInvalid, message));
    };
    let digest = blob::parse(digest)?;
    let incoming = incoming(asked, body)?;
    let closed = edge.registry.close(repository, id, &digest, incoming).await;
    closed.map_err(|error| refused(asked, id, error))?;
    Ok(created_blob(asked, &digest))
}

/// DELETE: ends a session.
pub(super) async fn cancel(
    edge: &Edge,
    repository: &HostedRepository,
    id: &str,
) -> Result<Response, Failure> {
    edge.registry.cancel_upload(repository, parse(id)?).await?;
    Ok(empty(StatusCode::NO_CONTENT))
}

fn parse(id: &str) -> Result<UploadId, Failure> {
    let unknown = || PushError::UploadUnknown(id.chars().take(64).collect());
    Ok(UploadId::parse(id).ok_or_else(unknown)?)
}

/// What a client sends, as the service takes it.
fn incoming<'a>(asked: &Asked, body: &'a mut Body) -> Result<Incoming<'a>, Failure> {
    let length = asked.headers.get(CONTENT_LENGTH);
    let length_bytes = length.and_then(|value| value.to_str().ok()?.parse().ok());
    let content = BodyStream::new(body).filter_map(|frame| {
        let data = match frame {
            Ok(frame) => frame.into_data().ok().map(Ok),
            Err(error) => Some(Err(IncomingError(error.to_string()))),
        };
        std::future::ready(data)
    });
    Ok(Incoming {
        length_bytes,
        range: chunk_range(&asked.headers)?,
        content: content.boxed(),
    })
}

/// `Content-Range: 0-99`, without a unit; one with it means the same.
fn chunk_range(headers: &HeaderMap) -> Result<Option<ChunkRange>, Failure> {
    let Some(value) = headers.get(CONTENT_RANGE) else {
        return Ok(None);
    };
    let parsed = value.to_str().ok().and_then(|text| {
        let text = text
            .strip_prefix("bytes")
            .map_or(text, |t| t.trim_start_matches([' ', '=']));
        let (first, last) = text.split('/').next()?.split_once('-')?;
        let number = |text: &str| {
            let is_number = text.bytes().all(|b| b.is_ascii_digit());
            text.parse().ok().filter(|_| is_number)
        };
        Some(ChunkRange {
            first: number(first)?,
            last: number(last)?,
        })
    });
    let message = "the content range is not of the form `0-99`";
    let malformed = || Failure::bad_request(ErrorCode::BlobUploadInvalid, message);
    parsed.map(Some).ok_or_else(malformed)
}

/// A refusal that says how far the session has come, where that is why.
fn refused(asked: &Asked, id: UploadId, error: PushError) -> Failure {
    let PushError::OutOfOrder { size_bytes } = error else {
        return error.into();
    };
    let mut failure = Failure::from(error);
    for (name, value) in session(StatusCode::ACCEPTED, asked, id, size_bytes).headers() {
        if name != CONTENT_LENGTH {
            failure = failure.with_header(name.clone(), value.clone());
        }
    }
    failure
}

/// Where a session is and how far it has come: the last byte is included, and 0 where there is none yet.
fn session(status: StatusCode, asked: &Asked, id: UploadId, size_bytes: u64) -> Response {
    let mut response = empty(status);
    let headers = response.headers_mut();
    insert(
        headers,
        LOCATION,
        &beside(asked, UPLOADS, &format!("{UPLOADS}/{id}")),
    );
    let range = HeaderValue::from_str(&format!("0-{}", size_bytes.saturating_sub(1)));
    headers.extend(range.map(|range| (RANGE, range)));
    insert(headers, DOCKER_UPLOAD_UUID, &id.to_string());
    response
}

fn created_blob(asked: &Asked, digest: &Digest) -> Response {
    created(&beside(asked, UPLOADS, &format!("/blobs/{digest}")), digest)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::http::route::PathRules;

    fn asked(target: &str) -> Asked {
        let (parts, ()) = Request::post(target).body(()).unwrap().into_parts();
        Asked::new(parts, &PathRules::default())
    }

    #[test]
    fn chunks_are_two_numbers_and_nothing_else() {
        let parse = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, HeaderValue::from_str(text).unwrap());
            chunk_range(&headers)
        };
        let range = |first, last| Some(ChunkRange { first, last });
        assert_eq!(chunk_range(&HeaderMap::new()), Ok(None));
        assert_eq!(parse("0-99"), Ok(range(0, 99)));
        assert_eq!(parse("bytes 5-9/10"), Ok(range(5, 9)));
        for bad in ["", "0", "-", "0-", "-9", "a-b", "+1-2", "0-99999999999999999999"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn locations_are_paths_that_keep_what_was_addressed() {
        let id = UploadId::random();
        let begun = session(
            StatusCode::ACCEPTED,
            &asked("/v2/a%2db/blobs/uploads/?mount=x&ns=h:1"),
            id,
            0,
        );
        assert_eq!(
            begun.headers()[LOCATION],
            format!("/v2/a%2db/blobs/uploads/{id}?ns=h%3A1")
        );
        assert_eq!(begun.headers()[RANGE], "0-0");
        let later = session(
            StatusCode::NO_CONTENT,
            &asked(&format!("/v2/a/blobs/uploads/{id}?digest=x")),
            id,
            10,
        );
        assert_eq!(later.headers()[LOCATION], format!("/v2/a/blobs/uploads/{id}"));
        assert_eq!(later.headers()[RANGE], "0-9");
        assert!(!later.headers().contains_key(CONTENT_LENGTH));
    }
}
