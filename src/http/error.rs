//! Errors as clients see them: the one place where an outcome becomes a status code and the JSON of the
//! distribution specification ("Error Codes").

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::oci::ErrorCode;
use crate::registry::Error;

/// What clients are told to wait when upstream names no time.
const DEFAULT_RETRY: Duration = Duration::from_secs(5);

/// An answer that says no.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    status: StatusCode,
    code: ErrorCode,
    message: String,
    detail: Option<Value>,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Failure {
    /// A failure without detail.
    pub fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            detail: None,
            headers: Vec::new(),
        }
    }

    /// The request names something that is not here: 404.
    pub fn not_found(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }

    /// The request is wrong: 400.
    pub fn bad_request(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Only reading is possible here: 405 with `Allow`.
    pub fn read_only() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            ErrorCode::Unsupported,
            "the operation is unsupported: this is a pull-through cache",
        )
        .with_header(ALLOW, HeaderValue::from_static("GET, HEAD"))
    }

    /// A login is needed: 401 with a challenge.
    pub fn unauthorized(realm: &str) -> Self {
        let realm = realm.replace(['"', '\\'], "");
        let challenge = HeaderValue::from_str(&format!("Basic realm=\"{realm}\""))
            .unwrap_or(HeaderValue::from_static("Basic realm=\"larder\""));
        Self::new(
            StatusCode::UNAUTHORIZED,
            ErrorCode::Unauthorized,
            "authentication required",
        )
        .with_header(WWW_AUTHENTICATE, challenge)
    }

    /// No part of the range exists: 416.
    pub fn unsatisfiable(size_bytes: u64) -> Self {
        let value = HeaderValue::from_str(&format!("bytes */{size_bytes}"));
        let failure = Self::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            ErrorCode::RangeInvalid,
            "the range cannot be satisfied",
        );
        match value {
            Ok(value) => failure.with_header(http::header::CONTENT_RANGE, value),
            Err(_) => failure,
        }
    }

    /// Adds the object that the failure is about.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Value>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The status code.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The body: one error, ended by a line break as distribution does.
    fn body(&self) -> String {
        let mut error = json!({ "code": self.code.as_str(), "message": self.message });
        if let (Some(detail), Some(object)) = (&self.detail, error.as_object_mut()) {
            object.insert("detail".to_owned(), detail.clone());
        }
        format!("{}\n", json!({ "errors": [error] }))
    }

    fn rate_limited(retry_after: Option<Duration>, message: &str) -> Self {
        let wait = retry_after.unwrap_or(DEFAULT_RETRY);
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::TooManyRequests,
            format!("upstream limits the rate: {message}"),
        )
        .with_header(RETRY_AFTER, HeaderValue::from(seconds.max(1)))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        if matches!(
            error,
            Error::Denied(_) | Error::RateLimited { .. } | Error::BadUpstream(_) | Error::TooSlow(_)
        ) {
            tracing::warn!(error = %text, "upstream gave nothing to answer with");
        }
        match error {
            Error::NameInvalid(name) => {
                Self::bad_request(ErrorCode::NameInvalid, "invalid repository name").with_detail(name)
            }
            Error::NameUnknown(name) => {
                Self::not_found(ErrorCode::NameUnknown, "repository name not known to registry")
                    .with_detail(name)
            }
            Error::ManifestUnknown(reference) => {
                Self::not_found(ErrorCode::ManifestUnknown, "manifest unknown").with_detail(reference)
            }
            Error::BlobUnknown(digest) => {
                Self::not_found(ErrorCode::BlobUnknown, "blob unknown to registry").with_detail(digest)
            }
            Error::Denied(_) => Self::new(StatusCode::FORBIDDEN, ErrorCode::Denied, text),
            Error::RateLimited { retry_after, message } => Self::rate_limited(retry_after, &message),
            Error::BadUpstream(_) => Self::new(StatusCode::BAD_GATEWAY, ErrorCode::Unknown, text),
            Error::TooSlow(_) => Self::new(StatusCode::GATEWAY_TIMEOUT, ErrorCode::Unknown, text),
            Error::Internal(_) => {
                tracing::error!(error = %text, "cannot answer a request");
                Self::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    ErrorCode::Unknown,
                    "the cache failed to answer",
                )
            }
            Error::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, text),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(self.headers);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_has_its_status_and_code() {
        let text = String::from;
        let limited = |retry_after| Error::RateLimited {
            retry_after,
            message: text("slow down"),
        };
        let cases = [
            (Error::NameInvalid(text("A")), 400, ErrorCode::NameInvalid),
            (Error::NameUnknown(text("a")), 404, ErrorCode::NameUnknown),
            (Error::ManifestUnknown(text("a")), 404, ErrorCode::ManifestUnknown),
            (Error::BlobUnknown(text("a")), 404, ErrorCode::BlobUnknown),
            (Error::Denied(text("no")), 403, ErrorCode::Denied),
            (limited(None), 503, ErrorCode::TooManyRequests),
            (Error::BadUpstream(text("x")), 502, ErrorCode::Unknown),
            (Error::TooSlow(text("x")), 504, ErrorCode::Unknown),
            (Error::Internal(text("x")), 500, ErrorCode::Unknown),
            (Error::Stopping, 503, ErrorCode::Unavailable),
        ];
        for (error, status, code) in cases {
            let failure = Failure::from(error);
            assert_eq!((failure.status().as_u16(), failure.code), (status, code));
        }
    }

    #[test]
    fn waiting_is_told_in_whole_seconds_rounded_up() {
        let cases = [
            (None, "5"),
            (Some(Duration::from_millis(1)), "1"),
            (Some(Duration::from_millis(1500)), "2"),
            (Some(Duration::from_secs(17)), "17"),
            (Some(Duration::ZERO), "1"),
        ];
        for (retry_after, expected) in cases {
            let failure = Failure::rate_limited(retry_after, "x");
            assert_eq!(
                failure.headers,
                [(RETRY_AFTER, HeaderValue::from_static(expected))]
            );
        }
    }

    #[test]
    fn bodies_are_the_specification_s_json_and_hide_internals() {
        let known = Failure::from(Error::BlobUnknown("sha256:ab".into())).body();
        assert_eq!(
            known,
            "{\"errors\":[{\"code\":\"BLOB_UNKNOWN\",\"detail\":\"sha256:ab\",\"message\":\"blob unknown to registry\"}]}\n"
        );
        let internal = Failure::from(Error::Internal("/var/lib/secret".into())).body();
        assert!(!internal.contains("secret"));
    }

    #[test]
    fn challenges_cannot_be_broken_out_of() {
        let failure = Failure::unauthorized("a\"b\\");
        assert_eq!(
            failure.headers,
            [(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"ab\""))]
        );
    }
}
