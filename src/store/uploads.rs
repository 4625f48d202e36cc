//! Uploads: content that clients push in pieces, in distribution's place for it (`_uploads/<id>/{data,startedat}` of the
//! repository), so that an upload outlives the process. Who may write to one at a time is decided by the caller.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use super::layout::{self, Directory};
use super::{Error, Operation, Spool, Store, is_absent, walk};
use crate::oci::Algorithm;

/// The name of an upload: a UUID, and so never a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UploadId(Uuid);

impl UploadId {
    /// A new one that nobody can guess.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Parses what a client sent; only the form that [`UploadId`] is printed in is one.
    pub fn parse(text: &str) -> Option<Self> {
        let id = Self(Uuid::parse_str(text).ok()?);
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// An upload, open for writing.
#[derive(Debug)]
pub struct Upload {
    file: Arc<File>,
    path: PathBuf,
    size_bytes: u64,
}

impl Upload {
    /// How many bytes have come.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Writes bytes at the end. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails; the upload is then as long as before.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if let Err(source) = self.file.write_all_at(bytes, self.size_bytes) {
            let failure = self.failed(Operation::Write, source);
            // Without room for all of it a part may have been written, which the client does not know of.
            self.cut(self.size_bytes)?;
            return Err(failure);
        }
        self.size_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Takes back what came after the first `size_bytes`. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn cut(&mut self, size_bytes: u64) -> Result<(), Error> {
        self.file
            .set_len(size_bytes)
            .map_err(|source| self.failed(Operation::Write, source))?;
        self.size_bytes = size_bytes;
        Ok(())
    }

    /// Hashes everything that has come, so that it can be verified. The upload stays until it is committed. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn into_spool(self, algorithm: Algorithm) -> Result<Spool, Error> {
        Spool::adopt(self.file, self.path, algorithm)
    }

    fn failed(&self, operation: Operation, source: std::io::Error) -> Error {
        Error::io(operation, self.path.display().to_string(), source)
    }
}

impl Store {
    /// Begins an empty upload. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn begin_upload(&self, directory: &Directory, id: UploadId, started_at: &str) -> Result<(), Error> {
        let folder = self.upload_folder(directory, id);
        let made = fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("startedat"), started_at))
            .and_then(|()| File::create_new(folder.join("data")).map(drop));
        made.map_err(|source| {
            drop(fs::remove_dir_all(&folder));
            Error::io(Operation::Write, folder.display().to_string(), source)
        })
    }

    /// Opens an upload that was begun; `None` when there is none. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn upload(&self, directory: &Directory, id: UploadId) -> Result<Option<Upload>, Error> {
        let path = self.upload_folder(directory, id).join("data");
        let failed = |source| Error::io(Operation::Write, path.display().to_string(), source);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => file,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let size_bytes = file.metadata().map_err(failed)?.len();
        Ok(Some(Upload {
            file: Arc::new(file),
            path,
            size_bytes,
        }))
    }

    /// Removes an upload; one that is not there is no error. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn remove_upload(&self, directory: &Directory, id: UploadId) -> Result<(), Error> {
        let folder = self.upload_folder(directory, id);
        match fs::remove_dir_all(&folder) {
            Err(error) if !is_absent(&error) => {
                Err(Error::io(Operation::Delete, folder.display().to_string(), error))
            }
            _ => {
                // Refused for what is not empty.
                drop(folder.parent().map(fs::remove_dir));
                Ok(())
            }
        }
    }

    /// The uploads on the volume to which nothing was written since `before_ms` (milliseconds since the Unix epoch).
    /// Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn resting_uploads(&self, before_ms: u64) -> Result<Vec<(Directory, UploadId)>, Error> {
        let mut found = Vec::new();
        let mut pending = vec![String::new()];
        while let Some(prefix) = pending.pop() {
            for name in self.folders(&layout::repository_root(&prefix))? {
                let is_own = name.starts_with('_');
                if is_own && name == "_uploads" {
                    let directory = Directory::parse(&prefix);
                    found.extend(directory.map(|d| self.resting_in(&d, before_ms)).transpose()?);
                } else if !is_own && prefix.is_empty() {
                    pending.push(name);
                } else if !is_own {
                    pending.push(format!("{prefix}/{name}"));
                }
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    fn resting_in(&self, directory: &Directory, before_ms: u64) -> Result<Vec<(Directory, UploadId)>, Error> {
        let names = self.folders(&layout::uploads_root(directory.as_str()))?;
        let ids = names.iter().filter_map(|name| UploadId::parse(name));
        let is_resting = |id: &UploadId| {
            let folder = self.upload_folder(directory, *id);
            let touched_ms = walk::modified_ms(&folder.join("data")).or_else(|| walk::modified_ms(&folder));
            touched_ms.is_some_and(|at| at < before_ms)
        };
        Ok(ids.filter(is_resting).map(|id| (directory.clone(), id)).collect())
    }

    fn upload_folder(&self, directory: &Directory, id: UploadId) -> PathBuf {
        let root: &Path = &self.path_of(&layout::uploads_root(directory.as_str()));
        root.join(id.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    fn store() -> (tempfile::TempDir, Store, Directory) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        (folder, store, Directory::parse("team/app").unwrap())
    }

    #[test]
    fn an_upload_is_continued_where_it_was_left_and_becomes_a_blob() {
        let (_folder, store, directory) = store();
        let id = UploadId::random();
        store
            .begin_upload(&directory, id, "2026-01-01T00:00:00Z")
            .unwrap();
        store
            .upload(&directory, id)
            .unwrap()
            .unwrap()
            .append(b"hel")
            .unwrap();
        let mut upload = store.upload(&directory, id).unwrap().unwrap();
        assert_eq!(upload.size_bytes(), 3);
        upload.append(b"lo!").unwrap();
        upload.cut(5).unwrap();
        let digest = Digest::of(Algorithm::Sha512, b"hello");
        let verified = upload
            .into_spool(Algorithm::Sha512)
            .unwrap()
            .finish(&digest)
            .unwrap();
        let stored = store.commit(verified).unwrap();
        assert_eq!(stored.canonical, Digest::of(Algorithm::Sha256, b"hello"));
        assert!(store.upload(&directory, id).unwrap().is_none());
        store.remove_upload(&directory, id).unwrap();
        assert!(!store.path_of(&layout::uploads_root("team/app")).exists());
    }

    #[test]
    fn an_upload_survives_a_digest_that_does_not_match() {
        let (_folder, store, directory) = store();
        let id = UploadId::random();
        store.begin_upload(&directory, id, "").unwrap();
        let upload = store.upload(&directory, id).unwrap().unwrap();
        let wrong = Digest::of(Algorithm::Sha256, b"x");
        assert!(
            upload
                .into_spool(Algorithm::Sha256)
                .unwrap()
                .finish(&wrong)
                .is_err()
        );
        assert!(store.upload(&directory, id).unwrap().is_some());
    }

    #[test]
    fn what_rests_is_found_and_nothing_else_is_an_id() {
        let (_folder, store, directory) = store();
        let id = UploadId::random();
        store.begin_upload(&directory, id, "").unwrap();
        assert_eq!(store.resting_uploads(0).unwrap(), []);
        assert_eq!(store.resting_uploads(u64::MAX).unwrap(), [(directory, id)]);
        let text = id.to_string();
        for bad in ["", "..", "../x", &text.to_uppercase(), &text.replace('-', "")] {
            assert_eq!(UploadId::parse(bad), None, "{bad}");
        }
        assert_eq!(UploadId::parse(&text), Some(id));
    }
}
