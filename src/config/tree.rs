//! YAML text as a small tree in which every value knows where it was written and whether it was quoted. It knows no
//! keys and no types: `0123` stays text until somebody who wants a number asks.
//!
//! The engine accepts what libyaml accepts, such as quoted text whose last lines stand at column 0; strict YAML 1.2
//! forbids that, and Gardener renders it.

use std::{collections::HashMap, sync::Arc};

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::error::Origin;

/// No more than this is read of a file or a variable.
pub(crate) const MAX_BYTES: usize = 1 << 20;
/// No tree has more nodes than this, aliases counted as often as they are used.
const MAX_NODES: usize = 20_000;
/// No tree is deeper than this, so that walking it needs little stack.
const MAX_DEPTH: usize = 64;

/// A value with its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    pub(crate) origin: Origin,
    pub(crate) value: Value,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Scalar(Scalar),
    Sequence(Vec<Node>),
    Mapping(Vec<Entry>),
}

/// Text, after YAML's quotes, escapes and line folds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    /// Whether it stood without quotes, so that it may be a number, a switch or nothing.
    pub(crate) is_plain: bool,
}

/// One key of a mapping.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) origin: Origin,
    pub(crate) value: Node,
}

impl Node {
    /// A value that says nothing.
    pub(crate) fn null(origin: Origin) -> Self {
        Self {
            origin,
            value: Value::Scalar(Scalar {
                text: String::new(),
                is_plain: true,
            }),
        }
    }

    /// An empty mapping.
    pub(crate) fn mapping(origin: Origin) -> Self {
        Self {
            origin,
            value: Value::Mapping(Vec::new()),
        }
    }

    /// Whether it is one of YAML's words for nothing.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar(scalar) if scalar.is_null())
    }

    /// The entries of a mapping; none for anything else.
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Mapping(entries) => entries,
            _ => &[],
        }
    }

    /// The value under a key of a mapping.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entries()
            .iter()
            .find(|entry| entry.key == key)
            .map(|entry| &entry.value)
    }

    fn count(&self) -> usize {
        1 + match &self.value {
            Value::Scalar(_) => 0,
            Value::Sequence(items) => items.iter().map(Self::count).sum(),
            Value::Mapping(entries) => entries.iter().map(|entry| 1 + entry.value.count()).sum(),
        }
    }

    fn depth(&self) -> usize {
        1 + match &self.value {
            Value::Scalar(_) => 0,
            Value::Sequence(items) => items.iter().map(Self::depth).max().unwrap_or(0),
            Value::Mapping(entries) => entries.iter().map(|entry| entry.value.depth()).max().unwrap_or(0),
        }
    }
}

impl Scalar {
    /// Whether it is one of YAML's words for nothing, unquoted.
    pub(crate) fn is_null(&self) -> bool {
        self.is_plain && super::scalar::is_null(&self.text)
    }
}

/// Where a text comes from, which decides the origins in its tree.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    File,
    Variable(Arc<str>),
    Default,
}

impl Source {
    fn origin(&self, span: &Span) -> Origin {
        match self {
            Self::File => Origin::File {
                line: span.start.line(),
                column: span.start.col() + 1,
            },
            Self::Variable(name) => Origin::Variable(Arc::clone(name)),
            Self::Default => Origin::Default,
        }
    }
}

/// The first document of a text.
#[derive(Debug)]
pub(crate) struct Document {
    /// Its value; null when there is none.
    pub(crate) root: Node,
    /// Keys that are there twice: the path, the second place, the first place.
    pub(crate) duplicates: Vec<Duplicate>,
    /// Where a second document begins, which nobody reads.
    pub(crate) second_start: Option<Origin>,
}

/// A key that is there twice.
#[derive(Debug)]
pub(crate) struct Duplicate {
    pub(crate) path: String,
    pub(crate) first: Origin,
    pub(crate) second: Origin,
}

/// Text that is no YAML.
#[derive(Debug)]
pub(crate) struct SyntaxError {
    pub(crate) origin: Origin,
    pub(crate) message: String,
}

