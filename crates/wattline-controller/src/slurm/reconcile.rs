//! What differs between what SLURM shows and what is known.

use super::instruction::{Begin, Instruction, JobName, JobUpdate};
use super::orders::{Order, Target};
use super::read::{SlurmJob, State};
use super::reshape::Runs;
use super::restarts::EXITED_UNASKED;
use super::rules::OWNER_HOLD;
use super::seen::{NodeIs, key, node_is};
use super::{Slurm, Step};
use crate::backend::{BackendEvent, Known};
use crate::job_registry::{ENDED_UNSEEN, JournalNote, Origin, SlurmOrigin};
use std::collections::BTreeSet;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::ids::{ActionId, JobId};
use wattline_core::placement::{Allocation, Configuration, Placement, Share, mask_of};
use wattline_core::power::NodePower;
use wattline_core::state::{JobState, Phase};
use wattline_core::units::Seconds;

/// A job that SLURM does not show for this long is gone.
const GONE: Seconds = Seconds::new(10.0);
/// Held jobs without a mark come without the gate, or from before there were marks. So many are marked
/// at a look: with ten thousand of them this takes an hour, and other orders do not wait for it.
const MOST_MARKS: u32 = 4;
/// Why a job waits that somebody has requeued and held, as the full answer and lines say it. One that
/// SLURM holds itself, because it could not be launched, waits for other reasons.
const HELD: [&str; 2] = ["JobHeldUser", "job requeued in held state"];
/// A job that we have requeued may be shown as held because of that for this long.
const LATELY: Seconds = Seconds::new(60.0);
/// A correction that had no effect is made again after this long.
const AGAIN: Seconds = Seconds::new(5.0);

impl Slurm {
    pub(super) fn job_news(
        &mut self,
        now: Timestamp,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(seen) = self.seen.clone() else { return };
        self.marks = 0;
        for (id, job) in seen.known() {
            self.absent.remove(&id);
            // What was seen may be older than what was last done about it.
            if !self.is_settled(Target::Job(job.key.id)) {
                continue;
            }
            match known.engine.state().find_job(id) {
                Some(state) if !state.has_ended() => self.news_of(now, id, job, known, news),
                _ => self.still_shown(now, id, job, known),
            }
        }
        self.gone(now, known, news);
    }

    /// Jobs that were submitted at this look and run already are where they are.
    pub(super) fn adopt(&mut self, known: Known<'_>, news: &mut Vec<BackendEvent>) {
        if let Some(seen) = self.seen.as_mut().and_then(Arc::get_mut) {
            seen.recognise(known.registry);
        }
        let Some(seen) = self.seen.clone() else { return };
        for (id, job) in seen.known() {
            let waits =
                |state: &JobState| matches!(state.phase, Phase::Waiting | Phase::BackingOff(_));
            let new = known.engine.state().find_job(id).is_some_and(waits);
            self.whose(id, job, known, news);
            if new && is_running(job) && self.is_settled(Target::Job(job.key.id)) {
                self.found(id, job, known, news);
            }
        }
    }

