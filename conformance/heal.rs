//! Heal: an upstream body that breaks is resumed unseen.

use std::time::Duration;

use futures::future::join_all;

use crate::client::{End, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Auth, Blob, Cut, Fault, Gate, Image, Redirect, Role, TestUpstream, on};

const LEN: u64 = 1_000_000;

async fn impatient(upstream: &TestUpstream) -> Larder {
    Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "300ms")
        .start()
        .await
}

#[tokio::test]
async fn cuts_of_each_kind_at_each_place_are_healed_unseen() {
    let upstream = TestUpstream::start().await;
    let larder = impatient(&upstream).await;
    let mut pulls = Vec::new();
    for (how, seed) in [(Cut::Fin, 100), (Cut::Rst, 200), (Cut::Stall, 300)] {
        for at in [0, 1, LEN / 2, LEN - 1] {
            let blob = Blob::generated(seed + at, LEN);
            upstream.put_blob("app", &blob);
            upstream.fault_times(1, on(&blob.digest), Fault::CutAt(at, how));
            let larder = &larder;
            pulls.push(async move {
                let answer = larder.get(&blob_path("app", &blob.digest)).await;
                (how, at, blob, answer)
            });
        }
    }
    for (how, at, blob, answer) in join_all(pulls).await {
        answer.is_whole(&blob.bytes());
        let log = upstream.log();
        assert_eq!(log.gets_of(&blob.digest), 2, "{how:?} at {at}\n{}", log.lines());
        let resumed = log
            .of("GET", &blob.digest)
            .nth(1)
            .and_then(|asked| asked.header("range"))
            .unwrap_or("");
        let first: u64 = resumed
            .trim_start_matches("bytes=")
            .split('-')
            .next()
            .and_then(|first| first.parse().ok())
            .unwrap_or(0);
        if how == Cut::Rst {
            assert!(first <= at, "{resumed}");
        } else {
            assert_eq!(first, at, "{how:?} resumes at the byte");
        }
        assert_eq!(log.bytes_of(&blob.digest), at + LEN - first, "{how:?} at {at}");
    }
}

#[tokio::test]
async fn three_cuts_in_a_row_are_healed() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(1, LEN);
    upstream.put_blob("app", &blob);
    for how in [Cut::Fin, Cut::Rst, Cut::Stall] {
        upstream.fault_times(1, on(&blob.digest), Fault::CutAt(200_000, how));
        upstream.fault_after(1, 1, on(&blob.digest), Fault::CutAt(LEN, Cut::Fin));
    }
    let larder = impatient(&upstream).await;
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
}

#[tokio::test]
async fn a_refused_resume_starts_again_and_skips() {
    let upstream = TestUpstream::start().await;
    let larder = impatient(&upstream).await;
    let status = |code| Fault::Status(code, vec![], "{}".to_owned());
    let elsewhere = Fault::Header("Content-Range", Some("bytes 7-999999/1000000".to_owned()));
    let mut pulls = Vec::new();
    for (seed, refusal) in [
        Fault::IgnoreRange,
        status(400),
        status(416),
        status(501),
        elsewhere,
    ]
    .into_iter()
    .enumerate()
    {
        let blob = Blob::generated(seed as u64 + 50, LEN);
        upstream.put_blob("app", &blob);
        upstream.fault_times(1, on(&blob.digest).ranged(false), Fault::CutAt(LEN / 2, Cut::Fin));
        upstream.fault(on(&blob.digest).ranged(true), refusal);
        let larder = &larder;
        pulls.push(async move { (larder.get(&blob_path("app", &blob.digest)).await, blob) });
    }
    for (answer, blob) in join_all(pulls).await {
        answer.is_whole(&blob.bytes());
    }
}

#[tokio::test]
async fn a_resume_that_does_not_tell_the_whole_length_is_taken() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(2, LEN);
    upstream.put_blob("app", &blob);
    upstream.fault_times(1, on(&blob.digest).ranged(false), Fault::CutAt(LEN / 2, Cut::Fin));
    let range = format!("bytes {}-{}/*", LEN / 2, LEN - 1);
    upstream.fault(
        on(&blob.digest).ranged(true),
        Fault::Header("Content-Range", Some(range)),
    );
    let larder = impatient(&upstream).await;
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
    assert_eq!(upstream.log().bytes_of(&blob.digest), LEN);
}

#[tokio::test]
async fn an_upstream_that_stays_broken_makes_a_short_body_and_no_error_in_it() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(7, LEN);
    upstream.put_blob("app", &blob);
    upstream.fault_times(1, on(&blob.digest), Fault::CutAt(LEN / 2, Cut::Fin));
    upstream.fault(on(&blob.digest).ranged(true), Fault::Drop(Cut::Fin));
    let larder = impatient(&upstream).await;
    let answer = larder.get(&blob_path("app", &blob.digest)).await;
    assert_eq!(
        (answer.status, answer.is_complete, answer.end),
        (200, false, End::Fin)
    );
    let seen = answer.body.len() as u64;
    assert!(seen <= LEN / 2 && answer.body == blob.read(0..seen), "{seen}");
    let tries = upstream.log().gets_of(&blob.digest);
    assert!((2..=20).contains(&tries), "{tries} tries");
    larder
        .until("an empty spool", || larder.leftovers().is_empty())
        .await;
}

