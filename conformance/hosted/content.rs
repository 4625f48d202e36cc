//! Manifests, tags, referrers and deletions of hosted repositories.

use serde_json::json;

use super::client::{Client, INDEX, MANIFEST, hosting, image};
use crate::upstream::digest_of;

#[tokio::test]
async fn manifests_are_kept_as_they_came_and_checked() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    let digest = client.push_image("app", "v1").await;
    for reference in ["v1", &digest] {
        for method in ["GET", "HEAD"] {
            let path = format!("/v2/app/manifests/{reference}");
            let answer = client.ask(method, &path, &[], "").await.is(200);
            assert_eq!(answer.header("content-type"), MANIFEST);
            assert_eq!(answer.header("docker-content-digest"), digest);
        }
    }
    let config = digest_of(b"{}");
    let missing = digest_of(b"not there");
    let refused = client
        .push_manifest("app", "v2", &image(&config, &[(&missing, 9)]))
        .await
        .is(400);
    assert_eq!(refused.code(), "MANIFEST_BLOB_UNKNOWN");
    assert!(String::from_utf8_lossy(&refused.body).contains(&missing));
    client.get("/v2/app/manifests/v2").await.is(404);
    let mut foreign = image(&config, &[(&missing, 9)]);
    foreign["layers"][0]["mediaType"] = json!("application/vnd.oci.image.layer.nondistributable.v1.tar");
    client.push_manifest("app", "foreign", &foreign).await.is(201);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [], "custom": {"a": [1]}});
    client.push_manifest("app", "index", &index).await.is(201);
    let path = "/v2/app/manifests/x";
    let mismatch = client
        .ask("PUT", path, &[("content-type", MANIFEST)], index.to_string())
        .await
        .is(400);
    assert_eq!(mismatch.code(), "MANIFEST_INVALID");
    client
        .ask("PUT", path, &[("content-type", MANIFEST)], "no json")
        .await
        .is(400);
    let other = client.push_manifest("app", &missing, &index).await.is(400);
    assert_eq!(other.code(), "DIGEST_INVALID");
    client
        .push_manifest("app", "sha256:baddigeststring", &index)
        .await
        .is(400);
    client.push_manifest("app", "-bad", &index).await.is(400);
    client
        .get("/v2/app/manifests/sha256:baddigeststring")
        .await
        .is(400);
    let mut large = image(&config, &[]);
    large["annotations"] = json!({"a": "x".repeat(4_000_000)});
    client.push_manifest("app", "large", &large).await.is(201);
    large["annotations"] = json!({"a": "x".repeat(9_000_000)});
    client.push_manifest("app", "larger", &large).await.is(413);
}

#[tokio::test]
async fn one_push_sets_many_tags_and_they_are_listed_by_page() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    client.get("/v2/app/tags/list").await.is(404);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []});
    let digest = digest_of(index.to_string().as_bytes());
    let query = format!("{digest}?tag=b&tag=a&tag=C&tag=b");
    let pushed = client.push_manifest("app", &query, &index).await.is(201);
    let told: Vec<_> = pushed.headers.get_all("oci-tag").iter().collect();
    assert_eq!(told, ["b", "a", "C"]);
    assert_eq!(client.tags("/v2/app/tags/list").await, ["C", "a", "b"]);
    assert_eq!(client.tags("/v2/app/tags/list?last=a").await, ["b"]);
    assert_eq!(client.tags("/v2/app/tags/list?n=0").await, [""; 0]);
    let page = client.get("/v2/app/tags/list?n=2").await.is(200);
    assert_eq!(
        page.header("link"),
        "</v2/app/tags/list?last=a&n=2>; rel=\"next\""
    );
    client.ask("DELETE", "/v2/app/manifests/b", &[], "").await.is(202);
    client.get("/v2/app/manifests/b").await.is(404);
    client.get("/v2/app/manifests/a").await.is(200);
    client.get(&format!("/v2/app/manifests/{digest}")).await.is(200);
    for tag in ["a", "C"] {
        client
            .ask("DELETE", &format!("/v2/app/manifests/{tag}"), &[], "")
            .await
            .is(202);
    }
    assert_eq!(client.tags("/v2/app/tags/list").await, [""; 0]);
    let many: Vec<String> = (0..101).map(|n| format!("tag=t{n}")).collect();
    client
        .push_manifest("app", &format!("{digest}?{}", many.join("&")), &index)
        .await
        .is(414);
}

