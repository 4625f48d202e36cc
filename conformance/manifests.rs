//! Manifests of each kind: passed on byte for byte, under the right type, whatever upstream calls them.

use crate::client::{blob_path, manifest_path};
use crate::larder::Larder;
use crate::upstream::{
    Blob, DOCKER_LIST, DOCKER_MANIFEST, Document, Fault, Image, OCI_INDEX, OCI_MANIFEST, TestUpstream,
    big_manifest, index_of, manifest_without_media_type, on,
};

#[tokio::test]
async fn a_digest_that_upstream_does_not_name_is_computed() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(4);
    upstream.push_tagged("app", "1", &image);
    upstream.fault(on("/manifests/"), Fault::Header("Docker-Content-Digest", None));
    upstream.fault(on("/manifests/"), Fault::Header("ETag", None));
    let larder = Larder::start(&upstream).await;
    for method in ["HEAD", "GET", "HEAD"] {
        let answer = larder.ask(method, &manifest_path("app", "1"), &[]).await;
        assert_eq!(
            answer.header("docker-content-digest"),
            Some(image.manifest.digest.as_str()),
            "{method}"
        );
    }
}

#[tokio::test]
async fn where_upstream_refuses_head_of_a_tag_a_get_answers() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(7);
    upstream.push_tagged("app", "1", &image);
    upstream.fault(
        on("/manifests/").method("HEAD"),
        Fault::Status(405, vec![], String::new()),
    );
    let larder = Larder::start(&upstream).await;
    for _ in 0..2 {
        let head = larder.head(&manifest_path("app", "1")).await;
        assert_eq!(
            (head.status, head.header("content-type")),
            (200, Some(OCI_MANIFEST))
        );
        larder
            .get(&manifest_path("app", "1"))
            .await
            .is_whole(&image.manifest.bytes);
    }
}

#[tokio::test]
async fn accept_never_decides() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(9);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    let path = manifest_path("app", "1");
    let lines: [&[(&str, &str)]; 6] = [
        &[],
        &[("Accept", "*/*")],
        &[("Accept", DOCKER_MANIFEST)],
        &[("Accept", DOCKER_LIST), ("Accept", OCI_INDEX)],
        &[("Accept", OCI_MANIFEST), ("Accept", "application/json;q=0.1")],
        &[("Accept-Encoding", "gzip, zstd, br")],
    ];
    for headers in lines {
        let answer = larder.ask("GET", &path, headers).await;
        answer.is_whole(&image.manifest.bytes);
        assert_eq!(answer.header("content-encoding"), None);
    }
    assert_eq!(
        upstream.log().count("GET", "/manifests/"),
        1,
        "the stored manifest does not depend on Accept"
    );
    let log = upstream.log();
    let accept = log
        .of("GET", "/manifests/")
        .next()
        .unwrap()
        .header("accept")
        .unwrap_or_default()
        .to_owned();
    for kind in [OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST] {
        assert!(accept.contains(kind), "{accept}");
    }
}

#[tokio::test]
async fn manifests_of_each_kind_pass_unchanged() {
    let upstream = TestUpstream::start().await;
    let (oci, docker) = (Image::small(10), Image::docker("d", vec![Blob::generated(1, 10)]));
    upstream.push("app", &oci);
    upstream.push("app", &docker);
    let kinds = [
        (oci.manifest.clone(), OCI_MANIFEST),
        (docker.manifest.clone(), DOCKER_MANIFEST),
        (index_of(OCI_INDEX, &[&oci.manifest, &docker.manifest]), OCI_INDEX),
        (index_of(DOCKER_LIST, &[&docker.manifest]), DOCKER_LIST),
        (manifest_without_media_type(), OCI_MANIFEST),
        (big_manifest(3_900_000), OCI_MANIFEST),
        (
            Document::new("application/vnd.custom+json", "{\"anything\": [1, 2 ,3]}\n"),
            "application/vnd.custom+json",
        ),
        (
            Image::artifact(&oci.manifest, "application/vnd.example.sbom", "hello").manifest,
            OCI_MANIFEST,
        ),
    ];
    let mut larder = Larder::start(&upstream).await;
    for is_hot in [false, true] {
        for (number, (document, media_type)) in kinds.iter().enumerate() {
            let tag = format!("kind-{number}");
            upstream.tag("app", &tag, document);
            for reference in [tag.as_str(), &document.digest] {
                let answer = larder.get(&manifest_path("app", reference)).await;
                answer.is_whole(&document.bytes);
                assert_eq!(
                    answer.header("content-type"),
                    Some(*media_type),
                    "{number} hot: {is_hot}"
                );
            }
        }
        larder = larder.restart().await;
    }
}

#[tokio::test]
async fn a_media_type_that_says_nothing_gives_way_to_the_body() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let generic = [
        Some("application/vnd.oci.image.manifest.v1+json; charset=utf-8"),
        Some("application/octet-stream"),
        Some("text/plain; charset=utf-8"),
        Some("application/json"),
        None,
    ];
    for (seed, content_type) in generic.into_iter().enumerate() {
        let image = Image::small(seed as u64 + 20);
        upstream.push_tagged("app", &format!("t{seed}"), &image);
        upstream.fault(
            on("/manifests/"),
            Fault::Header("Content-Type", content_type.map(str::to_owned)),
        );
        let answer = larder.get(&manifest_path("app", &format!("t{seed}"))).await;
        answer.is_whole(&image.manifest.bytes);
        assert_eq!(
            answer.header("content-type"),
            Some(OCI_MANIFEST),
            "from {content_type:?}"
        );
        upstream.heal();
    }
}

#[tokio::test]
async fn a_manifest_past_the_limit_is_refused() {
    let upstream = TestUpstream::start().await;
    let huge = big_manifest(9 << 20);
    upstream.tag("app", "huge", &huge);
    let larder = Larder::start(&upstream).await;
    let answer = larder.get(&manifest_path("app", "huge")).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    assert_eq!(larder.stored_blobs(), 0);
}

#[tokio::test]
async fn a_manifest_is_no_blob() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(33);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    assert_eq!(larder.get(&manifest_path("app", "1")).await.status, 200);
    for method in ["HEAD", "GET"] {
        let answer = larder
            .ask(method, &blob_path("app", &image.manifest.digest), &[])
            .await;
        assert_eq!(answer.status, 404, "{method}");
    }
}
