//! Taking content away from a repository: all links that lead to it, and the folders that are empty then.

use std::fs;

use super::layout::{self, Directory};
use super::{Error, Link, Operation, Store, is_absent};
use crate::oci::{Digest, Tag};

impl Store {
    /// Removes every link of `directory` that leads to the content known as `names` (its digest and its aliases); the
    /// tags that meant it are returned, they are gone too. Safe to repeat after any interruption. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails; what was removed by then stays removed.
    pub fn remove_links(
        &self,
        directory: &Directory,
        names: &[Digest],
        is_manifest: bool,
    ) -> Result<Vec<Tag>, Error> {
        let tags = if is_manifest {
            self.remove_tags(directory, names)?
        } else {
            Vec::new()
        };
        for name in names {
            self.remove_link(directory, &Link::Layer(name.clone()))?;
            self.remove_link(directory, &Link::Revision(name.clone()))?;
        }
        Ok(tags)
    }

    /// Removes the tags that point to one of `names`, and the traces of `names` in the history of all others.
    fn remove_tags(&self, directory: &Directory, names: &[Digest]) -> Result<Vec<Tag>, Error> {
        let mut removed = Vec::new();
        for tag in self.tag_folders(directory)?.iter().filter_map(|t| Tag::parse(t)) {
            let current = Link::Tag(tag.clone());
            let is_current = self
                .linked(directory, &current)?
                .is_some_and(|target| names.contains(&target));
            if is_current {
                self.remove_link(directory, &current)?;
            }
            for name in names {
                self.remove_link(directory, &Link::TagIndex(tag.clone(), name.clone()))?;
            }
            if is_current {
                removed.push(tag);
            }
        }
        Ok(removed)
    }

    /// Removes a tag with its history; the manifests it meant stay. One that is not there is no error. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn remove_tag(&self, directory: &Directory, tag: &Tag) -> Result<(), Error> {
        self.remove_link(directory, &Link::Tag(tag.clone()))?;
        let folder = self.path_of(&layout::tags_root(directory)).join(tag.as_str());
        match fs::remove_dir_all(&folder) {
            Err(error) if !is_absent(&error) => {
                Err(Error::io(Operation::Delete, folder.display().to_string(), error))
            }
            _ => Ok(()),
        }
    }

    /// Removes one link and the folders that are empty then; one that is not there is no error. Blocking.
    ///
    /// # Errors
    /// [`Error`] when the volume fails.
    pub fn remove_link(&self, directory: &Directory, link: &Link) -> Result<(), Error> {
        let path = layout::link(directory, link);
        match fs::remove_file(self.path_of(&path)) {
            Ok(()) => {
                self.prune_link(directory, link);
                Ok(())
            }
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(Error::io(Operation::Delete, path.to_string(), error)),
        }
    }
}