    fn news_of(
        &mut self,
        now: Timestamp,
        id: JobId,
        job: &SlurmJob,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(state) = known.engine.state().find_job(id) else { return };
        if self.is_lost(id, job, known) {
            if self.may_correct(now, job.key.id) {
                let requeue = Instruction::RequeueEnded(JobName::of(job));
                let mark = self.mark(job, known.registry.slurm(id));
                self.requeued.insert(job.key.id, now);
                self.correct(now, job, mark.into_iter().chain([requeue]).collect());
            }
            return;
        }
        self.taken_over(id, job, known, news);
        self.whose(id, job, known, news);
        if state.host.is_none()
            && let Some(seen) = &self.seen
        {
            let fixed = state.job.elasticity == wattline_core::job::Elasticity::Rigid;
            let request = super::host::request(job, fixed, &seen.rules);
            news.push(BackendEvent::Event(Event::HostAsked { job: id, request }));
        }
        if !matches!(state.phase, Phase::Waiting | Phase::BackingOff(_)) {
            self.asks.remove(&id);
            self.submitted.remove(&job.key.id);
        }
        let over = job.state.is_over();
        let runs = is_running(job);
        match state.phase {
            Phase::Finished => {}
            Phase::Waiting | Phase::BackingOff(_) if over => {
                self.ended(id, job, news);
                let event = if job.state == State::Completed {
                    Event::Finished(id)
                } else {
                    Event::Cancelled(id)
                };
                news.push(BackendEvent::Event(event));
            }
            Phase::Waiting | Phase::BackingOff(_) if runs => self.found(id, job, known, news),
            Phase::Waiting | Phase::BackingOff(_) if self.exited_unasked(id, job, known) => {
                Self::ended_unasked(id, job, news);
            }
            Phase::Waiting | Phase::BackingOff(_) => {
                self.limit_restarts(now, (id, job, 0), known, news);
                let mine = known.registry.slurm(id).is_some_and(|slurm| slurm.controlled);
                let free = job.state.waits() && !job.held && mine;
                if free && self.controls() && self.may_correct(now, job.key.id) {
                    // Thousands may wait when control begins: who finds no room now is told at the next
                    // look.
                    if !self.hold_again(now, job) {
                        self.corrected.remove(&job.key.id);
                    }
                }
                self.owner_news(now, id, job, known, news);
                // SLURM holds it because of how it ended, or a controller before this one did.
                let ours = job.held && mine && !state.is_on_hold() && self.controls();
                let ours = ours && self.marks < MOST_MARKS;
                let mark = self.mark(job, known.registry.slurm(id)).filter(|_| ours);
                if let Some(mark) = mark.filter(|_| self.may_correct(now, job.key.id)) {
                    self.marks += 1;
                    let complaint = format!("job {} cannot be marked", job.address());
                    self.order(now, Order::tell(Target::Job(job.key.id), vec![mark], complaint));
                }
            }
            Phase::Starting(action) => self.starting(now, id, job, action, known, news),
            Phase::Running | Phase::Stopping(_) => self.running(now, id, job, known, news),
        }
    }

    /// A job that has ended here and that SLURM still shows. One that was requeued since is its
    /// user's.
    fn still_shown(&mut self, now: Timestamp, id: JobId, job: &SlurmJob, known: Known<'_>) {
        let cancelled = known.registry.was_cancelled(id);
        let slurm = known.registry.slurm(id).filter(|slurm| slurm.controlled);
        let same = slurm.is_some_and(|slurm| slurm.key.restarts == job.key.restarts);
        let over = job.state.is_over() || job.state == State::Completing;
        if cancelled && same && !over && self.may_correct(now, job.key.id) {
            let cancel = Instruction::Cancel(JobName::of(job));
            let unasked = known.registry.ended(id) == Some(EXITED_UNASKED);
            // Its owner finds it cancelled, and wants to know why.
            let said = if unasked { self.remark(job, Some(EXITED_UNASKED)) } else { None };
            let said = said.map(|said| {
                let update = JobUpdate { comment: Some(said), ..JobUpdate::default() };
                Instruction::Update(JobName::of(job), update)
            });
            self.correct(now, job, said.into_iter().chain([cancel]).collect());
        }
    }

    /// A job that was only watched so far, of a partition that is looked after now.
    fn taken_over(
        &self,
        id: JobId,
        job: &SlurmJob,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(origin) = known.registry.origin(id) else { return };
        let Some(slurm) = origin.slurm.as_ref().filter(|slurm| !slurm.controlled) else { return };
        let mine = self.controls() && self.site.looks_after(&slurm.partition);
        if mine && !job.state.is_over() {
            let slurm = Some(SlurmOrigin { controlled: true, ..slurm.clone() });
            let origin = Origin { user: origin.user.clone(), slurm };
            news.push(BackendEvent::Noted(
                Event::Clock,
                JournalNote::Origin { job: id, origin: Arc::new(origin) },
            ));
        }
    }

