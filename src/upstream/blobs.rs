//! Asking for blobs: their size without their bytes, and their bytes from wherever they are needed.

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::header::HeaderMap;
use http::{HeaderValue, StatusCode};
use reqwest::Response;

use super::Upstream;
use super::body::{self, ContentRange, Encoding};
use super::error::Error;
use super::exchange::{Question, Reply};
use super::manifests::REPEATS;
use super::redirect;
use super::refusal;
use super::retry::retrying;
use super::transport::Follow;
use crate::oci::{Digest, Name};

/// How often the opening of a blob is repeated; what breaks later is healed by whoever reads.
const OPENING_REPEATS: usize = 1;

/// What the headers of a blob say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobHead {
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The `Content-Type` header.
    pub content_type: Option<String>,
}

/// A part of a blob, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: u64,
    /// The byte behind the last one; to the blob's end when absent.
    pub end: Option<u64>,
}

/// A blob, or a part of it, on its way; not verified.
pub struct BlobResponse {
    /// Where in the blob the body begins: 0 when the registry ignored the range.
    pub start: u64,
    /// The size of the whole blob in bytes, if the registry says.
    pub total_bytes: Option<u64>,
    /// Whether it is the part that was asked for (206), not the whole (200).
    pub is_partial: bool,
    /// The length of the body in bytes, if the registry says.
    pub length: Option<u64>,
    /// The bytes. Each piece comes within the idle timeout; a body that ends before its length ends with [`Error::Cut`].
    pub body: BoxStream<'static, Result<Bytes, Error>>,
}

