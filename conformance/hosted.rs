//! Repositories that larder owns: pushed to, discovered, deleted from, and never asked for upstream.

mod client;
mod content;
mod uploads;

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::json;

use self::client::{Client, hosting};
use crate::larder::Builder;
use crate::upstream::{Image, TestUpstream, digest_of};

#[tokio::test]
async fn blobs_are_mounted_from_hosted_repositories_only() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(3);
    upstream.push_tagged("library/app", "1", &image);
    let larder = Builder::new(&upstream.url())
        .set("larder.hosted.repositories", json!(["team/*"]))
        .start()
        .await;
    let client = Client::of(&larder);
    let digest = client.push_blob("team/a", b"shared").await;
    let mount = |to: &str, digest: &str, from: &str| {
        let path = format!("/v2/{to}/blobs/uploads/?mount={digest}{from}");
        async { client.ask("POST", &{ path }, &[], "").await }
    };
    let mounted = mount("team/b", &digest, "&from=team/a").await.is(201);
    assert_eq!(mounted.location(), format!("/v2/team/b/blobs/{digest}"));
    mount("team/c", &digest, "").await.is(201);
    client.has_blob("team/b", &digest, b"shared").await;
    client.has_blob("team/c", &digest, b"shared").await;
    let missing = digest_of(b"missing");
    let session = mount("team/b", &missing, "&from=team/a").await.is(202);
    client
        .put(&session.location(), &missing, b"missing")
        .await
        .is(201);
    let layer = &image.layers[0];
    larder
        .get(&format!("/v2/library/app/blobs/{}", layer.digest))
        .await
        .is_whole(&layer.bytes());
    larder.until_idle().await;
    mount("team/b", &layer.digest, "&from=library/app").await.is(202);
    mount("team/b", &layer.digest, "").await.is(202);
    mount("library/app", &digest, "&from=team/a").await.is(405);
}

#[tokio::test]
async fn what_is_hosted_is_never_asked_for_upstream_and_what_is_not_takes_no_writes() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(4);
    upstream.push_tagged("library/app", "1", &image);
    let larder = Builder::new(&upstream.url())
        .set("larder.hosted.repositories", json!(["team/*"]))
        .start()
        .await;
    let client = Client::of(&larder);
    client.push_image("team/app", "v1").await;
    for path in [
        "/v2/team/app/manifests/v1",
        "/v2/team/app/manifests/v2",
        "/v2/team/app/tags/list",
        "/v2/team/none/tags/list",
        &format!("/v2/team/app/blobs/{}", image.layers[0].digest),
        &format!("/v2/team/app/referrers/{}", image.manifest.digest),
    ] {
        client.get(path).await;
    }
    assert!(upstream.log().all().is_empty(), "{:?}", upstream.log().all());
    client.get("/v2/library/app/manifests/1").await.is(200);
    for (method, path) in [
        ("POST", "/v2/library/app/blobs/uploads/"),
        ("PUT", "/v2/library/app/manifests/1"),
        ("DELETE", "/v2/library/app/manifests/1"),
    ] {
        assert_eq!(
            client.ask(method, path, &[], "").await.is(405).code(),
            "UNSUPPORTED"
        );
    }
    upstream.refuse().await;
    client.get("/v2/team/app/manifests/v1").await.is(200);
}

#[tokio::test]
async fn a_full_volume_is_told_and_the_session_lives_on() {
    let larder = hosting().small_volume(24 << 20).start().await;
    let client = Client::of(&larder);
    let location = client.begin("app").await;
    client.patch(&location, 0, b"01234").await.is(202);
    let too_much = vec![0; 30 << 20];
    let refused = client.patch(&location, 5, &too_much).await.is(507);
    assert!(String::from_utf8_lossy(&refused.body).contains("full"));
    let status = client.get(&location).await.is(204);
    let last: usize = status.header("range").trim_start_matches("0-").parse().unwrap();
    assert!((4..24 << 20).contains(&last));
    client.ask("DELETE", &location, &[], "").await.is(204);
    let digest = client.push_blob("app", b"small").await;
    client.has_blob("app", &digest, b"small").await;
}

#[tokio::test]
async fn a_quota_bounds_what_is_hosted() {
    let larder = hosting().set("larder.hosted.quota", "1KiB").start().await;
    let client = Client::of(&larder);
    client.push_blob("app", &[1; 1000]).await;
    let location = client.begin("app").await;
    let refused = client.put(&location, &digest_of(&[2; 1000]), &[2; 1000]).await;
    assert_eq!(refused.is(403).code(), "DENIED");
    assert_eq!(
        client.get(&location).await.status,
        StatusCode::NO_CONTENT.as_u16()
    );
}

#[tokio::test]
async fn an_upload_that_was_left_alone_expires_and_others_stay() {
    let larder = hosting().set("larder.hosted.uploadexpiry", "1h").start().await;
    let client = Client::of(&larder);
    let (old, young) = (client.begin("app").await, client.begin("app").await);
    client.patch(&young, 0, b"01234").await.is(202);
    let builder = larder.kill().await;
    let id = old.rsplit('/').next().unwrap();
    let uploads = builder.root.join("docker/registry/v2/repositories/app/_uploads");
    let data = std::fs::File::options()
        .write(true)
        .open(uploads.join(id).join("data"))
        .unwrap();
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    data.set_modified(long_ago).unwrap();
    let larder = builder.start().await;
    let client = Client::of(&larder);
    larder.until("the sweep", || !uploads.join(id).exists()).await;
    client.get(&old).await.is(404);
    assert_eq!(client.get(&young).await.is(204).header("range"), "0-4");
}

#[tokio::test]
async fn a_login_is_asked_for_before_anything_is_written() {
    let builder = hosting();
    let path = builder.folder().join("htpasswd");
    let hash = bcrypt::hash_with_salt("b", 4, [7; 16]).unwrap();
    std::fs::write(&path, format!("a:{hash}\n")).unwrap();
    let larder = builder
        .set("auth.htpasswd.realm", "larder")
        .set("auth.htpasswd.path", path.to_str().unwrap())
        .start()
        .await;
    let client = Client::of(&larder);
    let uploads = "/v2/app/blobs/uploads/";
    for (method, path) in [
        ("POST", uploads),
        ("PUT", "/v2/app/manifests/1"),
        ("DELETE", "/v2/app/manifests/1"),
    ] {
        let refused = client.ask(method, path, &[], "").await.is(401);
        assert_eq!(refused.code(), "UNAUTHORIZED");
    }
    let login = [("authorization", "Basic YTpi")];
    client.ask("POST", uploads, &login, "").await.is(202);
}

#[tokio::test]
async fn thirty_two_clients_push_small_blobs_and_one_image_at_once() {
    let larder = hosting().start().await;
    let client = &Client::of(&larder);
    let pushes = (0..32_u32).map(|pusher| async move {
        for number in 0..16_u32 {
            let bytes = format!(
                "{}",
                if number % 4 == 0 {
                    number
                } else {
                    pusher * 100 + number
                }
            );
            let digest = client
                .push_blob(&format!("team/{}", pusher % 4), bytes.as_bytes())
                .await;
            client
                .has_blob(&format!("team/{}", pusher % 4), &digest, bytes.as_bytes())
                .await;
        }
        client.push_image("team/all", "same").await
    });
    let digests = futures::future::join_all(pushes).await;
    assert!(digests.iter().all(|digest| *digest == digests[0]));
    client.get("/v2/team/all/manifests/same").await.is(200);
    assert!(larder.leftovers().is_empty(), "{:?}", larder.leftovers());
}
