//! From an action to SLURM's commands, step by step, as far as what SLURM shows allows.
//!
//! A step is taken when the order for it is given. If the order fails, the step is taken back when
//! that is heard.

use super::command::printable;
use super::deferred::is_held_by_admin;
use super::heterogeneous::Parts;
use super::instruction::{Instruction, JobName, JobUpdate, Power};
use super::limits::limits_of;
use super::orders::{Order, Purpose, Target};
use super::read::SlurmJob;
use super::reconcile::is_running;
use super::refusal;
use super::reshape::Runs;
use super::rest::Kind;
use super::seen::{NodeIs, node_is};
use super::{Slurm, Step, Wanted};
use crate::backend::Known;
use crate::job_registry::SlurmOrigin;
use std::collections::BTreeSet;
use wattline_core::Timestamp;
use wattline_core::action::{Action, ActionKind};
use wattline_core::ids::{ActionId, JobId, NodeId};
use wattline_core::placement::Placement;
use wattline_core::plan::Refusal;
use wattline_core::state::JobState;
use wattline_core::units::{Seconds, Watts};

/// A command that had no effect is given again after this long.
const AGAIN: Seconds = Seconds::new(5.0);
/// SLURM counts in seconds; a job that was requeued is not started again before two have begun.
const AFTER_REQUEUE: Seconds = Seconds::new(2.0);
/// When SLURM was killed it may have forgotten that a job runs. It ends the job when the node tells
/// of it, which takes as long as this at most.
const ORPHANS: Seconds = Seconds::new(20.0);
/// A part of a heterogeneous job waits this long for the others.
const GATHER: Seconds = Seconds::new(600.0);
/// A node that does not come up in so many boot times, and this long, does not come up.
const BOOTS: f64 = 3.0;
const BOOT_SLACK: Seconds = Seconds::new(60.0);

impl Slurm {
    /// Takes the next step of every action under way.
    pub(super) fn advance_all(&mut self, now: Timestamp, known: Known<'_>) {
        let starts = |wanted: &Wanted| matches!(wanted.action.kind, ActionKind::Start { .. });
        // Limits are not raised where somebody is about to start, so that must be known first.
        let mut ids: Vec<ActionId> = self.wanted.keys().copied().collect();
        ids.sort_by_key(|id| !starts(&self.wanted[id]));
        for id in ids {
            self.advance(now, id, known);
        }
    }

    /// Takes the next step of an action, if SLURM is ready for it.
    pub(super) fn advance(&mut self, now: Timestamp, id: ActionId, known: Known<'_>) {
        let Some(wanted) = self.wanted.get(&id) else { return };
        let (action, step) = (wanted.action.clone(), wanted.step);
        // What cannot be, or is done, stays so until it is told.
        let over = matches!(step, Step::Failed | Step::Refused | Step::Done);
        if over || !self.may_advance(now, &action.kind, known) {
            return;
        }
        let next = match &action.kind {
            ActionKind::Start { job, placement } => {
                self.advance_start(now, id, *job, placement, step, known)
            }
            ActionKind::Stop { job, .. } => self.advance_stop(now, id, *job, step, known),
            ActionKind::Limit { job, limit } => self.advance_limit(now, *job, *limit, step),
            ActionKind::Wake { node } => self.advance_wake(now, *node, step),
            ActionKind::Sleep { node } => self.advance_sleep(now, *node, step),
        };
        if let Some(wanted) = self.wanted.get_mut(&id) {
            wanted.step = next;
        }
    }

    /// Whether what was seen of its job or node can be believed, and is recent enough for what may
    /// raise power.
    fn may_advance(&self, now: Timestamp, kind: &ActionKind, known: Known<'_>) -> bool {
        let job = |id: &JobId| {
            let slurm = known.registry.slurm(*id);
            slurm.is_none_or(|slurm| self.is_settled(Target::Job(slurm.key.id)))
        };
        match kind {
            ActionKind::Start { job: id, .. } => self.sees(now) && job(id),
            ActionKind::Stop { job: id, .. } => job(id),
            ActionKind::Wake { node } => self.sees(now) && self.is_settled(Target::Node(*node)),
            ActionKind::Sleep { node } => self.is_settled(Target::Node(*node)),
            // Readings say what came of it.
            ActionKind::Limit { .. } => true,
        }
    }

