//! Discovery: tag lists and referrers come from upstream, page by page; the catalog is what is here.

use serde_json::{Value, json};

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Fault, Image, OCI_INDEX, TagPages, TestUpstream, index_of, on};

async fn with_tags(count: usize) -> (TestUpstream, Larder, Vec<String>) {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push("app", &image);
    let tags: Vec<String> = (0..count).map(|number| format!("v{number:05}")).collect();
    for tag in &tags {
        upstream.tag("app", tag, &image.manifest);
    }
    let larder = Larder::start(&upstream).await;
    (upstream, larder, tags)
}

/// The path in a `Link: <...>; rel="next"`.
fn next_path(link: &str) -> String {
    let (path, rest) = link
        .strip_prefix('<')
        .and_then(|link| link.split_once('>'))
        .expect("an RFC 8288 link");
    assert_eq!(rest.trim_start_matches([';', ' ']), "rel=\"next\"");
    assert!(
        path.starts_with("/v2/app/tags/list?"),
        "links lead back here: {path}"
    );
    path.to_owned()
}

/// Follows links from `path` to the end.
async fn walk(larder: &Larder, path: &str) -> Vec<String> {
    let mut path = path.to_owned();
    let mut seen: Vec<String> = Vec::new();
    for _ in 0..200 {
        let answer = larder.get(&path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let value = answer.json();
        assert_eq!(value["name"], "app");
        let page = value["tags"].as_array().expect("a list, not null");
        seen.extend(page.iter().map(|tag| tag.as_str().unwrap().to_owned()));
        match answer.header("link") {
            Some(link) => path = next_path(link),
            None => return seen,
        }
    }
    panic!("links without end");
}

#[tokio::test]
async fn all_tags_are_reached_whatever_the_upstreams_links_look_like() {
    for pages in [TagPages::Absolute, TagPages::Relative, TagPages::NextPage] {
        let (upstream, larder, tags) = with_tags(250).await;
        upstream.set_tag_pages(pages, 50);
        for path in [
            "/v2/app/tags/list",
            "/v2/app/tags/list?n=70",
            "/v2/app/tags/list?n=10000",
        ] {
            assert_eq!(walk(&larder, path).await, tags, "{pages:?} {path}");
        }
    }
}

#[tokio::test]
async fn tags_are_cut_by_n_and_last_also_where_upstream_knows_neither() {
    for pages in [TagPages::Absolute, TagPages::Never] {
        let (upstream, larder, tags) = with_tags(10).await;
        upstream.set_tag_pages(pages, 50);
        are_cut_by_n_and_last(&larder, &tags).await;
    }
}

async fn are_cut_by_n_and_last(larder: &Larder, tags: &[String]) {
    let ask = async |query: &str| {
        let answer = larder.get(&format!("/v2/app/tags/list?{query}")).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        let list: Vec<String> =
            serde_json::from_value(answer.json()["tags"].clone()).expect("a list of strings");
        (list, answer.header("link").is_some())
    };
    assert_eq!(ask("n=3").await, (tags[..3].to_vec(), true));
    let (mut all, has_next) = ask("n=10").await;
    all.sort();
    assert_eq!((all.as_slice(), has_next), (tags, false));
    assert_eq!(ask("n=3&last=v00002").await, (tags[3..6].to_vec(), true));
    assert_eq!(ask("last=v00007").await, (tags[8..].to_vec(), false));
    assert_eq!(ask("last=v00009").await, (vec![], false));
    assert_eq!(ask("n=0").await, (vec![], false));
    assert_eq!(ask("n=1000").await.0.len(), tags.len());
    assert_eq!(walk(larder, "/v2/app/tags/list?n=4").await, tags);
}

#[tokio::test]
async fn a_page_size_that_is_none_is_told() {
    let (_upstream, larder, _) = with_tags(2).await;
    for query in ["n=-1", "n=abc"] {
        let answer = larder.get(&format!("/v2/app/tags/list?{query}")).await;
        assert!(matches!(answer.status, 200 | 400), "{query}: {}", answer.status);
        if answer.status == 400 {
            assert_eq!(answer.error_code(), "PAGINATION_NUMBER_INVALID");
        }
    }
}

#[tokio::test]
async fn tag_lists_are_upstreams_and_errors_are_mapped() {
    let (upstream, larder, tags) = with_tags(3).await;
    assert_eq!(
        walk(&larder, "/v2/app/tags/list").await,
        tags,
        "not only what was pulled"
    );
    upstream.fault(on("/tags/"), Fault::Status(403, vec![], String::new()));
    let denied = larder.get("/v2/app/tags/list").await;
    assert_eq!((denied.status, denied.error_code()), (403, "DENIED".to_owned()));
    upstream.heal();
    upstream.fault(on("/tags/"), Fault::Html);
    assert!(larder.get("/v2/app/tags/list").await.status >= 500);
    let head = larder.head("/v2/app/tags/list?n=2").await;
    assert!(head.is_complete);
}

#[tokio::test]
async fn the_catalog_lists_what_was_pulled() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    assert_eq!(
        larder.get("/v2/_catalog").await.json(),
        json!({"repositories": []})
    );
    for name in ["zoo/a", "app", "library/b"] {
        let image = Image::small(name.len() as u64);
        upstream.push_tagged(name, "1", &image);
        assert_eq!(larder.get(&manifest_path(name, "1")).await.status, 200);
    }
    upstream.refuse().await;
    assert_eq!(
        larder.get("/v2/_catalog").await.json(),
        json!({"repositories": ["app", "library/b", "zoo/a"]})
    );
    let page = larder.get("/v2/_catalog?n=2").await;
    assert_eq!(page.json(), json!({"repositories": ["app", "library/b"]}));
    let link = page.header("link").expect("a next page").to_owned();
    let (path, _) = link
        .strip_prefix('<')
        .and_then(|link| link.split_once('>'))
        .unwrap();
    assert_eq!(larder.get(path).await.json(), json!({"repositories": ["zoo/a"]}));
}

