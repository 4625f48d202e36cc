//! A volume that came with wrong bytes: right in name and length, wrong in content. Nobody is told they are right.

use std::path::{Path, PathBuf};

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Image, TestUpstream};
use crate::volume::write_like_distribution;

fn data(root: &Path, digest: &str) -> PathBuf {
    let hex = digest.trim_start_matches("sha256:");
    root.join("docker/registry/v2/blobs/sha256")
        .join(&hex[..2])
        .join(hex)
        .join("data")
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(path, bytes).unwrap();
}

/// Asks until a whole answer comes, at most five times; every whole answer must be the right one.
async fn is_never_wrong(larder: &Larder, path: &str, right: &[u8]) {
    for _ in 0..5 {
        let answer = larder.get(path).await;
        if answer.status == 200 && answer.is_complete {
            return answer.is_whole(right);
        }
    }
    panic!("{path}: never whole");
}

#[tokio::test]
async fn a_flipped_byte_is_never_served_as_whole_and_is_fetched_again() {
    let upstream = TestUpstream::start().await;
    let image = Image::oci(
        "flipped",
        vec![Blob::generated(1, 50_000), Blob::generated(2, 9_000_000)],
    );
    upstream.push_tagged("app", "1", &image);
    let [small, large] = [&image.layers[0], &image.layers[1]];
    for (path, digest, right) in [
        (blob_path("app", &small.digest), &small.digest, small.bytes()),
        (blob_path("app", &large.digest), &large.digest, large.bytes()),
        (
            manifest_path("app", &image.manifest.digest),
            &image.manifest.digest,
            image.manifest.bytes.to_vec(),
        ),
        (
            manifest_path("app", "1"),
            &image.manifest.digest,
            image.manifest.bytes.to_vec(),
        ),
    ] {
        for at in [0, right.len() / 2, right.len() - 1] {
            let volume = tempfile::tempdir().unwrap();
            write_like_distribution(volume.path(), "app", "1", &image);
            let file = data(volume.path(), digest);
            flip(&file, at);
            let wrong = std::fs::read(&file).unwrap();
            upstream.reset_log();
            let larder = Builder::new(&upstream.url()).root(volume.path()).start().await;
            is_never_wrong(&larder, &path, &right).await;
            larder.until_idle().await;
            larder
                .until("the right bytes on the volume", || {
                    std::fs::read(&file).is_ok_and(|bytes| bytes == right)
                })
                .await;
            let moved = volume
                .path()
                .join("larder/quarantine")
                .join(digest.replace(':', "-"));
            match std::fs::read(moved) {
                Ok(bytes) => assert!(bytes == wrong, "{path} at {at}"),
                // The index that is being made at the start may be first to see that this is no manifest any more.
                Err(_) => assert!(
                    *digest == image.manifest.digest
                        && larder.log().contains("dropping a link to what is no manifest"),
                    "{path} at {at}: not moved away"
                ),
            }
            assert_eq!(upstream.log().gets_of(digest), 1, "{}", upstream.log().lines());
            larder.get(&path).await.is_whole(&right);
        }
    }
}

#[tokio::test]
async fn a_range_of_a_flipped_blob_is_right_too() {
    let upstream = TestUpstream::start().await;
    let image = Image::oci("flipped", vec![Blob::generated(3, 9_000_000)]);
    upstream.push_tagged("app", "1", &image);
    let layer = &image.layers[0];
    let volume = tempfile::tempdir().unwrap();
    write_like_distribution(volume.path(), "app", "1", &image);
    flip(&data(volume.path(), &layer.digest), 5_000_000);
    let larder = Builder::new(&upstream.url()).root(volume.path()).start().await;
    let answer = larder
        .range(&blob_path("app", &layer.digest), "bytes=4999990-5000009")
        .await;
    assert_eq!(answer.status, 206);
    assert!(answer.body == layer.read(4_999_990..5_000_010));
}

#[tokio::test]
async fn with_upstream_down_a_flipped_blob_is_an_error_and_not_an_answer() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(4);
    let volume = tempfile::tempdir().unwrap();
    write_like_distribution(volume.path(), "app", "1", &image);
    flip(&data(volume.path(), &image.layers[0].digest), 10);
    upstream.refuse().await;
    let larder = Builder::new(&upstream.url()).root(volume.path()).start().await;
    let answer = larder.get(&blob_path("app", &image.layers[0].digest)).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    let other = &image.layers[1];
    larder
        .get(&blob_path("app", &other.digest))
        .await
        .is_whole(&other.bytes());
}