    fn advance_start(
        &mut self,
        now: Timestamp,
        action: ActionId,
        id: JobId,
        placement: &Placement,
        step: Step,
        known: Known<'_>,
    ) -> Step {
        let Some(slurm) = known.registry.slurm(id) else { return Step::Failed };
        let Some(job) = self.seen.as_ref().and_then(|seen| seen.job(id)) else { return step };
        let number = job.address();
        if !job.state.waits() {
            // It runs, or is over: that is news, also where it runs elsewhere. But after a crash SLURM
            // was seen to start one with no GPU at all, where it only waits for its end.
            let long_ago = matches!(step, Step::Released(at) if now > at + AGAIN);
            let bare = is_running(job) && self.runs(job, slurm, placement) == Runs::Unknown;
            // Which GPUs it holds may only not have been asked for yet.
            let told =
                self.seen.as_ref().is_some_and(|seen| !seen.lacks_gpus.contains(&job.key.id));
            let bare = bare && told;
            let resumes = known.engine.state().find_job(id).is_some_and(|job| job.job.preemptible);
            if bare && long_ago && resumes && job.can_be_requeued() {
                return self.give_back(now, &job.clone(), step);
            }
            return step;
        }
        // Somebody may hold it after its start was decided.
        let held = is_held_by_admin(job) || self.is_held_by_owner(now, job);
        if step == Step::Failed || held {
            return Step::Failed;
        }
        // A node refuses a job that it has ended in the same second: "already killed".
        let requeued = Timestamp::from_seconds(job.key.submit.seconds());
        if job.key.restarts > 0 && self.slurms_clock(now) < requeued + AFTER_REQUEUE {
            return step;
        }
        let Some(state) = known.engine.state().find_job(id) else { return Step::Failed };
        if self.may_still_run(now, job, state) {
            return step;
        }
        if job.held {
            if let Step::Released(at) = step
                && now < at + AGAIN
            {
                // What is seen may be older than the release.
                return step;
            }
            if let Step::Released(_) | Step::GivingUp(_) = step {
                // SLURM has held it again: it cannot be met.
                let said = (Refusal::Nodes, printable(&job.state_reason));
                if let Some(wanted) = self.wanted.get_mut(&action) {
                    wanted.refused.get_or_insert(said);
                }
                return Step::Failed;
            }
            let seen = job.clone();
            let since = match step {
                Step::Since(at, _) | Step::Setting(at) => at,
                _ => now,
            };
            // What is kept for it is given back if the others, or limits, do not come.
            if now > since + GATHER {
                return Step::Failed;
            }
            let given = match seen.het_job_id {
                Some(_) => match self.release_parts(now, since, action, &seen, known) {
                    Parts::LetGo(given) => given,
                    Parts::Set => return Step::Setting(since),
                    Parts::Gather if step == Step::New => return Step::Since(now, now),
                    Parts::Gather => return step,
                },
                None => {
                    let limits = limits_of([placement]);
                    if !self.is_their_turn(&limits) {
                        return step;
                    }
                    if !self.limits_hold(now, &limits) {
                        return Step::Setting(since);
                    }
                    let Some(mut update) = self.told(slurm, placement) else {
                        return Step::Failed;
                    };
                    update.comment = self.remark(&seen, None);
                    let update = Instruction::Update(JobName::of(&seen), update);
                    let told = vec![update, Instruction::release(&seen)];
                    let complaint = format!("job {number} cannot be started");
                    let order = Order::tell(Target::Job(seen.key.id), told, complaint);
                    self.order(now, order.with(Purpose::Start(action, number)))
                }
            };
            return if given { Step::Released(now) } else { step };
        }
        if let Step::Released(at) = step
            && let Some(why) = self.refusal(job, placement, now.since(at))
        {
            let (said, job) = (printable(&job.state_reason), job.clone());
            // SLURM may keep those nodes for others only because they come first: then this one goes
            // before them, once for each start.
            let tried = self.wanted.get(&action).is_none_or(|wanted| wanted.goes_first);
            if why == Refusal::Resources && !tried && self.let_go_first(now, &job, known) {
                if let Some(wanted) = self.wanted.get_mut(&action) {
                    wanted.goes_first = true;
                }
                return Step::Released(now);
            }
            if !self.take_back(now, &job, slurm, &said) {
                return step;
            }
            self.complain(format!("job {number} is refused: SLURM says {said}"));
            if let Some(wanted) = self.wanted.get_mut(&action) {
                wanted.refused = Some((why, said));
            }
            return Step::GivingUp(now);
        }
        match step {
            Step::Released(at) if now < at + self.site.config.start_limit => {
                if now >= at + AGAIN {
                    self.let_go_first(now, &job.clone(), known);
                }
                step
            }
            // It was released by a controller that is gone, or by somebody else.
            // One that SLURM has requeued by itself would wait for two minutes.
            Step::New | Step::Setting(_) | Step::Since(..)
                if job.state_reason != "BeginTime" && self.asks_for(job, slurm, placement) =>
            {
                Step::Released(now)
            }
            Step::New | Step::Setting(_) | Step::Since(..) => {
                self.hold(now, job.key.id, &number);
                step
            }
            _ => {
                let why = printable(&job.state_reason);
                // A slurmctld that was killed may count GPUs as taken for ever. So nodes that it keeps
                // a job from for that long are not tried again at once.
                let meaning = refusal::meaning(&job.state_reason);
                let refused = meaning.map(|meaning| (meaning, why.clone()));
                if self.hold(now, job.key.id, &number) {
                    self.complain(format!("job {number} does not start: SLURM says {why}"));
                    if let (Some(refused), Some(wanted)) = (refused, self.wanted.get_mut(&action)) {
                        wanted.refused.get_or_insert(refused);
                    }
                    Step::GivingUp(now)
                } else {
                    step
                }
            }
        }
    }

