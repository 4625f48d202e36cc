//! What was asked upstream: every request, with what became of it.

use super::fault::Role;

/// One request and its fate.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) role: Role,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: Vec<(String, String)>,
    /// 0 until a status line went out.
    pub(crate) status: u16,
    /// Body bytes handed to the socket.
    pub(crate) sent_bytes: u64,
    /// The other side left, or was cut off, before the end.
    pub(crate) is_aborted: bool,
    /// The answer went out whole.
    pub(crate) is_finished: bool,
}

impl Asked {
    /// The value of a header, if it was sent.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    fn is_blob_of(&self, digest: &str) -> bool {
        self.role != Role::Token && self.path.ends_with(digest)
    }
}

/// The log of an upstream, in the order of arrival.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(pub(super) Vec<Asked>);

impl Log {
    pub(crate) fn all(&self) -> &[Asked] {
        &self.0
    }

    /// Requests to the registry with this method whose path contains `path`.
    pub(crate) fn count(&self, method: &str, path: &str) -> usize {
        self.of(method, path).count()
    }

    /// The requests that [`Log::count`] counts.
    pub(crate) fn of(&self, method: &str, path: &str) -> impl Iterator<Item = &Asked> {
        self.0.iter().filter(move |asked| {
            asked.role == Role::Registry && asked.method == method && asked.path.contains(path)
        })
    }

    /// GETs of a blob or manifest by digest, at the registry.
    pub(crate) fn gets_of(&self, digest: &str) -> usize {
        self.count("GET", digest)
    }

    /// Body bytes sent for a digest, by the registry and by the CDN together.
    pub(crate) fn bytes_of(&self, digest: &str) -> u64 {
        self.0
            .iter()
            .filter(|asked| asked.is_blob_of(digest))
            .map(|asked| asked.sent_bytes)
            .sum()
    }

    pub(crate) fn token_requests(&self) -> usize {
        self.at(Role::Token).count()
    }

    pub(crate) fn at(&self, role: Role) -> impl Iterator<Item = &Asked> {
        self.0.iter().filter(move |asked| asked.role == role)
    }

    /// One line per request, for the message of a failing test.
    pub(crate) fn lines(&self) -> String {
        let line = |asked: &Asked| {
            let range = asked.header("range").unwrap_or("-");
            let state = if asked.is_finished { "whole" } else { "open or cut" };
            format!(
                "{:?} {} {}?{} range={range} -> {} {}B {state}\n",
                asked.role, asked.method, asked.path, asked.query, asked.status, asked.sent_bytes
            )
        };
        self.0.iter().map(line).collect()
    }
}
