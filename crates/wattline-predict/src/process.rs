//! Gaussian processes whose length scales, amplitude and noise are averaged over a small grid by
//! how well they explain the readings, instead of being fitted: with a dozen readings there is no
//! best value, there are several good ones.
//!
//! For given length scales one spectrum serves every amplitude, every noise and every quantity, so
//! a fit costs a few small eigenproblems and a prediction one projection for each of them.

use crate::features::{AXES, Coordinates, squares};
use nalgebra::{DMatrix, DVector, SymmetricEigen};

/// Length scales along the batch, the limit, the GPU count and the share of traffic between nodes.
const LENGTHS: [&[f64]; AXES] =
    [&[0.25, 0.5, 1.0, 2.0], &[0.25, 0.5, 1.0, 2.0], &[0.5, 1.5], &[0.25, 0.5, 1.0]];
/// The same where everything varies at once.
const FEWER_LENGTHS: [&[f64]; AXES] = [&[0.35, 1.0], &[0.5, 1.5], &[0.5, 1.5], &[0.25, 0.7]];
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

/// Covariances under given length scales, made diagonal.
#[derive(Clone, Debug)]
struct Spectrum {
    /// One over the squared length scales.
    stiffness: Coordinates,
    believed: f64,
    /// Eigenvectors in columns, of readings in units of their own noise.
    vectors: DMatrix<f64>,
    values: DVector<f64>,
}

/// Where something was measured, and its covariances under all thinkable length scales.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    known: Vec<Coordinates>,
    /// Roots of the readings' weights.
    roots: DVector<f64>,
    spectra: Vec<Spectrum>,
}

fn kernel(distances: &Coordinates, stiffness: &Coordinates) -> f64 {
    let sum: f64 = (0..AXES).map(|axis| distances[axis] * stiffness[axis]).sum();
    (-0.5 * sum).exp()
}

impl Places {
    /// At least one; each with the weight of what was measured there.
    pub(crate) fn new(known: Vec<Coordinates>, weights: &[f64]) -> Self {
        let count = known.len();
        let roots = DVector::from_iterator(count, weights.iter().map(|w| w.sqrt()));
        let varies: [bool; AXES] =
            std::array::from_fn(|axis| known.iter().any(|k| k[axis] != known[0][axis]));
        let spectra = combinations(&varies)
            .into_iter()
            .map(|lengths| {
                let stiffness = lengths.map(|length| 1.0 / (length * length));
                let covariances = DMatrix::from_fn(count, count, |r, c| {
                    kernel(&squares(&known[r], &known[c]), &stiffness) * roots[r] * roots[c]
                });
                let eigen = SymmetricEigen::new(covariances);
                let believed = (0..AXES)
                    .filter(|axis| varies[*axis])
                    .map(|axis| log_belief(lengths[axis], LENGTH_BELIEF))
                    .sum();
                // Rounding leaves tiny negative ones.
                let values = eigen.eigenvalues.map(|value| value.max(0.0));
                Spectrum { stiffness, believed, vectors: eigen.eigenvectors, values }
            })
            .collect();
        Self { known, roots, spectra }
    }

    /// Which axes the readings differ along.
    pub(crate) fn varies(&self) -> [bool; AXES] {
        std::array::from_fn(|axis| self.known.iter().any(|k| k[axis] != self.known[0][axis]))
    }

    /// Forgets the spectra that none of these processes uses.
    pub(crate) fn keep_used(&mut self, processes: &mut [&mut Process]) {
        let used = |at: usize| {
            processes.iter().any(|process| process.cells.iter().any(|cell| cell.spectrum == at))
        };
        let kept: Vec<usize> = (0..self.spectra.len()).filter(|at| used(*at)).collect();
        for cell in processes.iter_mut().flat_map(|process| &mut process.cells) {
            cell.spectrum = kept.binary_search(&cell.spectrum).unwrap_or_default();
        }
        let mut all: Vec<Option<Spectrum>> =
            std::mem::take(&mut self.spectra).into_iter().map(Some).collect();
        self.spectra = kept.into_iter().filter_map(|at| all[at].take()).collect();
    }

