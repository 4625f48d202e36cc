//! Manifests: their references as edges in both directions, and the referrers lists that come from them.

use std::collections::BTreeSet;

use sled::transaction::ConflictableTransactionResult;

use super::index::Index;
use super::record::{EdgeRecord, StoredEdge, decode, encode};
use super::transaction::{Times, Transaction, abort};
use super::{Error, key};
use crate::oci::manifest::Role;
use crate::oci::{Descriptor, Digest, Manifest};

impl Index {
    /// Records a manifest that was verified, committed and linked to `repository` at `now_ms`, with its references, in
    /// one transaction. It is a root from now on.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn record_manifest(
        &self,
        repository: &str,
        digest: &Digest,
        size_bytes: u64,
        manifest: &Manifest,
        now_ms: u64,
    ) -> Result<(), Error> {
        self.restore_manifest(repository, digest, size_bytes, manifest, Times::verified(now_ms))
    }

    /// Records a manifest that was found on the volume, linked to `repository`.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn restore_manifest(
        &self,
        repository: &str,
        digest: &Digest,
        size_bytes: u64,
        manifest: &Manifest,
        times: Times,
    ) -> Result<(), Error> {
        self.transact(|tx| {
            tx.put_content(digest, size_bytes, Some(&manifest.media_type), times)?;
            tx.put_link(repository, digest, true, times)?;
            tx.put_edges(digest, size_bytes, manifest)
        })
    }

    /// What the manifest `digest` refers to, each by the digest under which its bytes lie; empty for what is not a
    /// recorded manifest.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn edges(&self, digest: &Digest) -> Result<Vec<EdgeRecord>, Error> {
        match self.trees()?.edges.get(key::digest(digest))? {
            Some(bytes) => decode_edges(&bytes)?
                .into_iter()
                .map(|edge| {
                    let digest = self.canonical(&edge.digest)?;
                    Ok(EdgeRecord { digest, ..edge })
                })
                .collect(),
            None => Ok(Vec::new()),
        }
    }

    /// The manifests that refer to `digest`, and what for. The count of a digest is the length of this.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn parents(&self, digest: &Digest) -> Result<Vec<(Digest, Role)>, Error> {
        let mut parents = self.parents_by_name(digest)?;
        for alias in self.aliases(digest)? {
            parents.extend(self.parents_by_name(&alias)?);
        }
        Ok(parents)
    }

    fn parents_by_name(&self, digest: &Digest) -> Result<Vec<(Digest, Role)>, Error> {
        let prefix = key::digest(digest);
        let mut parents = Vec::new();
        for key in self.trees()?.parents.scan_prefix(&prefix).keys() {
            let key = key?;
            let rest = key.get(prefix.len()..).and_then(key::split_digest);
            let (parent, role) = rest.ok_or(Error::Damaged { table: "parents" })?;
            let role = decode("parents", role)?;
            parents.push((parent, role));
        }
        Ok(parents)
    }

    /// The size that a manifest gives for `digest`, for when upstream does not say it.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn declared_size(&self, digest: &Digest) -> Result<Option<u64>, Error> {
        let mut found = self.trees()?.parents.scan_prefix(key::digest(digest));
        match found.next() {
            Some(entry) => decode("parents", &entry?.1).map(Some),
            None => Ok(None),
        }
    }

    /// The manifests of `repository` that are about `subject`, as descriptors for a referrers list, in order of digest.
    ///
    /// # Errors
    /// [`Error`] when the index fails.
    pub fn referrers(&self, repository: &str, subject: &Digest) -> Result<Vec<Descriptor>, Error> {
        let trees = self.trees()?;
        let prefix = key::digest(subject);
        let mut found = Vec::new();
        for entry in trees.referrers.scan_prefix(&prefix) {
            let (key, descriptor) = entry?;
            let manifest = key.get(prefix.len()..).unwrap_or_default();
            let link = key::join(&key::repository(repository), manifest);
            if trees.links.contains_key(link)? {
                found.push(
                    serde_json::from_slice(&descriptor).map_err(|_| Error::Damaged { table: "referrers" })?,
                );
            }
        }
        Ok(found)
    }
}

impl Transaction<'_> {
    /// Writes the edges of a manifest; content-addressed, so they never change once written.
    fn put_edges(
        &self,
        digest: &Digest,
        size_bytes: u64,
        manifest: &Manifest,
    ) -> ConflictableTransactionResult<(), Error> {
        let parent = key::digest(digest);
        if self.edges.get(&parent)?.is_some() {
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        let mut stored = Vec::with_capacity(manifest.edges.len());
        for edge in &manifest.edges {
            // A layer that stands twice in an image is one reference.
            if !seen.insert((edge.role, &edge.digest)) {
                continue;
            }
            let child = key::digest(&edge.digest);
            self.parents
                .insert(parent_key(&child, &parent, edge.role), encode(&edge.size_bytes))?;
            if edge.role == Role::Subject {
                let descriptor = manifest.descriptor(digest, size_bytes);
                let json = serde_json::to_vec(&descriptor).unwrap_or_default();
                self.referrers.insert(key::join(&child, &parent), json)?;
            }
            stored.push(StoredEdge {
                role: edge.role,
                child,
                size_bytes: edge.size_bytes,
            });
        }
        self.edges.insert(parent, encode(&stored))?;
        Ok(())
    }

    /// Removes the edges that start at `digest`.
    pub(super) fn remove_edges(&self, digest: &Digest) -> ConflictableTransactionResult<(), Error> {
        let parent = key::digest(digest);
        let Some(bytes) = self.edges.remove(parent.as_slice())? else {
            return Ok(());
        };
        let stored: Vec<StoredEdge> = decode("edges", &bytes).map_err(abort)?;
        for edge in stored {
            self.parents.remove(parent_key(&edge.child, &parent, edge.role))?;
            if edge.role == Role::Subject {
                self.referrers.remove(key::join(&edge.child, &parent))?;
            }
        }
        Ok(())
    }
}

fn parent_key(child: &[u8], parent: &[u8], role: Role) -> Vec<u8> {
    let mut key = key::join(child, parent);
    key.extend(encode(&role));
    key
}

fn decode_edges(bytes: &[u8]) -> Result<Vec<EdgeRecord>, Error> {
    let stored: Vec<StoredEdge> = decode("edges", bytes)?;
    stored
        .into_iter()
        .map(|edge| {
            let (digest, _) = key::split_digest(&edge.child).ok_or(Error::Damaged { table: "edges" })?;
            Ok(EdgeRecord {
                role: edge.role,
                digest,
                size_bytes: edge.size_bytes,
            })
        })
        .collect()
}
