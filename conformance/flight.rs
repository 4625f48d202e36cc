//! One fetch: however many clients want a digest, upstream sends it once, and nobody waits for anybody.

use std::time::Duration;

use futures::future::join_all;

use crate::client::{Download, blob_path, manifest_path};
use crate::larder::Larder;
use crate::upstream::{Auth, Blob, Fault, Gate, Image, Role, TestUpstream, on};

const LEN: u64 = 2_000_000;

/// A cold blob that upstream sends up to byte `hold`, and then holds.
struct Held {
    upstream: TestUpstream,
    larder: Larder,
    blob: Blob,
    gate: Gate,
    path: String,
}

impl Held {
    async fn at(hold: u64) -> Self {
        let upstream = TestUpstream::start().await;
        let blob = Blob::generated(hold, LEN);
        upstream.put_blob("library/app", &blob);
        let gate = Gate::new();
        upstream.fault(on("/blobs/").method("GET"), Fault::HoldAt(hold, gate.clone()));
        let larder = crate::larder::Builder::new(&upstream.url())
            .set("larder.timeouts.idle", "15s")
            .start()
            .await;
        let path = blob_path("library/app", &blob.digest);
        Self {
            upstream,
            larder,
            blob,
            gate,
            path,
        }
    }

    /// Upstream sent the blob once: one request, each byte once.
    fn was_fetched_once(&self) {
        let log = self.upstream.log();
        assert_eq!(log.gets_of(&self.blob.digest), 1, "{}", log.lines());
        assert_eq!(log.bytes_of(&self.blob.digest), LEN);
    }
}

#[tokio::test]
async fn sixty_four_cold_clients_cause_one_token_and_one_blob_get() {
    let held = Held::at(1_000_000).await;
    held.upstream.set_auth(Auth::bearer());
    let downloads = join_all((0..64).map(|_| held.larder.open(&held.path, &[]))).await;
    held.gate.reached().await;
    held.gate.open();
    let bytes = held.blob.bytes();
    for answer in join_all(downloads.into_iter().map(Download::rest)).await {
        answer.is_whole(&bytes);
    }
    let log = held.upstream.log();
    assert_eq!(log.token_requests(), 1, "{}", log.lines());
    let paid: Vec<u16> = log
        .of("GET", &held.blob.digest)
        .map(|asked| asked.status)
        .collect();
    assert_eq!(paid, [401, 200], "{}", log.lines());
    assert_eq!(log.count("HEAD", "/"), 0, "{}", log.lines());
}

#[tokio::test]
async fn everyone_is_streamed_to_before_the_fill_ends() {
    let held = Held::at(1_000_000).await;
    let mut downloads = join_all((0..5).map(|_| held.larder.open(&held.path, &[]))).await;
    for download in &mut downloads {
        assert_eq!(
            download.read_to(900_000).await[..900_000],
            held.blob.read(0..900_000)
        );
    }
    held.gate.open();
    for answer in join_all(downloads.into_iter().map(Download::rest)).await {
        answer.is_whole(&held.blob.bytes());
    }
    held.was_fetched_once();
}

#[tokio::test]
async fn a_leader_that_leaves_at_ten_percent_stops_nothing() {
    let held = Held::at(LEN / 10).await;
    let mut leader = held.larder.open(&held.path, &[]).await;
    leader.read_to(LEN / 10 - 70_000).await;
    let follower = held.larder.open(&held.path, &[]).await;
    drop(leader);
    held.gate.open();
    follower.rest().await.is_whole(&held.blob.bytes());
    held.larder.until_stored(&held.blob.digest).await;
    held.was_fetched_once();
}

#[tokio::test]
async fn a_fill_outlives_its_only_client_and_a_retry_joins_it() {
    let held = Held::at(LEN / 10).await;
    let mut client = held.larder.open(&held.path, &[]).await;
    client.read_to(1000).await;
    drop(client);
    held.gate.reached().await;
    let retry = held.larder.open(&held.path, &[]).await;
    drop(retry);
    held.gate.open();
    held.larder.until_stored(&held.blob.digest).await;
    held.larder.get(&held.path).await.is_whole(&held.blob.bytes());
    held.was_fetched_once();
}

