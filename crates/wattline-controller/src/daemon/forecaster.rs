//! The thread that looks ahead, again and again, on a share of a core, and tells what the policy
//! would do where it may only advise.

use super::adviser::Adviser;
use super::drive::Fresh;
use super::fork::{Fork, ForkClient, step_back};
use super::outlook::look_ahead;
use super::read_model::{ReadModel, plain};
use crate::advice::advise;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long looking ahead may take.
const AT_MOST: Duration = Duration::from_secs(5);
/// No oftener than this,
const EVERY: Duration = Duration::from_secs(2);
/// and so many times longer than it took there is rest: a fifth of a core at most.
const REST: u32 = 4;
/// Turns may take long; a copy is worth waiting for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks ahead when something changed, until the loop is over.
pub(super) fn run(fork_client: &ForkClient, policy: &Arc<Fresh>) {
    step_back();
    let mut adviser = Adviser::default();
    let (mut known, mut advised) = (None, None);
    let mut rest = Duration::ZERO;
    while !fork_client.is_over() {
        fork_client.rest(rest);
        rest = EVERY / 10;
        let about_now = Some(about(&fork_client.daemon.read_model()));
        let due = fork_client.advises() && advised != about_now && adviser.is_due();
        if known == about_now && !due {
            continue;
        }
        let Some(fork) = fork_client.fork(PATIENCE) else { continue };
        let began = Instant::now();
        known = Some(about(&fork.read_model));
        // A policy that panics in a future that may never come must not end all looking ahead.
        let looked = catch_unwind(AssertUnwindSafe(|| {
            let named = (fork_client.daemon.policy(), policy());
            let outlook = look_ahead(&fork, named, AT_MOST, &|| !fork_client.is_over());
            fork_client.daemon.foresee(outlook);
            if due {
                tell(&mut adviser, &fork, fork_client, policy);
            }
        }));
        if looked.is_err() {
            let name = fork_client.daemon.policy();
            tracing::error!("{name} panicked while the future was forecast; tried again later");
        }
        if due {
            advised = known;
        }
        rest = EVERY.max(began.elapsed() * REST);
    }
}

/// Tells what the policy would do, if that is something else than before.
fn tell(adviser: &mut Adviser, fork: &Fork, fork_client: &ForkClient, policy: &Arc<Fresh>) {
    let named = (fork_client.daemon.policy(), policy(), fork.read_model.effort);
    let advice = advise(&fork.engine, &fork.registry, named, fork.now, None);
    if let Some(text) = adviser.news(advice) {
        fork_client.daemon.event_log().tell([plain(fork.now, "advice", text)]);
    }
}

/// What an outlook depends on, but for the time: it holds as long as no plan is made and no job
/// comes.
fn about(read_model: &ReadModel) -> (u64, usize) {
    (read_model.stats.plans, read_model.job_count())
}
