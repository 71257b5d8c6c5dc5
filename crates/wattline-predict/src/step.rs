//! The parametric part: the physics of a training step with sixteen unknowns.
//!
//! The host launches a step in some time however small the batch; the GPU is busy for a fixed time
//! and a time per sample; the two overlap in part. A power limit caps busy power softly and lowers
//! the clock, which slows the part of the work that the clock drives. Synchronisation over one node
//! or several overlaps with that. Everything is fitted in logarithms under priors that are wide
//! where sites differ and narrow where physics does not.

use crate::belief::Belief;
use crate::reading::{Point, Weighed};
use levenberg_marquardt::{LeastSquaresProblem, LevenbergMarquardt};
use nalgebra::storage::Owned;
use nalgebra::{Const, DVector, Dyn, OMatrix, OVector, SMatrix, SVector};
use num_dual::{DualNum, DualSVec64};

/// How many unknowns.
pub(crate) const UNKNOWNS: usize = 16;
/// The unknowns, each a logarithm or a logit, so that none can leave its range.
pub(crate) type Unknowns = SVector<f64, UNKNOWNS>;
/// Their covariance.
pub(crate) type Covariance = SMatrix<f64, UNKNOWNS, UNKNOWNS>;

/// What the parametric form gets wrong of a step, and how much single runs scatter, in log time and
/// log power. What lies beyond counts linearly, so that one outlier has bounded influence.
const FORM: f64 = 0.03;
const SCATTER: f64 = 0.0265;
/// Smooth floor of the relative dynamic power, which keeps the clock above zero.
const CLOCK_FLOOR: f64 = 0.004;
/// Starts of the fit: offsets of the overlap's sharpness from its prior.
const STARTS: [f64; 3] = [-1.5, 0.0, 1.0];
/// The fit is as good as it needs to be when a step changes less than this.
const TOLERANCE: f64 = 1e-3;

/// Names of the unknowns' places.
pub(crate) mod at {
    pub(crate) const HOST: usize = 0;
    pub(crate) const PER_SAMPLE: usize = 1;
    pub(crate) const HOST_OVERLAP: usize = 2;
    pub(crate) const UNCLOCKED: usize = 3;
    pub(crate) const IDLE_POWER: usize = 4;
    pub(crate) const BUSY_POWER: usize = 5;
    pub(crate) const STATIC_SHARE: usize = 6;
    pub(crate) const NODE_BASE: usize = 7;
    pub(crate) const NODE_PER_GPU: usize = 8;
    pub(crate) const NET_BASE: usize = 9;
    pub(crate) const NET_PER_GPU: usize = 10;
    pub(crate) const SYNC_OVERLAP: usize = 11;
    pub(crate) const FIXED: usize = 12;
    pub(crate) const FIXED_OCCUPANCY: usize = 13;
    pub(crate) const CAP_SHARPNESS: usize = 14;
    pub(crate) const CAP_SHARE: usize = 15;
}

fn logistic<D: DualNum<f64> + Copy>(x: D) -> D {
    ((-x).exp() + 1.0).recip()
}

/// `(x^p + y^p)^(1/p)` without overflow: from the sum (p = 1) to the larger of the two. Both are
/// positive.
fn norm<D: DualNum<f64> + Copy>(x: D, y: D, p: D) -> D {
    let (small, large) = if x.re() < y.re() { (x, y) } else { (y, x) };
    large * ((small / large).powd(p) + 1.0).powd(p.recip())
}

