//! `REGISTRY_*` variables laid over the tree of the file, by distribution's rules: sorted order, upper-case segments
//! that are field names, values in YAML, lists by index. Where distribution panics or builds a bogus storage driver, this
//! warns or does what was meant.

use std::sync::Arc;

use super::{
    error::{Place, Problem, Warning},
    schema::{self, Field, Shape},
    tree::{self, Entry, Node, Source, Value},
};

const PREFIX: &str = "REGISTRY_";
/// Names the file itself, so it is no key.
pub(crate) const CONFIGURATION_PATH: &str = "REGISTRY_CONFIGURATION_PATH";

/// What came of the variables beside the changed tree.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<Warning>,
}

/// Lays every `REGISTRY_*` variable over the tree.
pub(crate) fn apply(root: &mut Node, variables: impl IntoIterator<Item = (String, String)>) -> Findings {
    let mut variables: Vec<_> = variables
        .into_iter()
        .filter(|(name, _)| name.starts_with(PREFIX) && name != CONFIGURATION_PATH)
        .collect();
    // Distribution sorts by name, so that `REGISTRY_STORAGE` comes before what is inside it.
    variables.sort();
    let mut overlay = Overlay::default();
    for (name, value) in &variables {
        overlay.apply(root, name, value);
    }
    overlay.finish()
}

#[derive(Default)]
struct Overlay {
    findings: Findings,
    service_links: Vec<String>,
}

/// What became of one variable.
enum Outcome {
    Set,
    /// It names no key: the part that is not known, and the names that could stand there.
    Unknown {
        typed: String,
        known: Vec<String>,
    },
    Wrong(String),
}

impl Overlay {
    fn apply(&mut self, root: &mut Node, name: &str, text: &str) {
        let segments: Vec<&str> = name.split('_').skip(1).collect();
        let is_service_link = is_service_link(name, text);
        // A service variable that lands in no known key is never looked at further, so its value need not be YAML.
        if is_service_link && !is_known(&schema::ROOT, &segments) {
            self.service_links.push(name.to_owned());
            return;
        }
        let Some(value) = self.parse(name, text) else {
            return;
        };
        match set(root, &schema::ROOT, &segments, value) {
            Outcome::Set => {}
            Outcome::Unknown { typed, known } => self.unknown(name, &typed, &known),
            Outcome::Wrong(message) => self.problem(name, message, None),
        }
    }

    fn parse(&mut self, name: &str, text: &str) -> Option<Node> {
        if text.len() > tree::MAX_BYTES {
            self.problem(name, format!("is larger than {} bytes", tree::MAX_BYTES), None);
            return None;
        }
        match tree::parse(text, Source::Variable(Arc::from(name))) {
            Ok(document) => {
                self.look_for_lost_text(name, text, &document.root);
                Some(document.root)
            }
            Err(error) => {
                let hint = "values are YAML: put text with special characters between single quotes";
                self.problem(
                    name,
                    format!("is no YAML: {}", error.message),
                    Some(hint.to_owned()),
                );
                None
            }
        }
    }

    /// ` #` begins a comment in YAML, which surprises people who set a password.
    fn look_for_lost_text(&mut self, name: &str, text: &str, value: &Node) {
        if let Value::Scalar(scalar) = &value.value
            && scalar.is_plain
            && scalar.text.len() < text.trim().len()
            && text.contains('#')
        {
            self.warn(
                name,
                "what follows ` #` is a comment in YAML and is not used; quote the value".to_owned(),
            );
        }
    }

    fn unknown(&mut self, name: &str, typed: &str, known: &[String]) {
        let message = match schema::nearest(typed, known.iter().map(String::as_str)) {
            Some(meant) => {
                format!("is not known and ignored; did you mean `{meant}` where it says `{typed}`?")
            }
            None => "is not known and ignored".to_owned(),
        };
        self.warn(name, message);
    }

    fn warn(&mut self, name: &str, message: String) {
        let place = Place::Variable(name.to_owned());
        self.findings.warnings.push(Warning {
            place,
            key: String::new(),
            message,
        });
    }

    fn problem(&mut self, name: &str, message: String, hint: Option<String>) {
        let place = Place::Variable(name.to_owned());
        self.findings.problems.push(Problem {
            place,
            key: String::new(),
            message,
            hint,
        });
    }

    fn finish(mut self) -> Findings {
        if !self.service_links.is_empty() {
            let message = format!(
                "ignored, as Kubernetes sets them for services: {}",
                self.service_links.join(", ")
            );
            let warning = Warning {
                place: Place::Nowhere,
                key: String::new(),
                message,
            };
            self.findings.warnings.push(warning);
        }
        self.findings
    }
}

