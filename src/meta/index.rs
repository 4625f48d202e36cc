//! The index as a value: opening, closing, transactions, and what concerns a digest's bytes and links.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;
use sled::Transactional;
use sled::transaction::{ConflictableTransactionResult, TransactionError};

use super::open::{self, Lock, Opened, Trees};
use super::record::{ContentRecord, LinkRecord, Totals, decode, encode};
use super::touches::Touches;
use super::transaction::{TOTALS_KEY, Times, Transaction, abort};
use super::{Error, key};
use crate::oci::Digest;

/// The index. Cheap to clone; clones share everything.
///
/// Calls are short and served from memory for the most part, so they may be made from async code; [`Index::flush`] and
/// [`Index::close`] wait for the disk without blocking.
#[derive(Clone)]
pub struct Index {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    trees: RwLock<Option<Trees>>,
    touches: Touches,
    owned: OnceLock<Owned>,
    _lock: Lock,
}

/// Which repositories are pinned as a whole.
type Owned = Box<dyn Fn(&str) -> bool + Send + Sync>;

impl Index {
    /// Opens the index at `path` (`<root>/larder/index`), or makes an empty one where there is none or it cannot be
    /// used; [`Opened`] tells which, and so whether the caller has to rebuild it. Blocks on the disk.
    ///
    /// # Errors
    /// [`Error::InUse`] when another process has it, [`Error::Unavailable`] when the volume cannot be written.
    pub fn open(path: &Path, cache_bytes: u64) -> Result<(Self, Opened), Error> {
        let lock = open::lock(path)?;
        let (trees, opened) = open::open(path, cache_bytes)?;
        let shared = Shared {
            path: path.to_owned(),
            trees: RwLock::new(Some(trees)),
            touches: Touches::default(),
            owned: OnceLock::new(),
            _lock: lock,
        };
        let index = Self {
            shared: Arc::new(shared),
        };
        Ok((index, opened))
    }

    /// Pins repositories as a whole, as they are and as they will be: those that larder owns. Only the first call counts.
    pub fn pin_repositories(&self, is_owned: impl Fn(&str) -> bool + Send + Sync + 'static) {
        // A second call would have to come from a second service over the same index, which there is not.
        drop(self.shared.owned.set(Box::new(is_owned)));
    }

    /// Whether a repository is pinned as a whole.
    pub fn is_owned(&self, repository: &str) -> bool {
        self.shared
            .owned
            .get()
            .is_some_and(|is_owned| is_owned(repository))
    }

