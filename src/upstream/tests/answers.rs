//! What registries give: manifests, blobs, ranges, lists, and nonsense.

use std::io::Write as _;

use super::*;

/// The headers of an answer.
type Headers = &'static [(&'static str, &'static str)];

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Asks a server that always answers the same for a manifest.
async fn manifest_from(status: u16, headers: Headers, body: Vec<u8>) -> Result<FetchedManifest, Error> {
    let server = Server::start(move |_, _| reply(status, headers, body.clone())).await;
    connect(settings(&server.url)).get_manifest(&name(), &tag()).await
}

async fn head_from(status: u16, headers: Headers) -> Result<ManifestHead, Error> {
    let server = Server::start(move |_, _| reply(status, headers, "")).await;
    connect(settings(&server.url))
        .head_manifest(&name(), &tag())
        .await
}

#[tokio::test]
async fn manifests_come_as_they_are() {
    let headers = &[
        ("content-type", "application/x; charset=utf-8"),
        ("docker-content-digest", "sha256:x"),
    ];
    let got = manifest_from(200, headers, b"{ }\n".to_vec()).await.unwrap();
    assert_eq!(&got.bytes[..], b"{ }\n");
    assert_eq!(got.content_type.as_deref(), Some("application/x; charset=utf-8"));
    assert_eq!(got.digest_header.as_deref(), Some("sha256:x"));
    let zipped = manifest_from(200, &[("content-encoding", "gzip")], gzip(b"{}"))
        .await
        .unwrap();
    assert_eq!(&zipped.bytes[..], b"{}");
}

#[tokio::test]
async fn nonsense_is_not_taken_for_a_manifest() {
    let large = vec![b' '; crate::oci::manifest::MAX_MANIFEST_BYTES + 1];
    let bomb = gzip(&large);
    let cases: [(u16, Headers, Vec<u8>); 6] = [
        (
            200,
            &[("content-type", "text/html; charset=utf-8")],
            b"<html>log in".to_vec(),
        ),
        (200, &[], large),
        (200, &[("content-encoding", "gzip")], bomb),
        (200, &[("content-encoding", "gzip")], b"not gzip".to_vec()),
        (200, &[("content-encoding", "br")], b"{}".to_vec()),
        (302, &[], Vec::new()),
    ];
    for (case, (status, headers, body)) in cases.into_iter().enumerate() {
        let got = manifest_from(status, headers, body).await;
        assert!(matches!(got, Err(Error::Invalid { .. })), "{case}: {got:?}");
    }
    assert!(matches!(
        manifest_from(404, &[], Vec::new()).await,
        Err(Error::NotFound)
    ));
    assert!(matches!(
        manifest_from(500, &[], Vec::new()).await,
        Err(Error::Unavailable { status: 500, .. })
    ));
}

#[tokio::test]
async fn a_head_tells_the_digest_or_that_one_has_to_get() {
    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const FULL: &[(&str, &str)] = &[
        ("docker-content-digest", DIGEST),
        ("content-type", "application/vnd.oci.image.index.v1+json; x=y"),
        ("content-length", "77"),
    ];
    let got = head_from(200, FULL).await.unwrap();
    assert_eq!(got.digest.unwrap().to_string(), DIGEST);
    assert_eq!(
        got.media_type.as_deref(),
        Some("application/vnd.oci.image.index.v1+json")
    );
    assert_eq!(got.size_bytes, Some(77));
    assert_eq!(head_from(200, &[]).await.unwrap().digest, None);
    assert_eq!(
        head_from(200, &[("docker-content-digest", "blake3:00")])
            .await
            .unwrap()
            .digest,
        None
    );
    assert!(matches!(
        head_from(200, &[("docker-content-digest", "junk")]).await,
        Err(Error::Invalid { .. })
    ));
    for status in [405, 501, 403, 400] {
        assert!(
            matches!(head_from(status, &[]).await, Err(Error::HeadRefused)),
            "{status}"
        );
    }
    let json = &[("content-type", "application/json; charset=utf-8")];
    assert!(matches!(head_from(403, json).await, Err(Error::Denied { .. })));
    assert!(matches!(head_from(404, json).await, Err(Error::NotFound)));
}

#[tokio::test]
async fn the_size_of_a_blob_is_learned_without_its_bytes() {
    let by_head =
        Server::start(|_, _| reply(200, &[("content-length", "12"), ("content-type", "a/b")], "")).await;
    let got = connect(settings(&by_head.url))
        .head_blob(&name(), &digest())
        .await
        .unwrap();
    assert_eq!(
        got,
        BlobHead {
            size_bytes: 12,
            content_type: Some("a/b".to_owned())
        }
    );
    assert_eq!(by_head.seen().len(), 1);

    for head_status in [200, 401, 403, 404, 405, 501, 307] {
        let server = Server::start(move |seen, _| match seen.method.as_str() {
            // A 307 leads to another origin; 200 has the length of the body that a HEAD has not.
            "HEAD" if head_status == 200 => reply(200, &[("content-length", "0")], ""),
            "HEAD" => reply(
                head_status,
                &[("location", "http://127.0.0.1:1/signed-for-get")],
                "",
            ),
            _ => reply(206, &[("content-range", "bytes 0-0/1234")], "x"),
        })
        .await;
        let got = connect(settings(&server.url))
            .head_blob(&name(), &digest())
            .await
            .unwrap();
        assert_eq!(got.size_bytes, 1234, "{head_status}");
        let ranges: Vec<_> = server.seen().into_iter().map(|seen| seen.range).collect();
        assert_eq!(ranges, [None, Some("bytes=0-0".to_owned())], "{head_status}");
    }
}

