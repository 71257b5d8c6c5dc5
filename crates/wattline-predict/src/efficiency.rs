//! What a sample is worth at another batch: statistical efficiency from the gradient noise scale.
//!
//! Samples to a target grow as `samples(B) = s₀·(1 + B/φ)`, so that a sample at batch `B` is worth
//! `(φ + B₀)/(φ + B)` of one at batch `B₀`.

/// Bounds of the noise scale.
const LEAST: f64 = 1.0;
const MOST: f64 = 1e9;
/// What is believed without data, as a logarithm and its spread: the middle of published medians
/// (559, 1,124, 4,944 and 11,397) and how far they scatter.
const PRIOR: (f64, f64) = (7.80, 1.37);
/// How far reports of one workload scatter: the scale grows by several times during training, and
/// estimates from few steps are noisy.
const REPORT_SPREAD: f64 = 0.7;
/// Reports of one workload share what is wrong with them, so that many are not endlessly sure.
const SHARED_SPREAD: f64 = 0.3;
/// Steps of the search for φ, per factor of e.
const STEPS: u32 = 20;
/// Residuals of log samples are taken to scatter at least so much: epochs are whole numbers, and
/// runs differ by the seed.
const LEAST_SPREAD: f64 = 0.05;
/// Standard deviations of a normal distribution in its median deviation.
const NORMAL: f64 = 1.4826;
/// Half of 90 % of a normal distribution, in standard deviations.
const NINETY_PER_CENT: f64 = 1.645;

/// The gradient noise scale of a workload, and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NoiseScale {
    /// φ, in samples.
    pub scale: f64,
    /// It is between this (with `high`: 90 %) …
    pub low: f64,
    /// … and this.
    pub high: f64,
    /// Reports or pairs behind it.
    pub count: usize,
}

impl NoiseScale {
    /// What is believed of a workload nobody has seen.
    #[must_use]
    pub fn prior() -> Self {
        Self::normal(PRIOR.0, PRIOR.1, 0)
    }

    /// The median of what jobs report, drawn towards the prior while reports are few. Reports that
    /// cannot be (NaN, infinite, not positive) are left out.
    #[must_use]
    pub fn from_reports(reports: &[f64]) -> Self {
        let mut logs: Vec<f64> = reports
            .iter()
            .filter(|r| r.is_finite() && **r > 0.0)
            .map(|r| r.clamp(LEAST, MOST).ln())
            .collect();
        logs.sort_by(f64::total_cmp);
        let count = logs.len();
        if count == 0 {
            return Self::prior();
        }
        let median = f64::midpoint(logs[(count - 1) / 2], logs[count / 2]);
        let variance = REPORT_SPREAD.powi(2) / count as f64 + SHARED_SPREAD.powi(2);
        let (told, believed) = (1.0 / variance, 1.0 / PRIOR.1.powi(2));
        let mean = (told * median + believed * PRIOR.0) / (told + believed);
        Self::normal(mean, (told + believed).sqrt().recip(), count)
    }

