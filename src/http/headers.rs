//! Headers that several answers share, and the conditions that clients put on a request.

use std::fmt::Write as _;
use std::time::Duration;

use http::header::{AGE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, IF_RANGE, RANGE, WARNING};

use super::range;
use crate::oci::Digest;
use crate::registry::{Answer, How, RangeSpec};

/// The digest of what is served (distribution-spec, "Pulling manifests").
pub const DOCKER_CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// Says that a registry answers (distribution-spec, "Determining Support").
pub const DOCKER_API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");
/// Echoes the `ns` that chose the upstream (distribution-spec, "Registry Proxying").
pub const OCI_NAMESPACE: HeaderName = HeaderName::from_static("oci-namespace");
/// Names the filters of a referrers list that were applied (distribution-spec, "Listing Referrers").
pub const OCI_FILTERS_APPLIED: HeaderName = HeaderName::from_static("oci-filters-applied");
/// How the answer came about (RFC 9211).
pub const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// The most bytes of all `Warning` headers (distribution-spec, "Warnings").
const MAX_WARNING_BYTES: usize = 4096;

/// Adds how the answer came about: `Cache-Status`, `Age` and `Warning`.
pub fn add_provenance<T>(headers: &mut HeaderMap, answer: &Answer<T>) {
    insert(headers, CACHE_STATUS, &cache_status(&answer.how));
    if let How::Stale(reason) = &answer.how {
        insert(headers, WARNING, &warning(reason));
    }
    if let (true, Some(age)) = (answer.is_hit(), answer.age) {
        insert(headers, AGE, &whole_seconds(age).to_string());
    }
}

/// Adds what identifies content: its digest and its entity tag.
pub fn add_identity(headers: &mut HeaderMap, digest: &Digest) {
    insert(headers, DOCKER_CONTENT_DIGEST, &digest.to_string());
    insert(headers, ETAG, &etag(digest));
}

/// Sets a header from text; text that no header can hold is left out.
pub fn insert(headers: &mut HeaderMap, name: HeaderName, text: &str) {
    if let Ok(value) = HeaderValue::from_str(text) {
        headers.insert(name, value);
    }
}

/// The entity tag of content: its digest, quoted.
pub fn etag(digest: &Digest) -> String {
    format!("\"{digest}\"")
}

fn whole_seconds(age: Duration) -> u64 {
    age.as_secs().min(i32::MAX.unsigned_abs().into())
}

fn cache_status(how: &How) -> String {
    let mut text = String::from("larder");
    let (fact, is_collapsed) = match how {
        How::Hit => ("; hit", false),
        How::Miss {
            is_collapsed,
            is_stored: true,
        } => ("; fwd=miss; stored", *is_collapsed),
        How::Miss { is_collapsed, .. } => ("; fwd=miss", *is_collapsed),
        How::Revalidated { is_collapsed } => ("; fwd=stale; fwd-status=200", *is_collapsed),
        How::Stale(_) => ("; hit; detail=stale", false),
        How::Partial => ("; fwd=partial", false),
    };
    text.push_str(fact);
    if is_collapsed {
        text.push_str("; collapsed");
    }
    text
}

/// A `Warning: 299` whose text is printable ASCII, quoted, and within the bound.
fn warning(reason: &str) -> String {
    let mut text = String::from("299 - \"");
    for character in "upstream could not confirm this: ".chars().chain(reason.chars()) {
        if text.len() + 3 > MAX_WARNING_BYTES {
            break;
        }
        match character {
            '"' | '\\' => {
                let _ = write!(text, "\\{character}");
            }
            ' '..='~' => text.push(character),
            _ => text.push('?'),
        }
    }
    text.push('"');
    text
}

/// Whether `If-None-Match` names this content (RFC 9110, 13.1.2): weak comparison, lists, `*`. A digest without quotes
/// counts too: distribution once sent such entity tags.
pub fn is_not_modified(headers: &HeaderMap, digest: &Digest) -> bool {
    let own = digest.to_string();
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"') == own)
}

