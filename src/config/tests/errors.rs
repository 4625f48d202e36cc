//! What is refused or warned about, with its place and its words.

use super::*;

#[test]
fn each_wrong_value_has_its_place_and_all_are_told_at_once() {
    let text = "version: 0.1
log:
  level: loud
  accesslog: {disabled: 'true'}
storage:
  filesystem: {}
  s3: {bucket: b}
http:
  addr: 5000
  headers:
    X-A: b
  draintimeout: 5x
  tls: {certificate: /a}
health:
  storagedriver: {threshold: many}
proxy:
  remoteurl: registry-1.docker.io
  password: [secret]
  ttl: {}
larder:
  maxsize: 0%
  timeouts: {idle: 0s}
";
    assert_eq!(
        errors(text),
        [
            "config.yml:3:10: `log.level`: expected one of `error`, `warn`, `info`, `debug`, found `loud`",
            "config.yml:4:25: `log.accesslog.disabled`: expected `true` or `false`, found `true` in quotes",
            "config.yml:7:7: `storage.s3`: is a storage driver larder does not have",
            "config.yml:9:9: `http.addr`: expected an address to listen on, found `5000`",
            "config.yml:11:10: `http.headers.X-A`: expected a list, found `b`",
            "config.yml:12:17: `http.draintimeout`: expected a duration that is not negative, found `5x`",
            "config.yml:13:3: `http.tls.key`: is missing beside `certificate`",
            "config.yml:15:30: `health.storagedriver.threshold`: expected a whole number, found `many`",
            "config.yml:17:14: `proxy.remoteurl`: expected the URL of a registry, found `registry-1.docker.io`",
            "config.yml:18:13: `proxy.password`: expected text, found a list",
            "config.yml:19:8: `proxy.ttl`: expected a duration, found keys with values",
            "config.yml:21:12: `larder.maxsize`: expected a number of bytes or a percentage from 1% to 100%, found `0%`",
            "config.yml:22:20: `larder.timeouts.idle`: must be longer than 0",
        ]
    );
}

#[test]
fn text_that_is_no_configuration_is_refused_with_a_place() {
    for (text, expected) in [
        (
            "a: b: c",
            "config.yml:1:5: mapping values are not allowed in this context",
        ),
        ("a: 'b", "config.yml:1:4: unclosed quote"),
        (
            "a:\n\tx: 1",
            "config.yml:2:2: tabs disallowed within this context (block indentation)",
        ),
    ] {
        assert_eq!(errors(text)[0], expected);
    }
    let error = load_bytes(b"a: b\nc: \xff", Path::new("config.yml"), Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "config.yml:2:4: is not UTF-8 text");
    let missing = Config::load(Some(Path::new("/does/not/exist.yml")), []).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("/does/not/exist.yml: cannot be read: No such file")
    );
    assert!(!missing.hints().is_empty());
    assert!(
        Config::load(Some(Path::new("/dev/zero")), [])
            .unwrap_err()
            .to_string()
            .contains("larger than")
    );
}

#[test]
fn keys_that_stand_twice_are_refused() {
    let text = format!("{MINIMAL}log: {{level: info}}\nlog:\n  level: debug\n");
    assert_eq!(
        errors(&text),
        ["config.yml:6:1: `log`: is there twice; it stands in line 5 already"]
    );
}

#[test]
fn nothing_that_asks_for_a_login_or_for_tls_is_served_without() {
    for text in [
        "auth: {token: {realm: r}}",
        "auth: token",
        "auth: {silly: {}}",
        "auth: {htpasswd: {realm: r, path: p}, token: {}}",
        "auth: {none: {}, token: {}}",
        "auth: [htpasswd]",
        "auth: {htpasswd: {realm: r}}",
        "auth: {htpasswd: }",
        "auth: {Htpasswd: {realm: r, path: p}}",
    ] {
        assert!(load(&format!("{MINIMAL}{text}\n"), &[]).is_err(), "{text}");
    }
    for tls in [
        "{letsencrypt: {cachefile: /c}}",
        "{letsencrypt: {hosts: [a]}}",
        "{key: /k}",
        "{certificate: /c}",
        "{clientcas: [/c]}",
        "{certificate: /c, key: /k, minimumtls: tls1.0}",
        "{certificate: /c, key: /k, clientauth: maybe}",
        "{certificate: /c, key: /k, ciphersuites: [TLS_RSA_WITH_AES_128_CBC_SHA]}",
        "{certificate: /c, key: /k, clientcas: /c}",
        "/c",
    ] {
        let text = MINIMAL.replace("{addr: :5000}", &format!("{{addr: :5000, tls: {tls}}}"));
        assert!(load(&text, &[]).is_err(), "{tls}");
    }
    for text in ["auth: none", "auth: {none: {}}", "auth:", "auth: {}"] {
        assert_eq!(config(&format!("{MINIMAL}{text}\n")).auth, None, "{text}");
    }
    let htpasswd = config(&format!("{MINIMAL}auth: {{htpasswd: {{realm: r, path: /p}}}}\n")).auth;
    assert_eq!(
        htpasswd,
        Some(Auth::Htpasswd {
            realm: "r".to_owned(),
            path: "/p".into()
        })
    );
}

