//! From what the engine knows to the document.

use super::file::{
    BusyEntry, Changing, GpuTypeEntry, JobEntry, NodeChoiceEntry, NodeEntry, OnNode,
    PlacementEntry, PricesEntry, RestartEntry, SCHEMA, ShapeEntry, Snapshot, TimeEntry,
    WorkloadEntry,
};
use crate::calendar::Calendar;
use crate::cluster::{Cluster, NodeDraw, Shape};
use crate::engine::Engine;
use crate::ids::{JobId, NodeId, WorkloadId};
use crate::job::{Elasticity, Job, NodeChoice};
use crate::placement::{Configuration, Placement};
use crate::plan::Reason;
use crate::predictor::Predictor;
use crate::state::{JobState, Phase, State};
use crate::time::Timestamp;
use std::collections::BTreeMap;

impl Snapshot {
    /// What an engine knows now, with what its predictor says about every configuration that its
    /// jobs may take. `workload` names workloads.
    #[must_use]
    pub fn of(
        engine: &Engine<'_>,
        now: Timestamp,
        workload: &dyn Fn(WorkloadId) -> String,
    ) -> Self {
        let (state, predictor) = (engine.state(), engine.predictor());
        let cluster = state.cluster();
        let named = names(state, workload);
        let changing = |calendar: &Calendar<f64>| {
            let (value, rules, utc_offset) = calendar.rules();
            Changing { value, rules, utc_offset }
        };
        let prices = engine.prices();
        Self {
            schema: SCHEMA.to_owned(),
            now_s: now.seconds(),
            plan: engine.plan_id().0,
            gpu_types: cluster
                .gpu_types()
                .iter()
                .map(|t| GpuTypeEntry {
                    name: t.name.clone(),
                    idle_w: t.idle.get(),
                    busy_w: t.busy.get(),
                    min_limit_w: t.min_limit.get(),
                    default_limit_w: t.default_limit.get(),
                    max_limit_w: t.max_limit.get(),
                    limit_step_w: t.limit_step.get(),
                    tflops: t.tflops,
                    links_gb_per_s: t.links,
                })
                .collect(),
            nodes: cluster.node_ids().map(|id| node(state, id)).collect(),
            workloads: workloads(state, predictor, &named),
            jobs: {
                let ids: BTreeMap<JobId, JobId> = (0..)
                    .map(JobId)
                    .zip(state.unfinished_jobs())
                    .map(|(new, (id, _))| (id, new))
                    .collect();
                let entries = state.unfinished_jobs();
                entries.map(|(_, entry)| job(state, entry, predictor, &named, &ids, now)).collect()
            },
            budget_w: engine.budget().map(|b| changing(&b.map(crate::units::Watts::get))),
            budget_margin_w: engine.config().margin.get(),
            budget_lead_s: engine.config().budget_lead.get(),
            prices: PricesEntry {
                energy_eur_per_kwh: changing(&prices.energy.map(crate::units::EnergyPrice::get)),
                pue: prices.pue,
                carbon_g_per_kwh: changing(&prices.carbon.map(crate::units::CarbonIntensity::get)),
                carbon_eur_per_t: prices.carbon_price.get(),
            },
        }
    }
}

/// Workloads that jobs train, under names that differ.
fn names(state: &State, workload: &dyn Fn(WorkloadId) -> String) -> BTreeMap<WorkloadId, Box<str>> {
    let mut named: BTreeMap<WorkloadId, Box<str>> = BTreeMap::new();
    let mut used = std::collections::BTreeSet::new();
    for (_, job) in state.unfinished_jobs() {
        named.entry(job.job.workload).or_insert_with(|| {
            let name = workload(job.job.workload);
            let free = used.insert(name.clone());
            let name = if free { name } else { format!("{name} ({})", job.job.workload) };
            used.insert(name.clone());
            name.into()
        });
    }
    named
}

