//! What a request shows of who we are: learned from challenges, remembered, renewed.
//!
//! Nothing is asked in advance. The first 401 teaches where the registry's tokens come from; from then on every
//! repository gets its token before its first request.

use std::sync::Arc;

use futures::FutureExt as _;
use http::{HeaderMap, HeaderValue};
use parking_lot::RwLock;
use tokio::time::Instant;

use super::challenge::{self, Bearer, Challenge};
use super::credentials::{Login, Source};
use super::error::Error;
use super::lease::Leases;
use super::pause::Pause;
use super::settings::Settings;
use super::token::{self, TokenKey};
use super::transport::{Transport, host_of};
use crate::oci::Name;

/// How a registry wants to be asked, as far as it goes for all its repositories.
#[derive(Debug, Clone)]
enum Learned {
    /// With a token from here.
    Bearer(Bearer),
    /// With user and password.
    Basic,
}

/// An `Authorization` and where it is from.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) value: HeaderValue,
    proof: Proof,
}

#[derive(Debug, Clone)]
enum Proof {
    Token { key: TokenKey, obtained_at: Instant },
    Login(Login),
}

/// Everything about who we are to one registry.
pub(super) struct Auth {
    transport: Arc<Transport>,
    source: Arc<Source>,
    pause: Arc<Pause>,
    realms: Vec<String>,
    learned: RwLock<Option<Learned>>,
    tokens: Leases<TokenKey, HeaderValue>,
}

impl Auth {
    pub(super) fn new(settings: &Settings, transport: Arc<Transport>, pause: Arc<Pause>) -> Self {
        Self {
            transport,
            source: Arc::new(Source::new(settings.credentials.clone())),
            pause,
            realms: settings.realms.clone(),
            learned: RwLock::new(None),
            tokens: Leases::new(),
        }
    }

    /// Whether there are no credentials.
    pub(super) fn is_anonymous(&self) -> bool {
        self.source.is_none()
    }

    /// What to show with a first request; nothing as long as the registry never asked.
    pub(super) async fn in_advance(&self, repository: &Name) -> Result<Option<Shown>, Error> {
        let learned = self.learned.read().clone();
        match learned {
            None => Ok(None),
            Some(Learned::Bearer(bearer)) => self.token(self.key(&bearer, repository)?).await.map(Some),
            Some(Learned::Basic) => self.login(None).await,
        }
    }

    /// What to show after the registry refused `shown`, in a request that began at `began`.
    ///
    /// # Errors
    /// [`Error::Denied`] when there is nothing better to show.
    pub(super) async fn after_refusal(
        &self,
        headers: &HeaderMap,
        message: &str,
        repository: &Name,
        shown: Option<&Shown>,
        began: Instant,
    ) -> Result<Shown, Error> {
        let denied = || Error::denied(message);
        match challenge::best(headers) {
            Some(Challenge::Bearer(bearer)) => {
                let key = self.key(&bearer, repository)?;
                self.give_up_token(shown, &key, &bearer, began)
                    .ok_or_else(denied)?;
                let shown = self.token(key).await?;
                self.learn(bearer);
                Ok(shown)
            }
            Some(Challenge::Basic) => {
                let refused = match shown.map(|shown| &shown.proof) {
                    Some(Proof::Login(login)) => Some(login),
                    _ => None,
                };
                let renewed = self.login(refused.map(|_| began)).await?;
                let renewed = renewed.filter(|renewed| match &renewed.proof {
                    Proof::Login(login) => Some(login) != refused,
                    Proof::Token { .. } => true,
                });
                let renewed = renewed.ok_or_else(denied)?;
                *self.learned.write() = Some(Learned::Basic);
                Ok(renewed)
            }
            None => Err(Error::denied(format!(
                "{message} (and it does not say how to log in)"
            ))),
        }
    }

