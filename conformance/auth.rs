//! Logging in upstream: one token for all who wait, credentials only where they belong, and no loops.

use std::os::unix::fs::PermissionsExt as _;

use futures::future::join_all;

use crate::client::{blob_path, manifest_path};
use crate::larder::{Builder, Larder};
use crate::upstream::{Auth, Blob, Fault, Image, Realm, Role, Scheme, TestUpstream, basic_header, on};

async fn upstream_with(auth: Auth) -> (TestUpstream, Image) {
    let upstream = TestUpstream::start().await;
    let image = Image::small(1);
    upstream.push_tagged("app", "1", &image);
    upstream.set_auth(auth);
    (upstream, image)
}

fn as_me(upstream: &TestUpstream) -> Builder {
    Builder::new(&upstream.url())
        .set("proxy.username", "me")
        .set("proxy.password", "secret")
        .set("larder.realms", vec![upstream.token_host()])
}

#[tokio::test]
async fn twenty_cold_blobs_of_a_repository_cost_one_token() {
    let (upstream, _) = upstream_with(Auth::bearer()).await;
    let blobs: Vec<Blob> = (0..20).map(|seed| Blob::generated(seed + 100, 10_000)).collect();
    for blob in &blobs {
        upstream.put_blob("app", blob);
    }
    let larder = Larder::start(&upstream).await;
    let pulls = blobs.iter().map(|blob| async {
        larder
            .get(&blob_path("app", &blob.digest))
            .await
            .is_whole(&blob.bytes());
    });
    join_all(pulls).await;
    assert_eq!(upstream.log().token_requests(), 1, "{}", upstream.log().lines());
    larder.get(&manifest_path("app", "1")).await;
    assert_eq!(
        upstream.log().token_requests(),
        1,
        "manifests need the same token"
    );
}

#[tokio::test]
async fn tokens_are_taken_in_each_form() {
    for auth in [
        Auth {
            token_field: "access_token",
            ..Auth::bearer()
        },
        Auth {
            expires_in: None,
            ..Auth::bearer()
        },
        Auth {
            realm: Realm::Relative,
            ..Auth::bearer()
        },
        Auth {
            scheme: Scheme::Both,
            ..Auth::bearer()
        },
    ] {
        let (upstream, image) = upstream_with(auth.clone()).await;
        let larder = Larder::start(&upstream).await;
        for _ in 0..3 {
            let answer = larder.get(&manifest_path("app", "1")).await;
            assert_eq!(answer.status, 200, "{auth:?}: {}", answer.text());
            answer.is_whole(&image.manifest.bytes);
        }
        let asked = upstream
            .log()
            .all()
            .iter()
            .filter(|asked| asked.path == "/token")
            .count();
        assert_eq!(asked, 1, "{auth:?}\n{}", upstream.log().lines());
    }
}

#[tokio::test]
async fn credentials_get_a_token_and_go_nowhere_else() {
    let (upstream, image) = upstream_with(Auth::bearer().with_credentials("me", "secret")).await;
    let larder = as_me(&upstream).start().await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    let log = upstream.log();
    let basic = basic_header("me", "secret");
    assert!(
        log.at(Role::Token)
            .all(|asked| asked.header("authorization") == Some(&basic))
    );
    let to_registry = log
        .at(Role::Registry)
        .filter_map(|asked| asked.header("authorization"));
    assert!(
        to_registry
            .into_iter()
            .all(|header| header.starts_with("Bearer ")),
        "{}",
        log.lines()
    );
    assert!(!larder.log().contains("secret"), "passwords are not logged");
}

#[tokio::test]
async fn basic_alone_and_beside_bearer_works() {
    for scheme in [Scheme::Basic, Scheme::Both] {
        let auth = Auth {
            scheme,
            ..Auth::default().with_credentials("me", "secret")
        };
        let (upstream, image) = upstream_with(auth).await;
        let larder = as_me(&upstream).start().await;
        larder
            .get(&manifest_path("app", "1"))
            .await
            .is_whole(&image.manifest.bytes);
        for blob in image.blobs() {
            larder
                .get(&blob_path("app", &blob.digest))
                .await
                .is_whole(&blob.bytes());
        }
        let wanted = usize::from(scheme == Scheme::Both);
        assert_eq!(
            upstream.log().token_requests(),
            wanted,
            "bearer is preferred where both are offered"
        );
    }
}

