//! What every part of the service needs, and what is done with files and index together.
//!
//! The files are the truth: a lookup goes to the link and the bytes. The index adds what files cannot say: that the
//! bytes were verified, when they were used, what a tag meant when. An index that fails costs knowledge, never a pull.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use moka::sync::Cache;
use tokio_util::task::TaskTracker;

use super::answer::ManifestContent;
use super::fill::Fill;
use super::repositories::{Repositories, Repository};
use super::source::Origin;
use crate::clock::Clock;
use crate::flight::{Coalesce, Flights, Slot};
use crate::meta::{self, ContentRecord, Index};
use crate::metrics::Metrics;
use crate::oci::{Algorithm, Digest, Manifest, Reference};
use crate::store::layout::Directory;
use crate::store::{self, Capacity, Link, Store, StoredBlob, blocking};

/// Memory for manifests that are asked for again and again, in bytes.
const MANIFEST_CACHE_BYTES: u64 = 4 * 1024 * 1024;

/// How much later than its verification a file may have been written by the clock of its file system.
const MODIFIED_SLACK_MS: u64 = 1000;
/// How many verified digests are remembered beside the index.
const MOST_CHECKED: u64 = 10_000;
/// How many references that upstream does not have are remembered.
const MOST_MISSING: u64 = 10_000;

/// What the service is told to do.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For how long a tag is believed without asking upstream.
    pub tag_ttl: Duration,
    /// For how long upstream's "not found" is believed.
    pub negative_ttl: Duration,
    /// For how long a client waits for upstream where something is held.
    pub stale_budget: Duration,
    /// How many tags a page has where the client says nothing.
    pub max_tags: u64,
}

/// The parts, shared by all requests and tasks.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) settings: Settings,
    pub(super) repositories: Repositories,
    pub(super) store: Store,
    pub(super) index: Index,
    pub(super) capacity: Capacity,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
    pub(super) tracker: TaskTracker,
    pub(super) flights: Flights<Digest, Arc<Fill>>,
    pub(super) manifests: Cache<(Directory, Digest), Arc<ManifestContent>>,
    /// What upstream said not to have, for as long as that is believed.
    pub(super) missing: Cache<(Directory, Reference), ()>,
    checks: Coalesce<Digest, bool>,
    /// Size and time of bytes that were verified lately, for as long as the index cannot tell: while it is rebuilt, or
    /// broken with the volume.
    checked: Cache<Digest, (u64, u64)>,
}

/// What a lookup found.
#[derive(Debug)]
pub(super) enum Found {
    /// Here, and this repository has it.
    Linked(StoredBlob),
    /// Here, but not known to belong to this repository.
    Unlinked(StoredBlob),
    /// Not here.
    Absent,
}

impl Core {
    pub(super) fn new(parts: super::Parts) -> Self {
        let manifests = Cache::builder()
            .max_capacity(MANIFEST_CACHE_BYTES)
            .weigher(|_, content: &Arc<ManifestContent>| {
                u32::try_from(content.bytes.len() + 512).unwrap_or(u32::MAX)
            })
            .build();
        let missing = Cache::builder()
            .max_capacity(MOST_MISSING)
            .time_to_live(parts.settings.negative_ttl)
            .build();
        Self {
            missing,
            checked: Cache::new(MOST_CHECKED),
            checks: Coalesce::new(parts.tracker.clone()),
            settings: parts.settings,
            repositories: parts.repositories,
            store: parts.store,
            index: parts.index,
            capacity: parts.capacity,
            metrics: parts.metrics,
            clock: parts.clock,
            tracker: parts.tracker,
            flights: Flights::new(),
            manifests,
        }
    }

    pub(super) fn origin(&self, repository: &Repository, digest: &Digest) -> Origin {
        Origin {
            repository: repository.clone(),
            digest: digest.clone(),
            metrics: Arc::clone(&self.metrics),
        }
    }

    /// Counts and logs a failure of the volume, and goes on with `instead`: a pull does not fail with the disk.
    pub(super) fn storage_failed<T>(&self, error: &store::Error, instead: T) -> T {
        self.metrics.store_error(error.operation().as_str());
        tracing::warn!(%error, is_full = error.is_full(), "the volume failed, going on without it");
        if error.is_full() {
            self.capacity.nudge();
        }
        instead
    }

    /// Logs a failure of the index, and goes on with `instead`.
    pub(super) fn index_failed<T>(error: &meta::Error, instead: T) -> T {
        tracing::warn!(%error, "the index failed, going on without it");
        instead
    }

