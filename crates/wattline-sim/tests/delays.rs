//! A cluster that takes a while to start and stop jobs.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{instance, run};
use std::sync::Arc;
use wattline_core::job::Work;
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;
use wattline_sim::simulation::{Outcome, Watch, simulate};

/// Ten jobs of ten minutes on one GPU, each long after the one before.
fn one_by_one(delays: &str) -> Instance {
    let mut instance = instance(&format!(
        "name = \"delays\"\nforesight = \"oracle\"\n[[nodes]]\ncount = 1\ngpu = \"h200\"\ngpus = 1\n\
         [jobs]\ncount = 10\nelasticity = \"rigid\"\ngpus = [{{ count = 1 }}]\n\
         [[jobs.workloads]]\nname = \"resnet50\"\n[world]\n{delays}"
    ));
    let start = instance.start;
    for (at, job) in instance.jobs.iter_mut().enumerate() {
        let job = Arc::make_mut(job);
        job.submit = start + Seconds::hours(at as f64);
        job.deadline = None;
        let shape = instance.cluster.menu(job)[0];
        let plain = instance.cluster.plain_configuration(job, shape);
        let speed = instance.physics.speed(job, &plain).unwrap();
        job.work = Work(600.0 * speed.rate.0);
    }
    instance
}

fn times(outcome: &Outcome) -> Vec<(f64, f64)> {
    let seconds = |job: &wattline_sim::metrics::JobOutcome| {
        let since = |time: wattline_core::Timestamp| (time - job.job.submit).get();
        (since(job.first_start.unwrap()), since(job.end.unwrap()))
    };
    outcome.jobs.iter().map(seconds).collect()
}

#[test]
fn a_job_takes_the_delays_longer() {
    let slow = one_by_one("start_delay = \"7 s\"\nstop_delay = \"3 s\"\n");
    for (start, end) in times(&run(&slow, "fifo")) {
        assert!((start - 7.0).abs() < 1e-3 && (end - 610.0).abs() < 1e-2, "{start} {end}");
    }
    let (prompt, late) = (run(&one_by_one(""), "fifo"), run(&slow, "fifo"));
    assert!(times(&prompt).iter().all(|(start, _)| *start == 0.0));
    // GPUs work three seconds longer for each job, and wait no less.
    let more = late.summary.energy_jobs_kwh / prompt.summary.energy_jobs_kwh;
    assert!((more - 603.0 / 600.0).abs() < 1e-6, "{more}");
}

/// What the cluster takes is learned: from the second job on, ends are foreseen with it.
#[test]
fn delays_are_foreseen_once_they_were_seen() {
    let slow = one_by_one("start_delay = \"7 s\"\nstop_delay = \"0 s\"\n");
    let watch = Watch { seconds: &|| 0.0, progress: &|_| {}, record: false, forecast: true };
    let outcome = simulate(&slow, "fifo", &watch).unwrap();
    let wrong = |job: &wattline_sim::metrics::JobOutcome| {
        let forecast = job.forecast.as_ref().unwrap().end.unwrap();
        (job.end.unwrap() - forecast).get()
    };
    let wrong: Vec<f64> = outcome.jobs.iter().map(wrong).collect();
    assert!((wrong[0] - 7.0).abs() < 1e-3, "{wrong:?}");
    assert!(wrong[1..].iter().all(|wrong| wrong.abs() < 1e-3), "{wrong:?}");
}

/// Everybody ends, whatever the delays, also where nodes fail and jobs are moved; and where none
/// fails no more is ever committed than the budget.
#[test]
fn work_goes_on_with_delays_and_faults() {
    let faults = "node_mtbf = \"6 h\"\nnode_repair = \"10 min\"\naction_failures = 0.05\n\
                  checkpoint_every = \"10 min\"\n";
    for faults in ["", faults] {
        let instance = instance(&format!(
            "name = \"faults\"\nseed = 3\nforesight = \"oracle\"\n[[nodes]]\ncount = 3\n\
             gpu = \"h200\"\ngpus = 4\nboot_time = \"60 s\"\n[budget]\nshare_of_peak = 0.7\n\
             [jobs]\ncount = 60\nload = 1.0\nelasticity = \"malleable\"\n\
             duration = {{ median = \"20 min\", sigma = 1.0, min = \"1 min\", max = \"2 h\" }}\n\
             [[jobs.workloads]]\nname = \"resnet50\"\n[world]\nstart_delay = \"20 s\"\n\
             stop_delay = \"15 s\"\n{faults}"
        ));
        for policy in ["edf", "tiresias", "wattline+work=1000", "powerflow"] {
            let outcome = run(&instance, policy);
            assert_eq!(outcome.summary.finished, outcome.summary.jobs, "{policy}");
            assert_eq!(outcome.summary.plans_refused, 0, "{policy}: {:?}", outcome.alerts);
            let over = outcome.summary.committed_exceeded_s;
            assert!(over == 0.0 || !faults.is_empty(), "{policy}: {over} s over the budget");
        }
    }
}
