//! One workload on one kind of GPU: its measurements, the formula fitted to them alone, and the
//! model that also borrows.

use crate::belief::{Belief, log_links};
use crate::borrow::{Evidence, evidence};
use crate::features::{Coordinates, Scale, squares};
use crate::model::{Ladder, Model};
use crate::reading::{Point, Weighed};
use crate::step::{self, Fit};
use crate::store::{Drift, Store};
use wattline_core::cluster::GpuType;
use wattline_core::units::Watts;

/// Configurations that are fitted one by one; further ones are counted with the nearest of these.
const MOST_FITTED: usize = 16;
/// How near a configuration must be to count with another, in the unit cube.
const NEAR: f64 = 0.25;
/// The most that a configuration counts for after others were counted with it.
const MOST_WEIGHT: f64 = 8.0;
/// The least span of batches per GPU and of GPUs that distances are measured against.
const SPAN_OF_BATCHES: f64 = 16.0;
const SPAN_OF_GPUS: u32 = 8;

/// What follows from a group's measurements alone.
#[derive(Clone, Debug)]
struct Own {
    /// All that models see; the rest follows from it.
    readings: Vec<Weighed>,
    fit: Fit,
    evidence: Evidence,
    /// The mean logarithm of samples per GPU.
    local: f64,
    /// What is fitted, the rest counted with it.
    fitted: Vec<Weighed>,
    space: Vec<Point>,
}

/// See the module's description.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    pub(crate) store: Store,
    own: Option<Own>,
    /// Which formula this is, for those who keep what follows from it.
    pub(crate) formula: u64,
    /// Which look at the age of its readings was the last.
    pub(crate) look: i64,
    /// How many runs stand behind it.
    pub(crate) runs: u32,
    pub(crate) drift: Option<Drift>,
    /// How runs of the same configurations scatter: a sum of squares and its degrees of freedom.
    pub(crate) scatter: (f64, f64),
}

impl Group {
    /// Brings what follows from the measurements up to date; says whether anything changed.
    pub(crate) fn refresh(&mut self, card: &GpuType, look: i64) -> bool {
        self.look = look;
        self.drift = self.store.look(look);
        self.scatter = self.store.scatter();
        self.runs = self.store.runs() as u32;
        let readings = self.store.readings();
        if readings.is_empty() || self.own.as_ref().is_some_and(|own| own.readings == readings) {
            return false;
        }
        self.own = Some(Own::new(readings, card));
        true
    }

    /// What the measurements say of the formula's unknowns.
    pub(crate) fn evidence(&self) -> Option<&Evidence> {
        self.own.as_ref().map(|own| &own.evidence)
    }

    /// The usual logarithm of samples per GPU.
    pub(crate) fn local(&self) -> Option<f64> {
        self.own.as_ref().map(|own| own.local)
    }

    /// The model under a belief that comes from elsewhere.
    pub(crate) fn model(&self, belief: &Belief, card: &GpuType) -> Model {
        let ladder = Ladder::of_card(card);
        let Some(own) = &self.own else {
            return Model::corrected(step::believed(belief), &[], &[], ladder);
        };
        let mut scale = Belief::of_readings(&own.fitted);
        if log_links(card).is_some() {
            scale = scale.but_for_sync();
        }
        let both = scale.and(belief);
        let fit = step::fit(&own.fitted, &both, &[own.fit.unknowns]);
        Model::corrected(fit, &own.fitted, &own.space, ladder)
    }
}

impl Own {
    fn new(readings: Vec<Weighed>, card: &GpuType) -> Self {
        let space = space(&readings, card);
        let scale = Scale::new(space.iter().chain(readings.iter().map(|r| &r.reading.point)));
        let at: Vec<Coordinates> = readings.iter().map(|r| scale.apply(&r.reading.point)).collect();
        let chosen = spread_out(&readings, &at);
        let mut fitted: Vec<Weighed> = chosen.iter().map(|k| readings[*k]).collect();
        let belief = Belief::of_readings(&fitted);
        let fit = step::fit(&fitted, &belief, &step::starts(&belief)[..2]);
        let told = evidence(&belief, &fit.unknowns, &fit.covariance.diagonal());
        if readings.len() > chosen.len() {
            count_in(&mut fitted, &chosen, &readings, &at, &fit);
        }
        let local = |r: &Weighed| (r.reading.point.batch / f64::from(r.reading.point.gpus)).ln();
        let local = fitted.iter().map(local).sum::<f64>() / fitted.len() as f64;
        Self { readings, fit, evidence: told, local, fitted, space }
    }
}

