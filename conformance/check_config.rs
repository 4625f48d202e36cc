//! `larder check-config`: what holds and where it comes from, and how it ends.

use crate::larder::{Builder, Failure};

async fn check(builder: &Builder, yaml: &str) -> Failure {
    std::fs::write(builder.config_path(), yaml).unwrap();
    builder.run(&["check-config"]).await
}

const RIGHT: &str = "\
version: 0.1
storage:
  filesystem:
    rootdirectory: /srv/larder
proxy:
  remoteurl: https://registry.example
  username: me
  password: hunter2
http:
  secret: hunter3
";

const MINIMAL: &str = "\
version: 0.1
storage: {filesystem: {rootdirectory: /srv/larder}}
proxy: {remoteurl: https://registry.example}
";

/// The line of the effective configuration that begins with this key.
fn line<'a>(checked: &'a Failure, key: &str) -> &'a str {
    let mut lines = checked.output.lines().map(str::trim);
    lines
        .find(|line| line.starts_with(&format!("{key}: ")))
        .unwrap_or_else(|| panic!("no `{key}` in:\n{}", checked.output))
}

#[tokio::test]
async fn each_value_is_shown_with_its_origin_and_secrets_are_masked() {
    let builder = Builder::new("unused")
        .env("REGISTRY_LARDER_TAGTTL", "90s")
        .env("REGISTRY_PROXY_PASSWORD", "hunter4");
    let checked = check(&builder, RIGHT).await;
    assert_eq!(checked.status.code(), Some(0), "{}", checked.output);
    for (key, value, origin) in [
        ("remoteurl", "https://registry.example", "# file:6"),
        ("rootdirectory", "/srv/larder", "# file:4"),
        ("tagttl", "1m30s", "# REGISTRY_LARDER_TAGTTL"),
        ("password", "***", "# REGISTRY_PROXY_PASSWORD"),
        ("negativettl", "0s", "# default"),
    ] {
        let line = line(&checked, key);
        assert!(line.contains(value) && line.ends_with(origin), "{line}");
    }
    assert!(!checked.output.contains("hunter"), "{}", checked.output);
}

#[tokio::test]
async fn an_unknown_key_is_a_warning_that_names_the_nearest() {
    let builder = Builder::new("unused");
    let yaml = RIGHT.replace("http:\n", "http:\n  adr: ':5000'\n") + "larder:\n  tagtll: 5m\n";
    let checked = check(&builder, &yaml).await;
    assert_eq!(checked.status.code(), Some(0), "{}", checked.output);
    for (position, typed, meant) in [
        ("config.yml:10:", "adr", "addr"),
        ("config.yml:13:", "tagtll", "tagttl"),
    ] {
        let names = |line: &&str| line.contains(position) && line.contains(typed);
        let warning = checked.output.lines().find(names);
        let warning = warning.unwrap_or_else(|| panic!("no warning of `{typed}` in:\n{}", checked.output));
        assert!(
            warning.starts_with("warning: ") && warning.contains(&format!("{meant}`")),
            "{warning}"
        );
    }
}

#[tokio::test]
async fn each_wrong_value_is_told_with_its_place_and_a_hint() {
    for (section, key, value, hint) in [
        ("log", "level", "loud", "words above"),
        ("log", "level", "inof", "did you mean `info`?"),
        ("log", "formatter", "xml", "words above"),
        ("http", "net", "udp", "words above"),
        ("http", "relativeurls", "maybe", "`true` or `false`"),
        ("http", "h2c", "true", "indented below"),
        ("larder", "insecure", "maybe", "`true` or `false`"),
        ("larder", "realms", "x.example", "write it as `["),
        ("larder", "insecure", "'true'", "quotes"),
        ("larder", "tagttl", "soon", "write it like"),
        ("larder", "maxsize", "plenty", "write it like"),
    ] {
        let yaml = format!("{MINIMAL}{section}:\n  {key}: {value}\n");
        let failure = check(&Builder::new("unused"), &yaml).await;
        assert_eq!(failure.status.code(), Some(1), "{}", failure.output);
        let mut lines = failure.output.lines();
        let place = format!("config.yml:5:{}: `{section}.{key}`: ", key.len() + 5);
        assert!(
            lines.any(|line| line.starts_with("error: ") && line.contains(&place)),
            "no `{place}` in:\n{}",
            failure.output
        );
        let told = lines.next().unwrap_or_default();
        assert!(
            told.starts_with("hint: ") && told.contains(hint),
            "{key}: {value}:\n{}",
            failure.output
        );
    }
}

#[tokio::test]
async fn all_that_is_wrong_is_told_at_once_and_no_secret_with_it() {
    let yaml =
        RIGHT.replace("version: 0.1\n", "version: 0.1\nlog:\n  level: loud\n") + "larder:\n  tagttl: soon\n";
    let failure = check(&Builder::new("unused"), &yaml).await;
    assert_eq!(failure.status.code(), Some(1));
    let count = |start: &str| {
        failure
            .output
            .lines()
            .filter(|line| line.starts_with(start))
            .count()
    };
    assert_eq!((count("error: "), count("hint: ")), (2, 2), "{}", failure.output);
    assert!(!failure.output.contains("hunter"), "{}", failure.output);
}
