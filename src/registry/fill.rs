//! A fill: one upstream transfer of a digest, owned by a task of the server, written to a spool file that everyone who
//! wants the digest reads behind the writer.
//!
//! The last piece of the file is held back until the digest is right ([`TAIL_BYTES`]). Readers see [`Progress`]; a fill
//! whose task is lost shows as a closed channel.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::parts::Core;
use super::source::{Body, Origin, Skip};
use crate::flight::Slot;
use crate::metrics::FillResult;
use crate::oci::Digest;
use crate::store::layout::Directory;
use crate::store::{self, Reservation, Spool, blocking};
use crate::upstream;

/// How much of a body is held back until its digest is right, in bytes. Bodies up to this size are verified whole.
pub(super) const TAIL_BYTES: u64 = 64 * 1024;

/// A fill as its readers see it.
#[derive(Debug)]
pub struct Fill {
    progress: watch::Receiver<Progress>,
    /// The repositories to link when the bytes are committed; `None` once that is done.
    directories: Mutex<Option<Vec<Directory>>>,
}

/// How far a fill is.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    /// The growing file, once upstream has answered.
    pub(super) file: Option<Arc<File>>,
    /// The size of the blob, where it is known.
    pub(super) total_bytes: Option<u64>,
    /// How much may be read.
    pub(super) readable_bytes: u64,
    /// How it ended.
    pub(super) end: Option<End>,
}

/// How a fill ended.
#[derive(Debug, Clone)]
pub(super) enum End {
    /// Everything is readable and right.
    Verified,
    /// Upstream failed beyond healing.
    Upstream(upstream::Error),
    /// The bytes are not what the digest says.
    Wrong,
    /// The volume failed; what is readable stays so, the rest has to come past it.
    Storage,
    /// The task is gone.
    Lost,
}

impl Fill {
    /// Makes a fill for `directory` and the writer's end of it.
    pub(super) fn new(directory: Directory) -> (Arc<Self>, watch::Sender<Progress>) {
        let (sender, progress) = watch::channel(Progress::default());
        (
            Arc::new(Self {
                progress,
                directories: Mutex::new(Some(vec![directory])),
            }),
            sender,
        )
    }

    /// Has another repository linked when the bytes are there; `false` when it is too late for that.
    pub(super) fn also_link(&self, directory: &Directory) -> bool {
        let mut directories = self.directories.lock();
        let Some(list) = directories.as_mut() else {
            return false;
        };
        if !list.contains(directory) {
            list.push(directory.clone());
        }
        true
    }

    /// Whether a repository will be linked.
    pub(super) fn links(&self, directory: &Directory) -> bool {
        self.directories
            .lock()
            .as_ref()
            .is_some_and(|list| list.contains(directory))
    }

    /// How far it is now.
    pub(super) fn now(&self) -> Progress {
        self.progress.borrow().clone()
    }

    /// Waits until `reached` says so, or the fill has ended. Cancel safe.
    pub(super) async fn wait(&self, reached: impl Fn(&Progress) -> bool + Send) -> Progress {
        let mut progress = self.progress.clone();
        let found = progress
            .wait_for(|now| now.end.is_some() || reached(now))
            .await
            .map(|now| now.clone());
        found.unwrap_or_else(|_| {
            let mut last = self.now();
            last.end.get_or_insert(End::Lost);
            last
        })
    }
}

/// Runs a fill to its end. Holds the digest's slot all the time.
pub(super) async fn lead(
    core: Arc<Core>,
    origin: Origin,
    fill: Arc<Fill>,
    sender: watch::Sender<Progress>,
    slot: Slot<Digest, Arc<Fill>>,
) {
    core.metrics.fills_in_flight.inc();
    let under_way = Guard(Arc::clone(&core));
    let end = match transfer(&core, &origin, &sender).await {
        // The room stays reserved until the bytes are counted as used.
        Ok((spool, _room)) => keep(&core, &origin, &fill, &sender, spool).await,
        Err(end) => end,
    };
    let result = match &end {
        End::Verified => FillResult::Stored,
        End::Wrong => FillResult::Wrong,
        End::Storage => FillResult::PassedThrough,
        End::Upstream(_) | End::Lost => FillResult::Failed,
    };
    report(&origin, &end);
    core.metrics.fill_ended(result);
    sender.send_modify(|progress| {
        progress.end.get_or_insert(end);
    });
    drop((under_way, slot));
}