/// Two corners of what may be asked about.
fn space(readings: &[Weighed], card: &GpuType) -> Vec<Point> {
    let points = || readings.iter().map(|r| r.reading.point);
    let local = |p: Point| p.batch / f64::from(p.gpus);
    let (low, high) = points()
        .map(local)
        .fold((f64::INFINITY, 0.0_f64), |(low, high), local| (low.min(local), high.max(local)));
    let missing = (SPAN_OF_BATCHES / (high / low)).max(1.0).sqrt();
    let gpus = points().map(|p| p.gpus).fold(SPAN_OF_GPUS, u32::max);
    let nodes = points().map(|p| p.nodes).fold(2, u32::max);
    let corner = |gpus: u32, nodes: u32, local: f64, limit: Watts| Point {
        gpus,
        nodes,
        batch: local * f64::from(gpus),
        limit: limit.max(Watts::new(1.0)),
    };
    vec![
        corner(1, 1, low / missing, card.min_limit),
        corner(gpus, nodes, high * missing, card.max_limit),
    ]
}

/// Up to [`MOST_FITTED`] readings that lie far from each other, those that count most first.
fn spread_out(readings: &[Weighed], at: &[Coordinates]) -> Vec<usize> {
    if readings.len() <= MOST_FITTED {
        return (0..readings.len()).collect();
    }
    let mut far = vec![f64::INFINITY; readings.len()];
    let mut chosen = Vec::with_capacity(MOST_FITTED);
    let mut next = 0;
    for k in 1..readings.len() {
        if readings[k].weight > readings[next].weight {
            next = k;
        }
    }
    while chosen.len() < MOST_FITTED {
        chosen.push(next);
        let mut most = 0.0;
        let newest = at[next];
        for k in 0..readings.len() {
            far[k] = far[k].min(squares(&at[k], &newest).iter().sum());
            let gain = far[k] * readings[k].weight.min(1.0);
            if gain > most {
                most = gain;
                next = k;
            }
        }
        if most <= 0.0 {
            break;
        }
    }
    chosen.sort_unstable();
    chosen
}

/// Counts the readings that are not fitted with the nearest that is: what the formula leaves over
/// of both is averaged.
fn count_in(
    fitted: &mut [Weighed],
    chosen: &[usize],
    readings: &[Weighed],
    at: &[Coordinates],
    fit: &Fit,
) {
    let left = |weighed: &Weighed| {
        let formula = step::predict(&fit.unknowns, &weighed.reading.point);
        let time = weighed.reading.per_sample.get().ln() - formula[0];
        (time, weighed.reading.power.map(|power| power.get().ln() - formula[1]))
    };
    // Sums of weights and of what is left over, of time and of power.
    let mut sums: Vec<[f64; 4]> = fitted
        .iter()
        .map(|weighed| {
            let (time, power) = left(weighed);
            let metered = if power.is_some() { weighed.weight } else { 0.0 };
            [weighed.weight, weighed.weight * time, metered, metered * power.unwrap_or(0.0)]
        })
        .collect();
    let mut is_chosen = vec![false; readings.len()];
    for k in chosen {
        is_chosen[*k] = true;
    }
    for (k, weighed) in readings.iter().enumerate().filter(|(k, _)| !is_chosen[*k]) {
        let distances = chosen.iter().map(|c| squares(&at[k], &at[*c]).iter().sum::<f64>());
        let nearest = distances.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((nearest, distance)) = nearest else { continue };
        let weight = weighed.weight * (-0.5 * distance / (NEAR * NEAR)).exp();
        let (time, power) = left(weighed);
        let sum = &mut sums[nearest];
        sum[0] += weight;
        sum[1] += weight * time;
        if let Some(power) = power {
            sum[2] += weight;
            sum[3] += weight * power;
        }
    }
    for (weighed, [weight, time, metered, power]) in fitted.iter_mut().zip(sums) {
        let formula = step::predict(&fit.unknowns, &weighed.reading.point);
        weighed.reading.per_sample =
            wattline_core::units::Seconds::new((formula[0] + time / weight).exp());
        if weighed.reading.power.is_some() {
            weighed.reading.power = Some(Watts::new((formula[1] + power / metered).exp()));
        }
        weighed.weight = weight.min(MOST_WEIGHT.max(weighed.weight));
    }
}
