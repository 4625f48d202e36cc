//! Lists: tags, repositories, referrers (distribution-spec, "Content Discovery").

use axum::body::Body;
use axum::response::Response;
use http::HeaderValue;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LINK};
use oci_spec::OciSpecError;
use oci_spec::distribution::{RepositoryListBuilder, TagListBuilder};
use serde::Serialize;
use serde_json::{Value, json};

use super::blob;
use super::error::Failure;
use super::headers::{OCI_FILTERS_APPLIED, add_provenance, insert};
use super::{Asked, Edge};
use crate::oci::{ErrorCode, media_type};
use crate::registry::{HostedRepository, Page, PageRequest, Repository};

/// How many repositories a page of the catalog has where the client names no number, as in distribution.
const DEFAULT_CATALOG_PAGE: u64 = 100;

/// Answers `/v2/<name>/tags/list`. A page larger than allowed is cut, and the next one linked (distribution#4844).
pub(super) async fn tags(edge: &Edge, asked: &Asked, repository: &Repository) -> Result<Response, Failure> {
    let name = repository.name().as_str();
    let body = |entries: &[String]| written(TagListBuilder::default().name(name).tags(entries).build());
    let Some(mut request) = page_request(asked)? else {
        return Ok(json_response("application/json", &body(&[])));
    };
    request.limit = request.limit.map(|n| n.min(edge.settings.max_tags));
    let answer = edge.registry.tags(repository, &request).await?;
    let mut response = json_response("application/json", &body(&answer.value.entries));
    add_provenance(response.headers_mut(), &answer);
    add_link(&mut response, asked, &request, &answer.value);
    Ok(response)
}

/// Answers `/v2/_catalog`, from what is here.
pub(super) async fn catalog(edge: &Edge, asked: &Asked) -> Result<Response, Failure> {
    let body = |entries: &[String]| written(RepositoryListBuilder::default().repositories(entries).build());
    let Some(mut request) = page_request(asked)? else {
        return Ok(json_response("application/json", &body(&[])));
    };
    request.limit = Some(catalog_limit(request.limit, edge.settings.max_catalog_entries)?);
    let page = edge.registry.catalog(&request).await?;
    let mut response = json_response("application/json", &body(&page.entries));
    add_link(&mut response, asked, &request, &page);
    Ok(response)
}

/// Answers `/v2/<name>/referrers/<digest>`: always a list, which may be empty.
pub(super) async fn referrers(
    edge: &Edge,
    asked: &Asked,
    repository: &Repository,
    digest: &str,
) -> Result<Response, Failure> {
    let digest = blob::parse(digest)?;
    let types = &asked.query.artifact_types;
    let answer = edge.registry.referrers(repository, &digest, types).await?;
    let body = json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_INDEX,
        "manifests": answer.value.manifests,
    });
    let mut response = json_response(media_type::OCI_INDEX, &body);
    let headers = response.headers_mut();
    add_provenance(headers, &answer);
    if answer.value.is_filtered && !types.is_empty() {
        headers.insert(OCI_FILTERS_APPLIED, HeaderValue::from_static("artifactType"));
    }
    Ok(response)
}

/// Answers `/v2/<name>/tags/list` of a hosted repository.
pub(super) async fn hosted_tags(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
) -> Result<Response, Failure> {
    let name = repository.name().as_str();
    let body = |entries: &[String]| written(TagListBuilder::default().name(name).tags(entries).build());
    let Some(mut request) = page_request(asked)? else {
        return Ok(json_response("application/json", &body(&[])));
    };
    request.limit = request.limit.map(|n| n.min(edge.settings.max_tags));
    let page = edge.registry.hosted_tags(repository, &request).await?;
    let mut response = json_response("application/json", &body(&page.entries));
    add_link(&mut response, asked, &request, &page);
    Ok(response)
}

/// Answers `/v2/<name>/referrers/<digest>` of a hosted repository, page by page.
pub(super) fn hosted_referrers(
    edge: &Edge,
    asked: &Asked,
    repository: &HostedRepository,
    digest: &str,
) -> Result<Response, Failure> {
    let digest = blob::parse(digest)?;
    let types = &asked.query.artifact_types;
    let request = page_request(asked)?.unwrap_or_default();
    let (found, next_after) = edge
        .registry
        .hosted_referrers(repository, &digest, types, &request)?;
    let page = Page {
        entries: found.manifests.iter().map(|m| m.digest.clone()).collect(),
        next_after,
    };
    let body = json!({
        "schemaVersion": 2,
        "mediaType": media_type::OCI_INDEX,
        "manifests": found.manifests,
    });
    let mut response = json_response(media_type::OCI_INDEX, &body);
    if found.is_filtered {
        response
            .headers_mut()
            .insert(OCI_FILTERS_APPLIED, HeaderValue::from_static("artifactType"));
    }
    add_link(&mut response, asked, &request, &page);
    Ok(response)
}

