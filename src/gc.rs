//! What leaves the volume, and when. Knows no HTTP and no upstream.
//!
//! Content goes in four steps: a link *expires* (its age, counted with everything that refers to it, passed `proxy.ttl`)
//! or its image is *evicted* (the volume is at its bound); it is *unlinked*, files first, index after; a digest without
//! links is *doomed*; its bytes are *deleted* while its flight slot is held. Each step can be cut anywhere and repeated:
//! the index changes after the files, so that what was cut is found again by the next pass.
//!
//! The clock: age is counted in wall time, and the collector compares wall time with elapsed time. What the clock was
//! set forward by, and a stop of more than 30 days, does not count as age: all times are moved along.
//! Times from the future, left when the clock was set back, are taken back to now.

mod delete;
mod evict;
mod expire;
mod life;
mod metrics;
mod rebuild;
mod schedule;
mod scrub;
mod state_file;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error as ThisError;

use crate::clock::Clock;
use crate::config::{Config, Renew};
use crate::flight::Flights;
use crate::meta::{self, Index, Order};
use crate::oci::Digest;
use crate::store::layout::Directory;
use crate::store::{self, Capacity, Store};

pub use delete::Deletion;
pub use metrics::GcMetrics;
pub use scrub::Verdict;

/// What the collector is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// How long a link lives; `None` for as long as there is room.
    pub ttl: Option<Duration>,
    /// What its age is counted from.
    pub order: Order,
    /// The longest time between two passes.
    pub interval: Duration,
    /// The time between two verifications of the same bytes; `None` for none.
    pub scrub_interval: Option<Duration>,
    /// The most that verification reads in a second, in bytes.
    pub scrub_rate_bytes: u64,
    /// How long an upload may rest; `None` where nothing is uploaded.
    pub upload_expiry: Option<Duration>,
}

impl Settings {
    /// What the configuration says.
    pub fn from_config(config: &Config) -> Self {
        Self {
            ttl: config.proxy.ttl,
            order: match config.larder.gc.renew {
                Renew::Use => Order::Use,
                Renew::Never => Order::Added,
            },
            interval: config.larder.gc.interval,
            scrub_interval: config.larder.scrub.interval,
            scrub_rate_bytes: config.larder.scrub.rate_bytes,
            upload_expiry: config.larder.hosted.as_ref().map(|hosted| hosted.upload_expiry),
        }
    }

    /// How old an upload has to be to count as left over, in milliseconds.
    fn upload_age_ms(&self) -> u64 {
        self.upload_expiry.map_or(rebuild::LEFTOVER_AGE_MS, |expiry| {
            u64::try_from(expiry.as_millis()).unwrap_or(u64::MAX)
        })
    }

    fn ttl_ms(&self) -> Option<u64> {
        self.ttl
            .map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A pass that could not be finished; the next one goes on where it stopped.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The volume failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The index failed.
    #[error(transparent)]
    Index(#[from] meta::Error),
}

/// Told when a repository has lost a digest, so that nothing in memory goes on answering for it.
pub type OnUnlinked = Arc<dyn Fn(&Directory, &Digest) + Send + Sync>;

/// The parts a collector works on.
pub struct Parts<V> {
    /// The volume.
    pub store: Store,
    /// The index over it.
    pub index: Index,
    /// The bound on it.
    pub capacity: Capacity,
    /// The fills, whose slots guard deletions.
    pub flights: Flights<Digest, V>,
    /// Wall time.
    pub clock: Clock,
    /// What is counted.
    pub metrics: GcMetrics,
    /// Who is told of unlinked content.
    pub on_unlinked: OnUnlinked,
}

/// The collector. Cheap to clone.
pub struct Collector<V> {
    parts: Arc<Parts<V>>,
    settings: Settings,
    /// Nothing is deleted while the index does not know all files.
    is_rebuilding: Arc<AtomicBool>,
}

impl<V: Clone + Send + Sync + 'static> Collector<V> {
    /// Puts a collector together; nothing runs yet.
    pub fn new(parts: Parts<V>, settings: Settings) -> Self {
        Self {
            parts: Arc::new(parts),
            settings,
            is_rebuilding: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Whether the index is being rebuilt from the files.
    pub fn is_rebuilding(&self) -> bool {
        self.is_rebuilding.load(Ordering::Relaxed)
    }

    fn index(&self) -> &Index {
        &self.parts.index
    }

    fn store(&self) -> &Store {
        &self.parts.store
    }

    fn metrics(&self) -> &GcMetrics {
        &self.parts.metrics
    }
}

impl<V> Clone for Collector<V> {
    fn clone(&self) -> Self {
        Self {
            parts: Arc::clone(&self.parts),
            settings: self.settings,
            is_rebuilding: Arc::clone(&self.is_rebuilding),
        }
    }
}

impl<V> fmt::Debug for Collector<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
