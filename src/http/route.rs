//! Which endpoint a path means: a pure parser that reads from the right, because a component of a repository's name
//! may itself be `blobs`, `manifests` or `tags`. Methods, names and digests are judged by who is called.

use std::fmt;

/// How paths are laid out in front of `/v2`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathRules {
    /// A path that stands before everything (`http.prefix`): begins with `/`, does not end with it; empty for none.
    pub prefix: String,
    /// Whether further segments before `/v2` name an upstream: `/docker.io/v2/library/alpine/...` then means the same
    /// as `/v2/docker.io/library/alpine/...`.
    pub is_upstream_before_v2: bool,
}

/// An endpoint, with its parts percent-decoded but not yet judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// `/`.
    Root,
    /// `/v2`, which lacks its slash.
    BaseWithoutSlash,
    /// `/v2/` (end-1).
    Base,
    /// `/v2/_catalog`.
    Catalog,
    /// `/v2/<name>/manifests/<reference>` (end-3, end-7, end-9).
    Manifest {
        /// The repository as addressed.
        repository: String,
        /// A tag or digest.
        reference: String,
    },
    /// `/v2/<name>/blobs/<digest>` (end-2, end-10).
    Blob {
        /// The repository as addressed.
        repository: String,
        /// A digest.
        digest: String,
    },
    /// `/v2/<name>/blobs/uploads/[<session>]` (end-4 to end-6, end-11, end-13, end-14).
    Upload {
        /// The repository as addressed.
        repository: String,
        /// The session; empty to begin one.
        session: String,
    },
    /// `/v2/<name>/tags/list` (end-8).
    Tags {
        /// The repository as addressed.
        repository: String,
    },
    /// `/v2/<name>/referrers/<digest>` (end-12).
    Referrers {
        /// The repository as addressed.
        repository: String,
        /// A digest.
        digest: String,
    },
    /// Under `/v2/`, but its encoding is wrong: bad escapes, an escaped slash, `.` or `..` as a segment.
    Malformed,
    /// Under `/v2/`, but no endpoint.
    UnknownUnderV2,
    /// Anything else.
    Unknown,
}

impl Route {
    /// Parses the path of a request target.
    pub fn parse(path: &str, rules: &PathRules) -> Self {
        let Some(path) = path.strip_prefix(rules.prefix.as_str()) else {
            return Self::Unknown;
        };
        if matches!(path, "" | "/") {
            return Self::Root;
        }
        let Some((before, rest)) = path.starts_with('/').then(|| split_at_v2(path)).flatten() else {
            return Self::Unknown;
        };
        if !(before.is_empty() || rules.is_upstream_before_v2) {
            return Self::Unknown;
        }
        match rest {
            None => Self::BaseWithoutSlash,
            Some("") => Self::Base,
            Some("_catalog") if before.is_empty() => Self::Catalog,
            Some(rest) => Self::under_v2(before, rest),
        }
    }

    fn under_v2(before: &str, rest: &str) -> Self {
        let segments = before
            .split('/')
            .filter(|segment| !segment.is_empty())
            .chain(rest.split('/'))
            .map(decode_segment)
            .collect::<Option<Vec<String>>>();
        segments.map_or(Self::Malformed, |segments| Self::from_segments(&segments))
    }

    fn from_segments(segments: &[String]) -> Self {
        let texts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (repository, tail) = match texts.as_slice() {
            [name @ .., "blobs", "uploads"] => (name, Tail::Upload("")),
            [name @ .., "blobs", "uploads", session] => (name, Tail::Upload(session)),
            [name @ .., "tags", "list"] => (name, Tail::Tags),
            [name @ .., "manifests", reference] => (name, Tail::Manifest(reference)),
            [name @ .., "blobs", digest] => (name, Tail::Blob(digest)),
            [name @ .., "referrers", digest] => (name, Tail::Referrers(digest)),
            _ => return Self::UnknownUnderV2,
        };
        tail.of(repository.join("/"))
    }

