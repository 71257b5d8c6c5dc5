//! Power limits of GPUs, around jobs that start.
//!
//! Which GPUs a job gets is for SLURM to say, and until it has them others may end and leave theirs
//! to it. So for that moment no GPU of the node has more than the job's limit, and none is raised
//! above it. Jobs with different limits start on a node one after the other.

use super::orders::{Order, Purpose, Target, Work};
use super::{Slurm, Step, Wanted};
use crate::backend::Known;
use crate::slurm::read::{NodeGpus, SlurmJob};
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::action::ActionKind;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::placement::Placement;
use wattline_core::state::Phase;
use wattline_core::units::Watts;

/// Limits that are equal differ by less.
pub(super) const SAME: f64 = 0.5;

/// What no GPU of a node may exceed while these start there together.
pub(super) fn limits_of<'p>(
    placements: impl IntoIterator<Item = &'p Placement>,
) -> BTreeMap<NodeId, Watts> {
    let mut limits: BTreeMap<NodeId, Watts> = BTreeMap::new();
    for placement in placements {
        let limit = placement.configuration.power_limit;
        for share in placement.allocation.shares() {
            let least = limits.entry(share.node).or_insert(limit);
            *least = least.min(limit);
        }
    }
    limits
}

/// What a job that is about to start allows on a node.
fn allows(wanted: &Wanted, node: NodeId) -> Option<Watts> {
    let ActionKind::Start { placement, .. } = &wanted.action.kind else { return None };
    let about = matches!(wanted.step, Step::Setting(_) | Step::Released(_) | Step::GivingUp(_));
    let there = || placement.allocation.shares().any(|share| share.node == node);
    (about && there()).then_some(placement.configuration.power_limit)
}

impl Slurm {
    /// The lowest limit of a job that is about to start on a node.
    fn starting_limit(&self, node: NodeId) -> Option<Watts> {
        self.wanted.values().filter_map(|wanted| allows(wanted, node)).reduce(Watts::min)
    }

    /// Whether a GPU of a node may have this limit now.
    pub(super) fn may_have(&self, node: NodeId, limit: Watts) -> bool {
        self.starting_limit(node).is_none_or(|least| limit <= least)
    }

    /// Whether nobody with another limit is about to start on these nodes. Two that each set their
    /// own would find the other's at every look, and neither would ever start.
    pub(super) fn is_their_turn(&self, limits: &BTreeMap<NodeId, Watts>) -> bool {
        let free = |(node, limit): (&NodeId, &Watts)| {
            self.site.actuator(*node).is_none()
                || self.starting_limit(*node).is_none_or(|other| other == *limit)
        };
        limits.iter().all(free)
    }

    /// Whether no GPU of these nodes has more than this, and free ones have just this; asks for it
    /// where that is not so. GPUs of jobs that are not ours keep their limits: should one of them pass
    /// to the job that starts, its limit is set as soon as that is seen.
    pub(super) fn limits_hold(&mut self, now: Timestamp, limits: &BTreeMap<NodeId, Watts>) -> bool {
        let mut hold = true;
        for (node, limit) in limits {
            if self.site.actuator(*node).is_none() {
                continue;
            }
            let is = self.site.node(*node);
            let Some(seen) = self.seen.as_ref().and_then(|seen| seen.nodes.get(&*is.name)) else {
                return false;
            };
            let gpus = 0..u32::from(is.gpus);
            let counts = |gpu: &u32| {
                let free = !seen.gpus_used_indices.contains(gpu);
                if !free && self.foreign_gpus.contains(&(*node, *gpu)) {
                    return false;
                }
                free || self.most(*node, *gpu).is_none_or(|most| most > *limit)
            };
            let all: Vec<(NodeId, u32)> = gpus.filter(counts).map(|gpu| (*node, gpu)).collect();
            hold &= self.limits_are(now, &all, *limit) == Some(true);
        }
        hold
    }

    /// The most that a GPU has, or will have when what was asked for holds; none if that is not
    /// known.
    pub(super) fn most(&self, node: NodeId, gpu: u32) -> Option<Watts> {
        let holds = self.readings.limit(node, gpu)?;
        Some(self.limits_asked.get(&(node, gpu)).map_or(holds, |asked| holds.max(*asked)))
    }

