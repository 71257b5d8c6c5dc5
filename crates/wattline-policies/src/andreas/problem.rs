//! What is to be planned, in dense numbers: every job that may be planned with the ways it can
//! run, and the nodes sorted into classes of which one is as good as another.
//!
//! Nothing here depends on where jobs are planned at present, nor on which nodes sleep, but for
//! the order of nodes that are alike. So planning again at the same instant leads to the same plan.

use crate::placing::{Choice, Decided, alike, choices_after};
use std::ops::Range;
use wattline_core::cluster::{Node, NodeDraw};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::policy::ClusterView;
use wattline_core::power::{self, NodePower, Occupancy};
use wattline_core::units::{Seconds, Watts};

/// How much worse than running a postponed job's worst lateness counts.
const POSTPONED_FACTOR: f64 = 100.0;

/// A job and the ways it can run.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) id: JobId,
    /// EUR per second of lateness.
    pub(super) weight: f64,
    /// Seconds from now to its deadline; infinite without one.
    pub(super) due: f64,
    /// How many seconds it would be late at its fastest.
    pub(super) pressure: f64,
    /// What postponing it counts.
    pub(super) postponed: f64,
    /// In the order in which they are tried: in time by rising cost, then late by rising time.
    pub(super) ways: Vec<Choice>,
    /// How many of these are in time.
    pub(super) in_time: usize,
}

/// Nodes that differ in nothing that matters to a plan.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub(super) gpus: u32,
    /// Free when nothing of this plan is placed.
    pub(super) free: u32,
    /// Nodes that are up first, then in the order of the cluster.
    pub(super) nodes: Vec<NodeId>,
    /// Committed power of a node by its free GPUs, all limits at their default.
    pub(super) committed: Vec<f64>,
    /// Billed power of a node by its free GPUs, apart from what its GPUs draw one by one.
    pub(super) billed: Vec<f64>,
    /// Billed per watt that a job's GPU draws; 0 where the node's power holds it already.
    pub(super) gpu_pue: f64,
}

/// Everything a plan is made from.
pub(super) struct Problem<'v, 'a> {
    pub(super) view: &'v ClusterView<'a>,
    pub(super) items: Vec<Item>,
    /// The items. All others stay as they are.
    pub(super) decides: Decided,
    pub(super) classes: Vec<Class>,
    /// By GPU type: which classes.
    pub(super) of_type: Vec<Range<usize>>,
    /// By node: its class, if it can be used.
    pub(super) class_of: Vec<Option<usize>>,
    /// Committed power when nothing of this plan is placed and all idle nodes sleep.
    pub(super) base: f64,
    pub(super) budget: f64,
    /// EUR per joule billed.
    pub(super) price: f64,
    /// What it counts to postpone every job.
    pub(super) all_postponed: f64,
}

impl<'v, 'a> Problem<'v, 'a> {
    pub(super) fn new(view: &'v ClusterView<'a>) -> Self {
        let joule = Watts::new(1.0) * Seconds::new(1.0);
        let mut problem = Self {
            view,
            items: Vec::new(),
            decides: Decided::nobody(view.state),
            classes: Vec::new(),
            of_type: Vec::new(),
            class_of: vec![None; view.state.cluster().nodes().len()],
            base: 0.0,
            budget: view.budget.map_or(f64::INFINITY, Watts::get),
            price: (joule * view.prices.energy.at(view.now)).get(),
            all_postponed: 0.0,
        };
        problem.items = items(view);
        for item in &problem.items {
            problem.decides.add(view.state, item.id);
        }
        problem.all_postponed = problem.items.iter().map(|item| item.postponed).sum();
        problem.sort_nodes();
        problem
    }

