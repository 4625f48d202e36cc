//! Memory that does not grow with the size of a blob or the slowness of a client.
//!
//! The bounds are those of a release: run the tests with `LARDER_BINARY` naming one, and they are held against `VmHWM`.
//! The development build has three times the code to map, so for it the pages of files do not count.

use futures::future::join_all;

use crate::client::{Download, blob_path};
use crate::larder::Larder;
use crate::upstream::{Blob, TestUpstream};

const MIB_IN_KIB: u64 = 1024;

fn is_below(larder: &Larder, mib: u64) {
    let most = larder.memory_kib("VmHWM:");
    let code = if std::env::var_os("LARDER_BINARY").is_some() {
        0
    } else {
        larder.memory_kib("RssFile:")
    };
    assert!(
        most - code < mib * MIB_IN_KIB,
        "VmHWM {most} KiB, of files {code} KiB, bound {mib} MiB"
    );
}

#[tokio::test]
async fn an_idle_larder_stays_under_20_mib() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    assert_eq!(larder.get("/v2/").await.status, 200);
    is_below(&larder, 20);
}

#[tokio::test]
async fn a_hundred_slow_readers_of_64_mib_stay_under_48_mib() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(1, 64 << 20);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let path = blob_path("app", &blob.digest);
    let first = larder.open(&path, &[]).await;
    let mut readers = join_all((0..100).map(|_| Download::open_narrow(&larder.registry, &path))).await;
    for reader in readers.iter_mut().flatten() {
        reader.read_to(300_000).await;
    }
    assert_eq!(first.drain().await, blob.len());
    larder.until_stored(&blob.digest).await;
    for reader in readers.iter_mut().flatten() {
        assert!(reader.read_to(400_000).await[..400_000] == blob.read(0..400_000));
    }
    is_below(&larder, 48);
    assert_eq!(upstream.log().gets_of(&blob.digest), 1);
}

#[tokio::test]
async fn a_gibibyte_is_filled_under_48_mib() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(2, 1 << 30);
    upstream.put_blob("app", &blob);
    let larder = Larder::start(&upstream).await;
    let download = larder.open(&blob_path("app", &blob.digest), &[]).await;
    assert_eq!(download.drain().await, blob.len());
    larder.until_stored(&blob.digest).await;
    is_below(&larder, 48);
}
