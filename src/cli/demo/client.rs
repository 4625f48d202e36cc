//! The demo's client: pulls one platform of an image by plain HTTP, in the order containerd does, and verifies every
//! digest.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use larder::oci::{Algorithm, Hasher};
use reqwest::{Client, Method, Response, header};
use serde_json::Value;
use tokio::time::Instant;

use super::image::{self, INDEX, MANIFEST, REPOSITORY, TAG};

/// One request of a pull.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) status: u16,
    /// How the cache says the answer came about.
    pub(super) cache_status: String,
    pub(super) size_bytes: u64,
    pub(super) took: Duration,
}

/// A whole pull.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) steps: Vec<Step>,
    pub(super) took: Duration,
}

impl Pull {
    /// What came over the wire as content.
    pub(super) fn size_bytes(&self) -> u64 {
        self.steps
            .iter()
            .filter(|step| step.method == Method::GET)
            .map(|step| step.size_bytes)
            .sum()
    }
}

/// Pulls `linux/amd64` of the demo's image from the registry at `base`, such as `http://127.0.0.1:5000`.
///
/// # Errors
/// When a request fails or bytes do not match their digest.
pub(super) async fn pull(base: &str) -> anyhow::Result<Pull> {
    let client = Client::builder()
        .no_proxy()
        .timeout(Duration::from_mins(1))
        .build()?;
    let mut puller = Puller {
        client,
        base,
        steps: Vec::new(),
    };
    let begin = Instant::now();
    let index = puller.resolve().await?;
    let index: Value = serde_json::from_slice(&puller.manifest(&index).await?)?;
    let child = index["manifests"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|child| child["platform"]["architecture"] == "amd64")
        .context("the index has no linux/amd64")?;
    let manifest: Value = serde_json::from_slice(&puller.manifest(text(&child["digest"])?).await?)?;
    puller.blob(&manifest["config"]).await?;
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        puller.blob(layer).await?;
    }
    Ok(Pull {
        steps: puller.steps,
        took: begin.elapsed(),
    })
}

fn text(value: &Value) -> anyhow::Result<&str> {
    value.as_str().context("a descriptor has no digest")
}

struct Puller<'a> {
    client: Client,
    base: &'a str,
    steps: Vec<Step>,
}

impl Puller<'_> {
    async fn resolve(&mut self) -> anyhow::Result<String> {
        let path = format!("/v2/{REPOSITORY}/manifests/{TAG}");
        let begin = Instant::now();
        let response = self.ask(Method::HEAD, &path).await?;
        let digest = response
            .headers()
            .get("docker-content-digest")
            .and_then(|value| value.to_str().ok());
        let digest = digest.context("the tag has no digest")?.to_owned();
        self.note(Method::HEAD, path, &response, 0, begin);
        Ok(digest)
    }

    async fn manifest(&mut self, digest: &str) -> anyhow::Result<Vec<u8>> {
        let path = format!("/v2/{REPOSITORY}/manifests/{digest}");
        let begin = Instant::now();
        let mut response = self.ask(Method::GET, &path).await?;
        let mut bytes = Vec::new();
        while let Some(piece) = response.chunk().await? {
            bytes.extend_from_slice(&piece);
        }
        ensure!(
            image::sha256(&bytes) == digest,
            "the bytes of `{path}` do not match"
        );
        self.note(Method::GET, path, &response, bytes.len() as u64, begin);
        Ok(bytes)
    }

    /// Layers are hashed as they come and not kept.
    async fn blob(&mut self, descriptor: &Value) -> anyhow::Result<()> {
        let digest = text(&descriptor["digest"])?;
        let path = format!("/v2/{REPOSITORY}/blobs/{digest}");
        let begin = Instant::now();
        let mut response = self.ask(Method::GET, &path).await?;
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut size_bytes = 0;
        while let Some(piece) = response
            .chunk()
            .await
            .with_context(|| format!("`{path}` broke off"))?
        {
            hasher.update(&piece);
            size_bytes += piece.len() as u64;
        }
        ensure!(
            hasher.finish().to_string() == digest,
            "the bytes of `{path}` do not match"
        );
        self.note(Method::GET, path, &response, size_bytes, begin);
        Ok(())
    }

    async fn ask(&self, method: Method, path: &str) -> anyhow::Result<Response> {
        let request = self
            .client
            .request(method.clone(), format!("{}{path}", self.base))
            .header(header::ACCEPT, format!("{INDEX}, {MANIFEST}, */*"));
        let response = request.send().await.with_context(|| format!("{method} {path}"))?;
        if !response.status().is_success() {
            let status = response.status();
            bail!(
                "{method} {path} was answered {status}: {}",
                response.text().await.unwrap_or_default()
            );
        }
        Ok(response)
    }

    fn note(&mut self, method: Method, path: String, response: &Response, size_bytes: u64, begin: Instant) {
        let cache_status = response
            .headers()
            .get("cache-status")
            .and_then(|value| value.to_str().ok());
        self.steps.push(Step {
            method,
            path,
            status: response.status().as_u16(),
            cache_status: cache_status.unwrap_or_default().to_owned(),
            size_bytes,
            took: begin.elapsed(),
        });
    }
}
