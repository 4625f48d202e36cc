//! Blobs on their way in. An upload lies on the volume and outlives the process; one request at a time writes to it.
//! Closing it hashes what is there, so that only [`crate::store::Verified`] bytes become a blob, and works for any digest.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use parking_lot::Mutex;

use super::{HostedRepository, PushError};
use crate::oci::Digest;
use crate::registry::parts::{Core, Found};
use crate::registry::{Error, Registry};
use crate::store::layout::Directory;
use crate::store::{Link, StoredBlob, Upload, UploadId, blocking};

/// How much is gathered before it is written, in bytes.
const BATCH_BYTES: usize = 512 * 1024;
/// How long a client may send nothing.
const PATIENCE: Duration = Duration::from_mins(5);

/// The first and the last byte of a piece, both included (distribution-spec, "Pushing a blob in chunks").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRange {
    /// Offset of the first byte.
    pub first: u64,
    /// Offset of the last byte.
    pub last: u64,
}

/// Why content stopped coming, in the words of whoever reads it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct IncomingError(pub String);

/// Content that a client sends.
pub struct Incoming<'a> {
    /// How many bytes it announced.
    pub length_bytes: Option<u64>,
    /// Which bytes of the blob these are, where it said so.
    pub range: Option<ChunkRange>,
    /// The bytes.
    pub content: BoxStream<'a, Result<Bytes, IncomingError>>,
}

/// The uploads that are being written to.
#[derive(Debug, Clone, Default)]
pub struct Writers(Arc<Mutex<HashSet<UploadId>>>);

/// The right to write to an upload.
#[derive(Debug)]
struct Writer {
    id: UploadId,
    all: Writers,
}

impl Writers {
    fn begin(&self, id: UploadId) -> Result<Writer, PushError> {
        if !self.0.lock().insert(id) {
            return Err(PushError::UploadBusy);
        }
        let all = self.clone();
        Ok(Writer { id, all })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.id);
    }
}

/// The quota and what is used of it, as of a moment ago; no limit where there is no quota.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Room(Option<(u64, u64)>);

impl Room {
    /// Refuses what would make hosted content larger than it may be.
    pub(super) fn check(self, more_bytes: u64) -> Result<(), PushError> {
        match self.0 {
            Some((quota_bytes, used_bytes)) if used_bytes.saturating_add(more_bytes) > quota_bytes => {
                Err(PushError::QuotaExceeded { quota_bytes })
            }
            _ => Ok(()),
        }
    }
}

/// An upload and the right to write to it, which stay together: a write that was begun ends before the next can begin,
/// even when nobody waits for it any more.
struct Open {
    upload: Upload,
    writer: Writer,
}

impl Registry {
    /// Begins an upload.
    ///
    /// # Errors
    /// [`PushError::QuotaExceeded`], or [`PushError::Storage`] when the volume fails.
    pub async fn begin_upload(&self, repository: &HostedRepository) -> Result<UploadId, PushError> {
        self.room().await?.check(1)?;
        let id = UploadId::random();
        let (store, directory) = (self.core.store.clone(), repository.directory.clone());
        let now = humantime::format_rfc3339_seconds(self.core.clock.now()).to_string();
        blocking(move || store.begin_upload(&directory, id, &now)).await?;
        Ok(id)
    }

    /// How many bytes an upload has.
    ///
    /// # Errors
    /// [`PushError::UploadUnknown`].
    pub async fn upload_size(&self, repository: &HostedRepository, id: UploadId) -> Result<u64, PushError> {
        Ok(self.open(repository, id).await?.size_bytes())
    }

    /// Writes a piece at the end of an upload; the size it has then. What came of a piece that broke off is kept.
    ///
    /// # Errors
    /// [`PushError`]; the upload lives on.
    ///
    /// # Cancel safety
    /// What was read from the client before is kept.
    pub async fn append(
        &self,
        repository: &HostedRepository,
        id: UploadId,
        incoming: Incoming<'_>,
    ) -> Result<u64, PushError> {
        let writer = self.writers.begin(id)?;
        let upload = self.open(repository, id).await?;
        let open = self.write(Open { upload, writer }, incoming).await?;
        Ok(open.upload.size_bytes())
    }

    /// Writes the last piece, which may be empty, and makes a blob of the upload.
    ///
    /// # Errors
    /// [`PushError`]. After [`PushError::DigestMismatch`] the upload is gone, after others it lives on.
    ///
    /// # Cancel safety
    /// Once the last piece has come, the rest is done.
    pub async fn close(
        &self,
        repository: &HostedRepository,
        id: UploadId,
        digest: &Digest,
        incoming: Incoming<'_>,
    ) -> Result<(), PushError> {
        let writer = self.writers.begin(id)?;
        let upload = self.open(repository, id).await?;
        let open = self.write(Open { upload, writer }, incoming).await?;
        let (core, directory, digest) = (
            Arc::clone(&self.core),
            repository.directory.clone(),
            digest.clone(),
        );
        self.outlive(async move { core.commit_upload(&directory, open, &digest).await })
            .await
    }

