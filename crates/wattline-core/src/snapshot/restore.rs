//! From the document to what the engine knows.

use super::file::{Changing, JobEntry, NodeChoiceEntry, PlacementEntry, ShapeEntry, Snapshot};
use super::table::{KnownTime, Times};
use super::{NodeEntry, SCHEMA};
use crate::calendar::{Calendar, CalendarError};
use crate::check::{self, Violation};
use crate::cluster::{
    BusyPower, Cluster, ClusterError, GpuType, MOST_GPU_POWER, MOST_NODE_POWER, MOST_POWER_LIMITS,
    Node, NodeDraw, Shape,
};
use crate::engine::EngineConfig;
use crate::ids::{GpuTypeId, NodeId, UserId, WorkloadId};
use crate::job::{Bounds, Elasticity, Job, JobError, NodeChoice, RestartCost, Work, WorkRate};
use crate::placement::{Allocation, Configuration, Placement, Share};
use crate::plan::Reason;
use crate::power::NodePower;
use crate::predictor::Predictor;
use crate::prices::Prices;
use crate::state::{Progress, RestoredJob, State, Target};
use crate::time::Timestamp;
use crate::units::{CarbonIntensity, CarbonPrice, EnergyPrice, EurosPerSecond, Seconds, Watts};
use std::collections::HashMap;
use std::sync::Arc;
use thiserror::Error;

/// Why a document is no snapshot. `field` is a path such as `jobs[3].holds.on[0].node`.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SnapshotError {
    /// Another kind of document.
    #[error("field `schema` is \"{0}\", expected \"{SCHEMA}\"")]
    Schema(String),
    /// A name that nothing has.
    #[error("field `{field}` is \"{name}\", which is none of the {among}")]
    Unknown {
        /// Where.
        field: String,
        /// What stands there.
        name: String,
        /// What it should be one of.
        among: &'static str,
    },
    /// A name given twice.
    #[error("field `{field}` is \"{name}\", which another has already")]
    Twice {
        /// Where.
        field: String,
        /// The name.
        name: String,
    },
    /// A number out of its range.
    #[error("field `{field}` is {value:?}, expected a number from {low:?} to {high:?}")]
    Number {
        /// Where.
        field: String,
        /// What stands there.
        value: f64,
        /// The least possible.
        low: f64,
        /// The most.
        high: f64,
    },
    /// More than can be planned.
    #[error("field `{field}` gives {count} {what}, at most {most} are planned")]
    TooMany {
        /// Where.
        field: String,
        /// Of what.
        what: &'static str,
        /// How many.
        count: u64,
        /// How many are possible.
        most: u64,
    },
    /// Two fields that exclude each other.
    #[error("field `{field}`: {why}")]
    Contradiction {
        /// Where.
        field: String,
        /// Why.
        why: &'static str,
    },
    /// Machines that make no sense.
    #[error("{0}")]
    Cluster(#[from] ClusterError),
    /// A job that makes no sense.
    #[error("field `{field}`: {source}")]
    Job {
        /// Where.
        field: String,
        /// What is wrong.
        source: JobError,
    },
    /// Rules that make no sense.
    #[error("field `{field}`: {source}")]
    Calendar {
        /// Where.
        field: String,
        /// What is wrong.
        source: CalendarError,
    },
    /// What is held or planned cannot be.
    #[error("what jobs hold or shall hold cannot be: {0}")]
    Impossible(Violation),
}

type Result<T> = std::result::Result<T, SnapshotError>;

/// The machines and names of a snapshot: enough to make a predictor.
#[derive(Clone, Debug)]
pub struct Machines {
    /// The machines.
    pub cluster: Arc<Cluster>,
    /// What is known of times.
    pub times: Times,
    gpu_types: HashMap<Box<str>, GpuTypeId>,
    nodes: HashMap<Box<str>, NodeId>,
    workloads: HashMap<Box<str>, WorkloadId>,
}

