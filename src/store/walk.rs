//! Walking the volume: what lies on it, folder by folder, so that no list of everything is ever in memory.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use object_store::path::Path as ObjectPath;

use super::layout::{self, Directory};
use super::{Error, Link, Operation, Store, is_absent};
use crate::oci::{Algorithm, Digest};

/// One of the folders among which the bytes are spread: those whose digests begin with the same two characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobFolder {
    algorithm: Algorithm,
    name: String,
}

impl BlobFolder {
    pub(super) fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Store {
    /// The digests that a repository links as manifests, damaged links among them. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn revisions(&self, directory: &Directory) -> Result<Vec<Digest>, Error> {
        self.digests_below(&layout::revisions_root(directory))
    }

    /// The digests that a repository links as blobs, damaged links among them. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn layers(&self, directory: &Directory) -> Result<Vec<Digest>, Error> {
        self.digests_below(&layout::layers_root(directory))
    }

    /// The names of all tags of a repository, dangling and damaged ones among them. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn tag_folders(&self, directory: &Directory) -> Result<Vec<String>, Error> {
        self.folders(&layout::tags_root(directory))
    }

    /// When a link was written, in milliseconds since the Unix epoch; `None` when there is none. Blocking.
    pub fn link_time(&self, directory: &Directory, link: &Link) -> Option<u64> {
        modified_ms(&self.path_of(&layout::link(directory, link)))
    }

    /// When bytes were written, in milliseconds since the Unix epoch; `None` when there are none. Blocking.
    pub fn blob_time(&self, canonical: &Digest) -> Option<u64> {
        modified_ms(&self.path_of(&layout::blob_data(canonical)))
    }

    /// The folders among which the bytes are spread. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn blob_folders(&self) -> Result<Vec<BlobFolder>, Error> {
        let mut found = Vec::new();
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let root = layout::blobs_root().join(algorithm.as_str());
            let names = self.folders(&root)?;
            found.extend(names.into_iter().map(|name| BlobFolder { algorithm, name }));
        }
        Ok(found)
    }

    /// The digests that have a folder of their own in `folder`, whether or not bytes are in it. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn blobs_in(&self, folder: &BlobFolder) -> Result<Vec<Digest>, Error> {
        let path = layout::blobs_root()
            .join(folder.algorithm.as_str())
            .join(folder.name.as_str());
        Ok(digests(folder.algorithm, self.folders(&path)?))
    }

    /// Removes the folder that held `link`, and those above it as far as they are empty. Blocking.
    pub fn prune_link(&self, directory: &Directory, link: &Link) {
        self.prune(&layout::link(directory, link));
    }

    /// Removes the folder that held the bytes of `canonical`, if it is empty. The caller holds the digest's flight
    /// slot; the folder above is shared with digests that may be on their way in, so it stays. Blocking.
    pub fn prune_blob(&self, canonical: &Digest) {
        if let Some(folder) = self.path_of(&layout::blob_data(canonical)).parent() {
            drop(fs::remove_dir(folder));
        }
    }

    /// Removes empty folders, from the one of the file at `path` upwards; the volume's own top stays.
    fn prune(&self, path: &ObjectPath) {
        let file = self.path_of(path);
        let top = self.path_of(&layout::registry_root());
        for folder in file.ancestors().skip(1) {
            // `remove_dir` refuses a folder that is not empty: nothing can be lost.
            if folder == top || !folder.starts_with(&top) || fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }

    fn digests_below(&self, root: &ObjectPath) -> Result<Vec<Digest>, Error> {
        let mut found = Vec::new();
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let names = self.folders(&root.clone().join(algorithm.as_str()))?;
            found.extend(digests(algorithm, names));
        }
        Ok(found)
    }

    /// The size of the volume's file system in bytes, and what of it is free to this process. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn space(&self) -> Result<Space, Error> {
        let facts = rustix::fs::statvfs(self.root())
            .map_err(|e| Error::io(Operation::Read, self.root().display().to_string(), e.into()))?;
        Ok(Space {
            // As `df` counts: blocks that are kept for root are neither used nor free.
            total_bytes: facts
                .f_blocks
                .saturating_sub(facts.f_bfree)
                .saturating_add(facts.f_bavail)
                .saturating_mul(facts.f_frsize),
            free_bytes: facts.f_bavail.saturating_mul(facts.f_frsize),
        })
    }
}

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All of it, in bytes.
    pub total_bytes: u64,
    /// What may still be written, in bytes.
    pub free_bytes: u64,
}

fn digests(algorithm: Algorithm, names: Vec<String>) -> Vec<Digest> {
    let parse = |name: String| Digest::parse(&format!("{}:{name}", algorithm.as_str())).ok();
    names.into_iter().filter_map(parse).collect()
}

/// When a file was written; `None` when there is none.
pub(super) fn modified_ms(path: &Path) -> Option<u64> {
    match fs::metadata(path) {
        Ok(facts) => written_ms(&facts),
        Err(error) => {
            if !is_absent(&error) {
                tracing::debug!(path = %path.display(), %error, "cannot read the age of a file");
            }
            None
        }
    }
}

/// When a file was written last, in milliseconds since the Unix epoch; `None` where the file system does not tell.
pub(super) fn written_ms(facts: &fs::Metadata) -> Option<u64> {
    let since = facts.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_millis()).ok()
}