impl std::fmt::Debug for BlobResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlobResponse")
            .field("start", &self.start)
            .field("total_bytes", &self.total_bytes)
            .field("is_partial", &self.is_partial)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Upstream {
    /// Learns a blob's size by `HEAD`, or where that does not tell, by a `GET` of its first byte; never by a download.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Denied`] and so on, as they come of the `GET`.
    pub async fn head_blob(&self, repository: &Name, digest: &Digest) -> Result<BlobHead, Error> {
        retrying(REPEATS, self.transport.header_timeout, || async {
            // Where a HEAD is redirected to was often signed for GET alone.
            let question = self
                .blob_question(repository, digest)
                .head()
                .follow(Follow::SameOrigin);
            let reply = match self.ask(&question).await {
                // Public ECR denies HEAD and gives by GET; Harbor's proxy does not have it until it is fetched.
                Err(Error::Denied { .. }) => return self.size_by_get(repository, digest).await,
                reply => reply?,
            };
            match reply {
                // A length of 0 is rather that of the answer than that of a blob.
                Reply::Given(response) => match head_of(&response).filter(|head| head.size_bytes > 0) {
                    Some(head) => Ok(head),
                    None => self.size_by_get(repository, digest).await,
                },
                Reply::Refused(refusal) if refusal.status < 500 || refusal.status == 501 => {
                    self.size_by_get(repository, digest).await
                }
                Reply::Refused(refusal) => Err(refusal.into_error()),
            }
        })
        .await
    }

    /// Opens a blob, or a part of it.
    ///
    /// # Errors
    /// [`Error::RangeRefused`] when a range is answered by 400, 416 or 501; [`Error::Invalid`] when another part is given than
    /// was asked for; [`Error::NotFound`], [`Error::Denied`] and so on.
    pub async fn get_blob(
        &self,
        repository: &Name,
        digest: &Digest,
        range: Option<Range>,
    ) -> Result<BlobResponse, Error> {
        let wanted = range.map_or(Wanted::Whole, Wanted::Span);
        self.open_blob(repository, digest, wanted).await
    }

    /// Opens the last `length` bytes of a blob whose size is not known.
    ///
    /// # Errors
    /// As [`Upstream::get_blob`].
    pub async fn get_blob_suffix(
        &self,
        repository: &Name,
        digest: &Digest,
        length: u64,
    ) -> Result<BlobResponse, Error> {
        self.open_blob(repository, digest, Wanted::Suffix(length)).await
    }

    async fn open_blob(
        &self,
        repository: &Name,
        digest: &Digest,
        wanted: Wanted,
    ) -> Result<BlobResponse, Error> {
        let mut question = self.blob_question(repository, digest);
        if let Some(range) = wanted.header() {
            question = question.range(range);
        }
        retrying(OPENING_REPEATS, self.transport.header_timeout, || async {
            match self.ask(&question).await? {
                Reply::Given(response) => self.blob_response(response, wanted),
                Reply::Refused(refusal)
                    if wanted != Wanted::Whole && matches!(refusal.status, 400 | 416 | 501) =>
                {
                    Err(Error::RangeRefused {
                        status: refusal.status,
                    })
                }
                Reply::Refused(refusal) => Err(refusal.into_error()),
            }
        })
        .await
    }

    fn blob_question<'a>(&self, repository: &'a Name, digest: &Digest) -> Question<'a> {
        Question::get(self, "blob", repository, &format!("blobs/{digest}"))
    }

    fn blob_response(&self, response: Response, wanted: Wanted) -> Result<BlobResponse, Error> {
        let headers = response.headers();
        if refusal::is_page(headers) {
            return Err(Error::invalid("a web page where a blob should be"));
        }
        let encoding = body::encoding(headers)?;
        let length = body::content_length(headers);
        let is_partial = match response.status() {
            StatusCode::OK => false,
            StatusCode::PARTIAL_CONTENT if wanted != Wanted::Whole && encoding == Encoding::Identity => true,
            status => return Err(Error::invalid(format!("status {status} where a blob should be"))),
        };
        let idle = self.transport.idle_timeout;
        if is_partial {
            let part = part_of(headers, wanted)?;
            let body = body::pieces(response, Some(part.length), idle).boxed();
            let (start, total_bytes) = (part.start, part.total_bytes);
            return Ok(BlobResponse {
                start,
                total_bytes,
                is_partial,
                length: Some(part.length),
                body,
            });
        }
        let pieces = body::pieces(response, length, idle);
        let (length, body) = match encoding {
            Encoding::Identity => (length, pieces.boxed()),
            // The length is that of the wrapping.
            Encoding::Gzip => (None, body::decoded(pieces)),
        };
        Ok(BlobResponse {
            start: 0,
            total_bytes: length,
            is_partial,
            length,
            body,
        })
    }

    async fn size_by_get(&self, repository: &Name, digest: &Digest) -> Result<BlobHead, Error> {
        let first_byte = HeaderValue::from_static("bytes=0-0");
        let response = match self
            .ask(&self.blob_question(repository, digest).range(first_byte))
            .await?
        {
            Reply::Given(response) => response,
            Reply::Refused(refusal) if matches!(refusal.status, 400 | 416 | 501) => {
                // An empty blob has no first byte, and says so.
                if let Some(ContentRange {
                    span: None,
                    total_bytes: Some(size_bytes),
                }) = body::content_range(&refusal.headers)
                {
                    return Ok(BlobHead {
                        size_bytes,
                        content_type: None,
                    });
                }
                self.ask(&self.blob_question(repository, digest)).await?.given()?
            }
            Reply::Refused(refusal) => return Err(refusal.into_error()),
        };
        if let Some(head) = head_of(&response) {
            return Ok(head);
        }
        let is_unsaid = response.status() == StatusCode::PARTIAL_CONTENT;
        drop(response);
        if is_unsaid {
            let whole = self.ask(&self.blob_question(repository, digest)).await?.given()?;
            if let Some(head) = head_of(&whole) {
                return Ok(head);
            }
        }
        Err(Error::invalid("the size of the blob is not said"))
    }
}

/// The size that the headers of a 200 or a 206 tell; none when they do not, or are not of a blob as it is.
fn head_of(response: &Response) -> Option<BlobHead> {
    let headers = response.headers();
    if redirect::is_redirect(response.status().as_u16())
        || refusal::is_page(headers)
        || body::encoding(headers).ok()? != Encoding::Identity
    {
        return None;
    }
    let size_bytes = match response.status() {
        StatusCode::OK => body::content_length(headers)?,
        StatusCode::PARTIAL_CONTENT => body::content_range(headers)?.total_bytes?,
        _ => return None,
    };
    Some(BlobHead {
        size_bytes,
        content_type: refusal::content_type(headers).map(str::to_owned),
    })
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Whole,
    Span(Range),
    Suffix(u64),
}