    /// Ends an upload and drops what has come.
    ///
    /// # Errors
    /// [`PushError::UploadUnknown`], [`PushError::UploadBusy`].
    pub async fn cancel_upload(&self, repository: &HostedRepository, id: UploadId) -> Result<(), PushError> {
        let _writer = self.writers.begin(id)?;
        self.open(repository, id).await?;
        let (store, directory) = (self.core.store.clone(), repository.directory.clone());
        Ok(blocking(move || store.remove_upload(&directory, id)).await?)
    }

    /// Gives a blob of one hosted repository to another, without `from` of whichever has it; `false` where none does.
    ///
    /// # Errors
    /// [`PushError::Storage`] when the volume fails.
    pub async fn mount(
        &self,
        repository: &HostedRepository,
        digest: &Digest,
        from: Option<&HostedRepository>,
    ) -> Result<bool, PushError> {
        let sources = match from {
            Some(from) => vec![from.directory.clone()],
            None => self.core.hosted_holders(digest),
        };
        for source in sources {
            let link = Link::Layer(digest.clone());
            let Found::Linked(found) = self.core.find(&source, link.clone(), digest).await else {
                continue;
            };
            let slot = self.core.guard(&found.canonical).await;
            // Before the slot was ours, the bytes may have been deleted.
            if let Found::Linked(stored) = self.core.find(&source, link, digest).await {
                self.core
                    .give_blob(&repository.directory, digest, &stored)
                    .await?;
                return Ok(true);
            }
            drop(slot);
        }
        Ok(false)
    }

    /// Removes uploads that nobody wrote to for longer than is allowed. Returns how many.
    ///
    /// # Errors
    /// [`PushError::Storage`] when the volume fails.
    pub async fn expire_uploads(&self) -> Result<usize, PushError> {
        let expiry_ms = u64::try_from(self.hosted_settings()?.upload_expiry.as_millis()).unwrap_or(u64::MAX);
        let before_ms = self.core.clock.now_ms().saturating_sub(expiry_ms);
        let store = self.core.store.clone();
        let resting = blocking(move || store.resting_uploads(before_ms)).await?;
        let mut removed = 0;
        for (directory, id) in resting {
            let Ok(_writer) = self.writers.begin(id) else {
                continue;
            };
            let store = self.core.store.clone();
            blocking(move || store.remove_upload(&directory, id)).await?;
            removed += 1;
        }
        Ok(removed)
    }

    async fn open(&self, repository: &HostedRepository, id: UploadId) -> Result<Upload, PushError> {
        let (store, directory) = (self.core.store.clone(), repository.directory.clone());
        let upload = blocking(move || store.upload(&directory, id)).await?;
        upload.ok_or_else(|| PushError::UploadUnknown(id.to_string()))
    }

    async fn write(&self, mut open: Open, mut incoming: Incoming<'_>) -> Result<Open, PushError> {
        let start_bytes = open.upload.size_bytes();
        let announced = announced(&incoming, start_bytes)?;
        let room = self.room().await?;
        room.check(start_bytes.saturating_add(announced.unwrap_or(0)))?;
        let limit_bytes = announced.unwrap_or(u64::MAX);
        loop {
            let (batch, broken) = gather(&mut incoming).await;
            let is_end = batch.is_empty();
            open = append(open, batch).await?;
            let written_bytes = open.upload.size_bytes() - start_bytes;
            if let Some(error) = broken {
                return Err(error);
            }
            let is_wrong =
                written_bytes > limit_bytes || (is_end && announced.is_some_and(|a| a != written_bytes));
            if is_wrong {
                blocking(move || open.upload.cut(start_bytes)).await?;
                return Err(PushError::SizeInvalid {
                    announced_bytes: limit_bytes,
                });
            }
            if is_end {
                return Ok(open);
            }
            room.check(open.upload.size_bytes())?;
        }
    }

    /// What hosted content may still take.
    pub(super) async fn room(&self) -> Result<Room, PushError> {
        let hosting = self.core.repositories.hosting();
        let limited = hosting.and_then(|hosting| Some((hosting, hosting.settings.quota_bytes?)));
        let Some((hosting, quota_bytes)) = limited else {
            return Ok(Room::default());
        };
        let (core, hosting) = (Arc::clone(&self.core), Arc::clone(hosting));
        let counted = blocking(move || core.hosted_bytes(&hosting)).await;
        let used_bytes = counted.map_err(|e| Error::Internal(e.to_string()))?;
        Ok(Room(Some((quota_bytes, used_bytes))))
    }

