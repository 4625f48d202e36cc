//! Content as an HTTP body: exactly as long as announced, or visibly short.
//!
//! Memory per client is one chunk. An error ends the body; on HTTP/1.1 it first waits until everything before it has
//! left, because hyper throws away what is still queued when a body fails.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::StreamExt;
use http_body::{Body, Frame, SizeHint};
use rustix::fs::Advice;
use thiserror::Error;

use super::connection::Connection;
use super::sendfile;
use crate::registry::{Content, ContentError, Piece};

/// Files are read in chunks of this size where they cannot be sent.
const READ_BYTES: usize = 256 * 1024;
/// Files are sent in slices of at most this size, so that hyper queues no more than one or two.
const SLICE_BYTES: usize = 1024 * 1024;
/// Shorter pieces are read, so that they leave in one write with the answer's head.
const MIN_SENDFILE_BYTES: u64 = 64 * 1024;
/// How much the kernel is asked to read ahead of what is sent.
const READ_AHEAD_BYTES: u64 = 4 * 1024 * 1024;

/// Why a body ended before its announced length.
#[derive(Debug, Clone, Error)]
pub enum BodyError {
    /// The content failed.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A file could not be read.
    #[error("cannot read the cached bytes: {0}")]
    Read(String),
    /// The content had fewer bytes than announced.
    #[error("{0} bytes are missing")]
    Short(u64),
}

/// Content on its way to one client.
pub struct ContentBody {
    content: Content,
    current: Option<Current>,
    unsent_bytes: Option<u64>,
    connection: Option<Arc<Connection>>,
    failed: Option<BodyError>,
}

/// The piece being sent.
enum Current {
    /// As it is, or standing for a file that will be sent.
    Bytes(Bytes),
    /// A file that is sent slice by slice.
    Sent { bytes: Bytes, ahead: ReadAhead },
    /// A file that is read chunk by chunk.
    Read { file: Arc<File>, range: Range<u64> },
}

/// Asks the kernel for the pages that come next.
struct ReadAhead {
    file: Arc<File>,
    position: u64,
    asked_until: u64,
    end: u64,
}

impl ContentBody {
    /// A body of `length` bytes, or of as many as come when that is not known. With a connection (HTTP/1.x only) files
    /// are sent from the page cache where it allows that, and failures wait for what is queued.
    pub(crate) fn new(content: Content, length: Option<u64>, connection: Option<Arc<Connection>>) -> Self {
        Self {
            content,
            current: None,
            unsent_bytes: length,
            connection,
            failed: None,
        }
    }

    fn begin(&self, piece: Piece) -> Current {
        let (file, range) = match piece {
            Piece::Bytes(bytes) => return Current::Bytes(bytes),
            Piece::File { file, range } => (file, range),
        };
        let is_long = range.end.saturating_sub(range.start) >= MIN_SENDFILE_BYTES;
        let regions = self
            .connection
            .as_ref()
            .and_then(|connection| connection.regions());
        let mapped = regions
            .filter(|_| is_long)
            .and_then(|regions| regions.map(&file, &range).ok());
        match mapped {
            Some(bytes) => Current::Sent {
                bytes,
                ahead: ReadAhead {
                    file,
                    position: range.start,
                    asked_until: range.start,
                    end: range.end,
                },
            },
            None => Current::Read { file, range },
        }
    }

    /// Cuts what is more than announced, which cannot happen unless a file or upstream lies.
    fn account(&mut self, mut bytes: Bytes) -> Bytes {
        if let Some(unsent) = &mut self.unsent_bytes {
            let fitting = usize::try_from(*unsent).unwrap_or(usize::MAX).min(bytes.len());
            bytes.truncate(fitting);
            *unsent -= fitting as u64;
        }
        bytes
    }

    fn poll_failed(&self, cx: &mut Context<'_>, error: BodyError) -> Poll<BodyError> {
        if let Some(connection) = &self.connection {
            ready!(connection.poll_end_short(cx));
        }
        Poll::Ready(error)
    }

    fn fail(&mut self, error: BodyError) {
        tracing::warn!(%error, "an answer ends short");
        self.current = None;
        self.failed = Some(error);
    }
}

impl Current {
    /// The next chunk; empty when the piece is used up.
    fn next(&mut self) -> Result<Bytes, BodyError> {
        match self {
            Self::Bytes(bytes) => Ok(std::mem::take(bytes)),
            Self::Sent { bytes, ahead } => {
                let slice = bytes.split_to(bytes.len().min(SLICE_BYTES));
                ahead.advance(slice.len() as u64);
                Ok(slice)
            }
            Self::Read { file, range } => {
                let wanted = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
                if wanted == 0 {
                    return Ok(Bytes::new());
                }
                let bytes = sendfile::read_at(file, range.start, wanted.min(READ_BYTES))
                    .map_err(|error| BodyError::Read(error.to_string()))?;
                if bytes.is_empty() {
                    return Err(BodyError::Read("the file is shorter than it was".to_owned()));
                }
                range.start += bytes.len() as u64;
                Ok(bytes)
            }
        }
    }
}