    fn sort_nodes(&mut self) {
        let view = self.view;
        let cluster = view.state.cluster();
        for gpu_type in cluster.gpu_type_ids() {
            let first = self.classes.len();
            let mut keys: Vec<(&Node, Occupancy)> = Vec::new();
            for id in cluster.node_ids().filter(|id| cluster.node(*id).gpu_type == gpu_type) {
                if !view.state.node(id).is_ours() {
                    self.base += view.state.node(id).planned_committed().get();
                    continue;
                }
                let key = (cluster.node(id), self.fixed(id));
                let at = keys
                    .iter()
                    .position(|other| alike(other.0, key.0) && other.1 == key.1)
                    .unwrap_or(keys.len());
                if at == keys.len() {
                    keys.push(key);
                    self.classes.push(class(view, id, key.1));
                }
                let class = &mut self.classes[first + at];
                class.nodes.push(id);
                self.base += class.committed[class.free as usize];
                self.class_of[id.index()] = Some(first + at);
            }
            self.of_type.push(first..self.classes.len());
        }
        for class in &mut self.classes {
            class.nodes.sort_by_key(|id| view.state.node(*id).power != NodePower::Up);
        }
    }

    /// What stays on a node whatever is planned.
    pub(super) fn fixed(&self, id: NodeId) -> Occupancy {
        self.decides.fixed(self.view.state, id)
    }

    /// GPUs of a node that this plan decides about.
    pub(super) fn free_mask(&self, id: NodeId) -> u64 {
        self.decides.free_mask(self.view.state, id)
    }

    /// Jobs by falling pressure; among equals in the order in which they came.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        let pressure = |at: usize| self.items[at].pressure;
        order.sort_by(|a, b| pressure(*b).total_cmp(&pressure(*a)));
        order
    }
}

fn items(view: &ClusterView<'_>) -> Vec<Item> {
    let mut items = Vec::new();
    for (id, job) in view.state.unfinished_jobs() {
        if !job.is_plannable() || job.is_pinned() {
            continue;
        }
        let mut ways = Vec::new();
        // The method counts no restarts.
        choices_after(view, job, Seconds::ZERO, &mut ways);
        // One that stands still in a shape cannot be planned there.
        ways.retain(|way| way.time.is_finite());
        let due = job.job.deadline.map_or(f64::INFINITY, |deadline| (deadline - view.now).get());
        let times = || ways.iter().map(|way| way.time.get());
        let (fastest, longest) =
            (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
        if ways.is_empty() {
            continue;
        }
        let weight = job.job.weight.get();
        items.push(Item {
            id,
            weight,
            due,
            pressure: fastest - due,
            postponed: POSTPONED_FACTOR * weight * (longest - due).max(0.0),
            in_time: ways.iter().filter(|way| !way.late).count(),
            ways,
        });
    }
    items
}

/// Committed power of a node that holds this: asleep if that is nothing, and otherwise as if it
/// had to be woken first. That some nodes are up already is left out of account, because it changes
/// while a plan is carried out.
pub(super) fn committed_if(view: &ClusterView<'_>, id: NodeId, held: Occupancy) -> Watts {
    let power = if held.busy > 0 { NodePower::Booting } else { NodePower::Asleep };
    power::committed(view.state.cluster(), id, power, held)
}

fn class(view: &ClusterView<'_>, id: NodeId, fixed: Occupancy) -> Class {
    let cluster = view.state.cluster();
    let node = cluster.node(id);
    let gpus = u32::from(node.gpus);
    let default = cluster.gpu_type(node.gpu_type).default_limit;
    let by_free = |of: &dyn Fn(u32) -> Watts| (0..=gpus).map(|free| of(free).get()).collect();
    let committed = |free: u32| {
        let placed = (gpus - fixed.busy).saturating_sub(free);
        committed_if(view, id, fixed.with(placed, default))
    };
    let billed = |free: u32| match &node.draw {
        _ if free == gpus => Watts::ZERO,
        NodeDraw::Additive { base } => *base * view.prices.pue,
        NodeDraw::ByBusyGpus(table) => {
            let entry = table[(gpus - free) as usize];
            entry.watts * entry.pue
        }
    };
    Class {
        gpus,
        free: gpus - fixed.busy,
        nodes: Vec::new(),
        committed: by_free(&committed),
        billed: by_free(&billed),
        gpu_pue: if node.is_additive() { view.prices.pue } else { 0.0 },
    }
}
