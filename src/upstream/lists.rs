//! Asking for lists: the tags of a repository, and what refers to a manifest.

use bytes::Bytes;
use http::HeaderMap;
use serde::Deserialize;
use url::Url;

use super::Upstream;
use super::body;
use super::error::Error;
use super::exchange::{Question, Reply};
use super::link;
use super::manifests::REPEATS;
use super::refusal;
use super::retry::retrying;
use super::trust;
use crate::oci::{Descriptor, Digest, Name, media_type};

/// The most bytes of a list, over all its pages.
const MAX_LIST_BYTES: usize = 16 * 1024 * 1024;
/// The most pages of a list.
const MAX_PAGES: usize = 1000;

/// A page of a repository's tags.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TagsPage {
    /// The tags, in the registry's order.
    pub tags: Vec<String>,
    /// The `last` to ask the next page with; none when this page is the last.
    pub next: Option<String>,
}

impl TagsPage {
    /// Holds a registry to `n`. One that has ignored `n`, as all of them before paging (docker-registry 2.8), has sent
    /// everything, in any order: pages need one.
    fn cut(mut tags: Vec<String>, next: Option<String>, n: Option<u64>) -> Self {
        let most = n.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX));
        if tags.len() <= most {
            return Self { tags, next };
        }
        if next.is_none() {
            tags.sort_unstable();
        }
        tags.truncate(most);
        let next = tags.last().cloned();
        Self { tags, next }
    }
}

#[derive(Deserialize)]
struct Tags {
    tags: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Option<Vec<Descriptor>>,
}

/// A page as it came, and where the next one is.
struct Page {
    bytes: Bytes,
    next: Option<Url>,
}

impl Upstream {
    /// Fetches one page of tags: at most `n`, those after `last`, also from a registry that knows no pages.
    ///
    /// # Errors
    /// [`Error::NotFound`] when there is no such repository; [`Error::Invalid`] when the answer is no list.
    pub async fn list_tags(
        &self,
        repository: &Name,
        n: Option<u64>,
        last: Option<&str>,
    ) -> Result<TagsPage, Error> {
        let page = self
            .page(&self.tags_question(repository, n, last), MAX_LIST_BYTES)
            .await?;
        let tags = tags_of(&page.bytes)?;
        // What comes after `last` can't contain it: it was ignored, and this is the beginning of all tags, in any order.
        if let Some(last) = last
            && tags.iter().any(|tag| tag == last)
        {
            let mut all = match page.next {
                None => tags,
                Some(_) => self.list_all_tags(repository).await?,
            };
            all.retain(|tag| tag.as_str() > last);
            all.sort_unstable();
            return Ok(TagsPage::cut(all, None, n));
        }
        let next = page.next.and_then(|url| {
            let said = url
                .query_pairs()
                .find(|(key, _)| key == "last")
                .map(|(_, last)| last.into_owned());
            said.or_else(|| tags.last().cloned())
        });
        Ok(TagsPage::cut(tags, next, n))
    }

    /// Fetches all tags, page by page.
    ///
    /// # Errors
    /// As [`Upstream::list_tags`]; [`Error::Invalid`] when the list does not end within reason.
    pub async fn list_all_tags(&self, repository: &Name) -> Result<Vec<String>, Error> {
        let mut all = Vec::new();
        self.all_pages(self.tags_question(repository, None, None), |page| {
            all.extend(tags_of(&page.bytes)?);
            Ok(())
        })
        .await?;
        Ok(all)
    }

    /// Fetches the descriptors of all manifests that refer to `digest`; of the given types only, if any are given.
    ///
    /// # Errors
    /// [`Error::ReferrersUnsupported`] when the registry does not know the question; it may still have the referrers tag.
    pub async fn referrers(
        &self,
        repository: &Name,
        digest: &Digest,
        artifact_types: &[String],
    ) -> Result<Vec<Descriptor>, Error> {
        let mut question = Question::get(self, "referrers", repository, &format!("referrers/{digest}"))
            .accept(media_type::OCI_INDEX);
        for artifact_type in artifact_types {
            question
                .request
                .url
                .query_pairs_mut()
                .append_pair("artifactType", artifact_type);
        }
        let mut all = Vec::new();
        let outcome = self.all_pages(question, |page| {
            // A login form, or a front page, with status 200.
            let index = serde_json::from_slice::<Index>(&page.bytes)
                .ok()
                .and_then(|index| index.manifests);
            all.extend(index.ok_or(Error::ReferrersUnsupported)?);
            Ok(())
        });
        outcome.await.map_err(unsupported)?;
        // The registry may ignore the filter; to filter twice does no harm.
        all.retain(|descriptor| {
            artifact_types.is_empty()
                || descriptor
                    .artifact_type
                    .as_ref()
                    .is_some_and(|artifact_type| artifact_types.contains(artifact_type))
        });
        Ok(all)
    }

