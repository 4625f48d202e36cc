//! Taking content away from a hosted repository. Files go first and the index after, so that what was cut is repeated;
//! bytes that nothing links to any more are the collector's.

use super::{HostedRepository, PushError};
use crate::oci::{Digest, Reference, Tag};
use crate::registry::parts::Core;
use crate::registry::{Error, Registry};
use crate::store::layout::Directory;
use crate::store::{Link, blocking};

impl Registry {
    /// Deletes a manifest with all its tags, or one tag and nothing else (distribution-spec, "Content Management").
    ///
    /// # Errors
    /// [`PushError::DeletesDisabled`], or [`Error::ManifestUnknown`].
    pub async fn delete_manifest(
        &self,
        repository: &HostedRepository,
        reference: &Reference,
    ) -> Result<(), PushError> {
        self.check_deletes()?;
        match reference {
            Reference::Tag(tag) => self.core.delete_tag(repository, tag).await,
            Reference::Digest(digest) => self.core.delete_revision(repository, digest).await,
        }
    }

    /// Deletes a blob from this repository; others that have it keep it.
    ///
    /// # Errors
    /// [`PushError::DeletesDisabled`], or [`Error::BlobUnknown`].
    pub async fn delete_blob(&self, repository: &HostedRepository, digest: &Digest) -> Result<(), PushError> {
        self.check_deletes()?;
        let core = &self.core;
        let link = Link::Layer(digest.clone());
        let canonical = core.linked(repository, link.clone()).await?;
        let canonical = canonical.ok_or_else(|| Error::BlobUnknown(digest.to_string()))?;
        let (store, directory) = (core.store.clone(), repository.directory.clone());
        blocking(move || store.remove_link(&directory, &link)).await?;
        core.forget_unlinked(&repository.directory, &canonical).await
    }

    fn check_deletes(&self) -> Result<(), PushError> {
        if self.hosted_settings()?.is_delete_enabled {
            Ok(())
        } else {
            Err(PushError::DeletesDisabled)
        }
    }
}

impl Core {
    async fn delete_tag(&self, repository: &HostedRepository, tag: &Tag) -> Result<(), PushError> {
        let linked = self.linked(repository, Link::Tag(tag.clone())).await?;
        if linked.is_none() {
            return Err(Error::ManifestUnknown(tag.to_string()).into());
        }
        let (store, directory, gone) = (self.store.clone(), repository.directory.clone(), tag.clone());
        blocking(move || store.remove_tag(&directory, &gone)).await?;
        self.forget_hosted_tag(&repository.directory, tag);
        Ok(())
    }

    async fn delete_revision(&self, repository: &HostedRepository, digest: &Digest) -> Result<(), PushError> {
        let directory = &repository.directory;
        let link = Link::Revision(digest.clone());
        let canonical = self.linked(repository, link).await?;
        let canonical = canonical.ok_or_else(|| Error::ManifestUnknown(digest.to_string()))?;
        let names = self.names_of(digest, &canonical);
        let (store, place, wanted) = (self.store.clone(), directory.clone(), names.clone());
        let tags = blocking(move || store.remove_links(&place, &wanted, true)).await?;
        for tag in &tags {
            self.forget_hosted_tag(directory, tag);
        }
        for name in names {
            self.manifests.invalidate(&(directory.clone(), name));
        }
        self.forget_unlinked(directory, &canonical).await
    }

    fn forget_hosted_tag(&self, directory: &Directory, tag: &Tag) {
        let removed = self.index.remove_tag(directory.as_str(), tag);
        removed.unwrap_or_else(|e| Self::index_failed(&e, ()));
    }

    /// Takes a digest out of the index unless the repository still has it under another name.
    async fn forget_unlinked(&self, directory: &Directory, canonical: &Digest) -> Result<(), PushError> {
        let names = self.names_of(canonical, canonical);
        let (store, place) = (self.store.clone(), directory.clone());
        let is_linked = blocking(move || {
            for name in names {
                for link in [Link::Layer(name.clone()), Link::Revision(name)] {
                    if store.linked(&place, &link)?.is_some() {
                        return Ok(true);
                    }
                }
            }
            Ok::<_, crate::store::Error>(false)
        });
        if !is_linked.await? {
            let unlinked = self.index.unlink(directory.as_str(), canonical);
            unlinked.map_err(|e| Error::Internal(e.to_string()))?;
        }
        Ok(())
    }

    /// All names of some bytes.
    fn names_of(&self, digest: &Digest, canonical: &Digest) -> Vec<Digest> {
        let aliases = self.index.aliases(canonical);
        let mut names = aliases.unwrap_or_else(|e| Self::index_failed(&e, Vec::new()));
        for name in [canonical, digest] {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}