impl Wanted {
    /// The `Range` header (RFC 9110 14.2).
    fn header(self) -> Option<HeaderValue> {
        let text = match self {
            Self::Whole => return None,
            Self::Span(Range { start, end: None }) => format!("bytes={start}-"),
            Self::Span(Range {
                start,
                end: Some(end),
            }) => format!("bytes={start}-{}", end.saturating_sub(1).max(start)),
            Self::Suffix(length) => format!("bytes=-{length}"),
        };
        HeaderValue::try_from(text).ok()
    }
}

/// A part that was given.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    start: u64,
    length: u64,
    total_bytes: Option<u64>,
}

/// The part that a 206 gives, if it is what was asked for: it begins there and does not go beyond.
fn part_of(headers: &HeaderMap, wanted: Wanted) -> Result<Part, Error> {
    let wrong = |what: &str| Error::invalid(format!("a part of the blob {what}"));
    let Some(ContentRange {
        span: Some((first, last)),
        total_bytes,
    }) = body::content_range(headers)
    else {
        return Err(wrong("without saying which"));
    };
    let length = last - first + 1;
    let is_asked_for = match wanted {
        Wanted::Whole => false,
        Wanted::Span(Range { start, end }) => {
            first == start && end.is_none_or(|end| last < end.max(start + 1))
        }
        Wanted::Suffix(suffix) => total_bytes.is_none_or(|total| last + 1 == total) && length <= suffix,
    };
    if !is_asked_for {
        return Err(wrong(&format!("that was not asked for: {first} to {last}")));
    }
    if body::content_length(headers).is_some_and(|announced| announced != length) {
        return Err(wrong("whose length is not that of its range"));
    }
    Ok(Part {
        start: first,
        length,
        total_bytes,
    })
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_LENGTH, CONTENT_RANGE};

    use super::*;

    #[test]
    fn a_range_becomes_a_header() {
        let span = |start, end| Wanted::Span(Range { start, end });
        for (wanted, text) in [
            (span(0, None), "bytes=0-"),
            (span(7, Some(8)), "bytes=7-7"),
            (span(7, Some(100)), "bytes=7-99"),
            (Wanted::Suffix(9), "bytes=-9"),
        ] {
            assert_eq!(wanted.header().unwrap(), text);
        }
        assert_eq!(Wanted::Whole.header(), None);
    }

    #[test]
    fn only_the_part_that_was_asked_for_is_taken() {
        let span = |start, end| Wanted::Span(Range { start, end });
        let check = |wanted, range: &'static str, length: Option<u64>| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, HeaderValue::from_static(range));
            if let Some(length) = length {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            }
            part_of(&headers, wanted)
        };
        let part = |start, length, total_bytes| Part {
            start,
            length,
            total_bytes,
        };
        assert_eq!(
            check(span(5, None), "bytes 5-9/10", Some(5)).unwrap(),
            part(5, 5, Some(10))
        );
        assert_eq!(
            check(span(5, Some(8)), "bytes 5-7/*", None).unwrap(),
            part(5, 3, None)
        );
        assert_eq!(
            check(span(5, None), "bytes 5-6/10", None).unwrap(),
            part(5, 2, Some(10))
        );
        assert_eq!(
            check(Wanted::Suffix(3), "bytes 7-9/10", None).unwrap(),
            part(7, 3, Some(10))
        );
        assert_eq!(
            check(Wanted::Suffix(30), "bytes 0-9/10", None).unwrap(),
            part(0, 10, Some(10))
        );
        for (wanted, range, length) in [
            (span(5, None), "bytes 4-9/10", None),
            (span(5, Some(8)), "bytes 5-8/10", None),
            (span(5, None), "bytes 5-9/10", Some(4)),
            (span(5, None), "bytes */10", None),
            (span(5, None), "nonsense", None),
            (Wanted::Suffix(3), "bytes 0-2/10", None),
            (Wanted::Suffix(3), "bytes 6-9/10", None),
        ] {
            assert!(
                matches!(check(wanted, range, length), Err(Error::Invalid { .. })),
                "{wanted:?} {range}"
            );
        }
    }
}
