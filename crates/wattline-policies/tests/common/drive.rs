//! Runs an engine over a scenario and looks at it after every step.

use super::backend::Backend;
use super::{Disturbance, Formula, Scenario, can_run, enough_for_any};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::calendar::Calendar;
use wattline_core::check;
use wattline_core::engine::{Alert, Event};
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::Elasticity;
use wattline_core::placement::Placement;
use wattline_core::plan::{JobChange, NodeChange, Plan};
use wattline_core::policy::{Changes, ClusterView, Policy};
use wattline_core::power::NodePower;
use wattline_core::prices::Prices;
use wattline_core::scheduler::Scheduler;
use wattline_core::shed::Shed;
use wattline_core::state::{JobState, Phase, State, Target};
use wattline_core::units::Watts;
use wattline_policies::policy;

/// More steps than any run needs: one that takes more does not come to an end.
const MOST_STEPS: usize = 20_000;
/// Where the budget carries nothing, a calendar would go on for ever. Long after the last
/// disturbance, and long enough for every job, however slow.
const LONGEST: [Timestamp; 2] =
    [Timestamp::from_micros(20_000 * 1_000_000), Timestamp::from_micros(1_000_000 * 1_000_000)];
/// Sums of watts in another order.
const ROUNDING: Watts = Watts::new(1e-3);

/// What is looked at, beyond what always is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Watch {
    /// Plans from the index equal plans from scratch.
    pub(crate) scratch: bool,
    /// Planning again at the same instant changes nothing.
    pub(crate) idempotence: bool,
    /// Planning again at the same instant leaves those alone who are on their way to GPUs.
    pub(crate) on_the_way: bool,
    /// The budget is never exceeded from the moment it was first kept.
    pub(crate) never_exceeded: bool,
    /// Every event comes twice.
    pub(crate) twice: bool,
    /// Every job that fits on the cluster ends, and at the end what is held is what is planned.
    pub(crate) liveness: bool,
}

/// What a run was like, for tests that want to know whether it was any test at all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) finished: usize,
    /// Kinds of actions and alerts, and how many there were.
    pub(crate) seen: BTreeMap<String, usize>,
}

type Mismatches = Arc<Mutex<Vec<String>>>;

/// Plans twice, with its index and from scratch, and notes where the two differ.
struct BothWays {
    spec: String,
    indexed: Box<dyn Policy>,
    mismatches: Mismatches,
}

fn sorted(plan: &Plan) -> (Vec<JobChange>, Vec<NodeChange>) {
    let (mut jobs, mut nodes) = (plan.jobs.clone(), plan.nodes.clone());
    jobs.sort_by_key(|c| c.job);
    nodes.sort_by_key(|c| c.node);
    (jobs, nodes)
}

impl Policy for BothWays {
    fn name(&self) -> &str {
        self.indexed.name()
    }

    fn plan(&mut self, view: &ClusterView<'_>) -> Plan {
        let plan = self.indexed.plan(view);
        let everything = ClusterView { changes: Changes::Everything, ..*view };
        let scratch = policy(&self.spec).unwrap().plan(&everything);
        let (index, fresh) = (sorted(&plan), sorted(&scratch));
        if index != fresh {
            let text = format!("at {}: indexed {index:?}, from scratch {fresh:?}", view.now);
            self.mismatches.lock().unwrap().push(text);
        }
        plan
    }
}

/// An engine, its backend and what is still to come.
pub(crate) struct Drive<'a> {
    scenario: &'a Scenario,
    spec: String,
    watch: Watch,
    pub(crate) engine: Scheduler<'static>,
    backend: Backend,
    budget: Option<Calendar<Watts>>,
    now: Timestamp,
    submitted: usize,
    disturbed: usize,
    steps: usize,
    mismatches: Mismatches,
    /// Committed power was at or below the budget at the end of an instant.
    was_kept: bool,
    cancelled: Vec<JobId>,
    /// GPUs of a moldable job's first confirmed start.
    molded: BTreeMap<JobId, u32>,
    seen: BTreeMap<String, usize>,
}

