//! Taking a job off its GPUs: it is told to save, then requeued. One that its owner has cancelled is
//! cancelled. One that SLURM cannot requeue, or that could not go on, is left where it is, unless
//! the site lets such jobs be ended.

use super::instruction::{Instruction, JobName};
use super::orders::{Order, Purpose, Target};
use super::read::State;
use super::{Slurm, Step, link};
use crate::backend::Known;
use crate::job_registry::Checkpoint;
use wattline_core::Timestamp;
use wattline_core::ids::{ActionId, JobId};
use wattline_core::shed::Shed;
use wattline_core::units::Seconds;

/// A command that had no effect is given again after this long: SLURM needs a look or two to show
/// what came of it. Twice as long, and a job draws power for that much longer.
const AGAIN: Seconds = Seconds::new(5.0);

/// What SLURM says to a requeue that it will never carry out: of a job submitted with
/// `--no-requeue`, and of one that is no batch job (`slurm_strerror` of `ESLURM_DISABLED` and
/// `ESLURM_BATCH_ONLY`, the same from 20.11 to 24.05).
const REFUSALS: [&str; 2] =
    ["Requested operation is presently disabled", "Only batch jobs are accepted or processed"];

/// Whether SLURM will say the same whenever it is asked.
pub(super) fn is_refused(said: &str) -> bool {
    link::is_unsayable(said) || REFUSALS.iter().any(|text| said.contains(text))
}

/// How a job is taken off its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Its owner wants it gone.
    Cancel,
    /// It goes on later.
    Requeue,
    /// It cannot go on later, and the site lets such jobs be ended.
    End,
    /// Not by us.
    Never,
}

impl Slurm {
    /// Takes the next step of a stop.
    pub(super) fn advance_stop(
        &mut self,
        now: Timestamp,
        action: ActionId,
        id: JobId,
        step: Step,
        known: Known<'_>,
    ) -> Step {
        let Some(slurm) = known.registry.slurm(id) else { return Step::Failed };
        let Some(job) = self.seen.as_ref().and_then(|seen| seen.job(id)) else { return step };
        if !job.state.holds_gpus() || job.state == State::Completing || step == Step::Refused {
            return step;
        }
        let number = job.address();
        let Some(state) = known.engine.state().find_job(id) else { return step };
        let stop = match (state.is_cancelled(), state.job.preemptible) {
            (true, _) => Stop::Cancel,
            (false, true) => Stop::Requeue,
            (false, false) if known.engine.config().shed != Shed::Kill => Stop::Never,
            (false, false) if slurm.checkpoint == Checkpoint::None => Stop::End,
            (false, false) if job.can_be_requeued() => Stop::Requeue,
            (false, false) => Stop::End,
        };
        // Its user may have said so since it was submitted.
        if stop == Stop::Never || (stop == Stop::Requeue && !job.can_be_requeued()) {
            return Step::Refused;
        }
        let patience = known.engine.predictor().restart(&state.job).save * 2.0;
        let patience = patience + self.site.config.stop_grace;
        let mut targets = vec![Target::Job(job.key.id)];
        let name = JobName::of(job);
        let told = match step {
            _ if stop == Stop::Cancel => match step {
                Step::Asked(at) if now < at + AGAIN => return step,
                _ => Instruction::Cancel(name),
            },
            Step::New if slurm.checkpoint == Checkpoint::Usr1 && job.batch => {
                // Each slurmd must answer this itself.
                let nodes = job.nodes.iter().filter_map(|node| self.site.find(node));
                targets.extend(nodes.map(Target::Slurmd));
                Instruction::SignalBatch(name)
            }
            Step::Asked(at) if now < at + patience => return step,
            _ if stop == Stop::End => Instruction::Cancel(name),
            _ => Instruction::RequeueHold(name),
        };
        let complaint = format!("job {number} cannot be stopped");
        // It will be held: whatever comes after us must know that it is by us.
        let mark = self.mark(job, Some(slurm)).filter(|_| stop == Stop::Requeue);
        let told = mark.into_iter().chain([told]).collect();
        let order = Order::tell(Target::Job(job.key.id), told, complaint);
        let order = Order { targets, ..order }.lowering().with(Purpose::Stop(action, step));
        if self.order(now, order) { Step::Asked(now) } else { step }
    }
}
