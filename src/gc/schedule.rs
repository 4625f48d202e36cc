//! The schedule: when passes run, what the clock is believed, and how it all starts and stops.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::metrics::State;
use super::{Collector, Error};
use crate::meta::{Opened, Order};
use crate::store::blocking;

/// A longer stop than this is taken for a clock that was set; it does not count as age.
const LONGEST_STOP: Duration = Duration::from_hours(30 * 24);
/// Wall time that differs from elapsed time by more than this between two looks was set.
const CLOCK_TOLERANCE_MS: u64 = 10 * 60 * 1000;
/// Between two writes of the uses gathered in memory.
const TOUCH_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two passes.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// Before a pass that failed is tried again, where nothing else wakes the collector.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// How long damaged content is kept for whoever wants to look at it.
const QUARANTINE_MS: u64 = 24 * 60 * 60 * 1000;
/// What was written so long before an unclean end is verified before it is served.
const DOUBTFUL_MS: u64 = 5 * 60 * 1000;

impl<V: Clone + Send + Sync + 'static> Collector<V> {
    /// Starts the collector's tasks on `tracker`; they end soon after `token` is cancelled.
    pub fn start(&self, opened: Opened, tracker: &TaskTracker, token: &CancellationToken) {
        let (collector, ending) = (self.clone(), token.clone());
        tracker.spawn(async move { collector.write_touches(&ending).await });
        let (collector, ending) = (self.clone(), token.clone());
        tracker.spawn(async move {
            collector.begin(opened, &ending).await;
            collector.run(&ending).await;
        });
        if let Some(interval) = self.settings.scrub_interval {
            let (collector, ending) = (self.clone(), token.clone());
            tracker.spawn(async move { collector.scrub_forever(interval, &ending).await });
        }
    }

    /// Ends in order: the table for distribution, then the index. After the tasks have ended.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails; the next start finds an unclean end then.
    pub async fn stop(&self) -> Result<(), Error> {
        self.index().flush_touches()?;
        if !self.is_rebuilding() {
            let collector = self.clone();
            blocking(move || collector.write_state_file()).await?;
        }
        self.index().set_last_seen(self.parts.clock.now_ms())?;
        self.index().close().await?;
        Ok(())
    }

    async fn write_touches(&self, token: &CancellationToken) {
        let mut has_failed = false;
        while !token.is_cancelled() {
            if token
                .run_until_cancelled(tokio::time::sleep(TOUCH_INTERVAL))
                .await
                .is_none()
            {
                return;
            }
            match self.index().flush_touches() {
                Ok(()) => has_failed = false,
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::error!(%error, "cannot write uses to the index");
                }
                Err(_) => {}
            }
        }
    }

    /// Rebuilds the index where it is not as a clean stop left it.
    async fn begin(&self, opened: Opened, token: &CancellationToken) {
        let last_seen_ms = self.index().last_seen().unwrap_or(None);
        if let Err(error) = self.believe_start() {
            tracing::error!(%error, "cannot compare the clock with the index");
        }
        let trusted_before_ms = last_seen_ms.map(|at| at.saturating_sub(DOUBTFUL_MS));
        let reason = match opened {
            Opened::Existing {
                is_clean: true,
                is_complete: true,
            } => return,
            Opened::Existing { .. } => "the last run did not end in order".to_owned(),
            Opened::Fresh => "there was none".to_owned(),
            Opened::Replaced(reason) => reason,
        };
        tracing::info!(reason, "making the index agree with the files");
        if let Err(error) = self.rebuild(trusted_before_ms, token).await {
            tracing::error!(%error, "cannot read the volume into the index");
        }
    }

    /// Runs passes until told to stop.
    async fn run(&self, token: &CancellationToken) {
        let mut looked = Looked {
            wall_ms: self.parts.clock.now_ms(),
            at: Instant::now(),
        };
        while !token.is_cancelled() {
            let begun = Instant::now();
            let passed = match self.believe_clock(&mut looked) {
                Ok(now_ms) => token.run_until_cancelled(self.pass(now_ms)).await,
                Err(error) => Some(Err(error)),
            };
            let pause = match passed {
                None => return,
                Some(Ok(())) => self.pause(looked.wall_ms),
                Some(Err(error)) => {
                    tracing::error!(%error, "a collector pass failed, it goes on with the next");
                    RETRY_PAUSE.min(self.settings.interval)
                }
            };
            self.metrics().passed(begun.elapsed());
            self.show();
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
                // At most one pass for each pause, however often the bound is reached.
                () = async { tokio::time::sleep(SHORTEST_PAUSE).await; self.parts.capacity.nudged().await } => {}
            }
        }
    }

    /// One pass: expire, make room, sweep. Idempotent; can be cut anywhere.
    ///
    /// # Errors
    /// [`Error`] when the volume or the index fails.
    pub async fn pass(&self, now_ms: u64) -> Result<(), Error> {
        if !self.is_rebuilding() {
            self.expire(now_ms).await?;
            self.evict(now_ms).await?;
        }
        let store = self.store().clone();
        let left = blocking(move || store.sweep_quarantine(now_ms.saturating_sub(QUARANTINE_MS))).await;
        self.metrics().swept(left.files);
        self.index().set_last_seen(now_ms)?;
        Ok(())
    }

    /// Until the next entry falls due, and no longer than the configured interval.
    fn pause(&self, now_ms: u64) -> Duration {
        let due_in = match self.next_due_ms() {
            Ok(Some(due_ms)) => Duration::from_millis(due_ms.saturating_sub(now_ms)),
            Ok(None) | Err(_) => self.settings.interval,
        };
        // What comes while the collector sleeps falls due one whole life later, and not before.
        let life = self.settings.ttl.unwrap_or(self.settings.interval);
        due_in.min(life).min(self.settings.interval).max(SHORTEST_PAUSE)
    }

    async fn scrub_forever(&self, interval: Duration, token: &CancellationToken) {
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        while !token.is_cancelled() {
            let before_ms = self.parts.clock.now_ms().saturating_sub(interval_ms);
            let scrubbed = self.scrub(before_ms, self.settings.scrub_rate_bytes, token).await;
            match scrubbed {
                Ok((0, 0)) => {}
                Ok((right, wrong)) => tracing::info!(right, wrong, "verified stored content"),
                Err(error) => tracing::error!(%error, "cannot verify stored content"),
            }
            let pause = tokio::time::sleep(self.settings.interval.min(interval));
            if token.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    /// Compares the clock with when it was last looked at by the process before.
    fn believe_start(&self) -> Result<(), Error> {
        let now_ms = self.parts.clock.now_ms();
        let Some(last_ms) = self.index().last_seen()? else {
            return Ok(());
        };
        let longest_ms = u64::try_from(LONGEST_STOP.as_millis()).unwrap_or(u64::MAX);
        if now_ms > last_ms.saturating_add(longest_ms) {
            self.set_forward(now_ms - last_ms)?;
        } else if last_ms > now_ms.saturating_add(CLOCK_TOLERANCE_MS) {
            self.set_back(now_ms)?;
        }
        Ok(())
    }

    /// Compares the wall time passed since the last look with the time that elapsed; returns the wall time.
    fn believe_clock(&self, looked: &mut Looked) -> Result<u64, Error> {
        let now = Looked {
            wall_ms: self.parts.clock.now_ms(),
            at: Instant::now(),
        };
        let elapsed_ms = u64::try_from(now.at.duration_since(looked.at).as_millis()).unwrap_or(u64::MAX);
        let expected_ms = looked.wall_ms.saturating_add(elapsed_ms);
        if now.wall_ms > expected_ms.saturating_add(CLOCK_TOLERANCE_MS) {
            self.set_forward(now.wall_ms - expected_ms)?;
        } else if expected_ms > now.wall_ms.saturating_add(CLOCK_TOLERANCE_MS) {
            self.set_back(now.wall_ms)?;
        }
        *looked = now;
        Ok(looked.wall_ms)
    }

    fn set_forward(&self, by_ms: u64) -> Result<(), Error> {
        let now_ms = self.parts.clock.now_ms();
        tracing::warn!(
            seconds = by_ms / 1000,
            "the clock was set forward; content does not age by that"
        );
        Ok(self
            .index()
            .shift_times(|at| at.saturating_add(by_ms).min(now_ms))?)
    }

    fn set_back(&self, now_ms: u64) -> Result<(), Error> {
        tracing::warn!("the clock was set back; times from the future are taken for now");
        Ok(self.index().shift_times(|at| at.min(now_ms))?)
    }

    /// Brings the gauges up to date.
    fn show(&self) {
        let totals = self.index().totals().unwrap_or_default();
        let oldest = self
            .index()
            .oldest(Order::Use, None, 1)
            .map(|(batch, _)| batch)
            .unwrap_or_default();
        self.metrics().show(State {
            used_bytes: totals.bytes,
            limit_bytes: self.parts.capacity.limit_bytes(),
            index_bytes: self.index().size_on_disk().unwrap_or(0),
            roots: totals.roots,
            blobs: totals.contents,
            oldest_use_ms: oldest.first().map_or(0, |link| link.record.last_use_ms),
        });
    }
}

/// A look at both clocks.
struct Looked {
    wall_ms: u64,
    at: Instant,
}
