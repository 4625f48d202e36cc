//! The integration tests: black box, over HTTP, against an upstream that counts and misbehaves.
