//! A client that pushes, and a larder that takes it.

use futures::stream;
use reqwest::Method;
use serde_json::{Value, json};

use crate::larder::{Builder, Larder};
use crate::upstream::digest_of;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// A client of one larder.
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn location(&self) -> String {
        assert!(self.header("location").starts_with('/'), "{}", self.status);
        self.header("location").to_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn code(&self) -> String {
        self.json()["errors"][0]["code"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

impl Client {
    pub(crate) fn of(larder: &Larder) -> Self {
        Self {
            http: reqwest::Client::new(),
            base: format!("http://{}", larder.registry),
        }
    }

    pub(crate) async fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<reqwest::Body>,
    ) -> Answer {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.unwrap();
        Answer {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            body: response.bytes().await.unwrap().to_vec(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "").await
    }

    pub(crate) async fn begin(&self, repository: &str) -> String {
        let begun = self
            .ask("POST", &format!("/v2/{repository}/blobs/uploads/"), &[], "")
            .await
            .is(202);
        assert_eq!(begun.header("range"), "0-0");
        assert!(begun.location().ends_with(begun.header("docker-upload-uuid")));
        begun.location()
    }

    pub(crate) async fn patch(&self, location: &str, first: usize, bytes: &[u8]) -> Answer {
        let range = format!("{first}-{}", first + bytes.len() - 1);
        self.ask("PATCH", location, &[("content-range", &range)], bytes.to_vec())
            .await
    }

    pub(crate) async fn stream(&self, location: &str, bytes: &[u8]) -> Answer {
        let pieces: Vec<Result<Vec<u8>, std::io::Error>> =
            bytes.chunks(7).map(|piece| Ok(piece.to_vec())).collect();
        let body = reqwest::Body::wrap_stream(stream::iter(pieces));
        self.ask("PATCH", location, &[], body).await
    }

    pub(crate) async fn put(&self, location: &str, digest: &str, bytes: &[u8]) -> Answer {
        self.ask("PUT", &format!("{location}?digest={digest}"), &[], bytes.to_vec())
            .await
    }

    /// Pushes a blob the usual way.
    pub(crate) async fn push_blob(&self, repository: &str, bytes: &[u8]) -> String {
        let digest = digest_of(bytes);
        let location = self.begin(repository).await;
        let closed = self.put(&location, &digest, bytes).await.is(201);
        assert_eq!(closed.location(), format!("/v2/{repository}/blobs/{digest}"));
        assert_eq!(closed.header("docker-content-digest"), digest);
        digest
    }

    pub(crate) async fn has_blob(&self, repository: &str, digest: &str, bytes: &[u8]) {
        let path = format!("/v2/{repository}/blobs/{digest}");
        assert_eq!(self.get(&path).await.is(200).body, bytes);
        let head = self.ask("HEAD", &path, &[], "").await.is(200);
        assert_eq!(head.header("content-length"), bytes.len().to_string());
        assert_eq!(head.header("docker-content-digest"), digest);
    }

    pub(crate) async fn push_manifest(&self, repository: &str, reference: &str, manifest: &Value) -> Answer {
        let media_type = manifest["mediaType"].as_str().unwrap().to_owned();
        let path = format!("/v2/{repository}/manifests/{reference}");
        self.ask(
            "PUT",
            &path,
            &[("content-type", &media_type)],
            manifest.to_string(),
        )
        .await
    }

    /// Pushes an image of one layer under a tag; its digest.
    pub(crate) async fn push_image(&self, repository: &str, tag: &str) -> String {
        let config = self.push_blob(repository, b"{}").await;
        let layer = self.push_blob(repository, tag.as_bytes()).await;
        let manifest = image(&config, &[(&layer, tag.len())]);
        let pushed = self.push_manifest(repository, tag, &manifest).await.is(201);
        let digest = digest_of(manifest.to_string().as_bytes());
        assert_eq!(pushed.header("docker-content-digest"), digest);
        assert_eq!(pushed.location(), format!("/v2/{repository}/manifests/{digest}"));
        digest
    }

    pub(crate) async fn tags(&self, path: &str) -> Vec<String> {
        serde_json::from_value(self.get(path).await.is(200).json()["tags"].clone()).unwrap()
    }

    pub(crate) async fn referrers(&self, path: &str) -> Vec<String> {
        let answer = self.get(path).await.is(200);
        assert_eq!(answer.header("content-type"), INDEX);
        let list = answer.json();
        let manifests = list["manifests"].as_array().unwrap();
        manifests
            .iter()
            .map(|m| m["digest"].as_str().unwrap().to_owned())
            .collect()
    }
}

pub(crate) fn image(config: &str, layers: &[(&str, usize)]) -> Value {
    let layers: Vec<Value> = layers
        .iter()
        .map(|(digest, size)| {
            json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": size})
        })
        .collect();
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": EMPTY, "digest": config, "size": 2},
        "layers": layers,
    })
}

/// A larder that hosts everything in front of no upstream.
pub(crate) fn hosting() -> Builder {
    Builder::new("")
        .set("larder.hosted.repositories", json!(["*"]))
        .set("larder.hosted.delete", true)
}

pub(crate) fn sha512_of(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    format!("sha512:{}", hex::encode(sha2::Sha512::digest(bytes)))
}
