//! Eviction: room for what is pulled now, made from the images that were used least recently.

use super::metrics::Reason;
use super::{Collector, Error, life};
use crate::meta::{Link, Order};

/// Links looked at in one go.
const BATCH: usize = 32;

/// An image that was used within this time is being pulled, for all we know; where everything is younger than this, it
/// is the second time that decides.
const IN_USE_MS: [u64; 2] = [10_000, 500];

impl<V: Clone + Send + Sync + 'static> Collector<V> {
    /// Evicts whole images, least recently used first, until what is used and reserved is below the low mark, or nothing
    /// is left that may go. Returns the bytes freed.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails; the next pass goes on where this one stopped.
    pub async fn evict(&self, now_ms: u64) -> Result<u64, Error> {
        let mut freed_bytes = 0;
        if self.parts.capacity.excess_bytes() == 0 {
            return Ok(0);
        }
        freed_bytes += self.delete_doomed(Reason::Full).await?;
        for in_use_ms in IN_USE_MS {
            let target_bytes = self.parts.capacity.excess_bytes();
            let unused_since_ms = now_ms.saturating_sub(in_use_ms);
            freed_bytes += self.evict_until(target_bytes, unused_since_ms).await?;
        }
        Ok(freed_bytes)
    }

    /// Evicts what was not used since `unused_since_ms` until `target_bytes` are free. Returns the bytes freed.
    async fn evict_until(&self, target_bytes: u64, unused_since_ms: u64) -> Result<u64, Error> {
        let mut after = None;
        let mut evicted_bytes = 0;
        while evicted_bytes < target_bytes {
            let (batch, last) = self.index().oldest(Order::Use, after.as_ref(), BATCH)?;
            for link in batch {
                if link.record.last_use_ms > unused_since_ms {
                    return Ok(evicted_bytes);
                }
                evicted_bytes += self.evict_link(link).await?;
                if evicted_bytes >= target_bytes {
                    break;
                }
            }
            if last.is_none() {
                break;
            }
            after = last;
            tokio::task::yield_now().await;
        }
        Ok(evicted_bytes)
    }

    /// Evicts the image that an old link belongs to, unless part of it was used later: then the link moves up to that
    /// time, and the walk meets it again there. Returns the bytes freed.
    async fn evict_link(&self, link: Link) -> Result<u64, Error> {
        let index = self.index();
        // An earlier eviction of this walk may have taken it along.
        if link.record.is_pinned || index.link(&link.repository, &link.digest)?.is_none() {
            return Ok(0);
        }
        let own_ms = link.record.last_use_ms;
        let effective_ms = life::effective_ms(index, Order::Use, &link, u64::MAX)?;
        if effective_ms > own_ms {
            if effective_ms < u64::MAX {
                index.renew(&link.repository, &link.digest, Order::Use, effective_ms)?;
            }
            return Ok(0);
        }
        let top = life::top_of(index, link)?;
        let image = life::image_of(index, &top)?;
        let youngest_ms = image.iter().map(|member| member.record.last_use_ms).max();
        if youngest_ms.is_some_and(|youngest| youngest > own_ms) {
            index.renew(
                &top.repository,
                &top.digest,
                Order::Use,
                youngest_ms.unwrap_or(own_ms),
            )?;
            return Ok(0);
        }
        if top.record.is_pinned || self.is_being_pulled(&image)? {
            return Ok(0);
        }
        self.evict_image(&image).await
    }

    /// Whether a part of the image is on its way in; it is not linked before it is there.
    fn is_being_pulled(&self, image: &[Link]) -> Result<bool, Error> {
        for member in image {
            let is_filling = |digest| self.parts.flights.peek(digest).is_some();
            let edges = self.index().edges(&member.digest)?;
            if is_filling(&member.digest) || edges.iter().any(|edge| is_filling(&edge.digest)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn evict_image(&self, image: &[Link]) -> Result<u64, Error> {
        let mut freed_bytes = 0;
        for member in image {
            self.unlink(member, Reason::Full).await?;
        }
        // From the top down: a manifest that is there still would keep what it refers to.
        for member in image.iter().rev() {
            if let super::Deletion::Deleted(bytes) = self.delete(&member.digest, Reason::Full).await? {
                freed_bytes += bytes;
            }
        }
        if let Some(top) = image.last() {
            self.metrics().evicted();
            tracing::info!(repository = top.repository, digest = %top.digest, freed_bytes, "evicted an image");
        }
        Ok(freed_bytes)
    }
}
