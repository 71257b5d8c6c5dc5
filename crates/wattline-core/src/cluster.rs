//! The machines: GPU types, nodes, and the shapes a job can take on them.

use crate::ids::{GpuTypeId, NodeId};
use crate::job::{Bounds, Elasticity, Job};
use crate::placement::Configuration;
use crate::units::{Seconds, Watts};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use thiserror::Error;

/// GPUs of one node are kept in a 64-bit mask.
pub const MOST_GPUS_PER_NODE: u8 = 64;

/// Power limits of one GPU type. Policies try each of them for every configuration, so this bounds
/// their memory and time. Cards span some 600 W and act on whole watts: 1,000 leaves nothing out.
pub const MOST_POWER_LIMITS: u32 = 1_000;

/// The highest power of one GPU: the largest cards draw some 1.5 kW.
pub const MOST_GPU_POWER: Watts = Watts::new(1e5);

/// The highest power of one node: the largest racks draw some 150 kW.
pub const MOST_NODE_POWER: Watts = Watts::new(1e7);

/// A kind of GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuType {
    /// What it is called in configurations and measurements.
    pub name: Box<str>,
    /// Drawn when no job holds it.
    pub idle: Watts,
    /// Drawn by a demanding job at the default limit.
    pub busy: Watts,
    /// The lowest power limit the card accepts.
    pub min_limit: Watts,
    /// The limit it has when nobody sets one.
    pub default_limit: Watts,
    /// The highest power limit the card accepts.
    pub max_limit: Watts,
    /// Limits we use are this far apart, counted down from the default.
    pub limit_step: Watts,
    /// Dense half-precision speed by its data sheet, if somebody looked it up: what a predictor
    /// goes by until it has measured something.
    #[serde(default)]
    pub tflops: Option<f64>,
    /// How fast they exchange gradients, likewise.
    #[serde(default)]
    pub links: Option<Links>,
}

/// How fast GPUs exchange gradients, in GB/s of each, as a ring all-reduce sees it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// Inside a node.
    pub node: f64,
    /// Between nodes.
    pub net: f64,
}

impl GpuType {
    /// The limits we use, from the default down to the lowest.
    pub fn limits_down(&self) -> impl Iterator<Item = Watts> + '_ {
        let steps = self.limit_steps();
        let last = self.default_limit - self.limit_step * f64::from(steps);
        let floor = (last > self.min_limit).then_some(self.min_limit);
        (0..=steps).map(|k| self.default_limit - self.limit_step * f64::from(k)).chain(floor)
    }

    /// Whole steps from the default limit down; saturates.
    fn limit_steps(&self) -> u32 {
        let span = (self.default_limit - self.min_limit).get();
        if self.limit_step.get() > 0.0 { (span / self.limit_step.get()) as u32 } else { 0 }
    }

    /// How many limits there are, or one more, without listing them.
    #[must_use]
    pub fn limit_count(&self) -> u32 {
        self.limit_steps().saturating_add(2)
    }
}

/// Power of a whole node with some number of busy GPUs, as a site measured it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BusyPower {
    /// Drawn by the node.
    pub watts: Watts,
    /// What is billed per watt drawn (cooling, conversion).
    pub pue: f64,
}

/// How a node's power follows from what runs on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeDraw {
    /// A base (processors, memory, fans) plus its GPUs.
    Additive {
        /// Drawn whenever the node is up.
        base: Watts,
    },
    /// Whole-node power by the number of busy GPUs, 0 included: `gpus + 1` entries.
    ByBusyGpus(Arc<[BusyPower]>),
}

/// A server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// What SLURM calls it.
    pub name: Box<str>,
    /// Its GPUs' type.
    pub gpu_type: GpuTypeId,
    /// How many it has.
    pub gpus: u8,
    /// Its power when up.
    pub draw: NodeDraw,
    /// Its power asleep.
    pub sleep: Watts,
    /// Its power while booting, at most.
    pub boot: Watts,
    /// How long it boots.
    pub boot_time: Seconds,
    /// How long it takes to go to sleep.
    pub shutdown_time: Seconds,
    /// The rack, or the switch, it hangs on: nodes with equal numbers are close.
    pub rack: u32,
}