    /// A job of a partition that is not looked after counts for what it holds, and nothing is decided
    /// about it.
    fn whose(&self, id: JobId, job: &SlurmJob, known: Known<'_>, news: &mut Vec<BackendEvent>) {
        let foreign = self.controls() && !self.site.looks_after(&job.partition);
        let was = known.engine.state().find_job(id).map(JobState::is_foreign);
        if was.is_some_and(|was| was != foreign) && !job.state.is_over() {
            news.push(BackendEvent::Event(Event::Foreign { job: id, foreign }));
        }
    }

    /// SLURM gave a job up because of a node, not because of the job: it runs elsewhere.
    fn is_lost(&self, id: JobId, job: &SlurmJob, known: Known<'_>) -> bool {
        let by_node = match job.state {
            State::NodeFail | State::BootFail => true,
            State::Failed => job.state_reason == "JobLaunchFailure",
            _ => false,
        };
        let mine = known.registry.slurm(id).is_some_and(|slurm| slurm.controlled);
        // One that is lost again and again is held, as one that is restarted too often.
        by_node && mine && job.requeue
    }

    fn starting(
        &mut self,
        now: Timestamp,
        id: JobId,
        job: &SlurmJob,
        action: ActionId,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(state) = known.engine.state().find_job(id) else { return };
        let started = || {
            BackendEvent::Noted(
                Event::Started { job: id, action },
                JournalNote::Key { job: id, key: key(job) },
            )
        };
        match &job.state {
            State::Completed => {
                news.push(started());
                self.ended(id, job, news);
                news.push(BackendEvent::Event(Event::Finished(id)));
            }
            over if over.is_over() => {
                self.ended(id, job, news);
                news.push(BackendEvent::Event(Event::Cancelled(id)));
                news.push(BackendEvent::Event(Event::Failed { action }));
            }
            State::Running | State::Signaling => {
                let (Some(planned), Some(slurm)) = (&state.held, known.registry.slurm(id)) else {
                    return;
                };
                match self.runs(job, slurm, planned) {
                    Runs::AsPlanned => {
                        self.windows.remove(&id);
                        news.push(started());
                    }
                    // Where it runs now is a fact, whoever has decided that.
                    Runs::Within | Runs::Elsewhere => {
                        self.windows.remove(&id);
                        self.found(id, job, known, news);
                    }
                    Runs::Unknown => {}
                }
            }
            // It ran and ended between two looks.
            _ if self.exited_unasked(id, job, known) => {
                Self::ended_unasked(id, job, news);
                news.push(BackendEvent::Event(Event::Failed { action }));
            }
            waits if waits.waits() => {
                // One that an administrator held meanwhile may have been let go since.
                let given_up = self.wanted.get(&action).is_some_and(|wanted| match wanted.step {
                    Step::GivingUp(at) => job.held && now >= at,
                    step => step == Step::Failed,
                });
                if given_up {
                    let wanted = self.wanted.remove(&action);
                    let refused = wanted.and_then(|wanted| wanted.refused);
                    news.push(match refused {
                        Some((why, said)) => BackendEvent::Noted(
                            Event::Refused { action, why },
                            JournalNote::Refused { job: id, said: said.into() },
                        ),
                        None => BackendEvent::Event(Event::Failed { action }),
                    });
                }
            }
            _ => {}
        }
    }

