//! larder, a pull-through cache for OCI registries.
//!
//! # Map
//!
//! ```text
//! server     composes the parts from a Config, binds, runs until told to stop, drains in order
//! http       the edge: routes, headers, errors, ranges, listeners, the admin listener
//! registry   the service, which knows no HTTP: blobs, manifests, fills, tags, referrers, what is pushed
//! gc         what leaves the volume, and when
//! store      bytes: content-addressed blobs, links, spool files
//! upstream   the other registry: requests, tokens, redirects, retries, rate limits
//! meta       bookkeeping: the index over the files, which can be lost at any moment
//! config     distribution's YAML and `REGISTRY_*` environment, read into a validated `Config`
//! oci        vocabulary: names, references, digests, manifests, error codes; pure values
//! ```
//!
//! Layers depend downward only:
//! `main > cli > server > http > registry, gc > store, upstream > meta, config > oci, flight, metrics, clock, secret,
//! telemetry, kube, node`. A test reads the `use crate::` lines and holds this.
//!
//! # Invariants
//!
//! 1. Only `Verified` bytes can be committed; the type has one constructor.
//! 2. One fill per digest per process; it belongs to the server.
//! 3. Bytes are deleted only while holding the digest's flight slot.
//! 4. A reference changes in the same transaction as the manifest that makes it.
//! 5. The index can be lost at any moment without losing content.
//! 6. Manifests are stored and served as the bytes received; nothing is converted, compressed or re-serialised.
//! 7. Nothing under `registry` names a status code; nothing under `http` names a path in the store.
//! 8. Memory per client is a small constant; a slow client slows only itself.
//! 9. Cached bytes answer only for a repository they are linked to.
//! 10. No lock and no transaction is held across an await. Every queue is bounded, every outside call has a timeout.

pub mod clock;
pub mod config;
pub mod flight;
pub mod gc;
pub mod http;
pub mod meta;
pub mod metrics;
pub mod oci;
pub mod registry;
pub mod secret;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod upstream;
