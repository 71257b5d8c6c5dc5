//! How far several simulations are that run side by side, and how long they still take.

use super::time_left::TimeLeft;
use crate::output;
use indicatif::ProgressBar;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use wattline_sim::metrics::Summary;
use wattline_sim::simulation::Progress;

/// Steps of the bar: a step is less than a character of it.
const STEPS: f64 = 1000.0;
/// Where standard error is no terminal, the time left is said after a minute, two, four and so on:
/// often enough to see that it goes on, and some ten lines for a run of a night.
const FIRST_NOTE_S: f64 = 60.0;

/// Follows simulations by what a [`Watch`](wattline_sim::simulation::Watch) hears of them.
pub(crate) struct Simulations {
    names: Vec<String>,
    /// A line is printed for each of the first so many as they finish.
    announced: usize,
    began: Instant,
    bar: Option<ProgressBar>,
    state: Mutex<State>,
}

struct State {
    left: TimeLeft,
    next_note_s: f64,
}

impl Simulations {
    /// Simulations of these policies. A line is printed for each of the first `announced` of them as
    /// it finishes; if there are none, only a terminal shows anything.
    pub(crate) fn new(names: Vec<String>, announced: usize) -> Self {
        let template = "{bar:30} {elapsed} elapsed, {msg}";
        Self {
            bar: super::bar(STEPS as u64, template),
            state: Mutex::new(State {
                left: TimeLeft::new(names.len()),
                next_note_s: FIRST_NOTE_S,
            }),
            names,
            announced,
            began: Instant::now(),
        }
    }

    /// Seconds since the beginning.
    pub(crate) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// A simulation has come some way.
    pub(crate) fn advance(&self, progress: Progress<'_>) {
        let now = self.seconds();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match progress.summary {
            // An arrival and an end are one event each, about the same work.
            None => {
                let events = progress.submitted + progress.finished;
                let share = events as f64 / (2 * progress.jobs.max(1)) as f64;
                state.left.advance(progress.run, now, share);
            }
            Some(summary) => {
                state.left.end(progress.run, now);
                if progress.run < self.announced {
                    self.say(&format!("{}; {}", figures(summary), self.status(&state.left, now)));
                }
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_position((STEPS * state.left.share()) as u64);
            bar.set_message(self.status(&state.left, now));
        } else if self.announced > 0 && now >= state.next_note_s && !state.left.is_over() {
            while state.next_note_s <= now {
                state.next_note_s *= 2.0;
            }
            self.say(&format!(
                "{} elapsed, {}",
                output::duration(now),
                self.status(&state.left, now)
            ));
        }
    }

    /// A line that stays, above the bar if there is one.
    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::note(line)),
            None => output::note(line),
        }
    }

    /// How many are done, how far those that run are, and how long all of them still take.
    fn status(&self, left: &TimeLeft, now: f64) -> String {
        let running: Vec<String> = left
            .running()
            .map(|(run, share)| format!("{} {:.0} %", self.names[run], 100.0 * share))
            .collect();
        let mut text = format!("{} of {} done", left.ended(), self.names.len());
        let whose = match left.not_begun() {
            0 => "",
            more => {
                text += &format!(", {more} not begun");
                " for those that run"
            }
        };
        if !running.is_empty() {
            text += &format!(", {}", running.join(", "));
        }
        if !left.is_over() {
            text += &match left.seconds(now) {
                Some(seconds) => format!(", about {} left{whose}", output::duration(seconds)),
                None => ", time left not known yet".to_owned(),
            };
        }
        text
    }
}

impl Drop for Simulations {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A policy's main figures in a line.
fn figures(s: &Summary) -> String {
    let deadlines = match s.deadlines {
        0 => String::new(),
        deadlines => format!(", {}/{deadlines} deadlines met", s.deadlines_met),
    };
    format!(
        "{}: {}/{} finished, {:.2} EUR (energy {:.2}, tardiness {:.2}){deadlines}, JCT mean {}, in {}",
        s.policy,
        s.finished,
        s.jobs,
        s.total_cost,
        s.energy_cost,
        s.tardiness_cost,
        output::duration(s.jct_mean_s),
        output::duration(s.wall_s),
    )
}
