//! The steps that take things away: unlink, doom, delete.

use super::metrics::Reason;
use super::{Collector, Error, life};
use crate::meta::Link;
use crate::oci::Digest;
use crate::store::blocking;
use crate::store::layout::Directory;

/// Doomed digests looked at in one go.
const BATCH: usize = 64;

/// What became of a doomed digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// Its bytes are gone: so many.
    Deleted(u64),
    /// Something refers to it still, or again.
    Kept,
    /// It is being filled right now; the next pass looks again.
    Busy,
}

impl<V: Clone + Send + Sync + 'static> Collector<V> {
    /// Takes a digest away from a repository: link files, tags, folders, then the index.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails; safe to repeat.
    pub(super) async fn unlink(&self, link: &Link, reason: Reason) -> Result<(), Error> {
        let index = self.index();
        if let Some(directory) = Directory::parse(&link.repository) {
            let mut names = index.aliases(&link.digest)?;
            names.insert(0, link.digest.clone());
            let (store, place, wanted) = (self.store().clone(), directory.clone(), names.clone());
            let is_manifest = link.record.is_manifest;
            let tags = blocking(move || store.remove_links(&place, &wanted, is_manifest)).await?;
            for tag in tags {
                index.remove_tag(&link.repository, &tag)?;
            }
            for name in &names {
                (self.parts.on_unlinked)(&directory, name);
            }
        }
        if index.unlink(&link.repository, &link.digest)? {
            self.metrics().unlinked(reason);
            tracing::debug!(repository = link.repository, digest = %link.digest, reason = reason.as_str(), "unlinked");
        }
        Ok(())
    }

    /// Deletes the bytes of a doomed digest, unless something needs them.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails; safe to repeat.
    pub(super) async fn delete(&self, digest: &Digest, reason: Reason) -> Result<Deletion, Error> {
        let index = self.index();
        let mut slots = Vec::new();
        for name in index.aliases(digest)?.iter().chain(std::iter::once(digest)) {
            let Some(slot) = self.parts.flights.hold(name) else {
                return Ok(Deletion::Busy);
            };
            slots.push(slot);
        }
        // Looked up with the slot held: a fill that ended before has linked its bytes by now.
        let Some(record) = index.content(digest)? else {
            return Ok(Deletion::Kept);
        };
        if record.link_count > 0 || life::is_referred_to(index, digest)? {
            return Ok(Deletion::Kept);
        }
        self.store().delete_blob(digest).await?;
        let (store, canonical) = (self.store().clone(), digest.clone());
        blocking(move || store.prune_blob(&canonical)).await;
        index.forget(digest)?;
        self.metrics().deleted(reason, record.size_bytes);
        tracing::debug!(%digest, size_bytes = record.size_bytes, reason = reason.as_str(), "deleted");
        drop(slots);
        Ok(Deletion::Deleted(record.size_bytes))
    }

    /// Deletes everything that is doomed and that nothing refers to.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails; safe to repeat.
    pub(super) async fn delete_doomed(&self, reason: Reason) -> Result<u64, Error> {
        let mut freed_bytes = 0;
        // A manifest that goes lets go of what it refers to: look again until nothing goes any more.
        loop {
            let mut has_deleted = false;
            let mut after = None;
            loop {
                let batch = self.index().doomed(after.as_ref(), BATCH)?;
                for digest in &batch {
                    if let Deletion::Deleted(bytes) = self.delete(digest, reason).await? {
                        freed_bytes += bytes;
                        has_deleted = true;
                    }
                }
                after = batch.last().cloned();
                if batch.len() < BATCH {
                    break;
                }
                self.pace().await;
            }
            if !has_deleted {
                return Ok(freed_bytes);
            }
        }
    }

    /// Lets pulls go first for a moment.
    pub(super) async fn pace(&self) {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
}
