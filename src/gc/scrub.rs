//! Scrub: stored bytes read again and compared with their digest, at a bounded rate, what was longest unread first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Collector, Error};
use crate::meta::Index;
use crate::oci::{Digest, Hasher};
use crate::store::{StoredBlob, blocking};

/// Digests chosen in one go: the longest unread of all.
const BATCH: usize = 512;
/// Records read in one go while choosing.
const PAGE: usize = 512;
/// How much is read between two pauses, in bytes.
const CHUNK_BYTES: usize = 1024 * 1024;

/// What came out of reading a digest again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes are what the digest says.
    Right,
    /// They are not; they were moved away and will be fetched again.
    Wrong,
    /// They could not be read; they were moved away too.
    Unreadable,
    /// There are none.
    Absent,
}

impl<V: Clone + Send + Sync + 'static> Collector<V> {
    /// Verifies everything that was not verified since `before_ms`, at most `rate_bytes` in a second. Returns how many
    /// digests were right and how many were not.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub async fn scrub(
        &self,
        before_ms: u64,
        rate_bytes: u64,
        token: &CancellationToken,
    ) -> Result<(u64, u64), Error> {
        let (mut right, mut wrong) = (0, 0);
        loop {
            let index = self.index().clone();
            let batch = blocking(move || longest_unread(&index, before_ms)).await?;
            if batch.is_empty() {
                return Ok((right, wrong));
            }
            for digest in batch {
                if token.is_cancelled() {
                    return Ok((right, wrong));
                }
                match self.verify(&digest, rate_bytes).await? {
                    Verdict::Right => right += 1,
                    Verdict::Wrong | Verdict::Unreadable => wrong += 1,
                    Verdict::Absent => {}
                }
            }
        }
    }

    /// Reads the bytes of `digest` again, at most `rate_bytes` in a second. Bytes that are wrong or cannot be read are
    /// moved away and forgotten, so that the next pull fetches them.
    ///
    /// # Errors
    /// [`Error`] when the index fails, or wrong bytes cannot be moved away.
    pub async fn verify(&self, digest: &Digest, rate_bytes: u64) -> Result<Verdict, Error> {
        let (store, wanted) = (self.store().clone(), digest.clone());
        let opened = blocking(move || store.blob(&wanted)).await;
        let (verdict, size_bytes) = match opened {
            Ok(None) => (Verdict::Absent, 0),
            Ok(Some(blob)) => (read_paced(&blob, rate_bytes).await, blob.size_bytes),
            Err(_) => (Verdict::Unreadable, 0),
        };
        match verdict {
            Verdict::Right => {
                self.index().record_verified(digest, self.parts.clock.now_ms())?;
                self.metrics().scrubbed("right", size_bytes);
            }
            Verdict::Absent => self.forget_damaged(digest).await?,
            Verdict::Wrong | Verdict::Unreadable => {
                tracing::error!(%digest, ?verdict, "bytes on the volume are damaged, moved away");
                let (store, wanted) = (self.store().clone(), digest.clone());
                blocking(move || store.quarantine(&wanted)).await?;
                self.forget_damaged(digest).await?;
                let result = if verdict == Verdict::Wrong {
                    "wrong"
                } else {
                    "unreadable"
                };
                self.metrics().scrubbed(result, size_bytes);
            }
        }
        Ok(verdict)
    }
}

/// Reads a blob in chunks, each followed by a pause as long as the rate demands.
async fn read_paced(blob: &StoredBlob, rate_bytes: u64) -> Verdict {
    let mut hasher = Hasher::new(blob.canonical.algorithm());
    let mut buffer = Vec::new();
    let mut at = 0;
    loop {
        let file = Arc::clone(&blob.file);
        let (read, filled, so_far) = blocking(move || {
            buffer.resize(CHUNK_BYTES, 0);
            let read = file.read_at(&mut buffer, at);
            if let Ok(count) = read {
                hasher.update(buffer.get(..count).unwrap_or_default());
            }
            (read, buffer, hasher)
        })
        .await;
        (buffer, hasher) = (filled, so_far);
        match read {
            Ok(0) if hasher.clone().finish() == blob.canonical => return Verdict::Right,
            Ok(0) => return Verdict::Wrong,
            Ok(count) => {
                at += count as u64;
                let pause_ms = (count as u64).saturating_mul(1000) / rate_bytes.max(1);
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            Err(_) => return Verdict::Unreadable,
        }
    }
}

/// The digests that were verified longest ago, and before `before_ms`.
fn longest_unread(index: &Index, before_ms: u64) -> Result<Vec<Digest>, Error> {
    let mut chosen: BinaryHeap<(u64, Digest)> = BinaryHeap::new();
    let mut after = None;
    loop {
        let page = index.contents(after.as_ref(), PAGE)?;
        let is_last = page.len() < PAGE;
        after = page.last().map(|(digest, _)| digest.clone());
        for (digest, record) in page {
            if record.verified_ms < before_ms {
                chosen.push((record.verified_ms, digest));
                if chosen.len() > BATCH {
                    chosen.pop();
                }
            }
        }
        if is_last {
            let mut sorted: Vec<_> = chosen.into_iter().map(Reverse).collect();
            sorted.sort_by(|a, b| b.cmp(a));
            return Ok(sorted.into_iter().map(|Reverse((_, digest))| digest).collect());
        }
    }
}
