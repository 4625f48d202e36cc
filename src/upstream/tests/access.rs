//! Who we are: tokens, logins, realms, rate limits.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const MANIFEST: &str = r#"{"schemaVersion":2}"#;

/// A registry that wants bearer tokens of its own `/token`, and gives `token-N` for the Nth time it is asked.
/// `is_good` says of an `Authorization` whether it will do.
async fn registry(challenge: &'static str, is_good: impl Fn(&str) -> bool + Send + Sync + 'static) -> Server {
    let tokens = AtomicUsize::new(0);
    Server::start(move |seen, _| {
        if seen.target.starts_with("/token") {
            let n = tokens.fetch_add(1, Ordering::SeqCst) + 1;
            return reply(200, &[], format!(r#"{{"token":"{n}","expires_in":300}}"#));
        }
        match &seen.authorization {
            Some(authorization) if is_good(authorization) => reply(200, &[], MANIFEST),
            _ => reply(
                401,
                &[("www-authenticate", challenge)],
                r#"{"errors":[{"code":"UNAUTHORIZED"}]}"#,
            ),
        }
    })
    .await
}

const RELATIVE: &str = r#"Bearer realm="/token",service="test",scope="repository:team/app:pull""#;

#[tokio::test]
async fn sixty_four_requests_cause_one_token_and_the_next_repository_asks_for_its_own_at_once() {
    let server = registry(RELATIVE, |shown| shown.starts_with("Bearer ")).await;
    let upstream = connect(settings(&server.url));
    let (name, tag) = (name(), tag());
    let all = futures::future::join_all((0..64).map(|_| upstream.get_manifest(&name, &tag))).await;
    assert!(all.into_iter().all(|got| got.unwrap().bytes == MANIFEST));
    assert_eq!(
        server.count("GET /token?service=test&scope=repository%3Ateam%2Fapp%3Apull"),
        1
    );
    server.seen.lock().clear();
    upstream
        .get_manifest(&Name::parse("other").unwrap(), &tag)
        .await
        .unwrap();
    let targets: Vec<_> = server.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(
        targets,
        [
            "/token?service=test&scope=repository%3Aother%3Apull",
            "/v2/other/manifests/v1"
        ]
    );
}

#[tokio::test]
async fn nothing_is_asked_beforehand_of_a_registry_that_asks_for_nothing() {
    let server = Server::start(|_, _| reply(200, &[], MANIFEST)).await;
    let upstream = connect(settings(&server.url));
    assert!(server.seen().is_empty());
    for _ in 0..3 {
        upstream.get_manifest(&name(), &tag()).await.unwrap();
    }
    assert_eq!(
        (server.count("GET /v2/team/app/manifests/v1"), server.seen().len()),
        (3, 3)
    );
}

#[tokio::test]
async fn a_revoked_token_is_replaced_once_and_one_that_is_refused_anew_is_not() {
    let server = registry(RELATIVE, |shown| shown == "Bearer 2").await;
    let upstream = connect(settings(&server.url));
    // The first token is new and still refused: nothing suggests that another one would do.
    assert!(matches!(
        upstream.get_manifest(&name(), &tag()).await,
        Err(Error::Denied { .. })
    ));
    assert_eq!(server.count("GET /token"), 1);
    // Now it is old.
    upstream.get_manifest(&name(), &tag()).await.unwrap();
    assert_eq!(server.count("GET /token"), 2);
}

#[tokio::test]
async fn a_token_that_ends_in_the_middle_of_a_blob_is_replaced_by_the_resumed_request() {
    let server = Server::start(|seen, before| match (&seen.authorization, &seen.range) {
        _ if seen.target.starts_with("/token") => {
            reply(200, &[], format!(r#"{{"access_token":"{before}"}}"#))
        }
        (Some(shown), None) if shown == "Bearer 0" => reply(200, &[], "0123456789"),
        (Some(shown), Some(_)) if shown == "Bearer 1" => {
            reply(206, &[("content-range", "bytes 4-9/10")], "456789")
        }
        _ => reply(401, &[("WWW-Authenticate", RELATIVE)], ""),
    })
    .await;
    let upstream = connect(settings(&server.url));
    assert_eq!(
        read(upstream.get_blob(&name(), &digest(), None).await.unwrap())
            .await
            .unwrap(),
        b"0123456789"
    );
    let range = Range { start: 4, end: None };
    let rest = upstream.get_blob(&name(), &digest(), Some(range)).await.unwrap();
    assert_eq!(
        (rest.start, rest.total_bytes, rest.is_partial),
        (4, Some(10), true)
    );
    assert_eq!(read(rest).await.unwrap(), b"456789");
    assert_eq!(server.count("GET /token"), 2);
}

#[tokio::test]
async fn what_a_token_does_not_allow_is_denied_without_asking_for_another() {
    let challenge =
        r#"Bearer realm="/token",service="test",scope="repository:team/app:pull",error="insufficient_scope""#;
    let server = registry(challenge, |_| false).await;
    let upstream = connect(settings(&server.url));
    for _ in 0..2 {
        match upstream.get_manifest(&name(), &tag()).await {
            Err(Error::Denied { message }) => assert_eq!(message, "UNAUTHORIZED"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.count("GET /token"), 1);
    assert_eq!(server.count("GET /v2/"), 3);
}

#[tokio::test]
async fn a_401_that_does_not_say_how_to_log_in_is_a_denial() {
    let server = Server::start(|_, _| reply(401, &[], "")).await;
    let upstream = connect(settings(&server.url));
    assert!(matches!(
        upstream.get_manifest(&name(), &tag()).await,
        Err(Error::Denied { .. })
    ));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn basic_is_used_where_it_is_asked_for_and_bearer_where_both_are() {
    let basic = registry("Basic realm=\"x\"", |shown| shown == ALICE).await;
    let upstream = connect(Settings {
        credentials: alice(),
        ..settings(&basic.url)
    });
    assert!(!upstream.is_public());
    upstream.get_manifest(&name(), &tag()).await.unwrap();
    upstream.get_manifest(&name(), &tag()).await.unwrap();
    assert_eq!(basic.seen().len(), 3);

    let both = registry(r#"Basic realm="x", Bearer realm="/token",service="s""#, |shown| {
        shown == "Bearer 1"
    })
    .await;
    let upstream = connect(Settings {
        credentials: alice(),
        ..settings(&both.url)
    });
    upstream.get_manifest(&name(), &tag()).await.unwrap();
    let token = both
        .seen()
        .into_iter()
        .find(|seen| seen.target.starts_with("/token"))
        .unwrap();
    assert_eq!(token.authorization.as_deref(), Some(ALICE));

    let nobody = connect(settings(&basic.url));
    assert!(nobody.is_public());
    assert!(matches!(
        nobody.get_manifest(&name(), &tag()).await,
        Err(Error::Denied { .. })
    ));
}

#[tokio::test]
async fn credentials_go_to_a_realm_elsewhere_only_when_it_is_allowed() {
    let tokens = Arc::new(Server::start(|_, _| reply(200, &[], r#"{"token":"t"}"#)).await);
    let challenge: &'static str = format!(r#"Bearer realm="{}x",service="s""#, tokens.url).leak();
    let server = registry(challenge, |shown| shown == "Bearer t").await;

    let strict = connect(Settings {
        credentials: alice(),
        ..settings(&server.url)
    });
    match strict.get_manifest(&name(), &tag()).await {
        Err(Error::Denied { message }) => {
            assert!(
                message.contains(&format!("`{}` to `larder.realms`", tokens.host())),
                "{message}"
            );
            assert!(message.contains(tokens.url.as_str()), "{message}");
        }
        other => panic!("{other:?}"),
    }
    assert!(tokens.seen().is_empty());

    let realms = vec![tokens.host()];
    let told = connect(Settings {
        credentials: alice(),
        realms,
        ..settings(&server.url)
    });
    told.get_manifest(&name(), &tag()).await.unwrap();
    assert_eq!(
        tokens.seen().first().unwrap().authorization.as_deref(),
        Some(ALICE)
    );

    // Who has nothing to lose may ask.
    let nobody = connect(settings(&server.url));
    nobody.get_manifest(&name(), &tag()).await.unwrap();
    assert_eq!(tokens.seen().last().unwrap().authorization, None);
}

#[tokio::test]
async fn the_token_services_failures_are_told_apart() {
    for (status, body) in [(401, ""), (503, ""), (200, "<html>"), (302, ""), (429, "")] {
        let server = Server::start(move |seen, _| {
            if seen.target.starts_with("/token") {
                return reply(
                    status,
                    &[("location", "http://127.0.0.1:1/"), ("retry-after", "7")],
                    body,
                );
            }
            reply(401, &[("www-authenticate", RELATIVE)], "")
        })
        .await;
        let error = connect(settings(&server.url))
            .get_blob(&name(), &digest(), None)
            .await
            .unwrap_err();
        let is_right = match status {
            401 => matches!(error, Error::Denied { .. }),
            503 => matches!(error, Error::Unavailable { status: 503, .. }),
            429 => {
                matches!(&error, Error::RateLimited { retry_after: Some(left), .. } if left.as_secs() == 7)
            }
            _ => matches!(error, Error::Invalid { .. }),
        };
        assert!(is_right, "{status}: {error:?}");
    }
}

#[tokio::test]
async fn a_new_password_in_the_file_is_used_at_the_next_refusal() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "old\n").unwrap();
    // `alice:new`
    let server = registry("Basic realm=x", |shown| shown == "Basic YWxpY2U6bmV3").await;
    let credentials = Credentials::PasswordFile {
        username: "alice".to_owned(),
        path: file.path().to_owned(),
    };
    let upstream = connect(Settings {
        credentials,
        ..settings(&server.url)
    });
    assert!(matches!(
        upstream.get_manifest(&name(), &tag()).await,
        Err(Error::Denied { .. })
    ));
    std::fs::write(file.path(), "new\n").unwrap();
    upstream.get_manifest(&name(), &tag()).await.unwrap();
}

#[tokio::test]
async fn a_token_of_ecr_that_is_over_is_replaced_by_the_helper() {
    let folder = tempfile::tempdir().unwrap();
    let helper = folder.path().join("helper");
    let count = folder.path().join("count");
    let script = format!(
        "#!/bin/sh\necho >> {0}\nprintf '{{\"Username\":\"AWS\",\"Secret\":\"%s\"}}' $(wc -l < {0})\n",
        count.display()
    );
    std::fs::write(&helper, script).unwrap();
    std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
    let server = Server::start(|seen, before| match seen.authorization.as_deref() {
        None => reply(401, &[("www-authenticate", "Basic realm=\"ecr\"")], ""),
        // `AWS:1`, and the second time it is over; then `AWS:2`.
        Some("Basic QVdTOjE=") if before < 2 => reply(200, &[], MANIFEST),
        Some("Basic QVdTOjI=") => reply(200, &[], MANIFEST),
        Some(_) => reply(403, &[], r#"{"errors":[{"code":"DENIED","message":"Your authorization token has expired. Reauthenticate."}]}"#),
    })
    .await;
    let credentials = Credentials::Exec {
        command: helper.to_str().unwrap().to_owned(),
        lifetime: None,
    };
    let upstream = connect(Settings {
        credentials,
        ..settings(&server.url)
    });
    for _ in 0..3 {
        upstream.get_manifest(&name(), &tag()).await.unwrap();
    }
    assert_eq!(std::fs::read_to_string(count).unwrap().len(), 2);
    assert_eq!(server.seen().len(), 5);
}

#[tokio::test]
async fn after_a_429_the_registry_is_left_alone() {
    let body =
        r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit."}]}"#;
    let server = Server::start(move |_, _| reply(429, &[("retry-after", "17")], body)).await;
    let upstream = connect(settings(&server.url));
    match upstream.head_manifest(&name(), &tag()).await {
        Err(Error::RateLimited { retry_after, .. }) => assert_eq!(retry_after, Some(Duration::from_secs(17))),
        other => panic!("{other:?}"),
    }
    match upstream.get_blob(&name(), &digest(), None).await {
        Err(Error::RateLimited {
            retry_after: Some(left),
            ..
        }) => {
            assert!(
                (Duration::from_secs(14)..=Duration::from_secs(17)).contains(&left),
                "{left:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(server.seen().len(), 1);
}
