//! What is believed of a workload's step before its readings are looked at: a centre and a width
//! for each unknown.

use crate::reading::{Reading, Weighed};
use crate::step::{UNKNOWNS, Unknowns, at};
use wattline_core::cluster::GpuType;

/// Independent normal beliefs about the unknowns.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Belief {
    pub(crate) centre: Unknowns,
    pub(crate) width: Unknowns,
}

/// Widths of what is believed around the scale of a workload's own readings: wide where sites
/// differ, narrow where physics does not.
const AROUND_READINGS: [f64; UNKNOWNS] =
    [1.0, 0.7, 0.7, 0.8, 0.5, 0.7, 0.6, 1.5, 1.5, 1.5, 1.5, 0.7, 1.5, 1.0, 0.7, 0.03];
/// How far below a single batch's time per sample the true one is believed to lie, and how surely
/// (in logarithms).
const SINGLE_BATCH: (f64, f64) = (-1.5, 1.5);

/// Before anything was measured: a launch takes some 20 ms. A sample may take anything from
/// nanoseconds to seconds, but people choose batches that take a GPU of 300 TFLOP/s some 120 ms.
const HOST: (f64, f64) = (-3.9, 1.2);
const STEP: (f64, f64) = (-2.1, 1.3);
const USUAL_TFLOPS: f64 = 300.0;
/// Ten times the speed of a data sheet are six times the speed of training.
const SPEED_POWER: f64 = 0.8;
/// Gradients of some 300 MB go there and back, give or take a factor of e^1.2: what data sheets say
/// of links tells how long that takes. Each GPU beyond two makes it so much longer, inside a node
/// and between nodes. The published fits for T4 (bert, cifar10, deepspeech2, imagenet) lie within
/// that.
const GRADIENTS_GB: f64 = 0.6;
const GRADIENTS_WIDTH: f64 = 1.2;
const PER_GPU: (f64, f64) = (0.04, 0.02);
/// A width that says nothing.
const OPEN: f64 = 1e3;
/// How sure one is that a workload draws what its card is said to.
const CARD_POWER: f64 = 0.35;

/// The logarithm of a card's speed in training against a usual one's, as its data sheet says.
pub(crate) fn log_speed(card: &GpuType) -> f64 {
    let tflops = card.tflops.filter(|tflops| tflops.is_finite() && *tflops > 0.0);
    SPEED_POWER * (tflops.unwrap_or(USUAL_TFLOPS) / USUAL_TFLOPS).ln()
}

/// The logarithms of what a card's links carry, inside a node and between nodes, in GB/s, if its
/// data sheet says.
pub(crate) fn log_links(card: &GpuType) -> Option<[f64; 2]> {
    let links = card.links?;
    let logs = [links.node.ln(), links.net.ln()];
    logs.iter().all(|log| log.is_finite()).then_some(logs)
}

/// The unknowns of synchronisation.
const SYNC: [usize; 4] = [at::NODE_BASE, at::NODE_PER_GPU, at::NET_BASE, at::NET_PER_GPU];

impl Belief {
    /// Of a workload that was never measured, on a card; `local` is the logarithm of the samples
    /// per GPU that it is trained with.
    pub(crate) fn of_card(card: &GpuType, local: f64) -> Self {
        let (idle, busy) = (card.idle.get().max(1.0), card.busy.get().max(2.0));
        // A card with a job on it draws more than an idle one even between kernels.
        let low = (1.6 * idle).min(0.5 * busy);
        let mut belief =
            Self::at_scale(HOST.0.exp(), (STEP.0 - local - log_speed(card)).exp(), low, busy);
        belief.width[at::HOST] = HOST.1;
        belief.width[at::PER_SAMPLE] = STEP.1;
        belief.width[at::IDLE_POWER] = CARD_POWER;
        belief.width[at::BUSY_POWER] = CARD_POWER;
        for sync in SYNC {
            belief.width[sync] = 2.0;
        }
        if let Some([node, net]) = log_links(card) {
            let base = [GRADIENTS_GB.ln() - node, GRADIENTS_GB.ln() - net];
            let more = [base[0] + PER_GPU.0.ln(), base[1] + PER_GPU.1.ln()];
            for (sync, centre) in SYNC.into_iter().zip([base[0], more[0], base[1], more[1]]) {
                belief.centre[sync] = centre;
                belief.width[sync] = GRADIENTS_WIDTH;
            }
        }
        belief
    }

