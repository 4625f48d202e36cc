//! An open blob: what is known of it, and its bytes as a stream of pieces from wherever they are.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;

use super::answer::{Answer, Content, ContentError, How, Piece};
use super::blobs::NEAR_BYTES;
use super::fill::{End, Fill};
use super::parts::Core;
use super::source::{Body, Origin, Skip};
use super::{Error, blobs, ranged};
use crate::oci::{Digest, Hasher};
use crate::store::{StoredBlob, blocking};
use crate::upstream;

/// Read size when bytes that went out already are hashed again, in bytes.
const REHASH_BYTES: usize = 256 * 1024;

/// A blob that can be read.
pub struct Blob {
    core: Arc<Core>,
    /// Where to go on when it is not on the volume; a blob that is stored needs none.
    origin: Option<Origin>,
    answer: Answer<()>,
    size_bytes: Option<u64>,
    source: Source,
    /// What upstream sends already, beside a fill.
    beside: Mutex<Option<Body>>,
}

/// Where an open blob's bytes are.
pub(super) enum Source {
    /// On the volume.
    Stored(StoredBlob),
    /// In a fill.
    Filling(Arc<Fill>),
    /// Only upstream, since the volume takes nothing; the first reader gets the body that is open already.
    Past(Mutex<Option<Body>>),
}

impl Source {
    pub(super) fn past_the_volume(body: Body) -> Self {
        Self::Past(Mutex::new(Some(body)))
    }
}

impl Blob {
    pub(super) fn new(
        core: Arc<Core>,
        origin: Origin,
        how: How,
        size_bytes: Option<u64>,
        source: Source,
    ) -> Self {
        let age = match &source {
            Source::Stored(stored) => core.age_of(&stored.canonical),
            Source::Filling(_) | Source::Past(_) => None,
        };
        Self {
            core,
            origin: Some(origin),
            answer: Answer { value: (), how, age },
            size_bytes,
            source,
            beside: Mutex::new(None),
        }
    }

    /// A blob of a repository that has no upstream.
    pub(super) fn hosted(core: Arc<Core>, stored: StoredBlob) -> Self {
        Self {
            core,
            origin: None,
            answer: Answer {
                value: (),
                how: How::Hit,
                age: None,
            },
            size_bytes: Some(stored.size_bytes),
            source: Source::Stored(stored),
            beside: Mutex::new(None),
        }
    }

    pub(super) fn with_beside(self, body: Body) -> Self {
        *self.beside.lock() = Some(body);
        self
    }

    /// The blob's size in bytes; `None` only where upstream does not tell and no manifest does.
    pub fn size_bytes(&self) -> Option<u64> {
        self.size_bytes
    }

    /// How the answer came about.
    pub fn provenance(&self) -> &Answer<()> {
        &self.answer
    }

    /// Reads a range, or everything. The range lies within the blob's size.
    ///
    /// # Errors
    /// [`Error`] when upstream has to be asked and fails before the first byte.
    pub async fn read(&self, range: Option<Range<u64>>) -> Result<Content, Error> {
        match (&self.source, &self.origin) {
            (Source::Stored(stored), _) => {
                let range = range.unwrap_or(0..stored.size_bytes);
                let piece = Piece::File {
                    file: Arc::clone(&stored.file),
                    range,
                };
                Ok(stream::once(std::future::ready(Ok(piece))).boxed())
            }
            (Source::Filling(fill), Some(origin)) => Ok(self.read_fill(fill, origin, range)),
            (Source::Past(body), Some(origin)) => {
                let opened = if range.is_none() { body.lock().take() } else { None };
                Self::read_past(origin, opened, range).await
            }
            (_, None) => Err(Error::Internal(
                "only what is stored can be read without an upstream".to_owned(),
            )),
        }
    }

    fn read_fill(&self, fill: &Arc<Fill>, origin: &Origin, range: Option<Range<u64>>) -> Content {
        if let Some(range) = &range {
            let opened = self.beside.lock().take_if(|body| body.position() == range.start);
            let progress = fill.now();
            let is_far = range.start >= progress.readable_bytes.saturating_add(NEAR_BYTES);
            if opened.is_some() || (is_far && progress.end.is_none()) {
                self.core.metrics.ranges_beside.inc();
                return ranged::beside(Arc::clone(fill), origin.clone(), range.clone(), opened);
            }
        }
        let is_whole = range.is_none() || range == self.size_bytes.map(|size| 0..size);
        Follower::new(Arc::clone(fill), origin.clone(), range, is_whole).content()
    }

    async fn read_past(
        origin: &Origin,
        opened: Option<Body>,
        range: Option<Range<u64>>,
    ) -> Result<Content, Error> {
        let failed = |e: upstream::Error| blobs::blob_error(&e, &origin.digest);
        if let Some(range) = range {
            let body = Body::open(origin.clone(), range.start, Some(range.end), Skip::Allowed).await;
            return Ok(relay(body.map_err(failed)?));
        }
        let body = match opened {
            Some(body) => body,
            None => Body::open(origin.clone(), 0, None, Skip::Allowed)
                .await
                .map_err(failed)?,
        };
        Ok(verifying(
            body,
            Hasher::new(origin.digest.algorithm()),
            origin.digest.clone(),
        ))
    }
}

