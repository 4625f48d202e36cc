//! Reads typed values out of the tree and remembers three things: what was wrong, what was odd, and every value that
//! now holds with its origin. A wrong value does not stop the reading, so that one run tells everything.

use std::path::Path;

use super::{
    error::{Origin, Place, Problem, Warning},
    structure::describe,
    tree::{Node, Scalar, Value},
};

/// What is wrong and odd so far.
#[derive(Debug)]
pub(crate) struct Findings<'p> {
    file: Option<&'p Path>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Warning>,
}

impl<'p> Findings<'p> {
    pub(crate) fn new(file: Option<&'p Path>) -> Self {
        Self {
            file,
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn problem(&mut self, origin: &Origin, key: &str, message: String, hint: Option<&str>) {
        let place = Place::new(origin, self.file);
        self.problems.push(Problem {
            place,
            key: key.to_owned(),
            message,
            hint: hint.map(str::to_owned),
        });
    }

    pub(crate) fn warn(&mut self, origin: &Origin, key: &str, message: String) {
        let place = Place::new(origin, self.file);
        self.warnings.push(Warning {
            place,
            key: key.to_owned(),
            message,
        });
    }
}

/// One value of the effective configuration, ready to be shown: secrets are masked already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) path: Vec<Step>,
    /// As YAML.
    pub(crate) shown: String,
    pub(crate) origin: Origin,
}

/// One step on the way to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Key(String),
    Item(usize),
}

/// A type that one scalar can be read as.
pub(crate) trait FromScalar: Sized {
    /// What is expected, for a message: `a duration`.
    const EXPECTED: &'static str;
    /// What helps when it is something else.
    const HINT: Option<&'static str> = None;
    /// Whether an unquoted `null` is this text rather than nothing.
    const KEEPS_NULL: bool = false;

    /// Reads it; `Err` is a hint that fits better than the general one.
    fn from_scalar(scalar: &Scalar) -> Result<Self, Option<String>>;

    /// As YAML, masked when secret.
    fn show(&self) -> String;

    /// What is odd about it although it can be read.
    fn doubt(_scalar: &Scalar) -> Option<String> {
        None
    }
}

/// A mapping, or the absence of one, and the way to it.
#[derive(Debug, Clone)]
pub(crate) struct Section<'t> {
    steps: Vec<Step>,
    node: Option<&'t Node>,
    origin: Origin,
}

impl<'t> Section<'t> {
    pub(crate) fn root(node: &'t Node) -> Self {
        Self {
            steps: Vec::new(),
            node: Some(node),
            origin: Origin::Default,
        }
    }

    /// The mapping under a key.
    pub(crate) fn section(&self, key: &str) -> Self {
        let mut steps = self.steps.clone();
        steps.push(Step::Key(key.to_owned()));
        let entry = self
            .node
            .and_then(|node| node.entries().iter().find(|entry| entry.key == key));
        let origin = entry.map_or_else(|| self.origin.clone(), |entry| entry.origin.clone());
        Self {
            steps,
            node: entry.map(|entry| &entry.value),
            origin,
        }
    }

    /// The items of the list under a key.
    pub(crate) fn items(&self, key: &str) -> Vec<Self> {
        let list = self.section(key);
        let Some(Node {
            value: Value::Sequence(items),
            ..
        }) = list.node
        else {
            return Vec::new();
        };
        let item = |(index, node): (usize, &'t Node)| {
            let mut steps = list.steps.clone();
            steps.push(Step::Item(index));
            Self {
                steps,
                node: Some(node),
                origin: node.origin.clone(),
            }
        };
        items.iter().enumerate().map(item).collect()
    }

    /// The value itself.
    pub(crate) fn node(&self) -> Option<&'t Node> {
        self.node
    }

    /// Whether something is said here.
    pub(crate) fn is_present(&self) -> bool {
        self.node.is_some_and(|node| !node.is_null())
    }

    /// Whether the value under a key is more than nothing and empty text, which mean the same in Go.
    pub(crate) fn is_filled(&self, key: &str) -> bool {
        let is_empty_text =
            |node: &Node| matches!(&node.value, Value::Scalar(scalar) if scalar.text.is_empty());
        self.node
            .and_then(|node| node.get(key))
            .is_some_and(|node| !node.is_null() && !is_empty_text(node))
    }

    /// Where a problem with the value under a key is to be looked for.
    pub(crate) fn origin_of(&self, key: &str) -> Origin {
        let value = self.node.and_then(|node| node.get(key));
        value.map_or_else(|| self.origin.clone(), |node| node.origin.clone())
    }

    /// The way to it, such as `larder.upstreams[0]`.
    pub(crate) fn path(&self) -> String {
        let mut path = String::new();
        for step in &self.steps {
            match step {
                Step::Key(key) if path.is_empty() => path.push_str(key),
                Step::Key(key) => path.extend([".", key]),
                Step::Item(index) => path.extend(["[", &index.to_string(), "]"]),
            }
        }
        path
    }

    fn path_of(&self, key: &str) -> String {
        self.section(key).path()
    }
}

