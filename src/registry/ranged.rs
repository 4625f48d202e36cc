//! A range that a fill will not reach soon: fetched from upstream beside the fill, in pieces that grow, and from the
//! fill's file as soon as that has caught up.
//!
//! Clients ask for open-ended ranges and leave after a part of them (containerd#12476). Asking upstream piece by piece
//! bounds what is fetched for nobody.

use std::ops::Range;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;

use super::answer::{Content, ContentError, Piece};
use super::fill::Fill;
use super::reader::Follower;
use super::source::{Body, Origin, Skip};

/// The first request beside a fill, in bytes; each further one is twice as large.
pub(super) const FIRST_BYTES: u64 = 1024 * 1024;
/// The largest request beside a fill, in bytes.
const MOST_BYTES: u64 = 32 * 1024 * 1024;

/// Reads `range` beside `fill`; `opened` is what upstream sends already, from the range's start.
pub(super) fn beside(fill: Arc<Fill>, origin: Origin, range: Range<u64>, opened: Option<Body>) -> Content {
    let ranged = Ranged {
        fill,
        origin,
        position: range.start,
        end: range.end,
        step_bytes: FIRST_BYTES,
        state: State::Between,
    };
    let ranged = match opened {
        Some(body) => Ranged {
            state: State::Fetching(body),
            ..ranged
        },
        None => ranged,
    };
    stream::unfold(Some(ranged), |ranged| async move {
        let mut ranged = ranged?;
        match ranged.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(ranged))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

struct Ranged {
    fill: Arc<Fill>,
    origin: Origin,
    position: u64,
    end: u64,
    step_bytes: u64,
    state: State,
}

enum State {
    Between,
    Fetching(Body),
    Following(Box<Follower>),
}

impl Ranged {
    async fn next(&mut self) -> Result<Option<Piece>, ContentError> {
        loop {
            match &mut self.state {
                State::Following(follower) => return follower.next().await,
                State::Fetching(body) => match body.next().await {
                    Ok(Some(bytes)) => {
                        let left = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
                        let bytes = bytes.slice(..bytes.len().min(left));
                        self.position += bytes.len() as u64;
                        return Ok(Some(Piece::Bytes(bytes)));
                    }
                    Ok(None) => self.state = State::Between,
                    Err(error) => {
                        tracing::debug!(%error, "a range beside a fill broke, waiting for the fill");
                        self.follow();
                    }
                },
                State::Between if self.position >= self.end => return Ok(None),
                State::Between => self.fetch_or_follow().await,
            }
        }
    }

    async fn fetch_or_follow(&mut self) {
        let progress = self.fill.now();
        if progress.readable_bytes > self.position || progress.end.is_some() {
            return self.follow();
        }
        let end = self.position.saturating_add(self.step_bytes).min(self.end);
        self.step_bytes = (self.step_bytes * 2).min(MOST_BYTES);
        match Body::open(self.origin.clone(), self.position, Some(end), Skip::Refused).await {
            Ok(body) => self.state = State::Fetching(body),
            Err(error) => {
                tracing::debug!(%error, "no range beside a fill, waiting for the fill");
                self.follow();
            }
        }
    }

    fn follow(&mut self) {
        let rest = self.position..self.end;
        let follower = Follower::new(Arc::clone(&self.fill), self.origin.clone(), Some(rest), false);
        self.state = State::Following(Box::new(follower));
    }
}