    fn running(
        &mut self,
        now: Timestamp,
        id: JobId,
        job: &SlurmJob,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(state) = known.engine.state().find_job(id) else { return };
        let Some(run) = state.run else { return };
        let stops = matches!(state.phase, Phase::Stopping(_));
        // A stop that was given up may be obeyed all the same, later.
        let asked = stops || known.registry.was_asked(id);
        if stops && !known.registry.was_asked(id) {
            let note = JournalNote::Asked { job: id };
            news.push(BackendEvent::Noted(Event::Clock, note));
        }
        let requeued = known.registry.slurm(id).is_some_and(|s| s.key.restarts < job.key.restarts);
        if job.state == State::Completing {
            return;
        }
        if job.state == State::Completed {
            self.measure(now, id, job, known, true, news);
            self.learn_overrun(id, job, state, known, news);
            self.windows.remove(&id);
            self.ended(id, job, news);
            news.push(BackendEvent::Event(Event::Finished(id)));
        } else if job.state.is_over() {
            self.windows.remove(&id);
            self.ended(id, job, news);
            news.push(BackendEvent::Event(Event::Cancelled(id)));
            let done = self.saved(now, job, state, asked);
            news.push(BackendEvent::Event(Event::Stopped { job: id, run, done }));
        } else if !asked && self.exited_unasked(id, job, known) {
            self.measure(now, id, job, known, true, news);
            self.windows.remove(&id);
            Self::ended_unasked(id, job, news);
            let done = self.saved(now, job, state, true);
            news.push(BackendEvent::Event(Event::Stopped { job: id, run, done }));
        } else if job.state.waits() || requeued {
            self.measure(now, id, job, known, true, news);
            self.windows.remove(&id);
            let done = self.saved(now, job, state, asked);
            if state.is_foreign() {
                // It counts again as soon as it runs again.
                self.ended(id, job, news);
                news.push(BackendEvent::Event(Event::Cancelled(id)));
                news.push(BackendEvent::Event(Event::Stopped { job: id, run, done }));
                return;
            }
            let note = JournalNote::Key { job: id, key: key(job) };
            news.push(BackendEvent::Noted(Event::Stopped { job: id, run, done }, note));
            self.limit_restarts(now, (id, job, u32::from(requeued)), known, news);
            if !asked {
                self.leave_held(now, id, job, known);
            }
        } else {
            self.measure(now, id, job, known, false, news);
            self.settle(now, id, state, known, news);
        }
    }

    /// One that runs was requeued and held, and not by us: it waits until whoever did that releases it.
    /// From now on it is held as the gate has owners hold theirs, which it stays when we are gone.
    fn leave_held(&mut self, now: Timestamp, id: JobId, job: &SlurmJob, known: Known<'_>) {
        let mine = known.registry.slurm(id).is_some_and(|slurm| slurm.controlled);
        let by_us = self.requeued.contains_key(&job.key.id);
        let reason = &job.state_reason;
        let held = job.held && HELD.iter().any(|text| reason.starts_with(text));
        if !mine || !self.controls() || by_us || !held {
            return;
        }
        let begin = Some(Begin::At(self.slurms_clock(now) + OWNER_HOLD * 2.0));
        let update = JobUpdate { begin, ..JobUpdate::default() };
        self.correct(now, job, vec![Instruction::Update(JobName::of(job), update)]);
    }

    /// A job of ours that waits and is not held. If it was held by its owner an administrator has
    /// released it, and nothing else keeps it.
    /// Says whether the order was given.
    fn hold_again(&mut self, now: Timestamp, job: &SlurmJob) -> bool {
        if !self.is_held_by_owner(now, job) {
            return self.hold(now, job.key.id, &job.address());
        }
        let begin = JobUpdate { begin: Some(Begin::Now), ..JobUpdate::default() };
        let begin = Instruction::Update(JobName::of(job), begin);
        let mark = self.mark(job, None);
        let told = mark.into_iter().chain([Instruction::hold(job), begin]).collect();
        self.correct(now, job, told)
    }

    fn ended(&self, id: JobId, job: &SlurmJob, news: &mut Vec<BackendEvent>) {
        let how = format!("{:?}", job.state).to_lowercase();
        news.push(BackendEvent::Noted(
            Event::Clock,
            JournalNote::Ended { job: id, how: how.into() },
        ));
    }

