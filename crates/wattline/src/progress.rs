//! A progress bar, where somebody looks.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Instant;

/// Shows finished jobs over all policies, on standard error, if that is a terminal.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    began: Instant,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64);
            let style = ProgressStyle::with_template(
                "{bar:40} {pos}/{len} jobs, {elapsed} elapsed, {eta} to go",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, began: Instant::now() }
    }

    /// Seconds since the beginning.
    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// So many more jobs are finished.
    pub(crate) fn advance(&self, jobs: usize) {
        if let Some(bar) = &self.bar {
            bar.inc(jobs as u64);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
