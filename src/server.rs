//! Composes the parts from a [`Config`], binds, runs until told to stop, and drains in order.
//!
//! [`start`] does no I/O with an upstream: a cache starts, and serves what it has, while the registries behind it are
//! down. The order of the end: not ready, listener closed, requests drained, fills drained, index flushed.

mod parts;
mod stop;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error as ThisError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use stop::Stop;

use crate::config::{Address, Config, Listen, Loaded};
use crate::gc::Collector;
use crate::http::admin::Admin;
use crate::http::auth::{Htpasswd, HtpasswdError};
use crate::http::health::Health;
use crate::http::listener::{ListenError, Listener, Options};
use crate::http::tls::{TlsAcceptor, TlsError};
use crate::meta;
use crate::registry::{Fill, Registry};
use crate::store::{self, Capacity, Store, blocking};
use crate::telemetry;
use crate::upstream;

/// The name of the storage check, distribution's own.
const STORAGE_CHECK: &str = "storagedriver_filesystem";
/// How often uploads that were left alone are looked for.
const UPLOAD_SWEEP_INTERVAL: Duration = Duration::from_mins(1);
/// For how long the last requests to the admin listener are waited for.
const ADMIN_DRAIN: Duration = Duration::from_secs(1);

/// Why the server cannot start.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The volume cannot be used.
    #[error("cannot use the volume `{}`", path.display())]
    Volume {
        /// The configured folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: store::Error,
    },
    /// The index cannot be opened.
    #[error("cannot open the index")]
    Index(#[from] meta::Error),
    /// An address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The files for TLS cannot be used.
    #[error("cannot serve TLS")]
    Tls(#[from] TlsError),
    /// The htpasswd file cannot be used.
    #[error("cannot ask for logins")]
    Login(#[from] HtpasswdError),
    /// An upstream cannot be set up.
    #[error("cannot set up the upstream `{name}`")]
    Upstream {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: upstream::BuildError,
    },
    /// Two metrics share a name.
    #[error("cannot set up metrics")]
    Metrics(#[source] prometheus::Error),
}

/// A server that answers.
#[derive(Debug)]
pub struct Running {
    registry_addr: Option<SocketAddr>,
    admin_addr: Option<SocketAddr>,
    drain_timeout: Duration,
    health: Health,
    collector: Collector<Arc<Fill>>,
    /// Told to stop first: the registry's listener and whatever begins work.
    stop: CancellationToken,
    /// Told to stop last: what the others need or are watched by.
    stop_last: CancellationToken,
    listeners: TaskTracker,
    fills: TaskTracker,
    helpers: TaskTracker,
}

/// Starts logging and the server, runs until `stop`, and drains.
///
/// # Errors
/// [`Error`] when the server cannot start.
pub async fn run(loaded: Loaded, stop: Stop) -> Result<(), Error> {
    telemetry::init(&parts::log_settings(&loaded.config.log));
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let running = start(&loaded.config).await?;
    stop.first().await;
    tracing::info!(drain = ?running.drain_timeout, "stopping");
    tokio::select! {
        () = running.shut_down() => tracing::info!("stopped"),
        () = stop.second() => tracing::warn!("stopped at once, as told twice"),
    }
    Ok(())
}

/// Starts a server; it answers when this returns.
///
/// # Errors
/// [`Error`] when the volume, an address or a file cannot be used.
pub async fn start(config: &Config) -> Result<Running, Error> {
    let began = Instant::now();
    let store = open_store(config).await?;
    let shared = parts::Shared::new(store)?;
    let login = parts::login(config)?;
    let tls = config
        .http
        .tls
        .clone()
        .map(|tls| TlsAcceptor::new(tls, config.http.is_http2_enabled))
        .transpose()?;
    let listener = Listener::bind(&config.http.listen).await?;
    let admin = bind_admin(config).await?;
    let (registry_addr, admin_addr) = (
        listener.local_addr(),
        admin.as_ref().and_then(Listener::local_addr),
    );

    let (index, opened) = shared.open_index(config).await?;
    let capacity = Capacity::new(shared.store.clone(), index.clone(), config.larder.max_size);
    let fills = TaskTracker::new();
    let registry = Arc::new(shared.registry(config, index.clone(), capacity.clone(), fills.clone())?);
    let collector = shared.collector(config, &registry, index, capacity)?;
    let running = Running {
        registry_addr,
        admin_addr,
        drain_timeout: config.http.drain_timeout,
        health: Health::default(),
        collector,
        stop: CancellationToken::new(),
        stop_last: CancellationToken::new(),
        listeners: TaskTracker::new(),
        fills,
        helpers: TaskTracker::new(),
    };
    running.serve(config, listener, tls, login, &registry, &shared);
    if let Some(admin) = admin {
        running.serve_admin(config, admin, &shared);
    }
    running.help(config, &shared.store);
    if config.larder.hosted.is_some() {
        running.expire_uploads(registry);
    }
    running
        .collector
        .start(opened, &running.helpers, &running.stop_last);
    running.health.set_ready(true);
    tracing::info!(upstreams = ?parts::upstream_names(config), took = ?began.elapsed(), "larder {} serves", env!("CARGO_PKG_VERSION"));
    Ok(running)
}

/// Opens the volume, sweeps what an earlier process left unfinished, and tells at once if it takes no writes.
async fn open_store(config: &Config) -> Result<Store, Error> {
    let path = config.storage.root.clone();
    let opened = blocking({
        let path = path.clone();
        move || {
            let store = Store::open(&path)?;
            match store.probe() {
                // A full volume is no reason not to serve what is on it.
                Err(error) if error.is_full() => tracing::warn!(%error, "the volume is full"),
                probed => probed?,
            }
            let swept = store.sweep_spool();
            if swept.files > 0 {
                tracing::info!(
                    files = swept.files,
                    bytes = swept.bytes,
                    "removed unfinished fills of an earlier process"
                );
            }
            Ok(store)
        }
    });
    opened.await.map_err(|source| Error::Volume { path, source })
}

async fn bind_admin(config: &Config) -> Result<Option<Listener>, Error> {
    match &config.debug {
        Some(debug) => Ok(Some(Listener::bind(&Listen::Tcp(debug.address.clone())).await?)),
        None => Ok(None),
    }
}

impl Running {
    /// The address of the registry's API; `None` on a unix socket.
    pub fn registry_addr(&self) -> Option<SocketAddr> {
        self.registry_addr
    }

    /// The address of the admin listener, if there is one.
    pub fn admin_addr(&self) -> Option<SocketAddr> {
        self.admin_addr
    }

    /// Stops in order: takes no more requests, drains those under way and the fills up to the configured time, flushes.
    pub async fn shut_down(self) {
        let deadline = Instant::now() + self.drain_timeout;
        self.health.set_ready(false);
        self.stop.cancel();
        self.listeners.close();
        self.listeners.wait().await;
        self.fills.close();
        if tokio::time::timeout_at(deadline, self.fills.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                fills = self.fills.len(),
                "giving up fills that did not end within the drain time"
            );
        }
        self.stop_last.cancel();
        self.helpers.close();
        self.helpers.wait().await;
        if let Err(error) = self.collector.stop().await {
            tracing::warn!(%error, "cannot end in order; the index will be mended at the next start");
        }
    }

    fn serve(
        &self,
        config: &Config,
        listener: Listener,
        tls: Option<TlsAcceptor>,
        login: Option<Htpasswd>,
        registry: &Arc<Registry>,
        shared: &parts::Shared,
    ) {
        let router = parts::edge(config, Arc::clone(registry), Arc::clone(&shared.metrics), login).router();
        let options = Options::new(&config.http.limits, config.http.is_h2c_enabled);
        tell("registry", self.registry_addr, tls.is_some(), &config.http.listen);
        let serving = listener.serve(router, tls, options, self.stop.clone(), self.drain_timeout);
        self.listeners.spawn(serving);
    }

    fn serve_admin(&self, config: &Config, listener: Listener, shared: &parts::Shared) {
        let Some(debug) = &config.debug else { return };
        let admin = Admin {
            metrics: Arc::clone(&shared.metrics),
            health: self.health.clone(),
            metrics_path: debug.metrics_path.clone(),
            upstreams: parts::upstream_names(config),
        };
        let options = Options::new(&config.http.limits, false);
        tell(
            "admin",
            self.admin_addr,
            false,
            &Listen::Tcp(debug.address.clone()),
        );
        let serving = listener.serve(admin.router(), None, options, self.stop_last.clone(), ADMIN_DRAIN);
        self.helpers.spawn(serving);
    }

    fn expire_uploads(&self, registry: Arc<Registry>) {
        let stop = self.stop_last.clone();
        self.helpers
            .spawn(async move { expire_uploads(&registry, &stop).await });
    }

    /// Starts what goes on beside requests.
    fn help(&self, config: &Config, store: &Store) {
        if config.health.is_storage_check_enabled {
            let (health, stop, store) = (self.health.clone(), self.stop_last.clone(), store.clone());
            let (interval, threshold) = (config.health.interval, config.health.threshold);
            self.helpers.spawn(async move {
                let probe = || {
                    let store = store.clone();
                    async move { blocking(move || store.probe()).await.map_err(|e| e.to_string()) }
                };
                health
                    .watch(STORAGE_CHECK, interval, threshold, stop, probe)
                    .await;
            });
        }
    }
}

/// Removes uploads that were left alone for too long.
async fn expire_uploads(registry: &Registry, stop: &CancellationToken) {
    let mut ticks = tokio::time::interval(UPLOAD_SWEEP_INTERVAL);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        match registry.expire_uploads().await {
            Ok(0) => {}
            Ok(removed) => tracing::info!(removed, "removed uploads that were left alone"),
            Err(error) => tracing::warn!(%error, "cannot remove uploads that were left alone"),
        }
    }
}

/// One line per listener, with the port that the system chose where the configuration left it open.
fn tell(listener: &str, addr: Option<SocketAddr>, is_tls: bool, configured: &Listen) {
    let addr = match (addr, configured) {
        (Some(addr), _) => addr.to_string(),
        (None, Listen::Unix(path)) => path.display().to_string(),
        (None, Listen::Tcp(Address { host, port })) => format!("{host}:{port}"),
    };
    tracing::info!(listener, addr, tls = is_tls, "listening");
}
