//! Blobs on their way in: every way of the specification, and what may go wrong on each.

use futures::stream;

use super::client::{Client, hosting, image, sha512_of};
use crate::upstream::digest_of;

#[tokio::test]
async fn blobs_come_in_every_way_and_are_pulled_back() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    for bytes in [&b""[..], b"{}", &[7; 2048]] {
        let digest = client.push_blob("team/app", bytes).await;
        client.has_blob("team/app", &digest, bytes).await;
    }
    let single = b"in one request";
    let path = format!("/v2/single/blobs/uploads/?digest={}", digest_of(single));
    let pushed = client.ask("POST", &path, &[], &single[..]).await.is(201);
    assert_eq!(client.get(&pushed.location()).await.is(200).body, single);

    let location = client.begin("chunks").await;
    assert_eq!(
        client.patch(&location, 0, b"01234").await.is(202).header("range"),
        "0-4"
    );
    assert_eq!(
        client.patch(&location, 5, b"56789").await.is(202).header("range"),
        "0-9"
    );
    let status = client.get(&format!("{location}?digest=x")).await.is(204);
    assert_eq!(
        (status.header("range"), status.location()),
        ("0-9", location.clone())
    );
    let whole = b"0123456789abc";
    client.put(&location, &digest_of(whole), b"abc").await.is(201);
    client.has_blob("chunks", &digest_of(whole), whole).await;
    assert_eq!(client.get(&location).await.is(404).code(), "BLOB_UPLOAD_UNKNOWN");

    let streamed = vec![9; 100_000];
    let location = client.begin("stream").await;
    assert_eq!(
        client.stream(&location, &streamed).await.is(202).header("range"),
        "0-99999"
    );
    let digest = sha512_of(&streamed);
    client.put(&location, &digest, b"").await.is(201);
    client.has_blob("stream", &digest, &streamed).await;
    assert!(larder.leftovers().is_empty(), "{:?}", larder.leftovers());
}

#[tokio::test]
async fn ranges_of_a_pushed_blob_are_exact() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    let bytes: Vec<u8> = (0..2048_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let digest = client.push_blob("app", &bytes).await;
    let path = format!("/v2/app/blobs/{digest}");
    for (range, first, last) in [
        ("500-1499", 500, 1499),
        ("500-", 500, 2047),
        ("-500", 1548, 2047),
        ("2000-5000", 2000, 2047),
    ] {
        let range = format!("bytes={range}");
        let part = client.ask("GET", &path, &[("range", &range)], "").await.is(206);
        assert_eq!(part.header("content-range"), format!("bytes {first}-{last}/2048"));
        assert_eq!(part.body, bytes[first..=last]);
    }
    for range in ["bytes=500-0", "bytes=5000-10000"] {
        client.ask("GET", &path, &[("range", range)], "").await.is(416);
    }
}

#[tokio::test]
async fn a_piece_out_of_order_is_refused_and_the_session_goes_on() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    let location = client.begin("app").await;
    client.patch(&location, 0, b"01234").await.is(202);
    let refused = client.patch(&location, 9, b"9").await.is(416);
    assert_eq!(
        (refused.header("range"), refused.location()),
        ("0-4", location.clone())
    );
    let whole = digest_of(b"0123456789");
    let early = [("content-range", "0-4")];
    let last = format!("{location}?digest={whole}");
    client.ask("PUT", &last, &early, "01234").await.is(416);
    let status = client.get(&last).await.is(204);
    assert_eq!(status.header("range"), "0-4");
    let wrong = [("content-range", "5-7")];
    assert_eq!(
        client
            .ask("PATCH", &location, &wrong, "56789")
            .await
            .is(400)
            .code(),
        "SIZE_INVALID"
    );
    client
        .ask("PATCH", &location, &[("content-range", "x")], "5")
        .await
        .is(400);
    let right = [("content-range", "5-9")];
    client.ask("PUT", &last, &right, "56789").await.is(201);
    client.has_blob("app", &whole, b"0123456789").await;
}

