//! What tags meant when upstream was last asked.

use super::index::Index;
use super::record::{StoredTag, TagRecord, decode, encode};
use super::{Error, key};
use crate::oci::{Digest, Tag};

impl Index {
    /// What `tag` of `repository` (its directory on the volume) is known to mean.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn tag(&self, repository: &str, tag: &Tag) -> Result<Option<TagRecord>, Error> {
        match self.trees()?.tags.get(key::tag(repository, tag.as_str()))? {
            Some(bytes) => decode_tag(&bytes).map(Some),
            None => Ok(None),
        }
    }

    /// Records what `tag` means.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn set_tag(&self, repository: &str, tag: &Tag, record: &TagRecord) -> Result<(), Error> {
        let stored = StoredTag {
            digest: key::digest(&record.digest),
            checked_at_ms: record.checked_at_ms,
        };
        let key = key::tag(repository, tag.as_str());
        self.trees()?.tags.insert(key, encode(&stored))?;
        Ok(())
    }

    /// Forgets `tag`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn remove_tag(&self, repository: &str, tag: &Tag) -> Result<(), Error> {
        self.trees()?.tags.remove(key::tag(repository, tag.as_str()))?;
        Ok(())
    }

    /// The tags of `repository` in order, with what they mean.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn tags(&self, repository: &str) -> Result<Vec<(Tag, TagRecord)>, Error> {
        let prefix = key::repository(repository);
        let mut tags = Vec::new();
        for entry in self.trees()?.tags.scan_prefix(&prefix) {
            let (key, record) = entry?;
            let name = key
                .get(prefix.len()..)
                .and_then(|rest| std::str::from_utf8(rest).ok());
            let tag = name
                .and_then(Tag::parse)
                .ok_or(Error::Damaged { table: "tags" })?;
            tags.push((tag, decode_tag(&record)?));
        }
        Ok(tags)
    }

    /// The tags of `repository` that mean `digest`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn tags_of(&self, repository: &str, digest: &Digest) -> Result<Vec<Tag>, Error> {
        let tags = self.tags(repository)?.into_iter();
        Ok(tags
            .filter(|(_, record)| &record.digest == digest)
            .map(|(tag, _)| tag)
            .collect())
    }
}

fn decode_tag(bytes: &[u8]) -> Result<TagRecord, Error> {
    let stored: StoredTag = decode("tags", bytes)?;
    let (digest, _) = key::split_digest(&stored.digest).ok_or(Error::Damaged { table: "tags" })?;
    Ok(TagRecord {
        digest,
        checked_at_ms: stored.checked_at_ms,
    })
}
