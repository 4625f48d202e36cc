//! Aliases: digests in another algorithm than the one under which the bytes lie. Everything else in the index is about
//! the canonical digest; a manifest may name its layers by an alias, and clients may ask for it.

use super::index::Index;
use super::{Error, key};
use crate::oci::Digest;

impl Index {
    /// Notes that the bytes of `alias` lie under `canonical`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn record_alias(&self, alias: &Digest, canonical: &Digest) -> Result<(), Error> {
        if alias == canonical {
            return Ok(());
        }
        let trees = self.trees()?;
        let (alias, canonical) = (key::digest(alias), key::digest(canonical));
        trees.aliases.insert(key::join(&canonical, &alias), &[])?;
        trees.canonicals.insert(alias, canonical)?;
        Ok(())
    }

    /// The digest under which the bytes of `digest` lie, as far as that is known.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn canonical(&self, digest: &Digest) -> Result<Digest, Error> {
        match self.trees()?.canonicals.get(key::digest(digest))? {
            Some(bytes) => {
                let (canonical, _) =
                    key::split_digest(&bytes).ok_or(Error::Damaged { table: "canonicals" })?;
                Ok(canonical)
            }
            None => Ok(digest.clone()),
        }
    }

    /// The other names of `canonical`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn aliases(&self, canonical: &Digest) -> Result<Vec<Digest>, Error> {
        let prefix = key::digest(canonical);
        let mut aliases = Vec::new();
        for key in self.trees()?.aliases.scan_prefix(&prefix).keys() {
            let key = key?;
            let alias = key.get(prefix.len()..).and_then(key::split_digest);
            aliases.push(alias.ok_or(Error::Damaged { table: "aliases" })?.0);
        }
        Ok(aliases)
    }

    /// Forgets the other names of `canonical`, whose bytes are gone.
    pub(super) fn forget_aliases(&self, canonical: &Digest) -> Result<(), Error> {
        let trees = self.trees()?;
        for alias in self.aliases(canonical)? {
            let alias = key::digest(&alias);
            trees.aliases.remove(key::join(&key::digest(canonical), &alias))?;
            trees.canonicals.remove(alias)?;
        }
        Ok(())
    }
}
