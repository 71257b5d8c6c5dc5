//! Many jobs released by few commands.
//!
//! `scontrol` takes lists, goes on after a number that it does not know, and tasks of one array are
//! one request to slurmctld. A command that fails does not say which of its jobs were released: the
//! next look does.

use super::instruction::Instruction;
use super::link::Link;
use super::read::{SlurmJob, compact};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, scope};

/// Jobs of one command: 2 kB of numbers, far below what an argument may have (128 kB), and 0.5 s of
/// work at 2 ms for each request, far below the time limit of a command.
const MOST_JOBS: usize = 200;
/// Commands at a time. slurmctld decides about one job at a time, so more than a few wait for each
/// other: with two it releases some 750 jobs a second on two cores, with one 430.
const AT_ONCE: usize = 3;

/// Releases jobs, as far as SLURM lets them go.
pub(super) fn release(link: &Link, jobs: &[SlurmJob]) {
    if link.rest.is_some() {
        // Over slurmrestd there is a request for each.
        return each(jobs, |job| drop(link.tell(&Instruction::release(job))));
    }
    // The next look says what became of them.
    each(&lists(jobs), |list| drop(link.commands.run("scontrol", &["release", list])));
}

/// Does something about each, a few at a time.
fn each<T: Sync>(all: &[T], run: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            run(one);
        }
    };
    scope(|threads| {
        for _ in 1..AT_ONCE.min(all.len()) {
            // Without a thread it takes longer.
            let _ = Builder::new().spawn_scoped(threads, work);
        }
        work();
    });
}

/// The arguments of the commands.
fn lists(jobs: &[SlurmJob]) -> Vec<String> {
    let mut single: Vec<String> = Vec::new();
    let mut arrays: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for job in jobs {
        match (job.array_job_id, job.array_task_id) {
            (Some(array), Some(task)) => {
                arrays.entry(array).or_default().insert(task);
            }
            _ => single.push(job.address()),
        }
    }
    let singles = single.chunks(MOST_JOBS).map(|numbers| numbers.join(","));
    let tasks = arrays.iter().flat_map(|(array, tasks)| {
        let tasks: Vec<u32> = tasks.iter().copied().collect();
        let list = |tasks: &[u32]| {
            format!("{array}_[{}]", compact::ranges(&tasks.iter().copied().collect()))
        };
        tasks.chunks(MOST_JOBS).map(list).collect::<Vec<_>>()
    });
    singles.chain(tasks).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::slurm::read;

    #[test]
    fn lists_are_short_and_tasks_go_by_their_array() {
        let job = |id: usize, array: &str| {
            format!(
                r#"{{"job_id":{id},"submit_time":1,"restart_cnt":0,"user_id":1,"partition":"p",
                "job_state":"PENDING","priority":0,{array}"name":"x"}}"#
            )
        };
        let task =
            |at: usize| job(1000 + at, &format!(r#""array_job_id":9,"array_task_id":{at},"#));
        let jobs: Vec<String> =
            (1..=450).map(|id| job(id, "")).chain((3..=205).map(task)).collect();
        let jobs = read::jobs(&format!(r#"{{"jobs":[{}]}}"#, jobs.join(","))).unwrap();
        let lists = lists(&jobs);
        let numbers: Vec<usize> = lists.iter().map(|list| list.split(',').count()).collect();
        assert_eq!(numbers, [200, 200, 50, 1, 1]);
        assert!(lists[0].starts_with("1,2,3,"), "{}", lists[0]);
        assert_eq!(lists[3..], ["9_[3-202]", "9_[203-205]"]);
    }
}