/// What a snapshot says.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The time.
    pub now: Timestamp,
    /// Jobs and nodes.
    pub state: State,
    /// Prices.
    pub prices: Prices,
    /// The budget.
    pub budget: Option<Calendar<Watts>>,
    /// Margin and lead of the budget.
    pub config: EngineConfig,
}

/// A number within bounds.
fn number(field: impl FnOnce() -> String, value: f64, low: f64, high: f64) -> Result<f64> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(SnapshotError::Number { field: field(), value, low, high })
}

/// About 30,000 years to either side: microseconds of it fit an integer.
const MOST_SECONDS: f64 = 1e12;
const MOST: f64 = 1e18;
/// Billed energy per energy drawn: real ones are below 3.
const MOST_PUE: f64 = 1e3;

fn time(field: impl FnOnce() -> String, seconds: f64) -> Result<Timestamp> {
    number(field, seconds, -MOST_SECONDS, MOST_SECONDS).map(Timestamp::from_seconds)
}

fn find<T: Copy>(
    among: &HashMap<Box<str>, T>,
    name: &str,
    field: impl FnOnce() -> String,
    what: &'static str,
) -> Result<T> {
    let clipped = || name.chars().take(60).collect();
    among.get(name).copied().ok_or_else(|| SnapshotError::Unknown {
        field: field(),
        name: clipped(),
        among: what,
    })
}

fn index<T>(
    what: &'static str,
    names: impl Iterator<Item = Box<str>>,
    id: impl Fn(usize) -> T,
) -> Result<HashMap<Box<str>, T>> {
    let mut found = HashMap::new();
    for (at, name) in names.enumerate() {
        if found.insert(name.clone(), id(at)).is_some() {
            let name = name.chars().take(60).collect();
            return Err(SnapshotError::Twice { field: format!("{what}[{at}].name"), name });
        }
    }
    Ok(found)
}

fn changing<T: Copy + PartialEq>(
    entry: &Changing,
    field: &str,
    unit: impl Fn(f64) -> T,
) -> Result<Calendar<T>> {
    number(|| format!("{field}.value"), entry.value, 0.0, MOST)?;
    for (at, rule) in entry.rules.iter().enumerate() {
        number(|| format!("{field}.rules[{at}].value"), rule.value, 0.0, MOST)?;
    }
    Calendar::from_rules(entry.value, &entry.rules, entry.utc_offset)
        .map(|calendar| calendar.map(unit))
        .map_err(|source| SnapshotError::Calendar { field: field.to_owned(), source })
}

impl Snapshot {
    /// The machines, the names and the known times.
    ///
    /// # Errors
    /// Names the field that makes no sense.
    pub fn machines(&self) -> Result<Machines> {
        if self.schema != SCHEMA {
            return Err(SnapshotError::Schema(self.schema.chars().take(60).collect()));
        }
        let gpu_types = index("gpu_types", self.gpu_types.iter().map(|t| t.name.clone()), |at| {
            GpuTypeId(at as u16)
        })?;
        let nodes =
            index("nodes", self.nodes.iter().map(|n| n.name.clone()), |at| NodeId(at as u32))?;
        let workloads = index("workloads", self.workloads.iter().map(|w| w.name.clone()), |at| {
            WorkloadId(at as u32)
        })?;
        let types: Vec<GpuType> = self
            .gpu_types
            .iter()
            .map(|t| GpuType {
                name: t.name.clone(),
                idle: Watts::new(t.idle_w),
                busy: Watts::new(t.busy_w),
                min_limit: Watts::new(t.min_limit_w),
                default_limit: Watts::new(t.default_limit_w),
                max_limit: Watts::new(t.max_limit_w),
                limit_step: Watts::new(t.limit_step_w),
                tflops: t.tflops,
                links: t.links_gb_per_s,
            })
            .collect();
        for (at, t) in self.gpu_types.iter().enumerate() {
            let most = MOST_GPU_POWER.get();
            for (name, watts) in [
                ("idle_w", t.idle_w),
                ("busy_w", t.busy_w),
                ("min_limit_w", t.min_limit_w),
                ("default_limit_w", t.default_limit_w),
                ("max_limit_w", t.max_limit_w),
                ("limit_step_w", t.limit_step_w),
            ] {
                number(|| format!("gpu_types[{at}].{name}"), watts, 0.0, most)?;
            }
            if let Some(tflops) = t.tflops {
                number(|| format!("gpu_types[{at}].tflops"), tflops, 1e-3, 1e9)?;
            }
            if let Some(links) = t.links_gb_per_s {
                let field = |of: &str| format!("gpu_types[{at}].links_gb_per_s.{of}");
                number(|| field("node"), links.node, 1e-3, 1e6)?;
                number(|| field("net"), links.net, 1e-3, 1e6)?;
            }
        }
        for (at, t) in types.iter().enumerate() {
            let (count, most) = (t.limit_count().into(), MOST_POWER_LIMITS.into());
            if count > most {
                let field = format!("gpu_types[{at}].limit_step_w");
                return Err(SnapshotError::TooMany { field, what: "power limits", count, most });
            }
        }
        let servers = self.nodes.iter().enumerate();
        let servers = servers.map(|(at, n)| {
            let field = || format!("nodes[{at}].gpu");
            let gpu_type = find(&gpu_types, &n.gpu, field, "gpu_types")?;
            server(n, at, gpu_type)
        });
        let servers: Vec<Node> = servers.collect::<Result<_>>()?;
        let cluster = Arc::new(Cluster::new(types, servers)?);
        let mut machines =
            Machines { cluster, times: Times::default(), gpu_types, nodes, workloads };
        machines.times = self.times(&machines)?;
        Ok(machines)
    }

