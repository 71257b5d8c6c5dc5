//! What a queue of real users has: arrays, nodes that are drained.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{Lab, Spec};
use std::collections::BTreeSet;
use std::time::Duration;
use wattline_controller::slurm::read::{SlurmJob, State};

fn spec(work: u32) -> Spec {
    Spec { workload: "wa", work, gpus: 1, range: "1-2", deadline: 30, weight: 200, after: 0.0 }
}

fn running(lab: &Lab) -> Vec<SlurmJob> {
    let jobs = lab.queue().unwrap_or_default();
    jobs.into_iter().filter(|job| job.state == State::Running).collect()
}

#[test]
fn arrays_run_task_by_task_and_drained_nodes_are_left_alone() {
    let Some(mut lab) = Lab::up("queue", &[]) else { return };
    let site = lab.site("6 kW", "control");
    lab.control(&site);

    // Six tasks, of which two may run at a time. One of them has the array's own number.
    let array = lab.submit_with("sweep", &lab.train(&spec(60)), &["--array=0-5%2"]);
    let mut most = 0;
    let mut ended: BTreeSet<u32> = BTreeSet::new();
    lab.until("the array's end", Duration::from_secs(120), || {
        let jobs = lab.queue().unwrap_or_default();
        let tasks = jobs.iter().filter(|job| job.array_job_id == Some(array));
        let of = |state: State| tasks.clone().filter(move |job| job.state == state);
        most = most.max(of(State::Running).count());
        ended.extend(of(State::Completed).filter_map(|job| job.array_task_id));
        ended.len() == 6
    });
    assert_eq!((ended, most), ((0..6).collect(), 2));
    let queue = lab.ask(&["queue", "--all"]).unwrap();
    let names: BTreeSet<&str> =
        queue["jobs"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..6).map(|task| format!("sweep_{task}")).collect();
    assert_eq!(names, expected.iter().map(String::as_str).collect(), "{queue}");

    // A node is drained: who is there ends there, nobody else comes.
    let long: Vec<u32> =
        (0..4).map(|n| lab.submit(&format!("long{n}"), &lab.train(&spec(300)))).collect();
    lab.until("jobs to run", Duration::from_secs(60), || running(&lab).len() == 4);
    let node = running(&lab)[0].nodes[0].clone();
    let there: BTreeSet<u32> =
        running(&lab).iter().filter(|job| job.nodes.contains(&node)).map(|j| j.key.id).collect();
    lab.ran("scontrol", &["update", &format!("NodeName={node}"), "State=DRAIN", "Reason=test"]);
    let state = |lab: &Lab| {
        let nodes = lab.ask(&["nodes"]).unwrap();
        let mut rows = nodes["nodes"].as_array().unwrap().iter();
        rows.find(|row| row["name"] == *node).map(|row| row["state"].as_str().unwrap().to_owned())
    };
    lab.until("the node to be closed", Duration::from_secs(10), || {
        state(&lab).as_deref() == Some("closed")
    });
    let more: Vec<u32> =
        (0..8).map(|n| lab.submit(&format!("more{n}"), &lab.train(&spec(60)))).collect();
    let mut ended = BTreeSet::new();
    lab.until("the jobs' end", Duration::from_secs(120), || {
        let jobs = lab.queue().unwrap_or_default();
        let came = jobs.iter().find(|job| {
            job.state == State::Running && job.nodes.contains(&node) && !there.contains(&job.key.id)
        });
        assert!(came.is_none(), "{came:?} runs on {node}, which is drained");
        let completed = jobs.iter().filter(|job| job.state == State::Completed);
        ended.extend(completed.map(|job| job.key.id));
        long.iter().chain(&more).all(|number| ended.contains(number))
    });
    for number in &there {
        assert_eq!(lab.runs(*number).len(), 2, "job {number} was moved");
    }
    lab.until("the node to be given up", Duration::from_secs(10), || {
        state(&lab).as_deref() == Some("down")
    });
    lab.ran("scontrol", &["update", &format!("NodeName={node}"), "State=RESUME"]);
    lab.until("the node to be back", Duration::from_secs(10), || {
        state(&lab).is_some_and(|state| state == "up" || state == "asleep")
    });

    assert!(lab.is_controlled(), "{}", lab.log());
}