#[tokio::test]
async fn a_digest_that_does_not_match_is_refused_five_ways_and_nothing_appears() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    let (wrong, bytes) = (digest_of(b"something else"), b"0123456789");
    let single = format!("/v2/app/blobs/uploads/?digest={wrong}");
    let mut answers = vec![client.ask("POST", &single, &[], &bytes[..]).await];
    let location = client.begin("app").await;
    answers.push(client.put(&location, &wrong, bytes).await);
    let location = client.begin("app").await;
    client.patch(&location, 0, bytes).await.is(202);
    answers.push(client.put(&location, &wrong, b"").await);
    let location = client.begin("app").await;
    client.patch(&location, 0, &bytes[..5]).await.is(202);
    answers.push(client.put(&location, &wrong, &bytes[5..]).await);
    let location = client.begin("app").await;
    client.stream(&location, bytes).await.is(202);
    answers.push(client.put(&location, &wrong, b"").await);
    for answer in answers {
        assert_eq!(answer.is(400).code(), "DIGEST_INVALID");
    }
    for digest in [&wrong, &digest_of(bytes)] {
        client.get(&format!("/v2/app/blobs/{digest}")).await.is(404);
    }
    for bad in ["sha256:xyz", "md5:d41d8cd98f00b204e9800998ecf8427e", ""] {
        let location = client.begin("app").await;
        assert_eq!(
            client.put(&location, bad, b"x").await.is(400).code(),
            "DIGEST_INVALID"
        );
        client.ask("DELETE", &location, &[], "").await.is(204);
        client.get(&location).await.is(404);
    }
    assert_eq!(larder.stored_blobs(), 0);
    assert!(larder.leftovers().is_empty(), "{:?}", larder.leftovers());
}

#[tokio::test]
async fn a_session_outlives_a_restart_and_a_kill_between_pieces() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    let location = client.begin("app").await;
    client.patch(&location, 0, b"01234").await.is(202);
    let larder = larder.restart().await;
    let client = Client::of(&larder);
    assert_eq!(client.get(&location).await.is(204).header("range"), "0-4");
    client.patch(&location, 5, b"56789").await.is(202);
    let larder = larder.kill().await.start().await;
    let client = Client::of(&larder);
    let digest = digest_of(b"0123456789ab");
    client.put(&location, &digest, b"ab").await.is(201);
    let manifest = image(&digest, &[]);
    let pushed = client.push_manifest("app", "1", &manifest).await.is(201);
    let larder = larder.kill().await.start().await;
    let client = Client::of(&larder);
    client.has_blob("app", &digest, b"0123456789ab").await;
    assert_eq!(
        client.get("/v2/app/manifests/1").await.is(200).body,
        manifest.to_string().as_bytes()
    );
    client.get(&pushed.location()).await.is(200);
}

#[tokio::test]
async fn two_clients_cannot_write_to_one_session() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    let location = client.begin("app").await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let body = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    let first = client.ask("PATCH", &location, &[], reqwest::Body::wrap_stream(body));
    let second = async {
        sender.send(Ok(b"0123".to_vec())).await.unwrap();
        // Until the first one writes, the second may win.
        let mut refused = client
            .ask("PATCH", &location, &[("content-range", "9-9")], "9")
            .await;
        for _ in 0..1000 {
            if refused.status == 409 {
                break;
            }
            refused = client
                .ask("PATCH", &location, &[("content-range", "9-9")], "9")
                .await;
        }
        assert_eq!(refused.is(409).code(), "BLOB_UPLOAD_INVALID");
        let digest = digest_of(b"01234567");
        client.put(&location, &digest, b"").await.is(409);
        client.ask("DELETE", &location, &[], "").await.is(409);
        sender.send(Ok(b"4567".to_vec())).await.unwrap();
        drop(sender);
        digest
    };
    let (first, digest) = futures::join!(first, second);
    assert_eq!(first.is(202).header("range"), "0-7");
    client.put(&location, &digest, b"").await.is(201);
    client.has_blob("app", &digest, b"01234567").await;
}