    /// Somebody else has started it, or SLURM with fewer GPUs than were kept for it. It is where it
    /// is as soon as those who were there are gone.
    fn found(&self, id: JobId, job: &SlurmJob, known: Known<'_>, news: &mut Vec<BackendEvent>) {
        let engine = known.engine.state();
        let mut shares = Vec::new();
        for on in &job.gpus {
            // What it holds on nodes that are not the site's is for nobody here to count.
            let Some(node) = self.site.find(&on.node) else { continue };
            // Others were found there at the same look.
            let others = news.iter().filter_map(|news| match news {
                BackendEvent::Noted(Event::Found { placement, .. }, _) => {
                    Some(&placement.allocation)
                }
                _ => None,
            });
            let others = others.flat_map(Allocation::shares).filter(|share| share.node == node);
            let held = engine.node(node).held.iter().filter(|resident| resident.job != id);
            let held = held.fold(0, |mask, resident| mask | resident.mask);
            let taken = others.fold(held, |mask, share| mask | share.mask);
            let free = mask_of(self.site.node(node).gpus) & !taken;
            let Some(mask) = lowest(free, on.count) else { return };
            if mask != 0 {
                shares.push(Share { node, mask });
            }
        }
        let Some(first) = shares.first() else { return };
        let gpu_type = self.site.node(first.node).gpu_type;
        // Where it was started by us its GPUs had their limit before; elsewhere they have not.
        let Some(state) = engine.find_job(id) else { return };
        let planned = |held: &&Placement| {
            let has = |share: &Share| held.allocation.shares().any(|own| own.node == share.node);
            shares.iter().all(has)
        };
        let told = state.held.as_ref().filter(planned);
        let told = told.map(|held| held.configuration.power_limit);
        let limit = told.unwrap_or(self.site.cluster.gpu_type(gpu_type).default_limit);
        let nodes = shares.len() as u32;
        let allocation = Allocation::over(shares.into_iter().collect());
        let configuration = Configuration {
            gpu_type,
            gpus: allocation.count(),
            nodes,
            batch: state.job.batch.requested,
            power_limit: limit,
        };
        let placement = Placement { configuration, allocation };
        let note = JournalNote::Key { job: id, key: key(job) };
        news.push(BackendEvent::Noted(Event::Found { job: id, placement }, note));
    }

    /// Jobs that SLURM has forgotten.
    fn gone(&mut self, now: Timestamp, known: Known<'_>, news: &mut Vec<BackendEvent>) {
        let Some(seen) = &self.seen else { return };
        self.corrected.retain(|_, last| now < *last + AGAIN);
        self.requeued.retain(|_, last| now < *last + LATELY);
        let engine = known.engine.state();
        // Jobs that are over are not looked at again, however many there were.
        let (open, looked_through) = &mut self.open;
        let new = (*looked_through as u32..engine.job_count() as u32).map(JobId);
        open.extend(new.filter(|id| known.registry.slurm(*id).is_some()));
        *looked_through = engine.job_count();
        open.retain(|id| engine.find_job(*id).is_some_and(|job| !job.has_ended()));
        // Looked through only where there are some of jobs that have ended.
        if self.asks.len() > open.len() {
            self.asks.retain(|id, _| open.contains(id));
        }
        let numbers = self.refused.len().max(self.submitted.len()).max(self.remarked.len());
        if numbers > seen.jobs().count() {
            let shown: BTreeSet<u32> = seen.jobs().map(|job| job.key.id).collect();
            self.refused.retain(|number| shown.contains(number));
            self.submitted.retain(|number, _| shown.contains(number));
            self.remarked.retain(|number, _| shown.contains(number));
        }
        let missing: Vec<JobId> =
            open.iter().copied().filter(|id| seen.job(*id).is_none()).collect();
        let seen_at = seen.began;
        for id in missing {
            let number = known.registry.slurm(id).map(|slurm| Target::Job(slurm.key.id));
            if number.is_some_and(|target| !self.orders.is_settled(target, seen_at)) {
                continue;
            }
            let since = *self.absent.entry(id).or_insert(now);
            if now < since + GONE {
                continue;
            }
            let Some(state) = engine.find_job(id) else { continue };
            let how = JournalNote::Ended { job: id, how: ENDED_UNSEEN.into() };
            news.push(BackendEvent::Noted(Event::Cancelled(id), how));
            match (state.phase, state.run) {
                (Phase::Starting(action), _) => {
                    news.push(BackendEvent::Event(Event::Failed { action }))
                }
                (Phase::Running | Phase::Stopping(_), Some(run)) => {
                    let done = state.progress.done;
                    news.push(BackendEvent::Event(Event::Stopped { job: id, run, done }));
                }
                _ => {}
            }
            self.absent.remove(&id);
        }
    }

