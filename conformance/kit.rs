//! The test upstream itself, seen through another client: what the other tests lean on must be true.

use std::time::Duration;

use futures::StreamExt as _;

use crate::client::{Download, End};
use crate::upstream::{Auth, Blob, Cut, Fault, Gate, Image, Redirect, Role, TestUpstream, digest_of, on};

#[test]
fn generated_blobs_read_the_same_in_any_pieces() {
    let blob = Blob::generated(7, 200_000);
    let whole = blob.bytes();
    assert_eq!(digest_of(&whole), blob.digest);
    for (start, end) in [
        (0, 1),
        (3, 11),
        (65_535, 65_540),
        (65_538, 131_080),
        (199_999, 300_000),
    ] {
        let until = usize::try_from(end).unwrap().min(whole.len());
        assert_eq!(
            blob.read(start..end),
            whole[usize::try_from(start).unwrap()..until]
        );
    }
    assert_ne!(blob.read(0..100), blob.read(65_536..65_636));
}

#[tokio::test]
async fn an_image_is_served_whole_and_counted() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("library/app", "1", &image);
    let base = format!("{}/v2/library/app", upstream.url());
    let answer = reqwest::get(format!("{base}/manifests/1")).await.unwrap();
    assert_eq!(
        answer.headers()["docker-content-digest"],
        image.manifest.digest.as_str()
    );
    assert_eq!(answer.bytes().await.unwrap(), image.manifest.bytes);
    let layer = &image.layers[0];
    let url = format!("{base}/blobs/{}", layer.digest);
    assert_eq!(
        reqwest::get(&url).await.unwrap().bytes().await.unwrap(),
        layer.bytes()
    );
    let part = reqwest::Client::new()
        .get(&url)
        .header("Range", "bytes=10-19")
        .send()
        .await
        .unwrap();
    assert_eq!(
        part.headers()["content-range"],
        format!("bytes 10-19/{}", layer.len()).as_str()
    );
    assert_eq!(part.bytes().await.unwrap(), layer.read(10..20));
    upstream
        .until("whole answers", |log| {
            log.all().iter().all(|asked| asked.is_finished)
        })
        .await;
    assert_eq!(upstream.log().gets_of(&layer.digest), 2);
    assert_eq!(upstream.log().bytes_of(&layer.digest), layer.len() + 10);
}

#[tokio::test]
async fn bodies_are_cut_at_the_byte_in_each_way() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(2, 100_000);
    upstream.put_blob("app", &blob);
    let host = upstream.url().replace("http://", "");
    let path = format!("/v2/app/blobs/{}", blob.digest);
    for (how, end) in [(Cut::Fin, End::Fin), (Cut::Rst, End::Rst)] {
        upstream.fault_times(1, on("/blobs/"), Fault::CutAt(50_000, how));
        let mut download = Download::open(&host, "GET", &path, &[]).await.unwrap();
        assert_eq!(download.header("content-length"), Some("100000"));
        if how == Cut::Fin {
            download.read_to(50_000).await;
        }
        let answer = download.rest().await;
        assert_eq!((answer.is_complete, answer.end), (false, end));
        assert!(answer.body.len() <= 50_000);
    }
    upstream.fault_times(1, on("/blobs/"), Fault::CutAt(50_000, Cut::Stall));
    let mut download = Download::open(&host, "GET", &path, &[]).await.unwrap();
    assert_eq!(download.read_to(50_000).await.len(), 50_000);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), download.drain())
            .await
            .is_err()
    );
    upstream
        .until("the client leave", |log| {
            log.all().iter().filter(|asked| asked.is_aborted).count() == 3
        })
        .await;
    assert_eq!(upstream.log().bytes_of(&blob.digest), 150_000);
}

#[tokio::test]
async fn a_gate_holds_a_body_until_it_is_opened() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(3, 90_000);
    upstream.put_blob("app", &blob);
    let gate = Gate::new();
    upstream.fault(on("/blobs/"), Fault::HoldAt(80_000, gate.clone()));
    let answer = reqwest::get(format!("{}/v2/app/blobs/{}", upstream.url(), blob.digest))
        .await
        .unwrap();
    gate.reached().await;
    let mut stream = answer.bytes_stream();
    let mut seen = Vec::new();
    while seen.len() < 80_000 {
        seen.extend_from_slice(&stream.next().await.unwrap().unwrap());
    }
    assert_eq!(upstream.log().bytes_of(&blob.digest), 80_000);
    gate.open();
    while let Some(piece) = stream.next().await {
        seen.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(seen, blob.bytes());
}