    /// Running jobs have the limits that count for them, whoever has changed them: a start beside
    /// them, for a moment, or somebody else.
    pub(super) fn restore_limits(&mut self, now: Timestamp, known: Known<'_>) {
        let Some(seen) = self.seen.as_ref().filter(|_| self.sees(now)) else { return };
        let mut wrong = Vec::new();
        for (id, job) in seen.known() {
            let Some(state) = known.engine.state().find_job(id) else { continue };
            if !self.is_settled(Target::Job(job.key.id)) {
                continue;
            }
            let (Phase::Running, Some(held)) = (state.phase, &state.held) else { continue };
            if self.is_limiting(id) {
                continue;
            }
            let limit = held.configuration.power_limit;
            let can = |(node, _): &(NodeId, u32)| {
                self.site.actuator(*node).is_some() && self.may_have(*node, limit)
            };
            wrong.push((self.gpus_of(job).into_iter().filter(can).collect::<Vec<_>>(), limit));
        }
        for (gpus, limit) in wrong {
            self.limits_are(now, &gpus, limit);
        }
    }

    /// Whether a job's limit is being changed.
    fn is_limiting(&self, id: JobId) -> bool {
        let limits = |wanted: &Wanted| matches!(&wanted.action.kind, ActionKind::Limit { job, .. } if *job == id);
        self.wanted.values().any(limits)
    }

    /// Whether these GPUs have this limit; asks for it where they do not. None if that cannot be.
    ///
    /// What is read back may be older than what was last asked for. So a limit counts only if it was
    /// also the last one that was, and if it was read after that was done.
    pub(super) fn limits_are(
        &mut self,
        now: Timestamp,
        gpus: &[(NodeId, u32)],
        limit: Watts,
    ) -> Option<bool> {
        let mut wrong: BTreeMap<NodeId, Vec<(u32, Watts)>> = BTreeMap::new();
        let mut all = true;
        for (node, gpu) in gpus {
            if self.site.actuator(*node).is_none() {
                let default = self.site.cluster.gpu_type(self.site.node(*node).gpu_type);
                if default.default_limit != limit {
                    return None;
                }
                continue;
            }
            let settled = self.is_settled(Target::Limits(*node));
            let read = self.readings.limit(*node, *gpu);
            let same = read.is_some_and(|read| (read.get() - limit.get()).abs() < SAME);
            let asked = self.limits_asked.get(&(*node, *gpu)) == Some(&limit);
            if settled && same && asked {
                continue;
            }
            all = false;
            // What was asked for and was not read since may have come true.
            if settled || !asked {
                wrong.entry(*node).or_default().push((*gpu, limit));
            }
        }
        let mut refused = false;
        for (node, limits) in wrong {
            refused |= self.limits_failed.remove(&node);
            self.ask_for_limits(now, node, limits);
        }
        if refused { None } else { Some(all) }
    }

    /// Asks for limits on a node, if nothing is under way there.
    fn ask_for_limits(&mut self, now: Timestamp, node: NodeId, limits: Vec<(u32, Watts)>) {
        let lowers =
            |(gpu, limit): &(u32, Watts)| self.most(node, *gpu).is_some_and(|most| *limit <= most);
        let order = Order {
            id: 0,
            targets: vec![Target::Limits(node)],
            lowers: limits.iter().all(lowers),
            work: Work::Limits(node, limits.clone()),
            purpose: Purpose::Limits,
            complaint: format!("node {}", self.site.node(node).name),
        };
        if self.order(now, order) {
            let asked = limits.into_iter().map(|(gpu, limit)| ((node, gpu), limit));
            self.limits_asked.extend(asked);
        }
    }