/// The name of a variant.
fn kind_of(thing: &impl std::fmt::Debug) -> String {
    let text = format!("{thing:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().into()
}

/// Runs the scenario to its end.
pub(crate) fn run(scenario: &Scenario, spec: &str, watch: Watch) -> Result<Ran, String> {
    let with_spec = |problem| format!("{spec}: {problem}");
    Drive::new(scenario, spec, watch).run().map_err(with_spec)
}

type Wanted = (Vec<Option<Placement>>, Vec<Target>);

impl<'a> Drive<'a> {
    pub(crate) fn new(scenario: &'a Scenario, spec: &str, watch: Watch) -> Self {
        let mismatches = Mismatches::default();
        let mut chosen = policy(spec).unwrap();
        if watch.scratch {
            chosen = Box::new(BothWays {
                spec: spec.into(),
                indexed: chosen,
                mismatches: Arc::clone(&mismatches),
            });
        }
        let mut config = scenario.config.clone();
        if watch.idempotence || watch.on_the_way {
            // Within the debounce time there is no second plan.
            config.debounce = wattline_core::units::Seconds::ZERO;
        }
        let engine = Scheduler::new(
            config,
            State::new(Arc::clone(&scenario.cluster), Timestamp::ZERO),
            chosen,
            Box::new(Formula),
            Prices::default(),
            scenario.budget.clone(),
        );
        Self {
            scenario,
            spec: spec.into(),
            watch,
            engine,
            backend: Backend::new(
                Arc::clone(&scenario.cluster),
                scenario.luck.clone(),
                scenario.failures,
            ),
            budget: scenario.budget.clone(),
            now: Timestamp::ZERO,
            submitted: 0,
            disturbed: 0,
            steps: 0,
            mismatches,
            was_kept: false,
            cancelled: Vec::new(),
            molded: BTreeMap::new(),
            seen: BTreeMap::new(),
        }
    }

    pub(crate) fn run(mut self) -> Result<Ran, String> {
        while let Some(next) = self.next_time() {
            self.now = self.now.max(next);
            if self.now > LONGEST[usize::from(self.watch.liveness)] {
                break;
            }
            self.instant()?;
            if self.all_over() {
                break;
            }
        }
        if self.watch.liveness {
            self.check_all_done()?;
        }
        let finished = self.engine.state().job_count() - self.engine.state().unfinished();
        Ok(Ran { finished, seen: self.seen })
    }

    /// Everything that happens at time zero.
    pub(crate) fn first_instant(&mut self) -> Result<(), String> {
        self.instant()
    }

    fn next_time(&self) -> Option<Timestamp> {
        let submission = self.scenario.jobs.get(self.submitted).map(|job| job.submit);
        let disturbance = self.scenario.disturbances.get(self.disturbed).map(|(at, _)| *at);
        [submission, disturbance, self.backend.next(), self.engine.poll_timeout()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Nothing more can happen: whatever waits can never run.
    fn all_over(&self) -> bool {
        let state = self.engine.state();
        self.submitted == self.scenario.jobs.len()
            && self.disturbed == self.scenario.disturbances.len()
            && self.backend.next().is_none()
            && !state.unfinished_jobs().any(|(id, _)| self.must_end(id))
            && (!self.watch.liveness || self.not_as_planned().is_none())
    }

    /// Whether a job can run here, and the budget, if it stays as it is, always carries it.
    fn must_end(&self, id: JobId) -> bool {
        let job = &self.engine.state().job(id).job;
        if self.cancelled.contains(&id) {
            return true;
        }
        let cluster = &self.scenario.cluster;
        let enough =
            enough_for_any(cluster, std::slice::from_ref(job)) + self.scenario.config.margin;
        let least = self.budget.iter().flat_map(Calendar::values).map(Watts::get);
        cluster.menu(job).iter().any(|shape| can_run(job, *shape))
            && least.fold(f64::INFINITY, f64::min) >= enough.get()
    }

    /// Something that is not as it was planned.
    fn not_as_planned(&self) -> Option<String> {
        let state = self.engine.state();
        let nodes = state.cluster().node_ids().find_map(|id| {
            let node = state.node(id);
            let settled = matches!(
                (node.power, node.target),
                (NodePower::Up, Target::Up)
                    | (NodePower::Asleep, Target::Asleep)
                    | (NodePower::Down, _)
            );
            (!settled).then(|| format!("{id} is {:?}, planned {:?}", node.power, node.target))
        });
        let watts = state.held_committed() - state.planned_committed();
        let differ = watts.get().abs() > 1e-3;
        nodes.or_else(|| differ.then(|| format!("held and planned power differ by {watts}")))
    }

    /// Everything that happens at one time, then the clock.
    fn instant(&mut self) -> Result<(), String> {
        while let Some(job) = self.scenario.jobs.get(self.submitted)
            && job.submit <= self.now
        {
            self.submitted += 1;
            self.backend.submit(Arc::clone(job));
            self.step(Event::Submitted(Arc::clone(job)))?;
        }
        while let Some((at, what)) = self.scenario.disturbances.get(self.disturbed)
            && *at <= self.now
        {
            self.disturbed += 1;
            match what {
                Disturbance::Lose { node, gone_for, comes_back_up } => {
                    self.backend.lose(self.now, *node, *gone_for, *comes_back_up);
                }
                Disturbance::Budget(budget) => {
                    self.budget.clone_from(budget);
                    self.step(Event::BudgetSet(budget.clone()))?;
                }
                Disturbance::Cancel(job) if job.index() < self.submitted => {
                    self.cancelled.push(*job);
                    self.step(Event::Cancelled(*job))?;
                }
                Disturbance::Cancel(_) => {}
            }
        }
        self.deliver()?;
        let plans = self.engine.stats().plans;
        self.step(Event::Clock)?;
        if self.watch.idempotence {
            // Not every instant has a plan of its own, and time alone may change what is best.
            if self.engine.stats().plans == plans {
                self.step(Event::BudgetSet(self.budget.clone()))?;
                self.step(Event::Clock)?;
            }
            self.plan_again()?;
        }
        if self.watch.on_the_way {
            self.leave_on_the_way()?;
        }
        // What the actions of this instant led to at once.
        self.deliver()
    }

    fn deliver(&mut self) -> Result<(), String> {
        while let Some(event) = self.backend.poll(self.now) {
            if let Event::Started { job, action } = &event {
                self.note_first_start(*job, Phase::Starting(*action));
            }
            if self.watch.twice {
                self.step(event.clone())?;
                let before = self.wanted();
                let held = self.engine.state().held_committed();
                let actions = self.engine.stats().actions;
                self.step(event.clone())?;
                if before != self.wanted()
                    || (held - self.engine.state().held_committed()).get().abs() > 1e-9
                    || actions != self.engine.stats().actions
                {
                    return Err(format!("hearing it twice does harm: {event:?}"));
                }
            } else {
                self.step(event)?;
            }
        }
        Ok(())
    }

    fn note_first_start(&mut self, id: JobId, expected: Phase) {
        let job = self.engine.state().job(id);
        if job.phase == expected
            && job.job.elasticity == Elasticity::Moldable
            && let Some(held) = &job.held
        {
            self.molded.entry(id).or_insert(held.configuration.gpus);
        }
    }

    /// One call of the engine, and a look at everything after it.
    fn step(&mut self, event: Event) -> Result<(), String> {
        self.steps += 1;
        let text = format!("{event:?}");
        let at = |problem: String| Err(format!("at {}, {text}: {problem}", self.now));
        if self.steps > MOST_STEPS {
            return at(format!("no end after {MOST_STEPS} steps"));
        }
        let state = self.engine.state();
        let held_before = state.held_committed();
        let ids: Vec<NodeId> = state.cluster().node_ids().collect();
        let before: Vec<(NodePower, Watts)> =
            ids.iter().map(|id| state.node(*id)).map(|n| (n.power, n.held_committed())).collect();
        if let Err(error) = self.engine.handle(self.now, event) {
            return at(format!("not taken in: {error}"));
        }
        let mut actions = Vec::new();
        while let Some(action) = self.engine.poll_action() {
            *self.seen.entry(kind_of(&action.kind)).or_default() += 1;
            actions.push(action);
        }
        while let Some(alert) = self.engine.poll_alert() {
            *self.seen.entry(kind_of(&alert)).or_default() += 1;
            if let Alert::PlanRefused { violations, .. } = alert {
                return at(format!("refused: {violations:?}"));
            }
        }
        if self.engine.stats().refused != 0 {
            return at("a plan was refused".into());
        }
        let state = self.engine.state();
        let wrong = check::audit(state, None);
        if !wrong.is_empty() {
            return at(format!("audit: {wrong:?}"));
        }
        // That a node is lost cannot be helped; it counts at its maximum from then on.
        let lost: Watts = ids
            .iter()
            .map(|id| (state.node(*id), before[id.index()]))
            .filter(|(node, old)| node.power == NodePower::Down && old.0 != NodePower::Down)
            .map(|(node, old)| node.held_committed() - old.1)
            .sum();
        let held = state.held_committed();
        if let Some(budget) = self.engine.budget_at(self.now) {
            if held > budget.max(held_before + lost) + ROUNDING {
                return at(format!(
                    "committed power rose from {held_before} to {held} above {budget}"
                ));
            }
            self.was_kept |= held <= budget + ROUNDING;
            if self.watch.never_exceeded && self.was_kept && held > budget + ROUNDING {
                return at(format!("committed power is {held}, the budget is {budget}"));
            }
        }
        if let Some(problem) = self.wrong_shape(&actions) {
            return at(problem);
        }
        if let Some(problem) = self.thrown_away(&actions) {
            return at(problem);
        }
        if let Some(mismatch) = self.mismatches.lock().unwrap().first() {
            return at(mismatch.clone());
        }
        for action in &actions {
            if let Err(problem) = self.backend.apply(self.now, action) {
                return at(problem);
            }
        }
        let (real, held) = (self.backend.worst_power(), self.engine.state().held_committed());
        if real > held + ROUNDING {
            return at(format!("the cluster may draw {real}, only {held} are on record"));
        }
        Ok(())
    }

    /// Nobody's work is thrown away: a job that is not preemptible is stopped only if its owner
    /// cancelled it, or if the site lets jobs be killed.
    fn thrown_away(&self, actions: &[Action]) -> Option<String> {
        let state = self.engine.state();
        let may = self.engine.config().shed == Shed::Kill;
        actions.iter().find_map(|action| match action.kind {
            ActionKind::Stop { job: id, .. } => {
                let job = state.job(id);
                let harm = !job.job.preemptible && !job.is_cancelled() && !may;
                harm.then(|| format!("{id} is stopped, and is not preemptible: {}", job.reason))
            }
            _ => None,
        })
    }

    /// Gangs are whole, rigid jobs get what they asked for, moldable ones keep what they had.
    fn wrong_shape(&self, actions: &[Action]) -> Option<String> {
        let state = self.engine.state();
        for (id, job) in state.unfinished_jobs() {
            let Some(held) = &job.held else {
                if job.phase == Phase::Running {
                    return Some(format!("{id} runs on nothing"));
                }
                continue;
            };
            if held.allocation.count() != held.configuration.gpus {
                return Some(format!("{id} has half a gang: {held:?}"));
            }
        }
        for action in actions {
            let ActionKind::Start { job: id, placement } = &action.kind else {
                continue;
            };
            let job = &state.job(*id).job;
            let gpus = placement.configuration.gpus;
            let rigid = job.elasticity == Elasticity::Rigid && job.shapes.is_none();
            if rigid && gpus != job.gpus.requested {
                return Some(format!("rigid {id} is started with {gpus} GPUs"));
            }
            if let Some(first) = self.molded.get(id)
                && *first != gpus
            {
                return Some(format!("moldable {id} had {first} GPUs and is started with {gpus}"));
            }
        }
        None
    }

    fn wanted(&self) -> Wanted {
        let state = self.engine.state();
        let jobs = (0..state.job_count() as u32).map(|id| state.job(JobId(id)).planned.clone());
        let nodes = state.cluster().node_ids().map(|id| state.node(id).target);
        (jobs.collect(), nodes.collect())
    }

    /// Planning again at the same instant, from scratch, changes nothing.
    fn plan_again(&mut self) -> Result<(), String> {
        let before = self.wanted();
        let (plans, actions) = (self.engine.stats().plans, self.engine.stats().actions);
        self.step(Event::BudgetSet(self.budget.clone()))?;
        self.step(Event::Clock)?;
        assert_eq!(self.engine.stats().plans, plans + 1, "there was no second plan");
        let after = self.wanted();
        if before != after {
            let differs: Vec<_> = (0..before.0.len())
                .filter(|j| before.0[*j] != after.0[*j])
                .map(|j| format!("j{j}: {:?} becomes {:?}", before.0[j], after.0[j]))
                .collect();
            let nodes = (&before.1, &after.1);
            return Err(format!("at {}: planning again: {differs:?}, {nodes:?}", self.now));
        }
        if actions != self.engine.stats().actions {
            return Err(format!("at {}: planning again led to an action", self.now));
        }
        Ok(())
    }

    /// Planning again at the same instant may move jobs that run, but none that is on its way to
    /// GPUs, or starts or stops there. Tried on a copy: the run goes on as it would.
    fn leave_on_the_way(&self) -> Result<(), String> {
        let on_its_way = |job: &JobState| {
            let settled = |planned: &Placement| {
                let held = job.held.as_ref();
                job.phase == Phase::Running && held.is_some_and(|held| held.same_but_limit(planned))
            };
            job.planned.clone().filter(|planned| !settled(planned))
        };
        let jobs = self.engine.state().unfinished_jobs().filter(|(_, job)| job.is_plannable());
        let before: Vec<(JobId, Placement)> =
            jobs.filter_map(|(id, job)| Some((id, on_its_way(job)?))).collect();
        if before.is_empty() {
            return Ok(());
        }
        let mut copy = self.engine.fork(policy(&self.spec).unwrap());
        for event in [Event::BudgetSet(self.budget.clone()), Event::Clock] {
            copy.handle(self.now, event).map_err(|error| error.to_string())?;
        }
        assert_eq!(copy.stats().plans, self.engine.stats().plans + 1, "there was no second plan");
        for (id, old) in before {
            let new = &copy.state().job(id).planned;
            if new.as_ref() != Some(&old) {
                return Err(format!("at {}: {id}: {old:?} becomes {new:?}", self.now));
            }
        }
        Ok(())
    }

    fn check_all_done(&self) -> Result<(), String> {
        let state = self.engine.state();
        for (id, job) in state.unfinished_jobs() {
            if self.must_end(id) {
                return Err(format!("at {}: {id} never ended: {job:?}", self.now));
            }
        }
        self.not_as_planned().map_or(Ok(()), Err)
    }
}