/// Log time per sample and log power of a configuration: the same formula for values and for
/// derivatives.
fn logs<D: DualNum<f64> + Copy>(unknown: impl Fn(usize) -> D, point: &Point) -> [D; 2] {
    let e = |place: usize| {
        let x = unknown(place);
        if x.re().abs() > 40.0 { D::from(x.re().clamp(-40.0, 40.0)).exp() } else { x.exp() }
    };
    let gpus = f64::from(point.gpus);
    let local = point.batch / gpus;
    let more = (gpus - 2.0).max(0.0);
    let unclocked = logistic(unknown(at::UNCLOCKED));
    let fixed_share = logistic(unknown(at::STATIC_SHARE));
    let (idle, per_sample, fixed) = (e(at::IDLE_POWER), e(at::PER_SAMPLE), e(at::FIXED));

    let busy = fixed + per_sample * local;
    let occupied = per_sample * local + logistic(unknown(at::FIXED_OCCUPANCY)) * fixed;
    let wanted = idle + e(at::BUSY_POWER) * occupied / busy;
    let cap = e(at::CAP_SHARE) * point.limit.get();
    let given = norm(wanted.recip(), cap.recip(), e(at::CAP_SHARPNESS) + 1.0).recip();
    let dynamic = (given - fixed_share * wanted) / (wanted - fixed_share * wanted);
    let dynamic = (dynamic + (dynamic * dynamic + CLOCK_FLOOR).sqrt()) * 0.5;
    let busy = busy * (unclocked + (-unclocked + 1.0) / dynamic.sqrt());
    let with_host = norm(busy, e(at::HOST), e(at::HOST_OVERLAP) + 1.0);
    let time = if point.gpus <= 1 {
        with_host
    } else {
        let sync = if point.nodes <= 1 {
            e(at::NODE_BASE) + e(at::NODE_PER_GPU) * more
        } else {
            e(at::NET_BASE) + e(at::NET_PER_GPU) * more
        };
        norm(with_host, sync, e(at::SYNC_OVERLAP) + 1.0)
    };
    let share = busy / time;
    let share = if share.re() < 1.0 { share } else { D::from(1.0) };
    let power = idle + (given - idle) * share;
    let power = if power.re() > 1.0 { power } else { D::from(1.0) };
    [(time / point.batch).ln(), power.ln()]
}

/// Log time per sample and log power of a configuration.
pub(crate) fn predict(unknowns: &Unknowns, point: &Point) -> [f64; 2] {
    logs(|place| unknowns[place], point)
}

/// The same, each with its derivatives by the unknowns.
fn gradients(unknowns: &Unknowns, point: &Point) -> [(f64, Unknowns); 2] {
    let dual = |place: usize| DualSVec64::<UNKNOWNS>::from_re(unknowns[place]).derivative(place);
    let all: [DualSVec64<UNKNOWNS>; UNKNOWNS] = std::array::from_fn(dual);
    logs(|place| all[place], point)
        .map(|log| (log.re, log.eps.unwrap_generic(Const::<UNKNOWNS>, Const::<1>)))
}

/// The most probable unknowns and how sure one can be of them.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    pub(crate) unknowns: Unknowns,
    pub(crate) covariance: Covariance,
}

impl Fit {
    /// Logarithms of time and power, and the variances that the unknowns' uncertainty gives them.
    pub(crate) fn at(&self, point: &Point) -> [(f64, f64); 2] {
        gradients(&self.unknowns, point)
            .map(|(log, slope)| (log, (slope.transpose() * self.covariance * slope)[0].max(0.0)))
    }

    /// Of time and of power, the variance that the unknowns' uncertainty gives, and how much of a
    /// change of the host's pace shows in it.
    pub(crate) fn unsure(&self, point: &Point) -> [(f64, f64); 2] {
        gradients(&self.unknowns, point).map(|(_, slope)| {
            let variance = (slope.transpose() * self.covariance * slope)[0].max(0.0);
            (variance, slope[at::HOST])
        })
    }
}

/// Where to look first when nothing is known but a belief.
pub(crate) fn starts(belief: &Belief) -> [Unknowns; 3] {
    STARTS.map(|offset| {
        let mut start = belief.centre;
        start[at::HOST_OVERLAP] += offset;
        start
    })
}

