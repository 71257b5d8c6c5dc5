//! `wattline man`.

use crate::cli::Cli;
use crate::failure::{Failure, Result};
use anyhow::Context;
use clap::CommandFactory;
use std::io::{self, Write};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Write wattline.1 and a page for each subcommand to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(out) = &args.out {
        super::simulate::prepare_folder(out)?;
        return clap_mangen::generate_to(Cli::command(), out)
            .with_context(|| format!("cannot write to {}", out.display()))
            .map_err(Failure::Failed);
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    io::stdout().write_all(&page)?;
    Ok(())
}
