//! Heterogeneous jobs: several parts, each with nodes of its own, that start together.
//!
//! Each part is a job for the engine, which keeps room for one after the other. When there is room
//! for all of them they are let go. SLURM never puts two parts on one node, so nodes are dealt out
//! among them beforehand.

use super::command::printable;
use super::eligibility::Eligibility;
use super::instruction::{Begin, Instruction, JobName, JobUpdate};
use super::limits::limits_of;
use super::orders::{Order, Purpose, Target};
use super::read::SlurmJob;
use super::seen::Seen;
use super::{Slurm, Step};
use crate::backend::Known;
use crate::job_registry::SlurmOrigin;
use std::collections::BTreeSet;
use wattline_core::Timestamp;
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::{ActionId, NodeId};
use wattline_core::job::NodeChoice;
use wattline_core::placement::Placement;
use wattline_core::state::Phase;

/// A part that is to start.
struct Part<'a> {
    job: &'a SlurmJob,
    placement: &'a Placement,
    slurm: &'a SlurmOrigin,
    start: ActionId,
}

/// How far the parts of a job are.
pub(super) enum Parts {
    /// There is not room for each yet.
    Gather,
    /// Limits of the GPUs that they may get are being set.
    Set,
    /// They are being let go, if there was room for the order.
    LetGo(bool),
}

/// Nodes for each part: those it must have, as many of one type as it needs, and its share of the
/// rest. None if there are too few.
fn deal(cluster: &Cluster, parts: &[Eligibility]) -> Option<Vec<Vec<NodeId>>> {
    let choices: Vec<&NodeChoice> = parts.iter().filter_map(|part| part.nodes.as_ref()).collect();
    let mut dealt: Vec<Vec<NodeId>> = choices.iter().map(|nodes| nodes.required.to_vec()).collect();
    let mut taken: BTreeSet<NodeId> = BTreeSet::new();
    if dealt.len() < parts.len() || !dealt.iter().flatten().all(|node| taken.insert(*node)) {
        return None;
    }
    // Whoever has least to choose from chooses first.
    let mut order: Vec<usize> = (0..choices.len()).collect();
    order.sort_by_key(|part| choices[*part].allowed.len());
    for part in &order {
        let (own, choice) = (&mut dealt[*part], choices[*part]);
        let count = choice.count as usize;
        let free = |shape: &Shape| -> Vec<NodeId> {
            let each = shape.gpus / choice.count.max(1);
            let fits = |id: &NodeId| {
                let node = cluster.node(*id);
                node.gpu_type == shape.gpu_type && u32::from(node.gpus) >= each
            };
            let open = choice.allowed.iter().filter(|id| !taken.contains(id) && fits(id));
            open.copied().take(count.saturating_sub(own.len())).collect()
        };
        let enough = |nodes: &Vec<NodeId>| own.len() + nodes.len() >= count;
        let more = parts[*part].shapes.iter().map(free).find(enough)?;
        taken.extend(&more);
        own.extend(more);
    }
    for node in cluster.node_ids().filter(|id| !taken.contains(id)) {
        let may = |part: &&usize| {
            let required = choices[**part].required.len() == choices[**part].count as usize;
            !required && choices[**part].allowed.contains(&node)
        };
        let fewest = order.iter().filter(may).min_by_key(|part| (dealt[**part].len(), **part));
        if let Some(part) = fewest {
            dealt[*part].push(node);
        }
    }
    dealt.iter_mut().for_each(|nodes| nodes.sort_unstable());
    Some(dealt)
}

impl SlurmJob {
    /// Whether it is the first part of a heterogeneous job. What is said of it is said of all parts.
    pub(super) fn leads(&self) -> bool {
        self.het_job_id.is_some() && self.het_job_offset.unwrap_or(0) == 0
    }
}

impl Slurm {
    /// Where a part may run: on nodes that no other part may have. None if there are too few.
    pub(super) fn eligibility_of_part(&self, job: &SlurmJob) -> Option<Eligibility> {
        let seen = self.seen.as_ref()?;
        let mut parts: Vec<&SlurmJob> = (seen.jobs())
            .filter(|part| part.het_job_id == job.het_job_id && !part.state.is_over())
            .collect();
        parts.sort_by_key(|part| part.het_job_offset);
        if self.part_of_others(job, seen).is_some() {
            return None;
        }
        let own_parts =
            parts.iter().map(|part| self.certain(part)).collect::<Option<Vec<Eligibility>>>()?;
        let dealt = deal(&self.site.cluster, &own_parts)?;
        let own = parts.iter().position(|part| part.key.id == job.key.id)?;
        own_parts.into_iter().zip(dealt).nth(own).map(|(part, allowed)| {
            let of_type = |shape: &Shape| {
                allowed.iter().filter(|id| self.site.node(**id).gpu_type == shape.gpu_type).count()
            };
            let nodes =
                part.nodes.map(|nodes| NodeChoice { allowed: allowed.clone().into(), ..nodes });
            let count = nodes.as_ref().map_or(1, |nodes| nodes.count as usize);
            let shapes = part.shapes.iter().copied().filter(|shape| of_type(shape) >= count);
            Eligibility { shapes: shapes.collect(), nodes }
        })
    }

