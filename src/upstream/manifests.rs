//! Asking for manifests: whether and which one is there, and the whole of it.

use bytes::Bytes;
use http::header::HeaderName;

use super::Upstream;
use super::body;
use super::error::Error;
use super::exchange::{Question, Reply};
use super::refusal::{self, Refusal};
use super::retry::retrying;
use crate::oci::digest::DigestError;
use crate::oci::manifest::MAX_MANIFEST_BYTES;
use crate::oci::{Digest, Name, Reference, media_type};

/// The digest of what an answer is about (distribution-spec, "Pulling manifests").
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// How often a small request is repeated.
pub(super) const REPEATS: usize = 2;

/// What the headers of a manifest say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestHead {
    /// Its digest; none when the registry does not say or uses an algorithm larder cannot compute: ask with `GET`.
    pub digest: Option<Digest>,
    /// Its type, without parameters.
    pub media_type: Option<String>,
    /// Its size in bytes.
    pub size_bytes: Option<u64>,
}

/// A manifest as it came, not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedManifest {
    /// The bytes.
    pub bytes: Bytes,
    /// The `Content-Type` header.
    pub content_type: Option<String>,
    /// The `Docker-Content-Digest` header, as text.
    pub digest_header: Option<String>,
}

impl Upstream {
    /// Asks which manifest a reference stands for, by `HEAD`, which no registry counts as a pull.
    ///
    /// # Errors
    /// [`Error::HeadRefused`] when the registry does not answer `HEAD`; [`Error::NotFound`], [`Error::Denied`] and so on.
    pub async fn head_manifest(
        &self,
        repository: &Name,
        reference: &Reference,
    ) -> Result<ManifestHead, Error> {
        let question = self.manifest_question(repository, reference).head();
        retrying(REPEATS, self.transport.header_timeout, || async {
            match self.ask(&question).await? {
                Reply::Refused(refusal) => Err(head_error(refusal)),
                Reply::Given(response) => manifest_head(response.headers()),
            }
        })
        .await
    }

    /// Fetches a whole manifest of at most [`MAX_MANIFEST_BYTES`].
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is larger or a web page; [`Error::NotFound`], [`Error::Denied`] and so on.
    pub async fn get_manifest(
        &self,
        repository: &Name,
        reference: &Reference,
    ) -> Result<FetchedManifest, Error> {
        let question = self.manifest_question(repository, reference);
        retrying(REPEATS, self.transport.header_timeout, || async {
            let response = self.ask(&question).await?.given()?;
            let headers = response.headers();
            if refusal::is_page(headers) {
                return Err(Error::invalid("a web page where a manifest should be"));
            }
            let content_type = refusal::content_type(headers).map(str::to_owned);
            let digest_header = headers
                .get(CONTENT_DIGEST)
                .and_then(|value| value.to_str().ok())
                .map(|text| text.trim().to_owned());
            let bytes = body::read_all(response, MAX_MANIFEST_BYTES, &self.transport).await?;
            Ok(FetchedManifest {
                bytes,
                content_type,
                digest_header,
            })
        })
        .await
    }

    fn manifest_question<'a>(&self, repository: &'a Name, reference: &Reference) -> Question<'a> {
        Question::get(self, "manifest", repository, &format!("manifests/{reference}"))
            .accept(media_type::ACCEPT_MANIFESTS)
    }
}

/// An error to a `HEAD` may mean the method; a 403 means what it says only if a registry says it, in its own type.
fn head_error(refusal: Refusal) -> Error {
    match refusal.status {
        400 | 405 | 406 | 501 => Error::HeadRefused,
        403 if !refusal.is_json() => Error::HeadRefused,
        _ => refusal.into_error(),
    }
}

fn manifest_head(headers: &http::HeaderMap) -> Result<ManifestHead, Error> {
    if refusal::is_page(headers) {
        return Err(Error::invalid("a web page where a manifest should be"));
    }
    let digest = match headers
        .get(CONTENT_DIGEST)
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
    {
        None => None,
        Some(text) => match Digest::parse(text.trim()) {
            Ok(digest) => Some(digest),
            Err(DigestError::Unsupported(_)) => None,
            Err(error @ DigestError::Malformed(_)) => return Err(Error::invalid(error.to_string())),
        },
    };
    let media_type = refusal::content_type(headers)
        .map(media_type::essence)
        .filter(|text| !text.is_empty());
    // Some registries answer HEAD with a length of 0, which no manifest has.
    let size_bytes = body::content_length(headers).filter(|size| *size > 0);
    Ok(ManifestHead {
        digest,
        media_type: media_type.map(str::to_owned),
        size_bytes,
    })
}
