//! The configuration: distribution's YAML file and `REGISTRY_*` environment, read into a validated [`Config`].
//!
//! Nothing outside reads the file or the environment. The command line calls [`Config::load`], prints what is wrong
//! with its place and a hint, or hands the [`Config`] to the server. `config/*.yml` at the top of the repository
//! shows every key.

mod types;

pub use types::{
    Address, Auth, Catalog, ClientAuth, ClientCertificate, Config, Credentials, Debug, Gc, Health, Http,
    HttpLimits, Larder, Listen, Log, LogFormatter, LogLevel, Proxy, Renew, Scrub, SizeLimit, Storage, Tags,
    Timeouts, Tls, TlsVersion, UpstreamConfig, UpstreamTls,
};
