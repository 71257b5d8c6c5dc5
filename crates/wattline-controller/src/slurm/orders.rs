//! What SLURM and the nodes are told, and what is known of that: pure bookkeeping.
//!
//! An order is about targets: jobs, nodes, a node's limits. As long as one is under way about a
//! target no other is given about it, so that order is kept and nothing is told twice. How many are
//! under way is bounded by the targets there are, and those that raise power by [`MOST_RAISING`].
//!
//! What was seen of a target before its last order had ended may be older than that order's effect.
//! So looks and orders are stamped by a common counter, and nothing is concluded from a look about a
//! target whose last order ended after the look began.

use super::Step;
use super::breaker::Breaker;
use super::command::CommandError;
use super::instruction::Instruction;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wattline_core::Timestamp;
use wattline_core::ids::{ActionId, NodeId};
use wattline_core::units::{Seconds, Watts};

/// Orders that may raise power, or change nothing about it, that are under way at most. What finds
/// no room is decided anew at the next look. At 10 ms for each command these are 2 s of work.
const MOST_RAISING: usize = 64;

/// What failed is not told to the same target again before this: whoever refuses at once would
/// otherwise be asked in a circle. A look is about as long apart.
const AFTER_FAILURE: Seconds = Seconds::new(2.0);

/// A time, as far as what came before what matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(u64);

/// Where stamps come from. Copies count together.
#[derive(Clone, Debug, Default)]
pub(super) struct Ticks(Arc<AtomicU64>);

impl Ticks {
    /// Later than all stamps before.
    pub(super) fn next(&self) -> Stamp {
        Stamp(self.0.fetch_add(1, Ordering::SeqCst) + 1)
    }
}

/// What an order is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// A job, by its number in SLURM.
    Job(u32),
    /// A node, as slurmctld sees it.
    Node(NodeId),
    /// The limits of a node's GPUs.
    Limits(NodeId),
    /// slurmd on a node, which must answer itself.
    Slurmd(NodeId),
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandLine {
    pub(super) program: &'static str,
    pub(super) args: Vec<String>,
}

impl CommandLine {
    pub(super) fn new(program: &'static str, args: &[impl AsRef<str>]) -> Self {
        Self { program, args: args.iter().map(|arg| arg.as_ref().to_owned()).collect() }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Work {
    /// slurmctld is told these one after the other, until one fails.
    Tell(Vec<Instruction>),
    /// Set these limits on a node.
    Limits(NodeId, Vec<(u32, Watts)>),
}

/// Who carries an order out. What hangs in one lane delays nothing in the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Limits of GPUs.
    Limits,
    /// slurmctld, what lowers power.
    Lower,
    /// slurmctld, all else.
    Other,
    /// What a slurmd must answer: on a dead node it takes the whole time limit.
    Nodes,
}

impl Lane {
    pub(super) const ALL: [Self; 4] = [Self::Limits, Self::Lower, Self::Other, Self::Nodes];
}

/// What follows from an order's end, beside a complaint if it failed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// A job is let go for this action; if that fails, it is held again.
    Start(ActionId, String),
    /// A job is to leave its GPUs; if that fails, the action is where it was before.
    Stop(ActionId, Step),
    /// A node's limits.
    Limits,
    /// Nothing.
    Other,
}

/// An order.
#[derive(Clone, Debug)]
pub(super) struct Order {
    pub(super) id: u64,
    pub(super) targets: Vec<Target>,
    pub(super) work: Work,
    /// It lowers power, so it waits for no breaker of slurmctld's.
    pub(super) lowers: bool,
    pub(super) purpose: Purpose,
    /// How a complaint about it begins: "job 7 cannot be held".
    pub(super) complaint: String,
}

impl Order {
    /// slurmctld is told something about a target.
    pub(super) fn tell(target: Target, told: Vec<Instruction>, complaint: String) -> Self {
        let (work, targets) = (Work::Tell(told), vec![target]);
        Self { id: 0, targets, work, lowers: false, purpose: Purpose::Other, complaint }
    }

    pub(super) fn lowering(self) -> Self {
        Self { lowers: true, ..self }
    }

    pub(super) fn with(self, purpose: Purpose) -> Self {
        Self { purpose, ..self }
    }

    pub(super) fn lane(&self) -> Lane {
        match &self.work {
            Work::Limits(..) => Lane::Limits,
            Work::Tell(_) if self.slurmds().next().is_some() => Lane::Nodes,
            Work::Tell(_) if self.lowers => Lane::Lower,
            Work::Tell(_) => Lane::Other,
        }
    }

    fn slurmds(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.targets.iter().filter_map(|target| match target {
            Target::Slurmd(node) => Some(*node),
            _ => None,
        })
    }
}

/// Why an order had no effect, as far as that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) said: String,
    /// Nobody answered, so that it is not known whether it had an effect.
    pub(super) unanswered: bool,
}

impl From<CommandError> for Failure {
    fn from(error: CommandError) -> Self {
        Self { unanswered: error.is_unanswered(), said: error.to_string() }
    }
}