#[tokio::test]
async fn revoked_tokens_are_replaced_once_and_unseen() {
    let (upstream, image) = upstream_with(Auth::bearer()).await;
    let larder = Larder::start(&upstream).await;
    assert_eq!(larder.get(&manifest_path("app", "1")).await.status, 200);
    upstream.revoke_tokens();
    upstream.reset_log();
    let layer = &image.layers[0];
    larder
        .get(&blob_path("app", &layer.digest))
        .await
        .is_whole(&layer.bytes());
    let statuses: Vec<u16> = upstream
        .log()
        .of("GET", &layer.digest)
        .map(|asked| asked.status)
        .collect();
    assert_eq!(statuses, [401, 200], "{}", upstream.log().lines());
    assert_eq!(upstream.log().token_requests(), 1);
}

#[tokio::test]
async fn a_foreign_realm_sees_no_credentials_unless_it_is_allowed() {
    let auth = Auth {
        realm: Realm::OtherHost,
        ..Auth::bearer().with_credentials("me", "secret")
    };
    let (upstream, image) = upstream_with(auth).await;
    let larder = as_me(&upstream)
        .set("larder.realms", Vec::<String>::new())
        .start()
        .await;
    let answer = larder.get(&manifest_path("app", "1")).await;
    assert!(!matches!(answer.status, 200 | 401 | 404), "{}", answer.status);
    answer.error_code();
    assert!(
        upstream
            .log()
            .at(Role::Token)
            .all(|asked| asked.header("authorization").is_none())
    );
    let names_the_way_out = |text: &str| text.contains("larder.realms") && text.contains("localhost");
    assert!(names_the_way_out(&answer.text()), "{}", answer.text());
    larder
        .until("a line that tells the operator", || {
            names_the_way_out(&larder.log())
        })
        .await;

    let realm = upstream.token_host().replace("127.0.0.1", "localhost");
    for allowed in [realm.as_str(), "localhost"] {
        let larder = as_me(&upstream).set("larder.realms", vec![allowed]).start().await;
        larder
            .get(&manifest_path("app", "1"))
            .await
            .is_whole(&image.manifest.bytes);
    }
}

#[tokio::test]
async fn a_scope_that_is_never_granted_is_denied_without_a_loop() {
    let auth = Auth {
        is_scope_insufficient: true,
        ..Auth::bearer()
    };
    let (upstream, image) = upstream_with(auth).await;
    let larder = Larder::start(&upstream).await;
    for path in [manifest_path("app", "1"), blob_path("app", &image.config.digest)] {
        upstream.reset_log();
        let answer = larder.get(&path).await;
        assert_eq!((answer.status, answer.error_code()), (403, "DENIED".to_owned()));
        assert!(upstream.log().all().len() <= 6, "{}", upstream.log().lines());
    }
}

#[tokio::test]
async fn a_401_that_does_not_say_what_it_wants_is_denied() {
    let (upstream, _) = upstream_with(Auth {
        has_challenge: false,
        ..Auth::bearer()
    })
    .await;
    let larder = Larder::start(&upstream).await;
    let answer = larder.get(&manifest_path("app", "1")).await;
    assert_eq!((answer.status, answer.error_code()), (403, "DENIED".to_owned()));
    assert!(answer.header("www-authenticate").is_none());
    assert!(upstream.log().all().len() <= 4, "{}", upstream.log().lines());
}

#[tokio::test]
async fn a_token_server_that_refuses_means_denied() {
    let (upstream, _) = upstream_with(Auth::bearer().with_credentials("me", "another")).await;
    let larder = as_me(&upstream).start().await;
    let answer = larder.get(&manifest_path("app", "1")).await;
    assert_eq!((answer.status, answer.error_code()), (403, "DENIED".to_owned()));
}

#[tokio::test]
async fn what_is_held_needs_no_token_server() {
    let (upstream, image) = upstream_with(Auth::bearer()).await;
    let larder = Larder::start(&upstream).await;
    let layer = &image.layers[0];
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    larder
        .get(&blob_path("app", &layer.digest))
        .await
        .is_whole(&layer.bytes());
    upstream.revoke_tokens();
    upstream.fault(on("/token"), Fault::Status(500, vec![], String::new()));
    larder
        .get(&manifest_path("app", &image.manifest.digest))
        .await
        .is_whole(&image.manifest.bytes);
    larder
        .get(&blob_path("app", &layer.digest))
        .await
        .is_whole(&layer.bytes());
    let tag = larder.get(&manifest_path("app", "1")).await;
    tag.is_whole(&image.manifest.bytes);
    assert!(tag.header("warning").is_some());
}