#[tokio::test]
async fn an_upstream_that_restarts_in_mid_body_is_picked_up_again() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(8, LEN);
    upstream.put_blob("app", &blob);
    let gate = crate::upstream::Gate::new();
    upstream.fault_times(1, on(&blob.digest), Fault::HoldAt(LEN / 2, gate.clone()));
    let larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "10s")
        .start()
        .await;
    let download = larder.open(&blob_path("app", &blob.digest), &[]).await;
    gate.reached().await;
    upstream.refuse().await;
    upstream.come_back();
    download.rest().await.is_whole(&blob.bytes());
}

#[tokio::test]
async fn a_token_that_dies_in_mid_body_is_replaced_for_the_resume() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(9, LEN);
    upstream.put_blob("app", &blob);
    upstream.set_auth(Auth {
        uses: Some(1),
        ..Auth::bearer()
    });
    upstream.fault_after(1, 1, on(&blob.digest), Fault::CutAt(LEN / 2, Cut::Fin));
    let larder = impatient(&upstream).await;
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
    let statuses: Vec<u16> = upstream
        .log()
        .of("GET", &blob.digest)
        .map(|asked| asked.status)
        .collect();
    assert_eq!(statuses, [401, 200, 401, 206]);
    assert_eq!(upstream.log().token_requests(), 2);
}

#[tokio::test]
async fn a_signed_url_that_expired_is_asked_for_again() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(10, LEN);
    upstream.put_blob("app", &blob);
    upstream.fault(on("/blobs/"), Fault::Redirect(307, Redirect::Cdn));
    upstream.fault_times(1, on(&blob.digest).at(Role::Cdn), Fault::CutAt(LEN / 2, Cut::Fin));
    upstream.fault_after(
        0,
        1,
        on(&blob.digest).at(Role::Cdn).ranged(true),
        Fault::Status(403, vec![], String::new()),
    );
    let larder = impatient(&upstream).await;
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
}

#[tokio::test]
async fn a_pause_shorter_than_the_idle_timeout_is_only_a_pause() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(11, LEN);
    upstream.put_blob("app", &blob);
    upstream.fault(on(&blob.digest), Fault::Rate(LEN));
    let larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "500ms")
        .start()
        .await;
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
    assert_eq!(
        upstream.log().gets_of(&blob.digest),
        1,
        "there is no total timeout"
    );
}

#[tokio::test]
async fn a_pause_longer_than_the_idle_timeout_is_healed_by_a_range() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(17, LEN);
    upstream.put_blob("app", &blob);
    let gate = Gate::new();
    upstream.fault_times(1, on(&blob.digest), Fault::HoldAt(LEN / 2, gate.clone()));
    let larder = impatient(&upstream).await;
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
    gate.open();
    let log = upstream.log();
    let ranges: Vec<_> = log
        .of("GET", &blob.digest)
        .map(|asked| asked.header("range"))
        .collect();
    assert_eq!(ranges, [None, Some("bytes=500000-999999")], "{}", log.lines());
    assert_eq!(log.bytes_of(&blob.digest), LEN, "no byte moved twice");
    larder.until_stored(&blob.digest).await;
}

#[tokio::test]
async fn a_manifest_that_is_cut_is_fetched_again() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(12);
    upstream.push_tagged("app", "1", &image);
    for how in [Cut::Fin, Cut::Rst] {
        upstream.fault_times(1, on("/manifests/").method("GET"), Fault::CutAt(20, how));
    }
    let larder = impatient(&upstream).await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
}

#[tokio::test]
async fn a_body_without_a_length_is_served_and_stored_whole() {
    let upstream = TestUpstream::start().await;
    let larder = impatient(&upstream).await;
    for (seed, fault) in [Fault::NoContentLength, Fault::Chunked].into_iter().enumerate() {
        let blob = Blob::generated(seed as u64 + 90, LEN);
        upstream.put_blob("app", &blob);
        upstream.fault(on(&blob.digest), fault);
        let path = blob_path("app", &blob.digest);
        larder.get(&path).await.is_whole(&blob.bytes());
        let hot = larder.get(&path).await;
        hot.is_whole(&blob.bytes());
        assert_eq!(hot.header("content-length"), Some("1000000"));
        assert_eq!(larder.head(&path).await.header("content-length"), Some("1000000"));
        assert_eq!(upstream.log().bytes_of(&blob.digest), LEN);
    }
}

#[tokio::test]
async fn an_established_connection_that_freezes_costs_one_timeout_only() {
    let upstream = TestUpstream::start().await;
    upstream.push_tagged("app", "1", &Image::small(15));
    let larder = Builder::new(&upstream.url())
        .set("larder.timeouts.connect", "500ms")
        .set("larder.timeouts.header", "700ms")
        .start()
        .await;
    assert_eq!(larder.get(&manifest_path("app", "1")).await.status, 200);
    upstream.fault_times(1, on("/blobs/"), Fault::BlackHole);
    let blob = Blob::generated(16, 1000);
    upstream.put_blob("app", &blob);
    let began = tokio::time::Instant::now();
    let first = larder.get(&blob_path("app", &blob.digest)).await;
    assert!(matches!(first.status, 200 | 504), "{}", first.status);
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
