//! Age: the links' times, what renews them, and what becomes of them when the clock is set.

use super::index::Index;
use super::record::{LinkRecord, decode, encode};
use super::transaction::{Transaction, abort};
use super::walk::Order;
use super::{Error, key};
use crate::oci::Digest;

const LAST_SEEN_KEY: &[u8] = b"last_seen";

/// Links changed in one go by [`Index::shift_times`].
const BATCH: usize = 500;

impl Index {
    /// Makes a link at least as young as `to_ms`, because something that lives refers to it.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn renew(&self, repository: &str, digest: &Digest, order: Order, to_ms: u64) -> Result<(), Error> {
        let key = key::link(repository, digest);
        self.transact(|tx| {
            let Some(bytes) = tx.links.get(&key)? else {
                return Ok(());
            };
            let mut record: LinkRecord = decode("links", &bytes).map_err(abort)?;
            match order {
                Order::Use => record.last_use_ms = record.last_use_ms.max(to_ms),
                Order::Added => record.added_ms = record.added_ms.max(to_ms),
            }
            tx.replace_link(&key, record)
        })
    }

    /// When the clock was last looked at, in milliseconds since the Unix epoch; `None` in a new index.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn last_seen(&self) -> Result<Option<u64>, Error> {
        let found = self.trees()?.state.get(LAST_SEEN_KEY)?;
        found.map(|bytes| decode("state", &bytes)).transpose()
    }

    /// Notes that the clock showed `now_ms`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn set_last_seen(&self, now_ms: u64) -> Result<(), Error> {
        self.trees()?.state.insert(LAST_SEEN_KEY, encode(&now_ms))?;
        Ok(())
    }

    /// Changes the times of every link by `shift`, because the clock was set. Blocks for some seconds in a large index.
    ///
    /// # Errors
    /// [`Error`] when the index fails; what was changed by then stays changed.
    pub fn shift_times(&self, shift: impl Fn(u64) -> u64) -> Result<(), Error> {
        let trees = self.trees()?;
        let mut start = Vec::new();
        loop {
            let keys: Vec<_> = trees
                .links
                .range(start.clone()..)
                .keys()
                .take(BATCH)
                .collect::<Result<_, _>>()?;
            let Some(last) = keys.last() else {
                return Ok(());
            };
            start = key::join(last, &[0]);
            for key in &keys {
                self.transact(|tx| {
                    let Some(bytes) = tx.links.get(key)? else {
                        return Ok(());
                    };
                    let mut record: LinkRecord = decode("links", &bytes).map_err(abort)?;
                    record.last_use_ms = shift(record.last_use_ms);
                    record.added_ms = shift(record.added_ms);
                    tx.replace_link(key, record)
                })?;
            }
        }
    }
}

impl Transaction<'_> {
    /// Writes a link whose times have changed, and moves it to its places in the queues.
    fn replace_link(
        &self,
        key: &[u8],
        mut record: LinkRecord,
    ) -> sled::transaction::ConflictableTransactionResult<(), Error> {
        if let Some(bytes) = self.links.get(key)? {
            let old: LinkRecord = decode("links", &bytes).map_err(abort)?;
            self.by_use.remove(key::queued(old.queued_ms, key))?;
            self.by_added.remove(key::queued(old.added_ms, key))?;
        }
        record.queued_ms = record.last_use_ms;
        self.by_use.insert(key::queued(record.queued_ms, key), &[])?;
        self.by_added.insert(key::queued(record.added_ms, key), &[])?;
        self.links.insert(key, encode(&record))?;
        Ok(())
    }
}
