//! Redirects: followed here, for one transfer only, and without what the other host must not see.

use crate::client::blob_path;
use crate::larder::Larder;
use crate::upstream::{Auth, Blob, Fault, Image, Redirect, Role, TestUpstream, on};

async fn upstream_with(auth: Auth) -> (TestUpstream, Image) {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("app", "1", &image);
    upstream.set_auth(auth);
    (upstream, image)
}

#[tokio::test]
async fn redirects_are_followed_without_authorization_and_byte_for_byte() {
    for status in [301, 302, 303, 307, 308] {
        for to in [
            Redirect::Cdn,
            Redirect::SchemeRelative,
            Redirect::Relative,
            Redirect::Chain,
        ] {
            let (upstream, image) = upstream_with(Auth::bearer()).await;
            upstream.fault(on("/blobs/").method("GET"), Fault::Redirect(status, to));
            let larder = Larder::start(&upstream).await;
            let layer = &image.layers[0];
            larder
                .get(&blob_path("app", &layer.digest))
                .await
                .is_whole(&layer.bytes());
            let log = upstream.log();
            assert!(
                log.at(Role::Cdn)
                    .all(|asked| asked.header("authorization").is_none()),
                "{}",
                log.lines()
            );
            assert!(
                log.at(Role::Cdn)
                    .all(|asked| asked.header("accept-encoding") == Some("identity"))
            );
            assert_eq!(
                log.at(Role::Cdn).count(),
                usize::from(to != Redirect::Relative),
                "{}",
                log.lines()
            );
        }
    }
}

#[tokio::test]
async fn redirects_are_not_remembered() {
    let (upstream, _) = upstream_with(Auth::default()).await;
    upstream.fault(on("/blobs/"), Fault::Redirect(307, Redirect::Cdn));
    let larder = Larder::start(&upstream).await;
    for seed in [7, 8] {
        let blob = Blob::generated(seed, 10_000);
        upstream.put_blob("app", &blob);
        let answer = larder.get(&blob_path("app", &blob.digest)).await;
        answer.is_whole(&blob.bytes());
        assert_eq!(answer.header("location"), None);
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    }
    assert_eq!(upstream.log().count("GET", "/blobs/"), 2);
}

#[tokio::test]
async fn a_redirect_that_leads_in_circles_ends() {
    let (upstream, image) = upstream_with(Auth::default()).await;
    let path = blob_path("app", &image.config.digest);
    upstream.fault(
        on("/blobs/"),
        Fault::Status(307, vec![("Location", path.clone())], String::new()),
    );
    let larder = Larder::start(&upstream).await;
    assert_eq!(larder.get(&path).await.status, 502);
    assert!(upstream.log().all().len() < 60, "{}", upstream.log().all().len());
}