#[tokio::test]
async fn tokens_are_asked_for_given_and_revoked() {
    let upstream = TestUpstream::start().await;
    upstream.push_tagged("app", "1", &Image::small(4));
    upstream.set_auth(Auth::bearer().with_credentials("me", "secret"));
    let url = format!("{}/v2/app/manifests/1", upstream.url());
    let refused = reqwest::get(&url).await.unwrap();
    assert_eq!(refused.status(), 401);
    let challenge = refused.headers()["www-authenticate"].to_str().unwrap().to_owned();
    assert!(challenge.contains("scope=\"repository:app:pull\""), "{challenge}");
    let client = reqwest::Client::new();
    let realm = format!(
        "http://{}/token?service=test%2C%20registry&scope=repository:app:pull",
        upstream.token_host()
    );
    assert_eq!(client.get(&realm).send().await.unwrap().status(), 401);
    let given = client
        .get(&realm)
        .basic_auth("me", Some("secret"))
        .send()
        .await
        .unwrap();
    let given: serde_json::Value = serde_json::from_slice(&given.bytes().await.unwrap()).unwrap();
    let token = given["token"].as_str().unwrap();
    assert_eq!(
        client.get(&url).bearer_auth(token).send().await.unwrap().status(),
        200
    );
    upstream.revoke_tokens();
    assert_eq!(
        client.get(&url).bearer_auth(token).send().await.unwrap().status(),
        401
    );
    assert_eq!(upstream.log().token_requests(), 2);
}

#[tokio::test]
async fn blobs_are_redirected_in_each_form() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(5, 1000);
    upstream.put_blob("app", &blob);
    for (to, asked) in [
        (Redirect::Cdn, Role::Cdn),
        (Redirect::Relative, Role::Registry),
        (Redirect::SchemeRelative, Role::Cdn),
        (Redirect::Chain, Role::Cdn),
    ] {
        upstream.heal();
        upstream.reset_log();
        upstream.fault(on("/blobs/"), Fault::Redirect(307, to));
        let answer = reqwest::get(format!("{}/v2/app/blobs/{}", upstream.url(), blob.digest))
            .await
            .unwrap();
        assert_eq!(answer.bytes().await.unwrap(), blob.bytes());
        assert_eq!(upstream.log().all().last().unwrap().role, asked);
    }
}

#[tokio::test]
async fn a_registry_refuses_and_comes_back_on_the_same_port() {
    let upstream = TestUpstream::start().await;
    let url = format!("{}/v2/", upstream.url());
    assert_eq!(reqwest::get(&url).await.unwrap().status(), 200);
    upstream.refuse().await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(5);
    while reqwest::get(&url).await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline);
    }
    upstream.come_back();
    assert_eq!(reqwest::get(&url).await.unwrap().status(), 200);
}

#[tokio::test]
async fn lengths_encodings_and_ranges_are_spoilt_to_order() {
    let upstream = TestUpstream::start().await;
    let blob = Blob::generated(6, 5000);
    upstream.put_blob("app", &blob);
    let host = upstream.url().replace("http://", "");
    let path = format!("/v2/app/blobs/{}", blob.digest);
    let mut answers = Vec::new();
    for fault in [
        Fault::NoContentLength,
        Fault::Chunked,
        Fault::Gzip {
            only_if_accepted: false,
        },
        Fault::IgnoreRange,
        Fault::LongerBy(3),
        Fault::ShorterBy(3),
        Fault::Html,
    ] {
        upstream.fault_times(1, on("/blobs/"), fault);
        let headers = [("Range", "bytes=0-")];
        answers.push(
            Download::open(&host, "GET", &path, &headers)
                .await
                .unwrap()
                .rest()
                .await,
        );
    }
    assert!(answers.iter().all(|answer| answer.is_complete));
    let sizes: Vec<usize> = answers.iter().map(|answer| answer.body.len()).collect();
    assert_eq!(sizes, [5000, 5000, 5023, 5000, 5003, 4997, 39]);
    assert_eq!(answers[2].header("content-encoding"), Some("gzip"));
    assert_eq!(answers[3].status, 200);
}