    fn times(&self, machines: &Machines) -> Result<Times> {
        let mut times = Times::default();
        for (w, workload) in self.workloads.iter().enumerate() {
            let field = format!("workloads[{w}]");
            if !workload.times.is_empty() && !workload.measurements.is_empty() {
                return Err(SnapshotError::Contradiction {
                    field,
                    why: "give either times or measurements",
                });
            }
            for (at, row) in workload.times.iter().enumerate() {
                let field = |name: &str| format!("{field}.times[{at}].{name}");
                let gpu_type = find(&machines.gpu_types, &row.gpu, || field("gpu"), "gpu_types")?;
                number(|| field("gpus"), row.gpus.into(), 1.0, MOST)?;
                number(|| field("seconds"), row.seconds, 1e-12, MOST)?;
                number(|| field("low"), row.low, 1e-6, MOST)?;
                number(|| field("high"), row.high, 1e-6, MOST)?;
                for (name, value) in
                    [("power_w", row.power_w), ("power_limit_w", row.power_limit_w)]
                {
                    value.map_or(Ok(0.0), |value| number(|| field(name), value, 0.0, 1e6))?;
                }
                let shape = Shape { gpu_type, gpus: row.gpus };
                let row = KnownTime {
                    nodes: row.nodes.unwrap_or_else(|| machines.cluster.nodes_for(shape)),
                    batch: row.batch,
                    limit: row.power_limit_w.map(Watts::new),
                    requested_gpus: row.requested_gpus,
                    requested_batch: row.requested_batch,
                    time: Seconds::new(row.seconds),
                    power: row.power_w.map(Watts::new),
                    low: row.low,
                    high: row.high,
                    measurements: row.measurements,
                    busy: machines.cluster.gpu_type(gpu_type).busy,
                };
                times.add(WorkloadId(w as u32), gpu_type, shape.gpus, row);
            }
        }
        Ok(times)
    }

