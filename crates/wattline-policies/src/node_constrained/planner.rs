//! What is decided about constrained jobs, one after the other, on a state in which it is supposed.

use super::host::{self, Exact};
use super::rooms::{Leave, Rooms, Way, may_move, restart, ways, will_move};
use super::watts::{Effort, Offer, added, carried, offer, others};
use std::collections::BTreeSet;
use wattline_core::host::Shortage;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::NodeChoice;
use wattline_core::plan::{Decision, JobChange, NodeChange, Plan, Reason};
use wattline_core::policy::{Changes, ClusterView};
use wattline_core::power::TOLERANCE;
use wattline_core::state::{State, Target};
use wattline_core::time::Timestamp;
use wattline_core::units::{Seconds, Watts};

/// Jobs make room after so many times what their restart takes, and not before.
const RESTARTS: f64 = 5.0;

/// How soon to plan again where no event will tell that what a constrained job waits for has come.
pub(super) const PLAN_AGAIN_AFTER: Seconds = Seconds::new(10.0);

/// What becomes of a constrained job.
enum Answer {
    Start(Offer),
    Wait(Reason),
    /// It waits for these nodes, with so many watts kept for it.
    Reserve {
        nodes: Vec<NodeId>,
        kept: Watts,
        revisit: Option<Timestamp>,
    },
}

/// Takes constrained jobs in.
pub(super) struct ConstrainedPlanner<'v, 'a> {
    view: &'v ClusterView<'a>,
    /// As if all that is decided were planned.
    supposed: State,
    /// What is left for others: the budget, less what is kept for the constrained job with a reservation.
    budget: Option<Watts>,
    /// The nodes of the reservation, if there is one.
    reserved: Vec<NodeId>,
    plan: Plan,
}

impl<'v, 'a> ConstrainedPlanner<'v, 'a> {
    /// Nothing is decided but that these constrained jobs get higher limits.
    pub(super) fn open(view: &'v ClusterView<'a>, raised: Vec<JobChange>) -> Self {
        let mut supposed = view.state.clone();
        for change in &raised {
            supposed.suppose(view.now, change);
        }
        let plan = Plan { jobs: raised, ..Plan::unchanged(view.plan) };
        Self { view, supposed, budget: view.budget, reserved: Vec::new(), plan }
    }

