//! Repositories that larder owns. They are authoritative: what they do not have does not exist, no upstream is asked,
//! nothing expires and nothing is evicted. [`Registry::locate_hosted`] says whether a request means one; then it is
//! served from here and never gets to what pulls through.
//!
//! ```text
//! uploads    blobs on their way in: sessions that outlive the process, mounts
//! push       manifests and tags
//! delete     taking them away again
//! error      why a push was refused
//! ```

mod delete;
mod error;
mod push;
mod uploads;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

pub use error::PushError;
pub use push::{Push, Pushed};
pub use uploads::{ChunkRange, Incoming, IncomingError, Writers};

use super::answer::{Answer, How, ManifestContent, Page, PageRequest, Referrers};
use super::lists::{filtered, page_of};
use super::parts::{Core, Found};
use super::reader::Blob;
use super::{Error, Registry};
use crate::config::Hosted;
use crate::oci::{Algorithm, Digest, Name, Reference};
use crate::store::layout::Directory;
use crate::store::{Link, StoredBlob, blocking};

/// The most entries of one page of a referrers list.
const REFERRERS_PAGE: u64 = 1000;
/// Links looked at in one go when the content is counted.
const BATCH: usize = 1024;

/// Which repositories are hosted, and on what terms.
#[derive(Debug)]
pub(super) struct Hosting {
    settings: Hosted,
    /// First components of directories that belong to upstreams.
    reserved: Vec<String>,
}

impl Hosting {
    pub(super) fn new(settings: Hosted, reserved: Vec<String>) -> Self {
        Self { settings, reserved }
    }

    /// Whether the repository with this directory is hosted.
    pub(super) fn owns(&self, directory: &str) -> bool {
        let first = directory.split('/').next().unwrap_or_default();
        !self.reserved.iter().any(|host| host == first) && self.settings.owns(directory)
    }
}

/// A repository that larder owns. Cheap to clone.
#[derive(Clone)]
pub struct HostedRepository {
    name: Name,
    directory: Directory,
}

impl HostedRepository {
    pub(super) fn parse(name: &str) -> Result<Self, Error> {
        let name = Name::parse(name).map_err(|e| Error::NameInvalid(e.to_string()))?;
        let directory = Directory::new(None, &name);
        Ok(Self { name, directory })
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.name
    }
}

impl fmt::Debug for HostedRepository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.name, f)
    }
}

impl Registry {
    /// Finds the hosted repository that a request means; `None` when it means one that is pulled through.
    ///
    /// # Errors
    /// [`Error::NameInvalid`] for a hosted path that is no name.
    pub fn locate_hosted(
        &self,
        path: &str,
        namespace: Option<&str>,
    ) -> Result<Option<HostedRepository>, Error> {
        self.core.repositories.locate_hosted(path, namespace)
    }

    /// Opens a blob.
    ///
    /// # Errors
    /// [`Error::BlobUnknown`].
    pub async fn hosted_blob(&self, repository: &HostedRepository, digest: &Digest) -> Result<Blob, Error> {
        let stored = self.core.hosted_blob(repository, digest).await?;
        Ok(Blob::hosted(Arc::clone(&self.core), stored))
    }

    /// The size of a blob in bytes.
    ///
    /// # Errors
    /// [`Error::BlobUnknown`].
    pub async fn hosted_blob_size(
        &self,
        repository: &HostedRepository,
        digest: &Digest,
    ) -> Result<Answer<u64>, Error> {
        let stored = self.core.hosted_blob(repository, digest).await?;
        Ok(hit(stored.size_bytes))
    }

    /// A manifest by tag or digest.
    ///
    /// # Errors
    /// [`Error::ManifestUnknown`], or [`Error::Internal`] when the volume cannot be read.
    pub async fn hosted_manifest(
        &self,
        repository: &HostedRepository,
        reference: &Reference,
    ) -> Result<Answer<ManifestContent>, Error> {
        let unknown = || Error::ManifestUnknown(reference.to_string());
        let digest = match reference {
            Reference::Digest(digest) => Some(digest.clone()),
            Reference::Tag(tag) => self.core.linked(repository, Link::Tag(tag.clone())).await?,
        };
        let digest = digest.ok_or_else(unknown)?;
        // Memory may know a manifest that was deleted a moment ago; the link decides.
        let link = Link::Revision(digest.clone());
        let canonical = self.core.linked(repository, link).await?.ok_or_else(unknown)?;
        let held = self.core.held_manifest(&repository.directory, &digest).await;
        self.core.touch(&repository.directory, &canonical);
        let held = held.ok_or_else(unknown)?;
        Ok(hit(ManifestContent::clone(&held)))
    }

