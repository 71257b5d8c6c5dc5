//! What to measure next, and what that costs.

use serde::Serialize;
use wattline_core::units::Watts;
use wattline_predict::choose::choose_by_cost;
use wattline_predict::model::Model;
use wattline_predict::reading::Point;
use wattline_world::catalogue::Catalogue;

/// A reading is stable after this many seconds and this many steps, whichever is longer.
const READING_SECONDS: f64 = 30.0;
const READING_STEPS: f64 = 20.0;
/// Seconds to start a job that the catalogue does not know.
const START_SECONDS: f64 = 15.0;
/// The work grows with the square of the candidates; of more, evenly spaced ones are looked at.
const MOST_CANDIDATES: usize = 600;

/// Configurations to measure, the first one first.
#[derive(Serialize)]
pub(super) struct Plan {
    /// Of all of them.
    pub(super) gpu_seconds: f64,
    pub(super) measure: Vec<Planned>,
}

#[derive(Serialize)]
pub(super) struct Planned {
    pub(super) nodes: u32,
    pub(super) gpus: u32,
    pub(super) global_batch: f64,
    pub(super) power_limit_w: f64,
    /// Start-up and the time to a stable reading.
    pub(super) seconds: f64,
    pub(super) gpu_seconds: f64,
}

/// What may be measured: every shape and batch under every limit.
pub(super) fn grid(shapes: &[(u32, u32, f64)], limits: &[f64]) -> Vec<Point> {
    let under = |(gpus, nodes, batch): &(u32, u32, f64)| {
        let (gpus, nodes, batch) = (*gpus, *nodes, *batch);
        limits.iter().map(move |limit| Point { gpus, nodes, batch, limit: Watts::new(*limit) })
    };
    shapes.iter().flat_map(under).collect()
}

/// Plans `count` measurements of a workload. `known` is everything measured, `fitted` the part of
/// it that is behind the model.
pub(super) fn plan(
    workload: &str,
    candidates: &[Point],
    (known, fitted): (&[Point], &[Point]),
    model: Option<&Model>,
    count: usize,
) -> Plan {
    let start = Catalogue::built_in()
        .workload(workload)
        .map_or(START_SECONDS, |workload| workload.restart().load.get());
    let seconds = |p: &Point| {
        let step = model.map_or(0.0, |model| model.expect(p).per_sample.get() * p.batch);
        start + READING_SECONDS.max(READING_STEPS * step)
    };
    let cost = |p: &Point| f64::from(p.gpus) * seconds(p);
    let new: Vec<Point> = candidates.iter().filter(|p| !known.contains(p)).copied().collect();
    let new = thinned(new);
    let measure: Vec<Planned> = choose_by_cost(&new, fitted, cost, count)
        .into_iter()
        .map(|k| &new[k])
        .map(|p| Planned {
            nodes: p.nodes,
            gpus: p.gpus,
            global_batch: p.batch,
            power_limit_w: p.limit.get(),
            seconds: seconds(p),
            gpu_seconds: cost(p),
        })
        .collect();
    Plan { gpu_seconds: measure.iter().map(|m| m.gpu_seconds).sum(), measure }
}

/// Evenly over the order of shape, batch and limit.
fn thinned(mut points: Vec<Point>) -> Vec<Point> {
    points.sort_by(|a, b| {
        let numbers = a.batch.total_cmp(&b.batch).then(a.limit.get().total_cmp(&b.limit.get()));
        (a.gpus, a.nodes).cmp(&(b.gpus, b.nodes)).then(numbers)
    });
    points.dedup();
    if points.len() <= MOST_CANDIDATES {
        return points;
    }
    let last = points.len() - 1;
    (0..MOST_CANDIDATES).map(|k| points[k * last / (MOST_CANDIDATES - 1)]).collect()
}
