//! The registry of a test: what it holds, and what it would answer if nothing went wrong.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use super::auth::{Auth, Realm, Scheme, Tokens, basic_header};
use super::content::{Blob, Document, OCI_INDEX};
use super::fault::Role;
use super::wire::{Reply, Request};

/// How `tags/list` pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum TagPages {
    /// `Link` with an absolute URL.
    #[default]
    Absolute,
    /// `Link` with a path.
    Relative,
    /// `Link` with an opaque `next_page` beside `last`, as quay does.
    NextPage,
    /// Everything at once and in no order, whatever is asked, as docker-registry 2.8 does.
    Never,
}

#[derive(Debug, Default)]
pub(super) struct Repository {
    pub(super) blobs: HashMap<String, Blob>,
    pub(super) manifests: HashMap<String, Document>,
    pub(super) tags: BTreeMap<String, String>,
}

/// Everything a test can set.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) repositories: HashMap<String, Repository>,
    pub(super) auth: Auth,
    pub(super) tokens: Tokens,
    pub(super) tag_pages: TagPages,
    pub(super) tag_page_size: Option<usize>,
    pub(super) has_referrers: bool,
    pub(super) filters_referrers: bool,
    /// `scheme://host:port` of the registry, the token server and the CDN.
    pub(super) origin: String,
    pub(super) token_origin: String,
    pub(super) cdn_origin: String,
}

