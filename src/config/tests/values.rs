//! Values that are right, among them those distribution and Gardener write in surprising ways.

use super::*;

fn gardener(username: &str, password: &str) -> Credentials {
    let text = format!(
        "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: /data\nhttp:\n  addr: :5000\nproxy:\n  remoteurl: \
         https://example.com\n  username: {username}\n  password: '{password}'\n"
    );
    config(&text).proxy.upstreams.remove(0).credentials
}

#[test]
fn a_user_name_without_quotes_stays_the_text_it_is() {
    for username in [
        "0123",
        "1e3",
        "0x1f",
        "true",
        "no",
        "null",
        "~",
        "12:34:56",
        "2024-01-01",
        "1_000",
        ".inf",
        "a#b",
        "a@b:c",
    ] {
        let expected = Credentials::Password {
            username: username.to_owned(),
            password: Secret::new("p"),
        };
        assert_eq!(gardener(username, "p"), expected, "{username}");
    }
}

#[test]
fn a_password_in_single_quotes_is_folded_as_libyaml_folds_it() {
    let long = "x".repeat(5000);
    for (written, read) in [
        ("it''s", "it's"),
        ("a\nb", "a b"),
        ("a\n\nb", "a\nb"),
        ("{\n  \"k\": 1\n}\n", "{ \"k\": 1 } "),
        ("{\r\n  \"k\": 1\r\n}", "{ \"k\": 1 }"),
        ("a\n# no comment\nb", "a # no comment b"),
        ("a\n- b\nkey: c\n%d\n...e", "a - b key: c %d ...e"),
        ("-----BEGIN\n-----END", "-----BEGIN -----END"),
        ("a\\nb", "a\\nb"),
        (" a ", " a "),
        ("\ta\t\n\tb", "\ta b"),
        ("%41{[&*!|>\"", "%41{[&*!|>\""),
        ("0", "0"),
        ("ä∞", "ä∞"),
        (&long, &long),
    ] {
        let expected = Credentials::Password {
            username: "u".to_owned(),
            password: Secret::new(read),
        };
        assert_eq!(gardener("u", written), expected, "{written}");
    }
}

#[test]
fn an_empty_user_or_password_is_none() {
    let loaded = load(
        MINIMAL,
        &[("REGISTRY_PROXY_USERNAME", "u"), ("REGISTRY_PROXY_PASSWORD", "")],
    )
    .unwrap();
    assert_eq!(
        loaded.config.proxy.upstreams[0].credentials,
        Credentials::Anonymous
    );
    assert_eq!(
        warnings(&loaded),
        [
            "REGISTRY_PROXY_USERNAME: `proxy.username`: has no `password` beside it, so upstream is asked without a login"
        ]
    );
}

#[test]
fn a_time_to_live_of_nothing_or_less_is_for_ever() {
    for (ttl, expected) in [
        ("0s", None),
        ("0", None),
        ("-1s", None),
        ("168h0m0s", Some(Duration::from_hours(168))),
        ("7d", Some(Duration::from_hours(168))),
        ("604800000000000", Some(Duration::from_hours(168))),
        ("", Some(Duration::from_hours(168))),
    ] {
        assert_eq!(
            with_variables(&[("REGISTRY_PROXY_TTL", ttl)]).config.proxy.ttl,
            expected,
            "{ttl}"
        );
    }
}

#[test]
fn a_bare_number_that_was_meant_as_seconds_is_warned_about() {
    let loaded = with_variables(&[("REGISTRY_HTTP_DRAINTIMEOUT", "25")]);
    assert_eq!(loaded.config.http.drain_timeout, Duration::from_nanos(25));
    assert_eq!(
        warnings(&loaded),
        [
            "REGISTRY_HTTP_DRAINTIMEOUT: `http.draintimeout`: a bare number is nanoseconds; for seconds write `25s`"
        ]
    );
}

#[test]
fn the_old_log_level_counts_where_the_new_one_is_not_set() {
    for (text, level) in [
        ("loglevel: DEBUG", LogLevel::Debug),
        ("loglevel: debug\nlog: {level: error}", LogLevel::Error),
        ("log: {level: warn}", LogLevel::Warn),
        ("log: {}", LogLevel::Info),
    ] {
        assert_eq!(config(&format!("{MINIMAL}{text}\n")).log.level, level, "{text}");
    }
}

