//! The table of layers: a module may use what stands below it, never what stands above.

use std::path::Path;

/// From the top down; modules of one line do not use each other.
const LAYERS: [&[&str]; 7] = [
    &["main"],
    &["cli"],
    &["server"],
    &["http"],
    &["registry", "gc"],
    &["store", "upstream"],
    &["meta", "config"],
];

/// The modules at the bottom, which all others may use.
const BOTTOM: [&str; 8] = [
    "oci",
    "flight",
    "metrics",
    "clock",
    "secret",
    "telemetry",
    "kube",
    "node",
];

fn rank(module: &str) -> Option<usize> {
    let layer = LAYERS.iter().position(|layer| layer.contains(&module));
    layer.or_else(|| BOTTOM.contains(&module).then_some(LAYERS.len()))
}

/// The top-level modules named by the `use crate::` lines of a source, its tests included.
fn used_modules(source: &str) -> Vec<String> {
    let uses = source.lines().map(str::trim_start).filter_map(|line| {
        let line = line
            .strip_prefix("pub(crate) ")
            .or_else(|| line.strip_prefix("pub "))
            .unwrap_or(line);
        line.strip_prefix("use crate::")
            .or_else(|| line.strip_prefix("use larder::"))
    });
    let mut modules = Vec::new();
    for rest in uses {
        let names: Vec<&str> = match rest.strip_prefix('{') {
            Some(group) => group.split([',', '}']).map(str::trim).collect(),
            None => vec![rest],
        };
        for name in names {
            let module = name
                .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .next();
            modules.extend(module.filter(|module| rank(module).is_some()).map(str::to_owned));
        }
    }
    modules
}

fn sources(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder)
        .expect("a folder of the sources")
        .flatten()
    {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn layers_depend_downward_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).expect("found below the root");
        let first = path
            .components()
            .next()
            .expect("a path")
            .as_os_str()
            .to_string_lossy()
            .into_owned();
        let own = first.trim_end_matches(".rs").to_owned();
        let source = std::fs::read_to_string(&file).expect("a source file");
        let Some(own_rank) = rank(&own) else {
            assert_eq!(own, "lib", "`{own}` has no place in the table of layers");
            continue;
        };
        for used in used_modules(&source) {
            let is_below = rank(&used).is_some_and(|used_rank| used_rank > own_rank);
            if used != own && !is_below && own_rank < LAYERS.len() {
                wrong.push(format!("{} uses crate::{used}", path.display()));
            }
            if own_rank == LAYERS.len() && rank(&used).is_some_and(|used_rank| used_rank < LAYERS.len()) {
                wrong.push(format!("{} uses crate::{used}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "against the layers:\n{}", wrong.join("\n"));
}
