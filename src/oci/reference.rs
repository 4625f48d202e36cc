//! References: what stands behind `/manifests/`, a tag or a digest.

use std::fmt;

use thiserror::Error;

use super::digest::{Digest, DigestError};

/// A tag (distribution-spec, "Pulling manifests"): at most 128 characters, first a word character.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(Box<str>);

impl Tag {
    /// Parses a tag; `None` outside `[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let first_fits = text.bytes().next().is_some_and(is_word);
        let rest_fits = text.bytes().all(|b| is_word(b) || b == b'.' || b == b'-');
        (first_fits && rest_fits && text.len() <= 128).then(|| Self(Box::from(text)))
    }

    /// The tag under which clients look for referrers where the API is missing (distribution-spec, "Referrers Tag Schema").
    pub fn referrers_of(digest: &Digest) -> Self {
        let hex: String = digest.hex().chars().take(64).collect();
        Self(format!("{}-{hex}", digest.algorithm().as_str()).into_boxed_str())
    }

    /// The tag as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A tag or a digest; a `:` makes it a digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Reference {
    /// A mutable name.
    Tag(Tag),
    /// The content itself.
    Digest(Digest),
}

/// Why a text is neither tag nor digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReferenceError {
    /// Contains a `:` but is no usable digest.
    #[error(transparent)]
    Digest(#[from] DigestError),
    /// Not a tag.
    #[error("tag `{0}` does not match [a-zA-Z0-9_][a-zA-Z0-9._-]{{0,127}}")]
    Tag(String),
}

impl Reference {
    /// Parses a reference.
    ///
    /// # Errors
    /// [`ReferenceError`] when the text is neither a tag nor a usable digest.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        if text.contains(':') {
            Ok(Self::Digest(Digest::parse(text)?))
        } else {
            Tag::parse(text)
                .map(Self::Tag)
                .ok_or_else(|| ReferenceError::Tag(text.chars().take(160).collect()))
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => tag.fmt(f),
            Self::Digest(digest) => digest.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tags_follow_the_grammar() {
        for good in ["latest", "_x", "1.0", "v1-2_3", &"a".repeat(128)] {
            assert!(Tag::parse(good).is_some(), "{good}");
        }
        for bad in ["", ".x", "-x", "a/b", "a:b", "a b", "é", &"a".repeat(129)] {
            assert!(Tag::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn the_referrers_tag_is_algorithm_dash_hex() {
        let digest = Digest::of(super::super::Algorithm::Sha512, b"");
        let tag = Tag::referrers_of(&digest);
        assert_eq!(tag.as_str().len(), "sha512-".len() + 64);
        assert!(Tag::parse(tag.as_str()).is_some());
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_keeps_the_text(text in "\\PC{0,140}") {
            if let Ok(reference) = Reference::parse(&text) {
                prop_assert_eq!(reference.to_string(), text);
            }
        }
    }
}