#[tokio::test]
async fn referrers_are_listed_filtered_paged_and_survive_the_loss_of_the_index() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    let subject = client.push_image("app", "v1").await;
    let config = digest_of(b"{}");
    let mut pushed = Vec::new();
    for kind in ["a/one", "a/one", "a/two"] {
        let mut artifact = image(&config, &[]);
        artifact["artifactType"] = json!(kind);
        artifact["annotations"] = json!({"n": pushed.len().to_string()});
        artifact["subject"] = json!({"mediaType": MANIFEST, "digest": subject, "size": 1});
        let digest = digest_of(artifact.to_string().as_bytes());
        let answer = client.push_manifest("app", &digest, &artifact).await.is(201);
        assert_eq!(answer.header("oci-subject"), subject);
        pushed.push(digest);
    }
    let path = format!("/v2/app/referrers/{subject}");
    let mut all = pushed.clone();
    all.sort();
    assert_eq!(client.referrers(&path).await, all);
    let filtered = client.get(&format!("{path}?artifactType=a/two")).await.is(200);
    assert_eq!(filtered.header("oci-filters-applied"), "artifactType");
    assert_eq!(filtered.json()["manifests"].as_array().unwrap().len(), 1);
    assert_eq!(filtered.json()["manifests"][0]["annotations"]["n"], "2");
    let first = client.get(&format!("{path}?n=2")).await.is(200);
    let next = first
        .header("link")
        .trim_start_matches('<')
        .split('>')
        .next()
        .unwrap();
    assert_eq!(client.referrers(next).await, all[2..]);
    let nothing = format!("/v2/app/referrers/{}", digest_of(b"nothing"));
    assert_eq!(client.referrers(&nothing).await, [""; 0]);
    client.get("/v2/app/referrers/sha256:x").await.is(400);
    // A subject need not exist, and its list belongs to the repository.
    assert_eq!(client.referrers(&path.replace("app", "other")).await, [""; 0]);

    let builder = larder.stop().await;
    std::fs::remove_dir_all(builder.root.join("larder/index")).unwrap();
    let larder = builder.start().await;
    let client = Client::of(&larder);
    for _ in 0..500 {
        if client.referrers(&path).await == all {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(client.referrers(&path).await, all);
    let gone = format!("/v2/app/manifests/{}", pushed[0]);
    client.ask("DELETE", &gone, &[], "").await.is(202);
    assert!(!client.referrers(&path).await.contains(&pushed[0]));
}

#[tokio::test]
async fn deletions_take_what_they_name_and_nothing_else() {
    let larder = hosting().start().await;
    let client = Client::of(&larder);
    let digest = client.push_image("a", "v1").await;
    client.push_image("b", "v1").await;
    let layer = digest_of(b"v1");
    let blob = |repository: &str| format!("/v2/{repository}/blobs/{layer}");
    client.ask("DELETE", &blob("a"), &[], "").await.is(202);
    client.get(&blob("a")).await.is(404);
    client.ask("DELETE", &blob("a"), &[], "").await.is(404);
    client.has_blob("b", &layer, b"v1").await;
    let manifest = format!("/v2/a/manifests/{digest}");
    client.ask("DELETE", &manifest, &[], "").await.is(202);
    for path in [&manifest, "/v2/a/manifests/v1"] {
        client.get(path).await.is(404);
        client.ask("DELETE", path, &[], "").await.is(404);
    }
    client.get("/v2/b/manifests/v1").await.is(200);
    let kept = hosting().set("larder.hosted.delete", false).start().await;
    let client = Client::of(&kept);
    let digest = client.push_image("a", "v1").await;
    for path in [
        format!("/v2/a/manifests/{digest}"),
        "/v2/a/manifests/v1".into(),
        blob("a"),
    ] {
        assert_eq!(
            client.ask("DELETE", &path, &[], "").await.is(405).code(),
            "UNSUPPORTED"
        );
    }
}
