//! What larder is told to do: plain typed values, validated, grouped by concern. No parsing and no I/O here;
//! [`crate::config::Config::load`] makes one of these, the server reads it.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use http::{HeaderName, HeaderValue};
use url::Url;

use super::pattern::Pattern;
use crate::secret::Secret;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Application and access log.
    pub log: Log,
    /// Where the bytes are.
    pub storage: Storage,
    /// The main listener.
    pub http: Http,
    /// The admin listener; `None` when `http.debug.addr` is not set.
    pub debug: Option<Debug>,
    /// The storage check behind `/debug/health`.
    pub health: Health,
    /// The upstreams and how long what they gave is kept.
    pub proxy: Proxy,
    /// `_catalog`.
    pub catalog: Catalog,
    /// `tags/list`.
    pub tags: Tags,
    /// How clients log in; `None` when they need not.
    pub auth: Option<Auth>,
    /// What only larder has, under the key `larder`.
    pub larder: Larder,
}

/// The logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The least severe level that is written.
    pub level: LogLevel,
    /// How a line looks.
    pub formatter: LogFormatter,
    /// Static fields on every line.
    pub fields: BTreeMap<String, String>,
    /// Whether each request is written as a line.
    pub is_access_log_enabled: bool,
}

/// `log.level`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Errors only.
    Error,
    /// Warnings and errors.
    Warn,
    /// The default.
    Info,
    /// Everything.
    Debug,
}

/// `log.formatter`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormatter {
    /// logfmt-like text, the default.
    Text,
    /// One JSON object for each line.
    Json,
    /// JSON with logstash's field names (`@timestamp`, `@version`).
    Logstash,
}

/// Where the bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// `storage.filesystem.rootdirectory`.
    pub root: PathBuf,
    /// `storage.delete.enabled`; in proxy mode distribution only deletes expired content when this is set.
    pub is_delete_enabled: bool,
}

/// The main listener.
#[derive(Debug, Clone, PartialEq)]
pub struct Http {
    /// Where to listen.
    pub listen: Listen,
    /// A path before `/v2/`: begins with `/`, does not end with it; empty when there is none.
    pub prefix: String,
    /// Headers on every answer under `/v2/`, in the order of the file.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// How long a stop waits for requests and fills; 0 waits for nothing.
    pub drain_timeout: Duration,
    /// TLS, when `http.tls.certificate` is set.
    pub tls: Option<Tls>,
    /// Whether HTTP/2 is offered over TLS.
    pub is_http2_enabled: bool,
    /// Whether HTTP/2 is accepted without TLS.
    pub is_h2c_enabled: bool,
    /// Bounds on what a client may do (`larder.http`).
    pub limits: HttpLimits,
}

/// An address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// TCP at this address.
    Tcp(Address),
    /// A unix socket at this path.
    Unix(PathBuf),
}

/// A TCP address to listen on: `:5000` (all interfaces, both families), `127.0.0.1:5000`, `[::1]:5000`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The host as written, without brackets; empty for all interfaces.
    pub host: String,
    /// The port; 0 lets the system choose.
    pub port: u16,
}

impl Address {
    /// The socket address when the host is an IP address.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.host.parse().ok()?, self.port))
    }
}

/// TLS on the main listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
    /// PEM files with the authorities of client certificates; empty asks for none.
    pub client_cas: Vec<PathBuf>,
    /// What is asked of clients when `client_cas` is not empty.
    pub client_auth: ClientAuth,
    /// The lowest version spoken.
    pub minimum_version: TlsVersion,
    /// TLS 1.2 cipher suites by their IANA names, all of them known to rustls; empty takes the default set.
    pub cipher_suites: Vec<String>,
}

/// `http.tls.clientauth`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientAuth {
    /// Ask for a certificate, accept any or none.
    RequestClientCert,
    /// A certificate must come, whoever signed it.
    RequireAnyClientCert,
    /// A certificate that comes must be valid.
    VerifyClientCertIfGiven,
    /// A valid certificate must come; the default.
    RequireAndVerifyClientCert,
}

/// `http.tls.minimumtls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2, the default.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// Bounds on what a client may do to a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpLimits {
    /// How long request headers may take.
    pub header_timeout: Duration,
    /// How long a connection may be idle between requests.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of an answer before it is cut off.
    pub write_stall_timeout: Duration,
    /// The most request headers may take.
    pub max_header_bytes: u32,
}

/// The admin listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debug {
    /// Where to listen.
    pub address: Address,
    /// The path of the metrics when they are enabled.
    pub metrics_path: Option<String>,
}

/// The storage check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Whether storage is probed.
    pub is_storage_check_enabled: bool,
    /// Time between probes.
    pub interval: Duration,
    /// How many probes in a row must fail before larder calls itself unwell; 0 and 1 mean the first.
    pub threshold: u32,
}

/// The upstreams.
#[derive(Debug, Clone, PartialEq)]
pub struct Proxy {
    /// At least one, unless repositories are hosted.
    pub upstreams: Vec<UpstreamConfig>,
    /// The index in `upstreams` that answers clients that name none.
    pub default_upstream: Option<usize>,
    /// Whether this is distribution's shape: one `proxy.remoteurl` and no `larder.upstreams`. Repositories then
    /// lie on the volume without the host before their name.
    pub is_single: bool,
    /// How long content is kept after its last use; `None` keeps it until the volume is full.
    pub ttl: Option<Duration>,
}

