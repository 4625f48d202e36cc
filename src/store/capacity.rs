//! The bound on what the cache takes of the volume: how much is used, what the fills under way will add, and when the
//! collector has to make room. A fill reserves its size before it writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use super::Store;
use crate::config::SizeLimit;
use crate::meta::Index;

/// The collector makes room down to this share of the limit, so that it does not run for each fill.
const LOW_MARK_PERCENT: u64 = 95;

/// This share of the volume stays free whoever filled the rest, up to [`MOST_FREE_BYTES`].
const FREE_PERCENT: u64 = 2;
const MOST_FREE_BYTES: u64 = 1024 * 1024 * 1024;

/// The bound. Cheap to clone; clones share the reservations.
#[derive(Debug, Clone)]
pub struct Capacity {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Store,
    index: Index,
    limit: SizeLimit,
    reserved_bytes: AtomicU64,
    nudge: Notify,
}

/// Room for a fill; given back when dropped, after the bytes were recorded in the index or came to nothing.
#[derive(Debug)]
pub struct Reservation {
    capacity: Capacity,
    size_bytes: u64,
}

impl Capacity {
    /// Bounds `store`, whose content `index` knows.
    pub fn new(store: Store, index: Index, limit: SizeLimit) -> Self {
        let shared = Shared {
            store,
            index,
            limit,
            reserved_bytes: AtomicU64::new(0),
            nudge: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Reserves room for `size_bytes`. `None` when they cannot be stored: the fill passes through then.
    ///
    /// Where the bound would be passed, the collector is told to make room and the fill may go on, unless the bound is
    /// passed already: what is used exceeds it by no more than the fills under way.
    pub fn reserve(&self, size_bytes: u64) -> Option<Reservation> {
        let reservation = Reservation {
            capacity: self.clone(),
            size_bytes,
        };
        self.add(size_bytes, size_bytes).then_some(reservation)
    }

    /// Adds to what is reserved, for a fill of this size; whether it can be stored.
    fn add(&self, more_bytes: u64, size_bytes: u64) -> bool {
        let before = self
            .shared
            .reserved_bytes
            .fetch_add(more_bytes, Ordering::Relaxed);
        let reserved = before + more_bytes;
        let limit = self.limit_bytes();
        let used = self.used_bytes();
        if used.saturating_add(reserved) > limit {
            self.nudge();
        }
        // A volume whose free space cannot be asked for is not a reason to store nothing.
        let free = self
            .shared
            .store
            .space()
            .map_or(u64::MAX, |space| space.free_bytes);
        if more_bytes > free {
            self.nudge();
        }
        size_bytes <= limit && used <= limit && more_bytes <= free
    }

    /// Has the collector make room soon: the bound was reached, or the volume refused a write.
    pub fn nudge(&self) {
        self.shared.nudge.notify_one();
    }

    /// Waits for a [`Capacity::nudge`]. For the collector alone. Cancel safe.
    pub async fn nudged(&self) {
        self.shared.nudge.notified().await;
    }

    /// The bytes of all content on the volume.
    pub fn used_bytes(&self) -> u64 {
        self.shared.index.totals().map_or(0, |totals| totals.bytes)
    }

    /// The bytes that fills under way have reserved.
    pub fn reserved_bytes(&self) -> u64 {
        self.shared.reserved_bytes.load(Ordering::Relaxed)
    }

    /// The most bytes that content may take now: what the configuration says, and no more than the volume has room for
    /// beside what others have written there.
    pub fn limit_bytes(&self) -> u64 {
        match self.shared.limit {
            SizeLimit::Bytes(bytes) => bytes,
            SizeLimit::Percent(percent) => match self.shared.store.space() {
                Ok(space) => {
                    let kept_free = part(space.total_bytes, FREE_PERCENT).min(MOST_FREE_BYTES);
                    let room = self
                        .used_bytes()
                        .saturating_add(space.free_bytes)
                        .saturating_sub(kept_free);
                    part(space.total_bytes, u64::from(percent)).min(room)
                }
                Err(_) => u64::MAX,
            },
        }
    }

    /// How many bytes have to go: 0 below the bound, else down to the low mark.
    pub fn excess_bytes(&self) -> u64 {
        let limit = self.limit_bytes();
        let needed = self.used_bytes().saturating_add(self.reserved_bytes());
        if needed > limit {
            needed - part(limit, LOW_MARK_PERCENT)
        } else {
            0
        }
    }
}

fn part(of: u64, percent: u64) -> u64 {
    // The product of a volume's size and 100 fits, and where it does not, the precision is not missed.
    of.checked_mul(percent)
        .map_or(of / 100 * percent, |product| product / 100)
}

impl Reservation {
    /// Makes the reservation as large as what turned out to come, where the size was not known before; `false` when
    /// so much can never be stored.
    pub fn grow_to(&mut self, size_bytes: u64) -> bool {
        let more_bytes = size_bytes.saturating_sub(self.size_bytes);
        if more_bytes == 0 {
            return true;
        }
        let fits = self.capacity.add(more_bytes, size_bytes);
        self.size_bytes = size_bytes;
        fits
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.capacity
            .shared
            .reserved_bytes
            .fetch_sub(self.size_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity(limit: SizeLimit) -> (tempfile::TempDir, Capacity) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let index = Index::open(&folder.path().join("index"), 1 << 20).unwrap().0;
        (folder, Capacity::new(store, index, limit))
    }

    #[test]
    fn what_is_reserved_counts_until_it_is_dropped() {
        let (_folder, capacity) = capacity(SizeLimit::Bytes(100));
        let mut one = capacity.reserve(60).unwrap();
        assert_eq!(capacity.excess_bytes(), 0);
        let two = capacity.reserve(60).unwrap();
        assert_eq!(capacity.excess_bytes(), 25);
        assert!(one.grow_to(70) && !one.grow_to(101) && one.grow_to(101));
        assert_eq!(capacity.reserved_bytes(), 161);
        drop((one, two));
        assert_eq!((capacity.reserved_bytes(), capacity.excess_bytes()), (0, 0));
    }

    #[test]
    fn what_can_never_fit_is_refused() {
        let (_folder, bounded) = capacity(SizeLimit::Bytes(100));
        assert!(bounded.reserve(101).is_none());
        assert_eq!(bounded.reserved_bytes(), 0);
        let (_folder, shared) = capacity(SizeLimit::Percent(99));
        assert!(shared.limit_bytes() > 0);
        assert!(shared.reserve(u64::MAX / 2).is_none());
    }
}
