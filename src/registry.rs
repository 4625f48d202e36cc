//! The service: pulls through, and keeps what is pushed. It knows no HTTP and names no status code; the edge maps its answers.
//!
//! ```text
//! blobs      from the volume, from a fill under way, or from a fill begun now
//! fill       one transfer per digest: upstream -> spool + hash -> verify -> commit -> link -> index
//! source     an upstream body that is resumed where it breaks
//! ranged     a range beside a fill
//! reader     an open blob as a stream of pieces
//! manifests  by digest and by tag
//! lists      tags, catalog, referrers
//! hosted     the repositories that larder owns: pushed to, never asked for upstream
//! ```

pub mod answer;
mod blobs;
pub mod error;
mod fill;
pub mod hosted;
mod lists;
mod manifests;
mod parts;
mod ranged;
mod reader;
mod repositories;
mod source;

use std::fmt;
use std::sync::Arc;

use tokio_util::task::TaskTracker;

pub use answer::{Answer, Content, ContentError, How, ManifestContent, Page, PageRequest, Piece, Referrers};
pub use blobs::{RangeSpec, Wants};
pub use error::Error;
pub use fill::Fill;
pub use hosted::{HostedRepository, PushError};
pub use parts::Settings;
pub use reader::Blob;
pub use repositories::{Entry, Repositories, Repository};

use crate::clock::Clock;
use crate::flight::{Coalesce, Flights};
use crate::meta::Index;
use crate::metrics::Metrics;
use crate::oci::{Digest, Reference};
use crate::store::layout::Directory;
use crate::store::{Capacity, Store};

/// What the service is composed of.
#[derive(Debug)]
pub struct Parts {
    /// What it is told to do.
    pub settings: Settings,
    /// The configured upstreams.
    pub repositories: Repositories,
    /// The volume.
    pub store: Store,
    /// The index over it.
    pub index: Index,
    /// The bound on it.
    pub capacity: Capacity,
    /// Where to count.
    pub metrics: Arc<Metrics>,
    /// Wall time.
    pub clock: Clock,
    /// Counts the tasks that outlive requests.
    pub tracker: TaskTracker,
}

/// The pull-through service.
pub struct Registry {
    core: Arc<parts::Core>,
    manifest_fetches: Coalesce<(Directory, Reference), manifests::Fetched>,
    /// The uploads that are being written to.
    writers: hosted::Writers,
}

impl Registry {
    /// Composes the service. No I/O.
    pub fn new(parts: Parts) -> Self {
        let manifest_fetches = Coalesce::new(parts.tracker.clone());
        if let Some(hosting) = parts.repositories.hosting().cloned() {
            parts
                .index
                .pin_repositories(move |directory| hosting.owns(directory));
        }
        Self {
            core: Arc::new(parts::Core::new(parts)),
            manifest_fetches,
            writers: hosted::Writers::default(),
        }
    }

    /// Finds the repository that a request means: `path` is everything before `/manifests/` and the like.
    ///
    /// # Errors
    /// [`Error::NameInvalid`] for a path that is no name, [`Error::NameUnknown`] for an upstream that is not configured.
    pub fn locate(&self, path: &str, namespace: Option<&str>) -> Result<Repository, Error> {
        self.core.repositories.locate(path, namespace)
    }

    /// The fills under way; whoever deletes bytes holds their slot.
    pub fn flights(&self) -> Flights<Digest, Arc<Fill>> {
        self.core.flights.clone()
    }

    /// What to call when a repository has lost a digest: memory does not go on answering for it.
    pub fn forgetter(&self) -> impl Fn(&Directory, &Digest) + Send + Sync + use<> {
        let manifests = self.core.manifests.clone();
        move |directory, digest| manifests.invalidate(&(directory.clone(), digest.clone()))
    }

    /// The number of fills under way.
    pub fn fills_in_flight(&self) -> usize {
        self.core.flights.len()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("core", &self.core)
            .finish_non_exhaustive()
    }
}
