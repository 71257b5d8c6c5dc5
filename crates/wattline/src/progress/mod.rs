//! How far a command is, on standard error.

mod simulations;
mod time_left;

pub(crate) use simulations::Simulations;

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;

/// Counts things that cost about the same, with a bar where standard error is a terminal.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// `what` is counted: "problems", for example.
    pub(crate) fn new(total: usize, what: &str) -> Self {
        let template =
            format!("{{bar:40}} {{pos}}/{{len}} {what}, {{elapsed}} elapsed, {{eta}} to go");
        Self { bar: bar(total as u64, &template) }
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

/// A bar, if standard error is a terminal.
fn bar(total: u64, template: &str) -> Option<ProgressBar> {
    std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(total);
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar
    })
}