    /// Without what it says of synchronisation: somebody else knows better.
    pub(crate) fn but_for_sync(mut self) -> Self {
        for sync in SYNC {
            self.width[sync] = OPEN;
        }
        self
    }

    /// From the scale of a workload's own readings, of which there is at least one.
    pub(crate) fn of_readings(readings: &[Weighed]) -> Self {
        let all = || readings.iter().map(|weighed| &weighed.reading);
        let step = |r: &Reading| r.per_sample.get() * r.point.batch;
        let least = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::INFINITY, f64::min);
        let shortest = least(&mut all().map(step));
        let per_gpu = |r: &Reading| step(r) * f64::from(r.point.gpus) / r.point.batch;
        let per_sample = least(&mut all().map(per_gpu));
        let powers = || all().filter_map(|r| r.power.map(|p| p.get()));
        let (low, high) = match powers().count() {
            0 => (100.0, 200.0),
            _ => (0.8 * least(&mut powers()), powers().fold(0.0, f64::max)),
        };
        let mut belief = Self::at_scale(0.7 * shortest, 0.9 * per_sample, low, high);
        // At a single batch per GPU nobody can tell launches from work: the time per sample may be
        // anything up to what was measured.
        let local = |r: &Reading| r.point.batch / f64::from(r.point.gpus);
        let mut locals = all().map(local);
        let first = locals.next();
        if locals.all(|other| Some(other) == first) {
            belief.centre[at::PER_SAMPLE] += SINGLE_BATCH.0;
            belief.width[at::PER_SAMPLE] = SINGLE_BATCH.1;
        }
        belief
    }

    /// A launch, a sample on one GPU, the lowest and the highest power.
    fn at_scale(launch: f64, per_sample: f64, low: f64, high: f64) -> Self {
        let shortest = launch / 0.7;
        let centre = [
            launch.ln(),
            per_sample.ln(),
            2.0_f64.ln(),
            0.4,
            low.ln(),
            (high - low).max(10.0).ln(),
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
        Self { centre: Unknowns::from(centre), width: Unknowns::from(AROUND_READINGS) }
    }

    /// Both beliefs together.
    pub(crate) fn and(&self, other: &Self) -> Self {
        let sure = |width: f64| 1.0 / (width * width);
        let mut both = self.clone();
        for k in 0..UNKNOWNS {
            let (mine, theirs) = (sure(self.width[k]), sure(other.width[k]));
            both.centre[k] = (self.centre[k] * mine + other.centre[k] * theirs) / (mine + theirs);
            both.width[k] = (mine + theirs).sqrt().recip();
        }
        both
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattline_core::cluster::Links;
    use wattline_core::units::Watts;

    #[test]
    fn published_fits_lie_within_what_links_say() {
        let card = GpuType {
            name: "t4".into(),
            idle: Watts::new(10.0),
            busy: Watts::new(68.0),
            min_limit: Watts::new(60.0),
            default_limit: Watts::new(70.0),
            max_limit: Watts::new(70.0),
            limit_step: Watts::new(5.0),
            tflops: None,
            links: Some(Links { node: 6.0, net: 2.0 }),
        };
        let belief = Belief::of_card(&card, 3.0);
        // Bases inside a node and between nodes, and what each GPU beyond two adds: bert, cifar10,
        // deepspeech2, imagenet on T4, fitted to the Pollux artifact.
        let fits: [[f64; 4]; 4] = [
            [0.264, 0.0131, 1.40, 0.0086],
            [0.0328, 0.0022, 0.128, 0.0027],
            [0.101, 0.0045, 0.488, 0.0099],
            [0.0742, 0.0011, 0.328, 0.0062],
        ];
        for (at, sync) in SYNC.into_iter().enumerate() {
            let off = |fit: &[f64; 4]| (fit[at].ln() - belief.centre[sync]) / belief.width[sync];
            let mean = fits.iter().map(off).sum::<f64>() / 4.0;
            assert!(mean.abs() < 0.5, "unknown {sync}: {mean}");
            assert!(fits.iter().all(|fit| off(fit).abs() < 1.5), "unknown {sync}");
        }
    }
}
