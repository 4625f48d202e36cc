//! Tokens: what is asked of a token service, and what its answer means (distribution, "Token Authentication").

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method};
use serde::Deserialize;
use tokio::time::{Instant, timeout};
use url::Url;

use super::body;
use super::challenge::Bearer;
use super::credentials::{Login, Source};
use super::error::{Error, Phase};
use super::lease::Lease;
use super::pause::Pause;
use super::redirect;
use super::refusal::{self, Refusal};
use super::transport::{Answer, Follow, Request, Transport, host_of};
use super::trust;

/// A token that says nothing of its life has this one, and none has less (distribution: "at least 60 seconds").
const SHORTEST_LIFE: Duration = Duration::from_mins(1);
/// A longer life is not believed.
const LONGEST_LIFE: Duration = Duration::from_hours(24);
/// More than any token has.
const MAX_BYTES: usize = 256 * 1024;

/// What a token is for; the key of the cache. There is one identity for each upstream, so it is no part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TokenKey {
    pub(super) realm: Url,
    pub(super) service: Option<String>,
    /// One scope for each entry, the repository's first.
    pub(super) scopes: Vec<String>,
}

impl TokenKey {
    fn url(&self) -> Url {
        let mut url = self.realm.clone();
        {
            let mut query = url.query_pairs_mut();
            if let Some(service) = &self.service {
                query.append_pair("service", service);
            }
            for scope in &self.scopes {
                query.append_pair("scope", scope);
            }
        }
        url
    }
}

/// The token service of a challenge, if it may be asked at all: no step down from https, no way into inner networks.
///
/// # Errors
/// [`Error::Denied`] otherwise, or when it would have to get the credentials and is not allowed to.
pub(super) fn realm(
    base: &Url,
    bearer: &Bearer,
    allowed: &[String],
    is_anonymous: bool,
) -> Result<Url, Error> {
    let refuse = |why: String| {
        Err(Error::Denied {
            message: format!("token service `{}` {why}", bearer.realm),
        })
    };
    let Ok(mut realm) = base.join(&bearer.realm) else {
        return refuse("is no URL".to_owned());
    };
    realm.set_fragment(None);
    if !matches!(realm.scheme(), "http" | "https")
        || realm.set_username("").is_err()
        || realm.set_password(None).is_err()
    {
        return refuse("is no web address".to_owned());
    }
    if base.scheme() == "https" && realm.scheme() == "http" {
        return refuse("is not asked: it has http where the registry has https".to_owned());
    }
    if trust::is_own_realm(base, &realm, allowed) {
        return Ok(realm);
    }
    let host = host_of(&realm);
    if !is_anonymous {
        return refuse(format!(
            "gets no credentials: add `{host}` to `larder.realms` if it is the registry's own"
        ));
    }
    if !trust::may_send_to(base, &realm) {
        return refuse(format!(
            "is not asked: add `{host}` to `larder.realms` if it is the registry's own"
        ));
    }
    Ok(realm)
}

#[derive(Deserialize)]
struct Grant {
    token: Option<String>,
    access_token: Option<String>,
    expires_in: Option<serde_json::Number>,
}

/// Asks the token service; with the login of the moment, and once again when that was refused and has changed.
pub(super) async fn fetch(
    key: TokenKey,
    transport: Arc<Transport>,
    source: Arc<Source>,
    pause: Arc<Pause>,
) -> Result<Lease<HeaderValue>, Error> {
    let server = host_of(&key.realm);
    let began = Instant::now();
    let login = source.login(&server, None).await?;
    let authorization = login.as_ref().map(Login::basic).transpose()?;
    let refusal = match ask(&key, &transport, authorization.as_ref()).await? {
        Ok(lease) => return Ok(lease),
        Err(refusal) => refusal,
    };
    if refusal.status != 401 || login.is_none() {
        return Err(failure(refusal, &pause));
    }
    let renewed = source.login(&server, Some(began)).await?;
    let Some(renewed) = renewed.filter(|renewed| login.as_ref() != Some(renewed)) else {
        return Err(failure(refusal, &pause));
    };
    ask(&key, &transport, Some(&renewed.basic()?))
        .await?
        .map_err(|refusal| failure(refusal, &pause))
}

async fn ask(
    key: &TokenKey,
    transport: &Transport,
    authorization: Option<&HeaderValue>,
) -> Result<Result<Lease<HeaderValue>, Refusal>, Error> {
    let request = Request {
        method: Method::GET,
        url: key.url(),
        kind: "token",
        accept: Some("application/json"),
        range: None,
        follow: Follow::SameOrigin,
    };
    let Answer { response, .. } = transport.send(&request, authorization).await?;
    let host = host_of(&key.realm);
    let status = response.status().as_u16();
    if redirect::is_redirect(status) {
        return Err(Error::invalid(format!(
            "token service `{host}` redirects to elsewhere"
        )));
    }
    if !response.status().is_success() {
        return Ok(Err(Refusal::read(response).await));
    }
    if refusal::is_page(response.headers()) {
        return Err(Error::invalid(format!(
            "token service `{host}` answers with a web page"
        )));
    }
    let bytes = timeout(
        transport.header_timeout,
        body::read_all(response, MAX_BYTES, transport),
    )
    .await
    .map_err(|_| Error::TimedOut {
        host,
        phase: Phase::Body,
    })??;
    grant(&bytes).map(Ok)
}

