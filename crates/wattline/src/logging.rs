//! The log of a daemon: to standard error, where systemd's journal picks it up.

use crate::failure::{Failure, Result};
use anyhow::anyhow;
use std::env;
use std::io;
use tracing_subscriber::EnvFilter;

/// What is logged: `debug`, or `warn,wattline_controller=debug`, for example.
const VARIABLE: &str = "WATTLINE_LOG";

/// Logs from now on. Whoever has done so before goes on.
pub(crate) fn begin() -> Result<()> {
    let wanted = env::var(VARIABLE).unwrap_or_default();
    let wanted = if wanted.trim().is_empty() { "info" } else { wanted.as_str() };
    let filter = EnvFilter::builder().parse(wanted).map_err(|error| {
        let help = "say error, warn, info, debug or trace, or wattline_controller=debug";
        Failure::input(anyhow!("{VARIABLE}: {error}: {help}"))
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Nobody can be told if standard error is closed, and nothing must end because of it.
        .log_internal_errors(false)
        .with_ansi(false)
        .with_target(false);
    // The journal has the time already.
    let begun = if env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().try_init()
    } else {
        log.try_init()
    };
    // Only the first one counts.
    drop(begun);
    Ok(())
}
