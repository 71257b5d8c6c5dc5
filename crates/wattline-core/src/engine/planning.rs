//! When plans are wanted, and what becomes of those that are made.
//!
//! The engine holds no policy. It says that a plan is due; whoever has a policy makes one from a
//! view, at once or beside the engine on a [fork](Engine::fork_for_planning), and hands it back.
//! The engine checks it against the state *of that moment*, and applies it once it is told to:
//! between the two a caller with a journal writes the decision down.
//!
//! **A plan that comes late** was made for an older [`Revision`]. The rule: a change that concerns
//! a job or node that has itself changed since, or that puts a job on such a node, is dropped.
//! Where anything was dropped, nobody is taken off GPUs either, because the job that was to profit
//! may be the one that was dropped, and a start on GPUs that are planned for somebody else falls
//! away with that. What is left must pass the checker; otherwise all of the plan is stale, which is
//! nobody's fault, and the next plan looks at everything.

use super::{Alert, Engine};
use crate::check::{self, CheckedPlan, Violation};
use crate::effort::Effort;
use crate::ids::{JobId, NodeId, PlanId};
use crate::placement::{Placement, mask_of};
use crate::plan::{Decision, JobChange, NodeChange, Plan};
use crate::policy::{Changes, ClusterView};
use crate::power::NodePower;
use crate::predictor::Predictor;
use crate::prices::Prices;
use crate::shed;
use crate::state::{State, Target};
use crate::time::Timestamp;
use crate::units::Watts;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Counts what has changed the engine's state: every event and every applied plan is one more.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

/// Why a plan is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// Something changed: a job, a node, a price.
    Change,
    /// The last plan asked to be made again at this time.
    Revisit,
    /// Plans are made at least this often.
    Periodic,
    /// The budget changes now, or soon.
    BudgetChange,
}

impl Trigger {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Revisit => "revisit",
            Self::Periodic => "periodic",
            Self::BudgetChange => "budget_change",
        }
    }
}

/// What a plan was asked for: the state it is to be made for, and what changed since the last one.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The state that the planner sees.
    pub revision: Revision,
    /// When it was asked for.
    pub at: Timestamp,
    /// Why.
    pub trigger: Trigger,
    changed: Changed,
}

#[derive(Clone, Debug)]
enum Changed {
    Everything,
    Only { jobs: Vec<JobId>, nodes: Vec<NodeId> },
}

/// All that a planner needs beside the engine, in a thread of its own.
pub struct PlanInput {
    request: PlanRequest,
    state: State,
    budget: Option<Watts>,
    prices: Prices,
    plan: PlanId,
}

impl PlanInput {
    /// What was asked for.
    #[must_use]
    pub fn request(&self) -> &PlanRequest {
        &self.request
    }

    /// The view for the policy.
    #[must_use]
    pub fn view<'a>(&'a self, predictor: &'a dyn Predictor, effort: Effort) -> ClusterView<'a> {
        ClusterView {
            now: self.request.at,
            state: &self.state,
            budget: self.budget,
            prices: &self.prices,
            predictor,
            effort,
            plan: self.plan,
            changes: match &self.request.changed {
                Changed::Everything => Changes::Everything,
                Changed::Only { jobs, nodes } => Changes::Only { jobs, nodes },
            },
        }
    }

    /// The request alone.
    #[must_use]
    pub fn into_request(self) -> PlanRequest {
        self.request
    }
}

/// What the engine says to a plan.
#[derive(Debug)]
pub enum Verdict {
    /// It can be applied. So many changes were dropped because they no longer hold.
    Good {
        /// The plan, or what is left of it.
        plan: CheckedPlan,
        /// Changes that no longer hold.
        dropped: usize,
    },
    /// Too much has changed since it was asked for.
    Stale,
    /// It was made for the present state and breaks a rule: a fault of the policy, see
    /// [`Engine::refuse`].
    Refused(Vec<Violation>),
}