impl Node {
    /// Whether its power is a base and a sum over its GPUs, so that neighbours do not matter.
    #[must_use]
    pub fn is_additive(&self) -> bool {
        matches!(self.draw, NodeDraw::Additive { .. })
    }
}

/// A GPU type and count: the part of a configuration that decides where a job fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Which GPUs.
    pub gpu_type: GpuTypeId,
    /// How many.
    pub gpus: u32,
}

/// The shapes that a job may take on this cluster, sorted. Jobs with equal menus are
/// interchangeable as far as fitting goes, which lets a policy ask once for all of them.
pub type Menu = Arc<[Shape]>;

/// All machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    gpu_types: Vec<GpuType>,
    nodes: Vec<Node>,
    /// Largest node per GPU type.
    largest: Vec<u8>,
    /// GPUs per GPU type.
    totals: Vec<u32>,
}

/// Why a cluster cannot be.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ClusterError {
    /// No nodes.
    #[error("a cluster needs at least one node")]
    Empty,
    /// A node with no GPU, or more than a mask holds.
    #[error("node '{node}' has {gpus} GPUs: 1 to {MOST_GPUS_PER_NODE} are possible")]
    GpuCount {
        /// Which node.
        node: Box<str>,
        /// How many it was given.
        gpus: u32,
    },
    /// A node of a type that is not listed.
    #[error("node '{node}' names GPU type number {gpu_type}, which is not there")]
    GpuType {
        /// Which node.
        node: Box<str>,
        /// The type.
        gpu_type: GpuTypeId,
    },
    /// A node-power table of the wrong length.
    #[error("node '{node}' has a power table of {entries} entries for {gpus} GPUs, {} are needed", gpus + 1)]
    PowerTable {
        /// Which node.
        node: Box<str>,
        /// How many entries it has.
        entries: usize,
        /// How many GPUs.
        gpus: u32,
    },
    /// A power that is not one.
    #[error("'{name}': {what} must be a number from 0 W to {most:.0}")]
    Power {
        /// Node or GPU type.
        name: Box<str>,
        /// Which figure.
        what: &'static str,
        /// The highest possible.
        most: Watts,
    },
    /// Steps so small that nobody could try all limits.
    #[error(
        "GPU type '{name}': a limit step of {step} from {default} down to {min} gives {limits} power limits, {MOST_POWER_LIMITS} are possible; set a larger step"
    )]
    PowerLimits {
        /// Which type.
        name: Box<str>,
        /// The step.
        step: Watts,
        /// The lowest limit.
        min: Watts,
        /// The highest.
        default: Watts,
        /// How many there would be.
        limits: u32,
    },
    /// Limits out of order.
    #[error(
        "GPU type '{name}': limits must satisfy idle ≤ min ≤ default ≤ max, got {idle}, {min}, {default}, {max}"
    )]
    Limits {
        /// Which type.
        name: Box<str>,
        /// Idle power.
        idle: Watts,
        /// Lowest limit.
        min: Watts,
        /// Default limit.
        default: Watts,
        /// Highest limit.
        max: Watts,
    },
}

