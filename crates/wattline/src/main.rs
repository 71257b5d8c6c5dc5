//! The `wattline` command.
//!
//! Each subcommand is a file in `commands/`. Results go to standard output, everything else to
//! standard error; the exit code is 0, 2 for a wrong call or bad input, 1 for what failed.

mod cli;
mod client;
mod commands;
mod failure;
mod logging;
mod output;
mod progress;
mod recorded;
mod site;
mod socket;
mod source;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
