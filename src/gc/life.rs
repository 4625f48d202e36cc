//! Who is alive: what a link's age comes to when everything is counted that refers to it. Reads the index only.

use std::collections::{BTreeMap, BTreeSet};

use crate::meta::{Error, Index, Link, Order};
use crate::oci::Digest;
use crate::oci::manifest::Role;

/// The time from which the age of `link` counts: its own, or that of the youngest manifest of the same repository that
/// refers to it, over any number of steps. Pinned is younger than everything. The search ends once it has found
/// something as young as `enough_ms`.
pub(super) fn effective_ms(index: &Index, order: Order, link: &Link, enough_ms: u64) -> Result<u64, Error> {
    let mut best = if link.record.is_pinned {
        u64::MAX
    } else {
        order.time_of(&link.record)
    };
    let mut seen = BTreeSet::new();
    let mut pending = vec![link.digest.clone()];
    while let Some(digest) = pending.pop() {
        if best >= enough_ms {
            break;
        }
        for parent in linked_parents(index, &link.repository, &digest)? {
            let record = &parent.record;
            best = best.max(if record.is_pinned {
                u64::MAX
            } else {
                order.time_of(record)
            });
            if seen.insert(parent.digest.clone()) {
                pending.push(parent.digest);
            }
        }
    }
    Ok(best)
}

/// The manifests of `repository` that keep `digest`: all that refer to it, save as their subject.
pub(super) fn linked_parents(index: &Index, repository: &str, digest: &Digest) -> Result<Vec<Link>, Error> {
    let mut found = Vec::new();
    for (parent, role) in index.parents(digest)? {
        if role == Role::Subject || parent == *digest {
            continue;
        }
        if let Some(record) = index.link(repository, &parent)? {
            found.push(Link {
                repository: repository.to_owned(),
                digest: parent,
                record,
            });
        }
    }
    Ok(found)
}

/// Whether a manifest that is linked anywhere refers to `digest`.
pub(super) fn is_referred_to(index: &Index, digest: &Digest) -> Result<bool, Error> {
    for (parent, role) in index.parents(digest)? {
        let keeps = role != Role::Subject && parent != *digest;
        if keeps
            && index
                .content(&parent)?
                .is_some_and(|record| record.link_count > 0)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The manifest at the top of the image that `link` belongs to: itself, or whatever refers to it, up to one that nothing
/// refers to.
pub(super) fn top_of(index: &Index, link: Link) -> Result<Link, Error> {
    let mut seen = BTreeSet::from([link.digest.clone()]);
    let mut top = link;
    while let Some(parent) = linked_parents(index, &top.repository, &top.digest)?
        .into_iter()
        .find(|parent| !seen.contains(&parent.digest))
    {
        seen.insert(parent.digest.clone());
        top = parent;
    }
    Ok(top)
}

/// Everything that belongs to the image under `top` in its repository and to nothing else there, with its link; leaves
/// first, `top` last.
pub(super) fn image_of(index: &Index, top: &Link) -> Result<Vec<Link>, Error> {
    let mut members = BTreeMap::new();
    let mut order = Vec::new();
    let mut pending = vec![top.clone()];
    while let Some(link) = pending.pop() {
        if members.contains_key(&link.digest) {
            continue;
        }
        for edge in index.edges(&link.digest)? {
            if edge.role == Role::Subject {
                continue;
            }
            if let Some(record) = index.link(&link.repository, &edge.digest)? {
                pending.push(Link {
                    repository: link.repository.clone(),
                    digest: edge.digest,
                    record,
                });
            }
        }
        order.push(link.digest.clone());
        members.insert(link.digest.clone(), link);
    }
    while let Some(shared) = first_shared(index, &members, top)? {
        members.remove(&shared);
    }
    // Blobs before manifests, and the top at the very end.
    let (mut manifests, mut image) = (Vec::new(), Vec::new());
    for digest in order.into_iter().rev() {
        match members.remove(&digest) {
            Some(link) if link.record.is_manifest => manifests.push(link),
            Some(link) => image.push(link),
            None => {}
        }
    }
    manifests.sort_by_key(|link| link.digest == top.digest);
    image.append(&mut manifests);
    Ok(image)
}

/// A member that something outside refers to, or that is pinned.
fn first_shared(
    index: &Index,
    members: &BTreeMap<Digest, Link>,
    top: &Link,
) -> Result<Option<Digest>, Error> {
    for (digest, link) in members.iter().filter(|(digest, _)| **digest != top.digest) {
        let parents = linked_parents(index, &link.repository, digest)?;
        let is_shared = parents.iter().any(|parent| !members.contains_key(&parent.digest));
        if is_shared || link.record.is_pinned {
            return Ok(Some(digest.clone()));
        }
    }
    Ok(None)
}
