//! The configuration as a whole: files and variables in, values, warnings and errors out.

use std::path::Path;

use super::*;

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    load_bytes(text.as_bytes(), Path::new("config.yml"), variables)
}

#[test]
fn examples_load() {
    for name in ["default", "docker-hub", "gardener", "many-upstreams", "tls"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("config")
            .join(format!("{name}.yml"));
        let loaded = Config::load(Some(&path), []).unwrap();
        println!("{}", report::effective(&loaded));
        println!("{:#?}", loaded.warnings);
    }
    let loaded = Config::load(None, []).unwrap();
    println!("{}", report::effective(&loaded));
}

#[test]
fn try_errors() {
    let e = load("version: 0.1\nhttp:\n  adr: 5\n  addr: 5000\nlog: [a]\nstorage: {filesystem: {}, s3: {}}\nauth: {token: {}}\nproxy:\n  password: [x]\n  remoteurl: registry-1.docker.io\n  ttl: 5x\n", &[]).unwrap_err();
    println!("{e}\n{:#?}", e.hints());
}
