//! Where things lie on the volume: distribution's layout, and larder's own folder beside it.

use std::fmt;
use std::sync::Arc;

use object_store::path::Path;

use super::links::Link;
use crate::oci::name::is_component;
use crate::oci::{Digest, Name};

/// Everything that distribution knows lies below this.
const REGISTRY: &str = "docker/registry/v2";
/// Everything of larder's own lies below this; distribution does not look here.
pub const OWN: &str = "larder";
/// The index over the files.
pub const INDEX: &str = "larder/index";
/// Content on its way in.
pub const SPOOL: &str = "larder/spool";
/// Content that turned out wrong.
pub const QUARANTINE: &str = "larder/quarantine";
/// The file that the health check writes.
pub const PROBE: &str = "larder/probe";

/// A repository's directory on the volume: its name, behind the upstream's host where there are several.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Directory(Arc<str>);

impl Directory {
    /// The directory of `name`, below `host` if there is one; a port's colon becomes `_`.
    pub fn new(host: Option<&str>, name: &Name) -> Self {
        match host {
            None => Self(Arc::from(name.as_str())),
            Some(host) => Self(Arc::from(format!("{}/{name}", host.replace(':', "_")))),
        }
    }

    /// Parses what was found on a volume; `None` when no repository has this directory.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, rest) = text
            .split_once('/')
            .map_or((text, None), |(first, rest)| (first, Some(rest)));
        let is_host = first
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            && first.starts_with(|c: char| c.is_ascii_alphanumeric());
        let fits = (is_component(first) || (is_host && rest.is_some()))
            && rest.is_none_or(|r| r.split('/').all(is_component));
        fits.then(|| Self(Arc::from(text)))
    }

    /// The directory as text, relative to the folder of all repositories.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The bytes of a blob or manifest.
pub fn blob_data(canonical: &Digest) -> Path {
    let prefix: String = canonical.hex().chars().take(2).collect();
    Path::from(format!(
        "{REGISTRY}/blobs/{}/{prefix}/{}/data",
        canonical.algorithm().as_str(),
        canonical.hex()
    ))
}

/// The folder of all repositories, or of one.
pub fn repository_root(directory: &str) -> Path {
    Path::from(format!("{REGISTRY}/repositories/{directory}"))
}

/// The folder of a repository's tags.
pub fn tags_root(directory: &Directory) -> Path {
    Path::from(format!("{REGISTRY}/repositories/{directory}/_manifests/tags"))
}

/// Everything that distribution knows.
pub fn registry_root() -> Path {
    Path::from(REGISTRY)
}

/// The folder of all bytes.
pub fn blobs_root() -> Path {
    Path::from(format!("{REGISTRY}/blobs"))
}

/// The folder of a repository's links to blobs.
pub fn layers_root(directory: &Directory) -> Path {
    Path::from(format!("{REGISTRY}/repositories/{directory}/_layers"))
}

/// The folder of a repository's links to manifests.
pub fn revisions_root(directory: &Directory) -> Path {
    Path::from(format!(
        "{REGISTRY}/repositories/{directory}/_manifests/revisions"
    ))
}

/// The folder of a repository's unfinished uploads.
pub fn uploads_root(directory: &str) -> Path {
    Path::from(format!("{REGISTRY}/repositories/{directory}/_uploads"))
}

/// The file of a link.
pub fn link(directory: &Directory, link: &Link) -> Path {
    let root = format!("{REGISTRY}/repositories/{directory}");
    Path::from(match link {
        Link::Layer(digest) => format!("{root}/_layers/{}/link", digest_folder(digest)),
        Link::Revision(digest) => format!("{root}/_manifests/revisions/{}/link", digest_folder(digest)),
        Link::Tag(tag) => format!("{root}/_manifests/tags/{tag}/current/link"),
        Link::TagIndex(tag, digest) => format!(
            "{root}/_manifests/tags/{tag}/index/{}/link",
            digest_folder(digest)
        ),
    })
}

fn digest_folder(digest: &Digest) -> String {
    format!("{}/{}", digest.algorithm().as_str(), digest.hex())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_begin_with_the_host_where_there_are_several() {
        let name = Name::parse("library/alpine").unwrap();
        assert_eq!(Directory::new(None, &name).as_str(), "library/alpine");
        let hosted = Directory::new(Some("localhost:5000"), &name);
        assert_eq!(hosted.as_str(), "localhost_5000/library/alpine");
        assert_eq!(Directory::parse(hosted.as_str()), Some(hosted));
        for bad in ["", "_layers", "../x", "a/../b", "A", "a//b", "a/B"] {
            assert_eq!(Directory::parse(bad), None, "{bad}");
        }
    }
}
