//! Logging in at larder: an htpasswd file guards `/v2/`, and nothing else.

use base64::Engine as _;

use crate::client::{Answer, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Image, TestUpstream};

fn line(user: &str, password: &str) -> String {
    let hash = bcrypt::hash_with_salt(password, 4, [7; 16]).unwrap();
    format!("{user}:{hash}\n")
}

async fn as_user(larder: &Larder, path: &str, user: &str, password: &str) -> Answer {
    let encoded = base64::prelude::BASE64_STANDARD.encode(format!("{user}:{password}"));
    larder
        .ask("GET", path, &[("Authorization", &format!("Basic {encoded}"))])
        .await
}

fn is_refused(answer: &Answer) {
    assert_eq!(
        (answer.status, answer.error_code()),
        (401, "UNAUTHORIZED".to_owned())
    );
    let challenge = answer.header("www-authenticate").unwrap_or_default();
    assert!(challenge.starts_with("Basic realm=\"kitchen\""), "`{challenge}`");
}

async fn guarded(upstream: &TestUpstream, users: &str) -> Larder {
    let builder = Builder::new(&upstream.url());
    let file = builder.folder().join("htpasswd");
    std::fs::write(&file, users).unwrap();
    builder
        .set("auth.htpasswd.realm", "kitchen")
        .set("auth.htpasswd.path", file.to_string_lossy().as_ref())
        .start()
        .await
}

#[tokio::test]
async fn only_the_right_password_opens_v2_and_the_rest_stands_open() {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("app", "1", &image);
    let larder = guarded(&upstream, &line("anna", "secret")).await;
    let manifest = manifest_path("app", "1");
    for path in ["/v2/", manifest.as_str(), "/v2/_catalog"] {
        is_refused(&larder.get(path).await);
        is_refused(&as_user(&larder, path, "anna", "wrong").await);
        is_refused(&as_user(&larder, path, "bert", "secret").await);
        is_refused(&as_user(&larder, path, "anna", "").await);
        assert_eq!(
            as_user(&larder, path, "anna", "secret").await.status,
            200,
            "{path}"
        );
    }
    as_user(&larder, &manifest, "anna", "secret")
        .await
        .is_whole(&image.manifest.bytes);
    assert_eq!(larder.get("/").await.status, 200);
    for path in ["/metrics", "/debug/health", "/livez", "/readyz"] {
        assert_eq!(larder.admin(path).await.status, 200, "{path}");
    }
    assert!(
        upstream
            .log()
            .all()
            .iter()
            .all(|asked| asked.header("authorization").is_none()),
        "the login stays here"
    );
}

#[tokio::test]
async fn a_changed_file_counts_without_a_restart() {
    let upstream = TestUpstream::start().await;
    let larder = guarded(&upstream, &line("anna", "old")).await;
    let status = async |user, password| as_user(&larder, "/v2/", user, password).await.status;
    assert_eq!(status("anna", "old").await, 200);
    let users = line("anna", "new") + &line("bert", "b");
    std::fs::write(larder.folder().join("htpasswd"), users).unwrap();
    assert_eq!(status("anna", "old").await, 401);
    assert_eq!(status("anna", "new").await, 200);
    assert_eq!(status("bert", "b").await, 200);
}
