//! The thread that looks ahead, again and again, on a share of a core.

use super::drive::Fresh;
use super::fork::{Borrower, step_back};
use super::outlook::look_ahead;
use super::picture::Picture;
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
    let mut known = None;
    let mut rest = Duration::ZERO;
    while !borrower.is_over() {
        borrower.rest(rest);
        rest = EVERY / 10;
        if known == Some(about(&borrower.daemon.picture())) {
            continue;
        }
        let Some(fork) = borrower.fork(PATIENCE) else { continue };
        let began = Instant::now();
        known = Some(about(&fork.picture));
        let outlook = look_ahead(&fork, policy(), AT_MOST, &|| !borrower.is_over());
        borrower.daemon.foresee(outlook);
        rest = EVERY.max(began.elapsed() * REST);
    }
}

/// What an outlook depends on, but for the time: it holds as long as no plan is made and no job
/// comes.
fn about(picture: &Picture) -> (u64, usize) {
    (picture.stats.plans, picture.job_count())
}
