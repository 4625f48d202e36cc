//! Manifests on their way in: checked, stored as received, linked, tagged.

use std::sync::Arc;

use bytes::Bytes;

use super::{HostedRepository, PushError, canonical_of};
use crate::meta::TagRecord;
use crate::oci::manifest::Role;
use crate::oci::{Algorithm, Digest, Manifest, Reference, Tag, media_type};
use crate::registry::Registry;
use crate::registry::answer::ManifestContent;
use crate::registry::parts::Core;
use crate::store::layout::Directory;
use crate::store::{Link, blocking};

/// A manifest as a client pushes it.
#[derive(Debug)]
pub struct Push {
    /// Under which name.
    pub reference: Reference,
    /// Further tags.
    pub tags: Vec<Tag>,
    /// What the client says it is.
    pub content_type: Option<String>,
    /// The bytes.
    pub bytes: Bytes,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Its digest.
    pub digest: Digest,
    /// The manifest that it is about.
    pub subject: Option<Digest>,
}

impl Registry {
    /// Stores a manifest. What it refers to has to be there already, except its subject, the manifests of an index, and
    /// layers that are not to be distributed (distribution-spec, "Pushing Manifests").
    ///
    /// # Errors
    /// [`PushError`]; nothing can be pulled then that could not before.
    ///
    /// # Cancel safety
    /// Once it was checked, the rest is done.
    pub async fn push_manifest(
        &self,
        repository: &HostedRepository,
        push: Push,
    ) -> Result<Pushed, PushError> {
        let content_type = push.content_type.as_deref();
        let facts = Manifest::parse(&push.bytes, content_type)?;
        check_type(&facts, content_type)?;
        let digest = match &push.reference {
            Reference::Digest(expected) => {
                let actual = Digest::of(expected.algorithm(), &push.bytes);
                if actual != *expected {
                    return Err(PushError::DigestMismatch {
                        expected: expected.clone(),
                        actual,
                    });
                }
                actual
            }
            Reference::Tag(_) => Digest::of(Algorithm::Sha256, &push.bytes),
        };
        self.core.check_references(&repository.directory, &facts).await?;
        self.room().await?.check(push.bytes.len() as u64)?;
        let pushed = Pushed {
            digest: digest.clone(),
            subject: facts.subject().cloned(),
        };
        let content = ManifestContent {
            bytes: push.bytes,
            media_type: facts.media_type.clone(),
            digest,
            received_ms: self.core.clock.now_ms(),
        };
        let mut tags = push.tags;
        if let Reference::Tag(tag) = push.reference {
            tags.push(tag);
        }
        let (core, directory) = (Arc::clone(&self.core), repository.directory.clone());
        self.outlive(async move {
            core.take_manifest(&directory, &content, &facts).await?;
            for tag in &tags {
                core.set_hosted_tag(&directory, tag, &content.digest).await?;
            }
            Ok(())
        })
        .await?;
        Ok(pushed)
    }
}

impl Core {
    async fn check_references(&self, directory: &Directory, facts: &Manifest) -> Result<(), PushError> {
        let needed: Vec<Digest> = facts
            .edges
            .iter()
            .filter(|edge| matches!(edge.role, Role::Config | Role::Layer))
            .filter(|edge| !is_foreign(&edge.media_type))
            .map(|edge| edge.digest.clone())
            .collect();
        let (store, directory) = (self.store.clone(), directory.clone());
        let missing = blocking(move || {
            let mut missing = Vec::new();
            for digest in needed {
                let linked = store.linked(&directory, &Link::Layer(digest.clone()))?;
                let is_here = match linked {
                    Some(canonical) => store.blob(&canonical)?.is_some(),
                    None => false,
                };
                if !is_here && !missing.contains(&digest) {
                    missing.push(digest);
                }
            }
            Ok::<_, crate::store::Error>(missing)
        })
        .await?;
        if missing.is_empty() {
            Ok(())
        } else {
            Err(PushError::BlobsUnknown(missing))
        }
    }

    async fn take_manifest(
        &self,
        directory: &Directory,
        content: &ManifestContent,
        facts: &Manifest,
    ) -> Result<(), PushError> {
        let (store, digest, bytes) = (self.store.clone(), content.digest.clone(), content.bytes.clone());
        let canonical = canonical_of(&digest, &bytes);
        let slot = self.guard(&canonical).await;
        blocking(move || {
            let mut spool = store.spool(&digest)?;
            spool.append(&bytes)?;
            let verified = spool
                .finish(&digest)
                .map_err(|mismatch| PushError::DigestMismatch {
                    expected: mismatch.expected,
                    actual: mismatch.actual,
                })?;
            store.commit(verified)?;
            Ok::<_, PushError>(())
        })
        .await?;
        let link = Link::Revision(content.digest.clone());
        self.store.link(directory, &link, &canonical).await?;
        self.link_manifest(directory, content, facts, &canonical).await;
        drop(slot);
        Ok(())
    }

    async fn set_hosted_tag(
        &self,
        directory: &Directory,
        tag: &Tag,
        digest: &Digest,
    ) -> Result<(), PushError> {
        let history = Link::TagIndex(tag.clone(), digest.clone());
        self.store.link(directory, &history, digest).await?;
        self.store
            .link(directory, &Link::Tag(tag.clone()), digest)
            .await?;
        let record = TagRecord {
            digest: digest.clone(),
            checked_at_ms: self.clock.now_ms(),
        };
        let noted = self.index.set_tag(directory.as_str(), tag, &record);
        noted.unwrap_or_else(|e| Self::index_failed(&e, ()));
        Ok(())
    }
}

/// What a manifest says of itself must not contradict what the client says of it.
fn check_type(facts: &Manifest, content_type: Option<&str>) -> Result<(), PushError> {
    let told = media_type::essence(content_type.unwrap_or_default());
    if media_type::is_generic(told) || told == facts.media_type {
        return Ok(());
    }
    Err(PushError::ManifestInvalid(format!(
        "it calls itself `{}`, but came as `{told}`",
        facts.media_type
    )))
}

/// Layers that are fetched from elsewhere (image-spec, "Non-Distributable Layers").
fn is_foreign(media_type: &str) -> bool {
    media_type.contains(".nondistributable.") || media_type.contains(".foreign.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_says_nothing_contradicts_nothing() {
        let facts = Manifest::parse(br#"{"schemaVersion":2,"config":{}}"#, None).unwrap();
        let is_right = |told| check_type(&facts, told).is_ok();
        assert!(is_right(None) && is_right(Some("application/json")));
        assert!(is_right(Some(
            "application/vnd.oci.image.manifest.v1+json; charset=utf-8"
        )));
        assert!(!is_right(Some(media_type::OCI_INDEX)));
    }

    #[test]
    fn foreign_layers_are_known_by_their_type() {
        assert!(is_foreign(
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
        ));
        assert!(is_foreign(
            "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
        ));
        assert!(!is_foreign("application/vnd.oci.image.layer.v1.tar+gzip"));
    }
}
