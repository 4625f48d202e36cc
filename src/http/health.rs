//! Whether larder is well: named checks that a task of theirs keeps up to date, and whether it takes requests.
//!
//! Only the admin listener tells; pulls are answered as long as they can be.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::CancellationToken;

/// The state of health; clones share it. Checks begin well.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    failures: Mutex<BTreeMap<String, String>>,
    is_ready: AtomicBool,
}

impl Health {
    /// Notes what a check found: nothing, or the reason why not all is well.
    pub fn set(&self, check: &str, result: Result<(), String>) {
        let mut failures = self.0.failures.lock();
        match result {
            Ok(()) => failures.remove(check),
            Err(reason) => failures.insert(check.to_owned(), reason),
        };
    }

    /// The checks that fail, with their reasons.
    pub fn failures(&self) -> BTreeMap<String, String> {
        self.0.failures.lock().clone()
    }

    /// Says whether requests should be sent here: after the start, until the stop begins.
    pub fn set_ready(&self, is_ready: bool) {
        self.0.is_ready.store(is_ready, Ordering::Release);
    }

    /// Whether requests should be sent here. Checks do not count: an unwell cache still passes pulls through.
    pub fn is_ready(&self) -> bool {
        self.0.is_ready.load(Ordering::Acquire)
    }

    /// Runs `probe` every `interval` until `stop`; after `threshold` failures in a row the check fails, after one
    /// success it is well again. A probe that takes longer than the interval has failed.
    pub async fn watch<F>(
        &self,
        check: &str,
        every: Duration,
        threshold: u32,
        stop: CancellationToken,
        mut probe: impl FnMut() -> F,
    ) where
        F: Future<Output = Result<(), String>>,
    {
        let every = every.max(Duration::from_millis(1));
        let mut ticks = interval_at(tokio::time::Instant::now() + every, every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failed_in_a_row = 0_u32;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let result = timeout(every, probe())
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {every:?}")));
            match result {
                Ok(()) => {
                    if failed_in_a_row >= threshold.max(1) {
                        tracing::info!(check, "the check is well again");
                    }
                    failed_in_a_row = 0;
                    self.set(check, Ok(()));
                }
                Err(reason) => {
                    failed_in_a_row = failed_in_a_row.saturating_add(1);
                    if failed_in_a_row == threshold.max(1) {
                        tracing::error!(check, reason, "the check fails");
                    }
                    if failed_in_a_row >= threshold.max(1) {
                        self.set(check, Err(reason));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    /// What the check says after each of `looks` intervals of ten seconds, in the middle of the next.
    async fn watch<F>(threshold: u32, looks: usize, probe: impl FnMut() -> F) -> Vec<Option<String>>
    where
        F: Future<Output = Result<(), String>>,
    {
        let (health, stop) = (Health::default(), CancellationToken::new());
        let watching = health.watch("storage", Duration::from_secs(10), threshold, stop.clone(), probe);
        let looking = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            let mut seen = Vec::new();
            for _ in 0..looks {
                tokio::time::sleep(Duration::from_secs(10)).await;
                seen.push(health.failures().get("storage").cloned());
            }
            stop.cancel();
            seen
        };
        tokio::join!(watching, looking).1
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_fails_at_its_threshold_and_recovers_at_once() {
        let calls = AtomicU32::new(0);
        let probe = || {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            let result = if call == 3 {
                Ok(())
            } else {
                Err(format!("failure {call}"))
            };
            std::future::ready(result)
        };
        let fact = |text: &str| Some(text.to_owned());
        let seen = watch(3, 7, probe).await;
        assert_eq!(
            seen,
            [None, None, fact("failure 2"), None, None, None, fact("failure 6")]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_hangs_has_failed() {
        let seen = watch(0, 2, std::future::pending).await;
        assert_eq!(seen, [None, Some("no answer within 10s".to_owned())]);
    }

    #[test]
    fn readiness_is_independent_of_checks() {
        let health = Health::default();
        assert!(!health.is_ready());
        health.set_ready(true);
        health.set("storage", Err("full".into()));
        assert!(health.is_ready());
        assert_eq!(health.failures()["storage"], "full");
    }
}
