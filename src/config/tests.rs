//! The configuration as a whole: files and variables in, values, warnings and errors out.

mod errors;
mod examples;
mod reports;
mod values;
mod variables;

use std::{path::Path, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::secret::Secret;

const MINIMAL: &str = "version: 0.1
storage: {filesystem: {rootdirectory: /data}}
http: {addr: :5000}
proxy: {remoteurl: https://example.com}
";

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let variables = variables
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    load_bytes(text.as_bytes(), Path::new("config.yml"), variables)
}

fn config(text: &str) -> Config {
    load(text, &[])
        .unwrap_or_else(|error| panic!("{text}\n{error}"))
        .config
}

fn with_variables(variables: &[(&str, &str)]) -> Loaded {
    load(MINIMAL, variables).unwrap_or_else(|error| panic!("{variables:?}\n{error}"))
}

fn errors(text: &str) -> Vec<String> {
    load(text, &[])
        .unwrap_err()
        .problems
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn warnings(loaded: &Loaded) -> Vec<String> {
    loaded.warnings.iter().map(ToString::to_string).collect()
}

fn example(name: &str) -> Loaded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name);
    let bytes = read_bounded(&path).unwrap();
    load_bytes(&bytes, Path::new(name), Vec::new()).unwrap_or_else(|error| panic!("{name}\n{error}"))
}

const EXAMPLES: [&str; 6] = [
    "hosted.yml",
    "default.yml",
    "docker-hub.yml",
    "gardener.yml",
    "many-upstreams.yml",
    "tls.yml",
];

/// Pieces out of which texts come that get further than random bytes do.
const PIECES: [&str; 40] = [
    "version: 0.1\n",
    "storage:",
    " filesystem",
    "\n",
    "\n  ",
    "\n    ",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "'",
    "\"",
    "&a ",
    "*a",
    "<<: ",
    "# ",
    "|\n",
    ">-\n",
    "? ",
    "! ",
    "!!str ",
    "---\n",
    "...\n",
    "\t",
    "http",
    "addr",
    "tls",
    "larder",
    "upstreams",
    "proxy",
    "remoteurl",
    "https://x",
    "auth",
    "5%",
    "0",
    "null",
    "\u{feff}",
];

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = load_bytes(&bytes, Path::new("f"), Vec::new());
    }

    #[test]
    fn no_text_of_pieces_makes_it_panic(
        pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..40),
        value in ".{0,20}",
    ) {
        let text = pieces.concat();
        let _ = load(&text, &[("REGISTRY_LARDER", &value), ("REGISTRY_STORAGE_A_B", &text)]);
        let _ = load(MINIMAL, &[("REGISTRY_LARDER", &text), ("REGISTRY_HTTP_HEADERS", &text), ("REGISTRY_AUTH", &text)]);
    }

    #[test]
    fn any_value_of_any_type_shown_reads_back(root in "[^\0]{1,20}", field in ".{0,20}") {
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        let text = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: :5000}}\nlog: {{fields: {{a: {}}}}}\n\
             proxy: {{remoteurl: https://example.com}}\n",
            quote(&root), quote(&field),
        );
        if let Ok(loaded) = load(&text, &[]) {
            prop_assert_eq!(config(&report::effective(&loaded)), loaded.config);
        }
    }
}
