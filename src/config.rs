//! The configuration: distribution's YAML file and `REGISTRY_*` environment, read into a validated [`Config`].
//!
//! Nothing outside reads the file or the environment. The command line calls [`Config::load`], prints what is wrong
//! with its place and a hint, or hands the [`Config`] to the server. `config/*.yml` at the top of the repository
//! shows every key.

//!
//! The way of a value: text -> `tree` (values with places) -> `environment` (variables laid over it) -> `structure`
//! (unknown keys, wrong shapes) -> `reader` and the sections (types and meaning) -> [`Config`].

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

mod environment;
mod error;
mod hosted;
mod listener;
mod own;
mod pattern;
mod reader;
pub mod report;
mod scalar;
mod schema;
mod sections;
mod structure;
mod tree;
mod types;
mod upstreams;
mod values;

pub use error::{ConfigError, Origin, Place, Problem, Warning};
pub use pattern::Pattern;
pub use types::{
    Address, Auth, Catalog, ClientAuth, ClientCertificate, Config, Credentials, Debug, Gc, Health, Hosted,
    Http, HttpLimits, Larder, Listen, Log, LogFormatter, LogLevel, Proxy, Renew, Scrub, SizeLimit, Storage,
    Tags, Timeouts, Tls, TlsVersion, UpstreamConfig, UpstreamTls,
};

use reader::{Findings, Reader, Section, Setting};
use tree::{Node, Source};

/// Where distribution's image has its file.
const DEFAULT_FILE: &str = "/etc/distribution/config.yml";

/// What holds when there is no file at all.
const BUILT_IN: &str = "
version: 0.1
storage:
  filesystem: {rootdirectory: ./larder-data}
  delete: {enabled: true}
http:
  addr: :5000
  draintimeout: 25s
  headers: {X-Content-Type-Options: [nosniff]}
  debug: {addr: :5001, prometheus: {enabled: true, path: /metrics}}
health:
  storagedriver: {enabled: true, interval: 10s, threshold: 3}
proxy:
  remoteurl: https://registry-1.docker.io
";

/// A configuration that holds, and what was odd about it.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What was odd, in the order of the file.
    pub warnings: Vec<Warning>,
    /// The file it came from; `None` when there was none and larder's own defaults hold.
    pub source: Option<PathBuf>,
    /// Every value with its origin, for [`report::effective`].
    settings: Vec<Setting>,
}

impl Config {
    /// Reads the file and the `REGISTRY_*` variables.
    ///
    /// The file is `source`, else what `REGISTRY_CONFIGURATION_PATH` names, else `/etc/distribution/config.yml` when
    /// that exists, else there is none and larder's own defaults hold: Docker Hub, `./larder-data`, `:5000`, `:5001`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no YAML, or a value is wrong; all wrong values are told at once.
    pub fn load(
        source: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded, ConfigError> {
        let variables: Vec<(String, String)> = environment.into_iter().collect();
        match choose_file(source, &variables, Path::new(DEFAULT_FILE)) {
            Some(path) => {
                let bytes = read_bounded(&path).map_err(|error| ConfigError::unreadable(&path, error))?;
                load_bytes(&bytes, &path, variables)
            }
            None => interpret(
                parse(BUILT_IN, Source::Default, Findings::new(None))?,
                None,
                variables,
            ),
        }
    }
}

/// The environment of this process, for [`Config::load`]; the one place that reads it. What is not Unicode is left out.
pub fn process_environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

fn choose_file(source: Option<&Path>, variables: &[(String, String)], default: &Path) -> Option<PathBuf> {
    let named = variables
        .iter()
        .find(|(name, path)| name == environment::CONFIGURATION_PATH && !path.is_empty());
    source
        .map(Path::to_path_buf)
        .or_else(|| named.map(|(_, path)| PathBuf::from(path)))
        .or_else(|| default.exists().then(|| default.to_path_buf()))
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(tree::MAX_BYTES).unwrap_or(u64::MAX);
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() > tree::MAX_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {most} bytes"),
        ));
    }
    Ok(bytes)
}

fn load_bytes(bytes: &[u8], path: &Path, variables: Vec<(String, String)>) -> Result<Loaded, ConfigError> {
    let mut findings = Findings::new(Some(path));
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let origin = place_of_end(&String::from_utf8_lossy(before));
            findings.problem(
                &origin,
                "",
                "is not UTF-8 text".to_owned(),
                Some("save the file as UTF-8"),
            );
            return Err(ConfigError {
                problems: findings.problems,
                source: None,
            });
        }
    };
    interpret(parse(text, Source::File, findings)?, Some(path), variables)
}

fn place_of_end(text: &str) -> Origin {
    let line = text.matches('\n').count() + 1;
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    Origin::File { line, column }
}

/// The tree of a file with what is wrong so far.
struct Parsed<'p> {
    root: Node,
    findings: Findings<'p>,
}

fn parse<'p>(text: &str, source: Source, mut findings: Findings<'p>) -> Result<Parsed<'p>, ConfigError> {
    let document = match tree::parse(text, source) {
        Ok(document) => document,
        Err(error) => {
            let hint = "indent with spaces, and put text with special characters between quotes";
            findings.problem(&error.origin, "", error.message, Some(hint));
            return Err(ConfigError {
                problems: findings.problems,
                source: None,
            });
        }
    };
    for duplicate in document.duplicates {
        let first = match duplicate.first {
            Origin::File { line, .. } => format!("; it stands in line {line} already"),
            _ => String::new(),
        };
        let hint = Some("keep one of them");
        findings.problem(
            &duplicate.second,
            &duplicate.path,
            format!("is there twice{first}"),
            hint,
        );
    }
    if let Some(origin) = document.second_start {
        findings.warn(
            &origin,
            "",
            "a second YAML document begins here; only the first is read".to_owned(),
        );
    }
    Ok(Parsed {
        root: document.root,
        findings,
    })
}

fn interpret(
    parsed: Parsed<'_>,
    path: Option<&Path>,
    variables: Vec<(String, String)>,
) -> Result<Loaded, ConfigError> {
    let Parsed {
        mut root,
        mut findings,
    } = parsed;
    let from_variables = environment::apply(&mut root, variables);
    findings.problems.extend(from_variables.problems);
    findings.warnings.extend(from_variables.warnings);
    structure::check(&root, &mut findings);
    let mut reader = Reader::new(findings);
    let config = sections::read(&mut reader, &Section::root(&root));
    let Reader {
        findings: Findings {
            mut problems,
            mut warnings,
            ..
        },
        settings,
    } = reader;
    structure::sort(&mut problems, &mut warnings);
    match config {
        Some(config) if problems.is_empty() => Ok(Loaded {
            config,
            warnings,
            source: path.map(Path::to_path_buf),
            settings,
        }),
        _ => Err(ConfigError {
            problems,
            source: None,
        }),
    }
}

#[cfg(test)]
mod tests;
