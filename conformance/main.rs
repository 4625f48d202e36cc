//! The integration tests: black box, over HTTP, against an upstream that counts and misbehaves.
//!
//! Each test starts the real binary (or the one that `LARDER_BINARY` names) on loopback, with a volume of its own,
//! in front of a [`upstream::TestUpstream`]. The modules are themes; the names of the tests are the claims.

#[cfg(test)]
mod client;
#[cfg(test)]
mod larder;
#[cfg(test)]
mod launch;
#[cfg(test)]
mod upstream;

#[cfg(test)]
mod addressing;
#[cfg(test)]
mod age;
#[cfg(test)]
mod auth;
#[cfg(test)]
mod check_config;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod discovery;
#[cfg(test)]
mod errors;
#[cfg(test)]
mod flight;
#[cfg(test)]
mod flipped;
#[cfg(test)]
mod headers;
#[cfg(test)]
mod heal;
#[cfg(test)]
mod hosted;
#[cfg(test)]
mod http2;
#[cfg(test)]
mod input;
#[cfg(test)]
mod kit;
#[cfg(test)]
mod layers;
#[cfg(test)]
mod life;
#[cfg(test)]
mod login;
#[cfg(test)]
mod manifests;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod missing;
#[cfg(test)]
mod proxy;
#[cfg(test)]
mod range;
#[cfg(test)]
mod redirect;
#[cfg(test)]
mod stop;
#[cfg(test)]
mod tags;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod volume;
#[cfg(test)]
mod watch;
#[cfg(test)]
mod wrong;
