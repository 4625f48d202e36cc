//! The service: pulls through. It knows no HTTP and names no status code; the edge maps its answers.

pub mod answer;
pub mod error;

pub use answer::{Answer, Content, ContentError, How, ManifestContent, Page, PageRequest, Piece, Referrers};
pub use error::Error;