#[tokio::test]
async fn a_first_answer_that_fails_does_not_settle_how_to_log_in() {
    let (upstream, image) = upstream_with(Auth::bearer().with_credentials("me", "secret")).await;
    upstream.fault_times(3, on("/"), Fault::Status(503, vec![], String::new()));
    let larder = as_me(&upstream).start().await;
    larder.get("/v2/app/manifests/1").await;
    upstream.heal();
    let answer = larder.get(&manifest_path("app", "1")).await;
    answer.is_whole(&image.manifest.bytes);
}

#[tokio::test]
async fn nothing_of_the_client_goes_upstream() {
    let (upstream, image) = upstream_with(Auth::default()).await;
    let larder = Larder::start(&upstream).await;
    let headers = [
        ("Authorization", "Basic Y2xpZW50OnNlY3JldA=="),
        ("Cookie", "a=b"),
        ("X-Secret", "yes"),
        ("If-None-Match", "\"x\""),
    ];
    larder
        .ask("GET", &manifest_path("app", "1"), &headers)
        .await
        .is_whole(&image.manifest.bytes);
    let path = format!("{}?ns=127.0.0.1", blob_path("app", &image.config.digest));
    larder.ask("GET", &path, &headers).await;
    for asked in upstream.log().all() {
        for name in ["authorization", "cookie", "x-secret", "if-none-match"] {
            assert_eq!(asked.header(name), None, "{} {}", asked.method, asked.path);
        }
        assert!(!asked.query.contains("ns="), "{}", asked.query);
        assert!(
            asked
                .header("user-agent")
                .is_some_and(|agent| agent.contains("larder"))
        );
    }
}

#[tokio::test]
async fn an_expired_token_that_answers_403_is_replaced_once() {
    let (upstream, image) = upstream_with(Auth::bearer()).await;
    let larder = Larder::start(&upstream).await;
    assert_eq!(larder.get(&manifest_path("app", "1")).await.status, 200);
    let body = r#"{"errors":[{"code":"DENIED","message":"Your authorization token has expired. Reauthenticate and try again."}]}"#;
    upstream.fault_times(1, on("/blobs/"), Fault::Status(403, vec![], body.to_owned()));
    let layer = &image.layers[0];
    larder
        .get(&blob_path("app", &layer.digest))
        .await
        .is_whole(&layer.bytes());
}

#[tokio::test]
async fn a_password_file_is_read_again_when_it_changes() {
    let (upstream, image) = upstream_with(Auth {
        uses: Some(1),
        ..Auth::bearer().with_credentials("me", "old")
    })
    .await;
    let builder = Builder::new(&upstream.url()).set("larder.realms", vec![upstream.token_host()]);
    let file = builder.folder().join("password");
    std::fs::write(&file, "old\n").unwrap();
    let larder = builder
        .set("proxy.username", "me")
        .set("larder.passwordfile", file.to_string_lossy().as_ref())
        .start()
        .await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    upstream.set_auth(Auth::bearer().with_credentials("me", "new"));
    upstream.revoke_tokens();
    std::fs::write(&file, "new\n").unwrap();
    let layer = &image.layers[0];
    larder
        .get(&blob_path("app", &layer.digest))
        .await
        .is_whole(&layer.bytes());
}

#[tokio::test]
async fn a_credential_helper_is_asked_again_when_its_answer_is_refused() {
    let (upstream, image) = upstream_with(Auth::bearer().with_credentials("me", "secret-1")).await;
    let builder = Builder::new(&upstream.url()).set("larder.realms", vec![upstream.token_host()]);
    let folder = builder.folder().to_owned();
    let helper = folder.join("helper");
    let script = format!(
        "#!/bin/sh\ncat >/dev/null\necho x >>{0}/calls\nprintf '{{\"Username\":\"me\",\"Secret\":\"secret-%d\"}}' $(wc -l <{0}/calls)\n",
        folder.display()
    );
    std::fs::write(&helper, script).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let larder = builder
        .env("PATH", "/usr/bin:/bin")
        .set("proxy.exec.command", helper.to_string_lossy().as_ref())
        .set("proxy.exec.lifetime", "1h")
        .start()
        .await;
    larder
        .get(&manifest_path("app", "1"))
        .await
        .is_whole(&image.manifest.bytes);
    upstream.set_auth(Auth::bearer().with_credentials("me", "secret-2"));
    upstream.revoke_tokens();
    let layer = &image.layers[0];
    larder
        .get(&blob_path("app", &layer.digest))
        .await
        .is_whole(&layer.bytes());
    let calls = std::fs::read_to_string(folder.join("calls"))
        .unwrap()
        .lines()
        .count();
    assert_eq!(calls, 2);
}