/// Reads the first document of a text.
///
/// # Errors
///
/// The text is no YAML, is too large or too deep, or uses a mapping as a key.
pub(crate) fn parse(text: &str, source: Source) -> Result<Document, SyntaxError> {
    let options = granit_parser::options! {
        emit_comments: false,
        block_scalar_eof_without_line_feed: true,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder::new(source);
    while let Some(next) = parser.next_event() {
        let (event, span) = next.map_err(|error| builder.syntax(&error))?;
        let origin = builder.source.origin(&span);
        match event {
            Event::DocumentStart(..) if builder.root.is_some() => {
                builder.second_start = Some(origin);
                break;
            }
            Event::Scalar(text, style, anchor, tag) => {
                let is_empty = span.is_empty() && style == ScalarStyle::Plain;
                let text = if is_empty {
                    String::new()
                } else {
                    text.into_owned()
                };
                let is_plain = is_plain(style, tag.as_deref());
                builder.push(
                    Node {
                        origin,
                        value: Value::Scalar(Scalar { text, is_plain }),
                    },
                    anchor,
                )?;
            }
            Event::SequenceStart(_, anchor, _) => {
                builder.open(Frame {
                    origin,
                    anchor,
                    items: Items::Sequence(Vec::new()),
                })?;
            }
            Event::MappingStart(_, anchor, _) => {
                let items = Items::Mapping {
                    entries: Vec::new(),
                    key: None,
                    merges: Vec::new(),
                };
                builder.open(Frame {
                    origin,
                    anchor,
                    items,
                })?;
            }
            Event::SequenceEnd | Event::MappingEnd => builder.close()?,
            Event::Alias(anchor) => builder.alias(anchor, origin)?,
            _ => {}
        }
    }
    Ok(builder.finish())
}

/// `!!str 5` is text; every other tag leaves the decision to who reads the value.
fn is_plain(style: ScalarStyle, tag: Option<&Tag>) -> bool {
    let is_text = tag.and_then(Tag::core_suffix) == Some("str");
    style == ScalarStyle::Plain && !is_text
}

/// A collection that is not closed yet.
struct Frame {
    origin: Origin,
    anchor: usize,
    items: Items,
}

enum Items {
    Sequence(Vec<Node>),
    Mapping {
        entries: Vec<Entry>,
        key: Option<(String, Origin)>,
        merges: Vec<Node>,
    },
}

struct Builder {
    source: Source,
    frames: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
    duplicates: Vec<Duplicate>,
    second_start: Option<Origin>,
}

impl Builder {
    fn new(source: Source) -> Self {
        Self {
            source,
            frames: Vec::new(),
            anchors: HashMap::new(),
            nodes: 0,
            root: None,
            duplicates: Vec::new(),
            second_start: None,
        }
    }

    fn syntax(&self, error: &granit_parser::ScanError) -> SyntaxError {
        let origin = self.source.origin(&Span::empty(*error.marker()));
        SyntaxError {
            origin,
            message: error.info(),
        }
    }

    fn spend(&mut self, nodes: usize, origin: &Origin) -> Result<(), SyntaxError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES {
            let message = format!("more than {MAX_NODES} values are no configuration");
            return Err(SyntaxError {
                origin: origin.clone(),
                message,
            });
        }
        Ok(())
    }

    fn open(&mut self, frame: Frame) -> Result<(), SyntaxError> {
        self.spend(1, &frame.origin)?;
        if self.frames.len() >= MAX_DEPTH {
            return Err(too_deep(frame.origin));
        }
        self.frames.push(frame);
        Ok(())
    }

    fn close(&mut self) -> Result<(), SyntaxError> {
        let Some(frame) = self.frames.pop() else {
            return Ok(());
        };
        let value = match frame.items {
            Items::Sequence(items) => Value::Sequence(items),
            Items::Mapping {
                mut entries, merges, ..
            } => {
                merges
                    .into_iter()
                    .try_for_each(|merged| merge(&mut entries, merged))?;
                Value::Mapping(entries)
            }
        };
        self.push(
            Node {
                origin: frame.origin,
                value,
            },
            frame.anchor,
        )
    }

    fn alias(&mut self, anchor: usize, origin: Origin) -> Result<(), SyntaxError> {
        let Some(node) = self.anchors.get(&anchor).cloned() else {
            return Err(SyntaxError {
                origin,
                message: "an alias stands inside what it names".to_owned(),
            });
        };
        self.spend(node.count(), &origin)?;
        if self.frames.len() + node.depth() > MAX_DEPTH {
            return Err(too_deep(origin));
        }
        self.push(node, 0)
    }

    /// Adds a complete value to the collection that is open, or makes it the root.
    fn push(&mut self, node: Node, anchor: usize) -> Result<(), SyntaxError> {
        self.spend(1, &node.origin)?;
        if anchor != 0 {
            self.spend(node.count(), &node.origin)?;
            self.anchors.insert(anchor, node.clone());
        }
        let path = self.path();
        match self.frames.last_mut().map(|frame| &mut frame.items) {
            None => self.root = Some(node),
            Some(Items::Sequence(items)) => items.push(node),
            Some(Items::Mapping { entries, key, merges }) => match key.take() {
                None => *key = Some(as_key(node)?),
                Some((name, _)) if name == "<<" => merges.push(node),
                Some((name, origin)) => {
                    if let Some(first) = entries.iter().find(|entry| entry.key == name) {
                        let first = first.origin.clone();
                        self.duplicates.push(Duplicate {
                            path,
                            first,
                            second: origin.clone(),
                        });
                    }
                    entries.push(Entry {
                        key: name,
                        origin,
                        value: node,
                    });
                }
            },
        }
        Ok(())
    }

    /// Where in the tree the next value goes.
    fn path(&self) -> String {
        let mut path = String::new();
        for frame in &self.frames {
            match &frame.items {
                Items::Sequence(items) => path.extend(["[", &items.len().to_string(), "]"]),
                Items::Mapping {
                    key: Some((key, _)), ..
                } if path.is_empty() => path.push_str(key),
                Items::Mapping {
                    key: Some((key, _)), ..
                } => path.extend([".", key]),
                Items::Mapping { key: None, .. } => {}
            }
        }
        path
    }

    fn finish(self) -> Document {
        let origin = self
            .source
            .origin(&Span::empty(granit_parser::Marker::new(0, 1, 0)));
        Document {
            root: self.root.unwrap_or_else(|| Node::null(origin)),
            duplicates: self.duplicates,
            second_start: self.second_start,
        }
    }
}

