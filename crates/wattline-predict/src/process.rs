//! A Gaussian process whose length scales, amplitude and noise are averaged over a small grid by
//! how well they explain the readings, instead of being fitted: with a dozen readings there is no
//! best value, there are several good ones.

use crate::features::{AXES, Coordinates, squares};
use nalgebra::{Cholesky, DMatrix, DVector, Dyn};

/// Length scales along the batch, the limit, the GPU count and the share of traffic between nodes.
const LENGTHS: [&[f64]; AXES] =
    [&[0.25, 0.5, 1.0, 2.0], &[0.25, 0.5, 1.0, 2.0], &[0.5, 1.5], &[0.25, 0.5, 1.0]];
/// Standard deviations of the noise, in logarithms.
const NOISES: [f64; 5] = [0.007, 0.015, 0.03, 0.06, 0.12];
/// Log-normal beliefs: median, and standard deviation of the logarithm.
const LENGTH_BELIEF: (f64, f64) = (0.7, 0.7);
const NOISE_BELIEF: (f64, f64) = (0.02, 0.7);
/// The best combinations that are kept, as long as each has this share of the weight.
const MOST_CELLS: usize = 16;
const LEAST_WEIGHT: f64 = 1e-3;

/// What amplitudes are thinkable.
pub(crate) struct Amplitudes {
    values: &'static [f64],
    belief: (f64, f64),
}

/// For what a parametric model leaves over.
pub(crate) const OF_RESIDUALS: Amplitudes =
    Amplitudes { values: &[0.01, 0.03, 0.06, 0.12, 0.25], belief: (0.05, 1.0) };
/// For the quantity itself.
pub(crate) const OF_WHOLE: Amplitudes =
    Amplitudes { values: &[0.1, 0.3, 1.0, 3.0], belief: (0.5, 1.5) };

fn log_belief(value: f64, (median, spread): (f64, f64)) -> f64 {
    let z = (value / median).ln() / spread;
    -0.5 * z * z
}

/// One combination of length scales, amplitude and noise.
#[derive(Clone, Debug)]
struct Cell {
    weight: f64,
    /// One over the squared length scales.
    stiffness: Coordinates,
    amplitude: f64,
    noise: f64,
    factor: Cholesky<f64, Dyn>,
    /// Covariance inverse times the readings.
    pull: DVector<f64>,
}

/// A fitted process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    known: Vec<Coordinates>,
    cells: Vec<Cell>,
}

fn kernel(distances: &Coordinates, stiffness: &Coordinates) -> f64 {
    let sum: f64 = (0..AXES).map(|axis| distances[axis] * stiffness[axis]).sum();
    (-0.5 * sum).exp()
}

impl Process {
    pub(crate) fn new(
        known: Vec<Coordinates>,
        values: &DVector<f64>,
        amplitudes: &Amplitudes,
    ) -> Self {
        let count = known.len();
        let varies: [bool; AXES] =
            std::array::from_fn(|axis| known.iter().any(|k| k[axis] != known[0][axis]));
        let mut cells: Vec<(f64, Cell)> = Vec::new();
        for lengths in combinations(&varies) {
            let stiffness = lengths.map(|length| 1.0 / (length * length));
            let plain = DMatrix::from_fn(count, count, |r, c| {
                kernel(&squares(&known[r], &known[c]), &stiffness)
            });
            let believed: f64 = (0..AXES)
                .filter(|axis| varies[*axis])
                .map(|axis| log_belief(lengths[axis], LENGTH_BELIEF))
                .sum();
            for &amplitude in amplitudes.values {
                for noise in NOISES {
                    let covariance = &plain * (amplitude * amplitude)
                        + DMatrix::identity(count, count) * (noise * noise);
                    let Some(factor) = Cholesky::new(covariance) else { continue };
                    let pull = factor.solve(values);
                    let evidence = -0.5 * values.dot(&pull)
                        - factor.l_dirty().diagonal().map(f64::ln).sum()
                        + believed
                        + log_belief(amplitude, amplitudes.belief)
                        + log_belief(noise, NOISE_BELIEF);
                    let cell = Cell { weight: 0.0, stiffness, amplitude, noise, factor, pull };
                    cells.push((evidence, cell));
                }
            }
        }
        let most = cells.iter().map(|(evidence, _)| *evidence).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = cells.iter().map(|(evidence, _)| (evidence - most).exp()).sum();
        let mut cells: Vec<Cell> = cells
            .into_iter()
            .map(|(evidence, cell)| Cell { weight: (evidence - most).exp() / total, ..cell })
            .filter(|cell| cell.weight >= LEAST_WEIGHT)
            .collect();
        cells.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        cells.truncate(MOST_CELLS);
        let kept: f64 = cells.iter().map(|cell| cell.weight).sum();
        for cell in &mut cells {
            cell.weight /= kept;
        }
        Self { known, cells }
    }

    /// Mean and variance of a reading there, noise included.
    pub(crate) fn predict(&self, at: &Coordinates) -> (f64, f64) {
        let distances: Vec<Coordinates> = self.known.iter().map(|k| squares(k, at)).collect();
        let (mut mean, mut second) = (0.0, 0.0);
        for cell in &self.cells {
            let near = cell.covariances(&distances);
            let here = near.dot(&cell.pull);
            let explained = near.dot(&cell.factor.solve(&near));
            let variance = (cell.amplitude * cell.amplitude - explained).max(0.0);
            mean += cell.weight * here;
            second += cell.weight * (here * here + variance + cell.noise * cell.noise);
        }
        (mean, (second - mean * mean).max(1e-8))
    }
}

impl Cell {
    fn covariances(&self, distances: &[Coordinates]) -> DVector<f64> {
        let square = self.amplitude * self.amplitude;
        let near = distances.iter().map(|d| square * kernel(d, &self.stiffness));
        DVector::from_iterator(distances.len(), near)
    }
}

/// All combinations of length scales; an axis along which nothing varies has one.
fn combinations(varies: &[bool; AXES]) -> Vec<Coordinates> {
    let mut all = vec![[1.0; AXES]];
    for axis in 0..AXES {
        if varies[axis] {
            all = all
                .iter()
                .flat_map(|lengths| {
                    LENGTHS[axis].iter().map(move |length| {
                        let mut next = *lengths;
                        next[axis] = *length;
                        next
                    })
                })
                .collect();
        }
    }
    all
}
