//! Manifests: by digest from here or fetched whole and verified; by tag as fresh as the configuration asks.

use std::sync::Arc;
use std::time::Duration;

use super::answer::{Answer, How, ManifestContent};
use super::parts::{Core, Found};
use super::repositories::Repository;
use super::{Error, Registry};
use crate::meta::TagRecord;
use crate::oci::manifest::ManifestError;
use crate::oci::{Algorithm, Digest, Manifest, Reference, Tag, media_type};
use crate::store::{Link, blocking};
use crate::upstream::{self, FetchedManifest};

/// How long a request waits for an upstream that failed a moment ago, where something is held.
const UNWELL_BUDGET: Duration = Duration::from_millis(100);

/// What a fetch ended with, shared by all who waited.
pub(super) type Fetched = Result<Taken, Error>;

/// A manifest that upstream gave, or confirmed.
#[derive(Debug, Clone)]
pub(super) struct Taken {
    content: Arc<ManifestContent>,
    /// Whether it is on the volume now.
    is_stored: bool,
}

impl Taken {
    fn held(content: Arc<ManifestContent>) -> Self {
        Self {
            content,
            is_stored: true,
        }
    }
}

impl Registry {
    /// A manifest, whole and verified. The same for GET and HEAD: what a HEAD by tag finds is stored too.
    ///
    /// # Errors
    /// [`Error::ManifestUnknown`], or why upstream could not be asked while nothing is held.
    ///
    /// # Cancel safety
    /// A fetch that was begun goes on.
    pub async fn manifest(
        &self,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Answer<ManifestContent>, Error> {
        let answer = match reference {
            Reference::Digest(digest) => self.by_digest(repository, digest).await?,
            Reference::Tag(tag) => self.by_tag(repository, tag).await?,
        };
        self.core.touch(repository.directory(), &canonical(&answer.value));
        Ok(Answer {
            value: ManifestContent::clone(&answer.value),
            how: answer.how,
            age: answer.age,
        })
    }

    async fn by_digest(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<Answer<Arc<ManifestContent>>, Error> {
        if let Some(content) = self.core.held_manifest(repository.directory(), digest).await {
            let age = self.core.time_since(content.received_ms);
            return Ok(Answer {
                value: content,
                how: How::Hit,
                age,
            });
        }
        let reference = Reference::Digest(digest.clone());
        let key = (repository.directory().clone(), reference.clone());
        self.refuse_if_missing(repository, &reference)?;
        let (core, place, wanted) = (Arc::clone(&self.core), repository.clone(), digest.clone());
        let (is_collapsed, fetch) = self.manifest_fetches.run(&key, move || async move {
            let fetched = core.fetch_by_digest(&place, &wanted).await;
            core.note_missing(&place, &Reference::Digest(wanted), &fetched);
            fetched
        });
        let taken = fetch
            .await
            .unwrap_or_else(|| Err(Error::Internal("the fetch was lost".to_owned())))?;
        Ok(Answer {
            value: taken.content,
            how: How::Miss {
                is_collapsed,
                is_stored: taken.is_stored,
            },
            age: None,
        })
    }

    async fn by_tag(
        &self,
        repository: &Repository,
        tag: &Tag,
    ) -> Result<Answer<Arc<ManifestContent>>, Error> {
        let known = self.core.known_tag(repository, tag).await;
        let age = known
            .as_ref()
            .and_then(|known| self.core.time_since(known.checked_at_ms));
        let held = match &known {
            Some(known) => {
                self.core
                    .held_manifest(repository.directory(), &known.digest)
                    .await
            }
            None => None,
        };
        if let (Some(content), Some(age)) = (&held, age)
            && age < self.core.settings.tag_ttl
        {
            return Ok(Answer {
                value: Arc::clone(content),
                how: How::Hit,
                age: Some(age),
            });
        }
        let reference = Reference::Tag(tag.clone());
        self.refuse_if_missing(repository, &reference)?;
        let key = (repository.directory().clone(), reference);
        let (core, place, wanted) = (Arc::clone(&self.core), repository.clone(), tag.clone());
        let (is_collapsed, question) =
            self.manifest_fetches.run(
                &key,
                move || async move { core.revalidate(&place, &wanted).await },
            );
        let result = match &held {
            Some(_) => tokio::time::timeout(self.budget(repository), question).await.ok(),
            None => Some(question.await),
        };
        let failure = match result {
            Some(Some(Ok(Taken { content, is_stored }))) => {
                let is_same = known.is_some_and(|known| known.digest == content.digest) && held.is_some();
                let how = if is_same {
                    How::Revalidated { is_collapsed }
                } else {
                    How::Miss {
                        is_collapsed,
                        is_stored,
                    }
                };
                return Ok(Answer {
                    value: content,
                    how,
                    age: None,
                });
            }
            Some(Some(Err(error))) => error,
            Some(None) => Error::Internal("the question was lost".to_owned()),
            None => {
                repository.entry().note(false);
                Error::TooSlow(format!(
                    "`{}` has not confirmed the tag yet",
                    repository.upstream_host()
                ))
            }
        };
        match held {
            Some(content) if failure.leaves_what_is_held() => {
                self.core.metrics.stale.inc();
                Ok(Answer {
                    value: content,
                    how: How::Stale(failure.to_string()),
                    age,
                })
            }
            _ => Err(failure),
        }
    }

    fn budget(&self, repository: &Repository) -> Duration {
        let budget = self.core.settings.stale_budget;
        if repository.entry().is_unwell() {
            budget.min(UNWELL_BUDGET)
        } else {
            budget
        }
    }

    /// Believes an upstream that said "not found" a moment ago.
    fn refuse_if_missing(&self, repository: &Repository, reference: &Reference) -> Result<(), Error> {
        let key = (repository.directory().clone(), reference.clone());
        if self.core.missing.contains_key(&key) {
            return Err(Error::ManifestUnknown(reference.to_string()));
        }
        Ok(())
    }
}

impl Core {
    fn note_missing(&self, repository: &Repository, reference: &Reference, fetched: &Fetched) {
        if !self.settings.negative_ttl.is_zero() && matches!(fetched, Err(Error::ManifestUnknown(_))) {
            self.missing
                .insert((repository.directory().clone(), reference.clone()), ());
        }
    }

    /// Fetches by digest, unless the bytes are here under another name that upstream lets everyone have.
    async fn fetch_by_digest(self: &Arc<Self>, repository: &Repository, digest: &Digest) -> Fetched {
        if self.repositories.are_public()
            && let Some(content) = self.adopt(repository, digest).await
        {
            return Ok(Taken::held(content));
        }
        let reference = Reference::Digest(digest.clone());
        let fetched = repository
            .upstream()
            .get_manifest(repository.remote_name(), &reference)
            .await;
        let fetched = fetched.map_err(|e| manifest_error(&e, &reference))?;
        self.count_pulled(&fetched);
        let actual = Digest::of(digest.algorithm(), &fetched.bytes);
        if actual != *digest {
            tracing::error!(?repository, %digest, %actual, "upstream sent a wrong manifest, nothing stored");
            return Err(Error::BadUpstream(format!(
                "its manifest does not match `{digest}`"
            )));
        }
        self.accept(repository, fetched, actual).await
    }

    /// Links a manifest that another repository brought here.
    async fn adopt(
        self: &Arc<Self>,
        repository: &Repository,
        digest: &Digest,
    ) -> Option<Arc<ManifestContent>> {
        let link = Link::Revision(digest.clone());
        let found = self.find(repository.directory(), link, digest).await;
        let (Found::Unlinked(blob) | Found::Linked(blob)) = found else {
            return None;
        };
        let is_manifest = self
            .index
            .content(digest)
            .ok()
            .flatten()
            .is_some_and(|record| record.is_manifest);
        if !is_manifest {
            return None;
        }
        let canonical = blob.canonical.clone();
        let _slot = self.guard(&canonical).await;
        let content = self.load_manifest(digest, blob).await?;
        let facts = Manifest::parse(&content.bytes, Some(&content.media_type)).ok()?;
        self.link_manifest(repository.directory(), &content, &facts, &canonical)
            .await;
        Some(content)
    }

    /// Takes verified bytes in.
    async fn accept(
        self: &Arc<Self>,
        repository: &Repository,
        fetched: FetchedManifest,
        digest: Digest,
    ) -> Fetched {
        let content_type = fetched.content_type.as_deref();
        let facts = match Manifest::parse(&fetched.bytes, content_type) {
            Ok(facts) => facts,
            // The digest vouches for the bytes, whatever they are; they refer to nothing that larder understands.
            Err(ManifestError::NotJson(_)) if content_type.is_some_and(|t| !media_type::is_generic(t)) => {
                opaque(content_type.unwrap_or_default())
            }
            Err(error) => return Err(Error::BadUpstream(error.to_string())),
        };
        let content = Arc::new(ManifestContent {
            bytes: fetched.bytes,
            media_type: facts.media_type.clone(),
            digest,
            received_ms: self.clock.now_ms(),
        });
        let is_stored = self.keep_manifest(repository.directory(), &content, &facts).await;
        if is_stored {
            let key = (repository.directory().clone(), content.digest.clone());
            self.manifests.insert(key, Arc::clone(&content));
        }
        Ok(Taken { content, is_stored })
    }

    /// Asks upstream what a tag means now, and has the manifest here afterwards.
    async fn revalidate(self: &Arc<Self>, repository: &Repository, tag: &Tag) -> Fetched {
        let resolved = self.resolve(repository, tag).await;
        repository
            .entry()
            .note(!resolved.as_ref().is_err_and(Error::is_outage));
        self.note_missing(repository, &Reference::Tag(tag.clone()), &resolved);
        match &resolved {
            Ok(taken) => self.note_tag(repository, tag, &taken.content.digest).await,
            Err(Error::ManifestUnknown(_)) => self.forget_tag(repository, tag).await,
            Err(_) => {}
        }
        resolved
    }

    async fn resolve(self: &Arc<Self>, repository: &Repository, tag: &Tag) -> Fetched {
        let reference = Reference::Tag(tag.clone());
        let head = repository
            .upstream()
            .head_manifest(repository.remote_name(), &reference)
            .await;
        let digest = match head {
            Ok(head) => head.digest,
            Err(upstream::Error::HeadRefused) => None,
            Err(error) => return Err(manifest_error(&error, &reference)),
        };
        let Some(digest) = digest else {
            return self.fetch_by_tag(repository, &reference).await;
        };
        if let Some(content) = self.held_manifest(repository.directory(), &digest).await {
            return Ok(Taken::held(content));
        }
        match self.fetch_by_digest(repository, &digest).await {
            // Some registries know a manifest by its tag alone (containerd#2840).
            Err(Error::ManifestUnknown(_)) => self.fetch_by_tag(repository, &reference).await,
            other => other,
        }
    }

    async fn fetch_by_tag(self: &Arc<Self>, repository: &Repository, reference: &Reference) -> Fetched {
        let fetched = repository
            .upstream()
            .get_manifest(repository.remote_name(), reference)
            .await;
        let fetched = fetched.map_err(|e| manifest_error(&e, reference))?;
        self.count_pulled(&fetched);
        let told = fetched
            .digest_header
            .as_deref()
            .and_then(|text| Digest::parse(text).ok());
        let algorithm = told.as_ref().map_or(Algorithm::Sha256, Digest::algorithm);
        let actual = Digest::of(algorithm, &fetched.bytes);
        if told.is_some_and(|told| told != actual) {
            return Err(Error::BadUpstream(format!(
                "its manifest of `{reference}` does not match its digest header"
            )));
        }
        // Nothing else vouches for these bytes: they have to look like a manifest.
        Manifest::parse(&fetched.bytes, fetched.content_type.as_deref())
            .map_err(|e| Error::BadUpstream(e.to_string()))?;
        self.accept(repository, fetched, actual).await
    }

    fn count_pulled(&self, fetched: &FetchedManifest) {
        self.metrics
            .pulled(crate::metrics::Kind::Manifest, fetched.bytes.len() as u64);
    }

    /// What a tag meant when upstream last said so; of unknown age where only the volume tells.
    async fn known_tag(&self, repository: &Repository, tag: &Tag) -> Option<TagRecord> {
        let recorded = self.index.tag(repository.directory().as_str(), tag);
        if let Some(record) = recorded.unwrap_or_else(|e| Self::index_failed(&e, None)) {
            return Some(record);
        }
        let (store, directory, link) = (
            self.store.clone(),
            repository.directory().clone(),
            Link::Tag(tag.clone()),
        );
        let linked = blocking(move || store.linked(&directory, &link)).await;
        let digest = linked.unwrap_or_else(|e| self.storage_failed(&e, None))?;
        Some(TagRecord {
            digest,
            checked_at_ms: 0,
        })
    }

    async fn note_tag(&self, repository: &Repository, tag: &Tag, digest: &Digest) {
        let directory = repository.directory();
        for link in [
            Link::TagIndex(tag.clone(), digest.clone()),
            Link::Tag(tag.clone()),
        ] {
            let linked = self.store.link(directory, &link, digest).await;
            linked.unwrap_or_else(|e| self.storage_failed(&e, ()));
        }
        let record = TagRecord {
            digest: digest.clone(),
            checked_at_ms: self.clock.now_ms(),
        };
        let noted = self.index.set_tag(directory.as_str(), tag, &record);
        noted.unwrap_or_else(|e| Self::index_failed(&e, ()));
    }

    async fn forget_tag(&self, repository: &Repository, tag: &Tag) {
        let directory = repository.directory();
        let removed = self.index.remove_tag(directory.as_str(), tag);
        removed.map_or_else(|e| Self::index_failed(&e, ()), drop);
        let unlinked = self.store.unlink(directory, &Link::Tag(tag.clone())).await;
        unlinked.unwrap_or_else(|e| self.storage_failed(&e, ()));
    }
}

fn canonical(content: &ManifestContent) -> Digest {
    match content.digest.algorithm() {
        Algorithm::Sha256 => content.digest.clone(),
        Algorithm::Sha512 => Digest::of(Algorithm::Sha256, &content.bytes),
    }
}

fn opaque(content_type: &str) -> Manifest {
    Manifest {
        media_type: media_type::essence(content_type).to_owned(),
        artifact_type: None,
        annotations: None,
        edges: Vec::new(),
    }
}

fn manifest_error(error: &upstream::Error, reference: &Reference) -> Error {
    Error::of_upstream(error, || Error::ManifestUnknown(reference.to_string()))
}