/// One upstream registry.
#[derive(Debug, Clone, PartialEq)]
pub struct UpstreamConfig {
    /// `host` or `host:port` by which clients know it (`docker.io`); lower case, unique.
    pub name: String,
    /// Other names for it (`index.docker.io`), unique over all upstreams.
    pub aliases: Vec<String>,
    /// Where it is: `http` or `https`, without user, query and fragment; the path ends with `/`.
    pub remote_url: Url,
    /// How to log in there.
    pub credentials: Credentials,
    /// How to trust it.
    pub tls: UpstreamTls,
}

impl UpstreamConfig {
    /// Whether this upstream is meant by the host a client named; letter case does not matter.
    pub fn answers_to(&self, host: &str) -> bool {
        std::iter::once(&self.name)
            .chain(&self.aliases)
            .any(|name| name.eq_ignore_ascii_case(host))
    }

    /// Whether it is Docker Hub, where official images live under `library/`.
    pub fn is_docker_hub(&self) -> bool {
        self.answers_to("docker.io")
            || matches!(
                self.remote_url.host_str(),
                Some("registry-1.docker.io" | "index.docker.io" | "docker.io")
            )
    }
}

/// How to log in upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// Not at all.
    Anonymous,
    /// User and password as configured.
    Password {
        /// The user.
        username: String,
        /// The password or token.
        password: Secret,
    },
    /// The password stands alone in a file (trailing line break ignored), read again when it changes.
    PasswordFile {
        /// The user.
        username: String,
        /// The file.
        path: PathBuf,
    },
    /// A program that speaks Docker's credential-helper protocol.
    Helper {
        /// The program, found in `PATH` or by its path, as distribution runs it: `command get`.
        command: String,
        /// How long its answer is good: `None` for ever, 0 for one use.
        lifetime: Option<Duration>,
    },
}

/// How to trust an upstream, beside the system's authorities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UpstreamTls {
    /// PEM file with further authorities.
    pub ca: Option<PathBuf>,
    /// PEM files of the client certificate and its key.
    pub client_certificate: Option<ClientCertificate>,
    /// Whether its certificate is not checked at all.
    pub is_insecure: bool,
}

/// A client certificate shown to an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM file with the certificate chain.
    pub certificate: PathBuf,
    /// PEM file with the private key.
    pub key: PathBuf,
}

/// `_catalog`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Catalog {
    /// The most names in one answer.
    pub max_entries: usize,
}

/// `tags/list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tags {
    /// The most tags in one answer.
    pub max_tags: usize,
}

/// How clients log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Auth {
    /// Basic authentication against a file of bcrypt hashes.
    Htpasswd {
        /// The realm named in the challenge.
        realm: String,
        /// The file, read again when it changes.
        path: PathBuf,
    },
}

/// What only larder has.
#[derive(Debug, Clone, PartialEq)]
pub struct Larder {
    /// The most the cache may take of the volume.
    pub max_size: SizeLimit,
    /// How long a tag is answered without asking upstream; 0 asks each time.
    pub tag_ttl: Duration,
    /// How long a 404 of upstream is remembered; 0 never.
    pub negative_ttl: Duration,
    /// Patience with upstreams.
    pub timeouts: Timeouts,
    /// Token servers that may see credentials although they are not of the upstream's domain, as `host` or `host:port`.
    pub realms: Vec<String>,
    /// The collector.
    pub gc: Gc,
    /// The scrubber.
    pub scrub: Scrub,
    /// The repositories that larder owns; `None` when it owns none.
    pub hosted: Option<Hosted>,
    /// Memory for the cache of the index.
    pub index_cache_bytes: u64,
}

/// A bound on the size of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeLimit {
    /// So many bytes.
    Bytes(u64),
    /// So much of the volume, 1 to 100.
    Percent(u8),
}

/// Patience with upstreams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Connection and TLS handshake.
    pub connect: Duration,
    /// From the request to the headers of the answer.
    pub header: Duration,
    /// Between two pieces of a body.
    pub idle: Duration,
    /// How long an answer that is held, but should be checked, waits for upstream before it goes out stale.
    pub stale: Duration,
}

/// The collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gc {
    /// What the age of content is counted from.
    pub renew: Renew,
    /// Time between two passes.
    pub interval: Duration,
}

/// `larder.gc.renew`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renew {
    /// Each use starts `proxy.ttl` again; the default.
    Use,
    /// Nothing does: content leaves `proxy.ttl` after it came, as in distribution.
    Never,
}

/// The scrubber, which reads stored bytes again and checks their digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scrub {
    /// Time between two passes over everything; `None` when it does not run.
    pub interval: Option<Duration>,
    /// The most it reads in a second.
    pub rate_bytes: u64,
}

/// The repositories that larder owns: they are pushed to, and never asked for upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosted {
    /// Which they are; at least one.
    pub repositories: Vec<Pattern>,
    /// Whether tags, manifests and blobs may be deleted.
    pub is_delete_enabled: bool,
    /// How long an upload may rest before it is removed.
    pub upload_expiry: Duration,
    /// The most bytes that all of them may take; `None` for as much as the volume has.
    pub quota_bytes: Option<u64>,
}

impl Hosted {
    /// Whether a repository of this name is hosted.
    pub fn owns(&self, repository: &str) -> bool {
        self.repositories
            .iter()
            .any(|pattern| pattern.matches(repository))
    }
}
