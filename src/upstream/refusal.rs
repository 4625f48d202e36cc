//! An answer that is not what was asked for: its status, and what its body says in words.

use std::time::Duration;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use reqwest::Response;
use serde::Deserialize;

use super::body;
use super::error::Error;
use crate::oci::media_type;

/// As much of an error's body as is read.
const MAX_BYTES: usize = 16 * 1024;
/// As long as it is waited for: the status alone is already an answer.
const READING_TIME: Duration = Duration::from_secs(1);
/// As much of it as is passed on.
const MAX_CHARS: usize = 300;

/// An answer with a status that is no success.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    /// `CODE: message` of an OCI error, or what else the body says in a line.
    pub(super) message: String,
}

impl Refusal {
    /// Reads a little of the body; one that does not come, or makes no sense, says nothing.
    pub(super) async fn read(response: Response) -> Self {
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let bytes = body::read_some(response, MAX_BYTES, READING_TIME).await;
        let message = message(&headers, &bytes).unwrap_or_else(|| format!("status {status}"));
        Self {
            status,
            headers,
            message,
        }
    }

    /// Whether the body is, by its type, a machine's answer.
    pub(super) fn is_json(&self) -> bool {
        let content_type = content_type(&self.headers).unwrap_or_default();
        let essence = media_type::essence(content_type);
        essence == "application/json" || essence.ends_with("+json")
    }

    /// ECR says by this 403, and by no 401, that its token is over.
    pub(super) fn is_expired_token(&self) -> bool {
        self.status == 403
            && self
                .message
                .to_ascii_lowercase()
                .contains("authorization token has expired")
    }

    /// What the status means where it means nothing special.
    pub(super) fn into_error(self) -> Error {
        let message = self.message;
        let names_nothing = [
            "NAME_INVALID",
            "NAME_UNKNOWN",
            "TAG_INVALID",
            "DIGEST_INVALID",
            "MANIFEST_UNKNOWN",
        ];
        match self.status {
            404 | 410 => Error::NotFound,
            401 | 402 | 403 | 407 | 451 => Error::Denied { message },
            429 => Error::RateLimited {
                retry_after: None,
                message,
            },
            408 => Error::Unavailable { status: 408, message },
            status @ 500..=599 => Error::Unavailable { status, message },
            400 if names_nothing.iter().any(|code| message.starts_with(code)) => Error::NotFound,
            status => Error::invalid(format!("status {status}: {message}")),
        }
    }
}

/// The `Content-Type` of an answer.
pub(super) fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok())
}

/// Whether an answer is a page for people.
pub(super) fn is_page(headers: &HeaderMap) -> bool {
    content_type(headers).is_some_and(media_type::is_page)
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Said {
    errors: Vec<OciError>,
    error: Option<serde_json::Value>,
    error_description: Option<String>,
    message: Option<String>,
    details: Option<serde_json::Value>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OciError {
    code: serde_json::Value,
    message: String,
}

fn message(headers: &HeaderMap, bytes: &[u8]) -> Option<String> {
    if is_page(headers) {
        return None;
    }
    let text = serde_json::from_slice::<Said>(bytes)
        .ok()
        .map_or_else(|| plain(bytes), words_of)?;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown: String = line.chars().filter(|c| !c.is_control()).take(MAX_CHARS).collect();
    (!shown.is_empty()).then_some(shown)
}

fn words_of(said: Said) -> Option<String> {
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => text,
        serde_json::Value::Null => String::new(),
        other => other.to_string(),
    };
    if let Some(first) = said.errors.into_iter().next() {
        let code = text(first.code);
        return Some(if first.message.is_empty() {
            code
        } else {
            format!("{code}: {}", first.message)
        });
    }
    said.error_description
        .or(said.message)
        .or(said.error.map(text))
        .or(said.details.map(text))
}

fn plain(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.trim();
    (!text.starts_with(['<', '{', '['])).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_words_of_every_kind_of_error_are_found() {
        let cases = [
            (
                r#"{"errors":[{"code":"DENIED","message":"no\n way"}]}"#,
                Some("DENIED: no way"),
            ),
            (r#"{"errors":[{"code":"UNAUTHORIZED"}]}"#, Some("UNAUTHORIZED")),
            (
                r#"{"details":"incorrect username or password"}"#,
                Some("incorrect username or password"),
            ),
            (
                r#"{"error":"invalid_grant","error_description":"bad"}"#,
                Some("bad"),
            ),
            ("slow down\n", Some("slow down")),
            ("<html>", None),
            ("<?xml version='1.0'?><Error/>", None),
            ("\u{ff}", Some("\u{ff}")),
            ("", None),
        ];
        for (body, expected) in cases {
            assert_eq!(
                message(&HeaderMap::new(), body.as_bytes()).as_deref(),
                expected,
                "{body}"
            );
        }
        assert_eq!(message(&HeaderMap::new(), b"\xff\xfe"), None);
        assert_eq!(
            message(&HeaderMap::new(), "x".repeat(9999).as_bytes()).map(|m| m.len()),
            Some(MAX_CHARS)
        );
        let mut page = HeaderMap::new();
        page.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        assert_eq!(message(&page, b"please log in"), None);
    }

    #[test]
    fn every_status_has_a_meaning() {
        let error = |status, message: &str| {
            Refusal {
                status,
                headers: HeaderMap::new(),
                message: message.to_owned(),
            }
            .into_error()
        };
        assert!(matches!(error(404, ""), Error::NotFound));
        assert!(matches!(error(400, "NAME_INVALID: x"), Error::NotFound));
        assert!(matches!(error(400, "BAD"), Error::Invalid { .. }));
        assert!(matches!(error(401, "m"), Error::Denied { message } if message == "m"));
        assert!(matches!(error(403, "m"), Error::Denied { .. }));
        assert!(matches!(error(429, ""), Error::RateLimited { .. }));
        assert!(matches!(error(503, ""), Error::Unavailable { status: 503, .. }));
        assert!(matches!(error(304, ""), Error::Invalid { .. }));
    }
}