/// The ranges a client wants of this content: `Range`, unless `If-Range` (RFC 9110, 13.1.5) names something else.
/// Dates never match, because content has none.
pub fn wanted_ranges(headers: &HeaderMap, digest: &Digest) -> Option<Vec<RangeSpec>> {
    let condition = headers.get(IF_RANGE);
    if condition.is_some_and(|value| value.as_bytes() != etag(digest).as_bytes()) {
        return None;
    }
    let mut values = headers.get_all(RANGE).iter();
    let value = values.next()?.to_str().ok()?;
    match values.next() {
        None => range::parse(value),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::oci::Algorithm;

    fn digest() -> Digest {
        Digest::of(Algorithm::Sha256, b"x")
    }

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, text) in pairs {
            map.append(name, HeaderValue::from_str(text).unwrap());
        }
        map
    }

    #[test]
    fn provenance_is_told_as_rfc_9211_wants_it() {
        let miss = |is_collapsed, is_stored| How::Miss {
            is_collapsed,
            is_stored,
        };
        let cases = [
            (How::Hit, "larder; hit"),
            (miss(false, true), "larder; fwd=miss; stored"),
            (miss(true, true), "larder; fwd=miss; stored; collapsed"),
            (miss(false, false), "larder; fwd=miss"),
            (
                How::Revalidated { is_collapsed: false },
                "larder; fwd=stale; fwd-status=200",
            ),
            (
                How::Revalidated { is_collapsed: true },
                "larder; fwd=stale; fwd-status=200; collapsed",
            ),
            (How::Stale("x".into()), "larder; hit; detail=stale"),
            (How::Partial, "larder; fwd=partial"),
        ];
        for (how, expected) in cases {
            assert_eq!(cache_status(&how), expected);
        }
    }

    #[test]
    fn stale_answers_carry_a_warning_and_their_age() {
        let mut map = HeaderMap::new();
        let answer = Answer {
            value: (),
            how: How::Stale("says \"no\"\r\nX: y".into()),
            age: Some(Duration::from_millis(61_900)),
        };
        add_provenance(&mut map, &answer);
        assert_eq!(map[AGE], "61");
        assert_eq!(
            map[WARNING],
            "299 - \"upstream could not confirm this: says \\\"no\\\"??X: y\""
        );
    }

    #[test]
    fn conditions_are_lists_of_tags() {
        let digest = digest();
        let other = Digest::of(Algorithm::Sha256, b"y");
        let cases = [
            (etag(&digest), true),
            (format!("W/{}", etag(&digest)), true),
            (digest.to_string(), true),
            (format!("{}, {}", etag(&other), etag(&digest)), true),
            ("*".into(), true),
            (etag(&other), false),
            (String::new(), false),
        ];
        for (value, expected) in cases {
            assert_eq!(
                is_not_modified(&headers(&[(IF_NONE_MATCH, &value)]), &digest),
                expected,
                "{value}"
            );
        }
        assert!(!is_not_modified(&HeaderMap::new(), &digest));
    }

    #[test]
    fn ranges_need_a_matching_if_range() {
        let digest = digest();
        let whole = |pairs: &[(HeaderName, &str)]| wanted_ranges(&headers(pairs), &digest).is_none();
        let (range, tag) = ((RANGE, "bytes=0-1"), etag(&digest));
        assert!(!whole(std::slice::from_ref(&range)));
        assert!(!whole(&[range.clone(), (IF_RANGE, &tag)]));
        assert!(whole(&[range.clone(), (IF_RANGE, &format!("W/{tag}"))]));
        assert!(whole(&[
            range.clone(),
            (IF_RANGE, "Sat, 01 Jan 2000 00:00:00 GMT")
        ]));
        assert!(whole(&[range.clone(), range]));
        assert!(whole(&[(RANGE, "lines=0-1")]));
    }

    proptest! {
        #[test]
        fn warnings_are_valid_and_bounded(reason in "\\PC{0,6000}") {
            let text = warning(&reason);
            prop_assert!(text.len() <= MAX_WARNING_BYTES);
            prop_assert!(HeaderValue::from_str(&text).is_ok());
        }
    }
}
