//! An end to planning that takes too long.
//!
//! Policies count their work and never read a clock, so nothing inside them can end a plan in
//! time. But all of them ask the predictor again and again: one that is late unwinds its caller,
//! up to [`in_time`]. Only for plans that are thrown away as a whole, on copies that nobody else
//! looks at.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use wattline_core::image::ImageError;
use wattline_core::job::{Job, RestartCost};
use wattline_core::placement::Configuration;
use wattline_core::predictor::{Finding, Measurement, Prediction, Predictor};

/// The deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late;

/// When it must end. Copies are the same.
#[derive(Clone)]
pub(crate) struct Deadline {
    at: Instant,
    lifted: Arc<AtomicBool>,
}

impl Deadline {
    pub(crate) fn at(at: Instant) -> Self {
        Self { at, lifted: Arc::default() }
    }

    /// What took long is done: predictors answer again.
    pub(crate) fn lift(&self) {
        self.lifted.store(true, Ordering::Relaxed);
    }

    fn has_passed(&self) -> bool {
        Instant::now() >= self.at && !self.lifted.load(Ordering::Relaxed)
    }
}

/// A predictor that answers until a deadline, and then unwinds its caller.
pub(crate) struct UntilDeadline<'p> {
    inner: Box<dyn Predictor + 'p>,
    deadline: Deadline,
}

impl<'p> UntilDeadline<'p> {
    pub(crate) fn new(inner: Box<dyn Predictor + 'p>, deadline: &Deadline) -> Self {
        Self { inner, deadline: deadline.clone() }
    }
}

/// Does this, unless a predictor in it comes to its deadline. Other panics go on.
pub(crate) fn in_time<T>(work: impl FnOnce() -> T) -> Result<T, Late> {
    // What it may have left half done is dropped with it.
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| match panic.downcast::<Late>() {
        Ok(late) => *late,
        Err(panic) => resume_unwind(panic),
    })
}

impl Predictor for UntilDeadline<'_> {
    fn predict(&self, job: &Job, configuration: &Configuration) -> Option<Prediction> {
        if self.deadline.has_passed() {
            // Without the hook that reports panics: this is none.
            resume_unwind(Box::new(Late));
        }
        self.inner.predict(job, configuration)
    }
    fn restart(&self, job: &Job) -> RestartCost {
        self.inner.restart(job)
    }
    fn observe(&mut self, measurement: &Measurement) {
        self.inner.observe(measurement);
    }
    fn findings(&self) -> Vec<Finding> {
        self.inner.findings()
    }
    fn image(&self) -> Vec<u8> {
        self.inner.image()
    }
    fn restore(&mut self, image: &[u8]) -> Result<(), ImageError> {
        self.inner.restore(image)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn only_lateness_is_caught() {
        assert_eq!(in_time(|| 3), Ok(3));
        let late = || -> u8 { resume_unwind(Box::new(Late)) };
        assert_eq!(in_time(late), Err(Late));
        let bug = || -> u8 { resume_unwind(Box::new("a bug")) };
        let other = catch_unwind(|| in_time(bug)).unwrap_err();
        assert_eq!(*other.downcast::<&str>().unwrap(), "a bug");
    }
}