    /// The repository as addressed, where the endpoint has one.
    pub fn repository(&self) -> Option<&str> {
        match self {
            Self::Manifest { repository, .. }
            | Self::Blob { repository, .. }
            | Self::Upload { repository, .. }
            | Self::Tags { repository }
            | Self::Referrers { repository, .. } => Some(repository),
            _ => None,
        }
    }

    /// The name of the endpoint in metrics: distribution's `handler` label.
    pub fn handler(&self) -> &'static str {
        match self {
            Self::Manifest { .. } => "manifest",
            Self::Blob { .. } => "blob",
            Self::Upload { session, .. } if session.is_empty() => "blob_upload",
            Self::Upload { .. } => "blob_upload_chunk",
            Self::Tags { .. } => "tags",
            Self::Referrers { .. } => "referrers",
            Self::Catalog => "catalog",
            _ => "base",
        }
    }

    /// Whether the answer belongs to the registry's API and carries its headers.
    pub fn is_under_v2(&self) -> bool {
        !matches!(self, Self::Root | Self::Unknown)
    }
}

/// What stands right of the repository.
enum Tail<'a> {
    Upload(&'a str),
    Tags,
    Manifest(&'a str),
    Blob(&'a str),
    Referrers(&'a str),
}

impl Tail<'_> {
    fn of(self, repository: String) -> Route {
        if repository.is_empty() {
            return Route::UnknownUnderV2;
        }
        match self {
            Self::Upload(session) => Route::Upload {
                repository,
                session: session.to_owned(),
            },
            Self::Tags => Route::Tags { repository },
            Self::Manifest("") | Self::Blob("") | Self::Referrers("") => Route::UnknownUnderV2,
            Self::Manifest(reference) => Route::Manifest {
                repository,
                reference: reference.to_owned(),
            },
            Self::Blob(digest) => Route::Blob {
                repository,
                digest: digest.to_owned(),
            },
            Self::Referrers(digest) => Route::Referrers {
                repository,
                digest: digest.to_owned(),
            },
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("/"),
            Self::BaseWithoutSlash => f.write_str("/v2"),
            Self::Base => f.write_str("/v2/"),
            Self::Catalog => f.write_str("/v2/_catalog"),
            Self::Manifest {
                repository,
                reference,
            } => write!(f, "/v2/{repository}/manifests/{reference}"),
            Self::Blob { repository, digest } => write!(f, "/v2/{repository}/blobs/{digest}"),
            Self::Upload { repository, session } => write!(f, "/v2/{repository}/blobs/uploads/{session}"),
            Self::Tags { repository } => write!(f, "/v2/{repository}/tags/list"),
            Self::Referrers { repository, digest } => write!(f, "/v2/{repository}/referrers/{digest}"),
            Self::Malformed | Self::UnknownUnderV2 => f.write_str("/v2/?"),
            Self::Unknown => f.write_str("?"),
        }
    }
}

/// Splits at the first segment that is `v2`: what stands before it, and what stands after its slash, if it has one.
fn split_at_v2(path: &str) -> Option<(&str, Option<&str>)> {
    let mut begin = 0;
    for segment in path.split('/') {
        let end = begin + segment.len();
        if segment == "v2" {
            let before = path.get(..begin)?.trim_end_matches('/');
            return Some((before, path.get(end + 1..)));
        }
        begin = end + 1;
    }
    None
}

/// Decodes the percent escapes of one segment, once; `None` when they are wrong or hide a path.
fn decode_segment(segment: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            decoded.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    let text = String::from_utf8(decoded).ok()?;
    let hides_a_path = text.contains('/') || text.contains('\0') || matches!(text.as_str(), "." | "..");
    (!hides_a_path).then_some(text)
}

/// The query of a request target, as far as larder knows its keys; unknown keys are ignored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// `ns`: the host by which the client knows the registry.
    pub ns: Option<String>,
    /// `n`: the size of a page, as text.
    pub n: Option<String>,
    /// `last`: where the page begins.
    pub last: Option<String>,
    /// `artifactType`, each time it stands there.
    pub artifact_types: Vec<String>,
    /// `digest`: of a blob that is pushed.
    pub digest: Option<String>,
    /// `mount`: the digest of a blob that another repository has.
    pub mount: Option<String>,
    /// `from`: which repository.
    pub from: Option<String>,
    /// `tag` of a manifest that is pushed, each time it stands there.
    pub tags: Vec<String>,
}

impl Query {
    /// Parses the text after `?`; of a repeated key the first counts. An empty `ns`, `n` or `last` is none.
    pub fn parse(text: &str) -> Self {
        let mut query = Self::default();
        for (key, value) in url::form_urlencoded::parse(text.as_bytes()) {
            if value.is_empty() {
                continue;
            }
            let value = value.into_owned();
            match key.as_ref() {
                "ns" => query.ns = query.ns.or(Some(value)),
                "n" => query.n = query.n.or(Some(value)),
                "last" => query.last = query.last.or(Some(value)),
                "digest" => query.digest = query.digest.or(Some(value)),
                "mount" => query.mount = query.mount.or(Some(value)),
                "from" => query.from = query.from.or(Some(value)),
                "tag" => query.tags.push(value),
                "artifactType" => query.artifact_types.push(value),
                _ => {}
            }
        }
        query
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(path: &str) -> Route {
        Route::parse(path, &PathRules::default())
    }

    fn manifest(repository: &str, reference: &str) -> Route {
        Route::Manifest {
            repository: repository.into(),
            reference: reference.into(),
        }
    }

    fn blob(repository: &str, digest: &str) -> Route {
        Route::Blob {
            repository: repository.into(),
            digest: digest.into(),
        }
    }

    fn upload(repository: &str, session: &str) -> Route {
        Route::Upload {
            repository: repository.into(),
            session: session.into(),
        }
    }

    fn tags(repository: &str) -> Route {
        Route::Tags {
            repository: repository.into(),
        }
    }

    #[test]
    fn paths_are_read_from_the_right() {
        let cases = [
            ("/", Route::Root),
            ("/v2", Route::BaseWithoutSlash),
            ("/v2/", Route::Base),
            ("/v2/_catalog", Route::Catalog),
            ("/v2/a/manifests/latest", manifest("a", "latest")),
            ("/v2/a/b/c/manifests/1.0", manifest("a/b/c", "1.0")),
            ("/v2/manifests/manifests/x", manifest("manifests", "x")),
            ("/v2/a/blobs/manifests/list", manifest("a/blobs", "list")),
            ("/v2/a/blobs/sha256:ab", blob("a", "sha256:ab")),
            ("/v2/a/blobs/sha256%3Aab", blob("a", "sha256:ab")),
            (
                "/v2/blobs/uploads/blobs/sha256:ab",
                blob("blobs/uploads", "sha256:ab"),
            ),
            ("/v2/a/blobs/uploads/", upload("a", "")),
            ("/v2/a/blobs/uploads", upload("a", "")),
            ("/v2/a/blobs/uploads/1-2-3", upload("a", "1-2-3")),
            ("/v2/tags/tags/list", tags("tags")),
            ("/v2/a/manifests/tags/list", tags("a/manifests")),
            ("/v2/a/blobs/uploads/tags/list", tags("a/blobs/uploads")),
            ("/v2/v2/manifests/x", manifest("v2", "x")),
            (
                "/v2/a/referrers/sha256:ab",
                Route::Referrers {
                    repository: "a".into(),
                    digest: "sha256:ab".into(),
                },
            ),
        ];
        for (path, expected) in cases {
            assert_eq!(parse(path), expected, "{path}");
        }
    }

    #[test]
    fn what_is_no_endpoint_is_told_apart() {
        for path in [
            "/favicon.ico",
            "/v1/",
            "//x",
            "/v2x/",
            "/docker.io/v2/a/manifests/x",
        ] {
            assert_eq!(parse(path), Route::Unknown, "{path}");
        }
        for path in [
            "/v2/manifests/x",
            "/v2/tags/list",
            "/v2/blobs/uploads/",
            "/v2/a",
            "/v2/a/manifests/",
            "/v2/a/manifests",
            "/v2/_catalog/",
            "/v2/a/manifests/x/",
        ] {
            assert_eq!(parse(path), Route::UnknownUnderV2, "{path}");
        }
        for path in [
            "/v2/a%2Fb/manifests/x",
            "/v2/a/../b/manifests/x",
            "/v2/a/%2e%2E/manifests/x",
            "/v2/a/manifests/%",
            "/v2/a/manifests/%4",
            "/v2/a/manifests/%zz",
            "/v2/a/manifests/%ff",
            "/v2/a/manifests/%00",
        ] {
            assert_eq!(parse(path), Route::Malformed, "{path}");
        }
    }

    #[test]
    fn escapes_are_decoded_once() {
        assert_eq!(parse("/v2/a/manifests/%2531"), manifest("a", "%31"));
    }

    #[test]
    fn a_prefix_stands_before_everything_and_an_upstream_before_v2() {
        let rules = PathRules {
            prefix: "/cache".into(),
            is_upstream_before_v2: true,
        };
        let cases = [
            ("/cache/", Route::Root),
            ("/cache", Route::Root),
            ("/cache/v2/", Route::Base),
            ("/cache/docker.io/v2/", Route::Base),
            ("/v2/", Route::Unknown),
            ("/cachev2/", Route::Unknown),
            ("/cache/docker.io/v2/a/manifests/x", manifest("docker.io/a", "x")),
            ("/cache/v2/docker.io/a/manifests/x", manifest("docker.io/a", "x")),
            ("/cache/docker.io/v2/_catalog", Route::UnknownUnderV2),
        ];
        for (path, expected) in cases {
            assert_eq!(Route::parse(path, &rules), expected, "{path}");
        }
    }

    #[test]
    fn queries_are_decoded_and_unknown_keys_ignored() {
        let query = Query::parse("n=3&last=a%2Fb&ns=docker.io&artifactType=a%2Fb&artifactType=c&x=y&n=4&ns=");
        assert_eq!(query.n.as_deref(), Some("3"));
        assert_eq!(query.last.as_deref(), Some("a/b"));
        assert_eq!(query.ns.as_deref(), Some("docker.io"));
        assert_eq!(query.artifact_types, ["a/b", "c"]);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(path in "\\PC{0,80}", prefix in "(/[a-z]{1,3})?", upstream in any::<bool>()) {
            let rules = PathRules { prefix, is_upstream_before_v2: upstream };
            let _ = Route::parse(&path, &rules);
            let _ = Route::parse(&format!("/v2/{path}"), &rules);
            let _ = Query::parse(&path);
        }

        #[test]
        fn what_is_displayed_parses_to_itself(
            repository in "(blobs|tags|manifests|uploads|list|[a-z0-9]{1,4})(/(blobs|tags|manifests|uploads|[a-z0-9]{1,4})){0,3}",
            last in "[a-z0-9:]{1,8}",
            kind in 0_u8..5,
        ) {
            let route = match kind {
                0 => manifest(&repository, &last),
                1 => blob(&repository, &last),
                2 => upload(&repository, &last),
                3 => tags(&repository),
                _ => Route::Referrers { repository, digest: last },
            };
            prop_assume!(!matches!(&route, Route::Blob { digest, .. } if digest == "uploads"));
            prop_assert_eq!(parse(&route.to_string()), route);
        }
    }
}
