//! Leaving a registry alone that asked for it with a 429.

use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::error::Error;
use crate::clock::Clock;

const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(5);
const UNSAID: Duration = Duration::from_secs(5);

/// Until when nothing is asked, and why.
pub(super) struct Pause {
    clock: Clock,
    until: Mutex<Option<(Instant, String)>>,
}

impl Pause {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            until: Mutex::new(None),
        }
    }

    /// Fails while the registry is to be left alone.
    pub(super) fn check(&self) -> Result<(), Error> {
        let mut until = self.until.lock();
        let Some((end, message)) = until.as_ref() else {
            return Ok(());
        };
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            *until = None;
            return Ok(());
        }
        Err(Error::RateLimited {
            retry_after: Some(left),
            message: format!("it is left alone after an earlier answer: {message}"),
        })
    }

    /// Begins a pause, or makes one longer, by what a 429 says.
    pub(super) fn begin(&self, headers: &HeaderMap, message: String) -> Error {
        let pause = self
            .retry_after(headers)
            .unwrap_or(UNSAID)
            .clamp(SHORTEST, LONGEST);
        let end = Instant::now() + pause;
        let mut until = self.until.lock();
        if until.as_ref().is_none_or(|(current, _)| *current < end) {
            *until = Some((end, message.clone()));
        }
        Error::RateLimited {
            retry_after: Some(pause),
            message,
        }
    }

    /// Seconds or an HTTP date (RFC 9110 10.2.3).
    fn retry_after(&self, headers: &HeaderMap) -> Option<Duration> {
        let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return Some(text.parse().map_or(LONGEST, Duration::from_secs));
        }
        let at = httpdate::parse_http_date(text).ok()?;
        Some(at.duration_since(self.clock.now()).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn pause_after(header: Option<&str>) -> Duration {
        let mut headers = HeaderMap::new();
        if let Some(header) = header {
            headers.insert(RETRY_AFTER, HeaderValue::from_str(header).unwrap());
        }
        match Pause::new(Clock::default()).begin(&headers, String::new()) {
            Error::RateLimited {
                retry_after: Some(pause),
                ..
            } => pause,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn retry_after_is_read_and_bounded() {
        let in_a_minute = httpdate::fmt_http_date(Clock::default().now() + Duration::from_mins(1));
        assert_eq!(pause_after(Some("17")), Duration::from_secs(17));
        assert_eq!(pause_after(Some("0")), SHORTEST);
        assert_eq!(pause_after(Some("99999999999999999999999")), LONGEST);
        assert_eq!(pause_after(Some("soon")), UNSAID);
        assert_eq!(pause_after(None), UNSAID);
        assert_eq!(pause_after(Some("Wed, 21 Oct 2015 07:28:00 GMT")), SHORTEST);
        let dated = pause_after(Some(&in_a_minute));
        assert!(
            (Duration::from_secs(57)..=Duration::from_mins(1)).contains(&dated),
            "{dated:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_by_itself_and_tells_what_is_left() {
        let pause = Pause::new(Clock::default());
        pause.check().unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("10"));
        pause.begin(&headers, "slow down".to_owned());
        tokio::time::advance(Duration::from_secs(4)).await;
        match pause.check() {
            Err(Error::RateLimited { retry_after, message }) => {
                assert_eq!(
                    (retry_after, message.as_str()),
                    (
                        Some(Duration::from_secs(6)),
                        "it is left alone after an earlier answer: slow down"
                    )
                );
            }
            other => panic!("{other:?}"),
        }
        tokio::time::advance(Duration::from_secs(6)).await;
        pause.check().unwrap();
    }
}
