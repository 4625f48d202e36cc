//! Bytes on the volume: content-addressed blobs and the links that give them to repositories.
//!
//! distribution's layout, file for file, on an object store over a folder. The store knows digests and directories; it
//! knows no upstream, no expiry and no HTTP. What it returns as present is a non-empty regular file of the size asked
//! for; whether the bytes are right is known from their commit, or found out by [`Store::check`].

mod capacity;
pub mod error;
pub mod layout;
mod links;
pub mod spool;
mod sweep;
mod unlink;
mod uploads;
mod walk;

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::ObjectStoreExt;
use object_store::local::LocalFileSystem;

pub use capacity::{Capacity, Reservation};
pub use error::{Error, Operation};
pub use links::Link;
pub use spool::{Spool, Verified};
pub use sweep::Leftovers;
pub use uploads::{Upload, UploadId};
pub use walk::{BlobFolder, Space};

use crate::oci::{Digest, Hasher};
use layout::Directory;

/// The flag of open(2): do not wait for the other end of a pipe.
const O_NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
/// Read size of [`Store::check`], in bytes.
const CHECK_CHUNK_BYTES: usize = 256 * 1024;

/// The volume. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    root: Arc<Path>,
    objects: Arc<LocalFileSystem>,
}

/// A blob on the volume, open for reading; it stays readable when it is deleted.
#[derive(Debug, Clone)]
pub struct StoredBlob {
    /// The open file.
    pub file: Arc<File>,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When it was written last, in milliseconds since the Unix epoch; 0 where the volume does not tell.
    pub modified_ms: u64,
    /// The digest under which the bytes lie (sha256).
    pub canonical: Digest,
}

