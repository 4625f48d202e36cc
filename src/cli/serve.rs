//! `larder serve`: the cache, until it is told to stop.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use larder::config::{Config, process_environment};
use larder::server::{self, Stop};

/// How long threads that are stuck in the file system are waited for at the end.
const STUCK_THREADS: Duration = Duration::from_secs(1);

/// Runs the cache until SIGTERM or Ctrl-C.
///
/// # Errors
/// When the configuration is wrong or the server cannot start.
pub(super) fn run(config: Option<&Path>) -> anyhow::Result<()> {
    let loaded = Config::load(config, process_environment())?;
    let runtime = super::runtime().context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        let stop = Stop::on_signals().context("cannot listen to signals")?;
        Ok(server::run(loaded, stop).await?)
    });
    // A file operation that hangs must not keep a stopped server from ending.
    runtime.shutdown_timeout(STUCK_THREADS);
    result
}
