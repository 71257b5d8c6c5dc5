//! Which cases property tests try.
//!
//! In CI each test tries the same cases on every machine and in every run: a commit is green or it
//! is not. New cases are drawn by `make nightly`, which sets [`NIGHTLY`] to a seed and prints it;
//! the same seed draws the same cases again. A failure that it finds is kept as a test with a name,
//! not as a file of seeds.

use proptest::test_runner::{Config, RngSeed};

/// The environment variable with the seed of a nightly run.
pub const NIGHTLY: &str = "WATTLINE_NIGHTLY";

/// A nightly run tries this many times as many cases: `cargo test` then takes most of an hour where
/// it takes minutes in CI, which a night has room for.
const NIGHTLY_FACTOR: u32 = 10;

/// So many cases, drawn with the test's own seed, or with that of the nightly run.
///
/// # Panics
/// When [`NIGHTLY`] is set and is no seed: the run would not be the one that was asked for.
#[must_use]
pub fn cases(cases: u32, seed: u64) -> Config {
    let nightly = std::env::var(NIGHTLY).ok().map(|text| match text.parse() {
        Ok(nightly) => nightly,
        Err(_) => {
            panic!("{NIGHTLY} is '{text}': expected a whole number, as `make nightly` prints")
        }
    });
    drawn(cases, seed, nightly)
}

fn drawn(cases: u32, seed: u64, nightly: Option<u64>) -> Config {
    let (cases, seed) = match nightly {
        None => (cases, seed),
        // Tests that share a seed in CI still share one, and different ones stay different.
        Some(nightly) => (
            cases.saturating_mul(NIGHTLY_FACTOR),
            nightly.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed),
        ),
    };
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
