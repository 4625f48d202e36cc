//! From the configuration to the parts: what each layer is told.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use tracing::Level;

use super::Error;
use crate::clock::Clock;
use crate::config::{Auth, Config, Credentials, Log, LogFormatter, LogLevel, UpstreamConfig};
use crate::gc::{self, Collector, GcMetrics};
use crate::http::auth::Htpasswd;
use crate::http::route::PathRules;
use crate::http::{self, Edge};
use crate::meta::{self, Index, Opened};
use crate::metrics::Metrics;
use crate::registry::{Entry, Fill, Parts, Registry, Repositories, Settings};
use crate::store::{Capacity, Store, blocking, layout};
use crate::telemetry::{self, Form};
use crate::upstream::{self, Observer, Upstream};

/// What several parts share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Clock,
}

impl Shared {
    pub(super) fn new(store: Store) -> Result<Self, Error> {
        let metrics = Arc::new(Metrics::new().map_err(Error::Metrics)?);
        Ok(Self {
            store,
            metrics,
            clock: Clock::default(),
        })
    }

    pub(super) async fn open_index(&self, config: &Config) -> Result<(Index, Opened), Error> {
        let path = self.store.root().join(layout::INDEX);
        let cache_bytes = config.larder.index_cache_bytes;
        let (index, opened) = blocking(move || match Index::open(&path, cache_bytes) {
            Err(error) if !matches!(error, meta::Error::InUse(_)) => open_in_memory(&error, cache_bytes),
            opened => opened,
        })
        .await?;
        match &opened {
            Opened::Existing { is_clean, .. } => tracing::debug!(is_clean, "index opened"),
            Opened::Fresh => tracing::info!("index begun"),
            Opened::Replaced(reason) => tracing::warn!(reason, "the index was unusable and is begun anew"),
        }
        Ok((index, opened))
    }

    /// What takes things off the volume again.
    pub(super) fn collector(
        &self,
        config: &Config,
        registry: &Registry,
        index: Index,
        capacity: Capacity,
    ) -> Result<Collector<Arc<Fill>>, Error> {
        let settings = gc::Settings::from_config(config);
        if settings.ttl.is_some() && !config.storage.is_delete_enabled {
            tracing::warn!(
                "content expires although `storage.delete.enabled` is not set; `proxy.ttl: 0s` keeps it"
            );
        }
        let parts = gc::Parts {
            store: self.store.clone(),
            index,
            capacity,
            flights: registry.flights(),
            clock: self.clock.clone(),
            metrics: GcMetrics::register(&self.metrics).map_err(Error::Metrics)?,
            on_unlinked: Arc::new(registry.forgetter()),
        };
        Ok(Collector::new(parts, settings))
    }

    pub(super) fn registry(
        &self,
        config: &Config,
        index: Index,
        capacity: Capacity,
        tracker: TaskTracker,
    ) -> Result<Registry, Error> {
        let larder = &config.larder;
        let settings = Settings {
            tag_ttl: larder.tag_ttl,
            negative_ttl: larder.negative_ttl,
            stale_budget: larder.timeouts.stale,
            max_tags: config.tags.max_tags as u64,
        };
        Ok(Registry::new(Parts {
            settings,
            repositories: self.repositories(config)?,
            store: self.store.clone(),
            index,
            capacity,
            metrics: Arc::clone(&self.metrics),
            clock: self.clock.clone(),
            tracker,
        }))
    }

    fn repositories(&self, config: &Config) -> Result<Repositories, Error> {
        let entries = config
            .proxy
            .upstreams
            .iter()
            .map(|upstream| self.entry(config, upstream));
        let entries = entries.collect::<Result<Vec<_>, _>>()?;
        Ok(
            Repositories::new(entries, config.proxy.default_upstream, config.proxy.is_single)
                .with_hosted(config.larder.hosted.clone()),
        )
    }

    fn entry(&self, config: &Config, upstream: &UpstreamConfig) -> Result<Entry, Error> {
        let observer = Arc::new(Counting(Arc::clone(&self.metrics)));
        let client = Upstream::new(upstream_settings(config, upstream), observer, self.clock.clone());
        let client = client.map_err(|source| Error::Upstream {
            name: upstream.name.clone(),
            source,
        })?;
        let (name, aliases) = (upstream.name.clone(), upstream.aliases.clone());
        Ok(Entry::new(
            Arc::new(client),
            name,
            aliases,
            upstream.is_docker_hub(),
        ))
    }
}

