//! Rebuild: the index made to agree with the files. Adds what is on the volume, takes out what is not, and removes what
//! nothing explains. Runs in the background while pulls are served; repeating it changes nothing.

use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;

use super::metrics::{GcMetrics, Reason};
use super::state_file::Expiries;
use super::{Collector, Error};
use crate::meta::{Index, TagRecord, Times};
use crate::oci::manifest::MAX_MANIFEST_BYTES;
use crate::oci::{Digest, Manifest, Tag};
use crate::store::layout::Directory;
use crate::store::{BlobFolder, Link, Store, blocking};

/// Leftover files younger than this may be in use.
pub(super) const LEFTOVER_AGE_MS: u64 = 10 * 60 * 1000;

/// Progress is told each so many links.
const PROGRESS_EVERY: u64 = 1000;

/// Blobs entered in one transaction: more are quicker, and let reads wait longer.
const TRANSACTION: usize = 16;

/// Links or contents checked in one go.
const BATCH: usize = 256;

impl<V: Clone + Send + Sync + 'static> Collector<V> {
    /// Makes the index agree with the files. Bytes written after `trusted_before_ms` count as never verified: after an
    /// unclean end, what was written shortly before is verified before it is served.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails; a later call begins anew.
    pub async fn rebuild(
        &self,
        trusted_before_ms: Option<u64>,
        token: &CancellationToken,
    ) -> Result<(), Error> {
        self.is_rebuilding.store(true, Ordering::Relaxed);
        self.metrics().rebuild_began();
        let result = self.reconcile(trusted_before_ms, token).await;
        self.metrics().rebuild_ended();
        self.is_rebuilding.store(false, Ordering::Relaxed);
        result
    }

    async fn reconcile(
        &self,
        trusted_before_ms: Option<u64>,
        token: &CancellationToken,
    ) -> Result<(), Error> {
        self.index().mark_complete(false)?;
        let now_ms = self.parts.clock.now_ms();
        let work = Scan {
            store: self.store().clone(),
            index: self.index().clone(),
            metrics: self.metrics().clone(),
            expiries: Expiries::load(self.store().root(), self.settings.ttl_ms()),
            now_ms,
            trusted_before_ms,
            upload_age_ms: self.settings.upload_age_ms(),
            token: token.clone(),
            links: 0,
        };
        let (links, scanned) = blocking(move || {
            let mut work = work;
            let done = work.run();
            (work.links, done)
        })
        .await;
        scanned?;
        if !token.is_cancelled() {
            self.forget_absent(token).await?;
            self.delete_orphans(now_ms, token).await?;
        }
        if !token.is_cancelled() {
            self.index().mark_complete(true)?;
            tracing::info!(links, "the index agrees with the files");
        }
        Ok(())
    }

    /// Forgets content whose bytes are gone, with the links that led to it.
    async fn forget_absent(&self, token: &CancellationToken) -> Result<(), Error> {
        let mut after = None;
        loop {
            let batch = self.index().contents(after.as_ref(), BATCH)?;
            after = batch.last().map(|(digest, _)| digest.clone());
            let is_last = batch.len() < BATCH;
            let store = self.store().clone();
            let absent = blocking(move || {
                let mut absent = Vec::new();
                for (digest, _) in batch {
                    if store.blob(&digest)?.is_none() {
                        absent.push(digest);
                    }
                }
                Ok::<_, crate::store::Error>(absent)
            });
            for digest in absent.await? {
                self.forget_damaged(&digest).await?;
            }
            if is_last || token.is_cancelled() {
                return Ok(());
            }
        }
    }

    /// Unlinks and forgets a digest whose bytes are missing or wrong, unless it is being fetched again right now.
    pub(super) async fn forget_damaged(&self, digest: &Digest) -> Result<(), Error> {
        let Some(slot) = self.parts.flights.hold(digest) else {
            return Ok(());
        };
        let (store, wanted) = (self.store().clone(), digest.clone());
        if blocking(move || store.blob(&wanted)).await?.is_some() {
            return Ok(());
        }
        for repository in self.index().holders(digest)? {
            if let Some(record) = self.index().link(&repository, digest)? {
                let link = crate::meta::Link {
                    repository,
                    digest: digest.clone(),
                    record,
                };
                self.unlink(&link, Reason::Damaged).await?;
            }
        }
        let (store, wanted) = (self.store().clone(), digest.clone());
        blocking(move || store.prune_blob(&wanted)).await;
        self.index().forget(digest)?;
        drop(slot);
        Ok(())
    }

    /// Deletes bytes that no link leads to, and leftovers beside them.
    async fn delete_orphans(&self, now_ms: u64, token: &CancellationToken) -> Result<(), Error> {
        let store = self.store().clone();
        for folder in blocking(move || store.blob_folders()).await? {
            if token.is_cancelled() {
                return Ok(());
            }
            self.delete_orphans_in(folder, now_ms).await?;
        }
        self.delete_doomed(Reason::Orphan).await?;
        Ok(())
    }

    async fn delete_orphans_in(&self, folder: BlobFolder, now_ms: u64) -> Result<(), Error> {
        let store = self.store().clone();
        let (digests, left) = blocking(move || {
            let left = store.sweep_blobs(&folder, now_ms.saturating_sub(LEFTOVER_AGE_MS));
            store.blobs_in(&folder).map(|digests| (digests, left))
        })
        .await?;
        self.metrics().swept(left.files);
        for digest in digests {
            if self.index().content(&digest)?.is_some() {
                continue;
            }
            // A fill holds its slot until its bytes are in the index: what is unknown with the slot held is an orphan.
            let Some(slot) = self.parts.flights.hold(&digest) else {
                continue;
            };
            if self.index().content(&digest)?.is_none() {
                let (store, wanted) = (self.store().clone(), digest.clone());
                let size = blocking(move || store.blob(&wanted))
                    .await?
                    .map_or(0, |b| b.size_bytes);
                self.store().delete_blob(&digest).await?;
                let (store, wanted) = (self.store().clone(), digest.clone());
                blocking(move || store.prune_blob(&wanted)).await;
                self.metrics().deleted(Reason::Orphan, size);
            }
            drop(slot);
        }
        Ok(())
    }
}