    /// From pairs of a batch and the samples (or epochs) to a target there. `None` without two
    /// batches. Pairs that cannot be are left out; single outliers have bounded influence; the
    /// prior decides where the batches are too alike to tell.
    #[must_use]
    pub fn fit(pairs: &[(f64, f64)]) -> Option<Self> {
        let mut logs: Vec<(f64, f64)> = pairs
            .iter()
            .filter(|(b, s)| b.is_finite() && s.is_finite() && *b >= LEAST && *s > 0.0)
            .map(|(b, s)| (*b, s.ln()))
            .collect();
        logs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        if logs.first()?.0 == logs.last()?.0 {
            return None;
        }
        let count = logs.len();
        let steps = (STEPS as f64 * MOST.ln()).ceil() as u32;
        let grid: Vec<f64> = (0..=steps).map(|k| f64::from(k) / f64::from(STEPS)).collect();
        let left = |log_scale: f64| -> Vec<f64> {
            let scale = log_scale.exp();
            let mut left: Vec<f64> = logs.iter().map(|(b, s)| s - (b / scale).ln_1p()).collect();
            let centre = median(&left);
            for value in &mut left {
                *value -= centre;
            }
            left
        };
        // The scatter is the median one around the best curve: an outlier must not make all the
        // others worthless.
        let scatter = |left: Vec<f64>| median(&left.iter().map(|x| x.abs()).collect::<Vec<_>>());
        let least = grid.iter().map(|x| scatter(left(*x))).fold(f64::INFINITY, f64::min);
        let spread = (NORMAL * least).max(LEAST_SPREAD);
        let weights: Vec<f64> = grid
            .iter()
            .map(|x| {
                let loss: f64 = left(*x).iter().map(|r| robust(r / spread)).sum();
                -0.5 * (loss + ((x - PRIOR.0) / PRIOR.1).powi(2))
            })
            .collect();
        let most = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = weights.iter().map(|w| (w - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let quantile = |share: f64| {
            let mut sum = 0.0;
            let at = weights.iter().position(|w| {
                sum += w;
                sum >= share * total
            });
            at.map_or(MOST, |k| grid[k].exp().clamp(LEAST, MOST))
        };
        Some(Self { scale: quantile(0.5), low: quantile(0.05), high: quantile(0.95), count })
    }

    /// What a sample at `batch` is worth, in samples at the batch that was asked for.
    #[must_use]
    pub fn efficiency(&self, asked: f64, batch: f64) -> f64 {
        (self.scale + asked) / (self.scale + batch)
    }

    fn normal(mean: f64, spread: f64, count: usize) -> Self {
        let at = |log: f64| log.exp().clamp(LEAST, MOST);
        let half = NINETY_PER_CENT * spread;
        Self { scale: at(mean), low: at(mean - half), high: at(mean + half), count }
    }
}

/// Quadratic near zero, linear far out.
fn robust(residual: f64) -> f64 {
    2.0 * ((1.0 + residual * residual).sqrt() - 1.0)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// How well samples to a target are predicted from three batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The fitted noise scale.
    pub noise_scale: NoiseScale,
    /// The batches fitted: the smallest, the middle, the largest.
    pub fitted: [f64; 3],
    /// Of every other batch: the batch, predicted, measured.
    pub held_out: Vec<(f64, f64, f64)>,
    /// Mean relative error.
    pub mape: f64,
    /// That of samples that do not depend on the batch: the median of the three.
    pub constant_mape: f64,
}

/// Fits three of the pairs, predicts the others. `None` with fewer than four batches.
#[must_use]
pub fn evaluate(pairs: &[(f64, f64)]) -> Option<Evaluation> {
    let mut pairs = pairs.to_vec();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    if pairs.len() < 4 {
        return None;
    }
    let three = [0, pairs.len() / 2, pairs.len() - 1];
    let known = three.map(|k| pairs[k]);
    let noise_scale = NoiseScale::fit(&known)?;
    // One unknown is left: the level, as the fit sees it.
    let growth = |batch: f64| (batch / noise_scale.scale).ln_1p();
    let level = median(&known.map(|(b, s)| s.ln() - growth(b)));
    let constant = median(&known.map(|(_, s)| s.ln())).exp();
    let held_out: Vec<(f64, f64, f64)> = pairs
        .iter()
        .enumerate()
        .filter(|(k, _)| !three.contains(k))
        .map(|(_, (b, s))| (*b, (level + growth(*b)).exp(), *s))
        .collect();
    let mean = |off: &dyn Fn(&(f64, f64, f64)) -> f64| {
        held_out.iter().map(off).sum::<f64>() / held_out.len() as f64
    };
    Some(Evaluation {
        noise_scale,
        fitted: known.map(|(b, _)| b),
        mape: mean(&|(_, ours, theirs)| (ours / theirs - 1.0).abs()),
        constant_mape: mean(&|(_, _, theirs)| (constant / theirs - 1.0).abs()),
        held_out,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_data_the_prior_is_wide_and_a_report_moves_it() {
        let prior = NoiseScale::prior();
        assert!(prior.low < 559.0 && prior.high > 11_397.0 && prior.count == 0, "{prior:?}");
        assert_eq!(NoiseScale::from_reports(&[]), prior);
        assert_eq!(NoiseScale::from_reports(&[f64::NAN, -1.0, f64::INFINITY, 0.0]), prior);
        let one = NoiseScale::from_reports(&[50_000.0]);
        assert!(one.scale > 10_000.0 && one.scale < 50_000.0, "{one:?}");
        assert!(one.high / one.low < prior.high / prior.low);
        let many = NoiseScale::from_reports(&[50_000.0; 30]);
        assert!(many.scale > one.scale && many.high / many.low < one.high / one.low);
        // A wild report among good ones.
        let wild = NoiseScale::from_reports(&[900.0, 1000.0, 1100.0, 1e300]);
        assert!(wild.scale > 800.0 && wild.scale < 1500.0, "{wild:?}");
    }

    #[test]
    fn a_known_scale_is_found() {
        for scale in [30.0, 500.0, 20_000.0] {
            let pairs: Vec<(f64, f64)> = (0..12)
                .map(|k| 2.0_f64.powi(k + 2))
                .map(|b| (b, 1e5 * (1.0 + b / scale)))
                .collect();
            let found = NoiseScale::fit(&pairs).unwrap();
            assert!((found.scale / scale).ln().abs() < 0.15, "{found:?} of {scale}");
            assert!(found.low <= scale && scale <= found.high, "{found:?} of {scale}");
            // One run that diverged changes little.
            let mut liar = pairs.clone();
            liar[5].1 *= 10.0;
            let found = NoiseScale::fit(&liar).unwrap();
            assert!((found.scale / scale).ln().abs() < 0.7, "{found:?} of {scale}");
        }
    }

    #[test]
    fn two_batches_are_needed() {
        assert_eq!(NoiseScale::fit(&[]), None);
        assert_eq!(NoiseScale::fit(&[(8.0, 5.0), (8.0, 6.0)]), None);
        assert_eq!(NoiseScale::fit(&[(8.0, 5.0), (f64::NAN, 6.0), (16.0, -1.0)]), None);
        assert!(NoiseScale::fit(&[(8.0, 5.0), (16.0, 6.0)]).is_some());
        assert_eq!(evaluate(&[(8.0, 5.0), (16.0, 6.0), (32.0, 7.0)]), None);
    }

    #[test]
    fn efficiency_is_one_at_the_asked_batch_and_falls_with_the_batch() {
        let n = NoiseScale::prior();
        assert_eq!(n.efficiency(256.0, 256.0), 1.0);
        assert!(n.efficiency(256.0, 512.0) < 1.0 && n.efficiency(256.0, 128.0) > 1.0);
        assert!(n.efficiency(256.0, 1e9) > 0.0);
    }

    #[test]
    fn whatever_comes_in_the_scale_keeps_its_bounds() {
        for pairs in [
            vec![(1.0, 1e-300), (1e300, 1e300)],
            vec![(1.0, 1e300), (2.0, 1e-300), (3.0, 5.0)],
            vec![(4.0, 8.0), (16.0, 2.0), (64.0, 1.0)],
        ] {
            let n = NoiseScale::fit(&pairs).unwrap();
            assert!(n.low >= LEAST && n.low <= n.scale && n.scale <= n.high && n.high <= MOST);
        }
    }
}
