//! `Age`: what is served from here says how old it is, by digest and by tag, and grows older.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::{Answer, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Image, TestUpstream};

/// The age in seconds, when one is told.
fn age(answer: &Answer) -> Option<u64> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.header("age")?;
    Some(text.parse().unwrap_or_else(|_| panic!("`{text}` is no age")))
}

/// Asks until the answer is a second old, at most ten; no answer on the way is without an age.
async fn grows_older(larder: &Larder, path: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = larder.get(path).await;
        let age = age(&answer).unwrap_or_else(|| panic!("{path} has no age: {:?}", answer.headers));
        assert!(age < 30, "{path}: {age} seconds");
        if age >= 1 {
            return;
        }
        assert!(Instant::now() < deadline, "{path} does not grow older");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn manifests_and_blobs_by_digest_tell_their_age_on_a_hit() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    for path in [
        manifest_path("app", &image.manifest.digest),
        blob_path("app", &image.config.digest),
        blob_path("app", &image.layers[0].digest),
    ] {
        assert_eq!(age(&larder.get(&path).await), None, "{path} is new");
        larder.until_idle().await;
        let head = larder.head(&path).await;
        assert!(age(&head).is_some(), "{path}: {:?}", head.headers);
        grows_older(&larder, &path).await;
    }
}

#[tokio::test]
async fn a_tag_tells_its_age_while_it_is_fresh_and_when_it_is_stale() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(2);
    upstream.push_tagged("app", "1", &image);
    let path = manifest_path("app", "1");
    let fresh = Builder::new(&upstream.url())
        .set("larder.tagttl", "1h")
        .start()
        .await;
    assert_eq!(age(&fresh.get(&path).await), None);
    grows_older(&fresh, &path).await;

    let stale = Larder::start(&upstream).await;
    assert_eq!(age(&stale.get(&path).await), None);
    upstream.refuse().await;
    let answer = stale.get(&path).await;
    assert!(answer.header("warning").is_some(), "{:?}", answer.headers);
    grows_older(&stale, &path).await;
}
