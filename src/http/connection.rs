//! What the parts of one connection have to tell each other: the socket's writer, the bodies of its answers, and the
//! task that watches over it. It travels with each request as an extension.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::sendfile::Regions;

/// The shared state of one connection.
#[derive(Debug)]
pub struct Connection {
    remote: String,
    regions: Option<Arc<Regions>>,
    written_bytes: AtomicU64,
    ending: Mutex<Ending>,
    activity: Mutex<Activity>,
}

/// A body that has to end short waits here until what was queued before it has left.
#[derive(Debug, Default)]
struct Ending {
    waiting: Option<Waker>,
    is_flushed: bool,
    is_abrupt: bool,
}

#[derive(Debug)]
struct Activity {
    requests_in_flight: usize,
    idle_since: Instant,
    head_since: Option<Instant>,
    stalled_since: Option<Instant>,
    is_multiplexed: bool,
}

/// How long a client may take for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// For the head of a request, and for the first one after connecting.
    pub header: Duration,
    /// Between two requests.
    pub idle: Duration,
    /// Without taking a byte of an answer.
    pub write_stall: Duration,
}

/// What a client took too long for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overdue {
    Header,
    Idle,
    Write,
}

impl Connection {
    /// The state of a new connection; `is_plain` when bytes go to the socket as they are.
    pub(crate) fn new(remote: String, is_plain: bool) -> Self {
        let now = Instant::now();
        Self {
            remote,
            regions: is_plain.then(Arc::default),
            written_bytes: AtomicU64::new(0),
            ending: Mutex::default(),
            activity: Mutex::new(Activity {
                requests_in_flight: 0,
                idle_since: now,
                head_since: Some(now),
                stalled_since: None,
                is_multiplexed: false,
            }),
        }
    }

    /// The client's address.
    pub(crate) fn remote(&self) -> &str {
        &self.remote
    }

    /// Where files can be sent from, unless the connection is encrypted.
    pub(crate) fn regions(&self) -> Option<&Arc<Regions>> {
        self.regions.as_ref()
    }

    /// Bytes handed to the transport since the beginning.
    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Ready when all that was queued has been handed to the transport; the connection then ends short.
    pub(crate) fn poll_end_short(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut ending = self.ending.lock();
        if ending.is_flushed {
            return Poll::Ready(());
        }
        ending.is_abrupt = true;
        ending.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether the client may still be sending when the connection ends, so that closing at once would be a reset.
    pub(crate) fn must_linger(&self) -> bool {
        self.ending.lock().is_abrupt
    }

    /// Remembers that the client may still be sending when the connection ends.
    pub(crate) fn linger(&self) {
        self.ending.lock().is_abrupt = true;
    }

    /// The transport took `size_bytes`.
    pub(crate) fn wrote(&self, size_bytes: usize) {
        self.written_bytes.fetch_add(size_bytes as u64, Ordering::Relaxed);
        self.activity.lock().stalled_since = None;
    }

    /// The transport takes nothing at the moment.
    pub(crate) fn stalled(&self) {
        self.activity
            .lock()
            .stalled_since
            .get_or_insert_with(Instant::now);
    }

    /// Nothing is queued any more.
    pub(crate) fn flushed(&self) {
        self.activity.lock().stalled_since = None;
        let mut ending = self.ending.lock();
        if let Some(waker) = ending.waiting.take() {
            ending.is_flushed = true;
            waker.wake();
        }
    }

    /// Bytes came from the client.
    pub(crate) fn read(&self) {
        let mut activity = self.activity.lock();
        if activity.requests_in_flight == 0 && !activity.is_multiplexed {
            activity.head_since.get_or_insert_with(Instant::now);
        }
    }

    /// Streams share this connection (HTTP/2), so that bytes from the client need not be a request's head.
    pub(crate) fn is_multiplexed(&self) {
        let mut activity = self.activity.lock();
        activity.is_multiplexed = true;
        activity.head_since = None;
    }

    /// A request came; it is in flight until the guard is dropped.
    pub(crate) fn begin_request(self: &Arc<Self>) -> InFlight {
        let mut activity = self.activity.lock();
        activity.requests_in_flight += 1;
        activity.head_since = None;
        drop(activity);
        InFlight(self.clone())
    }

    /// What the client has been taking too long for, if anything.
    pub(crate) fn overdue(&self, patience: &Patience) -> Option<Overdue> {
        let activity = self.activity.lock();
        let is_over =
            |since: Option<Instant>, limit: Duration| since.is_some_and(|since| since.elapsed() >= limit);
        if is_over(activity.stalled_since, patience.write_stall) {
            return Some(Overdue::Write);
        }
        if activity.requests_in_flight > 0 {
            return None;
        }
        if is_over(activity.head_since, patience.header) {
            return Some(Overdue::Header);
        }
        let is_idle = activity.head_since.is_none() && activity.idle_since.elapsed() >= patience.idle;
        is_idle.then_some(Overdue::Idle)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Connection>);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut activity = self.0.activity.lock();
        activity.requests_in_flight = activity.requests_in_flight.saturating_sub(1);
        activity.idle_since = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        header: Duration::from_secs(10),
        idle: Duration::from_mins(1),
        write_stall: Duration::from_secs(30),
    };

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn heads_idling_and_stalls_have_their_own_limits() {
        let connection = Arc::new(Connection::new("x".into(), true));
        pass(9).await;
        assert_eq!(connection.overdue(&PATIENCE), None);
        pass(1).await;
        assert_eq!(connection.overdue(&PATIENCE), Some(Overdue::Header));

        let request = connection.begin_request();
        pass(1000).await;
        assert_eq!(connection.overdue(&PATIENCE), None);
        connection.stalled();
        pass(29).await;
        connection.stalled();
        assert_eq!(connection.overdue(&PATIENCE), None);
        pass(1).await;
        assert_eq!(connection.overdue(&PATIENCE), Some(Overdue::Write));
        connection.wrote(1);
        assert_eq!(connection.overdue(&PATIENCE), None);

        drop(request);
        pass(59).await;
        assert_eq!(connection.overdue(&PATIENCE), None);
        pass(1).await;
        assert_eq!(connection.overdue(&PATIENCE), Some(Overdue::Idle));
        connection.read();
        assert_eq!(connection.overdue(&PATIENCE), None);
        pass(10).await;
        assert_eq!(connection.overdue(&PATIENCE), Some(Overdue::Header));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_between_requests_are_no_head() {
        let connection = Connection::new("x".into(), false);
        connection.is_multiplexed();
        connection.read();
        pass(20).await;
        assert_eq!(connection.overdue(&PATIENCE), None);
    }
}