    /// Does work that goes on when the client leaves.
    pub(super) async fn outlive<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, PushError>> + Send + 'static,
    ) -> Result<T, PushError> {
        let lost = |_| PushError::from(Error::Internal("the push was lost".to_owned()));
        self.core.tracker.spawn(work).await.map_err(lost)?
    }
}

impl Core {
    async fn commit_upload(
        self: &Arc<Self>,
        directory: &Directory,
        open: Open,
        digest: &Digest,
    ) -> Result<(), PushError> {
        let Open { upload, writer } = open;
        let (id, expected) = (writer.id, digest.clone());
        let hashed = blocking(move || {
            let spool = upload.into_spool(expected.algorithm())?;
            Ok::<_, PushError>(spool.finish(&expected))
        });
        let verified = match hashed.await? {
            Ok(verified) => verified,
            Err(mismatch) => {
                self.drop_upload(directory, id).await;
                return Err(PushError::DigestMismatch {
                    expected: mismatch.expected,
                    actual: mismatch.actual,
                });
            }
        };
        let slot = self.guard(verified.canonical()).await;
        let store = self.store.clone();
        let stored = blocking(move || store.commit(verified)).await?;
        self.give_blob(directory, digest, &stored).await?;
        drop(slot);
        self.drop_upload(directory, id).await;
        drop(writer);
        Ok(())
    }

    /// Removes what is left of an upload; what cannot be removed now expires.
    async fn drop_upload(&self, directory: &Directory, id: UploadId) {
        let (store, directory) = (self.store.clone(), directory.clone());
        let removed = blocking(move || store.remove_upload(&directory, id)).await;
        removed.unwrap_or_else(|e| self.storage_failed(&e, ()));
    }

    /// Links a blob to a hosted repository; unlike for a pull, it counts when that fails.
    async fn give_blob(
        &self,
        directory: &Directory,
        digest: &Digest,
        stored: &StoredBlob,
    ) -> Result<(), PushError> {
        let link = Link::Layer(digest.clone());
        self.store.link(directory, &link, &stored.canonical).await?;
        self.link_blob(directory, digest, stored).await;
        if self.capacity.excess_bytes() > 0 {
            self.capacity.nudge();
        }
        Ok(())
    }

    /// The hosted repositories that have a blob, as far as the index knows.
    fn hosted_holders(&self, digest: &Digest) -> Vec<Directory> {
        let holders = self
            .index
            .canonical(digest)
            .and_then(|canonical| self.index.holders(&canonical));
        let holders = holders.unwrap_or_else(|e| Self::index_failed(&e, Vec::new()));
        holders
            .iter()
            .filter(|name| self.index.is_owned(name))
            .filter_map(|name| Directory::parse(name))
            .collect()
    }
}

/// How many bytes are to come, by the range or by the length, which must not contradict each other.
fn announced(incoming: &Incoming<'_>, size_bytes: u64) -> Result<Option<u64>, PushError> {
    let Some(range) = incoming.range else {
        return Ok(incoming.length_bytes);
    };
    if range.first != size_bytes || range.last < range.first {
        return Err(PushError::OutOfOrder { size_bytes });
    }
    let announced_bytes = (range.last - range.first).saturating_add(1);
    match incoming.length_bytes {
        Some(length) if length != announced_bytes => Err(PushError::SizeInvalid { announced_bytes }),
        _ => Ok(Some(announced_bytes)),
    }
}

/// What comes next, some of it together; nothing at the end.
async fn gather(incoming: &mut Incoming<'_>) -> (Vec<Bytes>, Option<PushError>) {
    let (mut batch, mut size) = (Vec::new(), 0);
    while size < BATCH_BYTES {
        match tokio::time::timeout(PATIENCE, incoming.content.next()).await {
            Ok(Some(Ok(bytes))) if bytes.is_empty() => {}
            Ok(Some(Ok(bytes))) => {
                size += bytes.len();
                batch.push(bytes);
            }
            Ok(Some(Err(error))) => return (batch, Some(PushError::Broken(error.to_string()))),
            Ok(None) => break,
            Err(_) => return (batch, Some(PushError::TooSlow)),
        }
    }
    (batch, None)
}

async fn append(mut open: Open, batch: Vec<Bytes>) -> Result<Open, PushError> {
    if batch.is_empty() {
        return Ok(open);
    }
    blocking(move || {
        for bytes in batch {
            open.upload.append(&bytes)?;
        }
        Ok(open)
    })
    .await
}