fn report(origin: &Origin, end: &End) {
    let (repository, digest) = (&origin.repository, &origin.digest);
    match end {
        End::Verified => tracing::debug!(?repository, %digest, "blob stored"),
        End::Upstream(error) => tracing::warn!(?repository, %digest, %error, "fill failed"),
        End::Wrong => tracing::error!(?repository, %digest, "upstream sent wrong bytes, nothing stored"),
        End::Storage => tracing::warn!(?repository, %digest, "blob passed through unstored"),
        End::Lost => {}
    }
}

/// Moves upstream's body into a spool file, telling the readers.
async fn transfer(
    core: &Arc<Core>,
    origin: &Origin,
    sender: &watch::Sender<Progress>,
) -> Result<(Spool, Reservation), End> {
    // Room and file come first: where there is none, upstream is asked by each reader and not here.
    let declared_bytes = core.declared_size(&origin.digest);
    let mut room = core
        .capacity
        .reserve(declared_bytes.unwrap_or(0))
        .ok_or(End::Storage)?;
    let (store, digest) = (core.store.clone(), origin.digest.clone());
    let spool = blocking(move || store.spool(&digest))
        .await
        .map_err(|e| core.storage_failed(&e, End::Storage))?;
    let mut body = Body::open(origin.clone(), 0, None, Skip::Allowed)
        .await
        .map_err(End::Upstream)?;
    let total_bytes = body.total_bytes().or(declared_bytes);
    if total_bytes.is_some_and(|total| !room.grow_to(total)) {
        return Err(End::Storage);
    }
    sender.send_modify(|progress| {
        progress.file = Some(Arc::clone(spool.file()));
        progress.total_bytes = total_bytes;
    });
    let mut spool = spool;
    loop {
        let batch = body.next_batch().await.map_err(End::Upstream)?;
        if batch.is_empty() {
            return Ok((spool, room));
        }
        let (returned, written) = append(spool, batch).await;
        spool = returned;
        written.map_err(|e| core.storage_failed(&e, End::Storage))?;
        let written_bytes = spool.written_bytes();
        if total_bytes.is_some_and(|total| written_bytes > total) {
            return Err(End::Wrong);
        }
        if !room.grow_to(written_bytes) {
            return Err(End::Storage);
        }
        let readable_bytes = total_bytes
            .unwrap_or(written_bytes)
            .saturating_sub(TAIL_BYTES)
            .min(written_bytes);
        sender.send_if_modified(|progress| {
            let grew = progress.readable_bytes != readable_bytes;
            progress.readable_bytes = readable_bytes;
            grew
        });
    }
}

async fn append(mut spool: Spool, batch: Vec<Bytes>) -> (Spool, Result<(), store::Error>) {
    blocking(move || {
        let written = batch.iter().try_for_each(|bytes| spool.append(bytes));
        (spool, written)
    })
    .await
}

/// Verifies, gives the readers the end, commits, links, and tells the index.
async fn keep(
    core: &Arc<Core>,
    origin: &Origin,
    fill: &Fill,
    sender: &watch::Sender<Progress>,
    spool: Spool,
) -> End {
    let total_bytes = sender.borrow().total_bytes;
    let size_bytes = spool.written_bytes();
    if total_bytes.is_some_and(|total| total != size_bytes) {
        return End::Wrong;
    }
    let Ok(verified) = spool.finish(&origin.digest) else {
        return End::Wrong;
    };
    sender.send_modify(|progress| {
        progress.total_bytes = Some(size_bytes);
        progress.readable_bytes = size_bytes;
        progress.end = Some(End::Verified);
    });
    let store = core.store.clone();
    let stored = match blocking(move || store.commit(verified)).await {
        Ok(stored) => stored,
        Err(error) => return core.storage_failed(&error, End::Storage),
    };
    let directories = fill.directories.lock().take().unwrap_or_default();
    for directory in directories {
        core.link_blob(&directory, &origin.digest, &stored).await;
    }
    End::Verified
}

struct Guard(Arc<Core>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.metrics.fills_in_flight.dec();
    }
}
