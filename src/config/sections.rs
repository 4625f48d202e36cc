//! From the tree to [`Config`]: the sections that are distribution's and small. The listener, the upstreams and
//! larder's own section have their files.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use super::{
    listener, own,
    reader::{FromScalar, Reader, Section},
    schema,
    tree::Value,
    types::{Auth, Catalog, Config, Health, Log, LogFormatter, LogLevel, Storage, Tags},
    upstreams,
    values::{Word, quoted},
};

/// What distribution takes when there is no number or the number is 0.
const DEFAULT_PAGE: i64 = 1000;
const DEFAULT_ROOT: &str = "/var/lib/registry";

/// Reads everything. What is wrong is in the reader's findings; the result then holds defaults in its place.
pub(crate) fn read(reader: &mut Reader<'_>, root: &Section<'_>) -> Option<Config> {
    version(reader, root);
    let log = log(reader, root);
    let storage = storage(reader, root);
    let auth = auth(reader, root);
    let http = listener::http(reader, root);
    let debug = listener::debug(reader, root);
    let health = health(reader, root);
    let proxy = upstreams::proxy(reader, root);
    let catalog = Catalog {
        max_entries: catalog_entries(reader, root),
    };
    let tags = Tags {
        max_tags: max_tags(reader, root),
    };
    let larder = own::larder(reader, root);
    Some(Config {
        log,
        storage,
        http: http?,
        debug,
        health,
        proxy: proxy?,
        catalog,
        tags,
        auth,
        larder,
    })
}

fn version(reader: &mut Reader<'_>, root: &Section<'_>) {
    let hint = Some("the file must say `version: 0.1`");
    match reader.get::<String>(root, "version").as_deref() {
        Some("0.1") => {}
        Some(other) => reader.problem(root, "version", format!("`{other}` is not supported"), hint),
        None => reader.problem(root, "version", "is missing", hint),
    }
}

fn log(reader: &mut Reader<'_>, root: &Section<'_>) -> Log {
    let log = root.section("log");
    // `loglevel` is the old name, and the new one wins.
    let old = if log.is_filled("level") {
        None
    } else {
        reader.peek::<Word<LogLevel>>(root, "loglevel")
    };
    let level = match old {
        Some(level) => {
            reader.record(&log, "level", level.show(), root.origin_of("loglevel"));
            level.0
        }
        None => reader.get_or(&log, "level", Word(LogLevel::Info)).0,
    };
    Log {
        level,
        formatter: reader.get_or(&log, "formatter", Word(LogFormatter::Text)).0,
        fields: log_fields(reader, &log.section("fields")),
        is_access_log_enabled: !reader.get_or(&log.section("accesslog"), "disabled", false),
    }
}

fn log_fields(reader: &mut Reader<'_>, fields: &Section<'_>) -> BTreeMap<String, String> {
    let mut read = BTreeMap::new();
    for entry in fields.node().map(super::tree::Node::entries).unwrap_or_default() {
        match &entry.value.value {
            Value::Scalar(scalar) => {
                reader.record(
                    fields,
                    &entry.key,
                    quoted(&scalar.text),
                    entry.value.origin.clone(),
                );
                read.insert(entry.key.clone(), scalar.text.clone());
            }
            _ => reader.warn(fields, &entry.key, "only plain values can be log fields; ignored"),
        }
    }
    read
}

fn storage(reader: &mut Reader<'_>, root: &Section<'_>) -> Storage {
    const OPTIONS: [&str; 5] = ["delete", "cache", "maintenance", "redirect", "tag"];
    const HINT: &str =
        "larder keeps its cache on a file system: `storage: {filesystem: {rootdirectory: /path}}`";
    let storage = root.section("storage");
    let names = drivers(&storage);
    let drivers: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !OPTIONS.contains(name))
        .collect();
    if drivers.is_empty() {
        reader.problem(root, "storage", "names no storage", Some(HINT));
    }
    for driver in drivers.iter().filter(|driver| **driver != "filesystem") {
        let meant = schema::nearest(driver, OPTIONS.into_iter().chain(["filesystem"]));
        match meant {
            Some(meant) => {
                let hint = format!("did you mean `storage.{meant}`?");
                reader.problem(
                    &storage,
                    driver,
                    "is no storage driver and no option of storage",
                    Some(&hint),
                );
            }
            None => reader.problem(
                &storage,
                driver,
                "is a storage driver larder does not have",
                Some(HINT),
            ),
        }
    }
    let filesystem = storage.section("filesystem");
    Storage {
        root: reader.get_or(&filesystem, "rootdirectory", PathBuf::from(DEFAULT_ROOT)),
        is_delete_enabled: reader.get_or(&storage.section("delete"), "enabled", false),
    }
}