    /// Whether a job that SLURM says waits may run all the same: it counts fewer runs than there
    /// were, so it has forgotten one.
    fn may_still_run(&self, now: Timestamp, job: &SlurmJob, state: &JobState) -> bool {
        let runs = state.first_start.map_or(0, |_| state.restarts + 1);
        let since = self.answers.map_or(now, |answers| answers.max(state.progress.as_of));
        job.key.restarts < runs && now < since + ORPHANS
    }

    /// A job that SLURM has started without the GPUs that it asked for.
    fn give_back(&mut self, now: Timestamp, job: &SlurmJob, step: Step) -> Step {
        if let Step::GivingUp(at) = step
            && now < at + AGAIN
        {
            return step;
        }
        let number = job.address();
        let told = vec![Instruction::RequeueHold(JobName::of(job))];
        let complaint = format!("job {number} cannot be requeued");
        // It may be where nobody has counted with it.
        if !self.order(now, Order::tell(Target::Job(job.key.id), told, complaint).lowering()) {
            return step;
        }
        self.complain(format!("job {number} runs without GPUs; it is requeued"));
        Step::GivingUp(now)
    }

    /// A job was let go, or could not be: then it is held again.
    pub(super) fn let_go(&mut self, now: Timestamp, action: ActionId, fine: bool) {
        if let Some(wanted) = self.wanted.get_mut(&action) {
            wanted.step = if fine { Step::Released(now) } else { Step::GivingUp(now) };
        }
    }

