//! What a registry holds, made on the spot: blobs of any size and the manifests over them. Everything is derived
//! from a seed, so a failing test fails again, and a gibibyte costs no memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256, Sha512};

/// The size of the pattern that generated blobs repeat, each time stamped with its position.
const BLOCK_BYTES: u64 = 64 * 1024;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// A blob: its digest and the bytes behind it.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(crate) digest: String,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Stored(Bytes),
    Generated { block: Arc<Vec<u8>>, len: u64 },
}

impl Blob {
    /// A blob of `len` bytes that depend on `seed` alone.
    pub(crate) fn generated(seed: u64, len: u64) -> Self {
        let content = Content::generated(seed, len);
        let digest = content.hash::<Sha256>("sha256");
        Self { digest, content }
    }

    /// As [`Blob::generated`], named by its sha512.
    pub(crate) fn generated_sha512(seed: u64, len: u64) -> Self {
        let content = Content::generated(seed, len);
        let digest = content.hash::<Sha512>("sha512");
        Self { digest, content }
    }

    /// A blob of these bytes.
    pub(crate) fn of(bytes: impl Into<Bytes>) -> Self {
        let content = Content::Stored(bytes.into());
        let digest = content.hash::<Sha256>("sha256");
        Self { digest, content }
    }

    /// These bytes under a digest that may not be theirs.
    pub(crate) fn mislabelled(digest: &str, bytes: impl Into<Bytes>) -> Self {
        Self {
            digest: digest.to_owned(),
            content: Content::Stored(bytes.into()),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::Stored(bytes) => bytes.len() as u64,
            Content::Generated { len, .. } => *len,
        }
    }

    /// The bytes of `range`, cut to what there is.
    pub(crate) fn read(&self, range: Range<u64>) -> Vec<u8> {
        self.content.read(range)
    }

    /// All bytes; for blobs a test can afford.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.read(0..self.len())
    }

    /// The descriptor of this blob under `media_type`.
    pub(crate) fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.len()})
    }
}

impl Content {
    fn generated(seed: u64, len: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut block = Vec::new();
        while (block.len() as u64) < BLOCK_BYTES {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            block.extend_from_slice(&state.to_le_bytes());
        }
        Self::Generated {
            block: Arc::new(block),
            len,
        }
    }

    fn read(&self, range: Range<u64>) -> Vec<u8> {
        match self {
            Self::Stored(bytes) => {
                let end = range.end.min(bytes.len() as u64);
                let start = range.start.min(end);
                bytes.slice(index(start)..index(end)).to_vec()
            }
            Self::Generated { block, len } => {
                let end = range.end.min(*len);
                let mut at = range.start.min(end);
                let mut out = Vec::with_capacity(index(end - at));
                while at < end {
                    let number = at / BLOCK_BYTES;
                    let within = at % BLOCK_BYTES;
                    let until = (BLOCK_BYTES).min(within + (end - at));
                    let from = out.len();
                    out.extend_from_slice(&block[index(within)..index(until)]);
                    stamp(&mut out[from..], number, within);
                    at += until - within;
                }
                out
            }
        }
    }

    fn hash<D: sha2::Digest>(&self, algorithm: &str) -> String {
        let mut hasher = D::new();
        let mut at = 0;
        loop {
            let piece = self.read(at..at + BLOCK_BYTES);
            if piece.is_empty() {
                break;
            }
            at += piece.len() as u64;
            hasher.update(&piece);
        }
        format!("{algorithm}:{}", hex::encode(hasher.finalize()))
    }
}

/// Writes the block number over the first eight bytes of a block, so that no two blocks are alike.
fn stamp(piece: &mut [u8], number: u64, within: u64) {
    for (offset, byte) in number
        .to_be_bytes()
        .into_iter()
        .enumerate()
        .skip(index(within.min(8)))
    {
        if let Some(slot) = piece.get_mut(offset - index(within)) {
            *slot ^= byte;
        }
    }
}

/// Sizes of the tests fit in memory.
fn index(value: u64) -> usize {
    usize::try_from(value).expect("the platform has 64 bits")
}

/// The sha256 digest of some bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

/// A manifest of whatever kind: exactly these bytes, under this media type.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) digest: String,
    pub(crate) media_type: String,
    pub(crate) bytes: Bytes,
}

