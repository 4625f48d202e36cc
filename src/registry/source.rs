//! An upstream body that heals: a break is resumed where it happened, and the reader sees a pause.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use backon::BackoffBuilder;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use super::repositories::Repository;
use crate::metrics::{Kind, Metrics};
use crate::oci::Digest;
use crate::upstream::{BlobResponse, Error, Range};

/// Tries without a new byte before a break is final.
const TRIES: usize = 6;
/// Breaks of one body before it is given up, however much comes between them.
const MOST_BREAKS: u32 = 1000;
/// The longest that upstream's `Retry-After` is waited for in mid-body.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How much is gathered before it is handed on, in bytes.
const BATCH_BYTES: usize = 512 * 1024;

/// Where a blob comes from.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) repository: Repository,
    pub(super) digest: Digest,
    pub(super) metrics: Arc<Metrics>,
}

/// What to do when upstream gives the whole blob where a part was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skip {
    /// Read and drop what comes before.
    Allowed,
    /// Take it as a failure: reading up to a far place costs more than it brings.
    Refused,
}

/// Bytes `position..end` of a blob, resumed as often as it makes sense.
pub(super) struct Body {
    origin: Origin,
    stream: BoxStream<'static, Result<Bytes, Error>>,
    /// What the stream gave beyond what was taken.
    stashed: VecDeque<Result<Bytes, Error>>,
    position: u64,
    skip_bytes: u64,
    end: Option<u64>,
    total_bytes: Option<u64>,
    breaks: u32,
}

impl Body {
    /// Opens `start..end`; an `end` of `None` reads to the end of the blob.
    pub(super) async fn open(
        origin: Origin,
        start: u64,
        end: Option<u64>,
        skip: Skip,
    ) -> Result<Self, Error> {
        let response = request(&origin, start, end, skip).await?;
        Ok(Self::from_response(origin, response, start, end))
    }

    /// Opens the last `length` bytes of a blob of unknown size; fails where upstream does not know suffixes.
    pub(super) async fn open_suffix(origin: Origin, length: u64) -> Result<Self, Error> {
        let upstream = Arc::clone(origin.repository.upstream());
        let response = upstream
            .get_blob_suffix(origin.repository.remote_name(), &origin.digest, length)
            .await?;
        if !response.is_partial || response.total_bytes.is_none() {
            return Err(Error::RangeRefused { status: 200 });
        }
        let start = response.start;
        Ok(Self::from_response(origin, response, start, None))
    }

    fn from_response(origin: Origin, response: BlobResponse, start: u64, end: Option<u64>) -> Self {
        Self {
            origin,
            position: start,
            skip_bytes: start.saturating_sub(response.start),
            end: end.or(response.total_bytes),
            total_bytes: response.total_bytes,
            stream: response.body,
            stashed: VecDeque::new(),
            breaks: 0,
        }
    }

    /// The same body, ending where the blob does; `None` where upstream does not tell that.
    pub(super) fn clamped(mut self) -> Option<Self> {
        let total_bytes = self.total_bytes?;
        self.end = Some(self.end.unwrap_or(total_bytes).min(total_bytes));
        Some(self)
    }