    fn advance_limit(&mut self, now: Timestamp, id: JobId, limit: Watts, step: Step) -> Step {
        let Some(job) = self.seen.as_ref().and_then(|seen| seen.job(id)) else { return step };
        if !job.state.holds_gpus() {
            return step;
        }
        let gpus = self.gpus_of(job);
        if gpus.is_empty() {
            return Step::Failed;
        }
        if gpus.iter().any(|(node, _)| !self.may_have(*node, limit)) {
            return step;
        }
        let raises =
            |(node, gpu): &(NodeId, u32)| self.most(*node, *gpu).is_none_or(|most| limit > most);
        if !self.sees(now) && gpus.iter().any(raises) {
            return step;
        }
        match self.limits_are(now, &gpus, limit) {
            Some(true) => Step::Done,
            Some(false) => Step::Asked(now),
            None => Step::Failed,
        }
    }

    fn advance_wake(&mut self, now: Timestamp, id: NodeId, step: Step) -> Step {
        let node = self.site.node(id);
        let (name, patience) = (node.name.clone(), node.boot_time * BOOTS + BOOT_SLACK);
        let Some(seen) = self.seen.as_ref().and_then(|seen| seen.nodes.get(&*name)) else {
            return step;
        };
        let since = match step {
            Step::Asked(at) | Step::Since(at, _) => at,
            _ => now,
        };
        match node_is(seen) {
            NodeIs::Asleep if !self.link.can(Kind::Power) => Step::Failed,
            // One that is on its way to sleep would not hear it.
            NodeIs::Asleep => {
                if let Step::Since(_, last) = step
                    && now < last + AGAIN
                {
                    return step;
                }
                if self.power(now, id, Power::Up) { Step::Since(since, now) } else { step }
            }
            NodeIs::Up => step,
            NodeIs::Lost | NodeIs::Closed => Step::Failed,
            NodeIs::Moving | NodeIs::Unsure if now > since + patience => Step::Failed,
            NodeIs::Moving | NodeIs::Unsure => match step {
                Step::Since(..) => step,
                _ => Step::Since(since, Timestamp::from_micros(0)),
            },
        }
    }

    fn advance_sleep(&mut self, now: Timestamp, id: NodeId, step: Step) -> Step {
        let node = self.site.node(id);
        let (name, patience) = (node.name.clone(), node.shutdown_time * BOOTS + BOOT_SLACK);
        let Some(seen) = self.seen.as_ref().and_then(|seen| seen.nodes.get(&*name)) else {
            return step;
        };
        match (node_is(seen), step) {
            (NodeIs::Asleep, _) => step,
            (NodeIs::Lost | NodeIs::Closed, _) => Step::Failed,
            (_, Step::Since(since, _)) if now > since + patience => Step::Failed,
            (NodeIs::Up, Step::New) if seen.alloc_cpus > 0 || seen.gpus_used > 0 => {
                // Somebody is there of whom we do not know.
                self.complain(format!("node {name} is in use and does not go to sleep"));
                Step::Failed
            }
            (NodeIs::Up, _) if !self.link.can(Kind::Power) => Step::Failed,
            (NodeIs::Up, Step::Since(_, last)) if now < last + AGAIN => step,
            // What SLURM has not heard is said again.
            (NodeIs::Up, _) => {
                let since = if let Step::Since(since, _) = step { since } else { now };
                if self.power(now, id, Power::Down) { Step::Since(since, now) } else { step }
            }
            _ => step,
        }
    }

    fn power(&mut self, now: Timestamp, id: NodeId, power: Power) -> bool {
        let node = &self.site.node(id).name;
        let complaint = format!("node {node}: {}", power.word());
        let told = vec![Instruction::Power(node.to_string(), power)];
        let order = Order::tell(Target::Node(id), told, complaint);
        self.order(now, Order { lowers: power == Power::Down, ..order })
    }

