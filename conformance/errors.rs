//! What a client hears when there is nothing to give: the right status and code, soon, and upstream left in peace.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use crate::client::{Download, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Cut, Fault, Image, TestUpstream, on};

/// A tag, a manifest digest and a blob that upstream has and larder has not.
fn cold_paths(upstream: &TestUpstream, seed: u64) -> [String; 3] {
    let image = Image::small(seed);
    let tag = format!("t{seed}");
    upstream.push_tagged("app", &tag, &image);
    [
        manifest_path("app", &tag),
        manifest_path("app", &image.manifest.digest),
        blob_path("app", &image.layers[0].digest),
    ]
}

#[tokio::test]
async fn what_upstream_does_not_have_is_404_with_its_code() {
    let upstream = TestUpstream::start().await;
    upstream.push_tagged("app", "1", &Image::small(1));
    let larder = Larder::start(&upstream).await;
    let digest = Blob::of("nothing").digest;
    for (path, code) in [
        (manifest_path("app", "none"), "MANIFEST_UNKNOWN"),
        (manifest_path("app", &digest), "MANIFEST_UNKNOWN"),
        (blob_path("app", &digest), "BLOB_UNKNOWN"),
        (blob_path("nowhere", &digest), "BLOB_UNKNOWN"),
        ("/v2/nowhere/tags/list".to_owned(), "NAME_UNKNOWN"),
    ] {
        let answer = larder.get(&path).await;
        assert_eq!(
            (answer.status, answer.error_code()),
            (404, code.to_owned()),
            "{path}"
        );
        let head = larder.head(&path).await;
        assert!(head.status == 404 && head.is_complete, "{path}: {}", head.status);
    }
    assert_eq!(larder.stored_blobs(), 0);
}

#[tokio::test]
async fn upstreams_statuses_become_statuses_that_clients_fall_back_on() {
    let json = r#"{"errors":[{"code":"DENIED","message":"the kitchen is closed"}]}"#;
    let table = [
        (401, 403, "DENIED"),
        (403, 403, "DENIED"),
        (500, 502, "UNKNOWN"),
        (502, 502, "UNKNOWN"),
        (503, 502, "UNKNOWN"),
        (504, 502, "UNKNOWN"),
        (418, 502, "UNKNOWN"),
    ];
    let upstream = TestUpstream::start().await;
    for (status, expected, code) in table {
        let larder = Larder::start(&upstream).await;
        let paths = cold_paths(&upstream, u64::from(status));
        upstream.fault(on("/"), Fault::Status(status, vec![], json.to_owned()));
        for path in &paths {
            let answer = larder.get(path).await;
            assert_eq!(answer.status, expected, "{status} on {path}: {}", answer.text());
            assert_eq!(answer.error_code(), code, "{status} on {path}");
            assert!(answer.header("www-authenticate").is_none());
            // A tag is asked for by HEAD, whose answer has no body to give a reason.
            if expected == 403 && path != &paths[0] {
                assert!(
                    answer.text().contains("the kitchen is closed"),
                    "{}",
                    answer.text()
                );
            }
            let head = larder.head(path).await;
            assert_eq!(
                (head.status, head.body.len()),
                (expected, 0),
                "HEAD {status} on {path}"
            );
        }
        upstream.heal();
        for path in &paths {
            assert_eq!(larder.get(path).await.status, 200, "after {status}: {path}");
        }
    }
}

#[tokio::test]
async fn a_rate_limit_becomes_503_with_retry_after_and_upstream_is_left_alone() {
    let upstream = TestUpstream::start().await;
    let paths = cold_paths(&upstream, 1);
    let limit = Fault::Status(
        429,
        vec![("Retry-After", "17".to_owned())],
        "<html>slow down</html>".to_owned(),
    );
    upstream.fault(on("/"), limit);
    let larder = Larder::start(&upstream).await;
    let began = Instant::now();
    for path in paths.iter().chain(&paths) {
        let answer = larder.get(path).await;
        assert_eq!(
            (answer.status, answer.error_code()),
            (503, "TOOMANYREQUESTS".to_owned()),
            "{path}"
        );
        let wait: u64 = answer
            .header("retry-after")
            .and_then(|wait| wait.parse().ok())
            .expect("a number of seconds");
        assert!((10..=17).contains(&wait), "{wait}");
    }
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "nobody waits for a rate limit to pass"
    );
    assert_eq!(upstream.log().all().len(), 1, "{}", upstream.log().lines());
}