/// The names under `storage` or `auth`, where a word alone stands for itself without parameters.
fn drivers(section: &Section<'_>) -> Vec<String> {
    match section.node().map(|node| &node.value) {
        Some(Value::Scalar(scalar)) if !scalar.is_null() => vec![scalar.text.clone()],
        Some(Value::Mapping(entries)) => entries.iter().map(|entry| entry.key.clone()).collect(),
        _ => Vec::new(),
    }
}

/// Nothing that asks for a login may end in a cache without one, so whatever is not understood here is an error.
fn auth(reader: &mut Reader<'_>, root: &Section<'_>) -> Option<Auth> {
    const HINT: &str = "larder has `auth: {htpasswd: {realm: ..., path: ...}}`, or no `auth` at all";
    let auth = root.section("auth");
    let names = drivers(&auth);
    if names.len() > 1 {
        let message = format!("must be exactly one, found {}", names.join(", "));
        reader.problem(root, "auth", message, Some(HINT));
    }
    if matches!(auth.node().map(|node| &node.value), Some(Value::Sequence(_))) {
        reader.problem(root, "auth", "cannot be a list", Some(HINT));
    }
    for name in names
        .iter()
        .filter(|name| !matches!(name.as_str(), "htpasswd" | "none"))
    {
        let message = format!("`{name}` is a login larder does not have, and it does not serve without it");
        reader.problem(root, "auth", message, Some(HINT));
    }
    names
        .iter()
        .any(|name| name == "htpasswd")
        .then(|| htpasswd(reader, &auth))
        .flatten()
}

fn htpasswd(reader: &mut Reader<'_>, auth: &Section<'_>) -> Option<Auth> {
    let section = auth.section("htpasswd");
    let realm = filled(reader.get::<String>(&section, "realm"));
    let path = filled(reader.get::<String>(&section, "path"));
    if realm.is_none() {
        reader.problem(&section, "realm", "is missing", Some("any text clients may see"));
    }
    if path.is_none() {
        reader.problem(
            &section,
            "path",
            "is missing",
            Some("a file made by `htpasswd -B`"),
        );
    }
    Some(Auth::Htpasswd {
        realm: realm?,
        path: path?.into(),
    })
}

/// Empty text means the same as none, as in Go.
pub(crate) fn filled(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

fn health(reader: &mut Reader<'_>, root: &Section<'_>) -> Health {
    let driver = root.section("health").section("storagedriver");
    let is_storage_check_enabled = reader.get_or(&driver, "enabled", false);
    let mut interval = reader.get_or(&driver, "interval", Duration::from_secs(10));
    if interval.is_zero() {
        interval = Duration::from_secs(10);
    }
    let threshold = reader.get_or(&driver, "threshold", 0);
    let threshold = u32::try_from(threshold).unwrap_or_else(|_| {
        reader.problem(&driver, "threshold", "must be a number from 0", None);
        0
    });
    Health {
        is_storage_check_enabled,
        interval,
        threshold,
    }
}

fn catalog_entries(reader: &mut Reader<'_>, root: &Section<'_>) -> usize {
    let entries = reader.get_or(&root.section("catalog"), "maxentries", DEFAULT_PAGE);
    usize::try_from(if entries <= 0 { DEFAULT_PAGE } else { entries }).unwrap_or(usize::MAX)
}

fn max_tags(reader: &mut Reader<'_>, root: &Section<'_>) -> usize {
    let tags = root.section("tags");
    let most = reader.get_or(&tags, "maxtags", DEFAULT_PAGE);
    if most < 0 {
        reader.problem(&tags, "maxtags", "must not be negative", None);
    }
    usize::try_from(if most == 0 { DEFAULT_PAGE } else { most }).unwrap_or(usize::MAX)
}
