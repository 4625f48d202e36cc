//! Repository names.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The longest accepted name in bytes (distribution-spec, "Pulling manifests": many clients limit host and name to 255).
pub const MAX_NAME_BYTES: usize = 255;

/// A repository name such as `library/alpine` (distribution-spec, "Pulling manifests").
///
/// Path components of lower-case letters and digits, joined inside by `.`, `_`, `__` or dashes, and by `/` between
/// each other. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

/// Why a text is not a repository name.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NameError {
    /// Longer than [`MAX_NAME_BYTES`] or empty.
    #[error("repository name has {0} bytes, expected 1 to {MAX_NAME_BYTES}")]
    Length(usize),
    /// A component does not follow the grammar.
    #[error("repository name `{0}` does not match [a-z0-9]+((.|_|__|-+)[a-z0-9]+)*(/...)*")]
    Grammar(String),
}

impl Name {
    /// Parses a name.
    ///
    /// # Errors
    /// [`NameError`] when the text is empty, too long or outside the grammar.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        if text.is_empty() || text.len() > MAX_NAME_BYTES {
            return Err(NameError::Length(text.len()));
        }
        if text.split('/').all(is_component) {
            Ok(Self(Arc::from(text)))
        } else {
            Err(NameError::Grammar(text.to_owned()))
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether `text` is one path component of a name.
pub fn is_component(text: &str) -> bool {
    let mut rest = text.as_bytes();
    loop {
        let run = rest
            .iter()
            .take_while(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            .count();
        if run == 0 {
            return false;
        }
        rest = rest.get(run..).unwrap_or_default();
        let separator = match rest {
            [] => return true,
            [b'_', b'_', ..] => 2,
            [b'.' | b'_', ..] => 1,
            [b'-', ..] => rest.iter().take_while(|b| **b == b'-').count(),
            _ => return false,
        };
        rest = rest.get(separator..).unwrap_or_default();
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_follow_the_grammar() {
        for good in [
            "a",
            "a0",
            "library/alpine",
            "a.b_c__d-e---f",
            "blobs",
            "x/manifests/y",
            "a/b/c/d",
            "0/1",
        ] {
            assert!(Name::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "", "A", "a/", "/a", "a//b", "a..b", "a___b", "-a", "a-", "_a", "a._b", "a:b", "../a", "a/%2e",
            "é",
        ] {
            assert!(Name::parse(bad).is_err(), "{bad}");
        }
        assert!(Name::parse(&"a".repeat(255)).is_ok());
        assert_eq!(Name::parse(&"a".repeat(256)), Err(NameError::Length(256)));
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_keeps_the_text(text in "\\PC{0,40}") {
            if let Ok(name) = Name::parse(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }

        #[test]
        fn every_text_of_the_grammar_is_a_name(
            text in "[a-z0-9]{1,3}((\\.|_|__|-{1,3})[a-z0-9]{1,3}){0,2}(/[a-z0-9]{1,3}((\\.|_|__|-{1,2})[a-z0-9]{1,3}){0,2}){0,3}"
        ) {
            prop_assert!(Name::parse(&text).is_ok());
        }
    }
}
