//! The integration tests: black box, over HTTP, against an upstream that counts and misbehaves.
//!
//! Each test starts the real binary (or the one that `LARDER_BINARY` names) on loopback, with a volume of its own,
//! in front of a [`upstream::TestUpstream`]. The modules are themes; the names of the tests are the claims.

#![expect(
    dead_code,
    unused_imports,
    reason = "knobs of the upstream are there before the tests that turn them"
)]

#[cfg(test)]
mod client;
#[cfg(test)]
mod larder;
#[cfg(test)]
mod upstream;

#[cfg(test)]
mod flight;
#[cfg(test)]
mod kit;
#[cfg(test)]
mod layers;
