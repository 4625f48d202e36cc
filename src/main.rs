//! The `larder` binary: parse the command line, run it, print an error with its hint, set the exit code.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
