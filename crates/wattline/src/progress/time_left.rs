//! How long several simulations still take.
//!
//! Policies differ by orders of magnitude in speed, and later jobs cost more than early ones where
//! queues grow. So each simulation is judged by itself, and by its recent speed alone. What queues
//! will do is not known: a burst of jobs ahead makes it longer, and one that is just being worked
//! off will not last. Extrapolating the growth of the cost so far, and weighting rules by how right
//! they would have been, was tried on Philly and was no better.
//!
//! No clock is read here: time is an argument.

/// Seconds since a simulation began, and the share of its events that was done then.
type Sample = (f64, f64);

/// The recent past of a simulation is this part of the time it has run for. On Philly 0.2 and 0.4
/// are as good to a few per cent; over all of the time, estimates are off by 2.4 instead of 1.8
/// where the second half is slower than the first.
const RECENT: f64 = 0.3;
/// Before a simulation has run for so long its speed says more about caches than about its jobs.
const LEAST_S: f64 = 1.0;
/// So many samples are kept; when they are full every other one goes.
const SAMPLES: usize = 256;

/// How long simulations that run side by side still take.
pub(super) struct TimeLeft {
    runs: Vec<Run>,
}

/// One of them.
#[derive(Clone, Default)]
struct Run {
    begin: f64,
    samples: Vec<Sample>,
    ended: bool,
}

impl TimeLeft {
    pub(super) fn new(runs: usize) -> Self {
        Self { runs: vec![Run::default(); runs] }
    }

    /// This share of a run's events is done. The first call says that it begins.
    pub(super) fn advance(&mut self, run: usize, now: f64, share: f64) {
        self.runs[run].advance(now, share.clamp(0.0, 1.0));
    }

    pub(super) fn end(&mut self, run: usize, now: f64) {
        self.runs[run].advance(now, 1.0);
        self.runs[run].ended = true;
    }

    /// How many have ended.
    pub(super) fn ended(&self) -> usize {
        self.runs.iter().filter(|run| run.ended).count()
    }

    pub(super) fn is_over(&self) -> bool {
        self.runs.iter().all(|run| run.ended)
    }

    /// Runs that have begun and not ended, and the share of each that is done.
    pub(super) fn running(&self) -> impl Iterator<Item = (usize, f64)> {
        let running = |(_, run): &(usize, &Run)| run.has_begun() && !run.ended;
        self.runs.iter().enumerate().filter(running).map(|(at, run)| (at, run.share()))
    }

    /// The mean share that is done.
    pub(super) fn share(&self) -> f64 {
        let done: f64 = self.runs.iter().map(Run::share).sum();
        done / self.runs.len().max(1) as f64
    }

    /// How many have not begun. Nothing is known of how long they take: another policy may be a
    /// thousand times as fast or as slow.
    pub(super) fn not_begun(&self) -> usize {
        self.runs.iter().filter(|run| !run.has_begun()).count()
    }

    /// Seconds until all that run have ended; `None` if none runs, and as long as nothing is known
    /// of one that does.
    pub(super) fn seconds(&self, now: f64) -> Option<f64> {
        let running = self.running().map(|(run, _)| self.runs[run].left(now));
        running.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
    }
}

impl Run {
    fn has_begun(&self) -> bool {
        !self.samples.is_empty()
    }

    fn share(&self) -> f64 {
        self.samples.last().map_or(0.0, |(_, share)| *share)
    }