    /// What manifests say about the size of a blob, for upstreams that do not.
    pub(super) fn declared_size(&self, digest: &Digest) -> Option<u64> {
        self.index
            .declared_size(digest)
            .unwrap_or_else(|e| Self::index_failed(&e, None))
    }

    /// The time since a moment in milliseconds since the Unix epoch; `None` where 0 says that nobody knows, and for
    /// moments to come.
    pub(super) fn time_since(&self, moment_ms: u64) -> Option<Duration> {
        let is_known = moment_ms > 0;
        let elapsed_ms = self.clock.now_ms().checked_sub(moment_ms).filter(|_| is_known)?;
        Some(Duration::from_millis(elapsed_ms))
    }

    /// The time since bytes came from upstream.
    pub(super) fn age_of(&self, canonical: &Digest) -> Option<Duration> {
        let known = self
            .index
            .content(canonical)
            .unwrap_or_else(|e| Self::index_failed(&e, None));
        self.time_since(known?.added_ms)
    }

    /// Notes a use, which renews the life of what was used.
    pub(super) fn touch(&self, directory: &Directory, digest: &Digest) {
        self.index.touch(directory.as_str(), digest, self.clock.now_ms());
    }

    /// Looks for a blob on behalf of a repository. Bytes of unknown history are verified first; wrong ones are moved
    /// away and count as absent.
    pub(super) async fn find(self: &Arc<Self>, directory: &Directory, link: Link, digest: &Digest) -> Found {
        let (store, place, wanted) = (self.store.clone(), directory.clone(), digest.clone());
        let looked = blocking(move || look(&store, &place, &link, &wanted)).await;
        let found = looked.unwrap_or_else(|error| self.storage_failed(&error, Found::Absent));
        let is_right = match &found {
            Found::Linked(blob) | Found::Unlinked(blob) => self.is_right(blob).await,
            Found::Absent => true,
        };
        if is_right { found } else { Found::Absent }
    }

    async fn is_right(self: &Arc<Self>, blob: &StoredBlob) -> bool {
        let known = self
            .index
            .content(&blob.canonical)
            .unwrap_or_else(|e| Self::index_failed(&e, None));
        let now_ms = self.clock.now_ms();
        if known.is_some_and(|record| is_as_verified(&record, blob, now_ms)) {
            return true;
        }
        if self.checked.get(&blob.canonical) == Some((blob.size_bytes, blob.modified_ms)) {
            return true;
        }
        let (core, blob) = (Arc::clone(self), blob.clone());
        let digest = blob.canonical.clone();
        let (_, checked) = self.checks.run(&digest, move || core.check(blob));
        checked.await.unwrap_or(false)
    }

    async fn check(self: Arc<Self>, blob: StoredBlob) -> bool {
        let digest = blob.canonical.clone();
        let facts = (blob.size_bytes, blob.modified_ms);
        let store = self.store.clone();
        let checked = blocking(move || {
            let is_right = store.check(&blob)?;
            if !is_right {
                store.quarantine(&blob.canonical)?;
            }
            Ok(is_right)
        });
        match checked.await {
            Ok(true) => {
                self.checked.insert(digest.clone(), facts);
                let noted = self.index.record_verified(&digest, self.clock.now_ms());
                noted.unwrap_or_else(|e| Self::index_failed(&e, ()));
                true
            }
            Ok(false) => {
                tracing::error!(%digest, "wrong bytes on the volume, moved away; they will be fetched again");
                self.index
                    .forget(&digest)
                    .unwrap_or_else(|e| Self::index_failed(&e, ()));
                false
            }
            Err(error) => self.storage_failed(&error, false),
        }
    }

    /// Gives a stored blob to a repository.
    pub(super) async fn link_blob(&self, directory: &Directory, digest: &Digest, blob: &StoredBlob) {
        let link = Link::Layer(digest.clone());
        if let Err(error) = self.store.link(directory, &link, &blob.canonical).await {
            return self.storage_failed(&error, ());
        }
        let now_ms = self.clock.now_ms();
        let recorded = self
            .index
            .record_blob(directory.as_str(), &blob.canonical, blob.size_bytes, now_ms);
        let recorded = recorded.and_then(|()| self.index.record_alias(digest, &blob.canonical));
        recorded.unwrap_or_else(|e| Self::index_failed(&e, ()));
    }

    /// Takes the slot of a digest, so that the collector lets its bytes alone while they are linked; waits for a
    /// deletion under way. `None` while a fill has it, which keeps the collector away as well.
    pub(super) async fn guard(&self, digest: &Digest) -> Option<Slot<Digest, Arc<Fill>>> {
        loop {
            if let Some(slot) = self.flights.hold(digest) {
                return Some(slot);
            }
            self.flights.released(digest)?.wait().await;
        }
    }

