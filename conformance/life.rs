//! Life and death of what is cached, by HTTP: distribution's known cases, each by name, and the bound.

use std::time::Duration;

use tokio::time::Instant;

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Image, TestUpstream};

async fn pull(larder: &Larder, repository: &str, tag: &str, image: &Image) {
    larder
        .get(&manifest_path(repository, tag))
        .await
        .is_whole(&image.manifest.bytes);
    for blob in image.blobs() {
        larder
            .get(&blob_path(repository, &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
}

/// The bytes that blobs and manifests take on the volume.
fn stored_bytes(larder: &Larder) -> u64 {
    let files = larder.files().into_iter();
    files
        .filter(|(path, _)| path.ends_with("/data"))
        .map(|(_, size)| size)
        .sum()
}

fn has_repository(larder: &Larder, repository: &str) -> bool {
    let part = format!("/repositories/{repository}/");
    larder.files().keys().any(|path| path.contains(&part))
}

fn is_empty(larder: &Larder) -> bool {
    !larder
        .files()
        .keys()
        .any(|path| path.starts_with("docker/") || path.contains("/docker/"))
}

#[tokio::test]
async fn distribution_4191_a_layer_that_two_images_share_outlives_the_first() {
    let upstream = TestUpstream::start().await;
    let shared = Blob::generated(1, 200_000);
    let one = Image::oci("one", vec![shared.clone(), Blob::generated(2, 100_000)]);
    let two = Image::oci("two", vec![shared, Blob::generated(3, 100_000)]);
    upstream.push_tagged("a", "1", &one);
    upstream.push_tagged("b", "1", &two);
    let larder = Builder::new(&upstream.url()).set("proxy.ttl", "3s").start().await;
    pull(&larder, "a", "1", &one).await;
    let began = Instant::now();
    while has_repository(&larder, "a") || began.elapsed() < Duration::from_secs(2) {
        assert!(began.elapsed() < Duration::from_secs(20), "`a` never expires");
        pull(&larder, "b", "1", &two).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    upstream.refuse().await;
    pull(&larder, "b", "1", &two).await;
}

#[tokio::test]
async fn distribution_4249_a_ttl_that_is_turned_on_later_reclaims_everything() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(4);
    upstream.push_tagged("app", "1", &image);
    let larder = Builder::new(&upstream.url())
        .set("proxy.ttl", "0s")
        .set("storage.delete.enabled", false)
        .start()
        .await;
    pull(&larder, "app", "1", &image).await;
    larder.until_idle().await;
    let builder = larder.stop().await.set("proxy.ttl", "1s");
    let larder = builder.start().await;
    larder.until("everything expires", || is_empty(&larder)).await;
    assert!(
        larder.log().contains("storage.delete.enabled"),
        "{}",
        larder.log()
    );
}

#[tokio::test]
async fn distribution_2374_damaged_state_is_no_reason_to_lose_or_refuse_anything() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(5);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    pull(&larder, "app", "1", &image).await;
    larder.until_idle().await;
    let state = larder.root().join("scheduler-state.json");
    let mut builder = larder.stop().await;
    let written: serde_json::Value = serde_json::from_slice(&std::fs::read(&state).unwrap()).unwrap();
    let key = format!("app@{}", image.manifest.digest);
    assert_eq!(written[&key]["Key"], key);
    assert_eq!(written[&key]["EntryType"], 1);
    upstream.refuse().await;
    for damage in ["", "{", "\u{0}\u{1}\u{2}"] {
        std::fs::write(&state, damage).unwrap();
        let larder = builder.start().await;
        pull(&larder, "app", "1", &image).await;
        builder = larder.kill().await;
    }
}

#[tokio::test]
async fn distribution_4659_what_is_used_does_not_expire() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(6);
    upstream.push_tagged("app", "1", &image);
    let larder = Builder::new(&upstream.url()).set("proxy.ttl", "3s").start().await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        pull(&larder, "app", "1", &image).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    for blob in image.blobs() {
        assert_eq!(upstream.log().gets_of(&blob.digest), 1);
    }
    larder
        .until("what is no longer used expires", || is_empty(&larder))
        .await;
}

#[tokio::test]
async fn the_bound_is_kept_and_no_pull_fails_at_it() {
    const LIMIT: u64 = 4_000_000;
    const SIZE: u64 = 700_000;
    let upstream = TestUpstream::start().await;
    let images: Vec<Image> = (0..20)
        .map(|seed| Image::oci(&format!("bound-{seed}"), vec![Blob::generated(100 + seed, SIZE)]))
        .collect();
    let larder = Builder::new(&upstream.url())
        .set("larder.maxsize", LIMIT.to_string())
        .start()
        .await;
    for (number, image) in images.iter().enumerate() {
        let tag = format!("t{number}");
        upstream.push_tagged("app", &tag, image);
        pull(&larder, "app", &tag, image).await;
        let stored = stored_bytes(&larder);
        assert!(
            stored <= LIMIT + SIZE + 10_000,
            "{stored} bytes after image {number}"
        );
    }
    larder
        .until("the collector has made room", || stored_bytes(&larder) <= LIMIT)
        .await;
    assert!(stored_bytes(&larder) > LIMIT / 2);
    assert!(larder.metrics().await["registry_proxy_evictions_total"] >= 1.0);
}

#[tokio::test]
async fn an_index_that_is_lost_or_damaged_costs_nothing() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(7);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    pull(&larder, "app", "1", &image).await;
    larder.until_idle().await;
    let before = larder.files();
    let index = larder.root().join("larder/index");
    let mut builder = larder.stop().await;
    upstream.refuse().await;
    for is_lost in [true, false] {
        if is_lost {
            std::fs::remove_dir_all(&index).unwrap();
        } else {
            std::fs::write(index.join("db"), vec![0xa5; 700_000]).unwrap();
        }
        let larder = builder.start().await;
        pull(&larder, "app", "1", &image).await;
        larder
            .until("the rebuild", || {
                larder.log().contains("the index agrees with the files")
            })
            .await;
        pull(&larder, "app", "1", &image).await;
        let of_registry = |files: &std::collections::BTreeMap<String, u64>| -> Vec<String> {
            files
                .keys()
                .filter(|path| path.contains("docker/"))
                .cloned()
                .collect()
        };
        assert_eq!(of_registry(&larder.files()), of_registry(&before));
        assert!(larder.metrics().await["registry_proxy_roots"] >= 1.0);
        builder = larder.stop().await;
    }
}
