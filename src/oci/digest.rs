//! Content digests: parsing, printing, computing.

use std::fmt;

use sha2::Digest as _;
use thiserror::Error;

/// A digest algorithm that larder can compute (image-spec, "Registered algorithms").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// SHA-256, 64 lower-case hex characters.
    Sha256,
    /// SHA-512, 128 lower-case hex characters.
    Sha512,
}

impl Algorithm {
    /// The algorithm's name as it stands in a digest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// The number of hex characters of an encoded digest.
    pub fn hex_len(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        match text {
            "sha256" => Some(Self::Sha256),
            "sha512" => Some(Self::Sha512),
            _ => None,
        }
    }
}

/// A digest such as `sha256:e3b0...` (image-spec, "Digests").
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest {
    algorithm: Algorithm,
    hex: Box<str>,
}

/// Why a text is not a usable digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DigestError {
    /// Not of the form `algorithm:encoded`, or the encoded part is not lower-case hex of the right length.
    #[error("digest `{0}` is malformed")]
    Malformed(String),
    /// Well formed, but the algorithm is neither sha256 nor sha512.
    #[error("digest algorithm `{0}` is not supported")]
    Unsupported(String),
}

impl Digest {
    /// Parses `algorithm:hex`.
    ///
    /// # Errors
    /// [`DigestError`] when the text is malformed or names an algorithm that larder cannot compute.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let malformed = || DigestError::Malformed(text.chars().take(160).collect());
        let (name, encoded) = text.split_once(':').ok_or_else(malformed)?;
        if !is_algorithm_name(name) {
            return Err(malformed());
        }
        let Some(algorithm) = Algorithm::parse(name) else {
            return Err(DigestError::Unsupported(name.chars().take(64).collect()));
        };
        let is_hex = encoded.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if is_hex && encoded.len() == algorithm.hex_len() {
            Ok(Self {
                algorithm,
                hex: Box::from(encoded),
            })
        } else {
            Err(malformed())
        }
    }

    /// Computes the digest of `bytes`.
    pub fn of(algorithm: Algorithm, bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(bytes);
        hasher.finish()
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The encoded part: lower-case hex.
    pub fn hex(&self) -> &str {
        &self.hex
    }
}

fn is_algorithm_name(name: &str) -> bool {
    name.split(['+', '.', '_', '-'])
        .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.as_str(), self.hex)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A running digest computation.
#[derive(Clone)]
pub enum Hasher {
    /// SHA-256 in progress.
    Sha256(sha2::Sha256),
    /// SHA-512 in progress.
    Sha512(Box<sha2::Sha512>),
}

impl Hasher {
    /// Starts a computation.
    pub fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Sha256 => Self::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Box::new(sha2::Sha512::new())),
        }
    }

    /// Feeds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// Ends the computation.
    pub fn finish(self) -> Digest {
        match self {
            Self::Sha256(hasher) => digest_from(Algorithm::Sha256, &hasher.finalize()),
            Self::Sha512(hasher) => digest_from(Algorithm::Sha512, &hasher.finalize()),
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sha256(_) => "Hasher(sha256)",
            Self::Sha512(_) => "Hasher(sha512)",
        })
    }
}

fn digest_from(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    Digest {
        algorithm,
        hex: hex::encode(bytes).into_boxed_str(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn the_empty_blob_has_its_known_digest() {
        assert_eq!(Digest::of(Algorithm::Sha256, b"").to_string(), EMPTY);
        assert!(
            Digest::of(Algorithm::Sha512, b"")
                .to_string()
                .starts_with("sha512:cf83e1357eefb8bd")
        );
    }

    #[test]
    fn malformed_and_unsupported_digests_are_told_apart() {
        for bad in [
            "",
            "sha256",
            "sha256:",
            ":abc",
            "sha256:XYZ",
            &EMPTY.to_uppercase(),
            &EMPTY[..70],
            "sha256:baddigeststring",
            "../x:00",
        ] {
            assert!(
                matches!(Digest::parse(bad), Err(DigestError::Malformed(_))),
                "{bad}"
            );
        }
        assert_eq!(
            Digest::parse("blake3:00"),
            Err(DigestError::Unsupported("blake3".into()))
        );
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_keeps_the_text(text in "\\PC{0,140}") {
            if let Ok(digest) = Digest::parse(&text) {
                prop_assert_eq!(digest.to_string(), text);
            }
        }

        #[test]
        fn a_computed_digest_parses_to_itself(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
                let digest = Digest::of(algorithm, &bytes);
                prop_assert_eq!(Digest::parse(&digest.to_string()), Ok(digest));
            }
        }
    }
}
