//! What a workload on a kind of GPU is believed to be like from everything else that was measured:
//! the same workload on other GPUs, and other workloads.
//!
//! Each unknown of the step is treated on its own. What the fit of another group says about it
//! beyond that group's own prior is an observation; observations scatter around a population's
//! mean, by how much is estimated from them (a random-effects model, with the default belief as
//! the first few members of the population).

use crate::belief::Belief;
use crate::step::{UNKNOWNS, Unknowns, at};

/// What one group's readings say of its unknowns: `None` where nothing.
pub(crate) type Evidence = [Option<(f64, f64)>; UNKNOWNS];

/// As many observations as the default belief is worth: for a mean, for how workloads scatter, and
/// for how the differences between two kinds of GPU do.
const OF_MEAN: f64 = 0.3;
const OF_WORKLOADS: f64 = 3.0;
const OF_CARDS: f64 = 1.0;
/// Evidence counts if the readings have narrowed the belief to this share of its variance.
const TOLD: f64 = 0.8;
/// How much an unknown of the same workload differs between two kinds of GPU, in logarithms, where
/// nothing tells; powers in relation to the cards' own.
const BETWEEN_CARDS: [f64; UNKNOWNS] =
    [0.5, 0.8, 0.5, 0.5, 0.25, 0.25, 0.4, 0.8, 0.8, 0.8, 0.8, 0.4, 0.8, 0.6, 0.5, 0.02];
/// Beliefs are rounded to this part of their width and their widths to this part of an octave, so
/// that what hardly changes does not change.
const PARTS_OF_WIDTH: f64 = 8.0;
const PARTS_OF_OCTAVE: f64 = 4.0;

/// What the readings added to the belief they were fitted under.
pub(crate) fn evidence(belief: &Belief, fitted: &Unknowns, variances: &Unknowns) -> Evidence {
    std::array::from_fn(|k| {
        let (before, after) = (belief.width[k] * belief.width[k], variances[k]);
        if after >= TOLD * before || after <= 0.0 {
            return None;
        }
        let sure = 1.0 / after - 1.0 / before;
        let mean = (fitted[k] / after - belief.centre[k] / before) / sure;
        Some((mean, 1.0 / sure))
    })
}

/// Another group, as seen from the one that borrows.
pub(crate) struct Lender<'a> {
    pub(crate) evidence: &'a Evidence,
    /// What its card's logarithms of power and of speed are above the borrower's.
    pub(crate) card: f64,
    pub(crate) speed: f64,
    /// Likewise of its links, inside a node and between nodes.
    pub(crate) links: [f64; 2],
    /// And its logarithm of samples per GPU: workloads take similar steps, not similar samples.
    pub(crate) local: f64,
    pub(crate) same_workload: bool,
    pub(crate) same_card: bool,
}

/// How two kinds of GPU differ, seen from workloads that ran on both: pairs of observations.
pub(crate) struct Pair<'a> {
    pub(crate) here: &'a Evidence,
    pub(crate) there: &'a Evidence,
}

