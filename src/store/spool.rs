//! Spool files: content on its way in, hashed while it is written, readable while it grows.
//!
//! An upload is a spool as well once it is closed: its file, which may have outlived a process, is hashed from the start.
//!
//! [`Verified`] is what a spool becomes when its bytes are right. It has one constructor, [`Spool::finish`], and it is
//! the only thing that [`super::Store::commit`] takes. A spool file that is dropped before is removed; that of an upload
//! stays, because the upload can be closed again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error as ThisError;

use super::{Error, Operation};
use crate::oci::{Algorithm, Digest, Hasher};

/// Read size when an upload is hashed, in bytes.
const REHASH_BYTES: usize = 256 * 1024;

/// A file that grows while others read it.
#[derive(Debug)]
pub struct Spool {
    file: Arc<File>,
    path: Temporary,
    written_bytes: u64,
    hasher: Hasher,
    /// Computed beside another algorithm, since bytes lie under their sha256.
    canonical: Option<Hasher>,
}

/// Bytes whose digest is right, still under their temporary name.
#[derive(Debug)]
pub struct Verified {
    file: Arc<File>,
    path: Temporary,
    size_bytes: u64,
    canonical: Digest,
}

/// The bytes are not what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[error("expected `{expected}`, got `{actual}`")]
pub struct Mismatch {
    /// What was asked for.
    pub expected: Digest,
    /// What came.
    pub actual: Digest,
}

impl Spool {
    /// Makes an empty spool file in `folder`. Blocking.
    pub(crate) fn create(folder: &Path, algorithm: Algorithm) -> Result<Self, Error> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(name);
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
        };
        let file = open()
            .or_else(|_| std::fs::create_dir_all(folder).and_then(|()| open()))
            .map_err(|source| Error::io(Operation::Write, path.display().to_string(), source))?;
        Ok(Self {
            file: Arc::new(file),
            path: Temporary::removed(path),
            written_bytes: 0,
            hasher: Hasher::new(algorithm),
            canonical: (algorithm != Algorithm::Sha256).then(|| Hasher::new(Algorithm::Sha256)),
        })
    }

    /// Takes the file of an upload over and hashes what is in it. It stays where it is, whatever comes, until it is
    /// committed. Blocking, 0.6 s per GiB.
    pub(crate) fn adopt(file: Arc<File>, path: PathBuf, algorithm: Algorithm) -> Result<Self, Error> {
        let mut spool = Self {
            file,
            path: Temporary::kept(path),
            written_bytes: 0,
            hasher: Hasher::new(algorithm),
            canonical: (algorithm != Algorithm::Sha256).then(|| Hasher::new(Algorithm::Sha256)),
        };
        let mut buffer = vec![0; REHASH_BYTES];
        loop {
            let count = spool
                .file
                .read_at(&mut buffer, spool.written_bytes)
                .map_err(|source| Error::io(Operation::Read, "upload".to_owned(), source))?;
            if count == 0 {
                return Ok(spool);
            }
            spool.hash(buffer.get(..count).unwrap_or_default());
        }
    }

    /// Writes and hashes bytes at the end. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails; what was written before stays readable.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file
            .write_all_at(bytes, self.written_bytes)
            .map_err(|source| Error::io(Operation::Write, "spool".to_owned(), source))?;
        self.hash(bytes);
        Ok(())
    }

    fn hash(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        if let Some(canonical) = &mut self.canonical {
            canonical.update(bytes);
        }
        self.written_bytes += bytes.len() as u64;
    }

    /// The file, for readers behind the writer.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Ends the file if its bytes are what `expected` says.
    ///
    /// # Errors
    /// [`Mismatch`] when they are not; the file is gone then, unless it is an upload's.
    pub fn finish(self, expected: &Digest) -> Result<Verified, Mismatch> {
        let actual = self.hasher.finish();
        if actual != *expected {
            return Err(Mismatch {
                expected: expected.clone(),
                actual,
            });
        }
        let canonical = self.canonical.map_or(actual, Hasher::finish);
        Ok(Verified {
            file: self.file,
            path: self.path,
            size_bytes: self.written_bytes,
            canonical,
        })
    }
}

impl Verified {
    /// The sha256 of the bytes, under which they will lie.
    pub fn canonical(&self) -> &Digest {
        &self.canonical
    }

    /// How many bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The open file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub(super) fn rename_to(mut self, target: &Path) -> std::io::Result<()> {
        if let Some(path) = &self.path.path {
            std::fs::rename(path, target)?;
        }
        self.path.path = None;
        Ok(())
    }
}

/// The name of a file that has no other yet; the file is removed on drop, unless it belongs to an upload.
#[derive(Debug)]
struct Temporary {
    path: Option<PathBuf>,
    is_kept: bool,
}

impl Temporary {
    fn removed(path: PathBuf) -> Self {
        Self {
            path: Some(path),
            is_kept: false,
        }
    }

    fn kept(path: PathBuf) -> Self {
        Self {
            path: Some(path),
            is_kept: true,
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let (Some(path), false) = (self.path.take(), self.is_kept)
            && let Err(error) = std::fs::remove_file(&path)
            && !super::is_absent(&error)
        {
            tracing::warn!(path = %path.display(), %error, "cannot remove a spool file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_bytes_never_become_verified_and_leave_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(&folder.path().join("new"), Algorithm::Sha256).unwrap();
        spool.append(b"hellO").unwrap();
        let expected = Digest::of(Algorithm::Sha256, b"hello");
        let mismatch = spool.finish(&expected).unwrap_err();
        assert_eq!(mismatch.actual, Digest::of(Algorithm::Sha256, b"hellO"));
        assert_eq!(std::fs::read_dir(folder.path().join("new")).unwrap().count(), 0);
    }

    #[test]
    fn what_is_written_can_be_read_behind_the_writer() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool = Spool::create(folder.path(), Algorithm::Sha256).unwrap();
        spool.append(b"abc").unwrap();
        let reader = Arc::clone(spool.file());
        spool.append(b"def").unwrap();
        let mut bytes = [0; 6];
        reader.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!((&bytes, spool.written_bytes()), (b"abcdef", 6));
        drop(spool);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        reader.read_exact_at(&mut bytes, 0).unwrap();
    }
}
