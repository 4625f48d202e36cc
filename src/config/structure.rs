//! Does the tree have the shape of the schema? Unknown keys are warned about with the key that was probably meant, keys
//! without effect are gathered into one warning, and a list where a mapping belongs is an error. What a used value
//! means is not looked at here.

use super::{
    error::{Origin, Problem, Warning},
    reader::{Findings, FromScalar},
    scalar::{self, GoDuration},
    schema::{self, Field, Kind, Shape},
    tree::{Entry, Node, Scalar, Value},
};

/// Walks the whole tree.
pub(crate) fn check(root: &Node, findings: &mut Findings<'_>) {
    let mut walk = Walk {
        findings,
        idle: Vec::new(),
    };
    walk.node(root, &schema::ROOT, "");
    walk.finish();
}

struct Walk<'f, 'p> {
    findings: &'f mut Findings<'p>,
    /// Keys without effect, with the place of each.
    idle: Vec<(String, Origin)>,
}

impl Walk<'_, '_> {
    fn node(&mut self, node: &Node, shape: &Shape, path: &str) {
        match (shape, &node.value) {
            _ if node.is_null() => {}
            (Shape::Keys(fields), Value::Mapping(entries)) => self.fields(entries, fields, path, false),
            (Shape::Driver(fields), Value::Mapping(entries)) => self.fields(entries, fields, path, true),
            (Shape::Map(inner), Value::Mapping(entries)) => {
                for entry in entries {
                    self.node(&entry.value, inner, &join(path, &entry.key));
                }
            }
            (Shape::List(inner), Value::Sequence(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.node(item, inner, &format!("{path}[{index}]"));
                }
            }
            (Shape::Keys(_) | Shape::Map(_), _) | (Shape::Driver(_), Value::Sequence(_)) => {
                let hint = "write `key: value` on lines of its own, indented below this key";
                self.wrong(node, path, "keys with values", Some(hint));
            }
            (Shape::List(_), _) => self.wrong(node, path, "a list", Some("write it as `[value, value]`")),
            (Shape::Leaf(_) | Shape::Opaque | Shape::Driver(_), _) => {}
        }
    }

    fn fields(&mut self, entries: &[Entry], fields: &'static [Field], path: &str, is_driver: bool) {
        for entry in entries {
            let inner = join(path, &entry.key);
            match fields.iter().find(|field| field.key == entry.key) {
                Some(field) if field.is_used => self.node(&entry.value, &field.shape, &inner),
                Some(field) => self.idle(entry, &field.shape, &inner),
                // What is no known driver is refused where the driver is chosen.
                None if is_driver => {}
                None => self.unknown(entry, fields, path, &inner),
            }
        }
    }

    fn unknown(&mut self, entry: &Entry, fields: &'static [Field], path: &str, inner: &str) {
        let near =
            schema::nearest(&entry.key, fields.iter().map(|field| field.key)).map(|key| join(path, key));
        let message = match near.or_else(|| schema::home_of(&entry.key)) {
            Some(meant) => format!("unknown key, ignored; did you mean `{meant}`?"),
            None => "unknown key, ignored".to_owned(),
        };
        self.findings.warn(&entry.origin, inner, message);
    }

    /// A key without effect must still be what distribution would accept.
    fn idle(&mut self, entry: &Entry, shape: &Shape, path: &str) {
        self.idle.push((path.to_owned(), entry.origin.clone()));
        let before = self.idle.len();
        self.idle_value(&entry.value, shape, path);
        // The outer name stands for what is inside.
        self.idle.truncate(before);
    }

    fn idle_value(&mut self, node: &Node, shape: &Shape, path: &str) {
        match (shape, &node.value) {
            _ if node.is_null() => {}
            (Shape::Leaf(kind), Value::Scalar(scalar)) if is_of(*kind, scalar) => {}
            (Shape::Leaf(kind), _) => self.wrong(node, path, name_of(*kind), hint_of(*kind)),
            _ => self.node(node, shape, path),
        }
    }

    fn wrong(&mut self, node: &Node, path: &str, expected: &str, hint: Option<&str>) {
        let message = format!("expected {expected}, found {}", describe(&node.value, path));
        self.findings.problem(&node.origin, path, message, hint);
    }

    fn finish(self) {
        let Some((_, origin)) = self.idle.first() else {
            return;
        };
        let names: Vec<&str> = self.idle.iter().map(|(path, _)| path.as_str()).collect();
        let message = format!("without effect here: {}", names.join(", "));
        self.findings.warn(origin, "", message);
    }
}

fn is_of(kind: Kind, scalar: &Scalar) -> bool {
    match kind {
        Kind::Text => true,
        Kind::Flag => scalar.is_plain && scalar::boolean(&scalar.text).is_some(),
        Kind::Integer => scalar::integer(&scalar.text).is_some(),
        Kind::Duration => scalar::duration(&scalar.text).is_some() || scalar::integer(&scalar.text).is_some(),
    }
}

fn name_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Text => "text",
        Kind::Flag => "`true` or `false`",
        Kind::Integer => "a whole number",
        Kind::Duration => "a duration such as `30s`",
    }
}

/// What helps against a value of another kind: the same as for keys that have an effect.
fn hint_of(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Text => String::HINT,
        Kind::Flag => bool::HINT,
        Kind::Integer => i64::HINT,
        Kind::Duration => GoDuration::HINT,
    }
}

/// What was found, for a message; the value itself is left out when it may be a secret.
pub(crate) fn describe(value: &Value, path: &str) -> String {
    match value {
        Value::Mapping(_) => "keys with values".to_owned(),
        Value::Sequence(_) => "a list".to_owned(),
        Value::Scalar(_) if is_secret(path) => "`***`".to_owned(),
        Value::Scalar(scalar) => {
            let text: String = without_user(&scalar.text)
                .chars()
                .take(80)
                .flat_map(char::escape_debug)
                .collect();
            let quoted = if scalar.is_plain { "" } else { " in quotes" };
            format!("`{text}`{quoted}")
        }
    }
}

/// A URL without the user and password before its host.
fn without_user(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest.get(..end).and_then(|authority| authority.rfind('@')) {
        Some(at) => format!("{scheme}://***{}", rest.get(at..).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Whether what stands under a path must not be shown.
fn is_secret(path: &str) -> bool {
    let key = path.rsplit('.').next().unwrap_or(path);
    matches!(key, "password" | "username" | "secret")
        || path.starts_with("auth")
        || path.starts_with("notifications")
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// Problems in the order of the file, variables last.
pub(crate) fn sort(problems: &mut [Problem], warnings: &mut [Warning]) {
    problems.sort_by_key(|problem| problem.place.order());
    warnings.sort_by_key(|warning| warning.place.order());
}