impl Cluster {
    /// Puts machines together.
    ///
    /// # Errors
    /// When they do not make sense, naming the node or type.
    pub fn new(gpu_types: Vec<GpuType>, nodes: Vec<Node>) -> Result<Self, ClusterError> {
        if nodes.is_empty() {
            return Err(ClusterError::Empty);
        }
        for t in &gpu_types {
            let (idle, min, default, max) = (t.idle, t.min_limit, t.default_limit, t.max_limit);
            let rising = Watts::ZERO <= idle && idle <= min && min <= default && default <= max;
            if !rising || !max.is_finite() {
                return Err(ClusterError::Limits { name: t.name.clone(), idle, min, default, max });
            }
            let sound = |w: Watts| Watts::ZERO <= w && w <= MOST_GPU_POWER;
            let figures =
                [("highest limit", max), ("busy power", t.busy), ("limit step", t.limit_step)];
            if let Some((what, _)) = figures.into_iter().find(|(_, watts)| !sound(*watts)) {
                return Err(ClusterError::Power {
                    name: t.name.clone(),
                    what,
                    most: MOST_GPU_POWER,
                });
            }
            if t.limit_count() > MOST_POWER_LIMITS {
                return Err(ClusterError::PowerLimits {
                    name: t.name.clone(),
                    step: t.limit_step,
                    min,
                    default,
                    limits: t.limit_count(),
                });
            }
        }
        let mut largest = vec![0; gpu_types.len()];
        let mut totals = vec![0; gpu_types.len()];
        for node in &nodes {
            let name = || node.name.clone();
            let t = node.gpu_type.index();
            if t >= gpu_types.len() {
                return Err(ClusterError::GpuType { node: name(), gpu_type: node.gpu_type });
            }
            if node.gpus == 0 || node.gpus > MOST_GPUS_PER_NODE {
                return Err(ClusterError::GpuCount { node: name(), gpus: node.gpus.into() });
            }
            let sound = |w: Watts| Watts::ZERO <= w && w <= MOST_NODE_POWER;
            let drawn = match &node.draw {
                NodeDraw::Additive { base } => sound(*base),
                NodeDraw::ByBusyGpus(table) => {
                    if table.len() != usize::from(node.gpus) + 1 {
                        return Err(ClusterError::PowerTable {
                            node: name(),
                            entries: table.len(),
                            gpus: node.gpus.into(),
                        });
                    }
                    table.iter().all(|b| sound(b.watts) && b.pue.is_finite() && b.pue >= 0.0)
                }
            };
            for (what, good) in [
                ("power", drawn),
                ("sleep power", sound(node.sleep)),
                ("boot power", sound(node.boot)),
            ] {
                if !good {
                    return Err(ClusterError::Power { name: name(), what, most: MOST_NODE_POWER });
                }
            }
            largest[t] = largest[t].max(node.gpus);
            totals[t] += u32::from(node.gpus);
        }
        Ok(Self { gpu_types, nodes, largest, totals })
    }

    /// All GPU types.
    #[must_use]
    pub fn gpu_types(&self) -> &[GpuType] {
        &self.gpu_types
    }

    /// All nodes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// One GPU type.
    #[must_use]
    pub fn gpu_type(&self, id: GpuTypeId) -> &GpuType {
        &self.gpu_types[id.index()]
    }

    /// Ids of all nodes.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// Ids of all GPU types.
    pub fn gpu_type_ids(&self) -> impl Iterator<Item = GpuTypeId> + use<> {
        (0..self.gpu_types.len() as u16).map(GpuTypeId)
    }

    /// All GPUs of all types.
    #[must_use]
    pub fn total_gpus(&self) -> u32 {
        self.totals.iter().sum()
    }

    /// All GPUs of a type.
    #[must_use]
    pub fn gpus_of(&self, gpu_type: GpuTypeId) -> u32 {
        self.totals[gpu_type.index()]
    }

    /// GPUs of the largest job that fits: all GPUs of the most frequent type.
    #[must_use]
    pub fn largest_job(&self) -> u32 {
        self.totals.iter().copied().max().unwrap_or(0)
    }

    /// GPUs of the largest node of a type; a job that asks for more spreads over several.
    #[must_use]
    pub fn largest_node(&self, gpu_type: GpuTypeId) -> u32 {
        self.largest[gpu_type.index()].into()
    }

    /// How many nodes a shape takes at the least.
    #[must_use]
    pub fn nodes_for(&self, shape: Shape) -> u32 {
        shape.gpus.div_ceil(self.largest_node(shape.gpu_type).max(1))
    }

    /// The most a node can draw: all GPUs at their highest limits, or booting.
    #[must_use]
    pub fn most_power(&self, id: NodeId) -> Watts {
        let node = self.node(id);
        let up = match &node.draw {
            NodeDraw::Additive { base } => {
                *base + self.gpu_type(node.gpu_type).max_limit * f64::from(node.gpus)
            }
            NodeDraw::ByBusyGpus(table) => table.iter().fold(Watts::ZERO, |m, b| m.max(b.watts)),
        };
        up.max(node.boot)
    }

