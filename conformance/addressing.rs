//! Which upstream is meant: by `ns`, by the host before the name, or by default; and by which way it is reached.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Image, TestUpstream};

#[tokio::test]
async fn with_one_upstream_ns_and_unknown_query_keys_say_nothing() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("library/app", "1", &image);
    let larder = Larder::start(&upstream).await;
    for query in [
        "ns=docker.io",
        "ns=registry.example.test%3A5443",
        "ns=",
        "trace=1&x",
    ] {
        let path = format!("{}?{query}", manifest_path("library/app", "1"));
        larder.get(&path).await.is_whole(&image.manifest.bytes);
    }
    assert!(
        upstream.log().all().iter().all(|asked| asked.query.is_empty()),
        "{}",
        upstream.log().lines()
    );
    assert_eq!(
        upstream.log().gets_of(&image.manifest.digest) + upstream.log().count("GET", "/manifests/1"),
        1
    );
}

/// Two upstreams that hold different images under one name, and a larder in front of both.
async fn two() -> ([TestUpstream; 2], [Image; 2], Larder) {
    let upstreams = [TestUpstream::start().await, TestUpstream::start().await];
    let images = [Image::small(2), Image::small(3)];
    for (upstream, image) in upstreams.iter().zip(&images) {
        upstream.push_tagged("team/app", "1", image);
    }
    let list = json!([
        {"name": "one.example", "remoteurl": upstreams[0].url(), "aliases": ["eins.example"]},
        {"name": "two.example:5443", "remoteurl": upstreams[1].url()},
    ]);
    let larder = Builder::new("unused")
        .set("proxy", json!({"ttl": "168h"}))
        .set("larder.upstreams", list)
        .set("larder.defaultupstream", "one.example")
        .start()
        .await;
    (upstreams, images, larder)
}

#[tokio::test]
async fn ns_prefix_and_default_choose_among_many() {
    let (upstreams, images, larder) = two().await;
    let [one, two] = &images;
    for (path, image) in [
        ("/v2/team/app/manifests/1", one),
        ("/v2/team/app/manifests/1?ns=one.example", one),
        ("/v2/team/app/manifests/1?ns=ONE.Example:443", one),
        ("/v2/team/app/manifests/1?ns=eins.example", one),
        ("/v2/team/app/manifests/1?ns=two.example%3A5443", two),
        ("/v2/one.example/team/app/manifests/1", one),
        ("/v2/eins.example/team/app/manifests/1", one),
        ("/v2/two.example:5443/team/app/manifests/1", two),
        ("/two.example:5443/v2/team/app/manifests/1", two),
    ] {
        let answer = larder.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.is_whole(&image.manifest.bytes);
        let sent = path.split_once("ns=").map(|(_, ns)| ns.replace("%3A", ":"));
        assert_eq!(answer.header("oci-namespace"), sent.as_deref(), "{path}");
    }
    for (upstream, image) in upstreams.iter().zip(&images) {
        let log = upstream.log();
        let gets = log.count("GET", "/manifests/1") + log.gets_of(&image.manifest.digest);
        assert_eq!(gets, 1, "one fetch, however it is addressed\n{}", log.lines());
        assert!(
            log.all()
                .iter()
                .all(|asked| asked.query.is_empty() && asked.path.starts_with("/v2/team/app/"))
        );
    }
    let hosts: BTreeSet<String> = larder
        .files()
        .keys()
        .filter_map(|path| path.strip_prefix("docker/registry/v2/repositories/"))
        .map(|path| path.split("/team/app/").next().unwrap_or_default().to_owned())
        .collect();
    assert_eq!(
        hosts,
        ["one.example", "two.example_5443"].map(str::to_owned).into()
    );
}

#[tokio::test]
async fn an_unknown_ns_is_404_and_never_dialled() {
    let (_upstreams, _, larder) = two().await;
    let stranger = TestUpstream::start().await;
    let host = stranger.url().replace("http://", "");
    for ns in [host.as_str(), "three.example", "localhost", "two.example"] {
        let answer = larder
            .get(&format!("/v2/team/app/manifests/1?ns={}", ns.replace(':', "%3A")))
            .await;
        assert_eq!(
            (answer.status, answer.error_code()),
            (404, "NAME_UNKNOWN".to_owned()),
            "{ns}"
        );
    }
    assert_eq!(stranger.log().all().len(), 0);
}

#[tokio::test]
async fn links_keep_the_way_the_client_came() {
    let (upstreams, images, larder) = two().await;
    for number in 0..5 {
        upstreams[1].tag("team/app", &format!("t{number}"), &images[1].manifest);
    }
    for path in [
        "/v2/team/app/tags/list?n=2&ns=two.example%3A5443",
        "/v2/two.example:5443/team/app/tags/list?n=2",
    ] {
        let mut seen: Vec<Value> = Vec::new();
        let mut next = path.to_owned();
        for _ in 0..10 {
            let answer = larder.get(&next).await;
            assert_eq!(answer.status, 200, "{next}: {}", answer.text());
            seen.extend(answer.json()["tags"].as_array().unwrap().clone());
            let Some(link) = answer.header("link") else { break };
            next = link.trim_start_matches('<').split('>').next().unwrap().to_owned();
        }
        assert_eq!(seen, ["1", "t0", "t1", "t2", "t3", "t4"], "{path}");
    }
}

#[tokio::test]
async fn the_proxy_of_the_environment_is_used_and_no_proxy_keeps_from_it() {
    let proxy = TestUpstream::start().await;
    let image = Image::small(4);
    proxy.push_tagged("app", "1", &image);
    let builder = || Builder::new("http://registry.invalid").env("HTTP_PROXY", &proxy.url());
    let larder = builder().start().await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    larder
        .get(&blob_path("app", &image.config.digest))
        .await
        .is_whole(&image.config.bytes());
    assert_eq!(proxy.log().gets_of(&image.config.digest), 1);
    proxy.reset_log();
    let larder = builder().env("NO_PROXY", "registry.invalid").start().await;
    assert_eq!(larder.get(&manifest_path("app", "1")).await.status, 502);
    assert_eq!(proxy.log().all().len(), 0);
}
