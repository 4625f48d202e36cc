//! Expiry: links whose age passed `proxy.ttl`, oldest first.

use super::metrics::Reason;
use super::{Collector, Error, life};
use crate::meta::Link;

/// Links looked at in one go.
const BATCH: usize = 64;

impl<V: Clone + Send + Sync + 'static> Collector<V> {
    /// Unlinks everything that is too old at `now_ms`, and deletes what nobody links to then. Returns the links removed.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails; the next pass goes on where this one stopped.
    pub async fn expire(&self, now_ms: u64) -> Result<u64, Error> {
        let mut removed = 0;
        if let Some(oldest_alive_ms) = self.oldest_alive_ms(now_ms) {
            let mut after = None;
            loop {
                let (batch, last) = self.index().oldest(self.settings.order, after.as_ref(), BATCH)?;
                let mut has_reached_the_living = false;
                for link in batch {
                    if self.settings.order.time_of(&link.record) >= oldest_alive_ms {
                        has_reached_the_living = true;
                        break;
                    }
                    removed += u64::from(self.expire_link(&link, oldest_alive_ms).await?);
                }
                if has_reached_the_living || last.is_none() {
                    break;
                }
                after = last;
                self.pace().await;
            }
        }
        self.delete_doomed(Reason::Expired).await?;
        Ok(removed)
    }

    /// Links with an earlier time than this are expired; `None` when nothing expires.
    fn oldest_alive_ms(&self, now_ms: u64) -> Option<u64> {
        Some((now_ms + 1).saturating_sub(self.settings.ttl_ms()?))
    }

    /// Unlinks an old link, unless something younger keeps it: then it is as young as that.
    async fn expire_link(&self, link: &Link, oldest_alive_ms: u64) -> Result<bool, Error> {
        let index = self.index();
        if self.is_left_over(link, oldest_alive_ms)? {
            self.unlink(link, Reason::Expired).await?;
            return Ok(true);
        }
        let effective_ms = life::effective_ms(index, self.settings.order, link, oldest_alive_ms)?;
        if effective_ms < oldest_alive_ms {
            self.unlink(link, Reason::Expired).await?;
            return Ok(true);
        }
        // What is pinned, or kept by something pinned, is looked at again one whole life later.
        let renewed_ms = if effective_ms == u64::MAX {
            oldest_alive_ms.saturating_add(self.settings.ttl_ms().unwrap_or(0))
        } else {
            effective_ms
        };
        index.renew(&link.repository, &link.digest, self.settings.order, renewed_ms)?;
        Ok(false)
    }

    /// Whether it is a blob that was pushed long ago and that no manifest of its repository has claimed, or does still.
    fn is_left_over(&self, link: &Link, oldest_alive_ms: u64) -> Result<bool, Error> {
        let index = self.index();
        let is_old_blob = index.is_owned(&link.repository)
            && !link.record.is_manifest
            && self.settings.order.time_of(&link.record) < oldest_alive_ms;
        Ok(is_old_blob && life::linked_parents(index, &link.repository, &link.digest)?.is_empty())
    }

    /// When the next link falls due, in milliseconds since the Unix epoch; `None` when nothing expires.
    pub(super) fn next_due_ms(&self) -> Result<Option<u64>, Error> {
        let Some(ttl_ms) = self.settings.ttl_ms() else {
            return Ok(None);
        };
        let (batch, _) = self.index().oldest(self.settings.order, None, 1)?;
        let first = batch.first();
        Ok(first.map(|link| self.settings.order.time_of(&link.record).saturating_add(ttl_ms)))
    }
}
