//! The effective configuration as text.

use super::*;

#[test]
fn the_effective_configuration_is_shown_with_origins() {
    insta::assert_snapshot!("gardener", report::effective(&example("gardener.yml")));
    insta::assert_snapshot!(
        "many_upstreams",
        report::effective(&example("many-upstreams.yml"))
    );
    let variables = [
        ("REGISTRY_PROXY_TTL", "1d"),
        ("REGISTRY_LARDER_REALMS", "[auth.example.com]"),
    ];
    insta::assert_snapshot!("variables", report::effective(&with_variables(&variables)));
}

#[test]
fn what_is_wrong_is_shown_with_hints() {
    let text = MINIMAL
        .replace(":5000", "5000")
        .replace("version: 0.1", "version: 2");
    let shown = report::failure(&load(&text, &[]).unwrap_err());
    insta::assert_snapshot!(shown, @r"
    error: config.yml:1:10: `version`: `2` is not supported
    hint: the file must say `version: 0.1`
    error: config.yml:3:14: `http.addr`: expected an address to listen on, found `5000`
    hint: write it like `:5000`, `127.0.0.1:5000` or `[::1]:5000`
    ");
}

#[test]
fn the_effective_configuration_read_again_is_the_same() {
    let mask = |mut config: Config| {
        for upstream in &mut config.proxy.upstreams {
            if let Credentials::Password { password, .. } = &mut upstream.credentials {
                *password = Secret::new("***");
            }
        }
        config
    };
    for name in EXAMPLES {
        let loaded = example(name);
        let again = config(&report::effective(&loaded));
        assert_eq!(again, mask(loaded.config), "{name}");
    }
}
