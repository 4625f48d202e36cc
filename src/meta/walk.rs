//! Walking the index in batches, for the collector: by age, by digest, by repository.

use super::index::Index;
use super::record::{ContentRecord, LinkRecord, decode};
use super::{Error, key};
use crate::oci::Digest;

/// A link with its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The repository's directory on the volume.
    pub repository: String,
    /// The digest.
    pub digest: Digest,
    /// Its times.
    pub record: LinkRecord,
}

/// What the age of a link is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Its last use.
    Use,
    /// When it came.
    Added,
}

impl Order {
    /// The time that a link's age is counted from, in milliseconds since the Unix epoch.
    pub fn time_of(self, record: &LinkRecord) -> u64 {
        match self {
            Self::Use => record.last_use_ms,
            Self::Added => record.added_ms,
        }
    }
}

impl Index {
    /// At most `limit` links, oldest first, beginning after the `after` given (the last of the batch before).
    ///
    /// The queue by use is brought up to date on the way: links used since they were queued move to their place. A
    /// batch can therefore be empty although there are more: only a `None` for the next place ends the walk.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn oldest(
        &self,
        order: Order,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<(Vec<Link>, Option<Place>), Error> {
        let trees = self.trees()?;
        let queue = match order {
            Order::Use => &trees.by_use,
            Order::Added => &trees.by_added,
        };
        // No queue key is the beginning of another, so one byte more is the next possible key.
        let start = after.map_or_else(Vec::new, |place| key::join(&place.0, &[0]));
        loop {
            let keys: Vec<_> = queue
                .range(start.clone()..)
                .keys()
                .take(limit)
                .collect::<Result<_, _>>()?;
            let last = keys.last().map(|key| Place(key.to_vec()));
            let mut batch = Vec::with_capacity(keys.len());
            let mut has_moved_within = false;
            for key in &keys {
                match self.queued_link(order, key)? {
                    Queued::Here(link) => batch.push(link),
                    Queued::Moved(to) => has_moved_within |= last.as_ref().is_some_and(|last| to <= last.0),
                    Queued::Gone => {}
                }
            }
            // What moved to a place inside this batch was not seen there: look again. Each look moves links onward,
            // never back, so this ends.
            if !has_moved_within {
                return Ok((batch, last));
            }
        }
    }

    /// The link behind a queue entry.
    fn queued_link(&self, order: Order, queued: &[u8]) -> Result<Queued, Error> {
        let damaged = || Error::Damaged { table: "by_use" };
        let (at_ms, link) = key::split_queued(queued).ok_or_else(damaged)?;
        let (repository, digest) = key::split_link(link).ok_or_else(damaged)?;
        let Some(record) = self.link(repository, &digest)? else {
            return Ok(Queued::Gone);
        };
        if order == Order::Use && record.last_use_ms > at_ms {
            self.renew(repository, &digest, Order::Use, record.last_use_ms)?;
            return Ok(Queued::Moved(key::queued(record.last_use_ms, link)));
        }
        Ok(Queued::Here(Link {
            repository: repository.to_owned(),
            digest,
            record,
        }))
    }

    /// At most `limit` digests with their records, in order, beginning after `after`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn contents(
        &self,
        after: Option<&Digest>,
        limit: usize,
    ) -> Result<Vec<(Digest, ContentRecord)>, Error> {
        // No digest is the beginning of another, so one byte more is the next possible key.
        let start = after.map_or_else(Vec::new, |digest| key::join(&key::digest(digest), &[0]));
        let entries = self.trees()?.contents.range(start..).take(limit);
        entries
            .map(|entry| {
                let (key, record) = entry?;
                let (digest, _) = key::split_digest(&key).ok_or(Error::Damaged { table: "contents" })?;
                Ok((digest, decode("contents", &record)?))
            })
            .collect()
    }

    /// At most `limit` links of `repository` in order of digest, beginning after `after`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn links(&self, repository: &str, after: Option<&Digest>, limit: usize) -> Result<Vec<Link>, Error> {
        let prefix = key::repository(repository);
        let start = after.map_or_else(
            || prefix.clone(),
            |digest| key::join(&key::link(repository, digest), &[0]),
        );
        let entries = self.trees()?.links.range(start..).take(limit);
        let mut links = Vec::new();
        for entry in entries {
            let (key, record) = entry?;
            if !key.starts_with(&prefix) {
                break;
            }
            let (_, digest) = key::split_link(&key).ok_or(Error::Damaged { table: "links" })?;
            let mut record: LinkRecord = decode("links", &record)?;
            record.is_pinned |= self.is_owned(repository);
            links.push(Link {
                repository: repository.to_owned(),
                digest,
                record,
            });
        }
        Ok(links)
    }

    /// The first repository after `after` that has a link.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn next_repository(&self, after: Option<&str>) -> Result<Option<String>, Error> {
        // The keys of a repository are its name and a zero byte; the first key past them has a one.
        let start = after.map_or_else(Vec::new, |name| key::join(name.as_bytes(), &[1]));
        match self.trees()?.links.range(start..).keys().next() {
            Some(key) => {
                let key = key?;
                let (name, _) = key::split_repository(&key).ok_or(Error::Damaged { table: "links" })?;
                Ok(Some(name.to_owned()))
            }
            None => Ok(None),
        }
    }

    /// At most `limit` digests that no repository links to, in order, beginning after `after`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn doomed(&self, after: Option<&Digest>, limit: usize) -> Result<Vec<Digest>, Error> {
        let start = after.map_or_else(Vec::new, |digest| key::join(&key::digest(digest), &[0]));
        let keys = self.trees()?.doomed.range(start..).keys().take(limit);
        keys.map(|key| {
            let (digest, _) = key::split_digest(&key?)
                .map(|(d, rest)| (d, rest.len()))
                .ok_or(Error::Damaged { table: "doomed" })?;
            Ok(digest)
        })
        .collect()
    }

    /// The repositories that link to `digest`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn holders(&self, digest: &Digest) -> Result<Vec<String>, Error> {
        let prefix = key::digest(digest);
        let mut holders = Vec::new();
        for key in self.trees()?.holders.scan_prefix(&prefix).keys() {
            let key = key?;
            let name = key
                .get(prefix.len()..)
                .and_then(|rest| std::str::from_utf8(rest).ok());
            holders.push(name.ok_or(Error::Damaged { table: "holders" })?.to_owned());
        }
        Ok(holders)
    }
}

/// Where a walk by age stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(Vec<u8>);

/// What a queue entry led to.
enum Queued {
    /// A link that is as old as the queue says.
    Here(Link),
    /// A link that was used since; now it stands in the queue at this key.
    Moved(Vec<u8>),
    /// No link any more.
    Gone,
}