fn too_deep(origin: Origin) -> SyntaxError {
    SyntaxError {
        origin,
        message: format!("nested deeper than {MAX_DEPTH} levels"),
    }
}

fn as_key(node: Node) -> Result<(String, Origin), SyntaxError> {
    match node.value {
        Value::Scalar(scalar) => Ok((scalar.text, node.origin)),
        _ => Err(SyntaxError {
            origin: node.origin,
            message: "a key must be plain text".to_owned(),
        }),
    }
}

/// Adds what `<<` names, where the mapping does not say otherwise itself.
fn merge(entries: &mut Vec<Entry>, merged: Node) -> Result<(), SyntaxError> {
    match merged.value {
        Value::Mapping(added) => {
            for entry in added {
                if !entries.iter().any(|present| present.key == entry.key) {
                    entries.push(entry);
                }
            }
            Ok(())
        }
        Value::Sequence(items) => items.into_iter().try_for_each(|item| merge(entries, item)),
        Value::Scalar(_) => Err(SyntaxError {
            origin: merged.origin,
            message: "`<<` must name a mapping".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(text: &str) -> Node {
        parse(text, Source::File).unwrap().root
    }

    fn text<'a>(node: &'a Node, key: &str) -> &'a str {
        match &node.get(key).unwrap().value {
            Value::Scalar(scalar) => &scalar.text,
            other => panic!("{other:?}"),
        }
    }

    fn syntax_error(text: &str) -> (Origin, String) {
        let error = parse(text, Source::File).unwrap_err();
        (error.origin, error.message)
    }

    #[test]
    fn values_know_their_place_and_their_quotes() {
        let node = root("a: 1\nb:\n  c: 'x'\n");
        let c = node.get("b").unwrap().get("c").unwrap();
        assert_eq!(c.origin, Origin::File { line: 3, column: 6 });
        assert_eq!(
            c.value,
            Value::Scalar(Scalar {
                text: "x".to_owned(),
                is_plain: false
            })
        );
        assert!(!root("a: !!str 5").get("a").unwrap().is_null());
    }

    #[test]
    fn quoted_text_may_go_on_at_column_0_and_folds() {
        let node = root("p: '{\n  \"a\": \"it''s\",\n\n  \"b\": 1\n}\n'\nq: z\n");
        assert_eq!(text(&node, "p"), "{ \"a\": \"it's\",\n\"b\": 1 } ");
        assert_eq!(text(&node, "q"), "z");
        let key = root("p:\n  k: '-----BEGIN KEY-----\nAA==\n-----END KEY-----'\n");
        assert_eq!(
            text(key.get("p").unwrap(), "k"),
            "-----BEGIN KEY----- AA== -----END KEY-----"
        );
    }

    #[test]
    fn aliases_and_merge_keys_are_followed() {
        let node = root("a: &a {x: 1, y: 2}\nb: *a\nc:\n  <<: *a\n  y: 3\nd:\n  <<: [*a, {z: 4}]\n");
        assert_eq!(text(node.get("b").unwrap(), "x"), "1");
        assert_eq!(text(node.get("c").unwrap(), "y"), "3");
        assert_eq!(text(node.get("c").unwrap(), "x"), "1");
        assert_eq!(text(node.get("d").unwrap(), "z"), "4");
    }

    #[test]
    fn keys_that_are_there_twice_are_told_with_both_places() {
        let document = parse("a:\n  - b: 1\n    b: 2\n", Source::File).unwrap();
        let [duplicate] = document.duplicates.as_slice() else {
            panic!()
        };
        assert_eq!(duplicate.path, "a[0].b");
        assert_eq!(duplicate.first, Origin::File { line: 2, column: 5 });
        assert_eq!(duplicate.second, Origin::File { line: 3, column: 5 });
    }

    #[test]
    fn empty_values_are_null_and_only_one_document_is_read() {
        assert!(root("").is_null());
        assert!(root("a:\n").get("a").unwrap().is_null());
        assert_eq!(text(&root("a: {b}\n").get("a").unwrap().clone(), "b"), "");
        let document = parse("a: 1\n---\nb: 2\n", Source::File).unwrap();
        assert_eq!(document.second_start, Some(Origin::File { line: 2, column: 1 }));
        assert!(document.root.get("b").is_none());
    }

    #[test]
    fn what_would_grow_without_bound_is_refused() {
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..10 {
            let list = format!("*a{},", level - 1).repeat(10);
            bomb += &[
                "a",
                &level.to_string(),
                ": &a",
                &level.to_string(),
                " [",
                &list,
                "]\n",
            ]
            .concat();
        }
        assert!(syntax_error(&bomb).1.contains("more than"));
        assert!(parse(&"[".repeat(100_000), Source::File).is_err());
        assert!(parse(&"- ".repeat(100_000), Source::File).is_err());
        assert!(syntax_error("a: &a [*a]").1.contains("inside what it names"));
    }

    #[test]
    fn errors_have_a_place() {
        assert_eq!(syntax_error("a: b: c\n").0, Origin::File { line: 1, column: 5 });
        assert_eq!(
            syntax_error("a: 1\n? [x]\n: 2\n").0,
            Origin::File { line: 2, column: 3 }
        );
        assert_eq!(syntax_error("a: 1\n<<: 3\n").1, "`<<` must name a mapping");
    }
}