    /// Everything else. `predictor` is asked which shapes can run a job and how fast jobs go whose
    /// rate is not said.
    ///
    /// # Errors
    /// Names the field that makes no sense.
    pub fn restore(&self, machines: &Machines, predictor: &dyn Predictor) -> Result<Restored> {
        let now = time(|| "now_s".into(), self.now_s)?;
        let mut state = State::new(Arc::clone(&machines.cluster), now);
        for (at, node) in self.nodes.iter().enumerate() {
            let since = node.idle_since_s.map(|s| time(|| format!("nodes[{at}].idle_since_s"), s));
            let target = node.target.unwrap_or(match node.state {
                NodePower::Asleep | NodePower::FallingAsleep => Target::Asleep,
                NodePower::Up | NodePower::Closed | NodePower::Booting | NodePower::Down => {
                    Target::Up
                }
            });
            let reason = node.reason.unwrap_or(Reason::Arrived);
            let since = since.transpose()?.unwrap_or(now);
            state.restore_node(NodeId(at as u32), node.state, target, since, reason);
            state.set_node_host(NodeId(at as u32), node.host);
        }
        for (at, entry) in self.jobs.iter().enumerate() {
            let job = self.job(entry, at, machines, predictor, now)?;
            let (cluster, asked) = (Arc::clone(&machines.cluster), Arc::clone(&job.job));
            let can_run = |shape| {
                predictor.predict(&asked, &cluster.plain_configuration(&asked, shape)).is_some()
            };
            let id = state.restore_job(job, now, can_run);
            state.set_host_request(id, entry.host);
        }
        if let Some(violation) = check::audit(&state, None).into_iter().next() {
            return Err(SnapshotError::Impossible(violation));
        }
        let p = &self.prices;
        let prices = Prices {
            energy: changing(&p.energy_eur_per_kwh, "prices.energy_eur_per_kwh", EnergyPrice::new)?,
            pue: number(|| "prices.pue".into(), p.pue, 0.0, MOST_PUE)?,
            carbon: changing(&p.carbon_g_per_kwh, "prices.carbon_g_per_kwh", CarbonIntensity::new)?,
            carbon_price: CarbonPrice::new(number(
                || "prices.carbon_eur_per_t".into(),
                p.carbon_eur_per_t,
                0.0,
                MOST,
            )?),
        };
        let budget = self.budget_w.as_ref();
        let budget = budget.map(|b| changing(b, "budget_w", Watts::new)).transpose()?;
        let margin = number(|| "budget_margin_w".into(), self.budget_margin_w, 0.0, MOST)?;
        let lead = number(|| "budget_lead_s".into(), self.budget_lead_s, 0.0, 1e9)?;
        let config = EngineConfig {
            margin: Watts::new(margin),
            budget_lead: Seconds::new(lead),
            ..EngineConfig::default()
        };
        Ok(Restored { now, state, prices, budget, config })
    }

