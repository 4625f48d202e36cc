//! Exact headers: the same on cold and hot, on GET and HEAD, whatever upstream left out or added.

use crate::client::{Answer, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Fault, Image, OCI_MANIFEST, TestUpstream, on};

/// The headers that say how this one answer came about, and so differ.
const PROVENANCE: [&str; 4] = ["cache-status", "age", "date", "connection"];

fn lasting(answer: &Answer) -> Vec<(String, String)> {
    let mut headers = answer.headers.clone();
    headers.retain(|(name, _)| !PROVENANCE.contains(&name.as_str()));
    headers.sort();
    headers
}

#[tokio::test]
async fn blobs_carry_exact_headers_cold_and_hot_on_get_and_head() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(1, 500_000);
    upstream.put_blob("app", &blob);
    upstream.fault(
        on(&blob.digest),
        Fault::Header(
            "Content-Type",
            Some("application/x-tar; charset=utf-8".to_owned()),
        ),
    );
    upstream.fault(on(&blob.digest), Fault::Header("Docker-Content-Digest", None));
    upstream.fault(
        on(&blob.digest),
        Fault::Header("Set-Cookie", Some("who=you".to_owned())),
    );
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    let answers = [
        larder.head(&path).await,
        larder.get(&path).await,
        larder.get(&path).await,
        larder.head(&path).await,
    ];
    for answer in &answers {
        assert_eq!(answer.status, 200);
        assert!(answer.is_complete);
        assert_eq!(answer.header("content-type"), Some("application/octet-stream"));
        assert_eq!(answer.header("content-length"), Some("500000"));
        assert_eq!(answer.header("docker-content-digest"), Some(blob.digest.as_str()));
        assert_eq!(
            answer.header("etag"),
            Some(format!("\"{}\"", blob.digest).as_str())
        );
        assert_eq!(answer.header("accept-ranges"), Some("bytes"));
        assert_eq!(
            answer.header("docker-distribution-api-version"),
            Some("registry/2.0")
        );
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("content-encoding"), None);
        assert_eq!(answer.header("set-cookie"), None);
        assert_eq!(lasting(answer), lasting(&answers[0]));
    }
    answers[1].is_whole(&blob.bytes());
    answers[2].is_whole(&blob.bytes());
}

#[tokio::test]
async fn manifests_carry_exact_headers_cold_and_hot_on_get_and_head() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    for (seed, is_head_first) in [(2, false), (3, true)] {
        let image = Image::small(seed);
        let tag = format!("v{seed}");
        upstream.push_tagged("app", &tag, &image);
        let digest = &image.manifest.digest;
        let (by_tag, by_digest) = (manifest_path("app", &tag), manifest_path("app", digest));
        let mut answers = Vec::new();
        if is_head_first {
            answers.push(larder.head(&by_tag).await);
        }
        answers.extend([
            larder.get(&by_tag).await,
            larder.get(&by_digest).await,
            larder.get(&by_tag).await,
            larder.head(&by_digest).await,
            larder.head(&by_tag).await,
        ]);
        for answer in &answers {
            assert_eq!(answer.status, 200);
            assert_eq!(answer.header("content-type"), Some(OCI_MANIFEST));
            assert_eq!(
                answer.header("content-length"),
                Some(image.manifest.bytes.len().to_string().as_str())
            );
            assert_eq!(answer.header("docker-content-digest"), Some(digest.as_str()));
            assert_eq!(answer.header("etag"), Some(format!("\"{digest}\"").as_str()));
            assert_eq!(
                answer.header("docker-distribution-api-version"),
                Some("registry/2.0")
            );
            assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
            assert_eq!(lasting(answer), lasting(&answers[0]));
        }
    }
}