impl Store {
    /// Opens the volume at `root`, which is made if it is missing.
    ///
    /// # Errors
    /// [`Error`] when the folder can be neither made nor read.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let opening = |source| Error::io(Operation::Open, root.display().to_string(), source);
        std::fs::create_dir_all(root).map_err(opening)?;
        let root = root.canonicalize().map_err(opening)?;
        let objects = LocalFileSystem::new_with_prefix(&root)
            .map_err(|e| Error::object(Operation::Open, root.display().to_string(), e))?
            .with_fsync(true);
        Ok(Self {
            root: Arc::from(root),
            objects: Arc::new(objects),
        })
    }

    /// The volume's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Starts a spool file for content that will be asked for as `digest`. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the file cannot be made.
    pub fn spool(&self, digest: &Digest) -> Result<Spool, Error> {
        Spool::create(&self.spool_folder(), digest.algorithm())
    }

    /// Where unfinished content lies.
    pub fn spool_folder(&self) -> PathBuf {
        self.root.join(layout::SPOOL)
    }

    /// The bytes stored under `canonical`; `None` when there are none, or an empty file stands where bytes should be.
    /// Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn blob(&self, canonical: &Digest) -> Result<Option<StoredBlob>, Error> {
        let path = self.path_of(&layout::blob_data(canonical));
        let failed = |source| Error::io(Operation::Read, canonical.to_string(), source);
        // A pipe or a device in the place of bytes must not hold the thread.
        let opened = File::options().read(true).custom_flags(O_NONBLOCK).open(&path);
        let file = match opened {
            Ok(file) => file,
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let facts = file.metadata().map_err(failed)?;
        let is_hollow = facts.len() == 0 && *canonical != Digest::of(canonical.algorithm(), b"");
        if !facts.is_file() || is_hollow {
            return Ok(None);
        }
        Ok(Some(StoredBlob {
            file: Arc::new(file),
            size_bytes: facts.len(),
            modified_ms: walk::written_ms(&facts).unwrap_or(0),
            canonical: canonical.clone(),
        }))
    }

    /// Moves verified bytes to their place. The file is synced before it gets its name. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails; the spool file is gone then.
    pub fn commit(&self, verified: Verified) -> Result<StoredBlob, Error> {
        let canonical = verified.canonical().clone();
        let failed = |source| Error::io(Operation::Commit, canonical.to_string(), source);
        let target = self.path_of(&layout::blob_data(&canonical));
        let folder = target.parent().unwrap_or(&self.root);
        verified.file().sync_data().map_err(failed)?;
        std::fs::create_dir_all(folder).map_err(failed)?;
        let stored = StoredBlob {
            file: Arc::clone(verified.file()),
            size_bytes: verified.size_bytes(),
            modified_ms: 0,
            canonical: canonical.clone(),
        };
        verified.rename_to(&target).map_err(failed)?;
        sync_folder(folder).map_err(failed)?;
        Ok(stored)
    }

    /// Reads all bytes under `blob` and tells whether they are what their digest says. Blocking, 0.6 s per GiB.
    ///
    /// # Errors
    /// [`Error`] when the file cannot be read.
    pub fn check(&self, blob: &StoredBlob) -> Result<bool, Error> {
        let mut hasher = Hasher::new(blob.canonical.algorithm());
        let mut buffer = vec![0; CHECK_CHUNK_BYTES];
        let mut at = 0;
        loop {
            let count = blob
                .file
                .read_at(&mut buffer, at)
                .map_err(|source| Error::io(Operation::Read, blob.canonical.to_string(), source))?;
            if count == 0 {
                return Ok(hasher.finish() == blob.canonical);
            }
            hasher.update(buffer.get(..count).unwrap_or_default());
            at += count as u64;
        }
    }

    /// All bytes of a small blob. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the file cannot be read.
    pub fn read_all(&self, blob: &StoredBlob) -> Result<Vec<u8>, Error> {
        let failed = |source| Error::io(Operation::Read, blob.canonical.to_string(), source);
        let size = usize::try_from(blob.size_bytes)
            .map_err(|_| failed(std::io::Error::other("larger than the address space")))?;
        let mut bytes = vec![0; size];
        blob.file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        Ok(bytes)
    }

    /// Takes bytes that are not what their digest says out of the way, so that they are fetched again. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the file can be neither moved nor removed.
    pub fn quarantine(&self, canonical: &Digest) -> Result<(), Error> {
        let failed = |source| Error::io(Operation::Delete, canonical.to_string(), source);
        let folder = self.root.join(layout::QUARANTINE);
        let source = self.path_of(&layout::blob_data(canonical));
        let name = format!("{}-{}", canonical.algorithm().as_str(), canonical.hex());
        let moved =
            std::fs::create_dir_all(&folder).and_then(|()| std::fs::rename(&source, folder.join(name)));
        match moved.or_else(|_| std::fs::remove_file(&source)) {
            Err(e) if !is_absent(&e) => Err(failed(e)),
            _ => Ok(()),
        }
    }

    /// Deletes the bytes under `canonical`. The caller holds the digest's flight slot. Open readers finish.
    ///
    /// # Errors
    /// [`Error`] when the volume fails; bytes that are not there are no error.
    pub async fn delete_blob(&self, canonical: &Digest) -> Result<(), Error> {
        let path = layout::blob_data(canonical);
        match self.objects.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(Error::object(Operation::Delete, path.to_string(), e)),
        }
    }

    /// Writes, reads back and removes a small file: whether the volume takes writes. Blocking.
    ///
    /// # Errors
    /// [`Error`] with the operation that failed.
    pub fn probe(&self) -> Result<(), Error> {
        let path = self.root.join(layout::PROBE);
        let failed = |source| Error::io(Operation::Write, path.display().to_string(), source);
        let folder = path.parent().unwrap_or(&self.root);
        std::fs::create_dir_all(folder).map_err(failed)?;
        std::fs::write(&path, b"probe").map_err(failed)?;
        let is_same = std::fs::read(&path).map_err(failed)? == b"probe";
        std::fs::remove_file(&path).map_err(failed)?;
        if is_same {
            Ok(())
        } else {
            Err(failed(std::io::Error::other(
                "read back other bytes than written",
            )))
        }
    }

    /// The repositories on the volume, in lexical order: every directory that holds links of its own. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn repositories(&self) -> Result<Vec<Directory>, Error> {
        let mut found = Vec::new();
        let mut pending = vec![String::new()];
        while let Some(prefix) = pending.pop() {
            let mut is_repository = false;
            for name in self.folders(&layout::repository_root(&prefix))? {
                if name.starts_with('_') {
                    is_repository |= matches!(name.as_str(), "_layers" | "_manifests");
                } else {
                    pending.push(if prefix.is_empty() {
                        name
                    } else {
                        format!("{prefix}/{name}")
                    });
                }
            }
            if is_repository {
                found.extend(Directory::parse(&prefix));
            }
        }
        found.sort();
        Ok(found)
    }

    /// Whether a repository has, or had, links of its own. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn has_repository(&self, directory: &Directory) -> Result<bool, Error> {
        let folders = self.folders(&layout::repository_root(directory.as_str()))?;
        Ok(folders
            .iter()
            .any(|name| matches!(name.as_str(), "_layers" | "_manifests")))
    }

    /// Names of the folders directly below an object path, unordered; none where the path is missing. Blocking.
    pub(crate) fn folders(&self, path: &object_store::path::Path) -> Result<Vec<String>, Error> {
        let failed = |source| Error::io(Operation::List, path.to_string(), source);
        let entries = match std::fs::read_dir(self.path_of(path)) {
            Ok(entries) => entries,
            Err(e) if is_absent(&e) => return Ok(Vec::new()),
            Err(e) => return Err(failed(e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }

    /// The file behind an object path.
    pub(crate) fn path_of(&self, path: &object_store::path::Path) -> PathBuf {
        self.root.join(path.as_ref())
    }

    pub(crate) fn objects(&self) -> &LocalFileSystem {
        &self.objects
    }
}

/// Whether an error says that there is nothing, in one of the ways a folder tree can say so.
pub(crate) fn is_absent(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
    )
}

fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Runs blocking work off the runtime's threads.
///
/// # Errors
/// Those of the work.
///
/// # Panics
/// When the work panics.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::{Algorithm, Tag};

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        (folder, store)
    }

    fn put(store: &Store, bytes: &[u8]) -> StoredBlob {
        let digest = Digest::of(Algorithm::Sha256, bytes);
        let mut spool = store.spool(&digest).unwrap();
        spool.append(bytes).unwrap();
        store.commit(spool.finish(&digest).unwrap()).unwrap()
    }

    #[test]
    fn committed_bytes_lie_where_distribution_looks_for_them() {
        let (folder, store) = store();
        let blob = put(&store, b"hello");
        let hex = blob.canonical.hex();
        let path = folder.path().join(format!(
            "docker/registry/v2/blobs/sha256/{}/{hex}/data",
            &hex[..2]
        ));
        assert_eq!(std::fs::read(path).unwrap(), b"hello");
        assert_eq!(std::fs::read_dir(store.spool_folder()).unwrap().count(), 0);
        let again = store.blob(&blob.canonical).unwrap().unwrap();
        assert!(store.check(&again).unwrap());
        assert_eq!(store.read_all(&again).unwrap(), b"hello");
    }

    #[test]
    fn an_empty_file_is_a_miss_unless_the_blob_is_empty() {
        let (_folder, store) = store();
        let blob = put(&store, b"hello");
        std::fs::write(store.path_of(&layout::blob_data(&blob.canonical)), b"").unwrap();
        assert!(store.blob(&blob.canonical).unwrap().is_none());
        let empty = put(&store, b"");
        assert!(store.blob(&empty.canonical).unwrap().is_some());
    }

    #[test]
    fn wrong_bytes_are_found_and_quarantined() {
        let (_folder, store) = store();
        let blob = put(&store, b"hello");
        std::fs::write(store.path_of(&layout::blob_data(&blob.canonical)), b"hellO").unwrap();
        let wrong = store.blob(&blob.canonical).unwrap().unwrap();
        assert!(!store.check(&wrong).unwrap());
        store.quarantine(&blob.canonical).unwrap();
        store.quarantine(&blob.canonical).unwrap();
        assert!(store.blob(&blob.canonical).unwrap().is_none());
    }

    #[tokio::test]
    async fn sha512_content_is_stored_under_sha256_and_linked() {
        let (_folder, store) = store();
        let digest = Digest::of(Algorithm::Sha512, b"hello");
        let mut spool = store.spool(&digest).unwrap();
        spool.append(b"hello").unwrap();
        let blob = store.commit(spool.finish(&digest).unwrap()).unwrap();
        assert_eq!(blob.canonical, Digest::of(Algorithm::Sha256, b"hello"));
        let directory = Directory::parse("a/b").unwrap();
        store
            .link(&directory, &Link::Layer(digest.clone()), &blob.canonical)
            .await
            .unwrap();
        let target = store.linked(&directory, &Link::Layer(digest)).unwrap();
        assert_eq!(target, Some(blob.canonical));
        assert_eq!(store.repositories().unwrap(), [directory]);
    }

    #[tokio::test]
    async fn damaged_links_are_a_miss_and_tags_are_listed() {
        let (_folder, store) = store();
        let directory = Directory::parse("library/alpine").unwrap();
        let digest = Digest::of(Algorithm::Sha256, b"m");
        for name in ["b", "a"] {
            store
                .link(&directory, &Link::Tag(Tag::parse(name).unwrap()), &digest)
                .await
                .unwrap();
        }
        assert_eq!(store.tags(&directory).unwrap(), ["a", "b"]);
        let other = Link::Layer(Digest::of(Algorithm::Sha256, b"x"));
        for content in ["", "sha256:", "garbage", digest.to_string().as_str()] {
            let path = store.path_of(&layout::link(&directory, &other));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
            assert_eq!(store.linked(&directory, &other).unwrap(), None, "{content}");
        }
    }

    #[test]
    fn the_probe_tells_a_healthy_volume() {
        let (_folder, store) = store();
        store.probe().unwrap();
    }
}