impl Engine<'_> {
    /// Whether a plan is wanted now, and why.
    #[must_use]
    pub fn plan_due(&self, now: Timestamp) -> Option<Trigger> {
        let passed = |time: Option<Timestamp>| time.is_some_and(|t| t <= now);
        [
            (self.plan_due, Trigger::Change),
            (self.budget_change, Trigger::BudgetChange),
            (self.revisit, Trigger::Revisit),
            (self.periodic, Trigger::Periodic),
        ]
        .into_iter()
        .find_map(|(time, trigger)| passed(time).then_some(trigger))
    }

    /// A plan is being made: when is the next one wanted, if nothing happens?
    pub(crate) fn begin_plan(&mut self, now: Timestamp) {
        self.plan_due = None;
        self.rhythm.beat(now);
        self.revisit = None;
        self.periodic = self.config.replan_every.map(|every| now + every);
        self.budget_change = self.budget.as_ref().and_then(|calendar| {
            let lead = self.config.budget_lead;
            let falls = calendar.next_change(now + lead).map(|t| t - lead);
            calendar.next_change(now).into_iter().chain(falls).min()
        });
    }

    /// The view that a policy in line gets: only what changed since its last plan is marked.
    pub(crate) fn view_of_changes(&self, now: Timestamp, effort: Effort) -> ClusterView<'_> {
        let changes = if self.look_at_everything {
            Changes::Everything
        } else {
            Changes::Only { jobs: self.state.touched_jobs(), nodes: self.state.touched_nodes() }
        };
        ClusterView { effort, budget: self.budget_to_keep(now), changes, ..self.view(now) }
    }

    /// The changes so far have been shown to a policy.
    pub(crate) fn changes_seen(&mut self) {
        self.stats.plans += 1;
        self.state.clear_touched();
        self.look_at_everything = false;
    }

    /// The plan wants to be made again then.
    pub(crate) fn revisit_at(&mut self, now: Timestamp, time: Option<Timestamp>) {
        self.revisit = time.filter(|t| *t > now);
    }

    /// Asks for a plan to be made beside the engine, if one is due. The request must come back
    /// through [`Engine::judge`], or be given up with [`Engine::plan_again`].
    pub fn fork_for_planning(&mut self, now: Timestamp) -> Option<PlanInput> {
        let trigger = self.plan_due(now)?;
        self.begin_plan(now);
        let changed = if self.look_at_everything {
            Changed::Everything
        } else {
            let (jobs, nodes) = (self.state.touched_jobs(), self.state.touched_nodes());
            Changed::Only { jobs: jobs.to_vec(), nodes: nodes.to_vec() }
        };
        let request = PlanRequest { revision: self.revision, at: now, trigger, changed };
        let input = PlanInput {
            request,
            state: self.state.clone(),
            budget: self.budget_to_keep(now),
            prices: self.prices.clone(),
            plan: self.plan,
        };
        self.changes_seen();
        Some(input)
    }

    /// The plan that was asked for does not come, or was not applied: plan again, from everything.
    pub fn plan_again(&mut self, now: Timestamp) {
        self.look_at_everything = true;
        self.request_plan(now);
    }

    /// Judges a plan that was made for `request`, against the state of now. Nothing is applied. If
    /// the plan is not applied as it was made, the next one looks at everything.
    pub fn judge(&mut self, now: Timestamp, request: &PlanRequest, mut plan: Plan) -> Verdict {
        let fresh = request.revision == self.revision;
        let mut dropped = 0;
        // A time that has passed meanwhile is now.
        self.revisit = plan.revisit.filter(|at| *at > request.at).map(|at| at.max(now));
        if !fresh {
            dropped = self.trim(&mut plan);
            plan.based_on = self.plan;
        }
        if dropped > 0 {
            self.plan_again(now);
        }
        match check::check(&self.state, plan, self.plan, self.budget_to_keep(now)) {
            Ok(plan) => Verdict::Good { plan, dropped },
            Err(violations) if fresh => Verdict::Refused(violations),
            Err(_) => {
                self.plan_again(now);
                Verdict::Stale
            }
        }
    }

    /// Drops what no longer holds; see the module's description. Says how much.
    fn trim(&self, plan: &mut Plan) -> usize {
        let before = plan.jobs.len() + plan.nodes.len();
        let nodes_changed: BTreeSet<NodeId> = self.state.touched_nodes().iter().copied().collect();
        let node_changed = |id: NodeId| nodes_changed.contains(&id);
        let jobs_changed: BTreeSet<JobId> = self.state.touched_jobs().iter().copied().collect();
        let on_changed =
            |p: &Placement| p.allocation.shares().any(|share| node_changed(share.node));
        plan.nodes.retain(|change| !node_changed(change.node));
        plan.jobs.retain(|change| {
            let known = self.state.find_job(change.job).is_some_and(|job| !job.is_unwanted());
            let placement = match &change.decision {
                Decision::Wait => None,
                Decision::Run(placement) => Some(placement),
            };
            known && !jobs_changed.contains(&change.job) && !placement.is_some_and(on_changed)
        });
        if plan.jobs.len() + plan.nodes.len() == before {
            return 0;
        }
        plan.jobs.retain(|change| !self.takes_off(change));
        let leaving: BTreeSet<JobId> = plan.jobs.iter().map(|change| change.job).collect();
        plan.jobs.retain(|change| match &change.decision {
            Decision::Wait => true,
            Decision::Run(placement) => placement.allocation.shares().all(|share| {
                let node = self.state.node(share.node);
                let mut others = node.planned.iter().filter(|r| !leaving.contains(&r.job));
                others.all(|resident| resident.mask & share.mask == 0)
            }),
        });
        // A node must not go to sleep under a job whose move away was dropped.
        let in_use = |id: NodeId| !self.state.node(id).planned.is_empty();
        plan.nodes.retain(|change| change.target == Target::Up || !in_use(change.node));
        before - plan.jobs.len() - plan.nodes.len()
    }

    /// Whether a change takes a job off GPUs that it holds.
    fn takes_off(&self, change: &JobChange) -> bool {
        let held = self.state.find_job(change.job).and_then(|job| job.held.as_ref());
        held.is_some_and(|held| match &change.decision {
            Decision::Wait => true,
            Decision::Run(placement) => !held.same_but_limit(placement),
        })
    }

    /// What must be given up now because the budget has fallen below what is planned; `None` if
    /// nothing must, or nothing more can: then an alert says once that the budget cannot be kept.
    /// The engine's own answer, which waits for no policy.
    pub fn load_to_shed(&mut self, now: Timestamp) -> Option<CheckedPlan> {
        let Some(budget) = self.budget_to_keep(now) else {
            self.shortfall = None;
            return None;
        };
        if self.shed_refused == Some(self.revision) || self.falls_short_as_before(budget) {
            return None;
        }
        let may = self.config.shed;
        let Some(shedding) = shed::shed(&self.state, budget, self.plan, may) else {
            self.line_holds(budget);
            return None;
        };
        let gives_up = !shedding.plan.is_empty();
        if gives_up {
            self.alert(Alert::BudgetFell { committed: self.state.planned_committed(), budget });
            // The policy's index knows nothing of it.
            self.look_at_everything = true;
        }
        let plan = shedding.plan.clone();
        match check::check_shedding(&self.state, plan, self.plan, budget, may) {
            Ok(plan) => {
                if !shedding.killed.is_empty() {
                    self.alert(Alert::KilledForBudget(shedding.killed.clone()));
                }
                if shedding.kept {
                    self.line_holds(budget);
                } else {
                    self.falls_short(now, budget, &shedding);
                }
                Some(plan).filter(|_| gives_up)
            }
            Err(violations) => {
                self.stats.refused += 1;
                self.shed_refused = Some(self.revision);
                self.alert(Alert::PlanRefused { policy: "shed".into(), violations });
                None
            }
        }
    }

    /// A plan that leaves everything as it is: what was planned and is not so yet is no longer
    /// wanted. For a cluster that is only observed from now on.
    #[must_use]
    pub fn plan_as_is(&self) -> Plan {
        let mut plan = Plan::unchanged(self.plan);
        for (id, job) in self.state.unfinished_jobs() {
            if job.is_unwanted() || job.planned == job.held {
                continue;
            }
            let decision = job.held.clone().map_or(Decision::Wait, Decision::Run);
            plan.jobs.push(JobChange { job: id, decision, reason: job.reason });
        }
        for id in self.state.cluster().node_ids() {
            let node = self.state.node(id);
            let target = match node.power {
                NodePower::Up | NodePower::Booting => Target::Up,
                NodePower::Asleep | NodePower::FallingAsleep => Target::Asleep,
                NodePower::Closed | NodePower::Down => continue,
            };
            if node.target != target {
                plan.nodes.push(NodeChange { node: id, target, reason: node.reason });
            }
        }
        plan
    }

    /// Applies a plan, and takes the steps towards it that can be taken now.
    pub fn apply(&mut self, now: Timestamp, plan: CheckedPlan) {
        self.apply_plan(now, plan.into_plan());
        self.actuate(now);
    }

    /// Applies a decision that was made before, as a journal has it. It passed the checker of the
    /// program that made it, and it happened: it is not judged again. What names something that
    /// does not exist is left out.
    pub fn apply_recorded(&mut self, now: Timestamp, mut plan: Plan) {
        let cluster = self.state.cluster();
        let exists = |placement: &Placement| {
            placement.configuration.gpu_type.index() < cluster.gpu_types().len()
                && placement.allocation.shares().all(|share| {
                    let node = cluster.nodes().get(share.node.index());
                    node.is_some_and(|node| share.mask & !mask_of(node.gpus) == 0)
                })
        };
        plan.jobs.retain(|change| {
            self.state.find_job(change.job).is_some()
                && match &change.decision {
                    Decision::Wait => true,
                    Decision::Run(placement) => exists(placement),
                }
        });
        plan.nodes.retain(|change| change.node.index() < cluster.nodes().len());
        self.apply_plan(now, plan);
        self.actuate(now);
    }

    /// No policy sees the changes so far: whoever plans next looks at everything. For replays.
    pub fn forget_changes(&mut self) {
        self.state.clear_touched();
        self.look_at_everything = true;
    }

    pub(crate) fn apply_plan(&mut self, now: Timestamp, plan: Plan) {
        if plan.is_empty() {
            return;
        }
        self.plan = PlanId(self.plan.0 + 1);
        self.revision.0 += 1;
        for change in plan.nodes {
            self.state.set_target(change.node, change.target, change.reason);
            self.mark_node(change.node);
        }
        for change in plan.jobs {
            let placement = match change.decision {
                Decision::Wait => None,
                Decision::Run(placement) => Some(placement),
            };
            self.state.set_planned(change.job, placement, change.reason, now);
            self.mark_job(change.job);
        }
    }

    /// The budget that plans must keep; none where the cluster is only observed.
    fn budget_to_keep(&self, now: Timestamp) -> Option<Watts> {
        self.budget_at(now).filter(|_| self.config.controls)
    }
}
