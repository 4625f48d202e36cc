//! What larder reads out of a manifest: its type, what it refers to, and what a referrers list says of it.
//!
//! The bytes themselves are never changed. Parsing is lenient: a manifest of an unknown kind has no references but is
//! still a manifest, as long as it is JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::digest::Digest;
use super::media_type;

/// The largest manifest larder stores, in bytes (the spec demands 4 MB at least; containerd takes 4.4 MB).
pub const MAX_MANIFEST_BYTES: usize = 8 * 1024 * 1024;

/// A content descriptor as it stands in a manifest or a referrers list (image-spec, "OCI Content Descriptors").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Type of the content.
    #[serde(default)]
    pub media_type: String,
    /// Digest as text: algorithms that larder cannot compute pass through.
    pub digest: String,
    /// Size in bytes.
    #[serde(default)]
    pub size: u64,
    /// Type of an artifact, in referrers lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Other places to find the content (foreign layers).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
}

/// What a reference is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// A child manifest of an index.
    Manifest,
    /// The configuration blob.
    Config,
    /// A layer or another blob.
    Layer,
    /// The manifest that this one is about; not kept alive by it.
    Subject,
}

/// An edge from a manifest to what it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// What for.
    pub role: Role,
    /// To which digest.
    pub digest: Digest,
    /// Size in bytes as the manifest says it.
    pub size_bytes: u64,
    /// Type as the manifest says it.
    pub media_type: String,
}

/// The facts of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The type to serve it with.
    pub media_type: String,
    /// The artifact's type for a referrers list: its own, else its configuration's; none for an index without.
    pub artifact_type: Option<String>,
    /// Its annotations.
    pub annotations: Option<BTreeMap<String, String>>,
    /// All that it names by a digest larder can compute, in order, subject last.
    pub edges: Vec<Edge>,
}

/// Why bytes are not a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// Larger than [`MAX_MANIFEST_BYTES`].
    #[error("manifest has {0} bytes, more than the {MAX_MANIFEST_BYTES} allowed")]
    TooLarge(usize),
    /// Not a JSON object.
    #[error("manifest is not a JSON object: {0}")]
    NotJson(String),
    /// A page for people, such as a login form.
    #[error("`{0}` is not the type of a manifest")]
    NotAManifest(String),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    schema_version: Option<serde_json::Value>,
    media_type: Option<String>,
    artifact_type: Option<String>,
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    blobs: Option<Vec<Descriptor>>,
    manifests: Option<Vec<Descriptor>>,
    subject: Option<Descriptor>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Manifest {
    /// Reads the facts out of a manifest's bytes; `content_type` is what came with them, if anything.
    ///
    /// # Errors
    /// [`ManifestError`] when the bytes are too many, no JSON object, or come as a web page.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(ManifestError::TooLarge(bytes.len()));
        }
        let content_type = media_type::essence(content_type.unwrap_or_default());
        if media_type::is_page(content_type) {
            return Err(ManifestError::NotAManifest(content_type.to_owned()));
        }
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(bytes).map_err(|e| ManifestError::NotJson(e.to_string()))?;
        // A custom kind may use the well-known keys for other shapes: then it simply has no references.
        let raw = Raw::deserialize(serde_json::Value::Object(object)).unwrap_or_default();
        Ok(Self::from_raw(raw, content_type))
    }

    fn from_raw(raw: Raw, content_type: &str) -> Self {
        let media_type = raw.served_type(content_type);
        let is_index = raw.manifests.is_some();
        let artifact_type = raw.artifact_type.clone().filter(|t| !t.is_empty()).or_else(|| {
            raw.config
                .as_ref()
                .filter(|_| !is_index)
                .map(|c| c.media_type.clone())
        });
        let mut edges = Vec::new();
        let groups = [
            (Role::Manifest, raw.manifests.unwrap_or_default()),
            (Role::Config, raw.config.into_iter().collect()),
            (Role::Layer, raw.layers.unwrap_or_default()),
            (Role::Layer, raw.blobs.unwrap_or_default()),
            (Role::Subject, raw.subject.into_iter().collect()),
        ];
        for (role, descriptors) in groups {
            edges.extend(descriptors.into_iter().filter_map(|d| {
                let digest = Digest::parse(&d.digest).ok()?;
                Some(Edge {
                    role,
                    digest,
                    size_bytes: d.size,
                    media_type: d.media_type,
                })
            }));
        }
        Self {
            media_type,
            artifact_type,
            annotations: raw.annotations,
            edges,
        }
    }

    /// The manifest that this one is about.
    pub fn subject(&self) -> Option<&Digest> {
        self.edges
            .iter()
            .find(|e| e.role == Role::Subject)
            .map(|e| &e.digest)
    }

    /// The entry for a referrers list (distribution-spec, "Listing Referrers").
    pub fn descriptor(&self, digest: &Digest, size_bytes: u64) -> Descriptor {
        Descriptor {
            media_type: self.media_type.clone(),
            digest: digest.to_string(),
            size: size_bytes,
            artifact_type: self.artifact_type.clone(),
            annotations: self.annotations.clone(),
            urls: Vec::new(),
        }
    }
}