/// A list as JSON.
fn written<T: Serialize>(list: Result<T, OciSpecError>) -> Value {
    // The builders fail for want of a field alone, and names and lists of them can always be written.
    list.ok()
        .and_then(|list| serde_json::to_value(list).ok())
        .unwrap_or_default()
}

/// Reads `n` and `last`; `None` when nothing is asked for (`n=0`).
fn page_request(asked: &Asked) -> Result<Option<PageRequest>, Failure> {
    let limit = match asked.query.n.as_deref() {
        None => None,
        Some(text) if !text.bytes().all(|b| b.is_ascii_digit()) => {
            let message = "the number of results must be a number that is not negative";
            return Err(bad_page_size(message, &json!(text)));
        }
        Some(text) => match text.parse::<u64>().unwrap_or(u64::MAX) {
            0 => return Ok(None),
            n => Some(n),
        },
    };
    Ok(Some(PageRequest {
        limit,
        after: asked.query.last.clone(),
    }))
}

/// How many repositories a page has. More than `max` is refused, as in distribution.
fn catalog_limit(asked: Option<u64>, max: u64) -> Result<u64, Failure> {
    match asked {
        None => Ok(DEFAULT_CATALOG_PAGE.min(max)),
        Some(n) if n > max => {
            let message = format!("the number of results must be at most {max}");
            Err(bad_page_size(message, &json!(n)))
        }
        Some(n) => Ok(n),
    }
}

fn bad_page_size(message: impl Into<String>, asked: &Value) -> Failure {
    Failure::bad_request(ErrorCode::PaginationNumberInvalid, message).with_detail(json!({ "n": asked }))
}

/// Says where the next page is, by a path that keeps what the client addressed (RFC 5988).
fn add_link(response: &mut Response, asked: &Asked, request: &PageRequest, page: &Page) {
    let Some(after) = &page.next_after else {
        return;
    };
    let limit = request.limit.unwrap_or(page.entries.len() as u64);
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query
        .append_pair("last", after)
        .append_pair("n", &limit.to_string());
    if let Some(ns) = &asked.query.ns {
        query.append_pair("ns", ns);
    }
    for artifact_type in &asked.query.artifact_types {
        query.append_pair("artifactType", artifact_type);
    }
    let target = format!("<{}?{}>; rel=\"next\"", asked.path, query.finish());
    insert(response.headers_mut(), LINK, &target);
}

fn json_response(content_type: &'static str, value: &Value) -> Response {
    let text = format!("{value}\n");
    let length = text.len();
    let mut response = Response::new(Body::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    response
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::http::route::PathRules;

    fn asked(target: &str) -> Asked {
        let (parts, ()) = Request::get(target).body(()).unwrap().into_parts();
        Asked::new(parts, &PathRules::default())
    }

    #[test]
    fn page_sizes_are_read_strictly() {
        let limit = |query: &str| page_request(&asked(&format!("/v2/a/tags/list?{query}")));
        assert_eq!(limit("n=7").unwrap().unwrap().limit, Some(7));
        assert_eq!(
            limit("n=99999999999999999999999").unwrap().unwrap().limit,
            Some(u64::MAX)
        );
        assert_eq!(limit("").unwrap().unwrap().limit, None);
        assert_eq!(limit("last=b").unwrap().unwrap().after.as_deref(), Some("b"));
        assert_eq!(limit("n=0").unwrap(), None);
        for bad in ["n=-1", "n=x", "n=1.5", "n=%2B1"] {
            assert_eq!(limit(bad).unwrap_err().status().as_u16(), 400, "{bad}");
        }
    }

    #[test]
    fn a_page_of_the_catalog_has_a_hundred_entries_unless_asked_otherwise_and_never_too_many() {
        assert_eq!(catalog_limit(None, 1000).unwrap(), 100);
        assert_eq!(catalog_limit(None, 20).unwrap(), 20);
        assert_eq!(catalog_limit(Some(1000), 1000).unwrap(), 1000);
        assert_eq!(
            catalog_limit(Some(1001), 1000).unwrap_err().status().as_u16(),
            400
        );
    }

    #[test]
    fn links_keep_the_path_and_the_namespace() {
        let asked = asked("/v2/a%2db/tags/list?n=2&last=a&ns=docker.io");
        let request = page_request(&asked).unwrap().unwrap();
        let page = Page {
            entries: vec!["b".into(), "c+1".into()],
            next_after: Some("c+1".into()),
        };
        let mut response = json_response("application/json", &json!({}));
        add_link(&mut response, &asked, &request, &page);
        assert_eq!(
            response.headers()[LINK],
            "</v2/a%2db/tags/list?last=c%2B1&n=2&ns=docker.io>; rel=\"next\""
        );
    }

    #[test]
    fn the_last_page_has_no_link() {
        let asked = asked("/v2/a/tags/list?n=2");
        let request = page_request(&asked).unwrap().unwrap();
        let page = Page {
            entries: vec![],
            next_after: None,
        };
        let mut response = json_response("application/json", &json!({}));
        add_link(&mut response, &asked, &request, &page);
        assert!(!response.headers().contains_key(LINK));
    }
}
