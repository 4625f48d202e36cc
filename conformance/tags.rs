//! Tags: asked for as seldom as the freshness window allows, never wrong, and served when upstream is unwell.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Cut, Fault, Gate, Image, OCI_INDEX, TestUpstream, index_of, on};

/// A larder that holds `app:1`, the upstream behind it, and the image.
async fn warm(configure: impl FnOnce(Builder) -> Builder) -> (TestUpstream, Larder, Image) {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("app", "1", &image);
    let larder = configure(Builder::new(&upstream.url())).start().await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    for blob in image.blobs() {
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
    upstream.reset_log();
    (upstream, larder, image)
}

#[tokio::test]
async fn without_a_window_each_pull_of_a_warm_tag_is_one_head_and_no_get() {
    let (upstream, larder, image) = warm(|builder| builder).await;
    for _ in 0..50 {
        larder
            .get(&manifest_path("app", "1"))
            .await
            .is_whole(&image.manifest.bytes);
    }
    assert_eq!(
        (
            upstream.log().count("HEAD", "/manifests/1"),
            upstream.log().count("GET", "/")
        ),
        (50, 0)
    );
}

#[tokio::test]
async fn within_the_window_nothing_is_asked() {
    let (upstream, larder, image) = warm(|builder| builder.set("larder.tagttl", "1h")).await;
    for _ in 0..20 {
        let answer = larder.get(&manifest_path("app", "1")).await;
        answer.is_whole(&image.manifest.bytes);
        let age: Option<u64> = answer.header("age").and_then(|age| age.parse().ok());
        assert!(age.is_some_and(|seconds| seconds < 3600), "{age:?}");
    }
    assert_eq!(upstream.log().all().len(), 0, "{}", upstream.log().lines());
}

#[tokio::test]
async fn after_the_window_one_question_opens_the_next() {
    let (upstream, larder, image) = warm(|builder| builder.set("larder.tagttl", "400ms")).await;
    let began = Instant::now();
    while upstream.log().count("HEAD", "/manifests/1") < 2 {
        larder
            .get(&manifest_path("app", "1"))
            .await
            .is_whole(&image.manifest.bytes);
        assert!(began.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() >= Duration::from_millis(400));
    assert_eq!(upstream.log().count("GET", "/"), 0);
}

#[tokio::test]
async fn all_who_ask_at_once_share_one_head() {
    let (upstream, larder, image) = warm(|builder| builder).await;
    let gate = Gate::new();
    upstream.fault_times(
        1,
        on("/manifests/").method("HEAD"),
        Fault::HoldHeaders(gate.clone()),
    );
    let path = manifest_path("app", "1");
    let pulls = join_all((0..50).map(|_| larder.get(&path)));
    let (answers, ()) = futures::join!(pulls, async {
        gate.reached().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        gate.open();
    });
    for answer in answers {
        answer.is_whole(&image.manifest.bytes);
    }
    assert_eq!(
        upstream.log().count("HEAD", "/manifests/1"),
        1,
        "{}",
        upstream.log().lines()
    );
}

#[tokio::test]
async fn digests_are_never_asked_for_again() {
    let (upstream, larder, image) = warm(|builder| builder).await;
    for _ in 0..10 {
        let path = manifest_path("app", &image.manifest.digest);
        larder.get(&path).await.is_whole(&image.manifest.bytes);
        assert_eq!(larder.head(&path).await.status, 200);
        larder
            .get(&blob_path("app", &image.config.digest))
            .await
            .is_whole(&image.config.bytes());
    }
    assert_eq!(upstream.log().all().len(), 0, "{}", upstream.log().lines());
}

#[tokio::test]
async fn a_moved_tag_is_fetched_by_digest_and_back_again_costs_nothing() {
    let (upstream, larder, first) = warm(|builder| builder).await;
    let second = Image::small(2);
    upstream.push_tagged("app", "1", &second);
    let path = manifest_path("app", "1");
    larder.get(&path).await.is_whole(&second.manifest.bytes);
    let log = upstream.log();
    assert_eq!(log.count("HEAD", "/manifests/1"), 1, "{}", log.lines());
    assert_eq!(
        (log.gets_of(&second.manifest.digest), log.count("GET", "/")),
        (1, 1),
        "{}",
        log.lines()
    );
    upstream.tag("app", "1", &first.manifest);
    larder.get(&path).await.is_whole(&first.manifest.bytes);
    assert_eq!(upstream.log().count("GET", "/"), 1, "{}", upstream.log().lines());
    larder
        .get(&manifest_path("app", &second.manifest.digest))
        .await
        .is_whole(&second.manifest.bytes);
}

#[tokio::test]
async fn a_tag_that_moves_between_head_and_get_never_mixes_header_and_body() {
    let (upstream, larder, first) = warm(|builder| builder).await;
    let second = Image::small(3);
    upstream.push("app", &second);
    let digest = second.manifest.digest.clone();
    upstream.fault(
        on("/manifests/1").method("HEAD"),
        Fault::Header("Docker-Content-Digest", Some(digest.clone())),
    );
    let answer = larder.get(&manifest_path("app", "1")).await;
    assert_eq!(answer.status, 200);
    let expected = if answer.header("docker-content-digest") == Some(&digest) {
        &second
    } else {
        &first
    };
    answer.is_whole(&expected.manifest.bytes);
    assert_eq!(
        answer.header("docker-content-digest"),
        Some(expected.manifest.digest.as_str())
    );
}

#[tokio::test]
async fn a_tag_taken_away_is_404_while_its_digest_stays() {
    let (upstream, larder, image) = warm(|builder| builder).await;
    upstream.untag("app", "1");
    let gone = larder.get(&manifest_path("app", "1")).await;
    assert_eq!(
        (gone.status, gone.error_code()),
        (404, "MANIFEST_UNKNOWN".to_owned())
    );
    upstream.forget("app", &image.manifest.digest);
    let path = manifest_path("app", &image.manifest.digest);
    larder.get(&path).await.is_whole(&image.manifest.bytes);
    upstream.refuse().await;
    assert_ne!(
        larder.get(&manifest_path("app", "1")).await.status,
        200,
        "what upstream took away does not come back"
    );
}

#[tokio::test]
async fn an_unwell_upstream_leaves_tags_served_and_marked_stale() {
    let failures = [
        Fault::Status(401, vec![], String::new()),
        Fault::Status(403, vec![], String::new()),
        Fault::Status(500, vec![], "oops".to_owned()),
        Fault::Status(502, vec![], String::new()),
        Fault::Status(503, vec![("Retry-After", "1".to_owned())], String::new()),
        Fault::Status(429, vec![("Retry-After", "1".to_owned())], "<html>".to_owned()),
        Fault::Drop(Cut::Fin),
        Fault::Drop(Cut::Rst),
        Fault::Html,
    ];
    for failure in failures {
        let (upstream, larder, image) = warm(|builder| builder).await;
        upstream.fault(on("/"), failure.clone());
        for method in ["GET", "HEAD"] {
            let answer = larder.ask(method, &manifest_path("app", "1"), &[]).await;
            assert_eq!(answer.status, 200, "{failure:?}: {}", answer.text());
            assert_eq!(
                answer.header("docker-content-digest"),
                Some(image.manifest.digest.as_str())
            );
            let warning = answer.header("warning").unwrap_or_default();
            assert!(warning.starts_with("299 "), "{failure:?}: `{warning}`");
            let status = answer.header("cache-status").unwrap_or_default();
            assert!(status.contains("hit"), "{failure:?}: `{status}`");
        }
        upstream.heal();
        let fresh = Image::small(4);
        upstream.push_tagged("app", "1", &fresh);
        let began = Instant::now();
        loop {
            let answer = larder.get(&manifest_path("app", "1")).await;
            if answer.body == fresh.manifest.bytes {
                assert_eq!(answer.header("warning"), None);
                break;
            }
            assert!(
                began.elapsed() < Duration::from_secs(10),
                "{failure:?}: never fresh again"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn a_refusing_upstream_leaves_everything_served() {
    let (upstream, larder, image) = warm(|builder| builder).await;
    upstream.refuse().await;
    let tag = larder.get(&manifest_path("app", "1")).await;
    tag.is_whole(&image.manifest.bytes);
    assert!(
        tag.header("warning")
            .is_some_and(|warning| warning.starts_with("299 "))
    );
    for blob in image.blobs() {
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
    assert_eq!(
        larder.admin("/readyz").await.status,
        200,
        "readiness does not depend on upstream"
    );
}

#[tokio::test]
async fn a_black_hole_delays_warm_tags_by_two_seconds_at_most() {
    let (upstream, larder, image) = warm(|builder| builder).await;
    upstream.fault(on("/"), Fault::BlackHole);
    let began = Instant::now();
    for answer in join_all((0..50).map(|_| larder.get("/v2/app/manifests/1"))).await {
        answer.is_whole(&image.manifest.bytes);
        assert!(answer.header("warning").is_some());
    }
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}

#[tokio::test]
async fn head_of_a_tag_stores_the_index() {
    let upstream = TestUpstream::start().await;
    let children = [Image::small(5), Image::small(6)];
    let index = index_of(OCI_INDEX, &[&children[0].manifest, &children[1].manifest]);
    upstream.tag("app", "multi", &index);
    let larder = Larder::start(&upstream).await;
    let head = larder.head(&manifest_path("app", "multi")).await;
    assert_eq!(
        (head.status, head.header("docker-content-digest")),
        (200, Some(index.digest.as_str()))
    );
    larder.until_stored(&index.digest).await;
    upstream.refuse().await;
    larder
        .get(&manifest_path("app", &index.digest))
        .await
        .is_whole(&index.bytes);
    larder
        .get(&manifest_path("app", "multi"))
        .await
        .is_whole(&index.bytes);
}

#[tokio::test]
async fn after_a_restart_with_upstream_down_a_whole_image_is_served() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(7);
    let index = index_of(OCI_INDEX, &[&image.manifest]);
    upstream.push("library/app", &image);
    upstream.tag("library/app", "1", &index);
    let larder = Larder::start(&upstream).await;
    let documents = [
        ("1", &index),
        (index.digest.as_str(), &index),
        (image.manifest.digest.as_str(), &image.manifest),
    ];
    for (reference, document) in documents {
        larder
            .get(&manifest_path("library/app", reference))
            .await
            .is_whole(&document.bytes);
    }
    for blob in image.blobs() {
        larder
            .get(&blob_path("library/app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
    let builder = larder.stop().await;
    upstream.refuse().await;
    let larder = builder.start().await;
    for (reference, document) in documents {
        let answer = larder.get(&manifest_path("library/app", reference)).await;
        answer.is_whole(&document.bytes);
        assert_eq!(answer.header("content-type"), Some(document.media_type.as_str()));
    }
    for blob in image.blobs() {
        let answer = larder.get(&blob_path("library/app", &blob.digest)).await;
        answer.is_whole(&blob.bytes());
        assert!(
            answer
                .header("cache-status")
                .is_some_and(|status| status.contains("hit"))
        );
    }
}

#[tokio::test]
async fn a_start_without_upstream_is_ready_at_once_and_recovers() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(8);
    upstream.push_tagged("app", "1", &image);
    upstream.refuse().await;
    let began = Instant::now();
    let larder = Larder::start(&upstream).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let down = larder.get(&manifest_path("app", "1")).await;
    assert_eq!(down.status, 502);
    down.error_code();
    upstream.come_back();
    let began = Instant::now();
    while larder.get(&manifest_path("app", "1")).await.status != 200 {
        assert!(began.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_manifest_that_is_known_by_tag_only_upstream_is_served_by_digest_here() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(9);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    upstream.fault(
        on(&image.manifest.digest),
        Fault::Status(404, vec![], String::new()),
    );
    larder
        .get(&manifest_path("app", &image.manifest.digest))
        .await
        .is_whole(&image.manifest.bytes);
}

#[tokio::test]
async fn signature_tags_pass_through() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(10);
    upstream.push_tagged("app", "1", &image);
    let signature = Image::artifact(
        &image.manifest,
        "application/vnd.dev.cosign.artifact.sig.v1+json",
        "signed",
    );
    let tag = format!("{}.sig", image.manifest.digest.replace(':', "-"));
    upstream.push_tagged("app", &tag, &signature);
    let larder = Larder::start(&upstream).await;
    larder
        .get(&manifest_path("app", &tag))
        .await
        .is_whole(&signature.manifest.bytes);
}