impl Document {
    pub(crate) fn new(media_type: &str, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self {
            digest: digest_of(&bytes),
            media_type: media_type.to_owned(),
            bytes,
        }
    }

    /// A manifest from its JSON, printed with white space nobody would add, so that re-serialising shows.
    pub(crate) fn from_json(media_type: &str, value: &Value) -> Self {
        let text = serde_json::to_string_pretty(value).expect("JSON values can be printed");
        Self::new(media_type, format!("{text}\n \n"))
    }

    /// The descriptor of this manifest.
    pub(crate) fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len()})
    }
}

/// An image: a manifest, its config, its layers.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) manifest: Document,
    pub(crate) config: Blob,
    pub(crate) layers: Vec<Blob>,
}

impl Image {
    /// An OCI image over these layers.
    pub(crate) fn oci(name: &str, layers: Vec<Blob>) -> Self {
        let media = [
            OCI_MANIFEST,
            "application/vnd.oci.image.config.v1+json",
            "application/vnd.oci.image.layer.v1.tar",
        ];
        Self::build(name, layers, media)
    }

    /// A Docker schema 2 image over these layers.
    pub(crate) fn docker(name: &str, layers: Vec<Blob>) -> Self {
        let media = [
            DOCKER_MANIFEST,
            "application/vnd.docker.container.image.v1+json",
            "application/vnd.docker.image.rootfs.diff.tar.gzip",
        ];
        Self::build(name, layers, media)
    }

    /// An OCI image with two small layers, all of it made from `seed`.
    pub(crate) fn small(seed: u64) -> Self {
        let layers = vec![
            Blob::generated(seed * 1000 + 1, 70_000),
            Blob::generated(seed * 1000 + 2, 3_000),
        ];
        Self::oci(&format!("small-{seed}"), layers)
    }

    fn build(name: &str, layers: Vec<Blob>, [media_type, config_type, layer_type]: [&str; 3]) -> Self {
        let config = Blob::of(json!({"architecture": "amd64", "os": "linux", "name": name}).to_string());
        let list: Vec<Value> = layers.iter().map(|layer| layer.descriptor(layer_type)).collect();
        let value = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": config.descriptor(config_type),
            "layers": list,
        });
        Self {
            manifest: Document::from_json(media_type, &value),
            config,
            layers,
        }
    }

    /// An artifact that refers to `subject`, of the artifact type `kind`.
    pub(crate) fn artifact(subject: &Document, kind: &str, payload: &str) -> Self {
        let config = Blob::of("{}");
        let layer = Blob::of(payload.to_owned());
        let value = json!({
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "artifactType": kind,
            "config": config.descriptor("application/vnd.oci.empty.v1+json"),
            "layers": [layer.descriptor("application/vnd.example.payload")],
            "subject": subject.descriptor(),
            "annotations": {"note": payload},
        });
        Self {
            manifest: Document::from_json(OCI_MANIFEST, &value),
            config,
            layers: vec![layer],
        }
    }

    /// Config and layers together.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Blob> {
        std::iter::once(&self.config).chain(&self.layers)
    }
}

/// An index or, with [`DOCKER_LIST`], a Docker manifest list over these manifests.
pub(crate) fn index_of(media_type: &str, children: &[&Document]) -> Document {
    let list: Vec<Value> = children
        .iter()
        .zip(["amd64", "arm64", "riscv64", "s390x"])
        .map(|(child, architecture)| {
            let mut descriptor = child.descriptor();
            descriptor["platform"] = json!({"os": "linux", "architecture": architecture});
            descriptor
        })
        .collect();
    Document::from_json(
        media_type,
        &json!({"schemaVersion": 2, "mediaType": media_type, "manifests": list}),
    )
}

/// An image manifest without layers, padded by an annotation to about `len` bytes.
pub(crate) fn big_manifest(len: usize) -> Document {
    let config = Blob::of("{}");
    let value = json!({
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": config.descriptor("application/vnd.oci.empty.v1+json"),
        "layers": [],
        "annotations": {"padding": "x".repeat(len)},
    });
    Document::from_json(OCI_MANIFEST, &value)
}

/// An image manifest that does not say what it is: no `mediaType` in the body.
pub(crate) fn manifest_without_media_type() -> Document {
    let config = Blob::of("{\"bare\":true}");
    let value = json!({
        "schemaVersion": 2,
        "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
        "layers": [],
    });
    Document::from_json(OCI_MANIFEST, &value)
}
