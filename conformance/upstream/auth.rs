//! How an upstream asks who is there: bearer tokens from a token server, basic credentials, or nothing.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

/// What the registry asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Scheme {
    #[default]
    None,
    Bearer,
    Basic,
    /// Both are offered, in one answer.
    Both,
}

/// Where the realm points.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Realm {
    /// The token listener, by the registry's own host name.
    #[default]
    SameHost,
    /// A path on the registry's own listener.
    Relative,
    /// The token listener, but named `localhost`: another host than `127.0.0.1`.
    OtherHost,
}

/// The knobs of authentication.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    pub(crate) scheme: Scheme,
    pub(crate) realm: Realm,
    /// What the token server, or basic authentication, wants to see. `None`: anonymous tokens.
    pub(crate) credentials: Option<(String, String)>,
    /// Seconds a token lives, as told and as kept.
    pub(crate) expires_in: Option<u64>,
    /// `token` or `access_token`.
    pub(crate) token_field: &'static str,
    /// A token is good for so many requests.
    pub(crate) uses: Option<u32>,
    /// A 401 says what it wants.
    pub(crate) has_challenge: bool,
    /// Tokens are given, and then refused for want of scope.
    pub(crate) is_scope_insufficient: bool,
}

impl Default for Auth {
    fn default() -> Self {
        Self {
            scheme: Scheme::None,
            realm: Realm::SameHost,
            credentials: None,
            expires_in: Some(300),
            token_field: "token",
            uses: None,
            has_challenge: true,
            is_scope_insufficient: false,
        }
    }
}

impl Auth {
    /// Anonymous bearer tokens.
    pub(crate) fn bearer() -> Self {
        Self {
            scheme: Scheme::Bearer,
            ..Self::default()
        }
    }

    /// With these credentials.
    pub(crate) fn with_credentials(mut self, username: &str, password: &str) -> Self {
        self.credentials = Some((username.to_owned(), password.to_owned()));
        self
    }
}

#[derive(Debug)]
struct Issued {
    scopes: HashSet<String>,
    until: Option<Instant>,
    uses: Option<u32>,
}

/// The tokens that are out.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    issued: HashMap<String, Issued>,
    serial: u64,
}

impl Tokens {
    pub(super) fn issue(&mut self, auth: &Auth, scopes: HashSet<String>) -> String {
        self.serial += 1;
        let token = format!("token-{}", self.serial);
        let until = auth
            .expires_in
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));
        self.issued.insert(
            token.clone(),
            Issued {
                scopes,
                until,
                uses: auth.uses,
            },
        );
        token
    }

    pub(super) fn revoke_all(&mut self) {
        self.issued.clear();
    }

    /// Whether `token` opens `scope` now; counts the use.
    pub(super) fn accept(&mut self, token: &str, scope: &str) -> bool {
        let Some(issued) = self.issued.get_mut(token) else {
            return false;
        };
        if issued.until.is_some_and(|until| Instant::now() >= until) || issued.uses == Some(0) {
            return false;
        }
        issued.uses = issued.uses.map(|left| left - 1);
        scope.is_empty() || issued.scopes.contains(scope)
    }
}

/// The `Authorization` header that basic authentication sends.
pub(crate) fn basic_header(username: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{username}:{password}").as_bytes()))
}

/// RFC 4648 base64, for the one header that needs it.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .fold(0_u32, |word, byte| word << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for place in 0..4 {
            let sextet = (word >> (18 - 6 * place)) & 63;
            let symbol = ALPHABET.get(sextet as usize).copied().map_or('=', char::from);
            out.push(if place <= group.len() { symbol } else { '=' });
        }
    }
    out
}
