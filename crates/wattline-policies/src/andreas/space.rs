//! How many nodes of each class have how many GPUs free: all that a plan's cost and fit depend on.

use super::problem::{Class, Problem};
use wattline_core::cluster::Shape;
use wattline_core::units::Watts;

/// GPUs taken of one node of a class that has so many free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) class: usize,
    pub(super) free: u32,
    pub(super) gpus: u32,
}

/// Where a shape fits: one node almost always.
#[derive(Clone, Debug)]
pub(super) enum Fit {
    One(Part),
    Several(Vec<Part>),
}

impl Fit {
    pub(super) fn parts(&self) -> &[Part] {
        match self {
            Self::One(part) => std::slice::from_ref(part),
            Self::Several(parts) => parts,
        }
    }
}

/// A partly filled cluster.
#[derive(Clone, Debug)]
pub(super) struct Space {
    /// By class and free GPUs.
    nodes: Vec<u32>,
    stride: usize,
    free: u32,
    committed: f64,
    /// Billed power of GPUs that are billed one by one.
    gpus_billed: f64,
}

impl Space {
    /// With nothing placed.
    pub(super) fn empty(problem: &Problem<'_, '_>) -> Self {
        let widest = problem.classes.iter().map(|class| class.gpus as usize).max().unwrap_or(0);
        let mut space = Self {
            nodes: vec![0; problem.classes.len() * (widest + 1)],
            stride: widest + 1,
            free: 0,
            committed: problem.base,
            gpus_billed: 0.0,
        };
        for (at, class) in problem.classes.iter().enumerate() {
            let count = class.nodes.len() as u32;
            *space.nodes_with(at, class.free) = count;
            space.free += count * class.free;
        }
        space
    }

    /// As `other`, without asking for memory again.
    pub(super) fn reset(&mut self, other: &Self) {
        self.nodes.copy_from_slice(&other.nodes);
        (self.free, self.committed) = (other.free, other.committed);
        self.gpus_billed = other.gpus_billed;
    }

    pub(super) fn is_full(&self) -> bool {
        self.free == 0
    }
    pub(super) fn committed(&self) -> f64 {
        self.committed
    }

    fn nodes_with(&mut self, class: usize, free: u32) -> &mut u32 {
        &mut self.nodes[class * self.stride + free as usize]
    }
    fn has(&self, class: usize, free: u32) -> bool {
        self.nodes[class * self.stride + free as usize] > 0
    }

    /// The best place for a shape: on the node that it leaves fewest GPUs free on; a shape larger
    /// than any node takes whole nodes and a part of one more. Where the budget does not carry the
    /// best fit, the next one is tried.
    pub(super) fn fit(&self, problem: &Problem<'_, '_>, shape: Shape) -> Option<Fit> {
        self.fit_below(problem, shape, problem.budget)
    }

    /// The same, whatever it draws.
    pub(super) fn fit_anyhow(&self, problem: &Problem<'_, '_>, shape: Shape) -> Option<Fit> {
        self.fit_below(problem, shape, f64::INFINITY)
    }

    fn fit_below(&self, problem: &Problem<'_, '_>, shape: Shape, budget: f64) -> Option<Fit> {
        let largest = problem.view.state.cluster().largest_node(shape.gpu_type);
        let kinds = problem.of_type[shape.gpu_type.index()].clone();
        let watts_left = budget - self.committed;
        if shape.gpus <= largest {
            // Plain loops: this is where the time goes, and chains of iterators are not always
            // made one.
            for free in shape.gpus..=largest {
                for class in kinds.clone() {
                    let part = Part { class, free, gpus: shape.gpus };
                    let known = &problem.classes[class];
                    if free <= known.gpus
                        && self.has(class, free)
                        && rise(known, part) <= watts_left
                    {
                        return Some(Fit::One(part));
                    }
                }
            }
            return None;
        }
        let mut left = shape.gpus;
        let mut parts = Vec::new();
        for gpus in (1..=largest).rev() {
            for class in kinds.clone().filter(|class| problem.classes[*class].gpus == gpus) {
                let whole = self.nodes[class * self.stride + gpus as usize].min(left / gpus);
                left -= whole * gpus;
                parts.extend((0..whole).map(|_| Part { class, free: gpus, gpus }));
            }
        }
        if left > 0 {
            let mut rest = self.clone();
            for part in &parts {
                *rest.nodes_with(part.class, part.free) -= 1;
            }
            let one_more = Shape { gpus: left, ..shape };
            let fit = (left < largest).then(|| rest.fit_below(problem, one_more, f64::INFINITY));
            parts.extend(fit??.parts());
        }
        let rise: f64 = parts.iter().map(|part| rise(&problem.classes[part.class], *part)).sum();
        (rise <= watts_left).then_some(Fit::Several(parts))
    }

    /// Takes GPUs that draw `per_gpu` each.
    pub(super) fn take(&mut self, problem: &Problem<'_, '_>, fit: &Fit, per_gpu: Watts) {
        for part in fit.parts() {
            self.take_part(problem, *part, per_gpu);
        }
    }

    pub(super) fn take_part(&mut self, problem: &Problem<'_, '_>, part: Part, per_gpu: Watts) {
        let class = &problem.classes[part.class];
        *self.nodes_with(part.class, part.free) -= 1;
        *self.nodes_with(part.class, part.free - part.gpus) += 1;
        self.free -= part.gpus;
        self.committed += rise(class, part);
        self.gpus_billed += class.gpu_pue * per_gpu.get() * f64::from(part.gpus);
    }

    /// Billed power of all nodes that have something to do.
    pub(super) fn billed(&self, problem: &Problem<'_, '_>) -> f64 {
        let mut sum = self.gpus_billed;
        for (class, nodes) in problem.classes.iter().zip(self.nodes.chunks(self.stride)) {
            for (billed, count) in class.billed.iter().zip(nodes) {
                sum += billed * f64::from(*count);
            }
        }
        sum
    }
}

/// By how much committed power rises.
fn rise(class: &Class, part: Part) -> f64 {
    class.committed[(part.free - part.gpus) as usize] - class.committed[part.free as usize]
}