    /// The size of the whole blob, where upstream tells.
    pub(super) fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
    }

    /// The offset of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The next bytes, all that are there up to a batch; empty at the end.
    pub(super) async fn next_batch(&mut self) -> Result<Vec<Bytes>, Error> {
        let mut batch = Vec::new();
        let Some(first) = self.next().await? else {
            return Ok(batch);
        };
        let mut size = first.len();
        batch.push(first);
        while size < BATCH_BYTES && self.skip_bytes == 0 && self.end.is_none_or(|end| self.position < end) {
            match futures::poll!(self.stream.next()) {
                std::task::Poll::Ready(Some(Ok(bytes))) => {
                    let bytes = self.take(bytes);
                    size += bytes.len();
                    batch.push(bytes);
                }
                std::task::Poll::Ready(Some(error)) => {
                    self.stashed.push_back(error);
                    break;
                }
                std::task::Poll::Ready(None) | std::task::Poll::Pending => break,
            }
        }
        Ok(batch)
    }

    /// The next bytes, never none of them; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            if self.end.is_some_and(|end| self.position >= end) {
                return Ok(None);
            }
            let item = match self.stashed.pop_front() {
                Some(item) => Some(item),
                None => self.stream.next().await,
            };
            match item {
                Some(Ok(bytes)) => {
                    let bytes = self.take(bytes);
                    if !bytes.is_empty() {
                        return Ok(Some(bytes));
                    }
                }
                Some(Err(error)) => self.heal(error).await?,
                None if self.end.is_none() => return Ok(None),
                None => {
                    let host = self.origin.repository.upstream_host().to_owned();
                    let reason = "ended before its length".to_owned();
                    self.heal(Error::Cut {
                        host,
                        received: self.position,
                        reason,
                    })
                    .await?;
                }
            }
        }
    }

    /// Counts bytes, drops those that are known already, and moves the position.
    fn take(&mut self, mut bytes: Bytes) -> Bytes {
        self.origin.metrics.pulled(Kind::Blob, bytes.len() as u64);
        let known = usize::try_from(self.skip_bytes)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        self.skip_bytes -= known as u64;
        let mut fresh = bytes.split_off(known);
        if let Some(end) = self.end {
            let room = usize::try_from(end.saturating_sub(self.position)).unwrap_or(usize::MAX);
            fresh.truncate(room);
        }
        self.position += fresh.len() as u64;
        fresh
    }

    async fn heal(&mut self, cause: Error) -> Result<(), Error> {
        self.breaks += 1;
        if !is_curable(&cause) || self.breaks > MOST_BREAKS {
            return Err(cause);
        }
        let pauses = backon::ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(100))
            .with_max_delay(Duration::from_secs(5))
            .with_max_times(TRIES - 1)
            .with_jitter()
            .build();
        let mut last = cause;
        for pause in std::iter::once(Duration::ZERO).chain(pauses) {
            tokio::time::sleep(pause).await;
            tracing::debug!(digest = %self.origin.digest, at = self.position, error = %last, "resuming a broken body");
            match request(&self.origin, self.position, self.end, Skip::Allowed).await {
                Ok(response) if self.fits(&response) => {
                    self.resume(response);
                    return Ok(());
                }
                Ok(_) => {
                    let message = "the blob has another size than before the break".to_owned();
                    last = Error::Invalid { message };
                }
                Err(Error::RateLimited {
                    retry_after: Some(wait),
                    ..
                }) if wait <= LONGEST_WAIT => {
                    tokio::time::sleep(wait).await;
                }
                Err(error) if is_curable(&error) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Whether an answer speaks of the blob that was begun.
    fn fits(&self, response: &BlobResponse) -> bool {
        let (known, now) = (self.total_bytes, response.total_bytes);
        known.is_none() || now.is_none() || known == now
    }

    fn resume(&mut self, response: BlobResponse) {
        self.origin.metrics.heals.inc();
        self.skip_bytes = self.position.saturating_sub(response.start);
        self.stream = response.body;
        self.stashed.clear();
    }
}

/// Asks for `start..end`, and for everything where the range is refused.
async fn request(origin: &Origin, start: u64, end: Option<u64>, skip: Skip) -> Result<BlobResponse, Error> {
    let upstream = origin.repository.upstream();
    let name = origin.repository.remote_name();
    let is_whole = start == 0 && (end.is_none() || skip == Skip::Allowed);
    let range = (!is_whole).then_some(Range { start, end });
    match upstream.get_blob(name, &origin.digest, range).await {
        Ok(response) if skip == Skip::Refused && range.is_some() && !response.is_partial => {
            Err(Error::RangeRefused { status: 200 })
        }
        Err(Error::RangeRefused { .. } | Error::Invalid { .. })
            if skip == Skip::Allowed && range.is_some() =>
        {
            upstream.get_blob(name, &origin.digest, None).await
        }
        other => other,
    }
}

/// Whether a try later may go better. A wrong answer may come from one bad cache among many behind a name.
fn is_curable(error: &Error) -> bool {
    matches!(
        error,
        Error::Cut { .. }
            | Error::TimedOut { .. }
            | Error::Unreachable { .. }
            | Error::Unavailable { .. }
            | Error::RateLimited { .. }
            | Error::Invalid { .. }
    )
}
