//! A progress bar, where somebody looks.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Instant;

/// Shows how much is done, on standard error, if that is a terminal.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    began: Instant,
}

impl Progress {
    /// `what` is counted: "jobs" over all policies, for example.
    pub(crate) fn new(total: usize, what: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64);
            let style = ProgressStyle::with_template(&format!(
                "{{bar:40}} {{pos}}/{{len}} {what}, {{elapsed}} elapsed, {{eta}} to go"
            ));
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self { bar, began: Instant::now() }
    }

    /// Seconds since the beginning.
    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// So many more are done.
    pub(crate) fn advance(&self, more: usize) {
        if let Some(bar) = &self.bar {
            bar.inc(more as u64);
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
