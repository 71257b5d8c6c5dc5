//! Every version of SLURM's JSON reads to the same jobs and nodes, and nothing that is not
//! understood reads as a shorter list.

use proptest::prelude::*;
use serde_json::Value;
use std::collections::BTreeSet;
use wattline_controller::slurm::read::{
    self, Exit, GpuCount, Memory, NodeBase, NodeFlag, NodeGpus, ReadError, SlurmJob, State,
};
use wattline_core::time::Timestamp;
use wattline_core::units::Seconds;

const VERSIONS: [&str; 7] = ["38", "39", "40", "41", "42", "43", "44"];

fn fixture(name: &str) -> String {
    let path = format!("{}/tests/fixtures/slurm/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn jobs(version: &str) -> Vec<SlurmJob> {
    read::jobs(&fixture(&format!("squeue-0.0.{version}.json")))
        .unwrap_or_else(|e| panic!("0.0.{version}: {e:?}"))
}

fn gpus(count: u32, gpu_type: Option<&str>) -> Option<GpuCount> {
    Some(GpuCount { count, gpu_type: gpu_type.map(str::to_owned) })
}

#[test]
fn all_versions_read_to_the_same_jobs() {
    let first = jobs("38");
    for version in VERSIONS {
        assert_eq!(jobs(version), first, "0.0.{version}");
    }
}

#[test]
fn all_versions_read_to_the_same_nodes() {
    let of = |version: &str| {
        read::nodes(&fixture(&format!("nodes-0.0.{version}.json")))
            .unwrap_or_else(|e| panic!("0.0.{version}: {e:?}"))
    };
    let first = of("38");
    for version in VERSIONS {
        assert_eq!(of(version), first, "0.0.{version}");
    }
}

#[test]
fn jobs_are_what_slurm_was_told() {
    let jobs = jobs("44");
    let of = |name: &str| jobs.iter().find(|job| job.name == name).expect(name);
    assert_eq!(jobs.len(), 10);

    let done = of("done");
    assert_eq!((&done.state, done.exit), (&State::Completed, Exit { code: 0, signal: 0 }));
    assert!(done.gpus.is_empty() && done.gpus_held.is_none());
    assert_eq!(of("failed").exit, Exit { code: 3, signal: 0 });
    assert_eq!(of("later").state, State::Cancelled);

    let one = of("one");
    assert_eq!((one.key.id, one.key.restarts), (3, 1));
    assert_eq!(one.key.submit, Timestamp::from_seconds(1_794_786_093.0));
    assert_eq!(one.state, State::Completing);
    assert!(one.held && one.state.holds_gpus());
    assert_eq!(one.nodes, ["n1"]);
    assert_eq!(one.comment.as_deref(), Some("deadline=6h weight=2"));
    assert_eq!(one.admin_comment.as_deref(), Some("deadline=6h weight=2"));
    assert_eq!(one.time_limit, None);

    let two = of("two");
    assert_eq!((two.user_id, two.user_name.as_deref()), (1001, Some("alice")));
    assert_eq!((&two.state, two.held, two.nice), (&State::Running, false, 0));
    assert_eq!(two.nodes, ["n2", "n3"]);
    let on = |node: &str| NodeGpus {
        node: node.into(),
        count: 3,
        gpu_type: Some("h100".into()),
        indices: vec![0, 1, 2],
    };
    assert_eq!(two.gpus, [on("n2"), on("n3")]);
    assert_eq!((two.gpus_held, two.gpus_asked()), (Some(6), 6));
    assert_eq!(two.gpus_per_node, gpus(3, Some("h100")));
    assert_eq!((two.cpus, two.tasks, two.node_count), (Some(4), Some(2), Some(2)));
    assert_eq!(two.memory, Some(Memory::PerNode(1000)));
    assert_eq!(two.time_limit, Some(Seconds::new(3600.0)));
    assert!(two.start.is_some() && two.batch && two.requeue);

    let wait = of("wait");
    assert_eq!(wait.user_name.as_deref(), Some("bob"));
    assert_eq!((&wait.state, wait.state_reason.as_str()), (&State::Pending, "Dependency"));
    assert_eq!((wait.gpus_per_job.clone(), wait.gpus_asked()), (gpus(4, None), 4));
    assert!(wait.dependency.as_deref().is_some_and(|d| d.starts_with("afterok:4")));
    assert_eq!(wait.memory, Some(Memory::PerCpu(100)));

    let held = of("held");
    assert_eq!((held.priority, held.held, held.nice), (Some(0), true, 5));
    let array = of("array");
    assert_eq!((array.array_job_id, array.array_task_id), (Some(7), None));
    assert_eq!(array.array_tasks.as_deref(), Some("0-1"));

    let special = of("susr");
    assert_eq!((&special.state, special.held), (&State::SpecialExit, true));
    assert_eq!(special.exit, Exit { code: 86, signal: 0 });
    assert_eq!(special.required_nodes, ["n1"]);
    assert!(special.state.waits() && special.gpus.is_empty());
    assert!(!of("timeout").requeue);
}

#[test]
fn nodes_are_what_slurm_was_told() {
    let nodes = read::nodes(&fixture("nodes-0.0.43.json")).expect("nodes");
    let of = |name: &str| nodes.iter().find(|node| node.name == name).expect(name);
    assert_eq!(nodes.len(), 4);
    let n1 = of("n1");
    assert_eq!(
        (&n1.base, n1.flags.clone()),
        (&NodeBase::Mixed, BTreeSet::from([NodeFlag::Completing]))
    );
    assert_eq!(Some(n1.gpus.clone()), gpus(4, Some("h100")));
    assert_eq!((n1.gpus_used, n1.gpus_used_indices.as_slice()), (1, &[0][..]));
    assert_eq!((n1.cpus, n1.alloc_cpus, n1.real_memory), (64, 1, 500_000));
    assert_eq!(n1.partitions, ["gpu"]);
    assert!(n1.is_usable() && n1.boot.is_some() && n1.slurmd_start.is_some());
    let n2 = of("n2");
    assert_eq!((n2.extra.as_deref(), n2.comment.as_deref()), (Some("x=1"), Some("hello")));
    let n4 = of("n4");
    assert!(n4.is_asleep() && !n4.is_usable());
    assert_eq!((n4.gpus_used, n4.last_busy), (0, None));
}

#[test]
fn a_slurmctld_that_cannot_be_reached_is_no_empty_queue() {
    let text = fixture("squeue-down-0.0.38.json");
    let error = read::jobs(&text).expect_err("squeue exits with 0 and prints no jobs here");
    assert!(matches!(&error, ReadError::Reported(said) if said.contains("slurm_load_jobs")));
}

#[test]
fn odd_jobs_of_a_real_cluster() {
    let path =
        format!("{}/tests/fixtures/slurm/squeue-odd-0.0.38.json", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("the fixture");
    assert!(std::str::from_utf8(&bytes).is_err(), "SLURM prints what users type");
    let jobs = read::jobs(&read::text(&bytes)).expect("one user's bytes are nobody else's trouble");
    let of = |id: u32| jobs.iter().find(|job| job.key.id == id).expect("the job");
    assert_eq!(jobs.len(), 10);
    assert_eq!(of(1).name, "bad\u{fffd}\u{fffd}");
    assert_eq!(of(2).name, "ctl\u{1b}[31m\nnew\ttab");
    assert_eq!(of(2).comment.as_deref(), Some("a\u{1}\u{2}\n\"q\"\\"));
    let held = |id: u32| of(id).gpus.iter().map(|g| (g.node.clone(), g.count)).collect::<Vec<_>>();
    assert_eq!(held(3), [("n1".to_owned(), 2), ("n2".to_owned(), 1)]);
    let asked = [3, 4, 5, 7, 9].map(|id| of(id).gpus_asked());
    assert_eq!(asked, [3, 2, 1, 1, 0]);
    assert_eq!((of(7).het_job_id, of(7).het_job_offset), (Some(6), Some(1)));
    assert_eq!((of(9).het_job_id, of(9).het_job_offset), (Some(8), Some(1)));
    assert_eq!((of(12).array_job_id, of(12).array_task_id), (Some(10), Some(0)));
    assert_eq!((of(10).state.waits(), of(10).array_task_id), (true, None));
    assert!(!of(11).batch && of(1).batch);
}

#[test]
fn what_is_no_list_is_an_error() {
    for text in [
        "",
        "{",
        "{}",
        "[]",
        "null",
        r#"{"jobs": null}"#,
        r#"{"jobs": {}}"#,
        r#"{"jobs": [null]}"#,
        r#"{"jobs": [1]}"#,
        r#"{"jobs": [], "errors": [{}]}"#,
        r#"{"jobs": [], "errors": "no"}"#,
        r#"{"jobs": [], "errors": {}}"#,
        r#"{"jobs": [], "jobs": []}"#,
        r#"{"jobs": []} x"#,
        r#"{"nodes": []}"#,
    ] {
        assert!(read::jobs(text).is_err(), "{text}");
    }
    assert!(read::jobs(r#"{"jobs": []}"#).expect("empty, and says so").is_empty());
    let deep = format!(r#"{{"errors": {}{}, "jobs": []}}"#, "[".repeat(5000), "]".repeat(5000));
    assert!(read::jobs(&deep).is_err());
    // Nesting in a field that nobody needs does no harm either.
    let deep = format!(r#"{{"x": {}{}, "jobs": []}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let _ = read::jobs(&deep);
    let grouped = read::nodes(r#"{"sinfo": [], "errors": []}"#).expect_err("groups");
    assert!(grouped.to_string().contains("scontrol show nodes --json"), "{grouped}");
}

/// One job of a fixture with one field changed.
fn with(version: &str, field: &str, value: Value) -> Result<Vec<SlurmJob>, ReadError> {
    let mut document: Value = serde_json::from_str(&fixture(&format!("squeue-0.0.{version}.json")))
        .expect("fixtures are JSON");
    document["jobs"][3][field] = value;
    read::jobs(&document.to_string())
}

#[test]
fn an_error_names_the_job_and_the_field() {
    for (field, value) in [
        ("submit_time", Value::Null),
        ("restart_cnt", "x".into()),
        ("job_state", serde_json::json!([])),
        ("job_state", Value::Null),
        ("user_id", (-1).into()),
        ("partition", Value::Null),
        ("priority", serde_json::json!({"set": true, "number": "many"})),
        ("nodes", "n[2-".into()),
        ("gres_detail", serde_json::json!(["gpu:h100:3(IDX:0-2)"])),
        ("gres_detail", serde_json::json!(["gpu:h100:3(IDX:0-1)", "gpu:h100:3(IDX:0-2)"])),
        ("exit_code", serde_json::json!({"return_code": "x"})),
        ("comment", 5.into()),
    ] {
        for version in VERSIONS {
            let error = with(version, field, value.clone()).expect_err(field).to_string();
            assert!(error.starts_with(&format!("job 4: field '{field}'")), "{error}");
        }
    }
    let error = with("38", "job_id", Value::Null).expect_err("no id").to_string();
    assert_eq!(error, "the job at place 3: field 'job_id' is missing or not set");
    let error = with("38", "job_id", 3.into()).expect_err("twice").to_string();
    assert_eq!(error, "job 3 is listed twice");
}

#[test]
fn what_is_new_or_not_needed_does_no_harm() {
    for version in VERSIONS {
        let jobs = with(version, "job_state", "TELEPORTING".into()).expect("kept");
        assert_eq!(jobs[3].state, State::Other("TELEPORTING".into()));
        let jobs = with(version, "job_resources", serde_json::json!([[["?"]]])).expect("not read");
        assert_eq!(jobs.len(), 10);
        assert!(with(version, "tres_bind", 5.into()).is_ok());
    }
}

/// How many entries there are, if the text can be read as JSON at all.
fn entries(text: &str, key: &str) -> Option<usize> {
    let document: Value = serde_json::from_str(text).ok()?;
    Some(document.get(key)?.as_array()?.len())
}

proptest! {
    #![proptest_config(wattline_testing::cases(1500, 2))]

    #[test]
    fn a_mangled_answer_never_loses_a_job(
        version in 0..VERSIONS.len(),
        nodes in any::<bool>(),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        nulls in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let (kind, key) = if nodes { ("nodes", "nodes") } else { ("squeue", "jobs") };
        let text = fixture(&format!("{kind}-0.0.{}.json", VERSIONS[version]));
        let mut document: Value = serde_json::from_str(&text).expect("fixtures are JSON");
        for null in nulls {
            let list = document[key].as_array_mut().expect("a list");
            let entry = null.get_mut(list).as_object_mut().expect("an object");
            let place = null.index(entry.len());
            if let Some((_, value)) = entry.iter_mut().nth(place) { *value = Value::Null; }
        }
        let mut bytes = document.to_string().into_bytes();
        for (at, with) in flips { *at.get_mut(&mut bytes) = with; }
        if let Some(cut) = cut { bytes.truncate(cut.index(bytes.len())); }
        let text = String::from_utf8_lossy(&bytes);
        let read = if nodes {
            read::nodes(&text).map(|nodes| nodes.len())
        } else {
            read::jobs(&text).map(|jobs| jobs.len())
        };
        if let Ok(read) = read {
            prop_assert_eq!(Some(read), entries(&text, key));
        }
    }

    #[test]
    fn host_lists_never_panic(text in "[a-c0-9,\\[\\]\\-x é]{0,40}") {
        if let Ok(names) = read::hostlist::expand(&text) {
            prop_assert!(names.iter().all(|name| !name.is_empty() && !name.contains(['[', ',', ']'])));
        }
    }
}
