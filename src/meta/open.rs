//! Opening the index: the lock against a second process, the schema version, and starting anew where it is damaged.

use std::fs::{self, File, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use sled::{Db, Tree};

use super::Error;

/// The memory the engine may use for its cache unless the configuration says otherwise, in bytes.
pub const DEFAULT_CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// Raised whenever keys or records change their form; an index of another version is made anew.
const SCHEMA_VERSION: &[u8] = b"1";
const SCHEMA_KEY: &[u8] = b"schema";
const CLEAN_KEY: &[u8] = b"clean";
const COMPLETE_KEY: &[u8] = b"complete";

/// In what state the index was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// It was there.
    Existing {
        /// Whether the process before closed it; if not, the last moments before its end may be missing.
        is_clean: bool,
        /// Whether it covers all files: false while a rebuild was cut short.
        is_complete: bool,
    },
    /// There was none: everything that is on the volume has to be entered.
    Fresh,
    /// It was unusable, for the reason given, and an empty one took its place.
    Replaced(String),
}

/// The engine's handles.
#[derive(Debug, Clone)]
pub(super) struct Trees {
    pub(super) db: Db,
    /// digest -> `ContentRecord`
    pub(super) contents: Tree,
    /// repository, digest -> `LinkRecord`
    pub(super) links: Tree,
    /// digest, repository -> nothing
    pub(super) holders: Tree,
    /// link by `queued_ms`
    pub(super) by_use: Tree,
    /// link by `added_ms`
    pub(super) by_added: Tree,
    /// digest without any link -> nothing
    pub(super) doomed: Tree,
    /// digest in another algorithm -> digest under which its bytes lie
    pub(super) canonicals: Tree,
    /// the same, the other way round: both digests -> nothing
    pub(super) aliases: Tree,
    /// manifest -> list of `StoredEdge`
    pub(super) edges: Tree,
    /// child, manifest, role -> declared size
    pub(super) parents: Tree,
    /// subject, manifest -> descriptor as JSON
    pub(super) referrers: Tree,
    /// repository, tag -> `StoredTag`
    pub(super) tags: Tree,
    /// `Totals`, and what [`Opened`] is made of
    pub(super) state: Tree,
}

/// Keeps a second process out for as long as it lives.
#[derive(Debug)]
pub(super) struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

/// Takes the lock that stands beside the index at `path`.
pub(super) fn lock(path: &Path) -> Result<Lock, Error> {
    let unavailable = |source| Error::Unavailable {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(unavailable)?;
    }
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.with_extension("lock"))
        .map_err(unavailable)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(file)),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(unavailable(source)),
    }
}

/// Opens the index at `path`, or makes an empty one where there is none or it cannot be used. The lock is held.
pub(super) fn open(path: &Path, cache_bytes: u64) -> Result<(Trees, Opened), Error> {
    let is_new = !path.exists();
    match try_open(path, cache_bytes, is_new) {
        Ok((trees, _)) if is_new => Ok((trees, Opened::Fresh)),
        Ok(found) => Ok(found),
        Err(reason) => {
            remove(path)?;
            let (trees, _) = try_open(path, cache_bytes, true).map_err(|source| Error::Unavailable {
                path: path.to_owned(),
                source: io::Error::other(source),
            })?;
            Ok((trees, Opened::Replaced(reason)))
        }
    }
}

/// Removes the index; its content is derived from the files, so nothing is lost with it.
fn remove(path: &Path) -> Result<(), Error> {
    let removed = if path.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(Error::Unavailable {
            path: path.to_owned(),
            source,
        }),
        _ => Ok(()),
    }
}

fn try_open(path: &Path, cache_bytes: u64, is_new: bool) -> Result<(Trees, Opened), String> {
    // The engine panics on some kinds of damage.
    let opened = catch_unwind(AssertUnwindSafe(|| -> sled::Result<Trees> {
        let db = sled::Config::new()
            .path(path)
            .cache_capacity(cache_bytes)
            .flush_every_ms(Some(500))
            .open()?;
        Trees::of(db)
    }));
    let trees = match opened {
        Ok(Ok(trees)) => trees,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("the engine stumbled over it".to_owned()),
    };
    let opened = trees.check(is_new)?;
    Ok((trees, opened))
}

impl Trees {
    fn of(db: Db) -> sled::Result<Self> {
        Ok(Self {
            contents: db.open_tree("contents")?,
            links: db.open_tree("links")?,
            holders: db.open_tree("holders")?,
            by_use: db.open_tree("by_use")?,
            by_added: db.open_tree("by_added")?,
            doomed: db.open_tree("doomed")?,
            canonicals: db.open_tree("canonicals")?,
            aliases: db.open_tree("aliases")?,
            edges: db.open_tree("edges")?,
            parents: db.open_tree("parents")?,
            referrers: db.open_tree("referrers")?,
            tags: db.open_tree("tags")?,
            state: db.open_tree("state")?,
            db,
        })
    }

    /// Reads the schema version (writes it into an empty index) and takes the mark of a clean end away.
    fn check(&self, is_new: bool) -> Result<Opened, String> {
        let failed = |error: sled::Error| error.to_string();
        match self.state.get(SCHEMA_KEY).map_err(failed)? {
            Some(version) if version == SCHEMA_VERSION => {}
            Some(version) => {
                let found = String::from_utf8_lossy(&version).into_owned();
                return Err(format!("it has schema version `{found}`"));
            }
            // The engine takes a file of garbage for an empty one.
            None if !is_new => return Err("it has no schema version".to_owned()),
            None => {
                self.state.insert(SCHEMA_KEY, SCHEMA_VERSION).map_err(failed)?;
            }
        }
        let is_clean = self.state.remove(CLEAN_KEY).map_err(failed)?.is_some();
        let is_complete = self.state.contains_key(COMPLETE_KEY).map_err(failed)?;
        // On disk before anything else changes: an unclean end must be seen as one.
        self.db.flush().map_err(failed)?;
        Ok(Opened::Existing {
            is_clean,
            is_complete,
        })
    }

    /// Notes that the process ends in order.
    pub(super) fn mark_clean(&self) -> Result<(), Error> {
        self.state.insert(CLEAN_KEY, b"1")?;
        Ok(())
    }

    /// Notes whether the index covers all files.
    pub(super) fn mark_complete(&self, is_complete: bool) -> Result<(), Error> {
        if is_complete {
            self.state.insert(COMPLETE_KEY, b"1")?;
        } else {
            self.state.remove(COMPLETE_KEY)?;
        }
        Ok(())
    }
}