/// Where the volume has no room for the index it begins in memory: what it learns is lost with the process, nothing
/// else is.
fn open_in_memory(error: &meta::Error, cache_bytes: u64) -> Result<(Index, Opened), meta::Error> {
    tracing::warn!(%error, "the volume takes no index, keeping it in memory until the next start");
    let name = format!("larder-index-{}", std::process::id());
    let shared_memory = Path::new("/dev/shm").join(&name).join("index");
    Index::open(&shared_memory, cache_bytes)
        .or_else(|_| Index::open(&std::env::temp_dir().join(name).join("index"), cache_bytes))
}

fn upstream_settings(config: &Config, upstream: &UpstreamConfig) -> upstream::Settings {
    let timeouts = config.larder.timeouts;
    let tls = &upstream.tls;
    upstream::Settings {
        host: upstream.name.clone(),
        remote_url: upstream.remote_url.clone(),
        credentials: credentials(&upstream.credentials),
        connect_timeout: timeouts.connect,
        header_timeout: timeouts.header,
        idle_timeout: timeouts.idle,
        realms: config.larder.realms.clone(),
        extra_ca: tls.ca.clone(),
        client_certificate: tls
            .client_certificate
            .as_ref()
            .map(|c| (c.certificate.clone(), c.key.clone())),
        insecure: tls.is_insecure,
        send_ns: None,
    }
}

fn credentials(configured: &Credentials) -> upstream::Credentials {
    match configured.clone() {
        Credentials::Anonymous => upstream::Credentials::None,
        Credentials::Password { username, password } => upstream::Credentials::Static { username, password },
        Credentials::PasswordFile { username, path } => {
            upstream::Credentials::PasswordFile { username, path }
        }
        Credentials::Helper { command, lifetime } => upstream::Credentials::Exec { command, lifetime },
    }
}

/// Who may log in, where the configuration asks for logins.
pub(super) fn login(config: &Config) -> Result<Option<Htpasswd>, Error> {
    match &config.auth {
        Some(Auth::Htpasswd { realm, path }) => Ok(Some(Htpasswd::new(realm.clone(), path.clone())?)),
        None => Ok(None),
    }
}

/// The registry's API.
pub(super) fn edge(
    config: &Config,
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    login: Option<Htpasswd>,
) -> Edge {
    let settings = http::Settings {
        rules: PathRules {
            prefix: config.http.prefix.clone(),
            is_upstream_before_v2: !config.proxy.is_single,
        },
        headers: config.http.headers.clone(),
        max_tags: config.tags.max_tags as u64,
        max_catalog_entries: config.catalog.max_entries as u64,
        is_access_log_enabled: config.log.is_access_log_enabled,
    };
    Edge::new(registry, metrics, settings, login)
}

/// Upstreams as people know them.
pub(super) fn upstream_names(config: &Config) -> Vec<String> {
    config
        .proxy
        .upstreams
        .iter()
        .map(|upstream| upstream.name.clone())
        .collect()
}

/// Counts what upstreams answer.
struct Counting(Arc<Metrics>);

impl Observer for Counting {
    fn response(&self, upstream: &str, kind: &'static str, status: &str, elapsed: Duration) {
        self.0.upstream_response(upstream, kind, status, elapsed);
    }
}

/// What to log, and how.
pub(super) fn log_settings(log: &Log) -> telemetry::Settings {
    telemetry::Settings {
        level: match log.level {
            LogLevel::Error => Level::ERROR,
            LogLevel::Warn => Level::WARN,
            LogLevel::Info => Level::INFO,
            LogLevel::Debug => Level::DEBUG,
        },
        form: match log.formatter {
            LogFormatter::Text => Form::Text,
            LogFormatter::Json => Form::Json,
            LogFormatter::Logstash => Form::Logstash,
        },
        fields: log.fields.clone(),
        has_access_log: log.is_access_log_enabled,
    }
}
