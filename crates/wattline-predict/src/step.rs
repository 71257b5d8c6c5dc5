//! The parametric part: the physics of a training step with sixteen unknowns.
//!
//! The host launches a step in some time however small the batch; the GPU is busy for a fixed time
//! and a time per sample; the two overlap in part. A power limit caps busy power softly and lowers
//! the clock, which slows the part of the work that the clock drives. Synchronisation over one node
//! or several overlaps with that. Everything is fitted in logarithms under priors that are wide
//! where sites differ and narrow where physics does not.

use crate::reading::{Point, Reading};
use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::storage::Owned;
use nalgebra::{Const, DMatrix, DVector, Dyn, OMatrix, OVector, SMatrix, SVector};

/// How many unknowns.
pub(crate) const UNKNOWNS: usize = 16;
/// The unknowns, each a logarithm or a logit, so that none can leave its range.
pub(crate) type Unknowns = SVector<f64, UNKNOWNS>;
/// Their covariance.
pub(crate) type Covariance = SMatrix<f64, UNKNOWNS, UNKNOWNS>;

/// Scale of the fit's residuals in log time and log power; what lies beyond counts linearly, so
/// that one outlier has bounded influence.
const SPREAD: f64 = 0.04;
/// Smooth floor of the relative dynamic power, which keeps the clock above zero.
const CLOCK_FLOOR: f64 = 0.004;
/// Starts of the fit: offsets of the overlap's sharpness from its prior.
const STARTS: [f64; 3] = [-1.5, 0.0, 1.0];
/// How far below a single batch's time per sample the true one is believed to lie, and how surely
/// (in logarithms).
const SINGLE_BATCH: (f64, f64) = (-1.5, 1.5);
/// Step of the central differences.
const STEP: f64 = 1e-5;

/// Names of the unknowns' places.
mod at {
    pub(super) const HOST: usize = 0;
    pub(super) const PER_SAMPLE: usize = 1;
    pub(super) const HOST_OVERLAP: usize = 2;
    pub(super) const UNCLOCKED: usize = 3;
    pub(super) const IDLE_POWER: usize = 4;
    pub(super) const BUSY_POWER: usize = 5;
    pub(super) const STATIC_SHARE: usize = 6;
    pub(super) const NODE_BASE: usize = 7;
    pub(super) const NODE_PER_GPU: usize = 8;
    pub(super) const NET_BASE: usize = 9;
    pub(super) const NET_PER_GPU: usize = 10;
    pub(super) const SYNC_OVERLAP: usize = 11;
    pub(super) const FIXED: usize = 12;
    pub(super) const FIXED_OCCUPANCY: usize = 13;
    pub(super) const CAP_SHARPNESS: usize = 14;
    pub(super) const CAP_SHARE: usize = 15;
}

fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `(x^p + y^p)^(1/p)` without overflow: from the sum (p = 1) to the larger of the two.
fn norm(x: f64, y: f64, p: f64) -> f64 {
    let (small, large) = (x.min(y), x.max(y));
    if large <= 0.0 {
        return 0.0;
    }
    large * (1.0 + (small / large).powf(p)).powf(1.0 / p)
}

/// Log time per sample and log power of a configuration.
pub(crate) fn predict(unknowns: &Unknowns, point: &Point) -> [f64; 2] {
    let e = |place: usize| unknowns[place].clamp(-40.0, 40.0).exp();
    let gpus = f64::from(point.gpus);
    let local = point.batch / gpus;
    let more = (gpus - 2.0).max(0.0);
    let sync = if point.gpus <= 1 {
        0.0
    } else if point.nodes <= 1 {
        e(at::NODE_BASE) + e(at::NODE_PER_GPU) * more
    } else {
        e(at::NET_BASE) + e(at::NET_PER_GPU) * more
    };
    let unclocked = logistic(unknowns[at::UNCLOCKED]);
    let fixed_share = logistic(unknowns[at::STATIC_SHARE]);
    let (idle, per_sample, fixed) = (e(at::IDLE_POWER), e(at::PER_SAMPLE), e(at::FIXED));

    let busy = fixed + per_sample * local;
    let occupied = per_sample * local + logistic(unknowns[at::FIXED_OCCUPANCY]) * fixed;
    let wanted = idle + e(at::BUSY_POWER) * occupied / busy;
    let cap = e(at::CAP_SHARE) * point.limit.get();
    let given = 1.0 / norm(1.0 / wanted, 1.0 / cap, 1.0 + e(at::CAP_SHARPNESS));
    let dynamic = (given - fixed_share * wanted) / (wanted - fixed_share * wanted);
    let dynamic = 0.5 * (dynamic + (dynamic * dynamic + CLOCK_FLOOR).sqrt());
    let busy = busy * (unclocked + (1.0 - unclocked) / dynamic.sqrt());
    let with_host = norm(busy, e(at::HOST), 1.0 + e(at::HOST_OVERLAP));
    let time = norm(with_host, sync, 1.0 + e(at::SYNC_OVERLAP));
    let power = idle + (given - idle) * (busy / time).min(1.0);
    [(time / point.batch).ln(), power.max(1.0).ln()]
}