/// The walk over all repositories, on a thread of its own.
struct Scan {
    store: Store,
    index: Index,
    metrics: GcMetrics,
    expiries: Expiries,
    now_ms: u64,
    trusted_before_ms: Option<u64>,
    /// Uploads younger than this may be continued.
    upload_age_ms: u64,
    token: CancellationToken,
    links: u64,
}

impl Scan {
    fn run(&mut self) -> Result<(), Error> {
        for directory in self.store.repositories()? {
            if self.token.is_cancelled() {
                return Ok(());
            }
            self.repository(&directory)?;
        }
        self.drop_missing_links()
    }

    fn repository(&mut self, directory: &Directory) -> Result<(), Error> {
        let before_ms = self.now_ms.saturating_sub(LEFTOVER_AGE_MS);
        let uploads_before_ms = self.now_ms.saturating_sub(self.upload_age_ms);
        let left = self
            .store
            .sweep_repository(directory, before_ms, uploads_before_ms);
        self.metrics.swept(left.files);
        for digest in self.store.revisions(directory)? {
            self.revision(directory, &digest)?;
        }
        for digests in self.store.layers(directory)?.chunks(TRANSACTION) {
            self.layers(directory, digests)?;
        }
        for name in self.store.tag_folders(directory)? {
            self.tag(directory, &name)?;
        }
        Ok(())
    }

    fn revision(&mut self, directory: &Directory, digest: &Digest) -> Result<(), Error> {
        let link = Link::Revision(digest.clone());
        let Some((canonical, size_bytes, times)) = self.linked(directory, &link, digest)? else {
            return Ok(());
        };
        let bytes = match self.store.blob(&canonical)? {
            Some(blob) if size_bytes <= MAX_MANIFEST_BYTES as u64 => self.store.read_all(&blob)?,
            _ => Vec::new(),
        };
        let known_type = self
            .index
            .content(&canonical)?
            .and_then(|record| record.media_type);
        // Truncated or foreign bytes are no manifest: the link leads to nothing that could be served.
        match Manifest::parse(&bytes, known_type.as_deref()) {
            Ok(manifest) => {
                let name = directory.as_str();
                self.index
                    .restore_manifest(name, &canonical, size_bytes, &manifest, times)?;
            }
            Err(_) if known_type.is_some() => {
                let name = directory.as_str();
                self.index.restore_blob(name, &canonical, size_bytes, times)?;
            }
            Err(error) => {
                tracing::warn!(%directory, %digest, %error, "dropping a link to what is no manifest");
                self.store.remove_link(directory, &link)?;
            }
        }
        Ok(())
    }