/// What became of an order.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) id: u64,
    pub(super) began: Stamp,
    pub(super) ended: Stamp,
    pub(super) result: Result<(), Failure>,
}

/// Orders and what is known of them.
#[derive(Debug, Default)]
pub(super) struct Orders {
    last: u64,
    under_way: BTreeMap<u64, Order>,
    busy: BTreeMap<Target, u64>,
    /// When the last order about a target ended, until a later look is there.
    ended: BTreeMap<Target, Stamp>,
    /// When the last order about a target failed, if that was just now.
    failed: BTreeMap<Target, Timestamp>,
    /// Not handed over yet.
    out: Vec<Order>,
    slurmctld: Breaker,
    slurmds: BTreeMap<NodeId, Breaker>,
}

/// What a breaker says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switched {
    /// slurmctld takes no orders.
    SlurmctldOpened,
    SlurmctldClosed,
    SlurmdOpened(NodeId),
    SlurmdClosed(NodeId),
}

impl Orders {
    /// Whether an order about a target is under way.
    pub(super) fn is_busy(&self, target: Target) -> bool {
        self.busy.contains_key(&target)
    }

    /// Whether a look that began then can be believed about a target.
    pub(super) fn is_settled(&self, target: Target, look: Stamp) -> bool {
        !self.is_busy(target) && self.ended.get(&target).is_none_or(|ended| *ended < look)
    }

    /// Gives an order, if there is room for it and nothing is under way about its targets. False:
    /// it was not given.
    pub(super) fn give(&mut self, now: Timestamp, mut order: Order) -> bool {
        let lane = order.lane();
        let raising = || self.under_way.values().filter(|order| !order.lowers).count();
        let by_slurmctld = matches!(lane, Lane::Lower | Lane::Other | Lane::Nodes);
        self.failed.retain(|_, failed| now < *failed + AFTER_FAILURE);
        let blocked = |target: &Target| self.is_busy(*target) || self.failed.contains_key(target);
        let may = !order.targets.iter().any(blocked)
            && (order.lowers || raising() < MOST_RAISING)
            && (order.lowers || !by_slurmctld || self.slurmctld.permits(now))
            && order.slurmds().all(|node| self.slurmds.get(&node).is_none_or(|b| b.permits(now)));
        if !may {
            return false;
        }
        if by_slurmctld {
            self.slurmctld.tried(now);
        }
        for node in order.slurmds() {
            self.slurmds.entry(node).or_default().tried(now);
        }
        self.last += 1;
        order.id = self.last;
        self.busy.extend(order.targets.iter().map(|target| (*target, order.id)));
        self.under_way.insert(order.id, order.clone());
        self.out.push(order);
        true
    }

