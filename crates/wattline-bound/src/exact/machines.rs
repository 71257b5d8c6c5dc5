//! A small problem as machines, physics and jobs that a simulator runs.

use super::{SmallDraw, SmallProblem};
use std::collections::BTreeMap;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{BusyPower, Cluster, ClusterError, GpuType, Node, NodeDraw, Shape};
use wattline_core::ids::{GpuTypeId, UserId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::prices::Prices;
use wattline_core::units::{EnergyPrice, EurosPerSecond, Seconds, Watts};
use wattline_world::physics::Physics;

/// What a simulator needs of a small problem. Jobs may not be taken off their GPUs, nodes rest for
/// nothing, and all that is billed is in the price of energy.
pub struct Machines {
    /// The machines.
    pub cluster: Arc<Cluster>,
    /// Run times as listed.
    pub physics: Physics,
    /// The jobs, in the problem's order.
    pub jobs: Vec<Job>,
    /// What energy costs.
    pub prices: Prices,
}

impl Machines {
    /// Builds them.
    ///
    /// # Errors
    /// When a node makes no sense.
    pub fn new(problem: &SmallProblem) -> Result<Self, ClusterError> {
        let cards = (0..problem.kinds).map(|kind| card(problem, kind)).collect();
        let nodes = problem.nodes.iter().enumerate().map(|(at, node)| Node {
            name: format!("node-{at}").into(),
            gpu_type: GpuTypeId(node.kind as u16),
            gpus: node.gpus,
            draw: match &node.draw {
                SmallDraw::PerGpu(_) => NodeDraw::Additive { base: Watts::ZERO },
                SmallDraw::Table(table) => NodeDraw::ByBusyGpus(
                    table.iter().map(|w| BusyPower { watts: Watts::new(*w), pue: 1.0 }).collect(),
                ),
            },
            sleep: Watts::ZERO,
            boot: Watts::ZERO,
            boot_time: Seconds::ZERO,
            shutdown_time: Seconds::ZERO,
            rack: 0,
        });
        let cluster = Arc::new(Cluster::new(cards, nodes.collect())?);
        let mut physics = Physics::new(Arc::clone(&cluster), None);
        let jobs = (0..problem.jobs.len()).map(|at| job(problem, at, &mut physics)).collect();
        let price = EnergyPrice::new(problem.euros_per_joule * 3.6e6);
        let prices = Prices { energy: Calendar::constant(price), pue: 1.0, ..Prices::default() };
        Ok(Self { cluster, physics, jobs, prices })
    }
}

/// One limit, which is never changed; where a node lists its power, what a card draws is of no
/// interest.
fn card(problem: &SmallProblem, kind: usize) -> GpuType {
    let draw = problem.nodes.iter().find(|node| node.kind == kind).map(|node| node.watts(1));
    let busy = Watts::new(draw.unwrap_or(0.0));
    GpuType {
        name: format!("kind-{kind}").into(),
        idle: Watts::ZERO,
        busy,
        min_limit: busy,
        default_limit: busy,
        max_limit: busy,
        limit_step: Watts::ZERO,
        tflops: None,
        links: None,
    }
}

fn job(problem: &SmallProblem, at: usize, physics: &mut Physics) -> Job {
    let small = &problem.jobs[at];
    let time = |units: u32| f64::from(units) * problem.unit_seconds;
    let mut times: BTreeMap<Shape, Seconds> = BTreeMap::new();
    for way in &small.ways {
        let shape = Shape { gpu_type: GpuTypeId(way.kind as u16), gpus: way.gpus.into() };
        times.insert(shape, Seconds::new(time(way.time)));
    }
    // A shape that is larger than every node of its type would spread over several.
    let fits = |shape: &Shape| {
        let on =
            |kind: usize, gpus: u8| kind == shape.gpu_type.index() && u32::from(gpus) >= shape.gpus;
        problem.nodes.iter().any(|node| on(node.kind, node.gpus))
    };
    times.retain(|shape, _| fits(shape));
    let least = times.keys().map(|shape| shape.gpus).min().unwrap_or(1);
    let most = times.keys().map(|shape| shape.gpus).max().unwrap_or(1);
    let name = format!("job-{at}");
    Job {
        user: UserId(0),
        work: Work(1.0),
        submit: Timestamp::from_seconds(time(small.release)),
        deadline: Some(Timestamp::from_seconds(time(small.deadline.max(small.release)))),
        weight: EurosPerSecond::new(small.weight / problem.unit_seconds),
        elasticity: Elasticity::Moldable,
        gpus: Bounds { min: least, max: most, requested: least },
        batch: Bounds::exactly(1),
        restart: RestartCost::default(),
        preemptible: false,
        shapes: Some(times.keys().copied().collect()),
        nodes: None,
        workload: physics.listed(&name, times),
        name: name.into(),
    }
}
