//! Random small problems: whole-node power with packing effects and plain sums, tight and loose
//! deadlines, ways with diminishing returns. All jobs are there at time 0, so that a policy that
//! is only told what is there can in principle reach the optimum.

use super::{SmallDraw, SmallJob, SmallNode, SmallProblem, SmallWay};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A unit of time of generated problems.
const UNIT: f64 = 600.0;
/// EUR per joule drawn: 0.17168313 EUR/kWh and a PUE of 1.33, as the ANDREAS authors bill.
const EUROS_PER_JOULE: f64 = 1.33 * 0.171_683_13 / 3.6e6;

/// A GPU type.
struct Kind {
    /// How fast against the first.
    speed: f64,
    draw: SmallDraw,
    gpus: u8,
}

/// The problem of a seed.
#[must_use]
pub fn generate(seed: u64) -> SmallProblem {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let kinds: Vec<Kind> =
        (0..random.random_range(1..=2_usize)).map(|_| kind(&mut random)).collect();
    let nodes: Vec<SmallNode> = (0..random.random_range(2..=4_usize))
        .map(|at| {
            // Each kind is there.
            let kind = if at < kinds.len() { at } else { random.random_range(0..kinds.len()) };
            SmallNode { kind, gpus: kinds[kind].gpus, draw: kinds[kind].draw.clone() }
        })
        .collect();
    // Where four neighbours matter to each other, the optimum of eight jobs takes long to find.
    let hard = nodes.iter().any(|node| node.gpus > 2 && !node.is_additive());
    let count = random.random_range(3..=if hard { 7 } else { 8_usize });
    let gpus: f64 = nodes.iter().map(|node| f64::from(node.gpus)).sum();
    // The busier the nodes, the later deadlines must be to be tight and not hopeless.
    let crowd = (count as f64 / gpus).max(1.0);
    let jobs = (0..count).map(|_| job(&mut random, &kinds, crowd)).collect();
    SmallProblem {
        unit_seconds: UNIT,
        euros_per_joule: EUROS_PER_JOULE,
        kinds: kinds.len(),
        nodes,
        jobs,
    }
}

fn kind(random: &mut Pcg64Mcg) -> Kind {
    let gpus = [1, 2, 2, 4][random.random_range(0..4_usize)];
    let speed = random.random_range(0.5..1.0);
    let draw = if random.random_bool(0.5) {
        // A busy node draws much, its second GPU little: running together pays.
        let first = random.random_range(300.0..700.0_f64).round();
        let more = (first * random.random_range(0.25..0.6)).round();
        SmallDraw::Table(
            (0..=gpus)
                .map(|busy| if busy == 0 { 0.0 } else { first + more * f64::from(busy - 1) })
                .collect(),
        )
    } else {
        SmallDraw::PerGpu(random.random_range(150.0..500.0_f64).round())
    };
    Kind { speed, draw, gpus }
}

fn job(random: &mut Pcg64Mcg, kinds: &[Kind], crowd: f64) -> SmallJob {
    let length = random.random_range(3.0..14.0);
    let scaling = random.random_range(0.55..0.95);
    let mut ways: Vec<SmallWay> = Vec::new();
    for (at, kind) in kinds.iter().enumerate() {
        for gpus in [1, 2, 4].into_iter().filter(|gpus| *gpus <= kind.gpus) {
            let luck: f64 = random.random_range(0.9..1.1);
            let time = length * luck / kind.speed / f64::from(gpus).powf(scaling);
            ways.push(SmallWay { kind: at, gpus, time: (time.round() as u32).max(1) });
        }
    }
    while ways.len() > 4 {
        ways.remove(random.random_range(0..ways.len()));
    }
    let fastest = ways.iter().map(|way| way.time).min().unwrap_or(1);
    let slack = if random.random_bool(0.5) {
        random.random_range(1.0..1.8)
    } else {
        random.random_range(1.5..4.0)
    };
    let weight = 2e-5 * 25_f64.powf(random.random_range(0.0..1.0));
    SmallJob {
        release: 0,
        deadline: (f64::from(fastest) * slack * crowd.sqrt()).round() as u32,
        weight: weight * UNIT,
        ways,
    }
}