fn grant(bytes: &[u8]) -> Result<Lease<HeaderValue>, Error> {
    // The parser's message could quote the token.
    let grant: Grant = serde_json::from_slice(bytes)
        .map_err(|_| Error::invalid("the token service's answer is no token"))?;
    let token = [grant.token, grant.access_token]
        .into_iter()
        .flatten()
        .find(|token| !token.is_empty());
    let token = token.ok_or_else(|| Error::invalid("the token service's answer has no token in it"))?;
    let mut value = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| Error::invalid("the token service's token is no header value"))?;
    value.set_sensitive(true);
    let seconds = grant
        .expires_in
        .and_then(|n| n.as_f64())
        .filter(|s| s.is_finite() && *s > 0.0)
        .unwrap_or_default();
    let life = Duration::try_from_secs_f64(seconds)
        .unwrap_or(LONGEST_LIFE)
        .clamp(SHORTEST_LIFE, LONGEST_LIFE);
    Ok(Lease::new(value, Some(life)))
}

/// A token service has no content that could be missing: what it does not grant, it denies.
fn failure(refusal: Refusal, pause: &Pause) -> Error {
    match refusal.status {
        429 => pause.begin(&refusal.headers, refusal.message),
        500..=599 | 408 => refusal.into_error(),
        status => Error::denied(format!(
            "the token service answered {status}: {}",
            refusal.message
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn the_query_is_made_of_service_and_scopes() {
        let key = TokenKey {
            realm: url("https://r.example.com/token?client=x"),
            service: Some("a b&c".to_owned()),
            scopes: vec!["repository:a/b:pull".to_owned(), "aws".to_owned()],
        };
        assert_eq!(
            key.url().as_str(),
            "https://r.example.com/token?client=x&service=a+b%26c&scope=repository%3Aa%2Fb%3Apull&scope=aws"
        );
    }

    #[test]
    fn realms_are_resolved_and_judged() {
        let resolve = |base: &str, text: &str, is_anonymous| {
            let bearer = Bearer {
                realm: text.to_owned(),
                ..Bearer::default()
            };
            realm(
                &url(base),
                &bearer,
                &["login.example.net".to_owned()],
                is_anonymous,
            )
            .map(|realm| realm.to_string())
        };
        let base = "https://r.example.com/prefix/";
        assert_eq!(
            resolve(base, "/token", false).unwrap(),
            "https://r.example.com/token"
        );
        assert_eq!(
            resolve(base, "//auth.example.com/t", false).unwrap(),
            "https://auth.example.com/t"
        );
        assert_eq!(
            resolve(base, "https://login.example.net/t", false).unwrap(),
            "https://login.example.net/t"
        );
        assert_eq!(
            resolve(base, "https://ghcr.io/token", true).unwrap(),
            "https://ghcr.io/token"
        );
        for (text, is_anonymous) in [
            ("https://ghcr.io/token", false),
            ("http://r.example.com/token", false),
            ("http://r.example.com/token", true),
            ("https://127.0.0.1/token", true),
            ("file:///x", true),
            ("https://", true),
        ] {
            assert!(
                matches!(resolve(base, text, is_anonymous), Err(Error::Denied { .. })),
                "{text}"
            );
        }
        match resolve(base, "https://evil.example.org:8443/t", false) {
            Err(Error::Denied { message }) => {
                assert!(
                    message.contains("`evil.example.org:8443` to `larder.realms`"),
                    "{message}"
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_kind_of_grant_is_read() {
        let token = |text: &str| grant(text.as_bytes()).map(|lease| lease.value.to_str().unwrap().to_owned());
        assert_eq!(
            token(r#"{"token":"a","access_token":"b","expires_in":300}"#).unwrap(),
            "Bearer a"
        );
        assert_eq!(token(r#"{"access_token":"b"}"#).unwrap(), "Bearer b");
        assert_eq!(
            token(r#"{"token":"","access_token":"b","expires_in":1e300}"#).unwrap(),
            "Bearer b"
        );
        assert_eq!(
            token(r#"{"token":"a","expires_in":-5.5,"issued_at":"x"}"#).unwrap(),
            "Bearer a"
        );
        for bad in ["", "{}", "[]", r#"{"token":"a\nb"}"#, r#"{"token":1}"#, "<html>"] {
            assert!(token(bad).is_err(), "{bad}");
        }
    }
}