    fn advance(&mut self, now: f64, share: f64) {
        if self.samples.is_empty() {
            self.begin = now;
        }
        if self.samples.len() >= SAMPLES {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
        self.samples.push((now - self.begin, share));
    }

    /// Seconds until it ends, if the rest goes as fast as the recent past.
    fn left(&self, now: f64) -> Option<f64> {
        // One that has not been heard of for long is slow: its time counts until now.
        let (took, share) = (now - self.begin, self.share());
        if took < LEAST_S {
            return None;
        }
        let recent = |sample: &&Sample| sample.0 <= (1.0 - RECENT) * took && sample.1 < share;
        let (since, before) = self.samples.iter().rev().find(recent)?;
        Some((1.0 - share) * (took - since) / (share - before))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// How long a simulation takes, and the share of its events that is done after a share of that
    /// time.
    type Curve = (f64, fn(f64) -> f64);

    fn steady(time: f64) -> f64 {
        time
    }

    /// The cost of an event grows with those before it, as with a queue that grows to the end.
    fn rising(time: f64) -> f64 {
        time.sqrt()
    }

    /// Half as fast again from the middle on, as when another simulation leaves its core.
    fn freed(time: f64) -> f64 {
        if time < 0.5 { 0.8 * time } else { 0.4 + 1.2 * (time - 0.5) }
    }

    /// A third of the time goes into the middle tenth of the events.
    fn burst(time: f64) -> f64 {
        let thirds = 3.0 * time;
        match thirds {
            t if t < 1.0 => 0.45 * t,
            t if t < 2.0 => 0.45 + 0.1 * (t - 1.0),
            t => 0.55 + 0.45 * (t - 2.0),
        }
    }

    /// Runs simulations in virtual time as threads take them, and hears of them five times a
    /// second. Gives what was estimated and what was true, over time, and the time of the end.
    fn follow(curves: &[Curve], threads: usize) -> (Vec<(f64, Option<f64>, f64)>, f64) {
        let mut free = vec![0.0_f64; threads];
        let begins: Vec<f64> = curves
            .iter()
            .map(|(takes, _)| {
                let first = free.iter_mut().min_by(|a, b| a.total_cmp(b)).unwrap();
                let begin = *first;
                *first += takes;
                begin
            })
            .collect();
        let end = free.into_iter().fold(0.0, f64::max);
        let mut left = TimeLeft::new(curves.len());
        let mut told = Vec::new();
        let mut now = 0.0;
        while now < end {
            for (run, ((takes, share), begin)) in curves.iter().zip(&begins).enumerate() {
                let time = (now - begin) / takes;
                if time >= 1.0 && !left.runs[run].ended {
                    left.end(run, begin + takes);
                } else if (0.0..1.0).contains(&time) {
                    left.advance(run, now, share(time));
                }
            }
            told.push((now, left.seconds(now), end - now));
            now += 0.2;
        }
        (told, end)
    }

    /// The smallest and the largest of estimates over the truth from one time to another, both as
    /// shares of the whole. All must be there.
    fn ratios(curves: &[Curve], threads: usize, from: f64, to: f64) -> (f64, f64) {
        let (told, end) = follow(curves, threads);
        let within = told.iter().filter(|(now, ..)| (from * end..to * end).contains(now));
        let ratios = within.map(|(_, estimate, truth)| estimate.unwrap() / truth);
        ratios.fold((f64::INFINITY, 0.0), |(low, high), r| (r.min(low), r.max(high)))
    }

    fn assert_holds(curves: &[Curve], threads: usize, from: f64, tolerance: f64) {
        let (low, high) = ratios(curves, threads, from, 0.99);
        let good = low >= 1.0 - tolerance && high <= 1.0 + tolerance;
        assert!(good, "estimates are {low:.3} to {high:.3} of the truth");
    }

    /// A bar that counts jobs over all of these says ten seconds when two thirds are done.
    #[test]
    fn a_slow_simulation_is_judged_by_its_own_speed() {
        assert_holds(&[(0.3, steady), (3.0, steady), (600.0, steady)], 2, 0.01, 0.05);
        assert_holds(&[(60.0, steady), (600.0, steady)], 2, 0.01, 0.05);
        assert_holds(&[(120.0, steady)], 1, 0.02, 0.05);
    }

    #[test]
    fn events_that_cost_more_and_more_are_noticed() {
        // By its speed over all it would be 0.41 of the truth in the middle, 0.5 at the end.
        assert_holds(&[(300.0, rising)], 1, 0.25, 0.42);
        assert_holds(&[(1.0, steady), (300.0, rising)], 2, 0.6, 0.22);
    }

    #[test]
    fn a_burst_is_over_when_it_is_over() {
        let curve: &[Curve] = &[(300.0, burst)];
        // In it the estimate is too high, for it may go on; it must come back.
        let (_, worst) = ratios(curve, 1, 0.34, 0.7);
        assert!(worst < 5.0, "{worst}");
        assert_holds(curve, 1, 0.9, 0.15);
    }

    #[test]
    fn another_speed_is_noticed() {
        assert_holds(&[(300.0, freed)], 1, 0.75, 0.05);
    }

    /// A slow one and two fast ones, one thread: the fast ones do not count as slow ones, and not
    /// as nothing either.
    #[test]
    fn those_that_have_not_begun_are_told_apart() {
        let curves: &[Curve] = &[(600.0, steady), (0.3, steady), (3.0, steady)];
        let (told, end) = follow(curves, 1);
        assert!((end - 603.3).abs() < 1e-9);
        let (_, estimate, truth) = told[1500];
        assert!((estimate.unwrap() - (truth - 3.3)).abs() < 5.0, "{estimate:?} of {truth}");
        let mut left = TimeLeft::new(3);
        left.advance(0, 0.0, 0.0);
        assert_eq!(left.not_begun(), 2);
        left.end(0, 600.0);
        assert_eq!((left.seconds(600.0), left.is_over()), (None, false));
    }

    #[test]
    fn nothing_is_said_before_anything_is_known() {
        let mut left = TimeLeft::new(2);
        assert_eq!(left.seconds(0.0), None);
        left.advance(0, 0.0, 0.0);
        left.advance(1, 0.0, 0.0);
        left.advance(0, 0.5, 0.125);
        assert_eq!(left.seconds(0.5), None, "too early");
        left.advance(0, 2.0, 0.5);
        left.advance(1, 2.0, 0.0);
        assert_eq!(left.seconds(2.0), None, "nothing is known of the second");
        left.end(1, 2.1);
        assert!(left.seconds(2.1).is_some_and(|left| (1.9..=2.4).contains(&left)));
        left.end(0, 4.0);
        assert!(left.is_over() && left.seconds(4.0).is_none());
        assert_eq!((left.ended(), left.running().count()), (2, 0));
    }

    /// One that is not heard of for long takes longer than was thought.
    #[test]
    fn silence_counts() {
        let mut left = TimeLeft::new(1);
        for second in 0..=50 {
            left.advance(0, f64::from(second), f64::from(second) / 100.0);
        }
        let before = left.seconds(50.0).unwrap();
        assert!((before - 50.0).abs() < 2.0, "{before}");
        let later = left.seconds(90.0).unwrap();
        assert!(later > 1.5 * before, "{later} after {before}");
    }

    /// However often it is heard of, the past is there and bounded.
    #[test]
    fn samples_are_bounded_and_reach_back_to_the_beginning() {
        let mut left = TimeLeft::new(1);
        for step in 0..100_000 {
            left.advance(0, f64::from(step) / 100.0, f64::from(step) / 200_000.0);
        }
        assert!(left.runs[0].samples.len() <= SAMPLES);
        assert_eq!(left.runs[0].samples[0], (0.0, 0.0));
        let seconds = left.seconds(1000.0).unwrap();
        assert!((seconds - 1000.0).abs() < 20.0, "{seconds}");
    }
}
