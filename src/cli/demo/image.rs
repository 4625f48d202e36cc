//! The demo's image: an index of two platforms, each with a configuration and layers of some MiB, the same bytes in
//! every run. Pure values; the upstream serves them.

use std::collections::HashMap;

use bytes::Bytes;
use larder::oci::{Algorithm, Digest};
use serde_json::{Value, json};

/// The repository the image is in.
pub(super) const REPOSITORY: &str = "demo/hello";
/// Its tag.
pub(super) const TAG: &str = "1.0";

/// The media type of an image index.
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The media type of an image manifest.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Both platforms share the first layer, as images built on one base do.
const BASE_BYTES: usize = 12 << 20;
const OWN_BYTES: [usize; 2] = [9 << 20, 3 << 20];

/// A manifest or index with the type it is served as.
#[derive(Debug, Clone)]
pub(super) struct Document {
    pub(super) media_type: &'static str,
    pub(super) bytes: Bytes,
}

/// Everything there is to pull.
#[derive(Debug, Default)]
pub(super) struct Image {
    /// The digest behind the tag.
    pub(super) index: String,
    /// Index and manifests by digest.
    pub(super) manifests: HashMap<String, Document>,
    /// Configurations and layers by digest.
    pub(super) blobs: HashMap<String, Bytes>,
}

impl Image {
    /// Makes the image.
    pub(super) fn generate() -> Self {
        let mut image = Self::default();
        let base = layer("usr/share/base.bin", "base", BASE_BYTES);
        let platforms = ["amd64", "arm64"];
        let children: Vec<Value> = platforms
            .iter()
            .map(|&platform| image.add_platform(platform, &base))
            .collect();
        image.index = image.add_manifest(
            INDEX,
            &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": children }),
        );
        image
    }

    fn add_platform(&mut self, architecture: &str, base: &Bytes) -> Value {
        let mut layers = vec![base.clone()];
        for (number, size) in OWN_BYTES.into_iter().enumerate() {
            let path = format!("opt/hello/{architecture}-{number}.bin");
            layers.push(layer(&path, &path, size));
        }
        // An uncompressed layer is its own `diff_id`.
        let descriptors: Vec<Value> = layers
            .into_iter()
            .map(|layer| descriptor(LAYER, layer.len(), &self.add_blob(layer)))
            .collect();
        let diff_ids: Vec<&Value> = descriptors.iter().map(|layer| &layer["digest"]).collect();
        let config = Bytes::from(
            json!({
                "created": "1970-01-01T00:00:00Z",
                "architecture": architecture,
                "os": "linux",
                "config": {},
                "rootfs": { "type": "layers", "diff_ids": diff_ids },
            })
            .to_string(),
        );
        let size = config.len();
        let config = descriptor(CONFIG, size, &self.add_blob(config));
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": descriptors });
        let digest = self.add_manifest(MANIFEST, &manifest);
        let size = self
            .manifests
            .get(&digest)
            .map_or(0, |document| document.bytes.len());
        let mut child = descriptor(MANIFEST, size, &digest);
        child["platform"] = json!({ "os": "linux", "architecture": architecture });
        child
    }

    fn add_blob(&mut self, bytes: Bytes) -> String {
        let digest = sha256(&bytes);
        self.blobs.insert(digest.clone(), bytes);
        digest
    }

    fn add_manifest(&mut self, media_type: &'static str, document: &Value) -> String {
        let bytes = Bytes::from(document.to_string());
        let digest = sha256(&bytes);
        self.manifests
            .insert(digest.clone(), Document { media_type, bytes });
        digest
    }
}

/// The digest of some bytes, as text.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Digest::of(Algorithm::Sha256, bytes).to_string()
}

fn descriptor(media_type: &str, size: usize, digest: &str) -> Value {
    json!({ "mediaType": media_type, "size": size, "digest": digest })
}

/// A tar with one file of text that looks random and is the same in every run: digests of a counter.
fn layer(path: &str, seed: &str, size: usize) -> Bytes {
    let mut tar = Vec::with_capacity(size + 4 * 512);
    tar.extend_from_slice(&tar_header(path, size));
    for counter in 0_usize.. {
        if tar.len() >= size + 512 {
            break;
        }
        tar.extend_from_slice(
            Digest::of(Algorithm::Sha512, format!("{seed}{counter}").as_bytes())
                .hex()
                .as_bytes(),
        );
    }
    // The file is a multiple of the block size; two empty blocks end the archive.
    tar.resize(size + 3 * 512, 0);
    Bytes::from(tar)
}

/// A ustar header: name, mode, owner, size, time, checksum, type.
fn tar_header(path: &str, size: usize) -> [u8; 512] {
    let mut header = [0; 512];
    let mut put = |offset: usize, field: &[u8]| {
        for (to, from) in header.iter_mut().skip(offset).zip(field) {
            *to = *from;
        }
    };
    put(0, path.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        0");
    put(257, b"ustar\x0000");
    let checksum: u32 = header.iter().copied().map(u32::from).sum();
    for (to, from) in header
        .iter_mut()
        .skip(148)
        .zip(format!("{checksum:06o}\0 ").bytes())
    {
        *to = from;
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_descriptor_leads_to_bytes_of_its_size_and_digest() {
        let image = Image::generate();
        assert_eq!(image.manifests.len(), 3);
        assert_eq!(
            image.blobs.len(),
            2 * 3 + 1,
            "two configurations, one shared and four own layers"
        );
        for (digest, document) in &image.manifests {
            assert_eq!(digest, &sha256(&document.bytes));
            let document: Value = serde_json::from_slice(&document.bytes).unwrap();
            let children = document["manifests"].as_array().into_iter().flatten();
            let blobs = document["layers"]
                .as_array()
                .into_iter()
                .flatten()
                .chain(document.get("config"));
            for child in children {
                let found = &image.manifests[child["digest"].as_str().unwrap()];
                assert_eq!(child["size"], found.bytes.len());
            }
            for blob in blobs {
                assert_eq!(blob["size"], image.blobs[blob["digest"].as_str().unwrap()].len());
            }
        }
    }
}
