//! Vocabulary of the OCI specifications as pure values: no I/O, no policy.
//!
//! Everything that comes from outside is parsed into these types at the edge and travels inward as such.

pub mod digest;
pub mod error;
pub mod manifest;
pub mod media_type;
pub mod name;
pub mod reference;

pub use digest::{Algorithm, Digest, Hasher};
pub use error::ErrorCode;
pub use manifest::{Descriptor, Manifest};
pub use name::Name;
pub use reference::{Reference, Tag};