    /// Stores a verified manifest and what it refers to; whether it is kept.
    pub(super) async fn keep_manifest(
        &self,
        directory: &Directory,
        content: &ManifestContent,
        facts: &Manifest,
    ) -> bool {
        let _slot = self.guard(&content.digest).await;
        let (store, digest, bytes) = (self.store.clone(), content.digest.clone(), content.bytes.clone());
        let committed = blocking(move || {
            let mut spool = store.spool(&digest)?;
            spool.append(&bytes)?;
            // The caller has verified the bytes, so a mismatch cannot come; it would only leave them unstored.
            spool
                .finish(&digest)
                .ok()
                .map(|verified| store.commit(verified))
                .transpose()
        });
        match committed.await {
            Ok(Some(blob)) => {
                self.link_manifest(directory, content, facts, &blob.canonical)
                    .await
            }
            Ok(None) => false,
            Err(error) => self.storage_failed(&error, false),
        }
    }

    /// Gives a stored manifest to a repository; whether it is kept.
    pub(super) async fn link_manifest(
        &self,
        directory: &Directory,
        content: &ManifestContent,
        facts: &Manifest,
        canonical: &Digest,
    ) -> bool {
        let link = Link::Revision(content.digest.clone());
        if let Err(error) = self.store.link(directory, &link, canonical).await {
            return self.storage_failed(&error, false);
        }
        let size_bytes = content.bytes.len() as u64;
        let now_ms = self.clock.now_ms();
        let recorded = self
            .index
            .record_manifest(directory.as_str(), canonical, size_bytes, facts, now_ms)
            .and_then(|()| self.index.record_alias(&content.digest, canonical));
        recorded.unwrap_or_else(|e| Self::index_failed(&e, ()));
        true
    }

    /// A manifest that this repository has here, from memory or from the volume.
    pub(super) async fn held_manifest(
        self: &Arc<Self>,
        directory: &Directory,
        digest: &Digest,
    ) -> Option<Arc<ManifestContent>> {
        let key = (directory.clone(), digest.clone());
        if let Some(content) = self.manifests.get(&key) {
            return Some(content);
        }
        let link = Link::Revision(digest.clone());
        let Found::Linked(blob) = self.find(directory, link, digest).await else {
            return None;
        };
        let content = self.load_manifest(digest, blob).await?;
        self.manifests.insert(key, Arc::clone(&content));
        Some(content)
    }

    /// Reads a stored manifest and how to serve it.
    pub(super) async fn load_manifest(
        &self,
        digest: &Digest,
        blob: StoredBlob,
    ) -> Option<Arc<ManifestContent>> {
        if blob.size_bytes > crate::oci::manifest::MAX_MANIFEST_BYTES as u64 {
            return None;
        }
        let canonical = blob.canonical.clone();
        let store = self.store.clone();
        let bytes = blocking(move || store.read_all(&blob)).await;
        let bytes = bytes.map_err(|e| self.storage_failed(&e, ())).ok()?;
        if Digest::of(Algorithm::Sha256, &bytes) != canonical {
            return None;
        }
        let recorded = self
            .index
            .content(&canonical)
            .unwrap_or_else(|e| Self::index_failed(&e, None));
        let received_ms = recorded.as_ref().map_or(0, |record| record.added_ms);
        let recorded = recorded.and_then(|record| record.media_type);
        let media_type = match recorded {
            Some(media_type) => media_type,
            None => Manifest::parse(&bytes, None).ok()?.media_type,
        };
        Some(Arc::new(ManifestContent {
            bytes: Bytes::from(bytes),
            media_type,
            digest: digest.clone(),
            received_ms,
        }))
    }
}

/// Whether bytes are those that were verified: of the same size, and not written since. A time to come says nothing.
fn is_as_verified(record: &ContentRecord, blob: &StoredBlob, now_ms: u64) -> bool {
    let is_written_since = (record.verified_ms + MODIFIED_SLACK_MS..=now_ms).contains(&blob.modified_ms);
    record.verified_ms > 0 && record.size_bytes == blob.size_bytes && !is_written_since
}

/// One lookup: the link, then the bytes.
fn look(store: &Store, directory: &Directory, link: &Link, digest: &Digest) -> Result<Found, store::Error> {
    if let Some(canonical) = store.linked(directory, link)? {
        return Ok(store.blob(&canonical)?.map_or(Found::Absent, Found::Linked));
    }
    if digest.algorithm() != Algorithm::Sha256 {
        return Ok(Found::Absent);
    }
    Ok(store.blob(digest)?.map_or(Found::Absent, Found::Unlinked))
}
