//! Randomness that depends on what it is about and on nothing else: the same job has the same luck
//! under every policy, so that policies are compared and not dice.

use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_pcg::Pcg64Mcg;

/// A generator for one thing.
pub(crate) fn generator(seed: u64, key: &[u64]) -> Pcg64Mcg {
    Pcg64Mcg::seed_from_u64(hash(seed, key))
}

/// Mixes a seed and a key (splitmix64 after each word).
pub(crate) fn hash(seed: u64, key: &[u64]) -> u64 {
    key.iter().fold(mix(seed), |state, word| mix(state ^ word))
}

fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A standard normal number for a hash.
pub(crate) fn gaussian(hash: u64) -> f64 {
    StandardNormal.sample(&mut Pcg64Mcg::seed_from_u64(hash))
}
