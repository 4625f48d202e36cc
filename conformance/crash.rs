//! `kill -9` at random moments: never a wrong or short answer afterwards, and no leftovers.

use std::time::Duration;

use futures::future::join_all;

use crate::client::{Download, blob_path, manifest_path};
use crate::larder::Builder;
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

#[tokio::test]
async fn fifty_fills_killed_at_random_moments_leave_no_wrong_answer_and_no_leftovers() {
    const FILLS: u64 = 50;
    let upstream = TestUpstream::start().await;
    let images: Vec<Image> = (0..FILLS / 5)
        .map(|seed| {
            let layers = (0..3)
                .map(|layer| Blob::generated(seed * 10 + layer, 400_000 + layer * 300_000))
                .collect();
            Image::oci(&format!("crash-{seed}"), layers)
        })
        .collect();
    for (number, image) in images.iter().enumerate() {
        upstream.push_tagged("app", &format!("t{number}"), image);
    }
    let paths = |number: usize, image: &Image| {
        let mut paths = vec![(
            manifest_path("app", &format!("t{number}")),
            image.manifest.bytes.to_vec(),
        )];
        paths.extend(
            image
                .blobs()
                .map(|blob| (blob_path("app", &blob.digest), blob.bytes())),
        );
        paths
    };
    let mut moments = Moments(2024);
    let mut builder = Builder::new(&upstream.url());
    for (number, image) in images.iter().enumerate() {
        let larder = builder.start().await;
        let host = larder.registry.clone();
        let wanted = paths(number, image);
        let pulls = join_all(wanted.iter().map(|(path, bytes)| {
            let host = &host;
            async move {
                let Ok(download) = Download::open(host, "GET", path, &[]).await else {
                    return;
                };
                let answer = download.rest().await;
                assert!(
                    !answer.is_complete || answer.status != 200 || answer.body == *bytes,
                    "{path}"
                );
            }
        }));
        let moment = moments.next_micros(120_000);
        let killed = async {
            tokio::time::sleep(moment).await;
            larder.kill().await
        };
        builder = futures::join!(pulls, killed).1;
    }
    upstream.fault(on("/"), Fault::Delay(Duration::ZERO));
    let larder = builder.start().await;
    larder.until("the sweep", || larder.leftovers().is_empty()).await;
    for (number, image) in images.iter().enumerate() {
        for (path, bytes) in paths(number, image) {
            larder.get(&path).await.is_whole(&bytes);
        }
    }
    upstream.refuse();
    let larder = larder.kill().await.start().await;
    for (number, image) in images.iter().enumerate() {
        for (path, bytes) in paths(number, image) {
            larder.get(&path).await.is_whole(&bytes);
        }
    }
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
