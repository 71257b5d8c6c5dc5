//! `wattline completions SHELL`.

use crate::cli::Cli;
use crate::failure::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::{self, Write};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "wattline", &mut script);
    io::stdout().write_all(&script)?;
    Ok(())
}
