//! `REGISTRY_*` variables over a small file.

use super::*;

#[test]
fn a_variable_beats_the_file_and_is_read_as_yaml() {
    let loaded = with_variables(&[
        ("REGISTRY_HTTP_ADDR", "127.0.0.1:0"),
        ("REGISTRY_HTTP_HEADERS", "{X-A: [b, c]}"),
        ("REGISTRY_LOG_ACCESSLOG_DISABLED", "yes"),
        ("REGISTRY_LOG_FIELDS_POD", "larder-0"),
        ("REGISTRY_HEALTH_STORAGEDRIVER_THRESHOLD", "3"),
        ("REGISTRY_PROXY_TTL", "24h"),
        ("REGISTRY_PROXY_USERNAME", "0123"),
        ("REGISTRY_PROXY_PASSWORD", "'a: #b'"),
        ("REGISTRY_LARDER_MAXSIZE", "10GiB"),
        ("REGISTRY_LARDER_TIMEOUTS_CONNECT", "1s"),
    ]);
    assert_eq!(warnings(&loaded), [""; 0]);
    let config = loaded.config;
    assert_eq!(
        config.http.listen,
        Listen::Tcp(Address {
            host: "127.0.0.1".to_owned(),
            port: 0
        })
    );
    assert_eq!(config.http.headers.len(), 2);
    assert!(!config.log.is_access_log_enabled);
    assert_eq!(config.log.fields.get("pod").unwrap(), "larder-0");
    assert_eq!(config.health.threshold, 3);
    assert_eq!(config.proxy.ttl, Some(Duration::from_hours(24)));
    assert_eq!(
        config.proxy.upstreams[0].credentials,
        Credentials::Password {
            username: "0123".to_owned(),
            password: Secret::new("a: #b")
        }
    );
    assert_eq!(config.larder.max_size, SizeLimit::Bytes(10 << 30));
    assert_eq!(config.larder.timeouts.connect, Duration::from_secs(1));
}

#[test]
fn variables_are_applied_in_sorted_order() {
    let config = with_variables(&[
        ("REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY", "/b"),
        (
            "REGISTRY_STORAGE",
            "{filesystem: {rootdirectory: /a}, delete: {enabled: true}}",
        ),
    ])
    .config;
    assert_eq!(
        (config.storage.root.as_path(), config.storage.is_delete_enabled),
        (Path::new("/b"), true)
    );
    let config = with_variables(&[
        ("REGISTRY_STORAGE", "filesystem"),
        ("REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY", "/c"),
    ])
    .config;
    assert_eq!(config.storage.root, Path::new("/c"));
}

#[test]
fn an_empty_variable_takes_a_key_back() {
    let text = format!(
        "{}\n",
        MINIMAL.replace("{addr: :5000}", "{addr: :5000, debug: {addr: :5001}}")
    );
    assert!(config(&text).debug.is_some());
    assert!(
        load(&text, &[("REGISTRY_HTTP_DEBUG_ADDR", "")])
            .unwrap()
            .config
            .debug
            .is_none()
    );
}

#[test]
fn items_of_lists_are_set_by_index_and_the_next_one_is_new() {
    let config = with_variables(&[
        ("REGISTRY_LARDER_REALMS_0", "a.example.com"),
        ("REGISTRY_LARDER_REALMS_1", "b.example.com:8443"),
        ("REGISTRY_LARDER_UPSTREAMS", "[{remoteurl: https://quay.io}]"),
        ("REGISTRY_LARDER_UPSTREAMS_0_INSECURE", "true"),
        ("REGISTRY_LARDER_UPSTREAMS_1_REMOTEURL", "https://ghcr.io"),
        ("REGISTRY_LARDER_UPSTREAMS_1_EXEC_COMMAND", "helper"),
        ("REGISTRY_HEALTH_FILECHECKERS_0_FILE", "/down"),
    ])
    .config;
    assert_eq!(config.larder.realms, ["a.example.com", "b.example.com:8443"]);
    let [_, quay, ghcr] = config.proxy.upstreams.as_slice() else {
        panic!()
    };
    assert!(quay.tls.is_insecure);
    assert_eq!(
        ghcr.credentials,
        Credentials::Helper {
            command: "helper".to_owned(),
            lifetime: None
        }
    );
}

#[test]
fn nested_maintenance_which_distribution_panics_on_is_accepted() {
    let loaded = with_variables(&[
        ("REGISTRY_STORAGE_MAINTENANCE_UPLOADPURGING_ENABLED", "false"),
        ("REGISTRY_STORAGE_MAINTENANCE_READONLY_ENABLED", "true"),
        ("REGISTRY_STORAGE_DELETE_ENABLED", "true"),
    ]);
    assert!(loaded.config.storage.is_delete_enabled);
    assert_eq!(
        warnings(&loaded),
        ["REGISTRY_STORAGE_MAINTENANCE_READONLY_ENABLED: without effect here: storage.maintenance"]
    );
}