/// Reads behind the writer of a fill, and past the volume where that gives up.
pub(super) struct Follower {
    fill: Arc<Fill>,
    origin: Origin,
    position: u64,
    end: Option<u64>,
    is_whole: bool,
    /// Where the rest comes from when the volume failed.
    instead: Option<Content>,
}

impl Follower {
    /// Reads a range, or everything; a whole read is verified even past the volume.
    pub(super) fn new(fill: Arc<Fill>, origin: Origin, range: Option<Range<u64>>, is_whole: bool) -> Self {
        let (position, end) = range.map_or((0, None), |range| (range.start, Some(range.end)));
        Self {
            fill,
            origin,
            position,
            end,
            is_whole,
            instead: None,
        }
    }

    fn content(self) -> Content {
        stream::unfold(Some(self), |follower| async move {
            let mut follower = follower?;
            match follower.next().await {
                Ok(Some(piece)) => Some((Ok(piece), Some(follower))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
        .boxed()
    }

    pub(super) async fn next(&mut self) -> Result<Option<Piece>, ContentError> {
        loop {
            if let Some(content) = &mut self.instead {
                return content.next().await.transpose();
            }
            let position = self.position;
            let progress = self.fill.wait(|now| now.readable_bytes > position).await;
            let end = self.end.or(progress.total_bytes);
            if end.is_some_and(|end| position >= end) {
                return Ok(None);
            }
            let readable = end.map_or(progress.readable_bytes, |end| progress.readable_bytes.min(end));
            if let Some(file) = progress.file.as_ref().filter(|_| readable > position) {
                self.position = readable;
                return Ok(Some(Piece::File {
                    file: Arc::clone(file),
                    range: position..readable,
                }));
            }
            match progress.end {
                None => {}
                Some(End::Verified) => return Ok(None),
                Some(End::Upstream(error)) => return Err(ContentError::Upstream(error.to_string())),
                Some(End::Wrong) => return Err(ContentError::Wrong(self.origin.digest.clone())),
                Some(End::Lost) => return Err(ContentError::Upstream("its transfer was lost".to_owned())),
                Some(End::Storage) => self.instead = Some(self.go_past(progress.file).await?),
            }
        }
    }

    /// Continues from upstream where the file ends; a whole read is still verified before its end.
    async fn go_past(&mut self, file: Option<Arc<File>>) -> Result<Content, ContentError> {
        let body = Body::open(self.origin.clone(), self.position, self.end, Skip::Allowed).await;
        let body = body.map_err(|e| ContentError::Upstream(e.to_string()))?;
        if !self.is_whole {
            return Ok(relay(body));
        }
        let mut hasher = Hasher::new(self.origin.digest.algorithm());
        if let Some(file) = file.filter(|_| self.position > 0) {
            let length = self.position;
            let rehashed = blocking(move || rehash(&file, length, &mut hasher).map(|()| hasher)).await;
            hasher = rehashed.map_err(|e| ContentError::Storage(e.to_string()))?;
        }
        Ok(verifying(body, hasher, self.origin.digest.clone()))
    }
}

fn rehash(file: &File, length: u64, hasher: &mut Hasher) -> std::io::Result<()> {
    let mut buffer = vec![0; REHASH_BYTES];
    let mut at = 0;
    while at < length {
        let want = usize::try_from(length - at)
            .unwrap_or(REHASH_BYTES)
            .min(REHASH_BYTES);
        let Some(window) = buffer.get_mut(..want) else {
            break;
        };
        file.read_exact_at(window, at)?;
        hasher.update(window);
        at += want as u64;
    }
    Ok(())
}

type Pieces = BoxStream<'static, Result<Piece, ContentError>>;

/// Passes upstream's bytes on: a part of a blob, which nobody can verify before the whole is there.
fn relay(body: Body) -> Pieces {
    stream::unfold(Some(body), |body| async move {
        let mut body = body?;
        match body.next().await {
            Ok(Some(bytes)) => Some((Ok(Piece::Bytes(bytes)), Some(body))),
            Ok(None) => None,
            Err(error) => Some((Err(ContentError::Upstream(error.to_string())), None)),
        }
    })
    .boxed()
}

struct Verifying {
    body: Body,
    hasher: Hasher,
    digest: Digest,
    /// Held back until more comes, or until the digest is right.
    held: Option<Bytes>,
}

/// Passes upstream's bytes on and gives the last of them only when the digest is right.
fn verifying(body: Body, hasher: Hasher, digest: Digest) -> Pieces {
    let state = Verifying {
        body,
        hasher,
        digest,
        held: None,
    };
    stream::unfold(Some(state), |state| async move {
        let mut state = state?;
        loop {
            match state.body.next().await {
                Ok(Some(bytes)) => {
                    state.hasher.update(&bytes);
                    if let Some(before) = state.held.replace(bytes) {
                        return Some((Ok(Piece::Bytes(before)), Some(state)));
                    }
                }
                Ok(None) if state.hasher.clone().finish() == state.digest => {
                    return state.held.map(|last| (Ok(Piece::Bytes(last)), None));
                }
                Ok(None) => return Some((Err(ContentError::Wrong(state.digest)), None)),
                Err(error) => return Some((Err(ContentError::Upstream(error.to_string())), None)),
            }
        }
    })
    .boxed()
}