#[tokio::test]
async fn the_size_of_a_blob_is_learned_from_odd_answers_to_a_range() {
    let size = |status: u16, headers: Headers| async move {
        let server = Server::start(move |seen, _| match (seen.method.as_str(), &seen.range) {
            ("HEAD", _) => reply(405, &[], ""),
            (_, Some(_)) => reply(status, headers, "x"),
            (_, None) => reply(200, &[], "0123456"),
        })
        .await;
        connect(settings(&server.url))
            .head_blob(&name(), &digest())
            .await
            .map(|head| head.size_bytes)
    };
    assert_eq!(size(200, &[]).await.unwrap(), 1);
    assert_eq!(size(416, &[("content-range", "bytes */0")]).await.unwrap(), 0);
    assert_eq!(size(416, &[]).await.unwrap(), 7);
    assert_eq!(size(400, &[]).await.unwrap(), 7);
    assert_eq!(size(206, &[("content-range", "bytes 0-0/*")]).await.unwrap(), 7);
    assert!(matches!(size(404, &[]).await, Err(Error::NotFound)));
}

async fn blob_from(
    status: u16,
    headers: Headers,
    body: Vec<u8>,
    range: Option<Range>,
) -> Result<BlobResponse, Error> {
    let server = Server::start(move |_, _| reply(status, headers, body.clone())).await;
    connect(settings(&server.url))
        .get_blob(&name(), &digest(), range)
        .await
}

#[tokio::test]
async fn blobs_come_whole_or_in_the_part_that_was_asked_for() {
    let part = Some(Range {
        start: 3,
        end: Some(6),
    });
    let whole = blob_from(200, &[], b"0123456789".to_vec(), part).await.unwrap();
    assert_eq!(
        (whole.start, whole.total_bytes, whole.is_partial, whole.length),
        (0, Some(10), false, Some(10))
    );
    let given = blob_from(206, &[("content-range", "bytes 3-5/10")], b"345".to_vec(), part)
        .await
        .unwrap();
    assert_eq!(
        (given.start, given.total_bytes, given.is_partial, given.length),
        (3, Some(10), true, Some(3))
    );
    for wrong in [
        &[("content-range", "bytes 0-2/10")][..],
        &[("content-range", "bytes 3-9/10")],
        &[],
    ] {
        let got = blob_from(206, wrong, b"012".to_vec(), part).await;
        assert!(matches!(got, Err(Error::Invalid { .. })), "{got:?}");
    }
    for status in [400, 416] {
        let got = blob_from(status, &[], Vec::new(), part).await;
        assert!(
            matches!(got, Err(Error::RangeRefused { status: s }) if s == status),
            "{got:?}"
        );
    }
    assert!(matches!(
        blob_from(400, &[], Vec::new(), None).await,
        Err(Error::Invalid { .. })
    ));
    let page = blob_from(200, &[("content-type", "text/html")], b"<html>".to_vec(), None).await;
    assert!(matches!(page, Err(Error::Invalid { .. })), "{page:?}");
    let wrapped = blob_from(200, &[("content-encoding", "gzip")], gzip(b"0123456789"), None).await;
    wrapped.as_ref().unwrap();
}

#[tokio::test]
async fn a_blob_that_is_wrapped_in_spite_of_our_wish_is_unwrapped() {
    let server =
        Server::start(|_, _| reply(200, &[("content-encoding", "gzip")], gzip(&vec![9; 100_000]))).await;
    let upstream = connect(settings(&server.url));
    let blob = upstream.get_blob(&name(), &digest(), None).await.unwrap();
    assert_eq!((blob.length, blob.total_bytes), (None, None));
    assert_eq!(read(blob).await.unwrap(), vec![9; 100_000]);
    assert_eq!(
        server.seen().first().unwrap().encoding.as_deref(),
        Some("identity")
    );
}

#[tokio::test]
async fn the_end_of_a_blob_of_unknown_size_can_be_asked_for() {
    let server = Server::start(|_, _| reply(206, &[("content-range", "bytes 7-9/10")], "789")).await;
    let upstream = connect(settings(&server.url));
    let end = upstream.get_blob_suffix(&name(), &digest(), 3).await.unwrap();
    assert_eq!((end.start, end.total_bytes), (7, Some(10)));
    assert_eq!(read(end).await.unwrap(), b"789");
    assert_eq!(server.seen().first().unwrap().range.as_deref(), Some("bytes=-3"));
}