    /// The most the cluster can draw.
    #[must_use]
    pub fn peak_power(&self) -> Watts {
        self.node_ids().map(|id| self.most_power(id)).sum()
    }

    /// Power of the nodes that run this shape and nothing else, each GPU drawing `per_gpu`: the
    /// yardstick by which configurations are compared before a place is known.
    #[must_use]
    pub fn power_alone(&self, shape: Shape, per_gpu: Watts) -> Watts {
        let Some(node) = self.model_node(shape.gpu_type) else { return Watts::ZERO };
        let size = u32::from(node.gpus);
        let (whole, rest) = (shape.gpus / size, shape.gpus % size);
        let of = |busy: u32| match &node.draw {
            _ if busy == 0 => Watts::ZERO,
            NodeDraw::Additive { base } => *base + per_gpu * f64::from(busy),
            NodeDraw::ByBusyGpus(table) => table[busy as usize].watts * table[busy as usize].pue,
        };
        of(size) * f64::from(whole) + of(rest)
    }

    /// The first of the largest nodes of a type.
    fn model_node(&self, gpu_type: GpuTypeId) -> Option<&Node> {
        let largest = self.largest[gpu_type.index()];
        self.nodes.iter().find(|n| n.gpu_type == gpu_type && n.gpus == largest)
    }

    /// A shape as it comes: on as few nodes as possible, with the batch that was asked for, at the
    /// card's default limit.
    #[must_use]
    pub fn plain_configuration(&self, job: &Job, shape: Shape) -> Configuration {
        Configuration {
            gpu_type: shape.gpu_type,
            gpus: shape.gpus,
            nodes: self.nodes_for(shape),
            batch: job.batch.requested,
            power_limit: self.gpu_type(shape.gpu_type).default_limit,
        }
    }

    /// The shapes a job may take here, sorted; empty if it can never run.
    ///
    /// Beyond one node a job takes whole nodes, except for the exact number its user asked for.
    #[must_use]
    pub fn menu(&self, job: &Job) -> Menu {
        let possible = |s: &Shape| {
            s.gpus >= 1
                && s.gpu_type.index() < self.gpu_types.len()
                && s.gpus <= self.gpus_of(s.gpu_type)
        };
        let mut shapes: Vec<Shape> = match &job.shapes {
            Some(listed) => listed.iter().copied().filter(possible).collect(),
            None => self
                .gpu_type_ids()
                .flat_map(|gpu_type| {
                    self.counts(job, gpu_type).into_iter().map(move |gpus| Shape { gpu_type, gpus })
                })
                .filter(possible)
                .collect(),
        };
        if job.elasticity == Elasticity::Rigid {
            shapes.retain(|s| s.gpus == job.gpus.requested);
        }
        shapes.sort_unstable();
        shapes.dedup();
        shapes.into()
    }

    /// At most so many shapes are on the menu of a job that lists none, without making it.
    #[must_use]
    pub fn menu_bound(&self, elasticity: Elasticity, gpus: Bounds) -> u64 {
        if elasticity == Elasticity::Rigid {
            return self.gpu_types.len() as u64;
        }
        let of_type = |gpu_type: GpuTypeId| {
            let size = self.largest_node(gpu_type);
            let most = gpus.max.min(self.gpus_of(gpu_type));
            let inside = (most.min(size) + 1).saturating_sub(gpus.min);
            u64::from(inside) + u64::from(most.checked_div(size).unwrap_or(0)) + 1
        };
        self.gpu_type_ids().map(of_type).sum()
    }

    fn counts(&self, job: &Job, gpu_type: GpuTypeId) -> Vec<u32> {
        let bounds = job.gpus;
        if job.elasticity == Elasticity::Rigid {
            return vec![bounds.requested];
        }
        let size = self.largest_node(gpu_type);
        let most = bounds.max.min(self.gpus_of(gpu_type));
        let inside = bounds.min..=most.min(size);
        let mut counts: Vec<u32> = inside.collect();
        let mut whole = size.saturating_mul(2);
        while whole <= most && size > 0 {
            if whole >= bounds.min {
                counts.push(whole);
            }
            whole += size;
        }
        if bounds.requested <= most {
            counts.push(bounds.requested);
        }
        counts
    }
}