    /// Notes whether the index covers all files: false when a rebuild begins, true when it has ended.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn mark_complete(&self, is_complete: bool) -> Result<(), Error> {
        self.trees()?.mark_complete(is_complete)
    }

    /// Waits until everything recorded so far is on disk.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    ///
    /// # Cancel safety
    /// The write goes on when this future is dropped.
    pub async fn flush(&self) -> Result<(), Error> {
        let trees = self.trees()?;
        trees.db.flush_async().await?;
        Ok(())
    }

    /// Writes what is gathered, notes that the end came in order, and waits until it is on disk. Later calls still
    /// work, but should not be made.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub async fn close(&self) -> Result<(), Error> {
        self.flush_touches()?;
        self.trees()?.mark_clean()?;
        self.flush().await
    }

    /// The size of the index on disk in bytes.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn size_on_disk(&self) -> Result<u64, Error> {
        Ok(self.trees()?.db.size_on_disk()?)
    }

    /// What is known of the bytes of `digest`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn content(&self, digest: &Digest) -> Result<Option<ContentRecord>, Error> {
        let found = self.trees()?.contents.get(key::digest(digest))?;
        found.map(|bytes| decode("contents", &bytes)).transpose()
    }

    /// What is known of `digest` in `repository`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn link(&self, repository: &str, digest: &Digest) -> Result<Option<LinkRecord>, Error> {
        let key = key::link(repository, digest);
        let Some(bytes) = self.trees()?.links.get(&key)? else {
            return Ok(None);
        };
        let mut record: LinkRecord = decode("links", &bytes)?;
        record.last_use_ms = self
            .shared
            .touches
            .latest(&key)
            .unwrap_or(0)
            .max(record.last_use_ms);
        record.is_pinned |= self.is_owned(repository);
        Ok(Some(record))
    }

    /// Records a blob that was verified, committed and linked to `repository` at `now_ms`; its age begins.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn record_blob(
        &self,
        repository: &str,
        digest: &Digest,
        size_bytes: u64,
        now_ms: u64,
    ) -> Result<(), Error> {
        let times = Times::verified(now_ms);
        self.transact(|tx| {
            tx.put_content(digest, size_bytes, None, times)?;
            tx.put_link(repository, digest, false, times)
        })
    }

    /// Records a blob that was found on the volume, linked to `repository` and nobody knows since when but its files.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn restore_blob(
        &self,
        repository: &str,
        digest: &Digest,
        size_bytes: u64,
        found: Times,
    ) -> Result<(), Error> {
        self.transact(|tx| {
            tx.put_content(digest, size_bytes, None, found)?;
            tx.put_link(repository, digest, false, found)
        })
    }

    /// The same for several blobs of one repository in one transaction: (digest, size in bytes, times) each. Reads wait
    /// while a transaction is applied, so that a batch is better kept short.
    ///
    /// # Errors
    /// [`Error`] when the index fails; then none of them is recorded.
    pub fn restore_blobs(&self, repository: &str, found: &[(Digest, u64, Times)]) -> Result<(), Error> {
        self.transact(|tx| {
            for (digest, size_bytes, times) in found {
                tx.put_content(digest, *size_bytes, None, *times)?;
                tx.put_link(repository, digest, false, *times)?;
            }
            Ok(())
        })
    }

    /// Notes that the bytes of `digest` were found to be right at `now_ms`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn record_verified(&self, digest: &Digest, now_ms: u64) -> Result<(), Error> {
        self.transact(|tx| {
            let key = key::digest(digest);
            if let Some(bytes) = tx.contents.get(&key)? {
                let mut record: ContentRecord = decode("contents", &bytes).map_err(abort)?;
                record.verified_ms = now_ms;
                tx.contents.insert(key, encode(&record))?;
            }
            Ok(())
        })
    }

    /// Sets or clears the pin of a link; false when there is no such link.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn set_pinned(&self, repository: &str, digest: &Digest, is_pinned: bool) -> Result<bool, Error> {
        self.transact(|tx| {
            let key = key::link(repository, digest);
            let Some(bytes) = tx.links.get(&key)? else {
                return Ok(false);
            };
            let mut record: LinkRecord = decode("links", &bytes).map_err(abort)?;
            record.is_pinned = is_pinned;
            tx.links.insert(key, encode(&record))?;
            Ok(true)
        })
    }

    /// Remembers that `digest` was used through `repository`; costs one entry in memory until
    /// [`Index::flush_touches`]. Never fails: a use that is lost costs a later fetch at most.
    pub fn touch(&self, repository: &str, digest: &Digest, now_ms: u64) {
        self.shared.touches.add(key::link(repository, digest), now_ms);
    }

    /// Writes the uses gathered by [`Index::touch`]; a task calls this each second.
    ///
    /// # Errors
    /// [`Error`] when the index fails; the uses are lost then.
    pub fn flush_touches(&self) -> Result<(), Error> {
        let touches = self.shared.touches.take();
        let trees = self.trees()?;
        for (link, at_ms) in touches {
            trees.links.update_and_fetch(link, |old| {
                let old = old?;
                match decode::<LinkRecord>("links", old) {
                    Ok(mut record) if record.last_use_ms < at_ms => {
                        record.last_use_ms = at_ms;
                        Some(encode(&record))
                    }
                    _ => Some(old.to_vec()),
                }
            })?;
        }
        Ok(())
    }

    /// Removes the link of `digest` in `repository`; false when there was none. The bytes' record stays.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn unlink(&self, repository: &str, digest: &Digest) -> Result<bool, Error> {
        self.transact(|tx| tx.remove_link(repository, digest))
    }

    /// Forgets `digest` altogether, because its bytes are gone: its record, its links, its references if it was a
    /// manifest. References to it stay: they belong to the manifests that make them.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn forget(&self, digest: &Digest) -> Result<(), Error> {
        let holders = self.holders(digest)?;
        self.forget_aliases(digest)?;
        self.transact(|tx| {
            for repository in &holders {
                tx.remove_link(repository, digest)?;
            }
            tx.remove_edges(digest)?;
            tx.remove_content(digest)
        })
    }

    /// Counts and bytes of everything, kept with each change.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn totals(&self) -> Result<Totals, Error> {
        let found = self.trees()?.state.get(TOTALS_KEY)?;
        found.map_or_else(|| Ok(Totals::default()), |bytes| decode("state", &bytes))
    }

    pub(super) fn trees(&self) -> Result<Trees, Error> {
        self.shared
            .trees
            .read()
            .clone()
            .ok_or_else(|| Error::Closed(self.shared.path.clone()))
    }

    /// Runs `change` so that all of it happens or nothing; it may run more than once.
    pub(super) fn transact<T>(
        &self,
        change: impl Fn(&Transaction<'_>) -> ConflictableTransactionResult<T, Error>,
    ) -> Result<T, Error> {
        let trees = self.trees()?;
        let all = (
            &trees.contents,
            &trees.links,
            &trees.holders,
            &trees.by_use,
            &trees.by_added,
            &trees.doomed,
            &trees.edges,
            &trees.parents,
            &trees.referrers,
            &trees.state,
        );
        let done = all.transaction(
            |(contents, links, holders, by_use, by_added, doomed, edges, parents, referrers, state)| {
                change(&Transaction {
                    contents,
                    links,
                    holders,
                    by_use,
                    by_added,
                    doomed,
                    edges,
                    parents,
                    referrers,
                    state,
                })
            },
        );
        done.map_err(|error| match error {
            TransactionError::Abort(error) => error,
            TransactionError::Storage(error) => error.into(),
        })
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Index({})", self.shared.path.display())
    }
}