/// Reads values and gathers findings and settings.
#[derive(Debug)]
pub(crate) struct Reader<'p> {
    pub(crate) findings: Findings<'p>,
    pub(crate) settings: Vec<Setting>,
}

impl<'p> Reader<'p> {
    pub(crate) fn new(findings: Findings<'p>) -> Self {
        Self {
            findings,
            settings: Vec::new(),
        }
    }

    /// The value under a key, when there is one and it can be read.
    pub(crate) fn get<T: FromScalar>(&mut self, section: &Section<'_>, key: &str) -> Option<T> {
        let value: T = self.peek(section, key)?;
        self.record(section, key, value.show(), section.origin_of(key));
        Some(value)
    }

    /// The value under a key, or a default when there is none or it is wrong.
    pub(crate) fn get_or<T: FromScalar>(&mut self, section: &Section<'_>, key: &str, default: T) -> T {
        self.get(section, key).unwrap_or_else(|| {
            self.record(section, key, default.show(), Origin::Default);
            default
        })
    }

    /// Like [`Reader::get`], but leaves no setting: the caller records what it makes of it.
    pub(crate) fn peek<T: FromScalar>(&mut self, section: &Section<'_>, key: &str) -> Option<T> {
        let node = section.node.and_then(|node| node.get(key))?;
        self.scalar(node, &section.path_of(key))
    }

    /// The values of a list; wrong ones are left out.
    pub(crate) fn list<T: FromScalar>(&mut self, section: &Section<'_>, key: &str) -> Vec<T> {
        let items = section.items(key);
        let values: Vec<T> = items
            .iter()
            .filter_map(|item| item.node.and_then(|node| self.scalar(node, &item.path())))
            .collect();
        if section.section(key).is_present() {
            let shown: Vec<String> = values.iter().map(T::show).collect();
            self.record(
                section,
                key,
                format!("[{}]", shown.join(", ")),
                section.origin_of(key),
            );
        }
        values
    }

    /// Remembers that a value holds.
    pub(crate) fn record(&mut self, section: &Section<'_>, key: &str, shown: String, origin: Origin) {
        let mut path = section.steps.clone();
        path.push(Step::Key(key.to_owned()));
        self.settings.push(Setting { path, shown, origin });
    }

    /// Tells that the value under a key is wrong.
    pub(crate) fn problem(
        &mut self,
        section: &Section<'_>,
        key: &str,
        message: impl Into<String>,
        hint: Option<&str>,
    ) {
        self.findings.problem(
            &section.origin_of(key),
            &section.path_of(key),
            message.into(),
            hint,
        );
    }

    /// Tells that the value under a key is odd.
    pub(crate) fn warn(&mut self, section: &Section<'_>, key: &str, message: impl Into<String>) {
        self.findings
            .warn(&section.origin_of(key), &section.path_of(key), message.into());
    }

    fn scalar<T: FromScalar>(&mut self, node: &Node, path: &str) -> Option<T> {
        let hint = match &node.value {
            Value::Scalar(scalar) if scalar.text.is_empty() && scalar.is_plain => return None,
            Value::Scalar(scalar) if scalar.is_null() && !T::KEEPS_NULL => return None,
            Value::Scalar(scalar) => match T::from_scalar(scalar) {
                Ok(value) => {
                    if let Some(doubt) = T::doubt(scalar) {
                        self.findings.warn(&node.origin, path, doubt);
                    }
                    return Some(value);
                }
                Err(hint) => hint,
            },
            _ => None,
        };
        let message = format!("expected {}, found {}", T::EXPECTED, describe(&node.value, path));
        self.findings
            .problem(&node.origin, path, message, hint.as_deref().or(T::HINT));
        None
    }
}