    pub(super) fn node_news(&self, known: Known<'_>, news: &mut Vec<BackendEvent>) {
        let Some(seen) = &self.seen else { return };
        for id in self.site.cluster.node_ids() {
            if !self.is_settled(Target::Node(id)) {
                continue;
            }
            let node = known.engine.state().node(id);
            // One that would not wake counts as lost; that it sleeps is known.
            let (power, unwoken) = (node.power, node.is_unwoken());
            let is = seen.nodes.get(&*self.site.node(id).name).map_or(NodeIs::Lost, node_is);
            let event = match (is, power) {
                (NodeIs::Up, power)
                    if !matches!(power, NodePower::Up | NodePower::FallingAsleep) =>
                {
                    Event::NodeUp(id)
                }
                (NodeIs::Asleep, power)
                    if !unwoken && !matches!(power, NodePower::Asleep | NodePower::Booting) =>
                {
                    Event::NodeAsleep(id)
                }
                (NodeIs::Lost, power) if unwoken || power != NodePower::Down => Event::NodeLost(id),
                (NodeIs::Closed, power) if power != NodePower::Closed => Event::NodeClosed(id),
                _ => continue,
            };
            news.push(BackendEvent::Event(event));
        }
    }

    /// What was done, or cannot be.
    pub(super) fn action_news(&mut self, news: &mut Vec<BackendEvent>) {
        use wattline_core::action::ActionKind::{Limit, Sleep, Start, Stop, Wake};
        let mut over = Vec::new();
        for (id, wanted) in &self.wanted {
            let event = match (&wanted.action.kind, wanted.step) {
                _ if !self.controls() => Event::Failed { action: *id },
                (Limit { job, .. }, Step::Done) => Event::Limited { job: *job, action: *id },
                // A start has failed when the job is held again.
                (Start { .. }, _) => continue,
                (Stop { job, .. }, Step::Refused) => Event::StopRefused { job: *job, action: *id },
                (Limit { .. } | Wake { .. } | Sleep { .. }, Step::Failed) => {
                    Event::Failed { action: *id }
                }
                _ => continue,
            };
            over.push(*id);
            news.push(BackendEvent::Event(event));
        }
        for id in over {
            self.wanted.remove(&id);
        }
    }

    /// A correction is made at most so often.
    pub(super) fn may_correct(&mut self, now: Timestamp, number: u32) -> bool {
        let last = self.corrected.get(&number).copied();
        let may = last.is_none_or(|last| now >= last + AGAIN);
        if may {
            self.corrected.insert(number, now);
        }
        may && self.controls()
    }

    /// Puts something right about a job. Says whether the order was given.
    fn correct(&mut self, now: Timestamp, job: &SlurmJob, told: Vec<Instruction>) -> bool {
        let complaint = format!("job {}", job.address());
        let order = Order::tell(Target::Job(job.key.id), told, complaint);
        // It takes a job off, or back, whatever that does to others.
        self.order(now, order.lowering())
    }
}

/// Whether it has its GPUs, and keeps them.
pub(super) fn is_running(job: &SlurmJob) -> bool {
    job.state.holds_gpus() && !matches!(job.state, State::Completing | State::Configuring)
}

/// The lowest so many bits of a mask.
fn lowest(mask: u64, count: u32) -> Option<u64> {
    let bits = (0..64).filter(|bit| mask >> bit & 1 == 1).take(count as usize);
    let taken = bits.fold(0, |taken, bit| taken | 1 << bit);
    (u64::count_ones(taken) == count).then_some(taken)
}