fn node(state: &State, id: NodeId) -> NodeEntry {
    let cluster = state.cluster();
    let (node, is) = (cluster.node(id), state.node(id));
    let (base_w, by_busy_gpus) = match &node.draw {
        NodeDraw::Additive { base } => (base.get(), Vec::new()),
        NodeDraw::ByBusyGpus(table) => {
            let entry = table.iter().map(|b| BusyEntry { power_w: b.watts.get(), pue: b.pue });
            (0.0, entry.collect())
        }
    };
    NodeEntry {
        name: node.name.clone(),
        gpu: cluster.gpu_type(node.gpu_type).name.clone(),
        gpus: node.gpus,
        base_w,
        by_busy_gpus,
        sleep_w: node.sleep.get(),
        boot_w: node.boot.get(),
        boot_s: node.boot_time.get(),
        shutdown_s: node.shutdown_time.get(),
        rack: node.rack,
        state: is.power,
        target: Some(is.target),
        idle_since_s: Some(is.idle_since.seconds()),
        reason: Some(is.reason),
        host: is.host,
    }
}

fn shape(cluster: &Cluster, shape: Shape) -> ShapeEntry {
    ShapeEntry { gpu: cluster.gpu_type(shape.gpu_type).name.clone(), gpus: shape.gpus }
}

fn node_choice(cluster: &Cluster, choice: &NodeChoice) -> NodeChoiceEntry {
    let names = |ids: &[NodeId]| ids.iter().map(|id| cluster.node(*id).name.clone()).collect();
    NodeChoiceEntry {
        count: choice.count,
        required: names(&choice.required),
        allowed: names(&choice.allowed),
    }
}

fn placement(cluster: &Cluster, placement: &Placement) -> PlacementEntry {
    let on = placement.allocation.shares().map(|share| OnNode {
        node: cluster.node(share.node).name.clone(),
        gpus: (0..64_u8).filter(|bit| share.mask >> bit & 1 == 1).collect(),
    });
    PlacementEntry {
        on: on.collect(),
        batch: Some(placement.configuration.batch),
        power_limit_w: Some(placement.configuration.power_limit.get()),
    }
}

fn job(
    state: &State,
    entry: &JobState,
    predictor: &dyn Predictor,
    named: &BTreeMap<WorkloadId, Box<str>>,
    ids: &BTreeMap<JobId, JobId>,
    now: Timestamp,
) -> JobEntry {
    let (cluster, job) = (state.cluster(), &entry.job);
    let restart = predictor.restart(job);
    let moves = entry.planned != entry.held;
    let menu = state.menu(entry.menu);
    let moldable = job.elasticity == Elasticity::Moldable;
    let started = moldable && entry.first_start.is_some() && menu.len() == 1;
    // Nodes that refused it matter while it waits. One that asked for certain nodes stays there.
    let nodes = if entry.held.is_some() { job.nodes.as_ref() } else { entry.nodes() };
    let started_as = entry.started_as().or(menu.first().copied().filter(|_| started));
    JobEntry {
        name: job.name.clone(),
        user: job.user.0,
        workload: named.get(&job.workload).cloned().unwrap_or_default(),
        work: job.work.0,
        submit_s: job.submit.seconds(),
        deadline_s: job.deadline.map(Timestamp::seconds),
        weight_eur_per_h: job.weight.get() * 3600.0,
        elasticity: job.elasticity,
        gpus: job.gpus.requested,
        min_gpus: Some(job.gpus.min),
        max_gpus: Some(job.gpus.max),
        batch: Some(job.batch.requested),
        min_batch: Some(job.batch.min),
        max_batch: Some(job.batch.max),
        restart: RestartEntry { save_s: restart.save.get(), load_s: restart.load.get() },
        // What is not ours stays as it is.
        preemptible: job.preemptible && !entry.is_foreign(),
        on_hold: entry.is_on_hold() || (entry.is_foreign() && entry.held.is_none()),
        shapes: job.shapes.as_ref().map(|s| s.iter().map(|s| shape(cluster, *s)).collect()),
        nodes: nodes.map(|nodes| node_choice(cluster, nodes)),
        started_as: started_as.map(|s| shape(cluster, s)),
        done: entry.progress.done.0,
        as_of_s: Some(entry.progress.as_of.seconds()),
        rate: Some(entry.progress.rate.0),
        holds: entry.held.as_ref().map(|held| placement(cluster, held)),
        moves_to: entry.planned.as_ref().filter(|_| moves).map(|p| placement(cluster, p)),
        leaves: moves && entry.planned.is_none(),
        held_back_until_s: match entry.phase {
            Phase::BackingOff(until) => Some(until.seconds()),
            _ => None,
        },
        first_start_s: entry.first_start.map(Timestamp::seconds),
        restarts: entry.restarts,
        attained_gpu_s: entry.attained(now),
        // Finished jobs are not in the document, so the others have other ids there.
        reason: Some(match entry.reason {
            Reason::GaveWay { to } => {
                ids.get(&to).map_or(Reason::Postponed, |to| Reason::GaveWay { to: *to })
            }
            reason => reason,
        }),
        host: entry.host,
    }
}