/// Derivatives of one of the two by the unknowns.
pub(crate) fn gradient(unknowns: &Unknowns, point: &Point, quantity: usize) -> Unknowns {
    Unknowns::from_fn(|place, _| {
        let moved = |by: f64| {
            let mut other = *unknowns;
            other[place] += by;
            predict(&other, point)[quantity]
        };
        (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
    })
}

/// What is believed before the fit: centres from the scale of the readings, widths from physics.
fn priors(readings: &[Reading]) -> (Unknowns, Unknowns) {
    let step = |r: &Reading| r.per_sample.get() * r.point.batch;
    let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
    let shortest = least(&mut readings.iter().map(step));
    let per_sample =
        least(&mut readings.iter().map(|r| step(r) * f64::from(r.point.gpus) / r.point.batch));
    let powers = || readings.iter().filter_map(|r| r.power.map(|p| p.get()));
    let (low, high) = match powers().count() {
        0 => (100.0, 200.0),
        _ => (least(&mut powers()), powers().fold(0.0, f64::max)),
    };
    let mut centre = [
        (0.7 * shortest).ln(),
        (0.9 * per_sample).ln(),
        2.0_f64.ln(),
        0.4,
        (0.8 * low).ln(),
        (high - 0.8 * low).max(10.0).ln(),
        -0.4,
        (0.5 * shortest).ln(),
        (0.02 * shortest).ln(),
        (2.0 * shortest).ln(),
        (0.05 * shortest).ln(),
        0.0,
        (0.1 * shortest).ln(),
        0.0,
        10.0_f64.ln(),
        0.0,
    ];
    let mut width =
        [1.0, 0.7, 0.7, 0.8, 0.5, 0.7, 0.6, 1.5, 1.5, 1.5, 1.5, 0.7, 1.5, 1.0, 0.7, 0.03];
    // At a single batch per GPU nobody can tell launches from work: the time per sample may be
    // anything up to what was measured.
    let local = |r: &Reading| r.point.batch / f64::from(r.point.gpus);
    if readings.iter().all(|r| local(r) == local(&readings[0])) {
        centre[at::PER_SAMPLE] += SINGLE_BATCH.0;
        width[at::PER_SAMPLE] = SINGLE_BATCH.1;
    }
    (Unknowns::from(centre), Unknowns::from(width))
}

/// The most probable unknowns and how sure one can be of them.
pub(crate) fn fit(readings: &[Reading]) -> (Unknowns, Covariance) {
    let (centre, width) = priors(readings);
    let mut best: Option<(f64, Unknowns)> = None;
    for offset in STARTS {
        let mut start = centre;
        start[at::HOST_OVERLAP] += offset;
        let problem = Problem { readings, centre, width, unknowns: start };
        let (problem, report) = LevenbergMarquardt::new().with_patience(8).minimize(problem);
        let cost = report.objective_function;
        if cost.is_finite() && best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, problem.unknowns));
        }
    }
    // Where no start leads anywhere, the prior is what is known.
    let unknowns = best.map_or(centre, |(_, unknowns)| unknowns);
    let problem = Problem { readings, centre, width, unknowns };
    let jacobian = problem.derivatives();
    let information = jacobian.transpose() * &jacobian;
    let information = Covariance::from_fn(|r, c| information[(r, c)]);
    let prior = Covariance::from_diagonal(&width.map(|w| w * w));
    (unknowns, information.try_inverse().unwrap_or(prior))
}

struct Problem<'a> {
    readings: &'a [Reading],
    centre: Unknowns,
    width: Unknowns,
    unknowns: Unknowns,
}

impl Problem<'_> {
    /// Squares of these sum to a loss that is quadratic near zero and linear far out.
    fn robust(residual: f64) -> f64 {
        let square = 2.0 * ((1.0 + residual * residual).sqrt() - 1.0);
        residual.signum() * square.sqrt()
    }

    fn residuals_of(&self, unknowns: &Unknowns) -> DVector<f64> {
        let mut all = Vec::with_capacity(2 * self.readings.len() + UNKNOWNS);
        for reading in self.readings {
            let [time, power] = predict(unknowns, &reading.point);
            all.push(Self::robust((time - reading.per_sample.get().ln()) / SPREAD));
            if let Some(measured) = reading.power {
                all.push(Self::robust((power - measured.get().ln()) / SPREAD));
            }
        }
        all.extend((0..UNKNOWNS).map(|k| (unknowns[k] - self.centre[k]) / self.width[k]));
        for residual in &mut all {
            if !residual.is_finite() {
                *residual = 1e3;
            }
        }
        DVector::from_vec(all)
    }

    fn derivatives(&self) -> DMatrix<f64> {
        let columns: Vec<DVector<f64>> = (0..UNKNOWNS)
            .map(|k| {
                let moved = |by: f64| {
                    let mut unknowns = self.unknowns;
                    unknowns[k] += by;
                    self.residuals_of(&unknowns)
                };
                (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
            })
            .collect();
        DMatrix::from_columns(&columns)
    }
}

impl LeastSquaresProblem<f64, Dyn, Const<UNKNOWNS>> for Problem<'_> {
    type ResidualStorage = Owned<f64, Dyn>;
    type JacobianStorage = Owned<f64, Dyn, Const<UNKNOWNS>>;
    type ParameterStorage = Owned<f64, Const<UNKNOWNS>>;

    fn set_params(&mut self, unknowns: &OVector<f64, Const<UNKNOWNS>>) {
        self.unknowns = *unknowns;
    }

    fn params(&self) -> OVector<f64, Const<UNKNOWNS>> {
        self.unknowns
    }

    fn residuals(&self) -> Option<OVector<f64, Dyn>> {
        Some(self.residuals_of(&self.unknowns))
    }

    fn jacobian(&self) -> Option<OMatrix<f64, Dyn, Const<UNKNOWNS>>> {
        let derivatives = self.derivatives();
        Some(OMatrix::<f64, Dyn, Const<UNKNOWNS>>::from_fn(derivatives.nrows(), |r, c| {
            derivatives[(r, c)]
        }))
    }
}
