//! The nodes that a job may have, written into a view and read back.

#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{Bench, FULL, job, on, runs};
use serde_json::{Value, json};
use std::sync::Arc;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::job::{Job, NodeChoice};
use wattline_core::snapshot::{Restored, Snapshot, SnapshotError};

const NODES: &[(u16, u8)] = &[(0, 4), (0, 4), (0, 4)];

/// A constrained job that runs, one that waits, and a job that takes any node.
fn bench() -> Bench {
    let ids = |ids: &[u32]| ids.iter().map(|id| NodeId(*id)).collect();
    let constrained_job = |count, required: &[u32], allowed: &[u32]| {
        let nodes = NodeChoice { count, required: ids(required), allowed: ids(allowed) };
        Job { preemptible: false, nodes: Some(Arc::new(nodes)), ..job() }
    };
    let jobs = vec![constrained_job(2, &[1], &[0, 1, 2]), constrained_job(1, &[], &[2]), job()];
    let mut bench = Bench::with(NODES, jobs, None);
    bench.settle(vec![runs(0, on(&[(0, 0b1), (1, 0b1)], FULL))], vec![]);
    bench
}

fn document(bench: &Bench) -> Value {
    let view = Snapshot::of(&bench.engine, bench.now, &|_| "workload".into());
    serde_json::to_value(view).unwrap()
}

fn read(document: &Value) -> Result<Restored, SnapshotError> {
    let view: Snapshot = serde_json::from_value(document.clone()).unwrap();
    let machines = view.machines()?;
    view.restore(&machines, &machines.times)
}

#[test]
fn the_nodes_that_a_job_may_have_come_back_as_they_were() {
    let bench = bench();
    let written = document(&bench);
    let expected =
        json!({"count": 2, "required": ["node1"], "allowed": ["node0", "node1", "node2"]});
    assert_eq!(written["jobs"][0]["nodes"], expected);
    assert_eq!(written["jobs"][1]["nodes"], json!({"count": 1, "allowed": ["node2"]}));
    assert!(written["jobs"][2].get("nodes").is_none());
    let restored = read(&written).unwrap();
    for id in (0..3).map(JobId) {
        let (was, is) = (bench.state().job(id), restored.state.job(id));
        assert_eq!(was.job.nodes, is.job.nodes);
        assert_eq!((&was.planned, &was.held), (&is.planned, &is.held));
        assert_eq!(was.is_plannable(), is.is_plannable(), "{id}");
    }
    assert!(!restored.state.job(JobId(0)).is_plannable(), "it stays where it runs");
}

/// The names in any order are the same nodes.
#[test]
fn names_need_not_be_in_order() {
    let mut document = document(&bench());
    document["jobs"][0]["nodes"]["allowed"] = json!(["node2", "node0", "node1"]);
    let restored = read(&document).unwrap();
    let nodes = restored.state.job(JobId(0)).job.nodes.clone().unwrap();
    assert_eq!(*nodes.allowed, [NodeId(0), NodeId(1), NodeId(2)]);
}

/// What a constrained job may ask is known over as many nodes as it takes.
#[test]
fn times_over_as_many_nodes_as_it_takes_are_written() {
    let document = document(&bench());
    let times = document["workloads"][0]["times"].as_array().unwrap();
    assert!(times.iter().any(|row| row["gpus"] == 4 && row["nodes"] == 2), "{times:?}");
    assert!(times.iter().any(|row| row["gpus"] == 4 && row["nodes"] == 1));
}

#[test]
fn nodes_that_cannot_be_chosen_so_are_refused_with_the_field() {
    let with = |nodes: Value| {
        let mut document = document(&bench());
        document["jobs"][1]["nodes"] = nodes;
        read(&document).unwrap_err().to_string()
    };
    for (nodes, message) in [
        (
            json!({"count": 1, "allowed": ["node0", "node9"]}),
            "field `jobs[1].nodes.allowed[1]` is \"node9\", which is none of the nodes",
        ),
        (
            json!({"count": 1, "required": ["x"], "allowed": ["node0"]}),
            "field `jobs[1].nodes.required[0]` is \"x\", which is none of the nodes",
        ),
        (
            json!({"count": 0, "allowed": ["node0"]}),
            "field `jobs[1].nodes.count` is 0.0, expected a number from 1.0 to 1e18",
        ),
        (
            json!({"count": 1, "allowed": ["node0", "node0"]}),
            "field `jobs[1].nodes.allowed`: names a node twice",
        ),
        (
            json!({"count": 3, "allowed": ["node0", "node1"]}),
            "field `jobs[1].nodes.allowed`: names fewer nodes than the job takes",
        ),
        (
            json!({"count": 1, "required": ["node0", "node1"], "allowed": ["node0", "node1"]}),
            "field `jobs[1].nodes.required`: names more nodes than the job takes",
        ),
        (
            json!({"count": 1, "required": ["node1"], "allowed": ["node0"]}),
            "field `jobs[1].nodes.required`: names a node that is not among those allowed",
        ),
    ] {
        assert_eq!(with(nodes), message);
    }
    let mut document = document(&bench());
    document["jobs"][1]["nodes"] = json!({"count": 1, "allowed": ["node0"], "prefer": []});
    let error = serde_json::from_value::<Snapshot>(document).unwrap_err().to_string();
    assert!(error.contains("unknown field `prefer`"), "{error}");
}
