//! Bodies: read whole within a bound, or as a stream that notices when it stalls or ends too early.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use flate2::write::GzDecoder;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE};
use reqwest::Response;
use tokio::time::timeout;

use super::error::{Error, Phase, chain};
use super::transport::{Transport, host_of};

/// The bytes of an encoded body that are decoded in one step: a bound for what a step can blow up to (1032 times as much).
const DECODE_STEP_BYTES: usize = 4 * 1024;

/// How an answer is wrapped, in spite of our asking for it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// As it is.
    Identity,
    /// RFC 1952.
    Gzip,
}

/// The encoding of an answer.
///
/// # Errors
/// [`Error::Invalid`] for one that larder cannot undo.
pub(super) fn encoding(headers: &HeaderMap) -> Result<Encoding, Error> {
    let Some(value) = headers.get(CONTENT_ENCODING) else {
        return Ok(Encoding::Identity);
    };
    let name = String::from_utf8_lossy(value.as_bytes())
        .trim()
        .to_ascii_lowercase();
    match name.as_str() {
        "" | "identity" => Ok(Encoding::Identity),
        "gzip" | "x-gzip" => Ok(Encoding::Gzip),
        other => Err(Error::invalid(format!(
            "content encoding `{other}` although none was asked for"
        ))),
    }
}

/// The `Content-Length` of an answer, also of one to `HEAD`.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// The parts of a `Content-Range` (RFC 9110 14.4): first and last byte unless unsatisfied, and the total unless unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentRange {
    pub(super) span: Option<(u64, u64)>,
    pub(super) total_bytes: Option<u64>,
}

/// Reads `bytes a-b/total`, `bytes a-b/*` and `bytes */total`; none when it is missing or makes no sense.
pub(super) fn content_range(headers: &HeaderMap) -> Option<ContentRange> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?.trim();
    let (unit, rest) = text.split_once([' ', '='])?;
    let (span, total) = rest.trim().split_once('/')?;
    let total_bytes = match total.trim() {
        "*" => None,
        number => Some(number.parse().ok()?),
    };
    let span = match span.trim() {
        "*" => None,
        span => {
            let (first, last) = span.split_once('-')?;
            Some((
                first.trim().parse::<u64>().ok()?,
                last.trim().parse::<u64>().ok()?,
            ))
        }
    };
    let is_sound =
        span.is_none_or(|(first, last)| first <= last && total_bytes.is_none_or(|total| last < total));
    (unit.eq_ignore_ascii_case("bytes") && is_sound).then_some(ContentRange { span, total_bytes })
}

/// The pieces of a body as they arrive, each within the idle timeout; checked against the length that was announced.
pub(super) fn pieces(
    response: Response,
    length: Option<u64>,
    idle_timeout: Duration,
) -> impl Stream<Item = Result<Bytes, Error>> + Send + 'static {
    let host = host_of(response.url());
    let body = response.bytes_stream();
    stream::try_unfold(
        (body, 0_u64, host),
        move |(mut body, received, host)| async move {
            let cut = |host: String, reason: String| Error::Cut {
                host,
                received,
                reason,
            };
            match timeout(idle_timeout, body.next()).await {
                Err(_) => Err(Error::TimedOut {
                    host,
                    phase: Phase::Body,
                }),
                Ok(Some(Err(error))) => Err(cut(host, chain(&error.without_url()))),
                Ok(Some(Ok(piece))) => {
                    let received = received + piece.len() as u64;
                    if length.is_some_and(|length| received > length) {
                        return Err(Error::invalid("the body is longer than it was announced to be"));
                    }
                    Ok(Some((piece, (body, received, host))))
                }
                Ok(None) if length.is_some_and(|length| received < length) => Err(cut(
                    host,
                    "the body is shorter than it was announced to be".to_owned(),
                )),
                Ok(None) => Ok(None),
            }
        },
    )
}

/// The pieces of a gzip body, decoded in steps of bounded size.
pub(super) fn decoded(
    pieces: impl Stream<Item = Result<Bytes, Error>> + Send + 'static,
) -> BoxStream<'static, Result<Bytes, Error>> {
    let steps = pieces.boxed();
    stream::try_unfold(
        (steps, Bytes::new(), Some(GzDecoder::new(Vec::new()))),
        |(mut steps, mut pending, decoder)| async move {
            let Some(mut decoder) = decoder else {
                return Ok::<_, Error>(None);
            };
            if pending.is_empty() {
                let Some(piece) = steps.try_next().await? else {
                    let rest = decoder
                        .finish()
                        .map_err(|_| Error::invalid("a gzip body that ends too early"))?;
                    return Ok(Some((Bytes::from(rest), (steps, pending, None))));
                };
                pending = piece;
            }
            let step = pending.split_to(pending.len().min(DECODE_STEP_BYTES));
            decoder
                .write_all(&step)
                .map_err(|_| Error::invalid("a body that is said to be gzip and is not"))?;
            let output = Bytes::from(std::mem::take(decoder.get_mut()));
            Ok(Some((output, (steps, pending, Some(decoder)))))
        },
    )
    .try_filter(|piece| std::future::ready(!piece.is_empty()))
    .boxed()
}

