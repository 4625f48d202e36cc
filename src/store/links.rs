//! Links: small files that give content to a repository, or a name to a manifest.

use object_store::{ObjectStoreExt, PutPayload};

use super::layout::{self, Directory};
use super::{Error, Operation, Store, is_absent};
use crate::oci::{Algorithm, Digest, Tag};

/// The longest link file that is read, in bytes: a digest and some white space.
const MAX_LINK_BYTES: u64 = 256;

/// A link of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Link {
    /// The repository has this blob.
    Layer(Digest),
    /// The repository has this manifest.
    Revision(Digest),
    /// What the tag points to now.
    Tag(Tag),
    /// What the tag has pointed to.
    TagIndex(Tag, Digest),
}

impl Store {
    /// What a link points to; `None` when there is none, or a damaged one. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn linked(&self, directory: &Directory, link: &Link) -> Result<Option<Digest>, Error> {
        let path = layout::link(directory, link);
        let file = self.path_of(&path);
        let read = std::fs::metadata(&file).and_then(|facts| {
            if facts.is_file() && facts.len() <= MAX_LINK_BYTES {
                std::fs::read_to_string(&file)
            } else {
                Ok(String::new())
            }
        });
        match read {
            Ok(text) => Ok(Digest::parse(text.trim())
                .ok()
                .filter(|target| fits(link, target))),
            Err(e) if is_absent(&e) || e.kind() == std::io::ErrorKind::InvalidData => Ok(None),
            Err(e) => Err(Error::io(Operation::Read, path.to_string(), e)),
        }
    }

    /// Writes a link, unless it says the same already.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    ///
    /// # Cancel safety
    /// A link is written whole or not at all.
    pub async fn link(&self, directory: &Directory, link: &Link, target: &Digest) -> Result<(), Error> {
        let (store, known) = (self.clone(), (directory.clone(), link.clone()));
        let current = super::blocking(move || store.linked(&known.0, &known.1)).await;
        if current.is_ok_and(|current| current.as_ref() == Some(target)) {
            return Ok(());
        }
        let path = layout::link(directory, link);
        let payload = PutPayload::from(target.to_string().into_bytes());
        match self.objects().put(&path, payload).await {
            Ok(_) => Ok(()),
            Err(e) => Err(Error::object(Operation::Link, path.to_string(), e)),
        }
    }

    /// Removes a link; one that is not there is no error.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub async fn unlink(&self, directory: &Directory, link: &Link) -> Result<(), Error> {
        let path = layout::link(directory, link);
        match self.objects().delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(Error::object(Operation::Delete, path.to_string(), e)),
        }
    }

    /// The tags of a repository that point somewhere, in lexical order. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn tags(&self, directory: &Directory) -> Result<Vec<String>, Error> {
        let mut tags = Vec::new();
        for name in self.folders(&layout::tags_root(directory))? {
            let Some(tag) = Tag::parse(&name) else { continue };
            if self.linked(directory, &Link::Tag(tag))?.is_some() {
                tags.push(name);
            }
        }
        tags.sort();
        Ok(tags)
    }
}

/// A link under a digest points to that digest, or from a sha512 to the sha256 of the same bytes.
fn fits(link: &Link, target: &Digest) -> bool {
    match link {
        Link::Tag(_) => true,
        Link::Layer(digest) | Link::Revision(digest) | Link::TagIndex(_, digest) => {
            target == digest
                || (digest.algorithm() != Algorithm::Sha256 && target.algorithm() == Algorithm::Sha256)
        }
    }
}
