//! Wall time, which tests can move. Elapsed time is `tokio::time::Instant`.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

/// The source of wall time. Cheap to clone; clones share the offset.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    offset_ms: Arc<AtomicI64>,
}

impl Clock {
    /// The machine's wall time, moved by what [`Clock::advance`] added.
    #[expect(clippy::disallowed_methods, reason = "the one home of wall time")]
    pub fn now(&self) -> SystemTime {
        let offset_ms = self.offset_ms.load(Ordering::Relaxed);
        let shift = Duration::from_millis(offset_ms.unsigned_abs());
        if offset_ms < 0 {
            SystemTime::now() - shift
        } else {
            SystemTime::now() + shift
        }
    }

    /// Milliseconds since the Unix epoch; 0 before it.
    pub fn now_ms(&self) -> u64 {
        let since = self
            .now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    /// Moves the clock by `delta_ms` milliseconds, for tests.
    pub fn advance(&self, delta_ms: i64) {
        self.offset_ms.fetch_add(delta_ms, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn clones_share_the_offset() {
        let clock = Clock::default();
        let before = clock.now_ms();
        clock.clone().advance(60_000);
        assert!(clock.now_ms() >= before + 60_000);
    }
}