    /// As the gate does it, so that the gate's fallback knows it for ours.
    pub(super) fn hold(&mut self, now: Timestamp, job: u32, number: &str) -> bool {
        let name = JobName { number: Some(job), address: number.to_owned() };
        let seen = self.seen.as_ref().and_then(|seen| seen.jobs().find(|one| one.key.id == job));
        let mark = seen.and_then(|seen| self.mark(seen, None));
        let told = mark.into_iter().chain([Instruction::Hold(vec![name])]).collect();
        let complaint = format!("job {number} cannot be held");
        self.order(now, Order::tell(Target::Job(job), told, complaint))
    }

    /// Holds a job that SLURM will not start, as it was when it came, and says why where its owner
    /// looks.
    fn take_back(
        &mut self,
        now: Timestamp,
        job: &SlurmJob,
        slurm: &SlurmOrigin,
        said: &str,
    ) -> bool {
        let number = job.address();
        // When it may begin is said when it is let go; over slurmrestd a begin far away marks those
        // that we hold.
        let as_before = JobUpdate {
            begin: None,
            comment: self.remark(job, Some(&format!("waits, SLURM says {said}"))),
            ..self.told_as_before(job, slurm)
        };
        let as_before = Instruction::Update(JobName::of(job), as_before);
        let hold = [Instruction::hold(job), as_before];
        let told = self.mark(job, Some(slurm)).into_iter().chain(hold).collect();
        let complaint = format!("job {number} cannot be held");
        self.order(now, Order::tell(Target::Job(job.key.id), told, complaint))
    }

    /// A waiting job that was let go and does not start because others come first goes before them:
    /// it was its turn, and nodes are kept for it. Says whether it was told to.
    fn let_go_first(&mut self, now: Timestamp, job: &SlurmJob, known: Known<'_>) -> bool {
        if !matches!(job.state_reason.as_str(), "Priority" | "Resources") {
            return false;
        }
        let Some(seen) = self.seen.clone() else { return false };
        let ours: BTreeSet<u32> = (self.wanted.values())
            .filter_map(|wanted| match &wanted.action.kind {
                ActionKind::Start { job, .. } => known.registry.slurm(*job).map(|s| s.key.id),
                _ => None,
            })
            .collect();
        let rivals = seen
            .jobs()
            .filter(|other| other.state.waits() && !other.held && !ours.contains(&other.key.id));
        let first = rivals.filter_map(|rival| rival.priority).max();
        let Some(first) = first.filter(|first| job.priority.is_some_and(|own| own <= *first))
        else {
            return false;
        };
        // SLURM keeps the two largest numbers for itself.
        let priority = (first + 1).min(u64::from(u32::MAX) - 2);
        let update = JobUpdate { priority: Some(priority), ..JobUpdate::default() };
        let told = vec![Instruction::Update(JobName::of(job), update)];
        let complaint = format!("job {} does not go first", job.address());
        self.order(now, Order::tell(Target::Job(job.key.id), told, complaint))
    }

    /// An action that is to be carried out.
    pub(super) fn want(&mut self, action: &Action) {
        self.wanted.entry(action.id).or_insert_with(|| Wanted::new(action));
    }
}

/// How our remarks begin in SLURM's comment field.
const REMARK: &str = "wattline: ";

impl Slurm {
    /// The comment that sets our remark on a job, or takes it away. What its user or another tool wrote
    /// there stays. A record may be older than our last remark.
    pub(super) fn remark(&mut self, job: &SlurmJob, said: Option<&str>) -> Option<String> {
        let remarked = self.remarked.contains_key(&job.key.id);
        let ours = remarked || job.comment.as_deref().is_some_and(|text| text.starts_with(REMARK));
        let empty = job.comment.as_deref().is_none_or(str::is_empty);
        match said {
            Some(said) if empty || ours => {
                self.remarked.insert(job.key.id, said.into());
                Some(format!("{REMARK}{said}"))
            }
            None if ours => {
                self.remarked.remove(&job.key.id);
                Some(String::new())
            }
            _ => None,
        }
    }
}