impl Registry {
    /// The answer to a request, faults aside.
    pub(super) fn answer(&mut self, role: Role, request: &Request) -> Reply {
        match role {
            Role::Token => return self.token(request),
            Role::Cdn => return self.cdn(request),
            Role::Registry => {}
        }
        if request.path == "/token" {
            return self.token(request);
        }
        if request.path.starts_with("/signed/") {
            return self.cdn(request);
        }
        let Some(path) = request.path.strip_prefix("/v2/") else {
            return Reply::error(404, "UNSUPPORTED", "no such path");
        };
        let Some((name, kind, reference)) = split(path) else {
            return self
                .admit(request, "")
                .unwrap_or_else(|| Reply::new(200, "application/json", Blob::of("{}")));
        };
        if let Some(refusal) = self.admit(request, name) {
            return refusal;
        }
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return Reply::error(405, "UNSUPPORTED", "this registry is for pulling");
        }
        match kind {
            "manifests" => self.manifest(name, reference),
            "blobs" => self.blob(name, reference, request),
            "tags" => self.tags(name, request),
            _ => self.referrers(name, reference, request),
        }
    }

    fn manifest(&self, name: &str, reference: &str) -> Reply {
        let found = self.repositories.get(name).and_then(|repository| {
            let digest = repository.tags.get(reference).map_or(reference, String::as_str);
            repository.manifests.get(digest)
        });
        let Some(document) = found else {
            return Reply::error(404, "MANIFEST_UNKNOWN", "manifest unknown");
        };
        Reply::new(
            200,
            &document.media_type,
            Blob::mislabelled(&document.digest, document.bytes.clone()),
        )
        .with("Docker-Content-Digest", &document.digest)
        .with("ETag", format!("\"{}\"", document.digest))
    }

    fn blob(&self, name: &str, digest: &str, request: &Request) -> Reply {
        let found = self
            .repositories
            .get(name)
            .and_then(|repository| repository.blobs.get(digest));
        let Some(blob) = found else {
            return Reply::error(404, "BLOB_UNKNOWN", "blob unknown to registry");
        };
        ranged(Reply::new(200, "application/octet-stream", blob.clone()), request)
            .with("Docker-Content-Digest", digest)
    }

    /// Signed URLs: `/signed/REPOSITORY/DIGEST?sig=...`; the signature is compared byte for byte.
    fn cdn(&self, request: &Request) -> Reply {
        if request.query != SIGNATURE {
            return Reply::error(400, "UNSUPPORTED", "the signature does not match");
        }
        let path = request.path.trim_start_matches("/signed/");
        let found = path.rsplit_once('/').and_then(|(name, digest)| {
            self.repositories
                .get(name)
                .and_then(|repository| repository.blobs.get(digest))
        });
        match found {
            Some(blob) => ranged(Reply::new(200, "binary/octet-stream", blob.clone()), request),
            None => Reply::error(404, "BLOB_UNKNOWN", "no such object"),
        }
    }

    fn tags(&self, name: &str, request: &Request) -> Reply {
        let Some(repository) = self.repositories.get(name) else {
            return Reply::error(404, "NAME_UNKNOWN", "repository name not known to registry");
        };
        if self.tag_pages == TagPages::Never {
            let all: Vec<&String> = repository.tags.keys().rev().collect();
            let body = json!({"name": name, "tags": all}).to_string();
            return Reply::new(200, "application/json", Blob::of(body));
        }
        let last = request
            .query_value("last")
            .or_else(|| request.query_value("next_page"));
        let asked = request.query_value("n").and_then(|n| n.parse::<usize>().ok());
        let most = asked
            .into_iter()
            .chain(self.tag_page_size)
            .min()
            .unwrap_or(usize::MAX);
        let after = repository
            .tags
            .keys()
            .filter(|tag| last.as_ref().is_none_or(|last| *tag > last));
        let left: Vec<&String> = after.collect();
        let page = left.get(..most.min(left.len())).unwrap_or_default();
        let body = json!({"name": name, "tags": page}).to_string();
        let reply = Reply::new(200, "application/json", Blob::of(body));
        match page.last() {
            Some(last) if page.len() < left.len() => reply.with("Link", self.next_page(name, most, last)),
            _ => reply,
        }
    }

    fn next_page(&self, name: &str, most: usize, last: &str) -> String {
        let path = format!("/v2/{name}/tags/list");
        match self.tag_pages {
            TagPages::Absolute => format!("<{}{path}?last={last}&n={most}>; rel=\"next\"", self.origin),
            TagPages::Relative => format!("<{path}?n={most}&last={last}>; rel=\"next\""),
            TagPages::NextPage | TagPages::Never => {
                format!("<{path}?n={most}&next_page={last}>; rel=\"next\"")
            }
        }
    }

    fn referrers(&self, name: &str, digest: &str, request: &Request) -> Reply {
        if !self.has_referrers {
            return Reply::new(404, "text/plain", Blob::of("404 page not found\n"));
        }
        let Some(repository) = self.repositories.get(name) else {
            return Reply::error(404, "NAME_UNKNOWN", "repository name not known to registry");
        };
        let kinds: Vec<String> = request.query_values("artifactType").collect();
        let mut list = Vec::new();
        for document in repository.manifests.values() {
            let value: Value = serde_json::from_slice(&document.bytes).unwrap_or_default();
            if value["subject"]["digest"] != *digest {
                continue;
            }
            let kind = value["artifactType"].as_str().unwrap_or_default().to_owned();
            if self.filters_referrers && !kinds.is_empty() && !kinds.contains(&kind) {
                continue;
            }
            let mut descriptor = document.descriptor();
            descriptor["artifactType"] = kind.into();
            descriptor["annotations"] = value["annotations"].clone();
            list.push(descriptor);
        }
        list.sort_by_key(|descriptor| descriptor["digest"].to_string());
        let body = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list}).to_string();
        let reply = Reply::new(200, OCI_INDEX, Blob::of(body));
        let is_filtered = self.filters_referrers && !kinds.is_empty();
        if is_filtered {
            reply.with("OCI-Filters-Applied", "artifactType")
        } else {
            reply
        }
    }

    /// `None` when the request may pass, else the 401 or 403.
    fn admit(&mut self, request: &Request, name: &str) -> Option<Reply> {
        let auth = self.auth.clone();
        let header = request.header("authorization").unwrap_or_default();
        let scope = if name.is_empty() {
            String::new()
        } else {
            format!("repository:{name}:pull")
        };
        let by_token = header
            .strip_prefix("Bearer ")
            .is_some_and(|token| self.tokens.accept(token, &scope));
        let by_basic = auth
            .credentials
            .as_ref()
            .is_some_and(|(user, password)| header == basic_header(user, password));
        let is_admitted = match auth.scheme {
            Scheme::None => true,
            Scheme::Bearer => by_token,
            Scheme::Basic => by_basic,
            Scheme::Both => by_token || by_basic,
        };
        if is_admitted && !auth.is_scope_insufficient {
            return None;
        }
        let mut reply = Reply::error(401, "UNAUTHORIZED", "authentication required");
        if auth.has_challenge {
            let challenge = self.challenge(&auth, &scope, by_token);
            reply = reply.with("WWW-Authenticate", challenge);
        }
        Some(reply)
    }

    fn challenge(&self, auth: &Auth, scope: &str, has_token: bool) -> String {
        let realm = match auth.realm {
            Realm::SameHost => format!("{}/token", self.token_origin),
            Realm::Relative => "/token".to_owned(),
            Realm::OtherHost => format!("{}/token", self.token_origin.replace("127.0.0.1", "localhost")),
        };
        let mut bearer = format!("Bearer realm=\"{realm}\",service=\"test, registry\"");
        if !scope.is_empty() {
            bearer.extend([",scope=\"", scope, "\""]);
        }
        if has_token {
            bearer.push_str(",error=\"insufficient_scope\"");
        }
        match auth.scheme {
            Scheme::Basic => "Basic realm=\"test\"".to_owned(),
            Scheme::Both => format!("Basic realm=\"test, too\", {bearer}"),
            Scheme::None | Scheme::Bearer => bearer,
        }
    }

    fn token(&mut self, request: &Request) -> Reply {
        let auth = self.auth.clone();
        if let Some((user, password)) = &auth.credentials
            && request.header("authorization") != Some(&basic_header(user, password))
        {
            return Reply::error(401, "UNAUTHORIZED", "who are you?");
        }
        if request.query_value("service").as_deref() != Some("test, registry") {
            return Reply::error(400, "UNSUPPORTED", "another service");
        }
        let scopes: HashSet<String> = request.query_values("scope").collect();
        let token = self.tokens.issue(&auth, scopes);
        let mut body = json!({auth.token_field: token});
        if let Some(seconds) = auth.expires_in {
            body["expires_in"] = seconds.into();
        }
        Reply::new(200, "application/json", Blob::of(body.to_string()))
    }
}

