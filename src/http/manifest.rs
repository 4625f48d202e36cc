//! Manifests: always whole, with the type and the bytes as received. `Range` is ignored.

use axum::body::Body;
use axum::response::Response;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::error::Failure;
use super::headers::{add_identity, add_provenance, insert, is_not_modified};
use super::{Asked, Edge};
use crate::metrics::Kind;
use crate::oci::reference::ReferenceError;
use crate::oci::{ErrorCode, Reference};
use crate::registry::{Answer, ManifestContent, Repository};

/// Answers GET and HEAD of `/v2/<name>/manifests/<reference>`.
pub(super) async fn serve(
    edge: &Edge,
    asked: &Asked,
    repository: &Repository,
    reference: &str,
) -> Result<Response, Failure> {
    let reference = parse(reference)?;
    let answer = edge.registry.manifest(repository, &reference).await?;
    edge.metrics.answered(Kind::Manifest, answer.is_hit());
    Ok(respond(&asked.headers, answer))
}

/// A bad digest is the client's mistake; a bad tag only cannot exist.
pub(super) fn parse(text: &str) -> Result<Reference, Failure> {
    Reference::parse(text).map_err(|error| match error {
        ReferenceError::Digest(_) => {
            Failure::bad_request(ErrorCode::DigestInvalid, error.to_string()).with_detail(text)
        }
        ReferenceError::Tag(_) => {
            Failure::not_found(ErrorCode::ManifestUnknown, "manifest unknown").with_detail(text)
        }
    })
}

/// The manifest, or that the client has it already.
pub(super) fn respond(conditions: &HeaderMap, answer: Answer<ManifestContent>) -> Response {
    let mut headers = HeaderMap::new();
    add_identity(&mut headers, &answer.value.digest);
    add_provenance(&mut headers, &answer);
    let mut response = if is_not_modified(conditions, &answer.value.digest) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        let content = answer.value;
        insert(&mut headers, CONTENT_TYPE, &content.media_type);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(content.bytes.len()));
        Response::new(Body::from(content.bytes))
    };
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::header::{ETAG, IF_NONE_MATCH};

    use super::*;
    use crate::http::headers::{CACHE_STATUS, DOCKER_CONTENT_DIGEST};
    use crate::oci::{Algorithm, Digest, media_type};
    use crate::registry::How;

    fn answer() -> Answer<ManifestContent> {
        Answer {
            value: ManifestContent {
                bytes: Bytes::from_static(b"{}"),
                media_type: media_type::OCI_INDEX.to_owned(),
                digest: Digest::of(Algorithm::Sha256, b"{}"),
                received_ms: 0,
            },
            how: How::Hit,
            age: None,
        }
    }

    #[test]
    fn a_manifest_carries_type_length_digest_and_entity_tag() {
        let response = respond(&HeaderMap::new(), answer());
        let digest = Digest::of(Algorithm::Sha256, b"{}").to_string();
        let headers = response.headers();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(headers[CONTENT_TYPE], media_type::OCI_INDEX);
        assert_eq!(headers[CONTENT_LENGTH], "2");
        assert_eq!(headers[DOCKER_CONTENT_DIGEST], digest);
        assert_eq!(headers[ETAG], format!("\"{digest}\""));
        assert_eq!(headers[CACHE_STATUS], "larder; hit");
    }

    #[test]
    fn what_the_client_has_is_not_sent_again() {
        let mut conditions = HeaderMap::new();
        conditions.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
        let response = respond(&conditions, answer());
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert!(response.headers().contains_key(ETAG));
        assert!(response.headers().contains_key(DOCKER_CONTENT_DIGEST));
        assert!(!response.headers().contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn a_bad_digest_is_400_and_a_bad_tag_404() {
        let status = |text| parse(text).unwrap_err().status().as_u16();
        assert_eq!(status("sha256:bad"), 400);
        assert_eq!(status("md5:00"), 400);
        assert_eq!(status(".x"), 404);
        assert!(parse("latest").is_ok());
    }
}
