//! Discovery: tags, the catalog, referrers.

use serde::Deserialize;

use super::answer::{Answer, How, Page, PageRequest, Referrers};
use super::parts::Core;
use super::repositories::Repository;
use super::{Error, Registry};
use crate::oci::{Descriptor, Digest, Reference, Tag};
use crate::store::blocking;
use crate::upstream;

impl Registry {
    /// A page of a repository's tags, as upstream lists them; while upstream cannot be asked, those known here.
    ///
    /// # Errors
    /// [`Error::NameUnknown`], or why upstream could not be asked while no tag is known.
    pub async fn tags(&self, repository: &Repository, page: &PageRequest) -> Result<Answer<Page>, Error> {
        let limit = page.limit.unwrap_or(self.core.settings.max_tags);
        let listed = repository
            .upstream()
            .list_tags(repository.remote_name(), Some(limit), page.after.as_deref())
            .await;
        let failure = match listed {
            Ok(listed) => {
                let value = Page {
                    entries: listed.tags,
                    next_after: listed.next,
                };
                return Ok(Answer {
                    value,
                    how: How::Miss {
                        is_collapsed: false,
                        is_stored: false,
                    },
                    age: None,
                });
            }
            Err(error) => Error::of_upstream(&error, || Error::NameUnknown(repository.name().to_string())),
        };
        let (store, directory) = (self.core.store.clone(), repository.directory().clone());
        let held = blocking(move || store.tags(&directory)).await;
        let held = held.unwrap_or_else(|e| self.core.storage_failed(&e, Vec::new()));
        if held.is_empty() || !failure.leaves_what_is_held() {
            return Err(failure);
        }
        self.core.metrics.stale.inc();
        let value = page_of(held, page.after.as_deref(), limit);
        Ok(Answer {
            value,
            how: How::Stale(failure.to_string()),
            age: None,
        })
    }

    /// A page of the repositories that have something here.
    ///
    /// # Errors
    /// [`Error::Internal`] when the volume cannot be listed.
    pub async fn catalog(&self, page: &PageRequest) -> Result<Page, Error> {
        let store = self.core.store.clone();
        let listed = blocking(move || store.repositories()).await;
        let listed = listed.map_err(|e| self.core.storage_failed(&e, Error::Internal(e.to_string())))?;
        let names = listed
            .iter()
            .map(|directory| directory.as_str().to_owned())
            .collect();
        Ok(page_of(
            names,
            page.after.as_deref(),
            page.limit.unwrap_or(u64::MAX),
        ))
    }

    /// The manifests that are about `subject`: from upstream's API, else from the referrers tag and those known here; while
    /// upstream cannot be asked, those known here.
    ///
    /// # Errors
    /// Why upstream could not be asked while nothing is known here.
    pub async fn referrers(
        &self,
        repository: &Repository,
        subject: &Digest,
        artifact_types: &[String],
    ) -> Result<Answer<Referrers>, Error> {
        let asked = repository
            .upstream()
            .referrers(repository.remote_name(), subject, artifact_types)
            .await;
        let result = match asked {
            Ok(manifests) => Ok(manifests),
            Err(upstream::Error::ReferrersUnsupported | upstream::Error::NotFound) => {
                self.without_api(repository, subject).await
            }
            Err(error) => Err(Error::of_upstream(&error, || {
                Error::NameUnknown(repository.name().to_string())
            })),
        };
        match result {
            Ok(manifests) => {
                let how = How::Miss {
                    is_collapsed: false,
                    is_stored: false,
                };
                Ok(Answer {
                    value: filtered(manifests, artifact_types),
                    how,
                    age: None,
                })
            }
            Err(failure) => {
                let held = self.known_referrers(repository, subject);
                // An empty list would say that nothing refers to it, which nobody knows now.
                if held.is_empty() || !failure.leaves_what_is_held() {
                    return Err(failure);
                }
                self.core.metrics.stale.inc();
                let how = How::Stale(failure.to_string());
                Ok(Answer {
                    value: filtered(held, artifact_types),
                    how,
                    age: None,
                })
            }
        }
    }

    /// What refers to `subject` at an upstream without the API. Not all clients keep the tag there, and a manifest that is here
    /// says itself what it is about.
    async fn without_api(&self, repository: &Repository, subject: &Digest) -> Result<Vec<Descriptor>, Error> {
        let mut listed = self.by_schema(repository, subject).await?;
        let mut known = self.known_referrers(repository, subject);
        known.retain(|own| listed.iter().all(|entry| entry.digest != own.digest));
        listed.append(&mut known);
        Ok(listed)
    }

    fn known_referrers(&self, repository: &Repository, subject: &Digest) -> Vec<Descriptor> {
        let directory = repository.directory().as_str();
        let known = self.core.index.referrers(directory, subject);
        known.unwrap_or_else(|e| Core::index_failed(&e, Vec::new()))
    }

    /// The list that clients keep under a tag where the API is missing (distribution-spec, "Referrers Tag Schema").
    async fn by_schema(&self, repository: &Repository, subject: &Digest) -> Result<Vec<Descriptor>, Error> {
        let tag = Reference::Tag(Tag::referrers_of(subject));
        match self.manifest(repository, &tag).await {
            Ok(found) => Ok(index_entries(&found.value.bytes)),
            Err(Error::ManifestUnknown(_) | Error::NameUnknown(_)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

fn index_entries(bytes: &[u8]) -> Vec<Descriptor> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Index {
        manifests: Vec<Descriptor>,
    }
    serde_json::from_slice::<Index>(bytes)
        .unwrap_or_default()
        .manifests
}

pub(super) fn filtered(mut manifests: Vec<Descriptor>, artifact_types: &[String]) -> Referrers {
    let is_filtered = !artifact_types.is_empty();
    if is_filtered {
        manifests.retain(|m| {
            m.artifact_type
                .as_ref()
                .is_some_and(|own| artifact_types.contains(own))
        });
    }
    Referrers {
        manifests,
        is_filtered,
    }
}

/// The entries after `after`, at most `limit` of them; `entries` are in order.
pub(super) fn page_of(mut entries: Vec<String>, after: Option<&str>, limit: u64) -> Page {
    if let Some(after) = after {
        entries.retain(|entry| entry.as_str() > after);
    }
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_cut = entries.len() > limit;
    entries.truncate(limit);
    let next_after = if is_cut { entries.last().cloned() } else { None };
    Page { entries, next_after }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(page: &Page) -> Vec<&str> {
        page.entries.iter().map(String::as_str).collect()
    }

    #[test]
    fn pages_follow_each_other_without_gaps() {
        let all: Vec<String> = ["a", "b", "c"].map(str::to_owned).to_vec();
        let first = page_of(all.clone(), None, 2);
        assert_eq!(
            (entries(&first), first.next_after.as_deref()),
            (vec!["a", "b"], Some("b"))
        );
        let second = page_of(all.clone(), Some("b"), 2);
        assert_eq!(
            (entries(&second), second.next_after.as_deref()),
            (vec!["c"], None)
        );
        assert_eq!(page_of(all, Some("aa"), 9).entries, ["b", "c"]);
    }
}