#[tokio::test]
async fn a_follower_that_joins_at_ninety_percent_gets_everything() {
    let held = Held::at(LEN / 10 * 9).await;
    let leader = held.larder.open(&held.path, &[]).await;
    held.gate.reached().await;
    let mut follower = held.larder.open(&held.path, &[]).await;
    follower.read_to(LEN / 10 * 8).await;
    held.gate.open();
    for answer in [leader.rest().await, follower.rest().await] {
        answer.is_whole(&held.blob.bytes());
    }
    held.was_fetched_once();
}

#[tokio::test]
async fn a_slow_reader_delays_no_one() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(1, 16 << 20);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    let mut slow = Download::open_narrow(&larder.registry, &path).await.unwrap();
    slow.read_to(1000).await;
    let bytes = blob.bytes();
    for answer in join_all((0..3).map(|_| larder.get(&path))).await {
        answer.is_whole(&bytes);
    }
    slow.rest().await.is_whole(&bytes);
    assert_eq!(upstream.log().gets_of(&blob.digest), 1);
}

#[tokio::test]
async fn a_pull_right_after_a_pull_is_a_hit() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    for seed in 0..20 {
        let blob = Blob::generated(seed, 100_000);
        upstream.put_blob("app", &blob);
        let path = blob_path("app", &blob.digest);
        for _ in 0..2 {
            larder.get(&path).await.is_whole(&blob.bytes());
        }
    }
    assert_eq!(
        upstream.log().count("GET", "/blobs/"),
        20,
        "{}",
        upstream.log().lines()
    );
}

#[tokio::test]
async fn head_during_a_fill_is_answered_at_once_and_asks_nothing() {
    let held = Held::at(LEN / 2).await;
    let leader = held.larder.open(&held.path, &[]).await;
    held.gate.reached().await;
    let answer = held.larder.head(&held.path).await;
    assert_eq!(
        (answer.status, answer.header("content-length")),
        (200, Some("2000000"))
    );
    held.gate.open();
    leader.rest().await.is_whole(&held.blob.bytes());
    held.was_fetched_once();
    assert_eq!(held.upstream.log().count("HEAD", "/"), 0);
}

#[tokio::test]
async fn a_held_blob_does_not_hold_another() {
    let held = Held::at(LEN / 2).await;
    let leader = held.larder.open(&held.path, &[]).await;
    held.gate.reached().await;
    let other = Blob::generated(77, 300_000);
    held.upstream.put_blob("library/app", &other);
    held.upstream.heal();
    held.larder
        .get(&blob_path("library/app", &other.digest))
        .await
        .is_whole(&other.bytes());
    held.gate.open();
    leader.rest().await.is_whole(&held.blob.bytes());
}

#[tokio::test]
async fn fifty_clients_of_a_cold_tag_cause_one_manifest_get() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(9);
    upstream.push_tagged("app", "1", &image);
    let gate = Gate::new();
    upstream.fault_times(1, on("/manifests/"), Fault::HoldHeaders(gate.clone()));
    let larder = Larder::start(&upstream).await;
    let path = manifest_path("app", "1");
    let pulls = join_all((0..50).map(|_| larder.get(&path)));
    let (answers, ()) = futures::join!(pulls, async {
        gate.reached().await;
        gate.open();
    });
    for answer in answers {
        answer.is_whole(&image.manifest.bytes);
    }
    let log = upstream.log();
    let (gets, heads) = (log.count("GET", "/manifests/"), log.count("HEAD", "/manifests/"));
    assert!(gets == 1 && heads <= 2, "{}", log.lines());
}

