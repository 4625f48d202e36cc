//! The files in `config/`: they load, they are complete, and they mean what they say.

use super::*;
use crate::config::schema::{SECTIONS, Shape};

#[test]
fn every_example_loads_without_a_warning_but_for_one_key_of_gardener() {
    for name in EXAMPLES {
        let expected: &[&str] = match name {
            "gardener.yml" => &["gardener.yml:12:3: without effect here: storage.tag"],
            _ => &[],
        };
        assert_eq!(warnings(&example(name)), expected, "{name}");
    }
}

#[test]
fn the_default_example_names_every_key_that_is_used() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/config/default.yml")).unwrap();
    let is_named = |key: &str| {
        text.lines().any(|line| {
            line.trim_start_matches(['#', ' '])
                .starts_with(&format!("{key}:"))
        })
    };
    let refused = ["loglevel", "token", "silly", "none", "letsencrypt"];
    let mut shapes: Vec<&Shape> = Vec::new();
    for field in SECTIONS
        .iter()
        .filter(|field| field.is_used && !refused.contains(&field.key))
    {
        assert!(is_named(field.key), "{}", field.key);
        shapes.push(&field.shape);
    }
    while let Some(shape) = shapes.pop() {
        let (Shape::Keys(fields) | Shape::Driver(fields)) = shape else {
            continue;
        };
        for field in fields
            .iter()
            .filter(|field| field.is_used && !refused.contains(&field.key))
        {
            assert!(is_named(field.key), "{}", field.key);
            shapes.push(&field.shape);
        }
    }
}

#[test]
fn the_default_example_and_its_bare_minimum_differ_only_where_it_says_so() {
    let documented = example("default.yml").config;
    let mut bare = config(
        "version: 0.1\nstorage: filesystem\nhttp: {addr: :5000}\nproxy: {remoteurl: https://registry-1.docker.io}\n",
    );
    bare.storage.is_delete_enabled = true;
    bare.http.drain_timeout = Duration::from_secs(25);
    bare.http.headers.clone_from(&documented.http.headers);
    bare.debug.clone_from(&documented.debug);
    bare.health = documented.health.clone();
    assert_eq!(documented, bare);
}

#[test]
fn gardeners_file_has_exactly_these_values() {
    let config = example("gardener.yml").config;
    let password = "{ \"type\": \"service_account\", \"client_email\": \"it's@example.com\", \"private_key\": \
                    \"-----BEGIN PRIVATE KEY-----\\nMIIB\\n-----END PRIVATE KEY-----\\n\" }";
    let [upstream] = config.proxy.upstreams.as_slice() else {
        panic!()
    };
    assert_eq!(
        upstream.credentials,
        Credentials::Password {
            username: "_json_key".to_owned(),
            password: Secret::new(password)
        }
    );
    assert_eq!(upstream.name, "europe-docker.pkg.dev");
    assert_eq!(upstream.remote_url.as_str(), "https://europe-docker.pkg.dev/");
    assert_eq!(config.proxy.ttl, Some(Duration::from_hours(168)));
    assert!(config.proxy.is_single);
    assert_eq!(config.proxy.default_upstream, Some(0));
    assert_eq!(config.storage.root, Path::new("/var/lib/registry"));
    assert!(config.storage.is_delete_enabled);
    assert_eq!(config.log.fields.get("service").unwrap(), "registry");
    assert_eq!(
        config.http.listen,
        Listen::Tcp(Address {
            host: String::new(),
            port: 5000
        })
    );
    assert_eq!(config.http.drain_timeout, Duration::from_secs(25));
    assert_eq!(
        config.http.headers,
        [(
            "x-content-type-options".parse().unwrap(),
            "nosniff".parse().unwrap()
        )]
    );
    let tls = config.http.tls.unwrap();
    assert_eq!(tls.certificate, Path::new("/etc/distribution/certs/tls.crt"));
    assert_eq!(tls.key, Path::new("/etc/distribution/certs/tls.key"));
    let debug = config.debug.unwrap();
    assert_eq!(debug.address.port, 5001);
    assert_eq!(debug.metrics_path.as_deref(), Some("/metrics"));
    let health = Health {
        is_storage_check_enabled: true,
        interval: Duration::from_secs(10),
        threshold: 3,
    };
    assert_eq!(config.health, health);
}

#[test]
fn the_hosting_example_owns_every_repository_and_needs_no_upstream() {
    let config = example("hosted.yml").config;
    let hosted = config.larder.hosted.unwrap();
    assert!(hosted.owns("a") && hosted.owns("team/app") && hosted.is_delete_enabled);
    assert_eq!(hosted.upload_expiry, Duration::from_hours(24));
    assert_eq!(hosted.quota_bytes, None);
    assert!(config.proxy.upstreams.is_empty() && config.proxy.is_single);
}

#[test]
fn hosted_patterns_are_checked_and_an_upstream_may_stand_beside_them() {
    let text = format!("{MINIMAL}larder: {{hosted: {{repositories: [team/*], quota: 1GiB}}}}\n");
    let both = config(&text);
    let hosted = both.larder.hosted.unwrap();
    assert!(hosted.owns("team/app") && !hosted.owns("library/alpine") && !hosted.is_delete_enabled);
    assert_eq!(hosted.quota_bytes, Some(1 << 30));
    assert_eq!(both.proxy.upstreams.len(), 1);
    let wrong = load(&text.replace("team/*", "Team"), &[]).unwrap_err();
    assert_eq!(wrong.problems[0].key, "larder.hosted.repositories");
}
