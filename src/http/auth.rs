//! Logging in with a name and a password: an htpasswd file of bcrypt hashes, as in distribution.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use moka::future::Cache;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::sync::Semaphore;

use super::error::Failure;

/// How long a login that succeeded is not computed again; bcrypt costs a good part of a second.
const REMEMBERED: Duration = Duration::from_mins(5);
/// How many logins are remembered.
const MAX_REMEMBERED: u64 = 1024;
/// How many hashes are computed at once, so that guessing cannot take the machine.
const MAX_AT_ONCE: usize = 2;
/// A hash of nothing anyone knows: unknown names cost as much time as known ones.
const NOBODY: &str = "$2b$10$abcdefghijklmnopqrstuuDRHvzQwWoHxNQxhJcTtHzfHaJDpQ6.q";

/// The file cannot be used.
#[derive(Debug, Error)]
#[error("cannot read the htpasswd file `{path}`")]
pub struct HtpasswdError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// Who may log in.
#[derive(Clone)]
pub struct Htpasswd(Arc<Inner>);

struct Inner {
    realm: String,
    path: PathBuf,
    users: Mutex<Users>,
    remembered: Cache<[u8; 32], ()>,
    computing: Semaphore,
}

/// The file's content and what tells it from the next.
#[derive(Default)]
struct Users {
    hashes: HashMap<String, String>,
    stamp: Option<(SystemTime, u64)>,
}

impl Htpasswd {
    /// Reads the file.
    ///
    /// # Errors
    /// [`HtpasswdError`] when it cannot be read.
    pub fn new(realm: String, path: PathBuf) -> Result<Self, HtpasswdError> {
        let mut users = Users::default();
        users.refresh(&path).map_err(|source| HtpasswdError {
            path: path.clone(),
            source,
        })?;
        Ok(Self(Arc::new(Inner {
            realm,
            path,
            users: Mutex::new(users),
            remembered: Cache::builder()
                .max_capacity(MAX_REMEMBERED)
                .time_to_live(REMEMBERED)
                .build(),
            computing: Semaphore::new(MAX_AT_ONCE),
        })))
    }

    /// Checks the credentials of a request.
    ///
    /// # Errors
    /// 401 with a challenge when there are none, or wrong ones.
    pub(crate) async fn check(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let refused = || Failure::unauthorized(&self.0.realm);
        let (user, password) = credentials(headers).ok_or_else(refused)?;
        let known = self.0.hash_of(&user);
        let hash = known.clone().unwrap_or_else(|| NOBODY.to_owned());
        let key = remember_key(&user, &password, &hash);
        if self.0.remembered.contains_key(&key) {
            return Ok(());
        }
        let is_right = self.0.verify(password, hash).await;
        if is_right && known.is_some() {
            self.0.remembered.insert(key, ()).await;
            return Ok(());
        }
        Err(refused())
    }
}

impl fmt::Debug for Htpasswd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Htpasswd").field(&self.0.path).finish()
    }
}

impl Inner {
    /// The user's hash, from the file as it is now; what was read before holds while the file cannot be read.
    fn hash_of(&self, user: &str) -> Option<String> {
        let mut users = self.users.lock();
        if let Err(error) = users.refresh(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot read the htpasswd file; what it said before holds");
        }
        users.hashes.get(user).cloned()
    }

    async fn verify(&self, password: String, hash: String) -> bool {
        let Ok(_permit) = self.computing.acquire().await else {
            return false;
        };
        tokio::task::spawn_blocking(move || bcrypt::verify(password, &hash).unwrap_or(false))
            .await
            .unwrap_or(false)
    }
}

impl Users {
    fn refresh(&mut self, path: &PathBuf) -> io::Result<()> {
        let meta = std::fs::metadata(path)?;
        let stamp = Some((meta.modified()?, meta.len()));
        if stamp != self.stamp {
            self.hashes = parse(&std::fs::read_to_string(path)?);
            self.stamp = stamp;
        }
        Ok(())
    }
}

/// Reads `name:hash` lines; others, and hashes other than bcrypt, let nobody in.
fn parse(text: &str) -> HashMap<String, String> {
    let mut hashes = HashMap::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once(':') {
            Some((user, hash)) if hash.starts_with("$2") => {
                hashes.insert(user.to_owned(), hash.to_owned());
            }
            Some((user, _)) => {
                tracing::warn!(user, "the htpasswd entry is no bcrypt hash and lets nobody in");
            }
            None => tracing::warn!("a line of the htpasswd file has no colon and is ignored"),
        }
    }
    hashes
}

/// The name and password of `Authorization: Basic` (RFC 7617).
fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(BASE64.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

fn remember_key(user: &str, password: &str, hash: &str) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for part in [user, password, hash] {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn basic(encoded: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(&format!("Basic {encoded}")).unwrap();
        headers.insert(AUTHORIZATION, value);
        headers
    }

    fn hash(password: &str) -> String {
        bcrypt::hash_with_salt(password, 4, [7; 16]).unwrap().to_string()
    }

    #[test]
    fn only_bcrypt_lets_someone_in() {
        let users = parse("# people\n\nanna:$2y$05$x\nbert:{SHA}x\nodd\n");
        assert_eq!(users.len(), 1);
        assert!(users.contains_key("anna"));
    }

    #[tokio::test]
    async fn a_changed_file_counts_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("htpasswd");
        std::fs::write(&path, format!("a:{}\n", hash("b"))).unwrap();
        let login = Htpasswd::new("larder".into(), path.clone()).unwrap();
        let right = basic("YTpi");
        assert!(login.check(&HeaderMap::new()).await.is_err());
        assert!(login.check(&basic("YTpj")).await.is_err());
        assert!(login.check(&basic("Yjpi")).await.is_err());
        assert!(login.check(&right).await.is_ok());
        assert!(login.check(&right).await.is_ok());
        std::fs::write(&path, format!("# changed\na:{}\n", hash("c"))).unwrap();
        assert!(login.check(&right).await.is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(login.check(&basic("YTpj")).await.is_ok());
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Htpasswd::new(String::new(), "/nowhere/htpasswd".into()).unwrap_err();
        assert!(error.to_string().contains("/nowhere/htpasswd"));
    }

    #[test]
    fn the_hash_of_nobody_is_one() {
        assert!(!bcrypt::verify("x", NOBODY).unwrap());
    }
}