/// An upstream with an image and two artifacts about it: an SBOM and a signature.
async fn with_artifacts() -> (TestUpstream, Larder, Image, [Image; 2]) {
    let upstream = TestUpstream::start().await;
    let image = Image::small(7);
    upstream.push_tagged("app", "1", &image);
    let artifacts = [
        Image::artifact(&image.manifest, "application/vnd.example.sbom", "parts"),
        Image::artifact(&image.manifest, "application/vnd.example.signature", "signed"),
    ];
    for artifact in &artifacts {
        upstream.push("app", artifact);
    }
    let larder = Larder::start(&upstream).await;
    (upstream, larder, image, artifacts)
}

fn digests(value: &Value) -> Vec<String> {
    let list = value["manifests"].as_array().expect("a list");
    let mut digests: Vec<String> = list
        .iter()
        .map(|entry| entry["digest"].as_str().unwrap().to_owned())
        .collect();
    digests.sort();
    digests
}

fn sorted(artifacts: &[Image]) -> Vec<String> {
    let mut digests: Vec<String> = artifacts
        .iter()
        .map(|artifact| artifact.manifest.digest.clone())
        .collect();
    digests.sort();
    digests
}

#[tokio::test]
async fn referrers_come_from_upstreams_api() {
    let (upstream, larder, image, artifacts) = with_artifacts().await;
    upstream.enable_referrers(true);
    let path = format!("/v2/app/referrers/{}", image.manifest.digest);
    let all = larder.get(&path).await;
    assert_eq!(
        (all.status, all.header("content-type")),
        (200, Some(OCI_INDEX)),
        "{}",
        all.text()
    );
    assert_eq!(digests(&all.json()), sorted(&artifacts));
    let first = &all.json()["manifests"][0];
    assert!(
        first["artifactType"].is_string()
            && first["annotations"]["note"].is_string()
            && first["size"].is_number()
    );
    let none = larder
        .get(&format!("/v2/app/referrers/{}", artifacts[0].manifest.digest))
        .await;
    assert_eq!((none.status, digests(&none.json())), (200, vec![]));
}

