//! Blobs: from the volume, from a fill that is under way, or from a fill begun now.

use std::sync::Arc;
use std::time::Duration;

use super::fill::{self, End, Fill, Progress, TAIL_BYTES};
use super::parts::{Core, Found};
use super::ranged::FIRST_BYTES;
use super::reader::{Blob, Source};
use super::repositories::Repository;
use super::source::{Body, Origin, Skip};
use super::{Answer, Error, How, Registry};
use crate::flight::Joined;
use crate::oci::Digest;
use crate::store::{Link, StoredBlob};
use crate::upstream;

/// How often a fill whose task was lost is begun again for one request.
const MOST_LOST: usize = 3;
/// For how long headers wait for a small body to be verified, or for an untold size to become known.
const SMALL_WAIT: Duration = Duration::from_secs(5);
/// A range that begins less than so many bytes behind the writer waits for it.
pub(super) const NEAR_BYTES: u64 = 4 * 1024 * 1024;

/// A byte range as a client asks for it, before the size is known (RFC 9110 14.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeSpec {
    /// From the first to the second offset, both included.
    FromTo(u64, u64),
    /// From an offset to the end.
    From(u64),
    /// The last so many bytes.
    Suffix(u64),
}

/// How much of a blob a client wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wants {
    /// All of it.
    Whole,
    /// Some ranges.
    Ranges(Vec<RangeSpec>),
}

impl Registry {
    /// Opens a blob. Returns as soon as its size is known, which for a fill is when upstream has sent headers.
    ///
    /// # Errors
    /// [`Error::BlobUnknown`], or why upstream could not be asked.
    ///
    /// # Cancel safety
    /// A fill that was begun goes on.
    pub async fn blob(&self, repository: &Repository, digest: &Digest, wants: &Wants) -> Result<Blob, Error> {
        for _ in 0..MOST_LOST {
            if let Some(stored) = self.held_blob(repository, digest).await? {
                return Ok(self.stored(repository, stored, digest));
            }
            let (sender_fill, sender) = Fill::new(repository.directory().clone());
            let (fill, is_collapsed) = match self.core.flights.join(digest, || Arc::clone(&sender_fill)) {
                Joined::Held(released) => {
                    released.wait().await;
                    continue;
                }
                Joined::Follow(fill) => {
                    self.join(repository, digest, &fill).await?;
                    self.core.metrics.followers.inc();
                    (fill, true)
                }
                Joined::Lead(slot) => {
                    // Between the lookup and the slot another fill may have ended.
                    if let Some(stored) = self.held_blob(repository, digest).await? {
                        return Ok(self.stored(repository, stored, digest));
                    }
                    let origin = self.core.origin(repository, digest);
                    let core = Arc::clone(&self.core);
                    let task = fill::lead(core, origin, Arc::clone(&sender_fill), sender, slot);
                    self.core.tracker.spawn(task);
                    (sender_fill, false)
                }
            };
            if let Some(blob) = self.follow(repository, digest, fill, is_collapsed, wants).await? {
                return Ok(blob);
            }
        }
        Err(Error::Internal(format!(
            "the fill of `{digest}` was lost {MOST_LOST} times"
        )))
    }

    /// The size of a blob in bytes: from the volume, from a fill, or from upstream's headers. Moves no body.
    ///
    /// # Errors
    /// [`Error::BlobUnknown`], or why upstream could not be asked.
    pub async fn blob_size(&self, repository: &Repository, digest: &Digest) -> Result<Answer<u64>, Error> {
        if let Some(stored) = self.held_blob(repository, digest).await? {
            return Ok(Answer {
                value: stored.size_bytes,
                how: How::Hit,
                age: self.core.age_of(&stored.canonical),
            });
        }
        let under_way = self
            .core
            .flights
            .peek(digest)
            .filter(|fill| fill.links(repository.directory()));
        if let Some(total_bytes) = under_way.and_then(|fill| fill.now().total_bytes) {
            let how = How::Miss {
                is_collapsed: true,
                is_stored: true,
            };
            return Ok(Answer {
                value: total_bytes,
                how,
                age: None,
            });
        }
        let size_bytes = self.ask_size(repository, digest).await?;
        let how = How::Miss {
            is_collapsed: false,
            is_stored: false,
        };
        Ok(Answer {
            value: size_bytes,
            how,
            age: None,
        })
    }