/// Puts a value where the segments lead, making what is missing on the way.
fn set(node: &mut Node, shape: &Shape, segments: &[&str], value: Node) -> Outcome {
    let Some((segment, rest)) = segments.split_first() else {
        *node = value;
        return Outcome::Set;
    };
    match shape {
        Shape::Leaf(_) => unknown(segments, &[]),
        Shape::Keys(fields) => match find(fields, segment) {
            Some(field) => set_entry(node, field.key, &field.shape, rest, value),
            None => unknown(segments, fields),
        },
        Shape::Driver(fields) => {
            open_driver(node);
            match find(fields, segment) {
                Some(field) => set_entry(node, field.key, &field.shape, rest, value),
                // Kept, so that a driver or a login that does not exist here is refused and not passed over.
                None => set_entry(node, &segment.to_ascii_lowercase(), &Shape::Opaque, rest, value),
            }
        }
        Shape::Map(inner) => set_free(node, inner, segment, rest, value),
        Shape::List(inner) => set_item(node, inner, segment, rest, value),
        Shape::Opaque => match &node.value {
            Value::Sequence(_) => set_item(node, &Shape::Opaque, segment, rest, value),
            Value::Scalar(_) if !node.is_null() => unknown(segments, &[]),
            _ => set_free(node, &Shape::Opaque, segment, rest, value),
        },
    }
}

fn unknown(segments: &[&str], fields: &[Field]) -> Outcome {
    Outcome::Unknown {
        typed: segments.join("_"),
        known: fields.iter().map(Field::segment).collect(),
    }
}

/// `storage: filesystem` means the same as `storage: {filesystem: {}}`.
fn open_driver(node: &mut Node) {
    if let Value::Scalar(scalar) = &node.value
        && !node.is_null()
    {
        let entry = Entry {
            key: scalar.text.clone(),
            origin: node.origin.clone(),
            value: Node::null(node.origin.clone()),
        };
        node.value = Value::Mapping(vec![entry]);
    }
}

/// Like a Go map: an existing key is found whatever its letter case, a new one is lower case.
fn set_free(node: &mut Node, inner: &Shape, segment: &str, rest: &[&str], value: Node) -> Outcome {
    let existing = node
        .entries()
        .iter()
        .find(|entry| entry.key.eq_ignore_ascii_case(segment));
    let key = existing.map_or_else(|| segment.to_ascii_lowercase(), |entry| entry.key.clone());
    set_entry(node, &key, inner, rest, value)
}

fn set_entry(node: &mut Node, key: &str, shape: &Shape, rest: &[&str], value: Node) -> Outcome {
    let origin = value.origin.clone();
    if node.is_null() {
        *node = Node::mapping(origin.clone());
    }
    // A wrong shape in the file is told by who checks the tree, so the variable is not blamed for it.
    let Value::Mapping(entries) = &mut node.value else {
        return Outcome::Set;
    };
    if let Some(entry) = entries.iter_mut().find(|entry| entry.key == key) {
        let outcome = set(&mut entry.value, shape, rest, value);
        if rest.is_empty() {
            entry.origin = origin;
        }
        return outcome;
    }
    let mut added = Node::null(origin.clone());
    let outcome = set(&mut added, shape, rest, value);
    if matches!(outcome, Outcome::Set) {
        entries.push(Entry {
            key: key.to_owned(),
            origin,
            value: added,
        });
    }
    outcome
}

fn set_item(node: &mut Node, inner: &Shape, segment: &str, rest: &[&str], value: Node) -> Outcome {
    let Ok(index) = segment.parse::<usize>() else {
        return Outcome::Wrong(format!("`{segment}` must be the number of an item in the list"));
    };
    if node.is_null() {
        *node = Node {
            origin: value.origin.clone(),
            value: Value::Sequence(Vec::new()),
        };
    }
    let Value::Sequence(items) = &mut node.value else {
        return Outcome::Set;
    };
    if index > items.len() {
        let len = items.len();
        return Outcome::Wrong(format!(
            "the list has {len} items, so the next one is `{len}`, not `{index}`"
        ));
    }
    let mut item = items
        .get(index)
        .cloned()
        .unwrap_or_else(|| Node::null(value.origin.clone()));
    let outcome = set(&mut item, inner, rest, value);
    if matches!(outcome, Outcome::Set) {
        match items.get_mut(index) {
            Some(place) => *place = item,
            None => items.push(item),
        }
    }
    outcome
}

fn find(fields: &'static [Field], segment: &str) -> Option<&'static Field> {
    fields.iter().find(|field| field.segment() == segment)
}

/// Whether every segment names a key of the schema; what is under a free key is not.
fn is_known(shape: &Shape, segments: &[&str]) -> bool {
    let Some((segment, rest)) = segments.split_first() else {
        return true;
    };
    match shape {
        Shape::Keys(fields) | Shape::Driver(fields) => {
            find(fields, segment).is_some_and(|field| is_known(&field.shape, rest))
        }
        Shape::List(inner) => segment.parse::<usize>().is_ok() && is_known(inner, rest),
        Shape::Map(_) | Shape::Leaf(_) | Shape::Opaque => false,
    }
}

/// Whether Kubernetes sets such a variable for a service whose name begins with `registry`.
fn is_service_link(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    let segments: Vec<&str> = name.split('_').collect();
    match segments.as_slice() {
        [.., "SERVICE", "HOST" | "PORT"] => true,
        [.., "PORT", port, protocol] | [.., "PORT", port, protocol, "PROTO" | "PORT" | "ADDR"] => {
            port.parse::<u16>().is_ok() && PROTOCOLS.contains(protocol)
        }
        [.., "PORT"] => value.contains("://"),
        // `..._SERVICE_PORT_<NAME OF THE PORT>`
        segments => segments.windows(2).any(|pair| pair == ["SERVICE", "PORT"]),
    }
}