    /// A running job's GPUs.
    pub(super) fn gpus_of(&self, job: &SlurmJob) -> Vec<(NodeId, u32)> {
        let on = |on: &NodeGpus| {
            let node = self.site.find(&on.node)?;
            Some(on.indices.iter().map(|gpu| (node, *gpu)).collect::<Vec<_>>())
        };
        job.gpus.iter().filter_map(on).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::config::Config;
    use super::super::crew::carry_out;
    use super::super::readings::Readings;
    use super::super::site::Site;
    use super::*;
    use std::path::Path;
    use std::sync::Arc;
    use wattline_core::action::Action;
    use wattline_core::ids::{ActionId, GpuTypeId, PlanId};
    use wattline_core::placement::{Allocation, Configuration, Share};
    use wattline_sim::scenario::Scenario;

    const NOW: Timestamp = Timestamp::ZERO;

    /// Two nodes with four GPUs each, whose limits are in this folder.
    fn slurm(folder: &Path) -> Slurm {
        let text =
            "name = \"m\"\n[[nodes]]\ncount = 2\ngpu = \"h200\"\ngpus = 4\n[jobs]\ncount = 1\n";
        let instance = Scenario::parse(text, "m").unwrap().instance("m", None).unwrap();
        let limits = [0, 1].map(|node| Some(folder.join(format!("{node}"))));
        for folder in limits.iter().flatten() {
            std::fs::create_dir_all(folder).unwrap();
        }
        let config = Config { partitions: vec!["gpu".into()], ..Config::default() };
        let site = Site::new(config, Arc::clone(&instance.cluster), &limits, Vec::new());
        Slurm::new(site)
    }

    fn placement(gpu: u32, node: u32, limit: f64) -> Placement {
        let share = Share { node: NodeId(node), mask: 1 << gpu };
        Placement {
            configuration: Configuration {
                gpu_type: GpuTypeId(0),
                gpus: 1,
                nodes: 1,
                batch: 64,
                power_limit: Watts::new(limit),
            },
            allocation: Allocation::over([share].into_iter().collect()),
        }
    }

    fn start(slurm: &mut Slurm, id: u32, node: u32, limit: f64) {
        let kind = ActionKind::Start { job: JobId(id), placement: placement(id, node, limit) };
        slurm.want(&Action { id: ActionId(u64::from(id)), generation: PlanId(1), kind });
    }

    /// Found when a controller was killed again and again: three jobs with two limits waited for
    /// each other on a node for ever.
    #[test]
    fn jobs_with_different_limits_start_on_a_node_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let mut slurm = slurm(folder.path());
        for (id, limit) in [(0, 300.0), (1, 500.0), (2, 300.0)] {
            start(&mut slurm, id, 0, limit);
        }
        let turn = |slurm: &Slurm, node: u32, limit: f64| {
            slurm.is_their_turn(&limits_of([&placement(0, node, limit)]))
        };
        assert!(turn(&slurm, 0, 300.0) && turn(&slurm, 0, 500.0), "nobody has begun");
        for (step, at) in
            [(Step::Setting(NOW), 0), (Step::Released(NOW), 0), (Step::Released(NOW), 2)]
        {
            slurm.wanted.get_mut(&ActionId(at)).unwrap().step = step;
            assert!(turn(&slurm, 0, 300.0) && !turn(&slurm, 0, 500.0) && turn(&slurm, 1, 500.0));
            // Nor is anybody raised above that meanwhile.
            assert!(slurm.may_have(NodeId(0), Watts::new(300.0)));
            assert!(!slurm.may_have(NodeId(0), Watts::new(500.0)));
        }
        slurm.wanted.remove(&ActionId(0));
        assert!(!turn(&slurm, 0, 500.0), "one is still about to start");
        slurm.wanted.remove(&ActionId(2));
        assert!(turn(&slurm, 0, 500.0));
    }

    /// What threads would do.
    fn carry_out_all(slurm: &mut Slurm) {
        for order in slurm.orders.take() {
            let outcome = carry_out(&order, &slurm.site, &slurm.link, &slurm.ticks);
            slurm.take_outcome(NOW, &outcome);
        }
    }

    #[test]
    fn a_limit_is_asked_for_once_and_a_refusal_is_heard_of() {
        let folder = tempfile::tempdir().unwrap();
        let mut slurm = slurm(folder.path());
        let (gpus, low) = ([(NodeId(0), 0)], Watts::new(300.0));
        assert_eq!(slurm.limits_are(NOW, &gpus, low), Some(false));
        assert_eq!(slurm.limits_are(NOW, &gpus, low), Some(false));
        assert_eq!(slurm.orders.take().len(), 1, "not again while it is under way");
        std::fs::remove_dir_all(folder.path().join("1")).unwrap();
        let there = [(NodeId(1), 0)];
        assert_eq!(slurm.limits_are(NOW, &there, low), Some(false));
        carry_out_all(&mut slurm);
        assert!(slurm.take_complaints()[0].contains("limit0"));
        slurm.readings = Readings::take(&slurm.site, &slurm.ticks);
        assert_eq!(slurm.limits_are(NOW, &there, low), None, "the node did not take it");
    }

