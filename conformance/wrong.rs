//! Never a wrong byte: what does not have its digest reaches no client whole, and never the volume.

use futures::future::join_all;

use crate::client::{End, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Cut, Document, Fault, Image, OCI_MANIFEST, TestUpstream, on};

const LEN: u64 = 1_000_000;

async fn impatient(upstream: &TestUpstream) -> Larder {
    Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "300ms")
        .start()
        .await
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
        larder.until_stored(&blob.digest).await;
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
    larder.until_idle().await;
    assert_eq!(larder.data_path(&stubborn.digest).exists(), is_right);
}
