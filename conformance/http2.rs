//! Clients that speak HTTP/2 over TLS get the same bodies, and learn as well when one fails.

use crate::client::blob_path;
use crate::larder::{Builder, Larder};
use crate::tls::{self, Authority};
use crate::upstream::{Blob, Cut, Fault, TestUpstream, on};

/// A larder with TLS, and a client that trusts it.
async fn start(upstream: &TestUpstream) -> (Larder, reqwest::Client) {
    let authority: Authority = tls::authority();
    let builder = Builder::new(&upstream.url());
    let (certificate, key) = tls::issue(&authority);
    let certificate = tls::write(builder.folder(), "tls.crt", &certificate);
    let key = tls::write(builder.folder(), "tls.key", &key);
    let larder = builder
        .set("http.tls.certificate", certificate)
        .set("http.tls.key", key)
        .set("larder.timeouts.idle", "200ms")
        .start()
        .await;
    (larder, tls::client(&authority).build().unwrap())
}

async fn get(larder: &Larder, client: &reqwest::Client, blob: &Blob) -> reqwest::Response {
    let url = format!("https://{}{}", larder.registry, blob_path("app", &blob.digest));
    let answer = client.get(url).send().await.unwrap();
    assert_eq!(answer.version(), http::Version::HTTP_2);
    answer
}

#[tokio::test]
async fn a_blob_comes_whole_over_http2_cold_and_warm() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(1, 20_000_000);
    upstream.put_blob("app", &blob);
    let (larder, client) = start(&upstream).await;
    for way in ["cold", "warm"] {
        let answer = get(&larder, &client, &blob).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.content_length(), Some(blob.len()), "{way}");
        assert!(answer.bytes().await.unwrap() == blob.bytes(), "{way}");
        larder.until_stored(&blob.digest).await;
    }
    assert_eq!(upstream.log().gets_of(&blob.digest), 1);
}

#[tokio::test]
async fn a_body_that_fails_is_an_error_over_http2_too() {
    let upstream = TestUpstream::start().await;
    let (larder, client) = start(&upstream).await;
    for (seed, fault) in [Fault::WrongByte(7), Fault::CutAt(100_000, Cut::Fin)]
        .into_iter()
        .enumerate()
    {
        let blob = Blob::generated(seed as u64 + 2, 3_000_000);
        upstream.put_blob("app", &blob);
        upstream.fault(on(&blob.digest), fault.clone());
        if matches!(fault, Fault::CutAt(..)) {
            let refused = Fault::Status(503, vec![], String::new());
            upstream.fault(on(&blob.digest).ranged(true), refused);
            upstream.fault_after(1, 1000, on(&blob.digest), Fault::Drop(Cut::Rst));
        }
        let answer = get(&larder, &client, &blob).await;
        assert_eq!(answer.status(), 200);
        assert!(answer.bytes().await.is_err(), "{fault:?}");
        assert!(!larder.data_path(&blob.digest).exists());
        upstream.heal();
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
        loop {
            let answer = get(&larder, &client, &blob).await;
            if answer.status() == 200 && answer.bytes().await.is_ok_and(|body| body == blob.bytes()) {
                break;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "{fault:?}: never right again"
            );
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
}