#[test]
fn what_distribution_requires_is_required() {
    for (text, expected) in [
        ("storage: filesystem\n", "config.yml: `version`: is missing"),
        (
            "version: 0.2\nstorage: filesystem\n",
            "config.yml:1:10: `version`: `0.2` is not supported",
        ),
        ("version: 0.1\n", "config.yml: `storage`: names no storage"),
        (
            "version: 0.1\nstorage: {delete: {enabled: true}}\n",
            "config.yml:2:10: `storage`: names no storage",
        ),
        (
            "version: 0.1\nstorage: inmemory\n",
            "config.yml:2:1: `storage.inmemory`: is a storage driver larder does not have",
        ),
        (
            "version: 0.1\nstorage: filesystem\n",
            "config.yml: `proxy.remoteurl`: is missing",
        ),
        (
            "version: 0.1\nstorage: filesystem\nproxy: {remoteurl: ''}\n",
            "config.yml:3:20: `proxy.remoteurl`: is missing",
        ),
        (
            "[version]\n",
            "config.yml:1:1: expected keys with values, found a list",
        ),
    ] {
        assert!(
            errors(text).iter().any(|error| error == expected),
            "{text} {:?}",
            errors(text)
        );
    }
}

#[test]
fn names_of_upstreams_are_unique_and_known() {
    for (upstreams, expected) in [
        (
            "upstreams: [{remoteurl: https://example.com}]",
            "`example.com` is the name of another upstream too",
        ),
        (
            "upstreams: [{remoteurl: https://a.b, aliases: [Example.com]}]",
            "`example.com` is the name of another upstream too",
        ),
        (
            "upstreams: [{name: a/b, remoteurl: https://a.b}]",
            "`a/b` is no host",
        ),
        (
            "upstreams: [{name: .., remoteurl: https://a.b}]",
            "`..` is no host",
        ),
        ("upstreams: [{name: a.b}]", "is missing"),
        (
            "upstreams: [https://a.b]",
            "expected keys with values, found `https://a.b`",
        ),
        ("defaultupstream: exmple.com", "`exmple.com` is no upstream"),
        ("timeouts: {connect: 10s}", "is shorter than `connect` beside it"),
        ("realms: [https://a.b]", "`https://a.b` is no host"),
        ("passwordfile: /p", "has no `username` beside it"),
        ("clientkey: /p", "is missing beside `clientkey`"),
    ] {
        let errors = errors(&format!("{MINIMAL}larder: {{{upstreams}}}\n"));
        assert!(
            errors.iter().any(|error| error.ends_with(expected)),
            "{upstreams} {errors:?}"
        );
    }
}

#[test]
fn unknown_keys_warn_with_the_key_that_was_meant() {
    let text =
        format!("{MINIMAL}larder: {{maxsiz: 5}}\nremoteurl: x\ncolour: blue\nhttp2: {{disabled: true}}\n");
    assert_eq!(
        warnings(&load(&text, &[]).unwrap()),
        [
            "config.yml:5:10: `larder.maxsiz`: unknown key, ignored; did you mean `larder.maxsize`?",
            "config.yml:6:1: `remoteurl`: unknown key, ignored; did you mean `proxy.remoteurl`?",
            "config.yml:7:1: `colour`: unknown key, ignored",
            "config.yml:8:1: `http2`: unknown key, ignored; did you mean `http`?",
        ]
    );
}

#[test]
fn keys_without_effect_are_named_in_one_warning_and_still_checked() {
    let text = "version: 0.1
log: {reportcaller: true, hooks: [{type: mail}]}
storage:
  filesystem: {rootdirectory: /data, maxthreads: 100}
  cache: {blobdescriptor: inmemory}
  maintenance: {uploadpurging: {enabled: true, age: 168h, interval: 24h, dryrun: false}}
  redirect: {disable: true}
http: {addr: :5000, secret: s, host: https://x, relativeurls: true}
proxy: {remoteurl: https://example.com, cachewritetimeout: 5m}
notifications: {endpoints: []}
redis: {addrs: [x]}
middleware: {storage: []}
";
    assert_eq!(
        warnings(&load(text, &[]).unwrap()),
        [
            "config.yml:2:7: without effect here: log.reportcaller, log.hooks, storage.filesystem.maxthreads, \
          storage.cache, storage.maintenance, storage.redirect, http.secret, http.host, http.relativeurls, \
          proxy.cachewritetimeout, notifications, redis, middleware"
        ]
    );
    let wrong = text
        .replace("disable: true", "disable: maybe")
        .replace("5m}", "later}");
    assert_eq!(
        errors(&wrong),
        [
            "config.yml:7:23: `storage.redirect.disable`: expected `true` or `false`, found `maybe`",
            "config.yml:9:60: `proxy.cachewritetimeout`: expected a duration such as `30s`, found `later`",
        ]
    );
}

#[test]
fn a_secret_is_in_no_message() {
    let secret = "hunter2";
    for text in [
        "proxy: {remoteurl: 'https://u:hunter2@example.com?x'}\n",
        "proxy: {remoteurl: 'ftp://u:hunter2@example.com'}\n",
        "proxy: {remoteurl: 'https://u:hunter2@'}\n",
        "proxy: {remoteurl: 'https://example.com', username: [u], password: {hunter2: x}}\n",
        "http: {secret: [hunter2]}\n",
        "auth: {token: hunter2}\n",
    ] {
        let text = format!("version: 0.1\nstorage: filesystem\n{text}");
        let error = load(&text, &[("REGISTRY_PROXY_PASSWORD", "hunter2: x: y")]).unwrap_err();
        assert!(
            !format!("{error} {error:?} {:?}", error.hints()).contains(secret),
            "{error}"
        );
    }
    let loaded = with_variables(&[
        ("REGISTRY_PROXY_PASSWORD", secret),
        ("REGISTRY_PROXY_USERNAME", "u"),
    ]);
    assert!(!format!("{loaded:?} {}", report::effective(&loaded)).contains(secret));
}
