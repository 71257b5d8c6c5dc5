//! The thread that looks ahead, again and again, on a share of a core, and tells what the policy
//! would do where it may only advise.

use super::adviser::Adviser;
use super::drive::Fresh;
use super::fork::{Borrower, Fork, step_back};
use super::outlook::look_ahead;
use super::picture::{Picture, plain};
use crate::advice::advise;
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
pub(super) fn prophesy(borrower: &Borrower, policy: &Arc<Fresh>) {
    step_back();
    let mut adviser = Adviser::default();
    let (mut known, mut advised) = (None, None);
    let mut rest = Duration::ZERO;
    while !borrower.is_over() {
        borrower.rest(rest);
        rest = EVERY / 10;
        let about_now = Some(about(&borrower.daemon.picture()));
        let due = borrower.advises() && advised != about_now && adviser.is_due();
        if known == about_now && !due {
            continue;
        }
        let Some(fork) = borrower.fork(PATIENCE) else { continue };
        let began = Instant::now();
        known = Some(about(&fork.picture));
        let named = (borrower.daemon.policy(), policy());
        let outlook = look_ahead(&fork, named, AT_MOST, &|| !borrower.is_over());
        borrower.daemon.foresee(outlook);
        if due {
            tell(&mut adviser, &fork, borrower, policy);
            advised = known;
        }
        rest = EVERY.max(began.elapsed() * REST);
    }
}

/// Tells what the policy would do, if that is something else than before.
fn tell(adviser: &mut Adviser, fork: &Fork, borrower: &Borrower, policy: &Arc<Fresh>) {
    let named = (borrower.daemon.policy(), policy());
    let advice = advise(&fork.engine, &fork.directory, named, fork.now, None);
    if let Some(text) = adviser.news(advice) {
        borrower.daemon.chronicle().tell([plain(fork.now, "advice", text)]);
    }
}

/// What an outlook depends on, but for the time: it holds as long as no plan is made and no job
/// comes.
fn about(picture: &Picture) -> (u64, usize) {
    (picture.stats.plans, picture.job_count())
}
