//! Being told to stop: by signals, or by who started the server.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A stop that is told once to end in order, and twice to end at once.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    first: CancellationToken,
    second: CancellationToken,
}

impl Stop {
    /// A stop that SIGTERM and SIGINT tell, once and twice. Called within the runtime, which it ends with.
    ///
    /// # Errors
    /// [`io::Error`] when signals cannot be listened to.
    pub fn on_signals() -> io::Result<Self> {
        let stop = Self::default();
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        // Nothing waits for this task: it watches until the process ends.
        TaskTracker::new().spawn(watch(stop.clone(), terminate, interrupt));
        Ok(stop)
    }

    /// Tells to stop.
    pub fn tell(&self) {
        if self.first.is_cancelled() {
            self.second.cancel();
        }
        self.first.cancel();
    }

    /// Waits until told.
    pub async fn first(&self) {
        self.first.cancelled().await;
    }

    /// Waits until told a second time.
    pub async fn second(&self) {
        self.second.cancelled().await;
    }
}

async fn watch(stop: Stop, mut terminate: Signal, mut interrupt: Signal) {
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.tell();
    }
}

#[cfg(test)]
mod tests {
    use super::Stop;

    #[tokio::test]
    async fn told_twice_means_at_once() {
        let stop = Stop::default();
        stop.tell();
        stop.first().await;
        assert!(!stop.second.is_cancelled());
        stop.tell();
        stop.second().await;
    }
}