/// Reads a whole small body of at most `max_bytes`, decoded.
///
/// # Errors
/// [`Error::Invalid`] when it is larger, [`Error::Cut`] and [`Error::TimedOut`] when it does not come whole.
pub(super) async fn read_all(
    response: Response,
    max_bytes: usize,
    transport: &Transport,
) -> Result<Bytes, Error> {
    let too_large = || Error::invalid(format!("an answer of more than {max_bytes} bytes"));
    let encoding = encoding(response.headers())?;
    let length = content_length(response.headers());
    if length.is_some_and(|length| length > max_bytes as u64) {
        return Err(too_large());
    }
    let mut pieces = pieces(response, length, transport.idle_timeout).boxed();
    let mut whole = BytesMut::new();
    while let Some(piece) = pieces.try_next().await? {
        if whole.len() + piece.len() > max_bytes {
            return Err(too_large());
        }
        whole.extend_from_slice(&piece);
    }
    if encoding == Encoding::Identity {
        return Ok(whole.freeze());
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(whole.as_ref())
        .take(max_bytes as u64 + 1)
        .read_to_end(&mut plain)
        .map_err(|_| Error::invalid("a body that is said to be gzip and is not"))?;
    if plain.len() > max_bytes {
        Err(too_large())
    } else {
        Ok(Bytes::from(plain))
    }
}

/// Reads the beginning of a body within a time limit; what does not come is not waited for.
pub(super) async fn read_some(response: Response, max_bytes: usize, limit: Duration) -> Bytes {
    let mut body = response.bytes_stream();
    let mut some = BytesMut::new();
    let read = async {
        while let Some(Ok(piece)) = body.next().await {
            some.extend_from_slice(&piece);
            if some.len() >= max_bytes {
                break;
            }
        }
    };
    let _ = timeout(limit, read).await;
    some.truncate(max_bytes);
    some.freeze()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn content_ranges_are_read() {
        let some = |span, total_bytes| Some(ContentRange { span, total_bytes });
        let cases = [
            ("bytes 0-9/10", some(Some((0, 9)), Some(10))),
            ("bytes 5-9/*", some(Some((5, 9)), None)),
            ("bytes */0", some(None, Some(0))),
            ("Bytes 1-1/2", some(Some((1, 1)), Some(2))),
            ("bytes 5-4/10", None),
            ("bytes 0-10/10", None),
            ("lines 0-1/2", None),
            ("bytes 0-1", None),
            ("bytes x-1/2", None),
            ("", None),
        ];
        for (text, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, HeaderValue::from_static(text));
            assert_eq!(content_range(&headers), expected, "{text}");
        }
    }

    async fn decode(encoded: Vec<u8>, piece_bytes: usize) -> Result<(Vec<u8>, usize), Error> {
        let pieces: Vec<_> = encoded
            .chunks(piece_bytes)
            .map(|piece| Ok(Bytes::copy_from_slice(piece)))
            .collect();
        let mut stream = decoded(stream::iter(pieces));
        let (mut all, mut largest) = (Vec::new(), 0);
        while let Some(piece) = stream.try_next().await? {
            largest = largest.max(piece.len());
            all.extend_from_slice(&piece);
        }
        Ok((all, largest))
    }

    #[tokio::test]
    async fn gzip_bodies_are_decoded_in_bounded_steps() {
        let plain = vec![7_u8; 32 << 20];
        for piece_bytes in [1000, 1 << 20] {
            let (all, largest) = decode(gzip(&plain), piece_bytes).await.unwrap();
            assert_eq!(all, plain);
            assert!(largest <= DECODE_STEP_BYTES * 1040 + (32 << 10), "{largest}");
        }
        let mut short = gzip(b"some bytes that are cut");
        short.truncate(short.len() - 5);
        assert!(matches!(decode(short, 7).await, Err(Error::Invalid { .. })));
        assert!(matches!(
            decode(b"no gzip at all".to_vec(), 7).await,
            Err(Error::Invalid { .. })
        ));
    }
}