    /// Orders to hand over.
    pub(super) fn take(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.out)
    }

    /// An order has ended. `answered`: when the last look began at which slurmctld answered. Says
    /// which order it was, and which breakers have switched.
    pub(super) fn concluded(
        &mut self,
        now: Timestamp,
        outcome: &Outcome,
        answered: Option<Stamp>,
    ) -> Option<(Order, Vec<Switched>)> {
        let order = self.under_way.remove(&outcome.id)?;
        for target in &order.targets {
            self.busy.remove(target);
            self.ended.insert(*target, outcome.ended);
            // A job that could not be let go is held at once; if that fails too, it waits.
            let follows = matches!(order.purpose, Purpose::Start(..));
            if outcome.result.is_err() && !follows {
                self.failed.insert(*target, now);
            }
        }
        let mut switched = Vec::new();
        if order.lane() != Lane::Limits {
            let silent = matches!(&outcome.result, Err(failure) if failure.unanswered);
            // Who else answered meanwhile is not to blame.
            let by_slurmd = order.slurmds().next().is_some()
                && answered.is_some_and(|looked| looked > outcome.began);
            if silent && by_slurmd {
                for node in order.slurmds() {
                    if self.slurmds.entry(node).or_default().failed(now) {
                        switched.push(Switched::SlurmdOpened(node));
                    }
                }
            } else if silent {
                if self.slurmctld.failed(now) {
                    switched.push(Switched::SlurmctldOpened);
                }
            } else {
                if self.slurmctld.answered() {
                    switched.push(Switched::SlurmctldClosed);
                }
                for node in order.slurmds() {
                    if self.slurmds.remove(&node).is_some_and(|mut breaker| breaker.answered()) {
                        switched.push(Switched::SlurmdClosed(node));
                    }
                }
            }
        }
        Some((order, switched))
    }

    /// A look and readings that began then are there: orders that ended before both are history.
    pub(super) fn forget(&mut self, before: Stamp) {
        self.ended.retain(|_, ended| *ended >= before);
    }

    /// slurmctld, if it takes no orders: since when, how many in a row, and when it is tried again.
    pub(super) fn slurmctld_is_open(&self) -> Option<(Timestamp, u32, Timestamp)> {
        self.slurmctld.is_open()
    }

    /// The same of nodes.
    pub(super) fn slurmds_that_are_open(
        &self,
    ) -> impl Iterator<Item = (NodeId, (Timestamp, u32, Timestamp))> + '_ {
        self.slurmds.iter().filter_map(|(node, breaker)| Some((*node, breaker.is_open()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::instruction::JobName;

    const NOW: Timestamp = Timestamp::ZERO;

    fn order(targets: &[Target]) -> Order {
        let told = vec![Instruction::Release(JobName::numbered(1))];
        let order = Order::tell(targets[0], told, "job 1".into());
        Order { targets: targets.to_vec(), ..order }
    }

    fn ended(id: u64, ticks: &Ticks, began: Stamp, unanswered: Option<bool>) -> Outcome {
        let failure = |unanswered| Failure { said: "no".into(), unanswered };
        let result = unanswered.map_or(Ok(()), |unanswered| Err(failure(unanswered)));
        Outcome { id, began, ended: ticks.next(), result }
    }

    #[test]
    fn a_target_gets_one_order_at_a_time_and_old_looks_do_not_count() {
        let (mut orders, ticks) = (Orders::default(), Ticks::default());
        let (one, other) = (Target::Job(1), Target::Job(2));
        assert!(orders.give(NOW, order(&[one])));
        assert!(!orders.give(NOW, order(&[one])), "not twice");
        assert!(!orders.give(NOW, order(&[other, one])), "nor with others");
        assert!(orders.give(NOW, order(&[other])));
        assert_eq!(orders.take().iter().map(|order| order.id).collect::<Vec<_>>(), [1, 2]);
        assert!(orders.take().is_empty(), "handed over once");
        let during = ticks.next();
        let outcome = ended(1, &ticks, during, None);
        assert!(orders.concluded(NOW, &outcome, None).is_some());
        assert!(orders.concluded(NOW, &outcome, None).is_none(), "it counts once");
        let after = ticks.next();
        assert!(!orders.is_settled(one, during) && orders.is_settled(one, after));
        assert!(!orders.is_settled(other, after), "still under way");
        assert!(orders.is_settled(Target::Job(3), during), "nobody told it anything");
        orders.forget(after);
        assert!(orders.is_settled(one, during) && orders.ended.is_empty());
    }

    #[test]
    fn a_dead_node_is_to_blame_only_if_slurmctld_answered_meanwhile() {
        let (mut orders, ticks) = (Orders::default(), Ticks::default());
        let signal = || order(&[Target::Job(1), Target::Slurmd(NodeId(3))]);
        let mut now = NOW;
        for _ in 0..3 {
            now = now + AFTER_FAILURE;
            assert!(orders.give(now, signal()));
            let id = orders.take()[0].id;
            let began = ticks.next();
            let looked = ticks.next();
            orders.concluded(now, &ended(id, &ticks, began, Some(true)), Some(looked));
            assert!(!orders.give(now, signal()), "not at once");
        }
        now = now + AFTER_FAILURE;
        assert!(!orders.give(now, signal()), "its slurmd is left alone");
        assert!(orders.give(now, order(&[Target::Job(1)])), "slurmctld is not");
        assert_eq!(orders.slurmds_that_are_open().count(), 1);
        let id = orders.take()[0].id;
        let began = ticks.next();
        orders.concluded(now, &ended(id, &ticks, began, None), None);
        // Nobody answers at all: it is slurmctld.
        for _ in 0..3 {
            now = now + AFTER_FAILURE;
            assert!(orders.give(now, order(&[Target::Job(1), Target::Slurmd(NodeId(4))])));
            let id = orders.take()[0].id;
            let (looked, began) = (ticks.next(), ticks.next());
            orders.concluded(now, &ended(id, &ticks, began, Some(true)), Some(looked));
        }
        assert!(!orders.give(now, order(&[Target::Job(2)])));
        assert!(orders.give(now, order(&[Target::Job(2)]).lowering()), "what lowers is tried");
        assert_eq!(orders.slurmds_that_are_open().count(), 1);
        assert!(orders.slurmctld_is_open().is_some());
    }

    #[test]
    fn what_raises_power_is_bounded_and_does_not_keep_out_what_lowers_it() {
        let mut orders = Orders::default();
        let given = (0..1000).filter(|job| orders.give(NOW, order(&[Target::Job(*job)]))).count();
        assert_eq!((given, orders.under_way.len()), (MOST_RAISING, MOST_RAISING));
        assert!(orders.give(NOW, order(&[Target::Job(5000)]).lowering()));
    }

    #[test]
    fn lanes_are_apart() {
        let signal = order(&[Target::Job(1), Target::Slurmd(NodeId(0))]).lowering();
        assert_eq!(signal.lane(), Lane::Nodes);
        assert_eq!(order(&[Target::Job(1)]).lowering().lane(), Lane::Lower);
        assert_eq!(order(&[Target::Job(1)]).lane(), Lane::Other);
        let limits = Order { work: Work::Limits(NodeId(0), Vec::new()), ..signal };
        assert_eq!(limits.lane(), Lane::Limits);
    }
}