    /// Upstream's word on the size of a blob; where it has none, that of a manifest; else the blob is fetched to know.
    async fn ask_size(&self, repository: &Repository, digest: &Digest) -> Result<u64, Error> {
        let asked = repository.upstream().head_blob(repository.remote_name(), digest);
        let silent = match asked.await {
            Ok(head) => return Ok(head.size_bytes),
            Err(error @ upstream::Error::Invalid { .. }) => blob_error(&error, digest),
            Err(error) => return Err(blob_error(&error, digest)),
        };
        if let Some(declared_bytes) = self.core.declared_size(digest) {
            return Ok(declared_bytes);
        }
        let blob = self.blob(repository, digest, &Wants::Whole).await?;
        blob.size_bytes().ok_or(silent)
    }

    /// The blob if it is here and may answer for this repository, which it then is linked to.
    async fn held_blob(&self, repository: &Repository, digest: &Digest) -> Result<Option<StoredBlob>, Error> {
        let directory = repository.directory();
        match self
            .core
            .find(directory, Link::Layer(digest.clone()), digest)
            .await
        {
            Found::Linked(stored) => {
                self.core.touch(directory, &stored.canonical);
                Ok(Some(stored))
            }
            Found::Unlinked(stored) => {
                let known = self
                    .core
                    .index
                    .content(digest)
                    .unwrap_or_else(|e| Core::index_failed(&e, None));
                if known.is_some_and(|record| record.is_manifest) {
                    // A client that takes a manifest for a blob keeps a broken image (containerd#7390).
                    return Err(Error::BlobUnknown(digest.to_string()));
                }
                self.authorise(repository, digest).await?;
                // Not waited for: whoever leads a fill of this digest asks here with the slot taken.
                let _slot = self.core.flights.hold(digest);
                self.core.link_blob(directory, digest, &stored).await;
                Ok(Some(stored))
            }
            Found::Absent => Ok(None),
        }
    }

    /// Whether upstream gives the digest under this name too. Where nothing needs a login there is nothing to ask.
    pub(super) async fn authorise(&self, repository: &Repository, digest: &Digest) -> Result<(), Error> {
        if self.core.repositories.are_public() {
            return Ok(());
        }
        let asked = repository
            .upstream()
            .head_blob(repository.remote_name(), digest)
            .await;
        asked.map(drop).map_err(|e| blob_error(&e, digest))
    }

    /// Becomes a reader of a fill that another repository may have begun.
    async fn join(&self, repository: &Repository, digest: &Digest, fill: &Fill) -> Result<(), Error> {
        let directory = repository.directory();
        if !fill.links(directory) {
            self.authorise(repository, digest).await?;
            // Too late to be linked with the others: the next lookup finds the bytes and links them.
            fill.also_link(directory);
        }
        Ok(())
    }

    fn stored(&self, repository: &Repository, stored: StoredBlob, digest: &Digest) -> Blob {
        let size_bytes = Some(stored.size_bytes);
        let origin = self.core.origin(repository, digest);
        Blob::new(
            Arc::clone(&self.core),
            origin,
            How::Hit,
            size_bytes,
            Source::Stored(stored),
        )
    }