    /// A limit that was to be raised read back low for a moment longer; a job was let go on it, got
    /// those GPUs, and drew more than was kept for it.
    #[test]
    fn what_is_read_back_from_before_the_last_change_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let mut slurm = slurm(folder.path());
        let (gpus, low, high) = ([(NodeId(0), 0)], Watts::new(300.0), Watts::new(500.0));
        let enforce = |watts: f64| {
            std::fs::write(folder.path().join("0/enforced0"), format!("{watts}\n")).unwrap();
        };
        let asked = || std::fs::read_to_string(folder.path().join("0/limit0")).unwrap();
        let look = |slurm: &mut Slurm, limit: Watts| {
            slurm.readings = Readings::take(&slurm.site, &slurm.ticks);
            let are = slurm.limits_are(NOW, &gpus, limit);
            carry_out_all(slurm);
            are
        };
        enforce(300.0);
        assert_eq!(look(&mut slurm, low), Some(false), "nobody knows who asked for it");
        assert_eq!(slurm.limits_are(NOW, &gpus, low), Some(false), "read before it was asked for");
        assert_eq!(look(&mut slurm, low), Some(true));
        // It is raised, which takes a moment.
        assert_eq!(look(&mut slurm, high), Some(false));
        assert_eq!((slurm.most(NodeId(0), 0), asked().trim()), (Some(high), "500"));
        assert_eq!(look(&mut slurm, low), Some(false));
        enforce(500.0);
        assert_eq!((look(&mut slurm, low), asked().trim()), (Some(false), "300"));
        enforce(300.0);
        assert_eq!(look(&mut slurm, low), Some(true));
        assert_eq!(slurm.most(NodeId(0), 0), Some(low));
    }

    /// Found on a shared node: each start of ours lowered the limits of other people's jobs for a
    /// moment.
    #[test]
    fn a_start_beside_a_job_of_another_partition_does_not_slow_that_down() {
        use crate::slurm::read;
        let folder = tempfile::tempdir().unwrap();
        let mut slurm = slurm(folder.path());
        let name = slurm.site.node(NodeId(0)).name.clone();
        let job = |id: u32, partition: &str, gpu: u32| {
            format!(
                "{{\"job_id\":{id},\"submit_time\":1,\"restart_cnt\":0,\"user_id\":7,\"name\":\"j\",\
                 \"partition\":\"{partition}\",\"job_state\":\"RUNNING\",\"nodes\":\"{name}\",\
                 \"priority\":1,\"gres_detail\":[\"gpu:h200:1(IDX:{gpu})\"]}}"
            )
        };
        let jobs = format!("{{\"jobs\":[{},{}]}}", job(1, "open", 0), job(2, "gpu", 1));
        let nodes = format!(
            "{{\"nodes\":[{{\"name\":\"{name}\",\"state\":\"mixed\",\"gres\":\"gpu:h200:4\",\
             \"gres_used\":\"gpu:h200:2(IDX:0-1)\",\"cpus\":64,\"partitions\":[\"gpu\",\"open\"]}}]}}"
        );
        let (jobs, nodes) = (read::jobs(&jobs).unwrap(), read::nodes(&nodes).unwrap());
        let seen = crate::slurm::seen::Seen::of(jobs, nodes, slurm.ticks.next());
        slurm.take_foreign(&seen);
        slurm.seen = Some(Arc::new(seen));
        for gpu in 0..4 {
            std::fs::write(folder.path().join(format!("0/enforced{gpu}")), "700\n").unwrap();
        }
        slurm.readings = Readings::take(&slurm.site, &slurm.ticks);
        assert!(!slurm.limits_hold(NOW, &limits_of([&placement(3, 0, 300.0)])));
        carry_out_all(&mut slurm);
        let asked = |gpu: u32| {
            let text = std::fs::read_to_string(folder.path().join(format!("0/limit{gpu}")));
            text.unwrap_or_default().trim().to_owned()
        };
        assert_eq!([0, 1, 2, 3].map(asked), ["", "300", "300", "300"]);
    }

    #[test]
    fn parts_that_start_together_are_held_to_the_lowest_limit_on_each_node() {
        let parts = [placement(0, 0, 500.0), placement(1, 0, 300.0), placement(0, 1, 500.0)];
        let limits: Vec<(u32, f64)> =
            limits_of(&parts).iter().map(|(node, limit)| (node.0, limit.get())).collect();
        assert_eq!(limits, [(0, 300.0), (1, 500.0)]);
    }
}