#[test]
fn what_kubernetes_sets_for_services_only_warns_once() {
    let names = [
        ("REGISTRY_PORT", "tcp://10.0.0.1:5000"),
        ("REGISTRY_SERVICE_HOST", "10.0.0.1"),
        ("REGISTRY_SERVICE_PORT", "5000"),
        ("REGISTRY_SERVICE_PORT_HTTP", "5000"),
        ("REGISTRY_STORAGE_PORT", "tcp://10.0.0.1:5000"),
        ("REGISTRY_STORAGE_PORT_5000_TCP", "tcp://10.0.0.1:5000"),
        ("REGISTRY_STORAGE_PORT_5000_TCP_ADDR", "10.0.0.1"),
        ("REGISTRY_AUTH_SERVICE_HOST", "10.0.0.1"),
        ("REGISTRY_LOG_FIELDS_PORT_80_UDP_PROTO", "udp"),
        ("REGISTRY_HTTP_TLS_PORT", "tcp://[::1]:5000"),
    ];
    let loaded = with_variables(&names);
    assert_eq!(loaded.config, with_variables(&[]).config);
    let [warning] = loaded.warnings.as_slice() else {
        panic!("{:?}", loaded.warnings)
    };
    for (name, _) in names {
        assert!(warning.message.contains(name), "{name}");
    }
}

#[test]
fn what_names_no_key_is_ignored_with_a_warning() {
    for (name, value, expected) in [
        (
            "REGISTRY_PROXY_REMOTE_URL",
            "x",
            "; did you mean `REMOTEURL` where it says `REMOTE_URL`?",
        ),
        (
            "REGISTRY_STORAGE_FILESYSTEM_ROOTDIR_ECTORY",
            "x",
            "; did you mean `ROOTDIRECTORY` where it says `ROOTDIR_ECTORY`?",
        ),
        (
            "REGISTRY_HTTP_addr",
            ":1",
            "; did you mean `ADDR` where it says `addr`?",
        ),
        ("REGISTRY_HTTP_ADDR_X", ":1", ""),
        ("REGISTRY_HEALTH_FILE_0_FILE", "/down", ""),
        ("REGISTRY_", "x", ""),
    ] {
        let loaded = with_variables(&[(name, value)]);
        assert_eq!(loaded.config, with_variables(&[]).config);
        let expected = format!("{name}: is not known and ignored{expected}");
        assert_eq!(warnings(&loaded), [expected]);
    }
}

#[test]
fn what_does_not_begin_with_the_prefix_is_not_looked_at() {
    let loaded = with_variables(&[
        ("registry_http_addr", ":1"),
        ("PATH", "a: b: c"),
        ("REGISTRY", "x"),
    ]);
    assert_eq!(
        (loaded.config, loaded.warnings.len()),
        (with_variables(&[]).config, 0)
    );
}

#[test]
fn wrong_variables_are_errors_that_name_them() {
    for (name, value, expected) in [
        (
            "REGISTRY_HTTP_ADDR",
            "a: b: c",
            "is no YAML: mapping values are not allowed in this context",
        ),
        (
            "REGISTRY_LARDER_REALMS_1",
            "x",
            "the list has 0 items, so the next one is `0`, not `1`",
        ),
        (
            "REGISTRY_LARDER_REALMS_X",
            "x",
            "`X` must be the number of an item in the list",
        ),
        (
            "REGISTRY_LARDER_REALMS_-1",
            "x",
            "`-1` must be the number of an item in the list",
        ),
        (
            "REGISTRY_PROXY_TTL",
            "soon",
            "`proxy.ttl`: expected a duration, found `soon`",
        ),
        (
            "REGISTRY_LOG",
            "info",
            "`log`: expected keys with values, found `info`",
        ),
        (
            "REGISTRY_STORAGE_S3_BUCKET",
            "b",
            "`storage.s3`: is a storage driver larder does not have",
        ),
        (
            "REGISTRY_AUTH_TOKEN_REALM",
            "r",
            "`auth`: `token` is a login larder does not have, and it does not serve without it",
        ),
        (
            "REGISTRY_AUTH_LDAP_URL",
            "r",
            "`auth`: `ldap` is a login larder does not have, and it does not serve without it",
        ),
    ] {
        let error = load(MINIMAL, &[(name, value)]).unwrap_err().to_string();
        assert_eq!(error, format!("{name}: {expected}"));
    }
}

#[test]
fn text_that_yaml_takes_for_a_comment_is_told() {
    let loaded = with_variables(&[
        ("REGISTRY_PROXY_PASSWORD", "abc #def"),
        ("REGISTRY_PROXY_USERNAME", "u#v"),
    ]);
    assert_eq!(
        warnings(&loaded),
        ["REGISTRY_PROXY_PASSWORD: what follows ` #` is a comment in YAML and is not used; quote the value"]
    );
}
