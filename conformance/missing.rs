//! What upstream does not have: asked for once within `larder.negativettl`, and found when it comes.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::{Answer, manifest_path};
use crate::larder::Builder;
use crate::upstream::{Image, TestUpstream};

fn is_unknown(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.error_code()),
        (404, "MANIFEST_UNKNOWN".to_owned())
    );
}

#[tokio::test]
async fn a_missing_tag_is_asked_for_once_within_the_window() {
    let upstream = TestUpstream::start().await;
    upstream.push_tagged("app", "1", &Image::small(1));
    let larder = Builder::new(&upstream.url())
        .set("larder.negativettl", "1h")
        .start()
        .await;
    let path = manifest_path("app", "none");
    is_unknown(&larder.get(&path).await);
    let first = upstream.log().all().len();
    is_unknown(&larder.get(&path).await);
    assert_eq!(larder.head(&path).await.status, 404);
    let log = upstream.log();
    assert_eq!((first, log.all().len()), (1, 1), "{}", log.lines());
    is_unknown(&larder.get(&manifest_path("app", "other")).await);
    assert_eq!(upstream.log().all().len(), 2, "another tag is another question");
}

#[tokio::test]
async fn a_tag_that_comes_is_found_after_the_window() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(2);
    upstream.push_tagged("app", "1", &image);
    let larder = Builder::new(&upstream.url())
        .set("larder.negativettl", "300ms")
        .start()
        .await;
    let path = manifest_path("app", "new");
    is_unknown(&larder.get(&path).await);
    upstream.tag("app", "new", &image.manifest);
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let answer = larder.get(&path).await;
        if answer.status == 200 {
            return answer.is_whole(&image.manifest.bytes);
        }
        is_unknown(&answer);
        assert!(Instant::now() < deadline, "never found");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
