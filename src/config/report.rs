//! The effective configuration as text for people: every value that holds, with where it comes from, secrets masked.
//! `larder check-config` prints it.

use super::{
    Loaded,
    error::{ConfigError, Origin},
    reader::{Setting, Step},
    schema,
    values::quoted,
};

/// Values are told apart from their origins by this column where they are short enough.
const COMMENT_COLUMN: usize = 48;

/// The effective configuration as YAML that could be used as a file again, apart from the secrets, which are `***`.
///
/// Each value is followed by its origin: `# file:12` (the line), `# REGISTRY_PROXY_TTL` or `# default`.
pub fn effective(loaded: &Loaded) -> String {
    let source = loaded.source.as_ref().map_or_else(
        || "none, larder's own defaults".to_owned(),
        |path| path.display().to_string().escape_debug().to_string(),
    );
    let mut text = format!("# effective configuration; file: {source}\n");
    let mut root = Branch::default();
    let mut settings: Vec<&Setting> = loaded.settings.iter().collect();
    settings.sort_by_key(|setting| rank(setting));
    for setting in settings {
        root.insert(&setting.path, setting);
    }
    root.write(&mut text, 0, false);
    text
}

/// What is wrong, as lines for a terminal: `error:` with the place, and `hint:` below it where there is one.
pub fn failure(error: &ConfigError) -> String {
    let mut text = String::new();
    for problem in &error.problems {
        text.extend(["error: ", &problem.to_string(), "\n"]);
        if let Some(hint) = &problem.hint {
            text.extend(["hint: ", hint, "\n"]);
        }
    }
    text
}

/// Top-level sections stand in the order of the schema, whatever order they were read in.
fn rank(setting: &Setting) -> usize {
    let Some(Step::Key(first)) = setting.path.first() else {
        return 0;
    };
    schema::SECTIONS
        .iter()
        .position(|field| field.key == first)
        .unwrap_or(usize::MAX)
}

/// Settings under one key, in the order in which they were read.
#[derive(Default)]
struct Branch<'s> {
    children: Vec<(&'s Step, Child<'s>)>,
}

enum Child<'s> {
    Value(&'s Setting),
    Branch(Branch<'s>),
}

impl<'s> Branch<'s> {
    fn insert(&mut self, path: &'s [Step], setting: &'s Setting) {
        let Some((step, rest)) = path.split_first() else {
            return;
        };
        let index = self.children.iter().position(|(known, _)| *known == step);
        if rest.is_empty() {
            match index.and_then(|index| self.children.get_mut(index)) {
                Some((_, child)) => *child = Child::Value(setting),
                None => self.children.push((step, Child::Value(setting))),
            }
            return;
        }
        let index = index.unwrap_or_else(|| {
            self.children.push((step, Child::Branch(Branch::default())));
            self.children.len() - 1
        });
        if let Some((_, Child::Branch(branch))) = self.children.get_mut(index) {
            branch.insert(rest, setting);
        }
    }

    /// Writes the children; the first of an item of a list follows its dash on the same line.
    fn write(&self, text: &mut String, indent: usize, is_item: bool) {
        for (index, (step, child)) in self.children.iter().enumerate() {
            let dash = if is_item && index == 0 { "- " } else { "" };
            let blanks = " ".repeat(if is_item && index == 0 { indent - 2 } else { indent });
            match (step, child) {
                (Step::Key(key), Child::Value(setting)) => {
                    let line = format!("{blanks}{dash}{}: {}", quoted(key), setting.shown);
                    let origin = show_origin(&setting.origin);
                    text.extend([format!("{line:COMMENT_COLUMN$} # {origin}\n")]);
                }
                (Step::Key(key), Child::Branch(branch)) => {
                    text.extend([&blanks, dash, &quoted(key), ":\n"]);
                    branch.write(text, indent + 2, false);
                }
                (Step::Item(_), Child::Branch(branch)) => branch.write(text, indent + 2, true),
                (Step::Item(_), Child::Value(_)) => {}
            }
        }
    }
}

fn show_origin(origin: &Origin) -> String {
    match origin {
        Origin::File { line, .. } => format!("file:{line}"),
        Origin::Variable(name) => name.to_string(),
        Origin::Default => "default".to_owned(),
    }
}
