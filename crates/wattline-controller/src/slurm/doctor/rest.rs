//! slurmrestd: whether it answers, what it can do, and how long its token lasts.

use super::{Finding, needed, settings};
use crate::slurm::config::Config;
use crate::slurm::link::Link;
use crate::slurm::rest::{Rest, RestConfig};
use std::os::unix::fs::PermissionsExt;
use wattline_core::Timestamp;

/// A token that ends within this is told of. `scontrol token` gives half an hour if nothing else is
/// said, so whoever exchanges tokens does it at least that often.
const WARN_BEFORE_S: i64 = 600;
/// One that lasts longer than this, or for ever, is as good as a password.
const LONG_S: i64 = 400 * 86_400;

/// Looks at slurmrestd. Says whether it answers.
pub(super) fn examine(
    rest: &Rest,
    link: &Link,
    config: &Config,
    clock: &dyn Fn() -> Timestamp,
) -> (Vec<Finding>, bool) {
    const WHAT: &str = "slurmrestd";
    let mut found = Vec::new();
    let before = clock();
    let diagnostics = rest.version().and_then(|version| Ok((version, rest.diagnostics()?)));
    let answers = diagnostics.is_ok();
    match diagnostics {
        Ok((version, said)) => {
            let about = format!("{}: {version}, SLURM {}", rest.config().url, said.release);
            found.push(Finding::ok(WHAT, about));
            found.push(settings::clock_of(said.time, before, clock()));
        }
        Err(error) => {
            let fix = "start slurmrestd and slurmctld; compare slurm.rest.url with where slurmrestd \
                       listens, and see its log and slurmctld's";
            found.push(Finding::wrong(WHAT, error.to_string(), fix));
        }
    }
    found.push(token(rest, clock().seconds() as i64));
    found.extend(permissions(rest.config()));
    if answers {
        found.push(orders(link, config));
    }
    (found, answers)
}

/// What control needs and slurmrestd cannot do.
fn orders(link: &Link, config: &Config) -> Finding {
    const WHAT: &str = "orders over slurmrestd";
    let Some((version, lacking)) = link.lacking() else {
        return Finding::ok(WHAT, "all that control needs");
    };
    let lacking = lacking.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    match link.commands_answer() {
        Ok(()) => Finding::ok(WHAT, format!("by SLURM's commands, which are there: {lacking}")),
        Err(error) if config.rest_in_use().is_some_and(|rest| rest.partial) => {
            let found = format!("{version} cannot {lacking}; {error}");
            let fix = "slurm.rest.partial = true accepts that; with SLURM's commands here it could";
            Finding::warn(WHAT, found, fix)
        }
        Err(error) => {
            let found = format!("{version} cannot {lacking}; {error}");
            let fix = "install SLURM's commands here, or accept it: slurm.rest.partial = true";
            needed(config.mode, WHAT, found, fix)
        }
    }
}

fn token(rest: &Rest, now: i64) -> Finding {
    const WHAT: &str = "slurmrestd's token";
    let user = &rest.config().user;
    let fix = format!("scontrol token username={user} lifespan=…, into slurm.rest.token_file");
    let (ends, whose) = match rest.token_says() {
        Ok(said) => said,
        Err(error) => return Finding::wrong(WHAT, error.to_string(), fix),
    };
    if let Some(whose) = whose.filter(|whose| whose != user) {
        let found = format!("it is of user {whose}, slurm.rest.user is {user}");
        return Finding::wrong(WHAT, found, "make both the same");
    }
    let left = ends.map(|ends| ends - now);
    match left {
        None => {
            let found = "it does not say when it ends";
            Finding::warn(WHAT, found, "give it a lifespan, and exchange it in time")
        }
        Some(left) if left <= 0 => Finding::wrong(WHAT, format!("it ended {} s ago", -left), fix),
        Some(left) if left < WARN_BEFORE_S => {
            let fix = "exchange the file's content in time; it is read again when it changes";
            Finding::warn(WHAT, format!("it ends in {left} s"), fix)
        }
        Some(left) if left > LONG_S => {
            let found = format!("it lasts for {} days", left / 86_400);
            Finding::warn(WHAT, found, "give it a shorter lifespan: it is as good as a password")
        }
        Some(left) => {
            let hours = left as f64 / 3600.0;
            Finding::ok(WHAT, format!("user {user}, for {hours:.1} h"))
        }
    }
}

/// Who else may read the token.
fn permissions(config: &RestConfig) -> Option<Finding> {
    let path = &config.token_file;
    let mode = path.metadata().ok()?.permissions().mode() & 0o7777;
    (mode & 0o077 != 0).then(|| {
        let found = format!("{}: mode {mode:04o}, others may read it", path.display());
        let fix = format!("chmod 0400 {}, as the user that Wattline runs as", path.display());
        Finding::warn("slurmrestd's token", found, fix)
    })
}
