//! `larder demo`: an upstream, a cache before it and a client in one process; two pulls, an account of them, and then
//! both keep serving until Ctrl-C. The account is made in `demo/account.rs`.

mod account;
mod client;
mod image;
mod upstream;

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, ensure};
use larder::config::Config;
use larder::server::{self, Running, Stop};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::account::{Act, Scene};
use self::image::Image;
use self::upstream::Upstream;

/// What can be asked of the demo.
#[derive(Debug, clap::Args)]
pub(super) struct Options {
    /// The port of the cache on 127.0.0.1; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
    /// Exit after the two pulls
    #[arg(long)]
    once: bool,
}

/// Runs the demo to its end.
///
/// # Errors
/// When something cannot be started, or a pull fails.
pub(super) fn run(options: &Options) -> anyhow::Result<()> {
    super::runtime()
        .context("cannot start the runtime")?
        .block_on(perform(options))
}

async fn perform(options: &Options) -> anyhow::Result<()> {
    // Removed when it is dropped, however this function is left.
    let folder = tempfile::Builder::new()
        .prefix("larder-demo-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let told = Stop::on_signals().context("cannot listen to signals")?;
    let tasks = TaskTracker::new();
    let stop = CancellationToken::new();
    let image = tokio::task::spawn_blocking(Image::generate).await?;
    let upstream = Upstream::start(image, &tasks, stop.clone())
        .await
        .context("cannot start the demo's upstream")?;
    let cache = start_cache(options.port, upstream.address, folder.path()).await?;
    let result = tokio::select! {
        result = show(options, &upstream, &cache, folder.path()) => result,
        () = told.first() => Ok(()),
    };
    cache.shut_down().await;
    stop.cancel();
    folder.close().context("cannot remove the demo's folder")?;
    result
}

/// The real server on loopback, configured as a user would.
async fn start_cache(port: u16, upstream: SocketAddr, folder: &Path) -> anyhow::Result<Running> {
    // JSON is YAML, and quotes whatever a temporary folder may be called.
    let yaml = json!({
        "version": "0.1",
        "log": { "level": "error", "accesslog": { "disabled": true } },
        "storage": {
            "filesystem": { "rootdirectory": folder.join("volume") },
            "delete": { "enabled": true },
        },
        "http": {
            "addr": format!("127.0.0.1:{port}"),
            "debug": { "addr": "127.0.0.1:0", "prometheus": { "enabled": true } },
        },
        "proxy": { "remoteurl": format!("http://{upstream}") },
    });
    let file = folder.join("config.yml");
    std::fs::write(&file, yaml.to_string()).context("cannot write the demo's configuration")?;
    // The environment is left out: REGISTRY_* variables are meant for the real one.
    let loaded = Config::load(Some(&file), [])?;
    Ok(server::start(&loaded.config).await?)
}

async fn show(options: &Options, upstream: &Upstream, cache: &Running, folder: &Path) -> anyhow::Result<()> {
    let address = cache.registry_addr().context("the cache has no address")?;
    let scene = Scene {
        upstream: upstream.address,
        cache: address,
        admin: cache.admin_addr(),
        folder,
    };
    super::print(&account::scene(&scene))?;
    let base = format!("http://{address}");
    let first = client::pull(&base).await.context("the first pull failed")?;
    let asked = upstream.take_asked();
    super::print(&account::act(&Act {
        title: "First",
        pull: &first,
        asked: &asked,
    }))?;
    let second = client::pull(&base).await.context("the second pull failed")?;
    let asked = upstream.take_asked();
    super::print(&account::act(&Act {
        title: "Second",
        pull: &second,
        asked: &asked,
    }))?;
    super::print(&account::closing(&first, &second, address))?;
    ensure!(
        !asked.iter().any(|asked| asked.path.contains("/blobs/")),
        "the second pull took blobs from upstream"
    );
    if options.once {
        return Ok(());
    }
    super::print("\nServing until Ctrl-C.\n")?;
    std::future::pending().await
}
