//! `kill -9` at random moments: never a wrong or short answer afterwards, and no leftovers.

use std::time::Duration;

use futures::future::join_all;

use crate::client::{Download, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Fault, Image, TestUpstream, on};

/// The moments are random, but the same in each run: a linear congruential generator.
struct Moments(u64);

impl Moments {
    fn next_micros(&mut self, below: u64) -> Duration {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Duration::from_micros((self.0 >> 33) % below)
    }
}

/// What round `number` pulls: paths and the bytes that belong there.
fn pieces(number: usize, image: &Image) -> Vec<(String, Vec<u8>)> {
    let mut pieces = vec![(
        manifest_path("app", &format!("t{number}")),
        image.manifest.bytes.to_vec(),
    )];
    pieces.extend(
        image
            .blobs()
            .map(|blob| (blob_path("app", &blob.digest), blob.bytes())),
    );
    pieces
}

/// Asks for one piece of a larder that may die meanwhile: whatever arrives whole must be right.
async fn ask_the_dying(host: &str, path: &str, bytes: &[u8]) {
    if let Ok(download) = Download::open(host, "GET", path, &[]).await {
        let answer = download.rest().await;
        let is_whole = answer.status == 200 && answer.is_complete;
        assert!(
            !is_whole || answer.body == bytes,
            "{path}: {} wrong bytes",
            answer.body.len()
        );
    }
}

#[tokio::test]
async fn fifty_fills_killed_at_random_moments_leave_no_wrong_answer_and_no_leftovers() {
    let upstream = TestUpstream::start().await;
    let images: Vec<Image> = (0..50)
        .map(|seed| {
            Image::oci(
                &format!("crash-{seed}"),
                vec![Blob::generated(seed, 300_000 + seed * 10_000)],
            )
        })
        .collect();
    for (number, image) in images.iter().enumerate() {
        upstream.push_tagged("app", &format!("t{number}"), image);
    }
    upstream.fault(on("/blobs/"), Fault::Rate(20_000_000));
    let mut moments = Moments(2024);
    let mut builder = Builder::new(&upstream.url());
    for (number, image) in images.iter().enumerate() {
        let larder = builder.start().await;
        let host = larder.registry.clone();
        let pieces = pieces(number, image);
        let pulls = join_all(
            pieces
                .iter()
                .map(|(path, bytes)| ask_the_dying(&host, path, bytes)),
        );
        let moment = moments.next_micros(60_000);
        let killed = async {
            tokio::time::sleep(moment).await;
            larder.kill().await
        };
        builder = futures::join!(pulls, killed).1;
    }
    upstream.heal();
    let larder = builder.start().await;
    larder.until("the sweep", || larder.leftovers().is_empty()).await;
    pull_all(&larder, &images).await;
    upstream.refuse().await;
    let larder = larder.kill().await.start().await;
    pull_all(&larder, &images).await;
}

async fn pull_all(larder: &Larder, images: &[Image]) {
    for (number, image) in images.iter().enumerate() {
        for (path, bytes) in pieces(number, image) {
            larder.get(&path).await.is_whole(&bytes);
        }
    }
    larder.until_idle().await;
}

#[tokio::test]
async fn a_kill_in_mid_fill_shows_nothing_partial() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(999, 3_000_000);
    upstream.put_blob("app", &blob);
    let gate = crate::upstream::Gate::new();
    upstream.fault_times(1, on("/blobs/"), Fault::HoldAt(2_000_000, gate.clone()));
    let larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "15s")
        .start()
        .await;
    let path = blob_path("app", &blob.digest);
    let download = larder.open(&path, &[]).await;
    gate.reached().await;
    assert_eq!(larder.stored_blobs(), 0);
    let larder = larder.kill().await.start().await;
    drop(download);
    larder.until("the sweep", || larder.leftovers().is_empty()).await;
    assert_eq!(larder.stored_blobs(), 0);
    larder.get(&path).await.is_whole(&blob.bytes());
}