#[tokio::test]
async fn head_on_a_cold_blob_moves_no_body() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let blob = Blob::generated(5, 50_000_000);
    upstream.put_blob("app", &blob);
    let head = larder.head(&blob_path("app", &blob.digest)).await;
    assert_eq!(
        (head.status, head.header("content-length")),
        (200, Some("50000000"))
    );
    assert_eq!(upstream.log().gets_of(&blob.digest), 0);
    assert_eq!(upstream.log().bytes_of(&blob.digest), 0);
}

#[tokio::test]
async fn where_upstream_refuses_head_a_ranged_get_answers() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    for status in [401, 403, 404, 405, 501] {
        let blob = Blob::generated(u64::from(status), 5_000_000);
        upstream.put_blob("app", &blob);
        upstream.fault(
            on(&blob.digest).method("HEAD"),
            Fault::Status(status, vec![], String::new()),
        );
        let head = larder.head(&blob_path("app", &blob.digest)).await;
        assert_eq!(
            (head.status, head.header("content-length")),
            (200, Some("5000000")),
            "HEAD refused by {status}"
        );
        assert!(
            upstream.log().bytes_of(&blob.digest) <= 1,
            "{}",
            upstream.log().lines()
        );
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
}

#[tokio::test]
async fn a_head_without_length_is_answered_with_the_length() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(6, 70_000);
    upstream.put_blob("app", &blob);
    upstream.fault(on(&blob.digest).method("HEAD"), Fault::Chunked);
    let larder = Larder::start(&upstream).await;
    let head = larder.head(&blob_path("app", &blob.digest)).await;
    assert_eq!((head.status, head.header("content-length")), (200, Some("70000")));
}

#[tokio::test]
async fn if_none_match_is_304_only_for_what_exists() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(8);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    let layer = &image.layers[0];
    for (path, digest) in [
        (manifest_path("app", "1"), &image.manifest.digest),
        (
            manifest_path("app", &image.manifest.digest),
            &image.manifest.digest,
        ),
        (blob_path("app", &layer.digest), &layer.digest),
    ] {
        assert_eq!(larder.get(&path).await.status, 200);
        let etag = format!("\"{digest}\"");
        for value in [etag.clone(), format!("\"x\", W/{etag}"), "*".to_owned()] {
            let same = larder.ask("GET", &path, &[("If-None-Match", &value)]).await;
            assert_eq!((same.status, same.body.len()), (304, 0), "{path} {value}");
            assert_eq!(same.header("accept-ranges"), None, "{path} {value}");
            assert!(same.header("etag").is_some(), "{path} {value}");
        }
        assert_eq!(
            larder
                .ask("GET", &path, &[("If-None-Match", "\"sha256:0\"")])
                .await
                .status,
            200
        );
    }
    let unknown = Blob::of("never pushed").digest;
    let etag = format!("\"{unknown}\"");
    for path in [manifest_path("app", &unknown), blob_path("app", &unknown)] {
        assert_eq!(
            larder.ask("GET", &path, &[("If-None-Match", &etag)]).await.status,
            404
        );
    }
}

#[tokio::test]
async fn empty_and_sha512_blobs_are_blobs() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    for blob in [Blob::of(""), Blob::of("{}"), Blob::generated_sha512(1, 700_000)] {
        upstream.put_blob("app", &blob);
        let path = blob_path("app", &blob.digest);
        for _ in 0..2 {
            let answer = larder.get(&path).await;
            answer.is_whole(&blob.bytes());
            assert_eq!(answer.header("docker-content-digest"), Some(blob.digest.as_str()));
            assert_eq!(
                answer.header("content-length"),
                Some(blob.len().to_string().as_str())
            );
        }
        assert_eq!(upstream.log().gets_of(&blob.digest), 1);
        let head = larder.head(&path).await;
        assert_eq!(
            head.header("content-length"),
            Some(blob.len().to_string().as_str())
        );
    }
}

