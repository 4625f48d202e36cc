//! The command line: what can be typed, and what is said when it goes wrong. Each command is a file under `cli/`.

mod check_config;
mod demo;
mod failure;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const ABOUT: &str = "A pull-through cache for OCI registries.

larder stands between container runtimes and the registries they pull from, keeps what was pulled on a volume, and \
answers the next pull itself. It reads the configuration and the volume of `registry:3` in proxy mode.";

const EXAMPLES: &str = "Examples:
  larder demo                          see it work, without a network
  larder serve                         cache Docker Hub in ./larder-data, on port 5000
  larder serve config.yml              with a configuration of distribution (registry:3) or larder
  larder check-config config.yml       what that file comes to, and what is wrong with it
  REGISTRY_PROXY_REMOTEURL=https://ghcr.io larder serve";

/// How the configuration is found, for the help of the commands that read one.
const CONFIG_HELP: &str = "Without CONFIG the file named by REGISTRY_CONFIGURATION_PATH is read, else \
/etc/distribution/config.yml when it exists, else there is none and larder caches Docker Hub in ./larder-data, on \
port 5000, with metrics and health on port 5001.

Every key can be set by an environment variable too, as in distribution: REGISTRY_PROXY_TTL=72h is proxy.ttl.";

#[derive(Debug, Parser)]
#[command(name = "larder", version, about = "A pull-through cache for OCI registries", long_about = ABOUT)]
#[command(after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the cache until SIGTERM or Ctrl-C
    #[command(after_help = CONFIG_HELP)]
    Serve {
        /// The configuration file
        config: Option<PathBuf>,
    },
    /// Print the effective configuration and where each value comes from; exit 1 when it is wrong
    #[command(after_help = CONFIG_HELP)]
    CheckConfig {
        /// The configuration file
        config: Option<PathBuf>,
    },
    /// Pull an image twice through a cache of its own, tell what happened, and keep serving; needs no network
    #[command(
        after_help = "The registry it pulls from, the cache and their files are its own and go when it ends."
    )]
    Demo(demo::Options),
}

/// Runs the command that was typed. Usage errors are clap's and exit with 2, others with 1.
pub(crate) fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Serve { config } => serve::run(config.as_deref()),
        Command::CheckConfig { config } => check_config::run(config.as_deref()),
        Command::Demo(options) => demo::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("{}", failure::describe(&error));
            ExitCode::FAILURE
        }
    }
}

/// The runtime everything runs on: one worker for each core, and two at least, so that a worker that waits for a disk
/// does not stop the other connections.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.max(2))
        .enable_all()
        .build()
}

/// Writes a text to standard output. A reader that has left (`larder check-config | head`) is no failure.
fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut output = std::io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