    fn layers(&mut self, directory: &Directory, digests: &[Digest]) -> Result<(), Error> {
        let mut found = Vec::with_capacity(digests.len());
        for digest in digests {
            found.extend(self.linked(directory, &Link::Layer(digest.clone()), digest)?);
        }
        self.index.restore_blobs(directory.as_str(), &found)?;
        Ok(())
    }

    fn tag(&mut self, directory: &Directory, name: &str) -> Result<(), Error> {
        let Some(tag) = Tag::parse(name) else {
            return Ok(());
        };
        let link = Link::Tag(tag.clone());
        let target = self.store.linked(directory, &link)?;
        let is_held = match &target {
            Some(target) => {
                let canonical = self.index.canonical(target)?;
                self.index.link(directory.as_str(), &canonical)?.is_some()
            }
            None => false,
        };
        match target {
            Some(digest) if is_held => {
                if self.index.tag(directory.as_str(), &tag)?.is_none() {
                    let record = TagRecord {
                        digest,
                        checked_at_ms: 0,
                    };
                    self.index.set_tag(directory.as_str(), &tag, &record)?;
                }
            }
            _ => {
                self.store.remove_link(directory, &link)?;
                self.index.remove_tag(directory.as_str(), &tag)?;
            }
        }
        Ok(())
    }

    /// Follows a link to bytes; one that leads nowhere is removed. Counts it.
    fn linked(
        &mut self,
        directory: &Directory,
        link: &Link,
        digest: &Digest,
    ) -> Result<Option<(Digest, u64, Times)>, Error> {
        self.links += 1;
        if self.links.is_multiple_of(PROGRESS_EVERY) {
            self.metrics.rebuild_progress(self.links);
            tracing::info!(links = self.links, "reading the volume into the index");
        }
        let target = self.store.linked(directory, link)?;
        let blob = match &target {
            Some(canonical) => self.store.blob(canonical)?,
            None => None,
        };
        let (Some(canonical), Some(blob)) = (target, blob) else {
            self.store.remove_link(directory, link)?;
            return Ok(None);
        };
        self.index.record_alias(digest, &canonical)?;
        let times = self.times(directory, link, &canonical, digest)?;
        Ok(Some((canonical, blob.size_bytes, times)))
    }

    /// The times of something found: from the index, from distribution's table of expiries, else from the files.
    fn times(
        &self,
        directory: &Directory,
        link: &Link,
        canonical: &Digest,
        digest: &Digest,
    ) -> Result<Times, Error> {
        let file_ms = self.store.link_time(directory, link).unwrap_or(self.now_ms);
        let known_ms = self.expiries.last_use_ms(directory.as_str(), digest);
        let added_ms = known_ms.unwrap_or(file_ms).min(self.now_ms);
        let is_doubtful = match self.trusted_before_ms {
            Some(trusted) => self
                .store
                .blob_time(canonical)
                .is_none_or(|written| written >= trusted),
            None => false,
        };
        if is_doubtful {
            self.index.record_verified(canonical, 0)?;
        }
        Ok(Times {
            added_ms,
            last_use_ms: added_ms,
            verified_ms: 0,
        })
    }

    /// Takes links out of the index whose files are gone.
    fn drop_missing_links(&self) -> Result<(), Error> {
        let mut repository = None;
        while let Some(name) = self.index.next_repository(repository.as_deref())? {
            let mut after = None;
            while !self.token.is_cancelled() {
                let batch = self.index.links(&name, after.as_ref(), BATCH)?;
                for link in &batch {
                    if !self.has_file(link)? {
                        self.index.unlink(&link.repository, &link.digest)?;
                    }
                }
                after = batch.last().map(|link| link.digest.clone());
                if batch.len() < BATCH {
                    break;
                }
            }
            for (tag, _) in self.index.tags(&name)? {
                let is_there = match Directory::parse(&name) {
                    Some(directory) => self.store.linked(&directory, &Link::Tag(tag.clone()))?.is_some(),
                    None => false,
                };
                if !is_there {
                    self.index.remove_tag(&name, &tag)?;
                }
            }
            if self.token.is_cancelled() {
                return Ok(());
            }
            repository = Some(name);
        }
        Ok(())
    }

    fn has_file(&self, link: &crate::meta::Link) -> Result<bool, Error> {
        let Some(directory) = Directory::parse(&link.repository) else {
            return Ok(false);
        };
        let mut names = self.index.aliases(&link.digest)?;
        names.push(link.digest.clone());
        for name in names {
            for link in [Link::Layer(name.clone()), Link::Revision(name.clone())] {
                if self.store.linked(&directory, &link)?.is_some() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