/// Fits readings under a belief, from several starts; the best counts.
pub(crate) fn fit(readings: &[Weighed], belief: &Belief, starts: &[Unknowns]) -> Fit {
    let mut best: Option<(f64, Unknowns)> = None;
    for start in starts {
        let problem = Problem { readings, belief, unknowns: *start };
        let solver = LevenbergMarquardt::new()
            .with_ftol(TOLERANCE)
            .with_xtol(TOLERANCE)
            .with_gtol(TOLERANCE)
            .with_patience(4);
        let (problem, report) = solver.minimize(problem);
        let cost = report.objective_function;
        if cost.is_finite() && best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, problem.unknowns));
        }
    }
    // Where no start leads anywhere, the belief is what is known.
    let unknowns = best.map_or(belief.centre, |(_, unknowns)| unknowns);
    let problem = Problem { readings, belief, unknowns };
    let jacobian = problem.derivatives();
    let information = jacobian.transpose() * &jacobian;
    let covariance = information.try_inverse().unwrap_or_else(|| believed(belief).covariance);
    Fit { unknowns, covariance }
}

/// Without any reading a belief is all there is.
pub(crate) fn believed(belief: &Belief) -> Fit {
    let covariance = Covariance::from_diagonal(&belief.width.map(|w| w * w));
    Fit { unknowns: belief.centre, covariance }
}

/// What a single reading is off by, at least.
fn spread(reading: &Weighed) -> f64 {
    (FORM * FORM + SCATTER * SCATTER / reading.weight).sqrt()
}

struct Problem<'a> {
    readings: &'a [Weighed],
    belief: &'a Belief,
    unknowns: Unknowns,
}

impl Problem<'_> {
    fn rows(&self) -> usize {
        let powers = self.readings.iter().filter(|r| r.reading.power.is_some()).count();
        self.readings.len() + powers + UNKNOWNS
    }

    fn derivatives(&self) -> OMatrix<f64, Dyn, Const<UNKNOWNS>> {
        let mut matrix = OMatrix::<f64, Dyn, Const<UNKNOWNS>>::zeros(self.rows());
        let mut at = 0;
        let mut put = |log: &(f64, Unknowns), measured: f64, spread: f64| {
            let slope = robust_slope((log.0 - measured) / spread) / spread;
            for k in 0..UNKNOWNS {
                let value = log.1[k] * slope;
                matrix[(at, k)] = if value.is_finite() { value } else { 0.0 };
            }
            at += 1;
        };
        for weighed in self.readings {
            let reading = &weighed.reading;
            let [time, power] = gradients(&self.unknowns, &reading.point);
            put(&time, reading.per_sample.get().ln(), spread(weighed));
            if let Some(measured) = reading.power {
                put(&power, measured.get().ln(), spread(weighed));
            }
        }
        for k in 0..UNKNOWNS {
            matrix[(at + k, k)] = 1.0 / self.belief.width[k];
        }
        matrix
    }
}

/// Squares of these sum to a loss that is quadratic near zero and linear far out.
fn robust(residual: f64) -> f64 {
    let square = 2.0 * ((1.0 + residual * residual).sqrt() - 1.0);
    residual.signum() * square.sqrt()
}

/// The derivative of [`robust`].
fn robust_slope(residual: f64) -> f64 {
    let root = (1.0 + residual * residual).sqrt();
    // Near zero the loss is the square itself.
    if residual.abs() < 1e-6 { 1.0 } else { residual / (root * robust(residual)) }
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
        let mut all = Vec::with_capacity(self.rows());
        for weighed in self.readings {
            let (reading, spread) = (&weighed.reading, spread(weighed));
            let [time, power] = predict(&self.unknowns, &reading.point);
            all.push(robust((time - reading.per_sample.get().ln()) / spread));
            if let Some(measured) = reading.power {
                all.push(robust((power - measured.get().ln()) / spread));
            }
        }
        let Belief { centre, width } = self.belief;
        all.extend((0..UNKNOWNS).map(|k| (self.unknowns[k] - centre[k]) / width[k]));
        for residual in &mut all {
            if !residual.is_finite() {
                *residual = 1e3;
            }
        }
        Some(DVector::from_vec(all))
    }

    fn jacobian(&self) -> Option<OMatrix<f64, Dyn, Const<UNKNOWNS>>> {
        Some(self.derivatives())
    }
}
