//! `larder check-config`: the configuration as it would hold, with the origin of each value.

use std::path::Path;

use larder::config::{Config, process_environment, report};

/// Prints the effective configuration to standard output and warnings to standard error.
///
/// # Errors
/// When the configuration is wrong.
pub(super) fn run(config: Option<&Path>) -> anyhow::Result<()> {
    let loaded = Config::load(config, process_environment())?;
    super::print(&report::effective(&loaded))?;
    for warning in &loaded.warnings {
        eprintln!("warning: {warning}");
    }
    Ok(())
}
