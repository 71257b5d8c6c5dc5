//! Which cases property tests try, and how a test says that it was skipped.
//!
//! In CI each test tries the same cases on every machine and in every run: a commit is green or it
//! is not. New cases are drawn by `make nightly`, which sets [`NIGHTLY`] to a seed and prints it;
//! the same seed draws the same cases again. A failure that it finds is kept as a test with a name,
//! not as a file of seeds.

use proptest::test_runner::{Config, RngSeed};
use std::io::Write;

/// The environment variable with the seed of a nightly run.
pub const NIGHTLY: &str = "WATTLINE_NIGHTLY";

/// A nightly run tries this many times as many cases: `cargo test` then takes most of an hour where
/// it takes minutes in CI, which a night has room for.
const NIGHTLY_FACTOR: u32 = 10;

/// The environment variable with the file that names skipped tests. `make test` sets it and shows
/// the file in the end: what a test that passes prints is shown to nobody.
pub const SKIPPED: &str = "WATTLINE_SKIPPED";

/// So many cases, drawn with the test's own seed, or with that of the nightly run.
///
/// # Panics
/// When [`NIGHTLY`] is set and is no seed: the run would not be the one that was asked for.
#[must_use]
pub fn cases(cases: u32, seed: u64) -> Config {
    drawn(cases, seed, nightly())
}

/// The seed of a test that draws its cases itself: its own, or one that follows from the nightly
/// run's. It fits into 63 bits, as numbers in TOML must.
///
/// # Panics
/// As [`cases`].
#[must_use]
pub fn seed(seed: u64) -> u64 {
    mixed(seed, nightly()) & (u64::MAX >> 1)
}

fn nightly() -> Option<u64> {
    std::env::var(NIGHTLY).ok().map(|text| match text.parse() {
        Ok(nightly) => nightly,
        Err(_) => {
            panic!("{NIGHTLY} is '{text}': expected a whole number, as `make nightly` prints")
        }
    })
}

/// Tests that share a seed in CI still share one, and different ones stay different.
fn mixed(seed: u64, nightly: Option<u64>) -> u64 {
    nightly.map_or(seed, |nightly| nightly.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed))
}

/// Says that the test that calls this was skipped, and why: in its own output, and in the file that
/// [`SKIPPED`] names.
///
/// # Panics
/// When that file cannot be written: the test would be skipped in silence.
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os(SKIPPED) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        // One call, so that lines of tests side by side stay whole.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn drawn(cases: u32, seed: u64, nightly: Option<u64>) -> Config {
    let cases = nightly.map_or(cases, |_| cases.saturating_mul(NIGHTLY_FACTOR));
    let seed = mixed(seed, nightly);
    Config { cases, rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..Config::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;

    fn draw(config: Config) -> Vec<u32> {
        let mut runner = TestRunner::new(config);
        let any = proptest::num::u32::ANY;
        (0..20).filter_map(|_| any.new_tree(&mut runner).ok()).map(|tree| tree.current()).collect()
    }

    #[test]
    fn the_same_seed_draws_the_same_cases_and_a_nightly_run_draws_others() {
        assert_eq!(draw(drawn(9, 1, None)), draw(drawn(9, 1, None)));
        assert_ne!(draw(drawn(9, 1, None)), draw(drawn(9, 2, None)));
        assert_eq!(draw(drawn(9, 1, Some(7))), draw(drawn(9, 1, Some(7))));
        assert_ne!(draw(drawn(9, 1, Some(7))), draw(drawn(9, 1, None)));
        assert_ne!(draw(drawn(9, 1, Some(7))), draw(drawn(9, 1, Some(8))));
        assert_eq!(drawn(9, 1, Some(7)).cases, 90);
    }
}