    /// What to show instead of something that the registry says is over, without a challenge.
    pub(super) async fn after_expiry(
        &self,
        shown: Option<&Shown>,
        began: Instant,
    ) -> Result<Option<Shown>, Error> {
        match shown.map(|shown| &shown.proof) {
            Some(Proof::Token { key, obtained_at }) if *obtained_at < began => {
                self.tokens.forget(key, *obtained_at);
                self.token(key.clone()).await.map(Some)
            }
            Some(Proof::Login(login)) => {
                let renewed = self.login(Some(began)).await?;
                Ok(renewed.filter(|renewed| !matches!(&renewed.proof, Proof::Login(new) if new == login)))
            }
            _ => Ok(None),
        }
    }

    /// Forgets a refused token if another one may do better: none when it was new, or is simply not enough.
    fn give_up_token(
        &self,
        shown: Option<&Shown>,
        key: &TokenKey,
        bearer: &Bearer,
        began: Instant,
    ) -> Option<()> {
        let Some(Proof::Token {
            key: refused,
            obtained_at,
        }) = shown.map(|shown| &shown.proof)
        else {
            return Some(());
        };
        if refused != key {
            return Some(());
        }
        let is_insufficient = bearer.error.as_deref() == Some("insufficient_scope");
        if is_insufficient || *obtained_at >= began {
            return None;
        }
        self.tokens.forget(key, *obtained_at);
        Some(())
    }

    fn key(&self, bearer: &Bearer, repository: &Name) -> Result<TokenKey, Error> {
        let realm = token::realm(self.transport.base(), bearer, &self.realms, self.is_anonymous())?;
        let own = format!("repository:{repository}:pull");
        let mut scopes = vec![own];
        for scope in bearer
            .scope
            .iter()
            .flat_map(|scopes| scopes.split_ascii_whitespace())
        {
            if is_harmless(scope) && !scopes.iter().any(|known| known == scope) {
                scopes.push(scope.to_owned());
            }
        }
        Ok(TokenKey {
            realm,
            service: bearer.service.clone(),
            scopes,
        })
    }

    /// Keeps what holds for all repositories: everything but the scope of one of them.
    fn learn(&self, mut bearer: Bearer) {
        bearer.error = None;
        bearer.scope = bearer.scope.map(|scopes| {
            let general = scopes
                .split_ascii_whitespace()
                .filter(|scope| !scope.starts_with("repository:"));
            general.collect::<Vec<_>>().join(" ")
        });
        *self.learned.write() = Some(Learned::Bearer(bearer));
    }

    async fn token(&self, key: TokenKey) -> Result<Shown, Error> {
        let obtain = || {
            let (transport, source, pause) = (
                Arc::clone(&self.transport),
                Arc::clone(&self.source),
                Arc::clone(&self.pause),
            );
            token::fetch(key.clone(), transport, source, pause).boxed()
        };
        let lease = self.tokens.get(&key, obtain).await?;
        Ok(Shown {
            value: lease.value,
            proof: Proof::Token {
                key,
                obtained_at: lease.obtained_at,
            },
        })
    }

    async fn login(&self, refused_at: Option<Instant>) -> Result<Option<Shown>, Error> {
        let server = host_of(self.transport.base());
        let Some(login) = self.source.login(&server, refused_at).await? else {
            return Ok(None);
        };
        Ok(Some(Shown {
            value: login.basic()?,
            proof: Proof::Login(login),
        }))
    }
}

/// Whether a scope that a challenge names asks for reading only.
fn is_harmless(scope: &str) -> bool {
    let actions = scope
        .split(':')
        .nth(2)
        .map_or("", |_| scope.rsplit(':').next().unwrap_or_default());
    !actions
        .split(',')
        .any(|action| matches!(action, "push" | "delete" | "*"))
}

#[cfg(test)]
mod tests {
    use super::is_harmless;

    #[test]
    fn only_scopes_for_reading_are_taken_from_challenges() {
        for good in ["repository:a/b:pull", "aws", "repository:a:pull,metadata_read"] {
            assert!(is_harmless(good), "{good}");
        }
        for bad in [
            "repository:a/b:pull,push",
            "registry:catalog:*",
            "repository:h:5000/a:delete",
        ] {
            assert!(!is_harmless(bad), "{bad}");
        }
    }
}