    /// A page of a repository's tags, in order.
    ///
    /// # Errors
    /// [`Error::NameUnknown`] when nothing was ever pushed, [`Error::Internal`] when the volume cannot be read.
    pub async fn hosted_tags(
        &self,
        repository: &HostedRepository,
        page: &PageRequest,
    ) -> Result<Page, Error> {
        let (store, directory) = (self.core.store.clone(), repository.directory.clone());
        let listed = blocking(move || {
            let is_known = store.has_repository(&directory)?;
            is_known.then(|| store.tags(&directory)).transpose()
        });
        let listed = listed.await.map_err(|e| self.core.unreadable(&e))?;
        let tags = listed.ok_or_else(|| Error::NameUnknown(repository.name.to_string()))?;
        let limit = page.limit.unwrap_or(self.core.settings.max_tags);
        Ok(page_of(tags, page.after.as_deref(), limit))
    }

    /// The manifests that are about `subject`, in order of digest, with where the next page begins.
    ///
    /// # Errors
    /// [`Error::Internal`] when the index cannot be read.
    pub fn hosted_referrers(
        &self,
        repository: &HostedRepository,
        subject: &Digest,
        artifact_types: &[String],
        page: &PageRequest,
    ) -> Result<(Referrers, Option<String>), Error> {
        let directory = repository.directory.as_str();
        let found = self.core.index.referrers(directory, subject);
        let found = found.map_err(|e| Error::Internal(e.to_string()))?;
        let mut referrers = filtered(found, artifact_types);
        referrers.manifests.sort_by(|a, b| a.digest.cmp(&b.digest));
        let digests = referrers.manifests.iter().map(|m| m.digest.clone()).collect();
        let limit = page.limit.unwrap_or(REFERRERS_PAGE).min(REFERRERS_PAGE);
        let page = page_of(digests, page.after.as_deref(), limit);
        referrers.manifests.retain(|m| page.entries.contains(&m.digest));
        Ok((referrers, page.next_after))
    }

    /// What hosted repositories may do and how much; there are some, because the caller has one.
    pub(super) fn hosted_settings(&self) -> Result<&Hosted, Error> {
        let hosting = self.core.repositories.hosting();
        let settings = hosting.map(|hosting| &hosting.settings);
        settings.ok_or_else(|| Error::Internal("no repository is hosted".to_owned()))
    }
}

impl Core {
    async fn hosted_blob(
        self: &Arc<Self>,
        repository: &HostedRepository,
        digest: &Digest,
    ) -> Result<StoredBlob, Error> {
        let link = Link::Layer(digest.clone());
        match self.find(&repository.directory, link, digest).await {
            Found::Linked(stored) => {
                // Also a question counts as a use: whoever asks is about to push a manifest that needs it.
                self.touch(&repository.directory, &stored.canonical);
                Ok(stored)
            }
            Found::Unlinked(_) | Found::Absent => Err(Error::BlobUnknown(digest.to_string())),
        }
    }

    async fn linked(&self, repository: &HostedRepository, link: Link) -> Result<Option<Digest>, Error> {
        let (store, directory) = (self.store.clone(), repository.directory.clone());
        let linked = blocking(move || store.linked(&directory, &link)).await;
        linked.map_err(|e| self.unreadable(&e))
    }

    /// Where nothing but the volume can answer, its failure is one of the request.
    fn unreadable(&self, error: &crate::store::Error) -> Error {
        self.storage_failed(error, Error::Internal(error.to_string()))
    }

    /// The bytes of everything that hosted repositories have, each digest once.
    fn hosted_bytes(&self, hosting: &Hosting) -> Result<u64, crate::meta::Error> {
        let mut seen = BTreeSet::new();
        let mut total_bytes = 0;
        let mut repository = None;
        while let Some(name) = self.index.next_repository(repository.as_deref())? {
            let mut after = None;
            while hosting.owns(&name) {
                let batch = self.index.links(&name, after.as_ref(), BATCH)?;
                let is_last = batch.len() < BATCH;
                after = batch.last().map(|link| link.digest.clone());
                for link in batch {
                    if let Some(content) = self.index.content(&link.digest)?
                        && seen.insert(link.digest)
                    {
                        total_bytes += content.size_bytes;
                    }
                }
                if is_last {
                    break;
                }
            }
            repository = Some(name);
        }
        Ok(total_bytes)
    }
}

fn hit<T>(value: T) -> Answer<T> {
    Answer {
        value,
        how: How::Hit,
        age: None,
    }
}

/// The digest under which bytes will lie.
fn canonical_of(digest: &Digest, bytes: &[u8]) -> Digest {
    match digest.algorithm() {
        Algorithm::Sha256 => digest.clone(),
        Algorithm::Sha512 => Digest::of(Algorithm::Sha256, bytes),
    }
}
