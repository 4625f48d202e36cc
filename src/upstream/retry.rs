//! Short repeats of a request that a broken connection or a gateway spoiled.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use tokio::time::Instant;

use super::error::Error;

/// Runs `operation`, and again at most `times` while that may help and `budget` is not used up.
///
/// The pauses are short and jittered: they let a restarting gateway come back, they do not wait for anything.
pub(super) async fn retrying<T, F>(
    times: usize,
    budget: Duration,
    operation: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let began = Instant::now();
    let delays = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_millis(400))
        .with_max_times(times)
        .with_jitter();
    operation
        .retry(delays)
        .when(|error: &Error| error.is_worth_repeating() && began.elapsed() < budget)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn tries(error: Error, slowness: Duration) -> u32 {
        let mut tries = 0;
        let outcome: Result<(), _> = retrying(2, Duration::from_secs(6), || {
            tries += 1;
            let error = error.clone();
            async move {
                tokio::time::sleep(slowness).await;
                Err(error)
            }
        })
        .await;
        assert!(outcome.is_err());
        tries
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_may_help_is_repeated_and_only_within_the_budget() {
        let cut = Error::Cut {
            host: String::new(),
            received: 0,
            reason: String::new(),
        };
        let status = |status| Error::Unavailable {
            status,
            message: String::new(),
        };
        assert_eq!(tries(cut.clone(), Duration::ZERO).await, 3);
        assert_eq!(tries(status(503), Duration::ZERO).await, 3);
        assert_eq!(tries(status(500), Duration::ZERO).await, 1);
        assert_eq!(tries(Error::NotFound, Duration::ZERO).await, 1);
        assert_eq!(tries(cut.clone(), Duration::from_secs(4)).await, 2);
        assert_eq!(tries(cut, Duration::from_secs(7)).await, 1);
    }
}