#[test]
fn urls_of_registries() {
    for (url, name, remote_url) in [
        (
            "https://registry-1.docker.io",
            "docker.io",
            "https://registry-1.docker.io/",
        ),
        (
            "https://index.docker.io/",
            "docker.io",
            "https://index.docker.io/",
        ),
        (
            "http://localhost:5000",
            "localhost:5000",
            "http://localhost:5000/",
        ),
        (
            "https://Example.COM:443/a/b",
            "example.com",
            "https://example.com/a/b/",
        ),
        ("http://[::1]:5000", "[::1]:5000", "http://[::1]:5000/"),
    ] {
        let loaded = with_variables(&[("REGISTRY_PROXY_REMOTEURL", url)]);
        let upstream = &loaded.config.proxy.upstreams[0];
        assert_eq!(
            (upstream.name.as_str(), upstream.remote_url.as_str()),
            (name, remote_url)
        );
        assert_eq!(upstream.is_docker_hub(), name == "docker.io");
    }
    for url in [
        "example.com",
        "ftp://x",
        "https://",
        "https://x?y",
        "https://x#y",
        "https://a b",
        "file:///etc",
    ] {
        assert!(
            load(MINIMAL, &[("REGISTRY_PROXY_REMOTEURL", url)]).is_err(),
            "{url}"
        );
    }
}

#[test]
fn user_and_password_in_a_url_are_taken_out_of_it() {
    let loaded = with_variables(&[(
        "REGISTRY_PROXY_REMOTEURL",
        "https://me%40x:s%2Fe+%26=c@example.com",
    )]);
    let upstream = &loaded.config.proxy.upstreams[0];
    let expected = Credentials::Password {
        username: "me@x".to_owned(),
        password: Secret::new("s/e+&=c"),
    };
    assert_eq!(upstream.credentials, expected);
    assert_eq!(upstream.remote_url.as_str(), "https://example.com/");
    let shown = format!(
        "{} {:?} {:?}",
        report::effective(&loaded),
        loaded.warnings,
        loaded.config
    );
    assert!(!shown.contains("s%2Fe") && !shown.contains("s/e"), "{shown}");
}

#[test]
fn docker_hub_answers_to_all_its_names() {
    let config = config(MINIMAL.replace("example.com", "registry-1.docker.io").as_str());
    for name in [
        "docker.io",
        "index.docker.io",
        "registry-1.docker.io",
        "Docker.IO",
    ] {
        assert!(config.proxy.upstreams[0].answers_to(name), "{name}");
    }
    assert!(!config.proxy.upstreams[0].answers_to("ghcr.io"));
}

#[test]
fn the_single_upstream_is_the_default_one_of_many() {
    let text = format!("{MINIMAL}larder: {{upstreams: [{{remoteurl: https://quay.io}}]}}\n");
    let proxy = config(&text).proxy;
    let names: Vec<&str> = proxy
        .upstreams
        .iter()
        .map(|upstream| upstream.name.as_str())
        .collect();
    assert_eq!(
        (names, proxy.default_upstream, proxy.is_single),
        (vec!["example.com", "quay.io"], Some(0), false)
    );
    let without = text.replace("proxy: {remoteurl: https://example.com}", "");
    let proxy = config(&without).proxy;
    assert_eq!(
        (proxy.upstreams.len(), proxy.default_upstream, proxy.is_single),
        (1, None, false)
    );
}

#[test]
fn without_a_file_there_is_docker_hub() {
    let loaded = interpret(
        parse(BUILT_IN, Source::Default, Findings::new(None)).unwrap(),
        None,
        Vec::new(),
    );
    let Loaded {
        config,
        warnings,
        source,
        ..
    } = loaded.unwrap();
    assert_eq!((warnings.len(), source), (0, None));
    assert_eq!(
        config.proxy.upstreams[0].remote_url.as_str(),
        "https://registry-1.docker.io/"
    );
    assert_eq!(config.storage.root, Path::new("./larder-data"));
    assert_eq!(config.debug.unwrap().address.port, 5001);
}

#[test]
fn the_file_is_the_one_named_last() {
    let directory = tempfile::tempdir().unwrap();
    let default = directory.path().join("config.yml");
    let variables = [(
        environment::CONFIGURATION_PATH.to_owned(),
        "/from/variable".to_owned(),
    )];
    assert_eq!(choose_file(None, &[], &default), None);
    std::fs::write(&default, MINIMAL).unwrap();
    assert_eq!(choose_file(None, &[], &default), Some(default.clone()));
    assert_eq!(
        choose_file(None, &variables, &default),
        Some("/from/variable".into())
    );
    assert_eq!(
        choose_file(Some(Path::new("/named")), &variables, &default),
        Some("/named".into())
    );
    assert_eq!(Config::load(Some(&default), []).unwrap().source, Some(default));
}
