//! What can be wrong with a configuration, and where: problems stop the start, warnings do not.

use std::{fmt, io, path::Path, path::PathBuf, sync::Arc};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// In the file, at a line and column counted from 1.
    File {
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
    /// In an environment variable.
    Variable(Arc<str>),
    /// Nowhere: larder's own default.
    Default,
}

/// A place to send a person to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A line and column of a file, both counted from 1.
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
    },
    /// The file as a whole.
    WholeFile(PathBuf),
    /// An environment variable.
    Variable(String),
    /// The configuration as a whole.
    Nowhere,
}

impl Place {
    pub(crate) fn new(origin: &Origin, file: Option<&Path>) -> Self {
        match (origin, file) {
            (Origin::File { line, column }, Some(path)) => Self::File {
                path: path.to_path_buf(),
                line: *line,
                column: *column,
            },
            (Origin::Variable(name), _) => Self::Variable(name.to_string()),
            (Origin::Default, Some(path)) => Self::WholeFile(path.to_path_buf()),
            (_, None) => Self::Nowhere,
        }
    }

    /// Orders findings as a person reads: the file as a whole, its lines, then variables by name.
    pub(crate) fn order(&self) -> (usize, usize, usize, String) {
        match self {
            Self::WholeFile(_) => (0, 0, 0, String::new()),
            Self::File { line, column, .. } => (1, *line, *column, String::new()),
            Self::Variable(name) => (2, 0, 0, name.clone()),
            Self::Nowhere => (3, 0, 0, String::new()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Self::WholeFile(path) => write!(f, "{}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Nowhere => f.write_str("configuration"),
        }
    }
}

/// One thing that is wrong. Its text never holds a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub place: Place,
    /// The key, such as `http.tls.key`; empty when it is not about one.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_finding(f, &self.place, &self.key, &self.message)
    }
}

/// One thing that is odd but does not stop the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// Where.
    pub place: Place,
    /// The key; empty when it is not about one.
    pub key: String,
    /// What is odd.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_finding(f, &self.place, &self.key, &self.message)
    }
}

fn write_finding(f: &mut fmt::Formatter<'_>, place: &Place, key: &str, message: &str) -> fmt::Result {
    match key {
        "" => write!(f, "{place}: {message}"),
        key => write!(f, "{place}: `{key}`: {message}"),
    }
}

/// Why there is no configuration: everything that was found wrong, in the order of the file.
///
/// It prints as one line for each problem, without the hints.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    /// What is wrong; at least one.
    pub problems: Vec<Problem>,
    /// The failed read, when the file could not be read.
    #[source]
    pub source: Option<io::Error>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl ConfigError {
    /// The hints of all problems, without repetition.
    pub fn hints(&self) -> Vec<&str> {
        let mut hints: Vec<&str> = Vec::new();
        for hint in self.problems.iter().filter_map(|problem| problem.hint.as_deref()) {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        hints
    }

    pub(crate) fn unreadable(path: &Path, source: io::Error) -> Self {
        let hint = match source.kind() {
            io::ErrorKind::NotFound => {
                "name an existing file, or start without one for Docker Hub and ./larder-data"
            }
            io::ErrorKind::PermissionDenied => "the user larder runs as must be allowed to read it",
            _ => "the path must be a readable file",
        };
        Self {
            problems: vec![Problem {
                place: Place::WholeFile(path.to_path_buf()),
                key: String::new(),
                message: format!("cannot be read: {source}"),
                hint: Some(hint.to_owned()),
            }],
            source: Some(source),
        }
    }
}