    fn tags_question<'a>(&self, repository: &'a Name, n: Option<u64>, last: Option<&str>) -> Question<'a> {
        let mut question = Question::get(self, "tags", repository, "tags/list").accept("application/json");
        if let Some(n) = n {
            question
                .request
                .url
                .query_pairs_mut()
                .append_pair("n", &n.to_string());
        }
        if let Some(last) = last {
            question.request.url.query_pairs_mut().append_pair("last", last);
        }
        question
    }

    /// Fetches the pages of a list one after the other.
    async fn all_pages(
        &self,
        mut question: Question<'_>,
        mut each: impl FnMut(&Page) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut room = MAX_LIST_BYTES;
        for _ in 0..MAX_PAGES {
            let page = self.page(&question, room).await?;
            room = room.saturating_sub(page.bytes.len());
            each(&page)?;
            match page.next {
                Some(next) if next != question.request.url => question.request.url = next,
                _ => return Ok(()),
            }
        }
        Err(Error::invalid(format!("a list of more than {MAX_PAGES} pages")))
    }

    async fn page(&self, question: &Question<'_>, max_bytes: usize) -> Result<Page, Error> {
        retrying(REPEATS, self.transport.header_timeout, || async {
            let response = match self.ask(question).await? {
                Reply::Given(response) => response,
                Reply::Refused(refusal) => match refusal.status {
                    400 | 405 | 406 | 501 if question.request.kind == "referrers" => {
                        return Err(Error::ReferrersUnsupported);
                    }
                    _ => return Err(refusal.into_error()),
                },
            };
            if refusal::is_page(response.headers()) {
                return Err(Error::invalid("a web page where a list should be"));
            }
            let next = next_page(&question.request.url, response.headers())?;
            let bytes = body::read_all(response, max_bytes, &self.transport).await?;
            Ok(Page { bytes, next })
        })
        .await
    }
}

/// Where the next page is: at the registry, and about the same, or not at all.
fn next_page(current: &Url, headers: &HeaderMap) -> Result<Option<Url>, Error> {
    let Some(target) = link::next(headers) else {
        return Ok(None);
    };
    let next = current
        .join(&target)
        .map_err(|_| Error::invalid("a Link that is no URL"))?;
    // Behind a proxy that ends TLS, registries link to themselves by a scheme or host that we cannot use: the query counts.
    let mut here = current.clone();
    here.set_query(next.query());
    if let Some((_, ns)) = current.query_pairs().find(|(key, _)| key == "ns")
        && !here.query_pairs().any(|(key, _)| key == "ns")
    {
        here.query_pairs_mut().append_pair("ns", &ns);
    }
    let is_elsewhere = !trust::is_same_origin(current, &next);
    Ok(Some(if is_elsewhere || next.path() == current.path() {
        here
    } else {
        next
    }))
}

fn tags_of(bytes: &[u8]) -> Result<Vec<String>, Error> {
    let tags: Tags =
        serde_json::from_slice(bytes).map_err(|_| Error::invalid("a list of tags that is none"))?;
    Ok(tags.tags.unwrap_or_default())
}

fn unsupported(error: Error) -> Error {
    match error {
        Error::NotFound | Error::Invalid { .. } => Error::ReferrersUnsupported,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::LINK;

    use super::*;

    #[test]
    fn next_pages_stay_at_the_registry() {
        let base = "http://r.example.com/v2/a/tags/list?ns=x&n=2";
        let cases = [
            (
                "</v2/a/tags/list?n=2&last=b>; rel=\"next\"",
                "http://r.example.com/v2/a/tags/list?n=2&last=b&ns=x",
            ),
            (
                "<?last=b>; rel=next",
                "http://r.example.com/v2/a/tags/list?last=b&ns=x",
            ),
            (
                "<https://inner:8080/v2/a/tags/list?last=b&ns=y>; rel=next",
                "http://r.example.com/v2/a/tags/list?last=b&ns=y",
            ),
            (
                "</v2/a/referrers/x?page=2>; rel=next",
                "http://r.example.com/v2/a/referrers/x?page=2",
            ),
            (
                "</v2/a/tags/list?next_page=g%3D%3D&last=b>; rel=next",
                "http://r.example.com/v2/a/tags/list?next_page=g%3D%3D&last=b&ns=x",
            ),
        ];
        for (header, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(LINK, HeaderValue::from_static(header));
            let next = next_page(&Url::parse(base).unwrap(), &headers).unwrap();
            assert_eq!(next.unwrap().as_str(), expected);
        }
        assert_eq!(
            next_page(&Url::parse(base).unwrap(), &HeaderMap::new()).unwrap(),
            None
        );
    }

    #[test]
    fn lists_of_tags_are_read_leniently() {
        assert_eq!(
            tags_of(br#"{"name":"a","tags":["x","y"],"manifest":{},"child":[]}"#).unwrap(),
            ["x", "y"]
        );
        assert!(tags_of(br#"{"tags":null}"#).unwrap().is_empty());
        assert!(tags_of(b"[]").is_err());
    }
}