#[tokio::test]
async fn a_rate_limit_passes() {
    let upstream = TestUpstream::start().await;
    let paths = cold_paths(&upstream, 2);
    upstream.fault_times(
        1,
        on("/"),
        Fault::Status(429, vec![("Retry-After", "1".to_owned())], String::new()),
    );
    let larder = Larder::start(&upstream).await;
    assert_eq!(larder.get(&paths[0]).await.status, 503);
    let began = Instant::now();
    while larder.get(&paths[0]).await.status != 200 {
        assert!(began.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(began.elapsed() > Duration::from_millis(500));
}

#[tokio::test]
async fn a_refused_connection_is_502_at_once() {
    let upstream = TestUpstream::start().await;
    let paths = cold_paths(&upstream, 3);
    upstream.refuse().await;
    let larder = Larder::start(&upstream).await;
    for path in &paths {
        let began = Instant::now();
        let answer = larder.get(path).await;
        assert_eq!(answer.status, 502, "{path}: {}", answer.text());
        answer.error_code();
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_502() {
    let larder = Builder::new("http://registry.invalid").start().await;
    let answer = larder.get(&manifest_path("app", "1")).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
}

#[tokio::test]
async fn connections_that_end_without_an_answer_are_502() {
    for how in [Cut::Fin, Cut::Rst] {
        let upstream = TestUpstream::start().await;
        let paths = cold_paths(&upstream, 4);
        upstream.fault(on("/"), Fault::Drop(how));
        let larder = Larder::start(&upstream).await;
        for answer in join_all(paths.iter().map(|path| larder.get(path))).await {
            assert_eq!(answer.status, 502, "{how:?}: {}", answer.text());
        }
    }
}

#[tokio::test]
async fn a_black_hole_is_504_within_the_header_timeout() {
    let upstream = TestUpstream::start().await;
    let paths = cold_paths(&upstream, 5);
    upstream.fault(on("/"), Fault::BlackHole);
    let larder = Builder::new(&upstream.url())
        .set("larder.timeouts.connect", "500ms")
        .set("larder.timeouts.header", "500ms")
        .start()
        .await;
    let began = Instant::now();
    let asks = (0..20).flat_map(|_| &paths).map(|path| larder.get(path));
    for answer in join_all(asks).await {
        assert_eq!(answer.status, 504, "{}", answer.text());
        answer.error_code();
    }
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    upstream.heal();
    assert_eq!(larder.get(&paths[0]).await.status, 200);
}

#[tokio::test]
async fn a_get_that_fails_after_a_head_that_worked_is_a_well_formed_error() {
    let upstream = TestUpstream::start().await;
    let paths = cold_paths(&upstream, 6);
    upstream.fault(
        on("/").method("GET"),
        Fault::Status(500, vec![], "broken".to_owned()),
    );
    let larder = Larder::start(&upstream).await;
    for path in &paths {
        larder.head(path).await;
        let answer = larder.get(path).await;
        assert_eq!(answer.status, 502, "{path}");
        assert!(answer.is_complete);
        answer.error_code();
    }
}

#[tokio::test]
async fn login_pages_are_no_content() {
    let upstream = TestUpstream::start().await;
    let paths = cold_paths(&upstream, 7);
    upstream.fault(on("/"), Fault::Html);
    let larder = Larder::start(&upstream).await;
    for path in &paths {
        let answer = larder.get(path).await;
        assert!(
            answer.status == 502 || !answer.is_complete,
            "{path}: {} {}",
            answer.status,
            answer.text()
        );
    }
    assert_eq!(larder.stored_blobs(), 0);
}

#[tokio::test]
async fn malformed_requests_are_told_what_is_wrong() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let hex = "0".repeat(63);
    for (path, status, code) in [
        ("/v2/UPPER/manifests/1".to_owned(), 400, "NAME_INVALID"),
        ("/v2/a//b/manifests/1".to_owned(), 400, "NAME_INVALID"),
        ("/v2/a/../b/manifests/1".to_owned(), 400, "NAME_INVALID"),
        (
            "/v2/%2e%2e/%2e%2e/etc/manifests/1".to_owned(),
            400,
            "NAME_INVALID",
        ),
        (
            format!("/v2/{}/manifests/1", "a".repeat(300)),
            400,
            "NAME_INVALID",
        ),
        (format!("/v2/app/blobs/sha256:{hex}"), 400, "DIGEST_INVALID"),
        ("/v2/app/blobs/sha256:XYZ".to_owned(), 400, "DIGEST_INVALID"),
        ("/v2/app/manifests/sha256:bad".to_owned(), 400, "DIGEST_INVALID"),
        ("/v2/app/referrers/sha256:bad".to_owned(), 400, "DIGEST_INVALID"),
    ] {
        let answer = larder.get(&path).await;
        assert_eq!(
            (answer.status, answer.error_code()),
            (status, code.to_owned()),
            "{path}"
        );
    }
    let tag = larder.get(&manifest_path("app", &"t".repeat(129))).await;
    assert!(matches!(tag.status, 400 | 404), "{}", tag.status);
    for path in ["/v2/app", "/v2/app/elsewhere/1", "/v3/", "/favicon.ico"] {
        assert_eq!(larder.get(path).await.status, 404, "{path}");
    }
    assert_eq!(upstream.log().all().len(), 0, "{}", upstream.log().lines());
}

#[tokio::test]
async fn repositories_named_like_routes_and_encoded_digests_are_understood() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    for (seed, name) in [
        "blobs/manifests",
        "a/tags",
        "uploads",
        "tags/list",
        "referrers/blobs",
    ]
    .into_iter()
    .enumerate()
    {
        let image = Image::small(seed as u64 + 40);
        upstream.push_tagged(name, "1", &image);
        larder
            .get(&manifest_path(name, "1"))
            .await
            .is_whole(&image.manifest.bytes);
        let digest = image.config.digest.replace(':', "%3A");
        larder
            .get(&blob_path(name, &digest))
            .await
            .is_whole(&image.config.bytes());
    }
}

#[tokio::test]
async fn garbage_on_the_wire_harms_nobody() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let long_path = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a".repeat(200_000));
    for request in [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "\u{0}\u{1}\u{2}\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        &long_path,
    ] {
        let answer = Download::send(&larder.registry, request.as_bytes(), false, None).await;
        assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status >= 400));
    }
    assert_eq!(larder.get("/v2/").await.status, 200);
}