    fn job(
        &self,
        entry: &JobEntry,
        at: usize,
        machines: &Machines,
        predictor: &dyn Predictor,
        now: Timestamp,
    ) -> Result<RestoredJob> {
        let field = |name: &str| format!("jobs[{at}].{name}");
        let when = |name: &str, seconds: Option<f64>| {
            seconds.map(|seconds| time(|| field(name), seconds)).transpose()
        };
        let shape = |name: &str, shape: &ShapeEntry| -> Result<Shape> {
            let gpu_type = find(&machines.gpu_types, &shape.gpu, || field(name), "gpu_types")?;
            Ok(Shape { gpu_type, gpus: shape.gpus })
        };
        let workload =
            find(&machines.workloads, &entry.workload, || field("workload"), "workloads")?;
        let bounds = |asked: u32, min: Option<u32>, max: Option<u32>| Bounds {
            min: min.unwrap_or(asked),
            max: max.unwrap_or(asked),
            requested: asked,
        };
        // A milliard of euros an hour, and 30 years of loading.
        let amount = |name: &str, value: f64| number(|| field(name), value, 0.0, 1e9);
        let batch = entry.batch.unwrap_or(entry.gpus);
        let shapes = entry.shapes.as_ref().map(|shapes| {
            shapes.iter().map(|s| shape("shapes", s)).collect::<Result<Vec<Shape>>>()
        });
        let nodes = entry.nodes.as_ref().map(|c| node_choice(c, machines, &field("nodes")));
        let job = Job {
            name: entry.name.clone(),
            user: UserId(entry.user),
            workload,
            work: Work(number(|| field("work"), entry.work, 0.0, MOST)?),
            submit: time(|| field("submit_s"), entry.submit_s)?,
            deadline: when("deadline_s", entry.deadline_s)?,
            weight: EurosPerSecond::new(
                amount("weight_eur_per_h", entry.weight_eur_per_h)? / 3600.0,
            ),
            elasticity: entry.elasticity,
            gpus: bounds(entry.gpus, entry.min_gpus, entry.max_gpus),
            batch: bounds(batch, entry.min_batch, entry.max_batch),
            restart: RestartCost {
                save: Seconds::new(amount("restart.save_s", entry.restart.save_s)?),
                load: Seconds::new(amount("restart.load_s", entry.restart.load_s)?),
            },
            preemptible: entry.preemptible,
            shapes: shapes.transpose()?.map(Arc::from),
            nodes: nodes.transpose()?.map(Arc::new),
        };
        job.validate()
            .map_err(|source| SnapshotError::Job { field: format!("jobs[{at}]"), source })?;
        let place = |name: &str, entry: &Option<PlacementEntry>| {
            entry.as_ref().map(|p| placement(p, &job, machines, &field(name))).transpose()
        };
        let held = place("holds", &entry.holds)?;
        let moved = place("moves_to", &entry.moves_to)?;
        let contradiction =
            |name: &str, why| Err(SnapshotError::Contradiction { field: field(name), why });
        if entry.leaves && (held.is_none() || moved.is_some()) {
            return contradiction("leaves", "only a job that holds GPUs and moves nowhere leaves");
        }
        if entry.held_back_until_s.is_some() && (held.is_some() || moved.is_some()) {
            return contradiction("held_back_until_s", "a job that is held back holds nothing");
        }
        let planned = if entry.leaves { None } else { moved.or_else(|| held.clone()) };
        let rate = entry.rate.map(|rate| number(|| field("rate"), rate, 0.0, MOST)).transpose()?;
        let predicted = held
            .as_ref()
            .map(|held| predictor.predict(&job, &held.configuration).map_or(0.0, |p| p.rate.0));
        let first_start = when("first_start_s", entry.first_start_s)?;
        let default_reason = if planned.is_some() { Reason::AsRequested } else { Reason::Arrived };
        let started_as = entry.started_as.as_ref().map(|s| shape("started_as", s)).transpose()?;
        let moldable = job.elasticity == Elasticity::Moldable;
        let held_shape = held.as_ref().filter(|_| moldable).map(|held| held.configuration.shape());
        Ok(RestoredJob {
            on_hold: entry.on_hold,
            started_as: started_as.or(held_shape),
            progress: Progress {
                done: Work(number(|| field("done"), entry.done, 0.0, MOST)?),
                as_of: when("as_of_s", entry.as_of_s)?.unwrap_or(now),
                rate: WorkRate(rate.or(predicted).unwrap_or(0.0)),
            },
            first_start: first_start.or(held.as_ref().map(|_| now)),
            restarts: number(|| field("restarts"), entry.restarts.into(), 0.0, 1e6)? as u32,
            attained: number(|| field("attained_gpu_s"), entry.attained_gpu_s, 0.0, MOST)?,
            held_back_until: when("held_back_until_s", entry.held_back_until_s)?,
            reason: entry.reason.unwrap_or(default_reason),
            planned,
            held,
            job: Arc::new(job),
        })
    }
}

fn server(n: &NodeEntry, at: usize, gpu_type: GpuTypeId) -> Result<Node> {
    let seconds = |name: &str, value: f64| {
        number(|| format!("nodes[{at}].{name}"), value, 0.0, 1e9).map(Seconds::new)
    };
    let most = MOST_NODE_POWER.get();
    for (name, watts) in [("base_w", n.base_w), ("sleep_w", n.sleep_w), ("boot_w", n.boot_w)] {
        number(|| format!("nodes[{at}].{name}"), watts, 0.0, most)?;
    }
    for (busy, entry) in n.by_busy_gpus.iter().enumerate() {
        let field = |name: &str| format!("nodes[{at}].by_busy_gpus[{busy}].{name}");
        number(|| field("power_w"), entry.power_w, 0.0, most)?;
        number(|| field("pue"), entry.pue, 0.0, MOST_PUE)?;
    }
    let by_busy = n.by_busy_gpus.iter();
    let by_busy = by_busy.map(|b| BusyPower { watts: Watts::new(b.power_w), pue: b.pue });
    Ok(Node {
        name: n.name.clone(),
        gpu_type,
        gpus: n.gpus,
        draw: if n.by_busy_gpus.is_empty() {
            NodeDraw::Additive { base: Watts::new(n.base_w) }
        } else {
            NodeDraw::ByBusyGpus(by_busy.collect())
        },
        sleep: Watts::new(n.sleep_w),
        boot: Watts::new(n.boot_w),
        boot_time: seconds("boot_s", n.boot_s)?,
        shutdown_time: seconds("shutdown_s", n.shutdown_s)?,
        rack: n.rack,
    })
}