/// What the predictor says, for jobs that differ in what it may ask about.
fn workloads(
    state: &State,
    predictor: &dyn Predictor,
    named: &BTreeMap<WorkloadId, Box<str>>,
) -> Vec<WorkloadEntry> {
    let mut kinds: BTreeMap<(WorkloadId, u32, u32), Vec<JobId>> = BTreeMap::new();
    for (id, job) in state.unfinished_jobs() {
        let key = (job.job.workload, job.job.gpus.requested, job.job.batch.requested);
        kinds.entry(key).or_default().push(id);
    }
    let mut rows: BTreeMap<WorkloadId, Vec<TimeEntry>> = BTreeMap::new();
    for ((workload, _, _), ids) in kinds {
        let mut asked: Vec<Configuration> =
            ids.iter().flat_map(|id| configurations(state, state.job(*id))).collect();
        let order = |c: &Configuration| {
            (c.gpu_type, c.gpus, c.nodes, c.batch, c.power_limit.get().to_bits())
        };
        asked.sort_by_key(order);
        asked.dedup_by_key(|c| order(c));
        let Some(job) = ids.first().map(|id| &state.job(*id).job) else { continue };
        let entries = asked.iter().filter_map(|c| time(state.cluster(), predictor, job, c));
        rows.entry(workload).or_default().extend(entries);
    }
    named
        .iter()
        .map(|(id, name)| WorkloadEntry {
            name: name.clone(),
            times: rows.remove(id).unwrap_or_default(),
            measurements: Vec::new(),
        })
        .collect()
}

fn time(
    cluster: &Cluster,
    predictor: &dyn Predictor,
    job: &Job,
    c: &Configuration,
) -> Option<TimeEntry> {
    let p = predictor.predict(job, c).filter(|p| p.rate.0 > 0.0)?;
    Some(TimeEntry {
        gpu: cluster.gpu_type(c.gpu_type).name.clone(),
        gpus: c.gpus,
        nodes: Some(c.nodes),
        batch: Some(c.batch),
        power_limit_w: Some(c.power_limit.get()),
        requested_gpus: Some(job.gpus.requested),
        requested_batch: Some(job.batch.requested),
        seconds: 1.0 / p.rate.0,
        power_w: Some(p.power.get()),
        low: p.time_low,
        high: p.time_high,
        measurements: p.measurements,
    })
}

/// Every shape on as few nodes as possible, or as many as the job wants, and on what it holds or
/// shall hold; under every limit; with every batch of doubled size that the job may have.
fn configurations(state: &State, entry: &JobState) -> Vec<Configuration> {
    let (cluster, job) = (state.cluster(), &entry.job);
    let mut batches = vec![job.batch.requested];
    if job.elasticity == Elasticity::Adaptive {
        let doubled = std::iter::successors(Some(job.batch.min), |b| b.checked_mul(2));
        batches.extend(doubled.take_while(|b| *b <= job.batch.max));
        batches.push(job.batch.max);
        batches.sort_unstable();
        batches.dedup();
    }
    let mut all = Vec::new();
    // A moldable job that has started has one shape left, unless no machine for it is.
    for shape in state.menu(entry.menu).iter() {
        let plain = cluster.plain_configuration(job, *shape);
        // Whether a shape can run at all is asked about as few nodes as possible.
        let mut nodes = vec![plain.nodes];
        nodes.extend(entry.nodes().map(|choice| choice.count));
        nodes.dedup();
        for (batch, nodes) in batches.iter().flat_map(|b| nodes.iter().map(move |n| (*b, *n))) {
            let limits = cluster.gpu_type(shape.gpu_type).limits_down();
            all.extend(limits.map(|power_limit| Configuration {
                power_limit,
                batch,
                nodes,
                ..plain
            }));
        }
    }
    all.extend([&entry.held, &entry.planned].into_iter().flatten().map(|p| p.configuration));
    all
}