    /// How a configuration relates to what was measured, under each length scale.
    pub(crate) fn project(&self, at: &Coordinates) -> Vec<DVector<f64>> {
        let distances: Vec<Coordinates> = self.known.iter().map(|k| squares(k, at)).collect();
        self.spectra
            .iter()
            .map(|spectrum| {
                let near = DVector::from_fn(distances.len(), |k, _| {
                    kernel(&distances[k], &spectrum.stiffness) * self.roots[k]
                });
                spectrum.vectors.tr_mul(&near)
            })
            .collect()
    }
}

/// One combination of length scales, amplitude and noise.
#[derive(Clone, Debug)]
struct Cell {
    weight: f64,
    spectrum: usize,
    /// Squares of the amplitude and the noise.
    amplitude: f64,
    noise: f64,
    /// Inverse covariances in the spectrum's own coordinates, and these times the readings.
    shrink: DVector<f64>,
    pull: DVector<f64>,
}

/// A fitted process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    cells: Vec<Cell>,
}

impl Process {
    pub(crate) fn new(places: &Places, values: &DVector<f64>, amplitudes: &Amplitudes) -> Self {
        let values = values.component_mul(&places.roots);
        let mut cells: Vec<(f64, Cell)> = Vec::new();
        for (at, spectrum) in places.spectra.iter().enumerate() {
            let turned = spectrum.vectors.tr_mul(&values);
            for amplitude in amplitudes.values {
                for noise in NOISES {
                    let (a, n) = (amplitude * amplitude, noise * noise);
                    let shrink = spectrum.values.map(|value| 1.0 / (a * value + n));
                    let pull = turned.component_mul(&shrink);
                    let evidence = -0.5 * turned.dot(&pull)
                        + 0.5 * shrink.iter().map(|s| s.ln()).sum::<f64>()
                        + spectrum.believed
                        + log_belief(*amplitude, amplitudes.belief)
                        + log_belief(noise, NOISE_BELIEF);
                    let cell =
                        Cell { weight: 0.0, spectrum: at, amplitude: a, noise: n, shrink, pull };
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
        Self { cells }
    }

    /// Mean and variance of a fresh reading at a place, noise included.
    pub(crate) fn predict(&self, projected: &[DVector<f64>]) -> (f64, f64) {
        let (mut mean, mut second) = (0.0, 0.0);
        for cell in &self.cells {
            let near = &projected[cell.spectrum];
            let here = cell.amplitude * near.dot(&cell.pull);
            let explained: f64 = near
                .iter()
                .zip(cell.shrink.iter())
                .map(|(near, shrink)| near * near * shrink)
                .sum();
            let variance = (cell.amplitude - cell.amplitude * cell.amplitude * explained).max(0.0);
            mean += cell.weight * here;
            second += cell.weight * (here * here + variance + cell.noise);
        }
        (mean, (second - mean * mean).max(1e-8))
    }

    /// Mean and variance of each reading, expected from all the others.
    pub(crate) fn without_each(&self, places: &Places, values: &DVector<f64>) -> Vec<(f64, f64)> {
        let count = values.len();
        let (mut mean, mut second) = (vec![0.0; count], vec![0.0; count]);
        for cell in &self.cells {
            let vectors = &places.spectra[cell.spectrum].vectors;
            let pulls = vectors * &cell.pull;
            for k in 0..count {
                let sure: f64 =
                    (0..count).map(|j| vectors[(k, j)] * vectors[(k, j)] * cell.shrink[j]).sum();
                let here = values[k] - pulls[k] / sure / places.roots[k];
                let weight = places.roots[k] * places.roots[k];
                mean[k] += cell.weight * here;
                second[k] += cell.weight * (here * here + 1.0 / sure / weight);
            }
        }
        mean.into_iter().zip(second).map(|(mean, second)| (mean, second - mean * mean)).collect()
    }
}

/// All combinations of length scales; an axis along which nothing varies has one.
fn combinations(varies: &[bool; AXES]) -> Vec<Coordinates> {
    let lengths = if varies.iter().all(|varies| *varies) { &FEWER_LENGTHS } else { &LENGTHS };
    let mut all = vec![[1.0; AXES]];
    for axis in 0..AXES {
        if varies[axis] {
            all = all
                .iter()
                .flat_map(|combination| {
                    lengths[axis].iter().map(move |length| {
                        let mut next = *combination;
                        next[axis] = *length;
                        next
                    })
                })
                .collect();
        }
    }
    all
}
