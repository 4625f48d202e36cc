//! Bad input: one `error:` line with the cause, a hint, exit code 1, and nothing lost.

use crate::larder::{Builder, Failure, Larder};
use crate::upstream::TestUpstream;

/// Checks the form of a failure, and that it names what it should.
fn is_clear(failure: &Failure, names: &[&str]) {
    let output = &failure.output;
    assert_eq!(failure.status.code(), Some(1), "{output}");
    assert!(
        output.lines().any(|line| line.starts_with("error: ")),
        "no `error:` line in:\n{output}"
    );
    assert!(
        output.lines().any(|line| line.starts_with("hint: ")),
        "no `hint:` in:\n{output}"
    );
    for name in names {
        assert!(output.contains(name), "`{name}` is not named in:\n{output}");
    }
    assert!(
        !output.contains("panicked") && !output.contains("backtrace"),
        "{output}"
    );
}

fn builder() -> Builder {
    Builder::new("http://127.0.0.1:9")
}

#[tokio::test]
async fn a_file_that_is_no_yaml_is_refused_with_its_line() {
    let failure = builder()
        .fail_with("version: 0.1\nstorage: {filesystem: [\n")
        .await;
    is_clear(&failure, &["config.yml"]);
}

#[tokio::test]
async fn wrong_values_are_refused_with_their_position() {
    for (key, value, names) in [
        ("proxy.ttl", "soon", ["ttl", "soon"]),
        ("log.level", "loud", ["level", "loud"]),
        ("http.addr", "nowhere", ["addr", "nowhere"]),
        (
            "proxy.remoteurl",
            "registry.example",
            ["remoteurl", "registry.example"],
        ),
        ("proxy.remoteurl", "ftp://registry.example", ["remoteurl", "ftp"]),
        ("larder.tagttl", "yesterday", ["tagttl", "yesterday"]),
        ("larder.maxsize", "plenty", ["maxsize", "plenty"]),
    ] {
        let failure = builder().set(key, value).fail().await;
        is_clear(&failure, &names);
        assert!(
            failure.output.contains("config.yml:"),
            "a position for {key}:\n{}",
            failure.output
        );
    }
    let failure = builder().set("version", "7.0").fail().await;
    is_clear(&failure, &["version"]);
}

#[tokio::test]
async fn an_unreadable_config_is_refused() {
    let builder = builder();
    let path = builder.config_path();
    let failure = builder.run(&["serve"]).await;
    is_clear(&failure, &[&path.to_string_lossy()]);
}

#[tokio::test]
async fn unknown_keys_are_warned_about_and_larder_serves() {
    let upstream = TestUpstream::start().await;
    let larder = Builder::new(&upstream.url())
        .set("proxy.tttl", "1h")
        .set("validation.disabled", true)
        .start()
        .await;
    assert_eq!(larder.get("/v2/").await.status, 200);
    assert!(larder.log().contains("tttl"), "{}", larder.log());
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for key in ["http.addr", "http.debug.addr"] {
        let failure = builder().set(key, address.as_str()).fail().await;
        is_clear(&failure, &[&address]);
    }
}

#[tokio::test]
async fn a_volume_that_is_a_file_or_below_one_is_named() {
    let builder = builder();
    let file = builder.folder().join("file");
    std::fs::write(&file, "precious").unwrap();
    let below = file.join("volume");
    for root in [&file, &below] {
        let copy = self::builder().root(root);
        let failure = copy.fail().await;
        is_clear(&failure, &[&file.to_string_lossy()]);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
}

#[tokio::test]
async fn wrong_tls_files_are_named() {
    let builder = builder();
    let (certificate, key) = (builder.folder().join("tls.crt"), builder.folder().join("tls.key"));
    let with = |builder: Builder| {
        builder
            .set("http.tls.certificate", certificate.to_string_lossy().as_ref())
            .set("http.tls.key", key.to_string_lossy().as_ref())
    };
    is_clear(&with(self::builder()).fail().await, &["tls.crt"]);
    std::fs::write(&certificate, "not a certificate").unwrap();
    std::fs::write(&key, "not a key").unwrap();
    is_clear(&with(self::builder()).fail().await, &["tls."]);
}

#[tokio::test]
async fn the_environment_overrides_the_file() {
    let upstream = TestUpstream::start().await;
    let larder = Builder::new("http://127.0.0.1:9")
        .env("REGISTRY_PROXY_REMOTEURL", &upstream.url())
        .env("REGISTRY_HTTP_HEADERS", "{X-From: [environment]}")
        .env("REGISTRY_PORT", "tcp://10.0.0.1:5000")
        .env("REGISTRY_PORT_5000_TCP_ADDR", "10.0.0.1")
        .start()
        .await;
    let image = crate::upstream::Image::small(1);
    upstream.push_tagged("app", "1", &image);
    let answer = larder.get("/v2/app/manifests/1").await;
    answer.is_whole(&image.manifest.bytes);
    assert_eq!(answer.header("x-from"), Some("environment"));
}

#[tokio::test]
async fn check_config_prints_what_is_in_force_and_hides_secrets() {
    let builder = builder()
        .set("proxy.username", "me")
        .set("proxy.password", "hunter2")
        .set("larder.tagttl", "90s");
    std::fs::write(builder.config_path(), builder.yaml()).unwrap();
    let checked = builder.run(&["check-config"]).await;
    assert_eq!(checked.status.code(), Some(0), "{}", checked.output);
    assert!(
        checked.output.contains("tagttl") && checked.output.contains("127.0.0.1:9"),
        "{}",
        checked.output
    );
    assert!(!checked.output.contains("hunter2"), "{}", checked.output);
    std::fs::write(
        builder.config_path(),
        "version: 0.1\nproxy:\n  remoteurl: http://x\n  ttl: soon\n",
    )
    .unwrap();
    let failure = builder.run(&["check-config"]).await;
    is_clear(&failure, &["config.yml:4", "soon"]);
}

#[tokio::test]
async fn nothing_misleading_is_logged_at_the_start() {
    let upstream = TestUpstream::start().await;
    let larder = Larder::start(&upstream).await;
    let log = larder.log();
    for text in ["4318", "HTTP secret", "No HTTP secret", "panicked"] {
        assert!(!log.contains(text), "`{text}` in:\n{log}");
    }
}
