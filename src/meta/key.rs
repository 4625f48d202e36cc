//! The keys of the index: how digests, repositories and times become bytes that sort as they should.

use crate::oci::{Algorithm, Digest};

const SHA256: u8 = 1;
const SHA512: u8 = 2;

/// The key of a digest: a byte for the algorithm, then the raw digest. No key is the beginning of another.
pub(super) fn digest(digest: &Digest) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + digest.hex().len() / 2);
    key.push(match digest.algorithm() {
        Algorithm::Sha256 => SHA256,
        Algorithm::Sha512 => SHA512,
    });
    key.extend(hex::decode(digest.hex()).unwrap_or_default());
    key
}

/// The digest at the beginning of `key`, and the rest.
pub(super) fn split_digest(key: &[u8]) -> Option<(Digest, &[u8])> {
    let (algorithm, rest) = key.split_first()?;
    let algorithm = match *algorithm {
        SHA256 => Algorithm::Sha256,
        SHA512 => Algorithm::Sha512,
        _ => return None,
    };
    let (raw, rest) = rest.split_at_checked(algorithm.hex_len() / 2)?;
    let digest = Digest::parse(&format!("{}:{}", algorithm.as_str(), hex::encode(raw))).ok()?;
    Some((digest, rest))
}

/// Everything of one repository: its name and a zero byte, which no name contains.
pub(super) fn repository(repository: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(repository.len() + 80);
    key.extend_from_slice(repository.as_bytes());
    key.push(0);
    key
}

/// A digest in a repository.
pub(super) fn link(name: &str, of: &Digest) -> Vec<u8> {
    let mut key = repository(name);
    key.extend(digest(of));
    key
}

/// A tag in a repository.
pub(super) fn tag(name: &str, tag: &str) -> Vec<u8> {
    let mut key = repository(name);
    key.extend_from_slice(tag.as_bytes());
    key
}

/// The repository and what follows it in a link or tag key.
pub(super) fn split_repository(key: &[u8]) -> Option<(&str, &[u8])> {
    let zero = key.iter().position(|b| *b == 0)?;
    let (name, rest) = key.split_at_checked(zero)?;
    Some((std::str::from_utf8(name).ok()?, rest.get(1..)?))
}

/// The repository and digest of a link key.
pub(super) fn split_link(key: &[u8]) -> Option<(&str, Digest)> {
    let (name, rest) = split_repository(key)?;
    let (digest, rest) = split_digest(rest)?;
    rest.is_empty().then_some((name, digest))
}

/// A link in a queue: its time first, so that the queue is in order of time.
pub(super) fn queued(at_ms: u64, link: &[u8]) -> Vec<u8> {
    join(&at_ms.to_be_bytes(), link)
}

/// The time and the link of a queue key.
pub(super) fn split_queued(key: &[u8]) -> Option<(u64, &[u8])> {
    let (at, link) = key.split_at_checked(8)?;
    Some((u64::from_be_bytes(at.try_into().ok()?), link))
}

/// Two keys after each other.
pub(super) fn join(first: &[u8], second: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(first.len() + second.len());
    key.extend_from_slice(first);
    key.extend_from_slice(second);
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn keys_split_into_what_made_them(name in "[a-z/]{1,20}", bytes: Vec<u8>, at: u64) {
            for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
                let of = Digest::of(algorithm, &bytes);
                let key = link(&name, &of);
                prop_assert_eq!(split_link(&key), Some((name.as_str(), of)));
                let in_queue = queued(at, &key);
                prop_assert_eq!(split_queued(&in_queue), Some((at, key.as_slice())));
            }
        }

        #[test]
        fn foreign_bytes_never_panic(bytes: Vec<u8>) {
            let _ = (split_digest(&bytes), split_link(&bytes), split_queued(&bytes));
        }
    }
}
