//! Leftovers: files that no finished operation leaves behind, of larder and of the registries that had the volume before.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::{self, Directory};
use super::{Store, is_absent, walk};

/// What was found and removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Files removed.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Leftovers {
    /// Adds what another sweep removed.
    pub fn add(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
    }

    /// Removes a file and counts it. One that cannot be removed is told of and left: it is tried again next time.
    fn remove(&mut self, path: &Path) {
        let size = fs::symlink_metadata(path).map_or(0, |facts| facts.len());
        match fs::remove_file(path) {
            Ok(()) => {
                self.files += 1;
                self.bytes += size;
            }
            Err(error) if is_absent(&error) => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove a leftover"),
        }
    }
}

impl Store {
    /// Removes what an earlier process left in the spool. Only before the first fill of this process. Blocking.
    pub fn sweep_spool(&self) -> Leftovers {
        let mut found = Leftovers::default();
        for path in entries(&self.spool_folder()) {
            found.remove(&path);
        }
        found
    }

    /// Removes quarantined content that came there before `before_ms` (milliseconds since the Unix epoch). Blocking.
    pub fn sweep_quarantine(&self, before_ms: u64) -> Leftovers {
        let mut found = Leftovers::default();
        for path in entries(&self.root().join(layout::QUARANTINE)) {
            let changed_ms = changed_ms(&path);
            if changed_ms.is_some_and(|at| at < before_ms) {
                found.remove(&path);
            }
        }
        found
    }

    /// Removes a repository's unfinished uploads, temporary files beside its links, and the folders that are empty
    /// then. What is younger than `before_ms` stays: it may be in use. Uploads stay as long as they are younger than
    /// `uploads_before_ms`. Blocking.
    pub fn sweep_repository(
        &self,
        directory: &Directory,
        before_ms: u64,
        uploads_before_ms: u64,
    ) -> Leftovers {
        let mut found = Leftovers::default();
        let root = self.path_of(&layout::repository_root(directory.as_str()));
        for name in ["_uploads", "_layers", "_manifests"] {
            let is_upload = name == "_uploads";
            let before_ms = if is_upload { uploads_before_ms } else { before_ms };
            sweep(&root.join(name), before_ms, &mut found, &|path| {
                is_upload || path.file_name().is_none_or(|file| file != "link")
            });
        }
        found
    }

    /// Removes temporary files beside the bytes of `folder`, and the folders that are empty then. Blocking.
    pub fn sweep_blobs(&self, folder: &walk::BlobFolder, before_ms: u64) -> Leftovers {
        let mut found = Leftovers::default();
        let root = self.path_of(&layout::blobs_root().join(folder.algorithm().as_str()));
        sweep(&root.join(folder.name()), before_ms, &mut found, &|path| {
            path.file_name().is_none_or(|file| file != "data")
        });
        found
    }
}

/// Removes the files below `folder` that are leftovers, and every folder that is empty then, `folder` too. What is
/// younger than `before_ms` stays: someone may be about to write there.
fn sweep(folder: &Path, before_ms: u64, found: &mut Leftovers, is_leftover: &dyn Fn(&Path) -> bool) {
    // Folders come before what is in them; removing in reverse order finds them empty.
    let mut folders = vec![(folder.to_owned(), is_older(folder, before_ms))];
    let mut next = 0;
    while let Some((current, _)) = folders.get(next).cloned() {
        next += 1;
        for path in entries(&current) {
            if fs::symlink_metadata(&path).is_ok_and(|facts| facts.is_dir()) {
                let is_old = is_older(&path, before_ms);
                folders.push((path, is_old));
            } else if is_leftover(&path) && is_older(&path, before_ms) {
                found.remove(&path);
            }
        }
    }
    for (path, _) in folders.iter().rev().filter(|(_, is_old)| *is_old) {
        // Refused for what is not empty.
        drop(fs::remove_dir(path));
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let read = fs::read_dir(folder).and_then(|all| all.map(|e| Ok(e?.path())).collect::<io::Result<_>>());
    match read {
        Ok(paths) => paths,
        Err(error) => {
            if !is_absent(&error) {
                tracing::warn!(path = %folder.display(), %error, "cannot list a folder");
            }
            Vec::new()
        }
    }
}

fn is_older(path: &Path, before_ms: u64) -> bool {
    walk::modified_ms(path).is_some_and(|at| at < before_ms)
}

/// When a file was last moved or written: a rename leaves the time of its bytes alone.
fn changed_ms(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let facts = fs::symlink_metadata(path).ok()?;
    let seconds = u64::try_from(facts.ctime()).ok()?;
    Some(seconds.saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::{Algorithm, Digest};
    use crate::store::Link;

    #[tokio::test]
    async fn leftovers_go_and_links_stay() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let directory = Directory::parse("a/b").unwrap();
        let link = Link::Layer(Digest::of(Algorithm::Sha256, b"x"));
        let target = Digest::of(Algorithm::Sha256, b"x");
        store.link(&directory, &link, &target).await.unwrap();
        let file = store.path_of(&layout::link(&directory, &link));
        fs::write(file.with_file_name("link.123.tmp"), b"half").unwrap();
        let root = store.path_of(&layout::repository_root("a/b"));
        fs::create_dir_all(root.join("_uploads/uuid/hashstates")).unwrap();
        fs::write(root.join("_uploads/uuid/data"), b"partial").unwrap();
        fs::create_dir_all(root.join("_manifests/tags/old/index")).unwrap();
        assert_eq!(store.sweep_repository(&directory, 0, 0), Leftovers::default());
        let kept = store.sweep_repository(&directory, u64::MAX, 0);
        assert_eq!(kept, Leftovers { files: 1, bytes: 4 });
        let found = store.sweep_repository(&directory, u64::MAX, u64::MAX);
        assert_eq!(found, Leftovers { files: 1, bytes: 7 });
        assert_eq!(store.linked(&directory, &link).unwrap(), Some(target));
        assert!(!root.join("_uploads").exists() && !root.join("_manifests").exists());
    }
}