    /// Waits until a fill tells what it has; `None` when its task was lost.
    async fn follow(
        &self,
        repository: &Repository,
        digest: &Digest,
        fill: Arc<Fill>,
        is_collapsed: bool,
        wants: &Wants,
    ) -> Result<Option<Blob>, Error> {
        let origin = self.core.origin(repository, digest);
        let now = fill.now();
        if let Some(range) = far_range(wants, &now)
            && let Some(body) = open_beside(&origin, range).await
        {
            let total_bytes = body.total_bytes();
            let source = Source::Filling(fill);
            let blob = Blob::new(Arc::clone(&self.core), origin, How::Partial, total_bytes, source);
            return Ok(Some(blob.with_beside(body)));
        }
        let is_here_already = is_collapsed && matches!(now.end, Some(End::Verified));
        let progress = headers(&fill).await;
        let how = if is_here_already {
            How::Hit
        } else {
            let is_stored = !matches!(progress.end, Some(End::Storage));
            How::Miss {
                is_collapsed,
                is_stored,
            }
        };
        let (total_bytes, source) = match &progress.end {
            Some(End::Lost) => return Ok(None),
            Some(End::Upstream(error)) if progress.readable_bytes == 0 => {
                return Err(blob_error(error, digest));
            }
            Some(End::Wrong) if progress.readable_bytes == 0 => {
                return Err(Error::BadUpstream(format!("its bytes do not match `{digest}`")));
            }
            Some(End::Storage) if progress.file.is_none() => self.past_the_volume(&origin).await?,
            _ => (progress.total_bytes, Source::Filling(fill)),
        };
        Ok(Some(Blob::new(
            Arc::clone(&self.core),
            origin,
            how,
            total_bytes,
            source,
        )))
    }

    /// Upstream's body for one client, where the volume took nothing of it.
    async fn past_the_volume(&self, origin: &Origin) -> Result<(Option<u64>, Source), Error> {
        let body = Body::open(origin.clone(), 0, None, Skip::Allowed).await;
        let body = body.map_err(|e| blob_error(&e, &origin.digest))?;
        let total_bytes = body
            .total_bytes()
            .or_else(|| self.core.declared_size(&origin.digest));
        Ok((total_bytes, Source::past_the_volume(body)))
    }
}

/// Waits for upstream's headers; for a small blob, or one of unknown size, a while longer for its end.
async fn headers(fill: &Fill) -> Progress {
    let progress = fill.wait(|now| now.file.is_some()).await;
    if progress.end.is_some() || progress.total_bytes.is_some_and(|total| total > TAIL_BYTES) {
        return progress;
    }
    let whole = fill.wait(|_| false);
    tokio::time::timeout(SMALL_WAIT, whole).await.unwrap_or(progress)
}

/// The single range of a request that a fill will not reach soon.
fn far_range(wants: &Wants, progress: &Progress) -> Option<RangeSpec> {
    let Wants::Ranges(ranges) = wants else { return None };
    let [range] = ranges.as_slice() else { return None };
    let reach = progress.readable_bytes.saturating_add(NEAR_BYTES);
    let is_far = match *range {
        RangeSpec::FromTo(from, to) if to < from => false,
        RangeSpec::FromTo(from, _) | RangeSpec::From(from) => from >= reach,
        RangeSpec::Suffix(0) => false,
        RangeSpec::Suffix(length) => progress
            .total_bytes
            .is_none_or(|total| total.saturating_sub(length) >= reach),
    };
    (is_far && progress.end.is_none()).then_some(range.to_owned())
}

/// Asks upstream for a range of its own; `None` where that fails, and the fill has to serve it.
async fn open_beside(origin: &Origin, range: RangeSpec) -> Option<Body> {
    let first = |from: u64| Some(from.saturating_add(FIRST_BYTES));
    let opened = match range {
        RangeSpec::FromTo(from, to) => {
            let end = to.checked_add(1).min(first(from));
            Body::open(origin.clone(), from, end, Skip::Refused).await
        }
        RangeSpec::From(from) => Body::open(origin.clone(), from, first(from), Skip::Refused).await,
        RangeSpec::Suffix(length) => Body::open_suffix(origin.clone(), length).await,
    };
    opened.ok()?.clamped()
}

pub(super) fn blob_error(error: &crate::upstream::Error, digest: &Digest) -> Error {
    Error::of_upstream(error, || Error::BlobUnknown(digest.to_string()))
}