fn node_choice(entry: &NodeChoiceEntry, machines: &Machines, field: &str) -> Result<NodeChoice> {
    let wrong =
        |name: &str, why| SnapshotError::Contradiction { field: format!("{field}.{name}"), why };
    let ids = |name: &str, names: &[Box<str>]| -> Result<Box<[NodeId]>> {
        let ids = names.iter().enumerate().map(|(at, node)| {
            find(&machines.nodes, node, || format!("{field}.{name}[{at}]"), "nodes")
        });
        let mut ids: Vec<NodeId> = ids.collect::<Result<_>>()?;
        ids.sort_unstable();
        if ids.windows(2).any(|w| w[0] == w[1]) {
            return Err(wrong(name, "names a node twice"));
        }
        Ok(ids.into())
    };
    let (required, allowed) = (ids("required", &entry.required)?, ids("allowed", &entry.allowed)?);
    number(|| format!("{field}.count"), entry.count.into(), 1.0, MOST)?;
    if allowed.len() < entry.count as usize {
        return Err(wrong("allowed", "names fewer nodes than the job takes"));
    }
    if required.len() > entry.count as usize {
        return Err(wrong("required", "names more nodes than the job takes"));
    }
    if required.iter().any(|id| allowed.binary_search(id).is_err()) {
        return Err(wrong("required", "names a node that is not among those allowed"));
    }
    Ok(NodeChoice { count: entry.count, required, allowed })
}

fn placement(
    entry: &PlacementEntry,
    job: &Job,
    machines: &Machines,
    field: &str,
) -> Result<Placement> {
    let wrong = |why| SnapshotError::Contradiction { field: format!("{field}.on"), why };
    let mut shares = smallvec::SmallVec::new();
    for (at, on) in entry.on.iter().enumerate() {
        let node = find(&machines.nodes, &on.node, || format!("{field}.on[{at}].node"), "nodes")?;
        let size = machines.cluster.node(node).gpus;
        let mut mask = 0_u64;
        for gpu in &on.gpus {
            if *gpu >= size {
                return Err(wrong("names a GPU that the node does not have; they count from 0"));
            }
            if mask >> gpu & 1 == 1 {
                return Err(wrong("names a GPU twice"));
            }
            mask |= 1 << gpu;
        }
        if mask == 0 {
            return Err(wrong("names a node without a GPU"));
        }
        shares.push(Share { node, mask });
    }
    let allocation = Allocation::over(shares);
    let first = allocation.shares().next().ok_or_else(|| wrong("names no node"))?;
    if allocation.0.windows(2).any(|w| w[0].node == w[1].node) {
        return Err(wrong("names a node twice"));
    }
    let gpu_type = machines.cluster.node(first.node).gpu_type;
    if allocation.shares().any(|s| machines.cluster.node(s.node).gpu_type != gpu_type) {
        return Err(wrong("names nodes of several GPU types"));
    }
    let limit = entry.power_limit_w.map(Watts::new);
    let configuration = Configuration {
        gpu_type,
        gpus: allocation.count(),
        nodes: allocation.0.len() as u32,
        batch: entry.batch.unwrap_or(job.batch.requested),
        power_limit: limit.unwrap_or(machines.cluster.gpu_type(gpu_type).default_limit),
    };
    Ok(Placement { configuration, allocation })
}