impl Raw {
    /// The body's own word, else a header that says something, else what the shape tells.
    fn served_type(&self, content_type: &str) -> String {
        if let Some(own) = self.media_type.as_deref().filter(|t| !t.is_empty()) {
            return own.to_owned();
        }
        if !media_type::is_generic(content_type) {
            return content_type.to_owned();
        }
        let schema_is_1 = self.schema_version.as_ref().and_then(serde_json::Value::as_u64) == Some(1);
        if schema_is_1 {
            media_type::DOCKER_SCHEMA1
        } else if self.manifests.is_some() {
            media_type::OCI_INDEX
        } else {
            media_type::OCI_MANIFEST
        }
        .to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::oci::Algorithm;

    fn digest(text: &str) -> Digest {
        Digest::of(Algorithm::Sha256, text.as_bytes())
    }

    #[test]
    fn an_image_names_its_config_layers_and_subject() {
        let body = format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"c/c","digest":"{}","size":1}},
               "layers":[{{"mediaType":"l/l","digest":"{}","size":2}},{{"mediaType":"l/l","digest":"blake3:00","size":2}}],
               "subject":{{"mediaType":"m/m","digest":"{}","size":3}}}}"#,
            digest("c"),
            digest("l"),
            digest("s")
        );
        let manifest = Manifest::parse(body.as_bytes(), Some("application/json; charset=utf-8")).unwrap();
        assert_eq!(manifest.media_type, media_type::OCI_MANIFEST);
        assert_eq!(manifest.artifact_type.as_deref(), Some("c/c"));
        assert_eq!(manifest.subject(), Some(&digest("s")));
        let roles: Vec<_> = manifest.edges.iter().map(|e| (e.role, e.size_bytes)).collect();
        assert_eq!(roles, [(Role::Config, 1), (Role::Layer, 2), (Role::Subject, 3)]);
    }

    #[test]
    fn the_type_comes_from_the_body_then_the_header_then_the_shape() {
        let cases = [
            (r#"{"mediaType":"x/y"}"#, Some("a/b"), "x/y"),
            (
                r#"{"a":1}"#,
                Some("application/vnd.custom+json; v=1"),
                "application/vnd.custom+json",
            ),
            (r#"{"manifests":[]}"#, None, media_type::OCI_INDEX),
            (
                r#"{"schemaVersion":1}"#,
                Some("text/plain"),
                media_type::DOCKER_SCHEMA1,
            ),
            (
                r#"{"layers":[]}"#,
                Some("application/octet-stream"),
                media_type::OCI_MANIFEST,
            ),
            (r#"{"layers":"odd","mediaType":7}"#, Some("c/d"), "c/d"),
        ];
        for (body, header, expected) in cases {
            assert_eq!(
                Manifest::parse(body.as_bytes(), header).unwrap().media_type,
                expected,
                "{body}"
            );
        }
    }

    #[test]
    fn an_index_without_artifact_type_has_none() {
        let manifest = Manifest::parse(br#"{"manifests":[]}"#, None).unwrap();
        assert_eq!(manifest.artifact_type, None);
    }

    #[test]
    fn pages_arrays_and_giants_are_refused() {
        assert!(matches!(
            Manifest::parse(b"{}", Some("text/html")),
            Err(ManifestError::NotAManifest(_))
        ));
        assert!(matches!(
            Manifest::parse(b"[]", None),
            Err(ManifestError::NotJson(_))
        ));
        assert!(matches!(
            Manifest::parse(b"<html>", None),
            Err(ManifestError::NotJson(_))
        ));
        let giant = vec![b' '; MAX_MANIFEST_BYTES + 1];
        assert!(matches!(
            Manifest::parse(&giant, None),
            Err(ManifestError::TooLarge(_))
        ));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Manifest::parse(&bytes, None);
        }
    }
}
