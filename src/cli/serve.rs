//! `larder serve`: the cache, until it is told to stop.

use std::path::Path;

use anyhow::Context as _;
use larder::config::{Config, process_environment};
use larder::server::{self, Stop};

/// Runs the cache until SIGTERM or Ctrl-C.
///
/// # Errors
/// When the configuration is wrong or the server cannot start.
pub(super) fn run(config: Option<&Path>) -> anyhow::Result<()> {
    let loaded = Config::load(config, process_environment())?;
    let runtime = super::runtime().context("cannot start the runtime")?;
    runtime.block_on(async {
        let stop = Stop::on_signals().context("cannot listen to signals")?;
        Ok(server::run(loaded, stop).await?)
    })
}
