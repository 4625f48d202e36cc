//! One question to the registry, with everything that stands between it and an answer: the pause after a 429, what to
//! show of ourselves, a second try after a refusal, and one more when a redirect's target had enough of us.

use http::{HeaderValue, Method};
use reqwest::Response;
use tokio::time::Instant;

use super::Upstream;
use super::error::{Error, Phase};
use super::redirect;
use super::refusal::Refusal;
use super::transport::{Answer, Follow, Request};
use crate::oci::Name;

/// Requests sent for one question at most: nothing shown, something old, something new, and again after a redirect.
const MAX_ROUNDS: usize = 5;

/// A question about a repository.
#[derive(Debug, Clone)]
pub(super) struct Question<'a> {
    pub(super) repository: &'a Name,
    pub(super) request: Request,
}

impl<'a> Question<'a> {
    /// A plain `GET` of a path below `/v2/<repository>/`.
    pub(super) fn get(upstream: &Upstream, kind: &'static str, repository: &'a Name, path: &str) -> Self {
        let request = Request {
            method: Method::GET,
            url: upstream.url(&format!("{repository}/{path}")),
            kind,
            accept: None,
            range: None,
            follow: Follow::All,
        };
        Self { repository, request }
    }

    /// The same with `HEAD`.
    pub(super) fn head(mut self) -> Self {
        self.request.method = Method::HEAD;
        self
    }

    pub(super) fn accept(mut self, accept: &'static str) -> Self {
        self.request.accept = Some(accept);
        self
    }

    pub(super) fn range(mut self, range: HeaderValue) -> Self {
        self.request.range = Some(range);
        self
    }

    pub(super) fn follow(mut self, follow: Follow) -> Self {
        self.request.follow = follow;
        self
    }
}

/// What the registry said.
pub(super) enum Reply {
    /// A success, or a redirect that was not to be followed; the body is still to be read.
    Given(Response),
    /// Anything else but a 401 or a 429.
    Refused(Refusal),
}

impl Reply {
    /// The answer, or what a refusal means where it means nothing special.
    pub(super) fn given(self) -> Result<Response, Error> {
        match self {
            Self::Given(response) => Ok(response),
            Self::Refused(refusal) => Err(refusal.into_error()),
        }
    }
}

impl Upstream {
    /// Asks the registry.
    ///
    /// # Errors
    /// What comes of the network, of token services, of a 401 that no credentials help, and of a 429.
    ///
    /// # Cancel safety
    /// Dropping it ends the request; a token that others wait for too is still fetched.
    pub(super) async fn ask(&self, question: &Question<'_>) -> Result<Reply, Error> {
        self.pause.check()?;
        // A chain of slow token service, registry and redirect target stays one request to the client who waits.
        let limit = self.transport.header_timeout * 2;
        let host = self.host().to_owned();
        tokio::time::timeout(limit, self.rounds(question))
            .await
            .map_err(|_| Error::TimedOut {
                host,
                phase: Phase::Headers,
            })?
    }

    async fn rounds(&self, question: &Question<'_>) -> Result<Reply, Error> {
        let began = Instant::now();
        let mut shown = self.auth.in_advance(question.repository).await?;
        let mut has_asked_again = false;
        for _ in 0..MAX_ROUNDS {
            let value = shown.as_ref().map(|shown| &shown.value);
            let Answer { response, is_foreign } = self.transport.send(&question.request, value).await?;
            let status = response.status().as_u16();
            if response.status().is_success() || redirect::is_redirect(status) {
                return Ok(Reply::Given(response));
            }
            let refusal = Refusal::read(response).await;
            if status == 429 {
                return Err(self.pause.begin(&refusal.headers, refusal.message));
            }
            if is_foreign {
                // A signature may have run out between the registry's answer and our arrival.
                if matches!(status, 400 | 403) && !has_asked_again {
                    has_asked_again = true;
                    continue;
                }
                return Ok(Reply::Refused(refusal));
            }
            if status == 401 {
                let (headers, message) = (&refusal.headers, refusal.message.as_str());
                let better = self
                    .auth
                    .after_refusal(headers, message, question.repository, shown.as_ref(), began)
                    .await?;
                shown = Some(better);
            } else if refusal.is_expired_token() {
                match self.auth.after_expiry(shown.as_ref(), began).await? {
                    Some(better) => shown = Some(better),
                    None => return Ok(Reply::Refused(refusal)),
                }
            } else {
                return Ok(Reply::Refused(refusal));
            }
        }
        Err(Error::denied("the registry keeps asking for another login"))
    }
}