    /// Why a heterogeneous job cannot be started by us: parts start together, and nothing is ever said
    /// about one in a partition that is not looked after.
    pub(super) fn part_of_others(&self, job: &SlurmJob, seen: &Seen) -> Option<String> {
        job.het_job_id?;
        let theirs = seen.jobs().find(|part| {
            part.het_job_id == job.het_job_id && !self.site.looks_after(&part.partition)
        })?;
        Some(format!(
            "its part {} is in partition {}, which Wattline does not control; all parts must be in \
             partitions that it controls",
            theirs.shown(),
            printable(&theirs.partition)
        ))
    }

    /// Lets all parts go if there is room for each; the first part does it for all. `since`: when it
    /// began to wait for the others.
    pub(super) fn release_parts(
        &mut self,
        now: Timestamp,
        since: Timestamp,
        start: ActionId,
        job: &SlurmJob,
        known: Known<'_>,
    ) -> Parts {
        let Some(seen) = self.seen.clone().filter(|_| job.leads()) else { return Parts::Gather };
        let parts: Option<Vec<Part<'_>>> = seen
            .jobs()
            .filter(|part| part.het_job_id == job.het_job_id && !part.state.is_over())
            .map(|part| {
                let id = known.registry.find(&super::seen::key(part))?;
                let state = known.engine.state().find_job(id)?;
                let Phase::Starting(start) = state.phase else { return None };
                let placement = state.held.as_ref().filter(|_| part.state.waits())?;
                Some(Part { job: part, placement, slurm: known.registry.slurm(id)?, start })
            })
            .collect();
        let settled = |part: &Part<'_>| self.is_settled(Target::Job(part.job.key.id));
        let Some(parts) = parts.filter(|parts| parts.iter().all(settled)) else {
            return Parts::Gather;
        };
        let limits = limits_of(parts.iter().map(|part| part.placement));
        if !self.is_their_turn(&limits) {
            return Parts::Gather;
        }
        if self.limits_hold(now, &limits) {
            let order = self.let_parts_go(job, &parts).with(Purpose::Start(start, job.address()));
            return Parts::LetGo(self.order(now, order));
        }
        // Nobody raises limits on the other parts' nodes either.
        for part in &parts {
            if let Some(wanted) = self.wanted.get_mut(&part.start) {
                wanted.step = Step::Setting(since);
            }
        }
        Parts::Set
    }

    fn let_parts_go(&self, first: &SlurmJob, parts: &[Part<'_>]) -> Order {
        // What is said of the first is said of all, so the others have their say after it.
        let (leaders, others): (Vec<_>, Vec<_>) = parts.iter().partition(|part| part.job.leads());
        let now = JobUpdate { begin: Some(Begin::Now), ..JobUpdate::default() };
        let mut told = Vec::new();
        for Part { job, placement, slurm, .. } in leaders.into_iter().chain(others) {
            let names = self.names(placement);
            let name = JobName::numbered(job.key.id);
            if job.leads() {
                let excluded = Some(self.all_but(&names).join(","));
                told.push(Instruction::Update(name, JobUpdate { excluded, ..now.clone() }));
            } else {
                let required = Some(names.join(","));
                let excluded = Some(slurm.asked.excluded.join(","));
                let update = JobUpdate { required, excluded, ..now.clone() };
                told.push(Instruction::Update(name, update));
            }
        }
        told.push(Instruction::Release(JobName::numbered(first.key.id)));
        let complaint = format!("job {} cannot be started", first.address());
        let order = Order::tell(Target::Job(first.key.id), told, complaint);
        Order { targets: parts.iter().map(|part| Target::Job(part.job.key.id)).collect(), ..order }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use wattline_core::ids::GpuTypeId;
    use wattline_sim::scenario::Scenario;

    fn part(count: u32, each: u32, required: &[u32], allowed: &[u32]) -> Eligibility {
        let ids = |all: &[u32]| all.iter().map(|id| NodeId(*id)).collect();
        let nodes = NodeChoice { count, required: ids(required), allowed: ids(allowed) };
        let shapes = [Shape { gpu_type: GpuTypeId(0), gpus: each * count }].into();
        Eligibility { shapes, nodes: Some(nodes) }
    }

    fn dealt(parts: &[Eligibility]) -> Option<Vec<Vec<u32>>> {
        let text =
            "name = \"m\"\n[[nodes]]\ncount = 4\ngpu = \"h200\"\ngpus = 4\n[jobs]\ncount = 1\n";
        let instance = Scenario::parse(text, "m").unwrap().instance("m", None).unwrap();
        let numbers = |nodes: Vec<NodeId>| nodes.into_iter().map(|node| node.0).collect();
        Some(deal(&instance.cluster, parts)?.into_iter().map(numbers).collect())
    }

    /// SLURM was seen to wait for ever with two parts that were told to go to one node.
    #[test]
    fn no_two_parts_may_have_the_same_node() {
        let all = [0, 1, 2, 3];
        let two = [part(1, 1, &[], &all), part(1, 2, &[], &all)];
        assert_eq!(dealt(&two), Some(vec![vec![0, 2], vec![1, 3]]));
        // Those who may have few nodes get them, and all get what they need.
        let uneven = [part(2, 4, &[], &all), part(1, 1, &[], &[0]), part(1, 1, &[3], &[3])];
        assert_eq!(dealt(&uneven), Some(vec![vec![1, 2], vec![0], vec![3]]));
        let too_few = [part(3, 1, &[], &all), part(2, 1, &[], &all)];
        assert_eq!(dealt(&too_few), None);
        let at_one = [part(1, 1, &[2], &[2]), part(1, 1, &[2], &[2])];
        assert_eq!(dealt(&at_one), None);
    }
}
