//! Arrays of jobs that wait.
//!
//! SLURM shows an array as one job until somebody asks for a task of it. Each task is a job for us,
//! so tasks are asked for as they are needed: as many as the array's user lets run at a time, and
//! no more than would fill the cluster a few times.

use super::Slurm;
use super::deferred::is_held_by_admin;
use super::instruction::{Instruction, JobName};
use super::orders::{Order, Target};
use super::read::SlurmJob;
use super::seen::Seen;
use crate::backend::Known;
use wattline_core::Timestamp;

/// Tasks that wait or run fill the cluster at most so often.
const TIMES: u32 = 4;
/// Tasks that are asked for at one look.
const AT_ONCE: usize = 32;

impl Slurm {
    /// Gives tasks records of their own.
    pub(super) fn split_arrays(&mut self, now: Timestamp, known: Known<'_>) {
        let Some(seen) = self.seen.clone() else { return };
        let mine = |job: &&SlurmJob| {
            let stranger = known.registry.find(&super::seen::key(job)).is_none();
            // To hold its tasks would make an administrator's hold look like its user's.
            let by_admin = is_held_by_admin(job);
            job.is_whole_array() && job.state.waits() && stranger && !by_admin
        };
        if self.controls() {
            for array in seen.jobs().filter(mine) {
                let settled = self.is_settled(Target::Job(array.key.id));
                if settled
                    && self.site.looks_after(&array.partition)
                    && !self.is_early(now, array, true)
                {
                    self.split(now, array, &seen);
                }
            }
        }
    }

    fn split(&mut self, now: Timestamp, array: &SlurmJob, seen: &Seen) {
        let number = array.address();
        if !array.held {
            // Somebody has let it go, or it came past the gate.
            if self.may_correct(now, array.key.id) {
                self.hold(now, array.key.id, &number);
            }
            return;
        }
        let cluster: u32 = self.site.cluster.nodes().iter().map(|node| u32::from(node.gpus)).sum();
        let fill = (cluster * TIMES).div_ceil(array.gpus_asked().max(1));
        let most = array.array_at_once.unwrap_or(u32::MAX).min(fill).max(1) as usize;
        let live = |job: &&SlurmJob| {
            job.array_job_id == array.array_job_id
                && job.array_task_id.is_some()
                && !job.state.is_over()
        };
        let room = most.saturating_sub(seen.jobs().filter(live).count()).min(AT_ONCE);
        // To hold a task that is held changes nothing but that it gets a record.
        let tasks = tasks(array.array_tasks.as_deref().unwrap_or(""));
        let task = |task| JobName::task(array.key.id, task);
        let names: Vec<JobName> = tasks.take(room).map(task).collect();
        if !names.is_empty() {
            let told = vec![Instruction::Hold(names)];
            let complaint = format!("tasks of {number} cannot be told from their array");
            self.order(now, Order::tell(Target::Job(array.key.id), told, complaint));
        }
    }
}

/// The tasks that SLURM names, such as `0,4-6,10-20:5%3`. Long lists it cuts off.
fn tasks(text: &str) -> impl Iterator<Item = u32> + '_ {
    let list = text.split('%').next().unwrap_or("");
    list.split(',').map_while(range).flatten()
}

fn range(text: &str) -> Option<impl Iterator<Item = u32> + use<>> {
    let (span, step) = match text.split_once(':') {
        Some((span, step)) => (span, step.parse().ok().filter(|step| *step > 0)?),
        None => (text, 1),
    };
    let (first, last) = span.split_once('-').unwrap_or((span, span));
    let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    Some((first..=last).step_by(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_read_as_slurm_writes_them() {
        let read = |text: &str| tasks(text).take(100).collect::<Vec<_>>();
        assert_eq!(read("0-3%2"), [0, 1, 2, 3]);
        assert_eq!(read("1,3-5,10-20:5"), [1, 3, 4, 5, 10, 15, 20]);
        assert_eq!(read("7"), [7]);
        assert_eq!(read("1,2,..."), [1, 2]);
        for nothing in ["", "%3", "x", "5-", "-", "1-3:0", "9-2"] {
            assert_eq!(read(nothing), [] as [u32; 0], "{nothing:?}");
        }
        assert_eq!(read("0-4294967295").len(), 100);
    }
}
