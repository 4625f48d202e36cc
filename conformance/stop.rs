//! Stopping: those who download finish, those who come too late are not strung along, and the exit code is 0.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use crate::client::{Download, blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Blob, Fault, Gate, Image, TestUpstream, on};

#[tokio::test]
async fn eight_slow_clients_finish_after_sigterm_and_the_exit_code_is_0() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(1, 8 << 20);
    upstream.put_blob("app", &blob);
    let mut larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    larder.get(&path).await.is_whole(&blob.bytes());
    let mut downloads = Vec::new();
    for _ in 0..8 {
        let mut download = Download::open_narrow(&larder.registry, &path).await.unwrap();
        download.read_to(1000).await;
        downloads.push(download);
    }
    larder.terminate();
    until_refused(&larder).await;
    let bytes = blob.bytes();
    for answer in join_all(downloads.into_iter().map(Download::rest)).await {
        answer.is_whole(&bytes);
    }
    assert_eq!(larder.exit_code().await, Some(0), "{}", larder.log());
}

/// Waits until new connections are refused.
async fn until_refused(larder: &Larder) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while tokio::net::TcpStream::connect(&larder.registry).await.is_ok() {
        assert!(Instant::now() < deadline, "still accepts");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_cold_pull_under_way_finishes_too_and_is_kept() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(2, 2_000_000);
    upstream.put_blob("app", &blob);
    let gate = Gate::new();
    upstream.fault(on("/blobs/"), Fault::HoldAt(1_000_000, gate.clone()));
    let mut larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "15s")
        .start()
        .await;
    let path = blob_path("app", &blob.digest);
    let download = larder.open(&path, &[]).await;
    gate.reached().await;
    larder.terminate();
    until_refused(&larder).await;
    assert_ne!(
        larder.admin("/readyz").await.status,
        200,
        "not ready while it drains"
    );
    gate.open();
    download.rest().await.is_whole(&blob.bytes());
    assert_eq!(larder.exit_code().await, Some(0), "{}", larder.log());
    assert!(larder.data_path(&blob.digest).exists());
}

#[tokio::test]
async fn a_fill_without_clients_is_given_the_drain_time() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(3, 2_000_000);
    upstream.put_blob("app", &blob);
    let gate = Gate::new();
    upstream.fault(on("/blobs/"), Fault::HoldAt(1_000_000, gate.clone()));
    let mut larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "15s")
        .start()
        .await;
    drop(larder.open(&blob_path("app", &blob.digest), &[]).await);
    gate.reached().await;
    larder.terminate();
    until_refused(&larder).await;
    gate.open();
    assert_eq!(larder.exit_code().await, Some(0));
    assert!(larder.data_path(&blob.digest).exists());
}

#[tokio::test]
async fn an_idle_larder_stops_at_once_even_with_open_connections() {
    let upstream = TestUpstream::start().await;
    for ttl in ["168h", "0s"] {
        let mut larder = Builder::new(&upstream.url()).set("proxy.ttl", ttl).start().await;
        assert_eq!(larder.get("/v2/").await.status, 200);
        let idle = tokio::net::TcpStream::connect(&larder.registry).await.unwrap();
        let began = Instant::now();
        larder.terminate();
        assert_eq!(larder.exit_code().await, Some(0));
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
        drop(idle);
    }
}

#[tokio::test]
async fn the_drain_time_is_a_bound() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(4, 2_000_000);
    upstream.put_blob("app", &blob);
    upstream.fault(on("/blobs/"), Fault::HoldAt(1_000_000, Gate::new()));
    let builder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "1m")
        .set("http.draintimeout", "700ms");
    let mut larder = builder.start().await;
    let download = larder.open(&blob_path("app", &blob.digest), &[]).await;
    let began = Instant::now();
    larder.terminate();
    assert_eq!(larder.exit_code().await, Some(0), "{}", larder.log());
    let took = began.elapsed();
    assert!(
        took > Duration::from_millis(600) && took < Duration::from_secs(4),
        "{took:?}"
    );
    assert!(!download.rest().await.is_complete);
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(5, 2_000_000);
    upstream.put_blob("app", &blob);
    upstream.fault(on("/blobs/"), Fault::HoldAt(1_000_000, Gate::new()));
    let mut larder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "1m")
        .start()
        .await;
    let _download = larder.open(&blob_path("app", &blob.digest), &[]).await;
    larder.terminate();
    until_refused(&larder).await;
    let began = Instant::now();
    larder.terminate();
    larder.exit_code().await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_unfinished_fill_leaves_nothing_after_the_stop() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(6, 2_000_000);
    upstream.put_blob("app", &blob);
    upstream.fault_times(1, on("/blobs/"), Fault::HoldAt(1_000_000, Gate::new()));
    let builder = Builder::new(&upstream.url())
        .set("larder.timeouts.idle", "1m")
        .set("http.draintimeout", "100ms");
    let larder = builder.start().await;
    let download = larder.open(&blob_path("app", &blob.digest), &[]).await;
    let larder = larder.restart().await;
    drop(download);
    larder
        .until("an empty spool", || larder.leftovers().is_empty())
        .await;
    assert_eq!(larder.stored_blobs(), 0);
    larder
        .get(&blob_path("app", &blob.digest))
        .await
        .is_whole(&blob.bytes());
}

#[tokio::test]
async fn what_was_pulled_before_a_stop_is_there_after_it() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(7);
    upstream.push_tagged("app", "1", &image);
    let larder = Larder::start(&upstream).await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    let larder = larder.restart().await;
    upstream.refuse().await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
}
