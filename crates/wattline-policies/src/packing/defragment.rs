//! Moves that make room: where free GPUs would do for a job but lie scattered, a few small jobs
//! go elsewhere.

use super::buddy;
use super::space::{Space, Where};
use wattline_core::cluster::Shape;
use wattline_core::ids::NodeId;
use wattline_core::placement::{Allocation, Share, mask_of};

/// A job on one node that may be moved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mover {
    /// The caller's number for it.
    pub(crate) item: usize,
    /// Where it is.
    pub(crate) share: Share,
    /// What moving it costs, in the caller's measure.
    pub(crate) cost: f64,
}

/// Somebody goes somewhere else.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Move {
    pub(crate) item: usize,
    pub(crate) from: Share,
    pub(crate) to: Allocation,
}

/// At most `most` moves, that cost no more than `worth` together, after which so many GPUs are free
/// on one node: the cheapest that were found. `on` lists who could be moved from a node. The space
/// is as it was.
pub(crate) fn make_room(
    space: &mut Space<'_>,
    shape: Shape,
    on: &dyn Fn(NodeId) -> Vec<Mover>,
    most: usize,
    worth: f64,
) -> Option<Vec<Move>> {
    let cluster = space.cluster();
    let mut best: Option<(f64, NodeId, Vec<Mover>)> = None;
    let nodes = cluster.node_ids().filter(|node| {
        let kind = cluster.node(*node);
        kind.gpu_type == shape.gpu_type && u32::from(kind.gpus) >= shape.gpus
    });
    for node in nodes.filter(|node| space.ready(*node) == Some(true)) {
        // A node with little free needs more moves than are worth it.
        if space.free(node) == 0 {
            continue;
        }
        let movers = on(node);
        for block in buddy::blocks(mask_of(cluster.node(node).gpus), shape.gpus) {
            let taken = block & !space.free(node);
            let inside: Vec<Mover> =
                movers.iter().filter(|m| m.share.mask & block != 0).copied().collect();
            let movable = inside.iter().fold(0, |mask, m| mask | m.share.mask);
            let cost: f64 = inside.iter().map(|m| m.cost).sum();
            let possible = taken & !movable == 0 && !inside.is_empty() && inside.len() <= most;
            if possible && cost <= worth && best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                best = Some((cost, node, inside));
            }
        }
    }
    let (_, node, movers) = best?;
    carry_out(space, node, &movers)
}

/// Whether all of them find a place on other nodes, and where.
fn carry_out(space: &mut Space<'_>, node: NodeId, movers: &[Mover]) -> Option<Vec<Move>> {
    let here = Allocation::on(node, space.free(node));
    space.take(&here);
    let mut moves: Vec<Move> = Vec::new();
    let mut movers = movers.to_vec();
    movers.sort_by_key(|m| std::cmp::Reverse(m.share.count()));
    for mover in &movers {
        let gpu_type = space.cluster().node(node).gpu_type;
        let shape = Shape { gpu_type, gpus: mover.share.count() };
        let Some(to) = space.place(shape, Where::Ready) else { break };
        space.take(&to);
        moves.push(Move { item: mover.item, from: mover.share, to });
    }
    for one in &moves {
        space.give_back(&one.to);
    }
    space.give_back(&here);
    (moves.len() == movers.len()).then_some(moves)
}