    /// What the next one may go by.
    pub(super) fn view(&self) -> ClusterView<'_> {
        ClusterView {
            state: &self.supposed,
            budget: self.budget,
            changes: Changes::Everything,
            ..*self.view
        }
    }

    /// What was decided, and the state in which it is supposed.
    pub(super) fn finish(self) -> (Plan, State) {
        (self.plan, self.supposed)
    }

    /// Decides about a constrained job.
    pub(super) fn plan_job(&mut self, id: JobId, exact: &Exact) {
        let job = self.supposed.job(id);
        let Some(choice) = host::choice(&self.supposed, exact, id) else { return };
        // One that is planned and not there yet is on its way.
        if job.planned.is_some() {
            return;
        }
        let reason = match self.decide(id, &choice) {
            Answer::Start(offer) => return self.accept(id, offer),
            Answer::Wait(Reason::NoRoom | Reason::NeverFits)
                if let Some(short) = self.shortage(id, &choice) =>
            {
                Reason::NoHost(short)
            }
            Answer::Wait(reason) => reason,
            Answer::Reserve { nodes, kept, revisit } => {
                self.budget = self.budget.map(|budget| (budget - kept).max(Watts::ZERO));
                self.reserved = nodes;
                self.plan.revisit = revisit;
                self.shortage(id, &choice).map_or(Reason::NextInLine, Reason::NoHost)
            }
        };
        if self.supposed.job(id).reason != reason {
            let change = JobChange { job: id, decision: Decision::Wait, reason };
            self.supposed.suppose(self.view.now, &change);
            self.plan.jobs.push(change);
        }
    }

    fn shortage(&self, id: JobId, choice: &NodeChoice) -> Option<Shortage> {
        let view = &self.view();
        let ways = ways(view, view.state.job(id), choice);
        let fewest = ways.iter().map(|way| way.per_node).min()?;
        host::shortage(view, id, choice, fewest)
    }

    fn decide(&self, id: JobId, choice: &NodeChoice) -> Answer {
        let view = &self.view();
        let ways = ways(view, view.state.job(id), choice);
        let fits = |way: &Way| Rooms::find(view, id, choice, way, &[], Leave::WhenDone).is_some();
        if !ways.iter().any(fits) {
            return Answer::Wait(Reason::NeverFits);
        }
        if self.view.budget.is_some_and(|b| view.state.planned_committed() > b + TOLERANCE) {
            return Answer::Wait(Reason::NoPower);
        }
        let is_first = self.reserved.is_empty();
        let effort = if is_first { Effort::Sleep } else { Effort::Free };
        let find = |way: &Way, leave| Rooms::find(view, id, choice, way, &self.reserved, leave);
        let mut why = Reason::NoRoom;
        let mut in_time: Vec<(Way, Rooms)> = Vec::new();
        for way in &ways {
            let Some(rooms) = find(way, Leave::WhenDone) else { continue };
            if rooms.leaving.is_empty() {
                if let Some(offer) = offer(view, way, &rooms, effort) {
                    return Answer::Start(offer);
                }
                why = Reason::NoPower;
            }
            in_time.push((*way, rooms));
        }
        if !is_first {
            return Answer::Wait(why);
        }
        let when_asked = ways.iter().filter_map(|way| Some((*way, find(way, Leave::WhenAsked)?)));
        let (Some(in_time), Some(asked)) = (soonest(in_time), soonest(when_asked.collect())) else {
            return Answer::Wait(why);
        };
        self.make_room_or_reserve(view, id, in_time, asked)
    }

    /// For the first constrained job that cannot start as things are: whoever may be moved makes room when it
    /// has waited for long enough; until then, and for whoever may not be moved, it gets a
    /// reservation.
    fn make_room_or_reserve(
        &self,
        view: &ClusterView<'_>,
        id: JobId,
        in_time: (Way, Rooms),
        (way, rooms): (Way, Rooms),
    ) -> Answer {
        let all_move = rooms.leaving.iter().all(|id| may_move(view.state.job(*id)));
        let offer = all_move.then(|| offer(view, &way, &rooms, Effort::Leave)).flatten();
        let leaving = offer.as_ref().map_or(&rooms.leaving, |offer| &offer.leaving);
        let patient_until = self.waits_since(id) + patience(view, way.time, leaving);
        let is_patient = view.now < patient_until;
        let coming = |id: &JobId| will_move(view.state.job(*id)) && !may_move(view.state.job(*id));
        let revisit = if offer.is_some() {
            Some(patient_until)
        } else {
            // Nobody tells that a job has got where it goes, and could leave.
            let some = others(view, &[]).iter().any(coming);
            some.then(|| patient_until.max(view.now + PLAN_AGAIN_AFTER))
        };
        if let Some(offer) = offer.filter(|_| !is_patient) {
            return Answer::Start(offer);
        }
        let (way, rooms) = if is_patient { in_time } else { (way, rooms) };
        if !carried(view, &way, &rooms) {
            return Answer::Wait(Reason::NoPower);
        }
        let kept = added(view, &way, &rooms);
        Answer::Reserve { nodes: rooms.nodes, kept, revisit }
    }

    /// Since when the constrained job waits: from its submission, or from when it last ran.
    fn waits_since(&self, id: JobId) -> Timestamp {
        let job = self.view.state.job(id);
        job.job.submit.max(job.progress.as_of)
    }

    /// The constrained job runs so from now on.
    fn accept(&mut self, id: JobId, offer: Offer) {
        let now = self.view.now;
        for job in offer.leaving {
            let change = JobChange { job, decision: Decision::Wait, reason: Reason::MadeRoom };
            self.supposed.suppose(now, &change);
            self.plan.jobs.push(change);
        }
        for node in offer.asleep {
            let (target, reason) = (Target::Asleep, Reason::NodeOverBudget);
            let here = self.supposed.node(node);
            let (power, idle_since) = (here.power, here.idle_since);
            self.supposed.restore_node(node, power, target, idle_since, reason);
            self.plan.nodes.push(NodeChange { node, target, reason });
        }
        for share in offer.placement.allocation.shares() {
            if self.supposed.node(share.node).target == Target::Asleep {
                let (node, target, reason) = (share.node, Target::Up, Reason::NodeNeeded);
                self.plan.nodes.push(NodeChange { node, target, reason });
            }
        }
        let (decision, reason) = (Decision::Run(offer.placement), Reason::AsRequested);
        let change = JobChange { job: id, decision, reason };
        self.supposed.suppose(now, &change);
        self.plan.jobs.push(change);
    }

    /// All constrained jobs are received: nobody decides about them any more, and nobody goes to the nodes
    /// that are reserved.
    pub(super) fn close(&mut self, constrained: &BTreeSet<JobId>) {
        let before = self.supposed.planned_committed();
        for node in &self.reserved {
            self.supposed.suppose_closed(*node);
        }
        if !self.reserved.is_empty() {
            // A closed node counts otherwise than one that sleeps or boots. And who runs is not
            // asked to save: watts are kept as they become free.
            let now = self.supposed.planned_committed();
            self.budget = self.budget.map(|budget| (budget + now - before).max(now));
        }
        // Who is on the way to a reserved node goes there.
        let coming: Vec<JobId> = self
            .reserved
            .iter()
            .flat_map(|node| self.supposed.node(*node).planned.iter().map(|r| r.job))
            .filter(|id| self.supposed.job(*id).is_plannable())
            .collect();
        for id in coming.iter().chain(constrained) {
            if self.supposed.job(*id).is_plannable() {
                self.supposed.suppose_settled(*id);
            }
        }
    }
}

/// The way that can begin soonest; of several the fastest, the first of these.
fn soonest(all: Vec<(Way, Rooms)>) -> Option<(Way, Rooms)> {
    all.into_iter()
        .min_by(|(x, a), (y, b)| a.ready.total_cmp(&b.ready).then(x.time.total_cmp(&y.time)))
}

/// How long a constrained job waits before others make room for it.
fn patience(view: &ClusterView<'_>, run: Seconds, leaving: &[JobId]) -> Seconds {
    let longest = leaving.iter().map(|id| restart(view, *id)).fold(0.0, f64::max);
    run.max(Seconds::new(RESTARTS * longest))
}