#[tokio::test]
async fn referrers_are_filtered_here_where_upstream_does_not() {
    for filters in [true, false] {
        let (upstream, larder, image, artifacts) = with_artifacts().await;
        upstream.enable_referrers(filters);
        let path = format!(
            "/v2/app/referrers/{}?artifactType=application/vnd.example.sbom",
            image.manifest.digest
        );
        let answer = larder.get(&path).await;
        assert_eq!(
            digests(&answer.json()),
            sorted(&artifacts[..1]),
            "upstream filters: {filters}"
        );
        assert_eq!(answer.header("oci-filters-applied"), Some("artifactType"));
    }
}

#[tokio::test]
async fn without_the_api_referrers_are_made_from_the_tag() {
    let html = || Fault::Html;
    let status = |code| Fault::Status(code, vec![], "no".to_owned());
    for refusal in [
        None,
        Some(html()),
        Some(status(400)),
        Some(status(405)),
        Some(status(406)),
        Some(status(501)),
    ] {
        let (upstream, larder, image, artifacts) = with_artifacts().await;
        let index = index_of(OCI_INDEX, &[&artifacts[0].manifest, &artifacts[1].manifest]);
        upstream.tag("app", &image.manifest.digest.replace(':', "-"), &index);
        if let Some(refusal) = refusal.clone() {
            upstream.fault(on("/referrers/"), refusal);
        }
        let answer = larder
            .get(&format!("/v2/app/referrers/{}", image.manifest.digest))
            .await;
        assert_eq!(answer.status, 200, "{refusal:?}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some(OCI_INDEX));
        assert_eq!(digests(&answer.json()), sorted(&artifacts), "{refusal:?}");
    }
}

#[tokio::test]
async fn without_api_and_tag_there_are_no_referrers() {
    let (_upstream, larder, image, _) = with_artifacts().await;
    let answer = larder
        .get(&format!("/v2/app/referrers/{}", image.manifest.digest))
        .await;
    assert_eq!(
        (answer.status, digests(&answer.json())),
        (200, vec![]),
        "{}",
        answer.text()
    );
}

#[tokio::test]
async fn without_the_api_what_is_here_says_itself_what_it_is_about() {
    let (upstream, larder, image, artifacts) = with_artifacts().await;
    let path = format!("/v2/app/referrers/{}", image.manifest.digest);
    let pull = async |artifact: &Image| {
        let answer = larder.get(&manifest_path("app", &artifact.manifest.digest)).await;
        answer.is_whole(&artifact.manifest.bytes);
    };
    pull(&artifacts[0]).await;
    assert_eq!(digests(&larder.get(&path).await.json()), sorted(&artifacts[..1]));
    // The tag adds to it, and names nothing twice.
    let index = index_of(OCI_INDEX, &[&artifacts[0].manifest, &artifacts[1].manifest]);
    upstream.tag("app", &image.manifest.digest.replace(':', "-"), &index);
    assert_eq!(digests(&larder.get(&path).await.json()), sorted(&artifacts));
    // Another repository has never had it.
    upstream.push_tagged("other", "1", &image);
    let other = larder
        .get(&format!("/v2/other/referrers/{}", image.manifest.digest))
        .await;
    assert_eq!(digests(&other.json()), Vec::<String>::new());
}

#[tokio::test]
async fn artifacts_are_pulled_like_images() {
    let (_upstream, larder, _, artifacts) = with_artifacts().await;
    for artifact in &artifacts {
        larder
            .get(&manifest_path("app", &artifact.manifest.digest))
            .await
            .is_whole(&artifact.manifest.bytes);
        larder
            .get(&blob_path("app", &artifact.layers[0].digest))
            .await
            .is_whole(&artifact.layers[0].bytes());
    }
}

#[tokio::test]
async fn more_tags_than_the_limit_are_paged() {
    let (upstream, larder, tags) = with_tags(30).await;
    drop(larder);
    let larder = Builder::new(&upstream.url()).set("tags.maxtags", 7).start().await;
    let first = larder.get("/v2/app/tags/list?n=10000").await;
    assert!(first.json()["tags"].as_array().unwrap().len() <= 7);
    assert_eq!(walk(&larder, "/v2/app/tags/list?n=10000").await, tags);
}