/// What is believed of a group that has not been looked at, `default` being what is believed of
/// its card alone. `pairs` are asked for the kind of GPU of a lender of the same workload.
pub(crate) fn borrow<'a>(
    default: &Belief,
    lenders: &[Lender<'a>],
    pairs: impl Fn(usize) -> Vec<Pair<'a>>,
) -> Belief {
    let mut belief = default.clone();
    for (k, between) in BETWEEN_CARDS.into_iter().enumerate() {
        // What is above the borrower's for its card's sake.
        let by_card = |lender: &Lender<'_>| match k {
            at::IDLE_POWER | at::BUSY_POWER => lender.card,
            at::PER_SAMPLE => -lender.speed,
            at::NODE_BASE | at::NODE_PER_GPU => -lender.links[0],
            at::NET_BASE | at::NET_PER_GPU => -lender.links[1],
            _ => 0.0,
        };
        let seen = |lender: &Lender<'_>| {
            let (mean, variance) = lender.evidence[k]?;
            let shorter = k == at::PER_SAMPLE && !lender.same_workload;
            let by_batch = if shorter { -lender.local } else { 0.0 };
            Some((mean - by_card(lender) - by_batch, variance))
        };
        let others: Vec<(f64, f64)> = lenders
            .iter()
            .filter(|lender| !lender.same_workload)
            .filter_map(|lender| {
                let (mean, variance) = seen(lender)?;
                let other = if lender.same_card { 0.0 } else { between };
                Some((mean, variance + other * other))
            })
            .collect();
        let width = default.width[k];
        let (mean, variance) =
            population((default.centre[k], width * width), &others, OF_WORKLOADS);
        let (mut sure, mut sum) = (1.0 / variance, mean / variance);
        for (at, lender) in lenders.iter().enumerate().filter(|(_, l)| l.same_workload) {
            let Some((mean, variance)) = seen(lender) else { continue };
            let differences: Vec<(f64, f64)> = pairs(at)
                .iter()
                .filter_map(|pair| {
                    let (here, unsure) = pair.here[k]?;
                    let (there, also) = pair.there[k]?;
                    Some((here - (there - by_card(lender)), unsure + also))
                })
                .collect();
            let (difference, scatter) =
                population((0.0, between * between), &differences, OF_CARDS);
            let variance = variance + scatter;
            sure += 1.0 / variance;
            sum += (mean + difference) / variance;
        }
        belief.centre[k] = sum / sure;
        belief.width[k] = sure.sqrt().recip();
    }
    rounded(&belief)
}

/// Mean and variance of the next member of a population whose scatter is believed to be as the
/// default's so strongly.
fn population((centre, variance): (f64, f64), seen: &[(f64, f64)], of_default: f64) -> (f64, f64) {
    let mean = |scatter: f64| {
        let (mut sure, mut sum) = (OF_MEAN / variance, OF_MEAN * centre / variance);
        for (value, own) in seen {
            sure += 1.0 / (own + scatter);
            sum += value / (own + scatter);
        }
        (sum / sure, 1.0 / sure)
    };
    let (first, _) = mean(variance);
    let beyond: f64 =
        seen.iter().map(|(value, own)| ((value - first) * (value - first) - own).max(0.0)).sum();
    let scatter = (of_default * variance + beyond) / (of_default + seen.len() as f64);
    let (mean, unsure) = mean(scatter);
    // Members never make one less sure than the default, unless they scatter more.
    (mean, (scatter + unsure).min(variance.max(scatter)))
}

fn rounded(belief: &Belief) -> Belief {
    let mut rounded = belief.clone();
    for k in 0..UNKNOWNS {
        let width = ((belief.width[k].log2() * PARTS_OF_OCTAVE).round() / PARTS_OF_OCTAVE).exp2();
        let part = width / PARTS_OF_WIDTH;
        rounded.width[k] = width;
        rounded.centre[k] = (belief.centre[k] / part).round() * part;
    }
    rounded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_population_starts_at_the_default_and_goes_where_its_members_are() {
        let (mean, variance) = population((0.0, 1.0), &[], 1.0);
        assert_eq!((mean, variance), (0.0, 1.0));
        let close: Vec<(f64, f64)> = (0..20).map(|k| (2.0 + 0.01 * f64::from(k), 0.01)).collect();
        let (mean, variance) = population((0.0, 1.0), &close, 1.0);
        assert!((mean - 2.09).abs() < 0.2, "{mean}");
        assert!(variance < 0.6, "{variance}");
    }

    #[test]
    fn readings_that_told_nothing_are_no_evidence() {
        let belief = Belief { centre: Unknowns::repeat(1.0), width: Unknowns::repeat(0.5) };
        let untold = evidence(&belief, &Unknowns::repeat(1.0), &Unknowns::repeat(0.25));
        assert!(untold.iter().all(Option::is_none));
        let told = evidence(&belief, &Unknowns::repeat(2.0), &Unknowns::repeat(0.01));
        let (mean, variance) = told[0].unwrap();
        assert!((mean - 2.04).abs() < 0.01 && variance < 0.011, "{mean} {variance}");
    }
}
