//! The part of a run over which its speed is measured, between two of its own reports.
//!
//! What is not training does not count: loading at its start, saving at its end, and whatever it
//! said before it ran in this configuration.

use wattline_core::Timestamp;
use wattline_core::placement::Configuration;
use wattline_core::units::{Seconds, Watts};

/// A shorter window tells nothing.
const LEAST: Seconds = Seconds::new(1.0);

/// How far a job was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Report {
    pub(super) at: Timestamp,
    pub(super) done: f64,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    pub(super) until: Timestamp,
    pub(super) processed: f64,
    pub(super) seconds: Seconds,
    /// What each GPU drew, if that was seen.
    pub(super) power: Option<Watts>,
}

/// A window that is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasurementWindow {
    pub(super) configuration: Configuration,
    /// Since when it runs so; what it said before is of another run.
    since: Timestamp,
    /// The first report of this run. Until one has more done, it may load.
    first: Option<Report>,
    /// From where it is measured, and the last report with more done.
    from: Option<Report>,
    last: Option<Report>,
    /// Watts of a GPU, added up, and how often.
    power: (f64, u32),
    is_measured: bool,
}

impl MeasurementWindow {
    pub(super) fn new(configuration: Configuration, since: Timestamp) -> Self {
        Self {
            configuration,
            since,
            first: None,
            from: None,
            last: None,
            power: (0.0, 0),
            is_measured: false,
        }
    }

    /// Whether a report is of a run that has gone back, to an older checkpoint.
    pub(super) fn is_behind(&self, report: Report) -> bool {
        [self.first, self.from, self.last].into_iter().flatten().any(|r| report.done < r.done)
    }

    /// The job was seen to train: how far it said it was, and what each of its GPUs draws.
    pub(super) fn heard(&mut self, report: Report, power: Option<Watts>) {
        if report.at < self.since {
            return;
        }
        let Some(first) = self.first else {
            self.first = Some(report);
            return;
        };
        let before = self.last.or(self.from).unwrap_or(first);
        if self.from.is_some()
            && let Some(watts) = power
        {
            self.power = (self.power.0 + watts.get(), self.power.1 + 1);
        }
        if report.done <= before.done {
            return;
        }
        match self.from {
            None => self.from = Some(report),
            Some(_) => self.last = Some(report),
        }
    }

    /// What there is to say after this long; the next window begins there.
    pub(super) fn due(&mut self, every: Seconds) -> Option<Measured> {
        let (from, last) = (self.from?, self.last?);
        let measured = self.between(from, last).filter(|measured| measured.seconds >= every)?;
        (self.from, self.last) = (Some(last), None);
        (self.power, self.is_measured) = ((0.0, 0), true);
        Some(measured)
    }

    /// What there is to say at the end of a run. What it said last is from after it had saved, and
    /// counts only for a run that hardly said anything.
    pub(super) fn end(self, said: Report) -> Option<Measured> {
        match (self.from, self.last) {
            (Some(from), Some(last)) => self.between(from, last),
            _ if self.is_measured => None,
            (from, _) => self.between(from.or(self.first)?, said),
        }
    }

    fn between(&self, from: Report, to: Report) -> Option<Measured> {
        let (seconds, processed) = (to.at.since(from.at), to.done - from.done);
        let (sum, count) = self.power;
        let power = (count > 0).then(|| Watts::new(sum / f64::from(count)));
        let enough = seconds >= LEAST && processed > 0.0;
        enough.then_some(Measured { until: to.at, processed, seconds, power })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use wattline_core::ids::GpuTypeId;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    fn report(seconds: f64, done: f64) -> Report {
        Report { at: at(seconds), done }
    }

    fn window(since: f64) -> MeasurementWindow {
        let configuration = Configuration {
            gpu_type: GpuTypeId(0),
            gpus: 2,
            nodes: 1,
            batch: 64,
            power_limit: Watts::new(400.0),
        };
        MeasurementWindow::new(configuration, at(since))
    }

    /// Ten a second, from second 12 on; it loads for two seconds and saves for three.
    fn trained(until: f64) -> MeasurementWindow {
        let mut window = window(10.0);
        // The last run's last word.
        window.heard(report(3.0, 100.0), None);
        let mut now = 10.0;
        while now <= until {
            let done = 100.0 + 10.0 * (now - 12.0).max(0.0);
            window.heard(report(now, done), Some(Watts::new(300.0)));
            now += 0.5;
        }
        window
    }

    fn rate(measured: &Measured) -> f64 {
        measured.processed / measured.seconds.get()
    }

    #[test]
    fn loading_saving_and_what_another_run_said_are_no_training() {
        let mut window = trained(20.0);
        // It saves.
        window.heard(report(21.0, 180.0), Some(Watts::new(300.0)));
        let end = window.end(report(23.0, 180.0)).unwrap();
        assert_eq!((rate(&end), end.until), (10.0, at(20.0)));
        assert_eq!(end.power, Some(Watts::new(300.0)));
    }

    #[test]
    fn one_window_follows_the_other_without_a_gap() {
        let mut window = trained(17.0);
        assert_eq!(window.due(Seconds::new(5.0)), None);
        for tenth in 171..=230_u32 {
            let now = f64::from(tenth) / 10.0;
            window.heard(report(now, 100.0 + 10.0 * (now - 12.0)), None);
        }
        let first = window.due(Seconds::new(5.0)).unwrap();
        assert_eq!(window.due(Seconds::new(0.1)), None, "said once");
        window.heard(report(24.0, 220.0), None);
        let next = window.due(Seconds::new(1.0)).unwrap();
        assert!((rate(&first) - 10.0).abs() < 1e-9 && first.until == at(23.0));
        assert_eq!((next.processed, next.seconds), (10.0, Seconds::new(1.0)));
        // Nothing new since: what comes now is saving.
        assert_eq!(window.end(report(30.0, 225.0)), None);
    }

    #[test]
    fn a_run_that_says_little_is_measured_as_a_whole() {
        let mut window = window(0.0);
        window.heard(report(1.0, 0.0), None);
        let end = window.end(report(11.0, 50.0)).unwrap();
        assert_eq!((rate(&end), end.power), (5.0, None));
        assert_eq!(window.end(report(1.5, 50.0)), None, "too short");
        assert_eq!(window.end(report(11.0, 0.0)), None, "nothing done");
        assert!(window.is_behind(report(12.0, -1.0)) && !window.is_behind(report(12.0, 0.0)));
    }
}