#[tokio::test]
async fn eight_open_ended_ranges_closed_early_do_not_multiply_the_traffic() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(31, 64 << 20);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    let parts = join_all((0..8_u64).map(|part| {
        let (larder, path, blob) = (&larder, &path, &blob);
        async move {
            let start = part * (8 << 20);
            let mut download = larder.open(path, &[("Range", &format!("bytes={start}-"))]).await;
            assert_eq!(download.status, 206);
            let seen = download.read_to(1 << 20).await;
            assert!(seen[..1 << 20] == blob.read(start..start + (1 << 20)));
        }
    }));
    parts.await;
    larder.until_stored(&blob.digest).await;
    // The fill, and a piece of 1 MiB for each of the seven others, are 1.11 times the blob. What a range asked for but did
    // not take still fills the buffers of its connection: mostly up to 1.21 times, on a busy machine up to 1.38 times.
    // Without the fill beside them the eight would be 4.5 times the blob.
    let bytes = upstream.log().bytes_of(&blob.digest);
    assert!(
        bytes < blob.len() * 15 / 10,
        "{bytes} bytes\n{}",
        upstream.log().lines()
    );
}

#[tokio::test]
async fn what_an_anonymous_upstream_gave_once_is_served_under_each_name_without_a_question() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(12);
    upstream.push("a", &image);
    upstream.push("b", &image);
    let larder = Larder::start(&upstream).await;
    let layer = &image.layers[0];
    larder
        .get(&blob_path("a", &layer.digest))
        .await
        .is_whole(&layer.bytes());
    upstream.refuse().await;
    larder
        .get(&blob_path("b", &layer.digest))
        .await
        .is_whole(&layer.bytes());
    assert_eq!(upstream.log().gets_of(&layer.digest), 1);
}

#[tokio::test]
async fn what_an_upstream_gave_to_credentials_is_asked_for_under_each_name_but_moved_once() {
    let upstream = TestUpstream::start().await;
    upstream.set_auth(Auth::bearer().with_credentials("me", "secret"));
    let layer = Blob::generated(13, 500_000);
    upstream.put_blob("a", &layer);
    upstream.put_blob("b", &layer);
    let larder = crate::larder::Builder::new(&upstream.url())
        .set("proxy.username", "me")
        .set("proxy.password", "secret")
        .set("larder.realms", vec![upstream.token_host()])
        .start()
        .await;
    larder
        .get(&blob_path("a", &layer.digest))
        .await
        .is_whole(&layer.bytes());
    larder
        .get(&blob_path("b", &layer.digest))
        .await
        .is_whole(&layer.bytes());
    let refused = larder.get(&blob_path("c", &layer.digest)).await;
    assert_eq!(
        (refused.status, refused.error_code()),
        (404, "BLOB_UNKNOWN".to_owned())
    );
    let log = upstream.log();
    let moved: u64 = log
        .all()
        .iter()
        .filter(|asked| asked.status == 200)
        .map(|asked| asked.sent_bytes)
        .sum();
    let tokens: u64 = log.at(Role::Token).map(|asked| asked.sent_bytes).sum();
    assert_eq!(moved - tokens, layer.len(), "{}", log.lines());
}

#[tokio::test]
async fn a_fill_that_stands_still_is_no_reason_to_refuse_others() {
    let held = Held::at(10).await;
    let leader = tokio::time::timeout(Duration::from_secs(5), held.larder.open(&held.path, &[]));
    let leader = leader.await.expect("headers come at once");
    let manifest = Image::small(14);
    held.upstream.push_tagged("library/app", "1", &manifest);
    held.larder
        .get(&manifest_path("library/app", "1"))
        .await
        .is_whole(&manifest.manifest.bytes);
    held.gate.open();
    leader.rest().await.is_whole(&held.blob.bytes());
}

#[tokio::test]
async fn fifty_cold_tags_of_a_slow_upstream_are_asked_for_side_by_side() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(15);
    upstream.push("app", &image);
    for number in 0..50 {
        upstream.tag("app", &format!("t{number}"), &image.manifest);
    }
    upstream.fault(on("/"), Fault::Delay(Duration::from_millis(300)));
    let larder = Larder::start(&upstream).await;
    let began = tokio::time::Instant::now();
    let paths: Vec<String> = (0..50)
        .map(|number| manifest_path("app", &format!("t{number}")))
        .collect();
    for answer in join_all(paths.iter().map(|path| larder.get(path))).await {
        answer.is_whole(&image.manifest.bytes);
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