#[tokio::test]
async fn cache_status_says_how_the_answer_came_about() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(30);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    let layer = blob_path("app", &image.layers[0].digest);
    let status = |answer: &Answer| answer.header("cache-status").unwrap_or_default().to_owned();
    let cold = status(&larder.get(&layer).await);
    assert!(
        cold.starts_with("larder") && cold.contains("fwd=") && cold.contains("miss"),
        "{cold}"
    );
    larder.until_idle().await;
    let hot = larder.get(&layer).await;
    assert!(status(&hot).contains("hit"), "{}", status(&hot));
    let tag = manifest_path("app", "1");
    assert!(status(&larder.get(&tag).await).contains("fwd="));
    let digest = larder.get(&manifest_path("app", &image.manifest.digest)).await;
    assert!(status(&digest).contains("hit"), "{}", status(&digest));
}

#[tokio::test]
async fn configured_headers_stand_on_every_answer_below_v2() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(31);
    upstream.push_tagged("app", "1", &image);
    let headers = serde_json::json!({"X-Team": ["kitchen"], "X-Content-Type-Options": ["nosniff"]});
    let larder = Builder::new(&upstream.url())
        .set("http.headers", headers)
        .start()
        .await;
    for path in [
        "/v2/",
        &manifest_path("app", "1"),
        &manifest_path("app", "none"),
        "/v2/app/tags/list",
    ] {
        let answer = larder.get(path).await;
        assert_eq!(answer.header("x-team"), Some("kitchen"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(
            answer.header("docker-distribution-api-version"),
            Some("registry/2.0"),
            "{path}"
        );
    }
}

#[tokio::test]
async fn the_root_and_the_version_check_answer_without_upstream() {
    let upstream = TestUpstream::start().await;
    upstream.refuse().await;
    let larder = Larder::start(&upstream).await;
    for method in ["GET", "HEAD"] {
        let answer = larder.ask(method, "/v2/", &[]).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(
            answer.header("docker-distribution-api-version"),
            Some("registry/2.0")
        );
    }
    assert_eq!(larder.get("/v2/").await.text().trim(), "{}");
    assert_eq!(larder.get("/").await.status, 200);
    let elsewhere = larder.get("/v1/").await;
    assert_eq!(elsewhere.status, 404);
    assert_eq!(
        elsewhere.header("docker-distribution-api-version"),
        Some("registry/2.0")
    );
    assert_eq!(elsewhere.header("x-content-type-options"), Some("nosniff"));
    let short = larder.get("/v2").await;
    assert!(
        short.status == 200 || short.header("location") == Some("/v2/"),
        "{} {:?}",
        short.status,
        short.headers
    );
    assert_eq!(upstream.log().all().len(), 0);
}

#[tokio::test]
async fn request_headers_of_sixty_kilobytes_are_read() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(32);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    let big = "x".repeat(60_000);
    larder
        .ask("GET", &manifest_path("app", "1"), &[("X-Padding", &big)])
        .await
        .is_whole(&image.manifest.bytes);
}

#[tokio::test]
async fn write_verbs_are_405_with_allow() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let digest = Blob::of("x").digest;
    for (method, path) in [
        ("POST", "/v2/app/blobs/uploads/".to_owned()),
        ("PATCH", "/v2/app/blobs/uploads/0-1".to_owned()),
        ("PUT", format!("/v2/app/blobs/uploads/0-1?digest={digest}")),
        ("PUT", manifest_path("app", "1")),
        ("DELETE", manifest_path("app", "1")),
        ("DELETE", blob_path("app", &digest)),
    ] {
        let answer = larder.ask(method, &path, &[("Content-Length", "0")]).await;
        assert_eq!(
            (answer.status, answer.error_code()),
            (405, "UNSUPPORTED".to_owned()),
            "{method} {path}"
        );
        assert!(
            answer
                .header("allow")
                .is_some_and(|allow| allow.contains("GET") && allow.contains("HEAD"))
        );
    }
    assert_eq!(upstream.log().all().len(), 0);
}