impl ReadAhead {
    fn advance(&mut self, length: u64) {
        self.position += length;
        if self.position + READ_AHEAD_BYTES / 2 < self.asked_until || self.asked_until >= self.end {
            return;
        }
        let begin = self.asked_until.max(self.position);
        self.asked_until = (begin + READ_AHEAD_BYTES).min(self.end);
        if let Some(length) = NonZeroU64::new(self.asked_until.saturating_sub(begin)) {
            // Advice only: a kernel that does not take it reads when the bytes are sent.
            let _ = rustix::fs::fadvise(&self.file, begin, Some(length), Advice::WillNeed);
        }
    }
}

impl Body for ContentBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(error) = self.failed.clone() {
                return self.poll_failed(cx, error).map(|error| Some(Err(error)));
            }
            if self.unsent_bytes == Some(0) {
                return Poll::Ready(None);
            }
            if let Some(current) = &mut self.current {
                match current.next() {
                    Ok(bytes) if bytes.is_empty() => self.current = None,
                    Ok(bytes) => {
                        let bytes = self.account(bytes);
                        return Poll::Ready(Some(Ok(Frame::data(bytes))));
                    }
                    Err(error) => self.fail(error),
                }
                continue;
            }
            match ready!(self.content.poll_next_unpin(cx)) {
                Some(Ok(piece)) => self.current = Some(self.begin(piece)),
                Some(Err(error)) => self.fail(error.into()),
                None => match self.unsent_bytes {
                    Some(missing) => self.fail(BodyError::Short(missing)),
                    None => return Poll::Ready(None),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.unsent_bytes == Some(0) && self.failed.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.unsent_bytes
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use futures::stream;
    use http_body_util::BodyExt;

    use super::*;

    fn file_of(bytes: &[u8]) -> Arc<File> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Arc::new(file)
    }

    fn content(pieces: Vec<Result<Piece, ContentError>>) -> Content {
        stream::iter(pieces).boxed()
    }

    fn text(text: &'static str) -> Piece {
        Piece::Bytes(Bytes::from_static(text.as_bytes()))
    }

    async fn collect(body: ContentBody) -> Result<Bytes, BodyError> {
        Ok(body.collect().await?.to_bytes())
    }

    #[tokio::test]
    async fn pieces_come_in_order_from_memory_and_files() {
        let bytes: Vec<u8> = (0..700_000_usize)
            .map(|i| u8::try_from(i % 251).unwrap())
            .collect();
        let file = file_of(&bytes);
        for connection in [None, Some(Arc::new(Connection::new("x".into(), true)))] {
            let pieces = vec![
                Ok(text("head")),
                Ok(Piece::File {
                    file: file.clone(),
                    range: 7..690_000,
                }),
                Ok(text("")),
                Ok(Piece::File {
                    file: file.clone(),
                    range: 3..9,
                }),
            ];
            let length = 4 + 689_993 + 6;
            let body = ContentBody::new(content(pieces), Some(length), connection);
            assert_eq!(body.size_hint().exact(), Some(length));
            let expected = [b"head", &bytes[7..690_000], &bytes[3..9]].concat();
            assert_eq!(collect(body).await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn never_more_than_announced() {
        let body = ContentBody::new(content(vec![Ok(text("abc")), Ok(text("def"))]), Some(4), None);
        assert_eq!(collect(body).await.unwrap(), "abcd");
    }

    #[tokio::test]
    async fn less_than_announced_is_an_error() {
        let body = ContentBody::new(content(vec![Ok(text("abc"))]), Some(4), None);
        assert!(matches!(collect(body).await, Err(BodyError::Short(1))));
    }

    #[tokio::test]
    async fn an_unknown_length_ends_where_the_content_ends() {
        let body = ContentBody::new(content(vec![Ok(text("abc"))]), None, None);
        assert_eq!(body.size_hint().exact(), None);
        assert_eq!(collect(body).await.unwrap(), "abc");
    }

    #[tokio::test]
    async fn a_failure_on_http_1_waits_until_the_connection_is_flushed() {
        let connection = Arc::new(Connection::new("x".into(), true));
        let pieces = vec![Ok(text("abc")), Err(ContentError::Stopping)];
        let mut body = ContentBody::new(content(pieces), Some(9), Some(connection.clone()));
        assert!(body.frame().await.unwrap().is_ok());
        assert!(futures::poll!(body.frame()).is_pending());
        connection.flushed();
        let end = body.frame().await.unwrap();
        assert!(matches!(end, Err(BodyError::Content(ContentError::Stopping))));
        assert!(connection.must_linger());
    }

    #[tokio::test]
    async fn a_truncated_file_is_an_error() {
        let piece = Piece::File {
            file: file_of(b"0123"),
            range: 0..10,
        };
        let body = ContentBody::new(content(vec![Ok(piece)]), Some(10), None);
        assert!(matches!(collect(body).await, Err(BodyError::Read(_))));
    }
}