#[tokio::test]
async fn tags_are_listed_by_page_and_whole() {
    let server = Server::start(
        |seen, _| match seen.target.split_once('?').map(|(_, query)| query) {
            None | Some("n=2") => reply(
                200,
                &[(
                    "link",
                    r#"</v2/team/app/tags/list?next_page=gA%3D%3D&last=b&n=2>; rel="next""#,
                )],
                r#"{"name":"team/app","tags":["a","b"]}"#,
            ),
            Some("next_page=gA%3D%3D&last=b&n=2") => {
                reply(200, &[("link", "<?last=zz>;rel=next")], r#"{"tags":["c"]}"#)
            }
            Some("last=zz" | "last=c%2Bd") => reply(200, &[], r#"{"tags":null}"#),
            Some(other) => reply(500, &[], other.to_owned()),
        },
    )
    .await;
    let upstream = connect(settings(&server.url));
    let page = upstream.list_tags(&name(), Some(2), None).await.unwrap();
    assert_eq!(
        page,
        TagsPage {
            tags: vec!["a".to_owned(), "b".to_owned()],
            next: Some("b".to_owned())
        }
    );
    assert_eq!(
        upstream.list_tags(&name(), None, Some("c+d")).await.unwrap(),
        TagsPage::default()
    );
    assert_eq!(upstream.list_all_tags(&name()).await.unwrap(), ["a", "b", "c"]);
}

#[tokio::test]
async fn a_list_that_leads_in_a_circle_or_is_too_long_ends() {
    let circle =
        Server::start(|_, _| reply(200, &[("link", "<?last=a>; rel=next")], r#"{"tags":["a"]}"#)).await;
    assert_eq!(
        connect(settings(&circle.url))
            .list_all_tags(&name())
            .await
            .unwrap(),
        ["a", "a"]
    );
    assert_eq!(circle.seen().len(), 2);
    let endless = Server::start(|_, before| {
        let link = format!("<?last={before}>; rel=next");
        reply(
            200,
            &[("link", &link)],
            format!(r#"{{"tags":["{}"]}}"#, "x".repeat(4 << 20)),
        )
    })
    .await;
    let got = connect(settings(&endless.url)).list_all_tags(&name()).await;
    assert!(matches!(got, Err(Error::Invalid { .. })), "{got:?}");
    assert!(endless.seen().len() <= 5);
}

#[tokio::test]
async fn referrers_are_collected_over_pages_and_filtered() {
    let server = Server::start(|seen, _| {
        let entry = |digest: &str, kind: &str| {
            format!(r#"{{"manifests":[{{"mediaType":"m","digest":"sha256:{digest}","size":1,"artifactType":"{kind}"}}]}}"#)
        };
        if seen.target.contains("page=2") {
            reply(200, &[], entry("b", "text/sbom"))
        } else {
            reply(200, &[("link", "<?page=2>; rel=\"next\"")], entry("a", "text/sig"))
        }
    })
    .await;
    let upstream = connect(settings(&server.url));
    let digests = |all: Vec<crate::oci::Descriptor>| all.into_iter().map(|d| d.digest).collect::<Vec<_>>();
    let all = upstream.referrers(&name(), &digest(), &[]).await.unwrap();
    assert_eq!(digests(all), ["sha256:a", "sha256:b"]);
    let wanted = ["text/sbom".to_owned(), "x+y".to_owned()];
    let some = upstream.referrers(&name(), &digest(), &wanted).await.unwrap();
    assert_eq!(digests(some), ["sha256:b"]);
    assert_eq!(
        server.count(&format!(
            "GET /v2/team/app/referrers/{}?artifactType=text%2Fsbom&artifactType=x%2By",
            digest()
        )),
        1
    );
}

#[tokio::test]
async fn a_registry_without_referrers_is_recognised_in_every_disguise() {
    let login = Server::start(|_, _| reply(200, &[("content-type", "text/html")], "<html>")).await;
    let away: &'static str = format!("{}login", login.url).leak();
    let cases: [(u16, Headers, &str); 8] = [
        (404, &[], "404 page not found"),
        (400, &[], ""),
        (405, &[], ""),
        (406, &[], ""),
        (501, &[], ""),
        (200, &[("content-type", "text/html")], "<html>"),
        (200, &[], r#"{"hello":"world"}"#),
        (302, vec![("location", away)].leak(), ""),
    ];
    for (status, headers, body) in cases {
        let server = Server::start(move |_, _| reply(status, headers, body)).await;
        let got = connect(settings(&server.url))
            .referrers(&name(), &digest(), &[])
            .await;
        assert!(
            matches!(got, Err(Error::ReferrersUnsupported)),
            "{status} {body}: {got:?}"
        );
    }
}
