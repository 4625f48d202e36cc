//! Changes that happen whole or not at all: a digest's record, its links, the queues and the sums move together.

use sled::transaction::{ConflictableTransactionError, ConflictableTransactionResult, TransactionalTree};

use super::record::{ContentRecord, LinkRecord, Totals, decode, encode};
use super::{Error, key};
use crate::oci::Digest;

/// The key of [`Totals`] in the state table.
pub(super) const TOTALS_KEY: &[u8] = b"totals";

/// The times of something that enters the index, all in milliseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// When it came.
    pub added_ms: u64,
    /// When it was last used.
    pub last_use_ms: u64,
    /// When its bytes were last compared with the digest; 0 for never.
    pub verified_ms: u64,
}

impl Times {
    /// Of what came, and was verified, just now.
    pub(super) fn verified(now_ms: u64) -> Self {
        Self {
            added_ms: now_ms,
            last_use_ms: now_ms,
            verified_ms: now_ms,
        }
    }
}

/// The tables inside a transaction.
pub(super) struct Transaction<'a> {
    pub(super) contents: &'a TransactionalTree,
    pub(super) links: &'a TransactionalTree,
    pub(super) holders: &'a TransactionalTree,
    pub(super) by_use: &'a TransactionalTree,
    pub(super) by_added: &'a TransactionalTree,
    pub(super) doomed: &'a TransactionalTree,
    pub(super) edges: &'a TransactionalTree,
    pub(super) parents: &'a TransactionalTree,
    pub(super) referrers: &'a TransactionalTree,
    pub(super) state: &'a TransactionalTree,
}

/// Ends a transaction without effect.
pub(super) fn abort(error: Error) -> ConflictableTransactionError<Error> {
    ConflictableTransactionError::Abort(error)
}

impl Transaction<'_> {
    pub(super) fn put_content(
        &self,
        digest: &Digest,
        size_bytes: u64,
        media_type: Option<&str>,
        times: Times,
    ) -> ConflictableTransactionResult<(), Error> {
        let key = key::digest(digest);
        let old: Option<ContentRecord> = match self.contents.get(&key)? {
            Some(bytes) => Some(decode("contents", &bytes).map_err(abort)?),
            None => None,
        };
        let new = ContentRecord {
            size_bytes,
            media_type: media_type
                .map(str::to_owned)
                .or_else(|| old.as_ref().and_then(|o| o.media_type.clone())),
            is_manifest: media_type.is_some() || old.as_ref().is_some_and(|o| o.is_manifest),
            added_ms: old.as_ref().map_or(times.added_ms, |o| o.added_ms),
            verified_ms: old.as_ref().map_or(0, |o| o.verified_ms).max(times.verified_ms),
            link_count: old.as_ref().map_or(0, |o| o.link_count),
        };
        self.contents.insert(key, encode(&new))?;
        self.change_totals(|totals| {
            let (old_size, old_manifest) = old.as_ref().map_or((0, false), |o| (o.size_bytes, o.is_manifest));
            totals.contents += u64::from(old.is_none());
            totals.manifests += u64::from(new.is_manifest && !old_manifest);
            totals.bytes = (totals.bytes + size_bytes).saturating_sub(old_size);
        })
    }

    /// A link whose content is not recorded gets none: the caller records the content first.
    pub(super) fn put_link(
        &self,
        repository: &str,
        digest: &Digest,
        is_manifest: bool,
        times: Times,
    ) -> ConflictableTransactionResult<(), Error> {
        let key = key::link(repository, digest);
        if let Some(bytes) = self.links.get(&key)? {
            let old: LinkRecord = decode("links", &bytes).map_err(abort)?;
            let turned = is_manifest && !old.is_manifest;
            let new = LinkRecord {
                is_manifest: is_manifest || old.is_manifest,
                last_use_ms: times.last_use_ms.max(old.last_use_ms),
                ..old
            };
            self.links.insert(key, encode(&new))?;
            return self.change_totals(|totals| totals.roots += u64::from(turned));
        }
        let new = LinkRecord {
            is_manifest,
            is_pinned: false,
            added_ms: times.added_ms,
            last_use_ms: times.last_use_ms,
            queued_ms: times.last_use_ms,
        };
        self.by_use.insert(key::queued(new.queued_ms, &key), &[])?;
        self.by_added.insert(key::queued(new.added_ms, &key), &[])?;
        self.holders
            .insert(key::join(&key::digest(digest), repository.as_bytes()), &[])?;
        self.links.insert(key, encode(&new))?;
        self.change_link_count(digest, 1)?;
        self.change_totals(|totals| {
            totals.links += 1;
            totals.roots += u64::from(is_manifest);
        })
    }

    pub(super) fn remove_link(
        &self,
        repository: &str,
        digest: &Digest,
    ) -> ConflictableTransactionResult<bool, Error> {
        let key = key::link(repository, digest);
        let Some(bytes) = self.links.remove(key.as_slice())? else {
            return Ok(false);
        };
        let old: LinkRecord = decode("links", &bytes).map_err(abort)?;
        self.by_use.remove(key::queued(old.queued_ms, &key))?;
        self.by_added.remove(key::queued(old.added_ms, &key))?;
        self.holders
            .remove(key::join(&key::digest(digest), repository.as_bytes()))?;
        self.change_link_count(digest, -1)?;
        self.change_totals(|totals| {
            totals.links = totals.links.saturating_sub(1);
            totals.roots = totals.roots.saturating_sub(u64::from(old.is_manifest));
        })?;
        Ok(true)
    }

    pub(super) fn remove_content(&self, digest: &Digest) -> ConflictableTransactionResult<(), Error> {
        let key = key::digest(digest);
        let Some(bytes) = self.contents.remove(key.as_slice())? else {
            return Ok(());
        };
        self.doomed.remove(key)?;
        let old: ContentRecord = decode("contents", &bytes).map_err(abort)?;
        self.change_totals(|totals| {
            totals.contents = totals.contents.saturating_sub(1);
            totals.manifests = totals.manifests.saturating_sub(u64::from(old.is_manifest));
            totals.bytes = totals.bytes.saturating_sub(old.size_bytes);
        })
    }

    fn change_link_count(&self, digest: &Digest, by: i32) -> ConflictableTransactionResult<(), Error> {
        let key = key::digest(digest);
        if let Some(bytes) = self.contents.get(&key)? {
            let mut record: ContentRecord = decode("contents", &bytes).map_err(abort)?;
            record.link_count = record.link_count.saturating_add_signed(by);
            if record.link_count == 0 {
                self.doomed.insert(key.as_slice(), &[])?;
            } else {
                self.doomed.remove(key.as_slice())?;
            }
            self.contents.insert(key, encode(&record))?;
        }
        Ok(())
    }

    fn change_totals(&self, change: impl FnOnce(&mut Totals)) -> ConflictableTransactionResult<(), Error> {
        let mut totals = match self.state.get(TOTALS_KEY)? {
            Some(bytes) => decode("state", &bytes).map_err(abort)?,
            None => Totals::default(),
        };
        change(&mut totals);
        self.state.insert(TOTALS_KEY, encode(&totals))?;
        Ok(())
    }
}