/// What makes a signed URL signed; not in the form that a URL library would print.
pub(super) const SIGNATURE: &str = "X-Sig=a%2Fb%7e+c&Expires=1%3a2&z=1&a=%41";

/// Splits what follows `/v2/` into name, kind and reference, from the right.
fn split(path: &str) -> Option<(&str, &str, &str)> {
    let (front, reference) = path.rsplit_once('/')?;
    let (name, kind) = front.rsplit_once('/')?;
    matches!(kind, "manifests" | "blobs" | "referrers" | "tags").then_some((name, kind, reference))
}

/// Applies a single `Range` (RFC 9110, 14.2), as a well-behaved registry does.
fn ranged(mut reply: Reply, request: &Request) -> Reply {
    let size = reply.body.len();
    let reply_whole = |reply: Reply| reply.with("Accept-Ranges", "bytes");
    let Some((first, last)) = request
        .header("range")
        .and_then(|range| range.strip_prefix("bytes=")?.split_once('-'))
    else {
        return reply_whole(reply);
    };
    let (start, end) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(start), Ok(last)) => (start, size.min(last + 1)),
        (Ok(start), Err(_)) => (start, size),
        (Err(_), Ok(suffix)) => (size.saturating_sub(suffix), size),
        (Err(_), Err(_)) => return reply_whole(reply),
    };
    if start >= end {
        return Reply::error(416, "RANGE_INVALID", "no such range")
            .with("Content-Range", format!("bytes */{size}"));
    }
    (reply.status, reply.start, reply.end) = (206, start, end);
    reply
        .with("Content-Range", format!("bytes {start}-{}/{size}", end - 1))
        .with("Accept-Ranges", "bytes")
}
