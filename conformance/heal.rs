//! Heal: an upstream body that breaks is resumed unseen, and a wrong one never reaches a client whole.

use std::time::Duration;

use futures::future::join_all;

use crate::client::{End, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{
    Auth, Blob, Cut, Document, Fault, Image, OCI_MANIFEST, Redirect, Role, TestUpstream, on,
};

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
            .trim_end_matches('-')
            .parse()
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
async fn wrong_bytes_end_short_are_not_stored_and_the_next_try_is_right() {
    for at in [0, LEN / 2, LEN - 1] {
        let upstream = TestUpstream::start().await;
        let blob = Blob::generated(at + 3, LEN);
        upstream.put_blob("app", &blob);
        upstream.fault(on(&blob.digest), Fault::WrongByte(at));
        let larder = impatient(&upstream).await;
        let path = blob_path("app", &blob.digest);
        let answer = larder.get(&path).await;
        assert_eq!(
            (answer.status, answer.is_complete, answer.end),
            (200, false, End::Fin)
        );
        assert!((answer.body.len() as u64) < LEN);
        assert_eq!(larder.stored_blobs(), 0);
        larder
            .until("an empty spool", || larder.leftovers().is_empty())
            .await;
        upstream.heal();
        larder.get(&path).await.is_whole(&blob.bytes());
        assert!(larder.data_path(&blob.digest).exists());
    }
}

#[tokio::test]
async fn followers_of_a_wrong_body_end_short_too() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(4, LEN);
    upstream.put_blob("app", &blob);
    upstream.fault(on(&blob.digest), Fault::WrongByte(10));
    let larder = impatient(&upstream).await;
    let path = blob_path("app", &blob.digest);
    for answer in join_all((0..10).map(|_| larder.get(&path))).await {
        assert!(
            !(answer.status == 200 && answer.is_complete),
            "{}",
            answer.body.len()
        );
    }
    assert_eq!(larder.stored_blobs(), 0);
}

#[tokio::test]
async fn a_small_wrong_body_is_an_error_and_not_an_answer() {
    let upstream = TestUpstream::start().await;
    let larder = impatient(&upstream).await;
    let blob = Blob::generated(5, 500);
    upstream.put_blob("app", &blob);
    upstream.fault(on(&blob.digest), Fault::WrongByte(499));
    let answer = larder.get(&blob_path("app", &blob.digest)).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    answer.error_code();
    assert_eq!(larder.stored_blobs(), 0);
}

#[tokio::test]
async fn bodies_too_short_or_too_long_are_never_whole() {
    let upstream = TestUpstream::start().await;
    let larder = impatient(&upstream).await;
    for (seed, fault) in [
        Fault::ShorterBy(1),
        Fault::ShorterBy(LEN / 2),
        Fault::LongerBy(1),
        Fault::LongerBy(LEN),
    ]
    .into_iter()
    .enumerate()
    {
        let blob = Blob::generated(seed as u64 + 70, LEN);
        upstream.put_blob("app", &blob);
        upstream.fault(on(&blob.digest), fault);
        let answer = larder.get(&blob_path("app", &blob.digest)).await;
        assert!(answer.status != 200 || !answer.is_complete || answer.body == blob.bytes());
        assert!(!larder.data_path(&blob.digest).exists());
        upstream.heal();
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
}

#[tokio::test]
async fn content_that_changed_between_cut_and_resume_is_never_mixed() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(6, LEN);
    upstream.put_blob("app", &blob);
    upstream.fault_times(1, on(&blob.digest).ranged(false), Fault::CutAt(LEN / 2, Cut::Fin));
    upstream.fault(on(&blob.digest).ranged(true), Fault::WrongByte(LEN - 5));
    let larder = impatient(&upstream).await;
    let answer = larder.get(&blob_path("app", &blob.digest)).await;
    assert!(!answer.is_complete);
    assert_eq!(larder.stored_blobs(), 0);
    upstream.heal();
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
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
    assert!((2..=12).contains(&tries), "{tries} tries");
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
    upstream.refuse();
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
async fn a_manifest_with_another_digest_is_refused_and_not_stored() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(11);
    upstream.push_tagged("app", "1", &image);
    let other = Document::new(OCI_MANIFEST, "{\"schemaVersion\":2}");
    upstream.fault(on("/manifests/").method("GET"), Fault::Body(other.bytes.to_vec()));
    let larder = impatient(&upstream).await;
    let answer = larder.get(&manifest_path("app", &image.manifest.digest)).await;
    assert_eq!(answer.status, 502, "{}", answer.text());
    answer.error_code();
    assert_eq!(larder.stored_blobs(), 0);
    upstream.heal();
    larder
        .get(&manifest_path("app", &image.manifest.digest))
        .await
        .is_whole(&image.manifest.bytes);
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
async fn identity_is_asked_for_and_a_compressed_body_is_never_taken_for_the_blob() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(13, 200_000);
    upstream.put_blob("app", &blob);
    upstream.fault(
        on(&blob.digest),
        Fault::Gzip {
            only_if_accepted: true,
        },
    );
    let larder = impatient(&upstream).await;
    let path = blob_path("app", &blob.digest);
    larder
        .ask("GET", &path, &[("Accept-Encoding", "gzip")])
        .await
        .is_whole(&blob.bytes());
    let log = upstream.log();
    let asked = log.of("GET", &blob.digest).next().unwrap();
    assert_eq!(asked.header("accept-encoding"), Some("identity"));

    let stubborn = Blob::generated(14, 200_000);
    upstream.put_blob("app", &stubborn);
    upstream.fault(
        on(&stubborn.digest),
        Fault::Gzip {
            only_if_accepted: false,
        },
    );
    let answer = larder.get(&blob_path("app", &stubborn.digest)).await;
    assert_eq!(answer.header("content-encoding"), None);
    let is_right = answer.status == 200 && answer.is_complete && answer.body == stubborn.bytes();
    let is_refused = answer.status >= 500 || !answer.is_complete;
    assert!(
        is_right || is_refused,
        "{} with {} bytes",
        answer.status,
        answer.body.len()
    );
    assert_eq!(larder.data_path(&stubborn.digest).exists(), is_right);
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
