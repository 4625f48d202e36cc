//! Manifests on their way in, and deletions (distribution-spec, "Pushing Manifests" and "Content Management").

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::error::Failure;
use super::headers::insert;
use super::hosted::{beside, created, empty};
use super::{Asked, Edge, blob};
use crate::oci::manifest::MAX_MANIFEST_BYTES;
use crate::oci::reference::ReferenceError;
use crate::oci::{ErrorCode, Reference, Tag};
use crate::registry::hosted::Push;
use crate::registry::{HostedRepository, PushError};

const OCI_SUBJECT: HeaderName = HeaderName::from_static("oci-subject");
const OCI_TAG: HeaderName = HeaderName::from_static("oci-tag");
/// How many tags one push may set.
const MOST_TAGS: usize = 100;
/// How long a manifest may take to come.
const PATIENCE: Duration = Duration::from_mins(5);

/// PUT of `/v2/<name>/manifests/<reference>`.
pub(super) async fn manifest(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    reference: &str,
    body: &mut Body,
) -> Result<Response, Failure> {
    let reference = parse(reference)?;
    let tags = tags(asked)?;
    let content_type = asked.headers.get(CONTENT_TYPE);
    let push = Push {
        reference,
        tags: tags.clone(),
        content_type: content_type.and_then(|value| value.to_str().ok().map(str::to_owned)),
        bytes: whole(asked, body).await?,
    };
    let pushed = edge.registry.push_manifest(repository, push).await?;
    let location = beside(asked, "/", &format!("/{}", pushed.digest));
    let mut response = created(&location, &pushed.digest);
    let headers = response.headers_mut();
    if let Some(subject) = pushed.subject {
        insert(headers, OCI_SUBJECT, &subject.to_string());
    }
    for tag in tags {
        let value = HeaderValue::from_str(tag.as_str());
        drop(value.map(|value| headers.append(OCI_TAG, value)));
    }
    Ok(response)
}

/// DELETE of `/v2/<name>/manifests/<reference>`.
pub(super) async fn delete_manifest(
    edge: &Edge,
    repository: &HostedRepository,
    reference: &str,
) -> Result<Response, Failure> {
    let reference = super::manifest::parse(reference)?;
    edge.registry.delete_manifest(repository, &reference).await?;
    Ok(empty(StatusCode::ACCEPTED))
}

/// DELETE of `/v2/<name>/blobs/<digest>`.
pub(super) async fn delete_blob(
    edge: &Edge,
    repository: &HostedRepository,
    digest: &str,
) -> Result<Response, Failure> {
    let digest = blob::parse(digest)?;
    edge.registry.delete_blob(repository, &digest).await?;
    Ok(empty(StatusCode::ACCEPTED))
}

/// Unlike for a pull, a bad tag is a mistake of the client.
fn parse(text: &str) -> Result<Reference, Failure> {
    Reference::parse(text).map_err(|error| {
        let code = match error {
            ReferenceError::Digest(_) => ErrorCode::DigestInvalid,
            ReferenceError::Tag(_) => ErrorCode::ManifestInvalid,
        };
        Failure::bad_request(code, error.to_string()).with_detail(text)
    })
}

/// The further tags of a push, each once.
fn tags(asked: &Asked) -> Result<Vec<Tag>, Failure> {
    if asked.query.tags.len() > MOST_TAGS {
        let message = format!("more than {MOST_TAGS} tags in one push");
        return Err(Failure::new(
            StatusCode::URI_TOO_LONG,
            ErrorCode::Unsupported,
            message,
        ));
    }
    let mut tags = Vec::new();
    for text in &asked.query.tags {
        let invalid = || {
            let message = format!("`{text}` is no tag");
            Failure::bad_request(ErrorCode::ManifestInvalid, message)
        };
        let tag = Tag::parse(text).ok_or_else(invalid)?;
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    Ok(tags)
}

/// The whole body, which may be as large as a manifest.
async fn whole(asked: &Asked, body: &mut Body) -> Result<Bytes, Failure> {
    let length = asked.headers.get(CONTENT_LENGTH);
    let length: Option<usize> = length.and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_some_and(|length| length > MAX_MANIFEST_BYTES) {
        return Err(PushError::ManifestTooLarge(MAX_MANIFEST_BYTES).into());
    }
    let collected = tokio::time::timeout(PATIENCE, Limited::new(body, MAX_MANIFEST_BYTES).collect()).await;
    match collected {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(PushError::ManifestTooLarge(MAX_MANIFEST_BYTES).into())
        }
        Ok(Err(error)) => Err(PushError::Broken(error.to_string()).into()),
        Err(_) => Err(PushError::TooSlow.into()),
    }
}
