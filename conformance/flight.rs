//! One fetch: however many clients want a digest, upstream sends it once, and nobody waits for anybody.

use futures::future::join_all;

use crate::larder::Larder;
use crate::upstream::{Auth, Blob, Fault, Gate, TestUpstream, on};

#[tokio::test]
async fn sixty_four_cold_clients_cause_one_token_and_one_blob_get() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(64, 2_000_000);
    upstream.put_blob("library/app", &blob);
    upstream.set_auth(Auth::bearer());
    let gate = Gate::new();
    upstream.fault(
        on("/blobs/").method("GET"),
        Fault::HoldAt(1_000_000, gate.clone()),
    );
    let larder = Larder::start(&upstream).await;
    let path = format!("/v2/library/app/blobs/{}", blob.digest);
    let downloads = join_all((0..64).map(|_| larder.open(&path, &[]))).await;
    gate.reached().await;
    gate.open();
    let bytes = blob.bytes();
    for answer in join_all(downloads.into_iter().map(crate::client::Download::rest)).await {
        answer.is_whole(&bytes);
    }
    let log = upstream.log();
    assert_eq!(log.token_requests(), 1, "{}", log.lines());
    let paid = log
        .of("GET", &blob.digest)
        .filter(|asked| asked.status == 200)
        .count();
    assert_eq!(paid, 1, "{}", log.lines());
    assert_eq!(
        log.gets_of(&blob.digest),
        2,
        "the first without a token, the second with it\n{}",
        log.lines()
    );
    assert_eq!(log.count("HEAD", "/"), 0, "{}", log.lines());
}
