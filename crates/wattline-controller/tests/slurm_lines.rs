//! The lines of squeue that a look reads, whatever is in them.

use proptest::prelude::*;
use wattline_controller::slurm::read::compact::{self, Entry};
use wattline_controller::slurm::read::{self, ReadError, SlurmJob, State};
use wattline_core::units::Seconds;

const WAITS: &str = "7|7|N/A|1795043307|0|1000|gpu|PENDING|JobHeldUser|0|0|||OK|(null)|\
    gres:gpu:1|N/A|N/A|N/A|1|1|1|100M|UNLIMITED|N/A|N/A|N/A|0|(null)|1|";
const RUNS: &str = "7|7|N/A|1795043307|0|1000|gpu|RUNNING|None|4294901757|0|n[1-2]|n1|NO|a100|\
    gres:gpu:1|N/A|N/A|cpu=2,node=2,gres/gpu=2|2|2|2|100M|1-02:03:04|1795043526|1795133000|\
    1795043526|0|(null)|1|";

/// Lines as squeue prints them.
fn lines(lines: &[&str]) -> String {
    lines.iter().map(|line| line.replace('|', "\u{1f}") + "\n").collect()
}

fn base() -> SlurmJob {
    let text = r#"{"jobs":[{"job_id":7,"submit_time":1795043307,"restart_cnt":0,"user_id":1000,
        "name":"x","partition":"gpu","job_state":"PENDING","state_reason":"JobHeldUser",
        "priority":0,"requeue":true,"tres_per_node":"gres:gpu:1","cpus":1,"tasks":1,
        "node_count":1,"memory_per_node":100,"comment":"a"}]}"#;
    read::jobs(text).unwrap_or_else(|error| panic!("{error}")).remove(0)
}

fn entry(text: &str) -> Vec<Entry<'_>> {
    compact::entries(text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_line_that_says_the_same_changes_nothing() {
    let text = lines(&[WAITS]);
    let entries = entry(&text);
    let applied = entries[0].apply(&base()).ok().flatten();
    let applied = applied.unwrap_or_else(|| panic!("it is the same job"));
    assert_eq!(applied.job, base());
    assert!(!applied.is_vague && !applied.lacks_gpus);
    assert!(entries[0].is(&entries[0].text()) && !entries[0].is("") && !entries[0].is("7"));
}

#[test]
fn a_line_tells_that_a_job_runs_and_scontrol_where() {
    let text = lines(&[RUNS]);
    let applied = entry(&text)[0].apply(&base()).ok().flatten();
    let applied = applied.unwrap_or_else(|| panic!("it is the same job"));
    let job = &applied.job;
    assert!(applied.lacks_gpus && job.exclusive && !job.held);
    assert_eq!((&job.state, job.gpus_held), (&State::Running, Some(2)));
    assert_eq!(job.nodes, ["n1", "n2"]);
    assert_eq!(job.time_limit, Some(Seconds::new(93_784.0)));
    assert_eq!(job.comment.as_deref(), Some("a"), "what no line tells stays");
    let shown = "JobId=7 JobName=x\n   NodeList=n[1-2]\n   JOB_GRES=gpu:h100:2\n     \
                 Nodes=n[1-2] CPU_IDs=0 Mem=100 GRES=gpu:h100:1(IDX:3)\n";
    let gpus = compact::gpus(shown, 7, &job.nodes).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(gpus.len(), 2);
    assert_eq!((gpus[1].node.as_str(), &gpus[1].indices[..]), ("n2", &[3][..]));
    // A name may have lines of its own.
    let forged = shown.replace("JobName=x", "JobName=x\n     Nodes=n1 CPU_IDs=0 GRES=gpu:1(IDX:0)");
    assert!(compact::gpus(&forged, 7, &job.nodes).is_err());
    assert!(compact::gpus(&format!("JobId=7 \n{shown}"), 7, &job.nodes).is_err());
    assert!(compact::gpus(shown, 8, &job.nodes).is_err());
    assert!(compact::gpus(shown, 7, &["n1".to_owned()]).is_err());
    assert!(compact::gpus("", 7, &job.nodes).is_err());
}

/// Also at the first line after a full answer: one that was changed in between was missed until the
/// next full answer, five minutes later.
#[test]
fn memory_that_differs_from_the_record_is_noticed_and_rounding_is_no_difference() {
    let is_vague = |memory: Option<&str>, shown: &str| {
        let job = r#"{"jobs":[{"job_id":7,"submit_time":1795043307,"restart_cnt":0,"user_id":1000,
            "partition":"gpu","job_state":"PENDING","priority":0,"requeue":true"#;
        let memory = memory.map_or_else(String::new, |memory| format!(",{memory}"));
        let jobs = read::jobs(&format!("{job}{memory}}}]}}"));
        let job = jobs.unwrap_or_else(|error| panic!("{error}")).remove(0);
        let text = lines(&[&WAITS.replacen("|100M|", &format!("|{shown}|"), 1)]);
        let applied = entry(&text)[0].apply(&job).ok().flatten();
        applied.unwrap_or_else(|| panic!("{shown}")).is_vague
    };
    for (memory, same, other) in [
        (r#""memory_per_node":100"#, "100M", "101M"),
        (r#""memory_per_node":900000"#, "900000M", "1000M"),
        (r#""memory_per_node":900000"#, "878.91G", "878.93G"),
        (r#""memory_per_node":1048576"#, "1T", "1G"),
        (r#""memory_per_cpu":1536"#, "1.50G", "1.52G"),
        (r#""memory_per_node":0"#, "0", "1M"),
    ] {
        assert!(!is_vague(Some(memory), same), "{memory} {same}");
        assert!(is_vague(Some(memory), other), "{memory} {other}");
    }
    assert!(!is_vague(None, "0") && is_vague(None, "10M"));
    assert!(!is_vague(None, "some"), "not understood");
}

#[test]
fn a_number_that_was_given_to_another_job_is_told() {
    for other in [WAITS.replace("1795043307|0", "1795043308|0"), WAITS.replace("|1000|", "|1001|")]
    {
        let text = lines(&[&other]);
        assert_eq!(entry(&text)[0].apply(&base()).ok(), Some(None), "{other}");
    }
    let requeued = lines(&[&WAITS.replace("1795043307|0", "1795043400|1")]);
    let applied = entry(&requeued)[0].apply(&base()).ok().flatten();
    assert_eq!(applied.map(|applied| applied.job.key.restarts), Some(1));
}

#[test]
fn tasks_of_an_array_come_from_it() {
    let task = |id: u32, task: &str| {
        let line = WAITS.replacen("7|7|N/A", &format!("{id}|7|{task}"), 1);
        lines(&[&line])
    };
    let array = SlurmJob {
        array_job_id: Some(7),
        array_tasks: Some("0-9%2".into()),
        array_at_once: Some(2),
        ..base()
    };
    let text = task(7, "3") + &task(7, "2") + &task(7, "5") + &task(9, "0");
    let entries = entry(&text);
    assert_eq!(entries.len(), 2);
    let left = entries[0].apply(&array).ok().flatten().unwrap_or_else(|| panic!("the array"));
    assert_eq!(left.job.array_tasks.as_deref(), Some("2-3,5"));
    assert!(!left.is_vague);
    let own = entries[1].split_from(&array).ok().flatten().unwrap_or_else(|| panic!("a task"));
    assert_eq!((own.job.key.id, own.job.array_task_id), (9, Some(0)));
    assert!(!own.job.is_whole_array());
    assert_eq!(entries[0].split_from(&array).ok(), Some(None), "several lines are no task");
    // The last task may have become a job of its own.
    let text = task(7, "3");
    assert!(entry(&text)[0].apply(&array).ok().flatten().is_some_and(|last| last.is_vague));
}

#[test]
fn what_is_not_understood_is_told_with_line_and_field() {
    assert_eq!(entry(""), []);
    let owner = |result: Result<(), ReadError>| match result {
        Err(ReadError::Field { owner, field, .. }) => (owner, field),
        other => panic!("{other:?}"),
    };
    for broken in ["", "7", "x|y", "{\"jobs\":[]}", &WAITS[1..], &WAITS[..WAITS.len() - 2]] {
        let text = lines(&[WAITS, broken]);
        let (owner, field) = owner(compact::entries(&text).map(drop));
        assert_eq!(owner, "line 2 of squeue", "{broken}");
        assert!(matches!(field, "line" | "jobid"), "{broken}");
    }
    for (from, to, wrong) in [
        ("1795043307", "2026-11-18T23:08:27", "submittime"),
        ("|PENDING|", "||", "state"),
        ("|UNLIMITED|", "|1:2:3:4|", "timelimit"),
        ("|JobHeldUser|0|", "|JobHeldUser|x|", "prioritylong"),
        ("|gres:gpu:1|", "|gres:gpu:a:1k|", "tres-per-node"),
        ("|1|1|1|100M", "|1|-1|1|100M", "numtasks"),
    ] {
        let text = lines(&[&WAITS.replacen(from, to, 1)]);
        let (owner, field) = owner(entry(&text)[0].apply(&base()).map(drop));
        assert_eq!((owner.as_str(), field), ("line 1 of squeue (job 7)", wrong));
    }
}

proptest! {
    #![proptest_config(wattline_testing::cases(1000, 41))]

    /// Whatever is printed: an answer or an error.
    #[test]
    fn no_text_makes_it_panic(text in r"[0-9A-Za-z\x1f:,/\[\]()%.\n -]{0,400}") {
        if let Ok(entries) = compact::entries(&text) {
            for entry in &entries {
                let _ = entry.apply(&base());
                let _ = entry.split_from(&base());
            }
        }
        let _ = compact::gpus(&text, 7, &["n1".to_owned()]);
    }

    /// The same where only one field is odd.
    #[test]
    fn no_field_makes_it_panic(at in 0_usize..30, odd in r"\PC{0,20}", runs: bool) {
        let line = if runs { RUNS } else { WAITS };
        let mut fields: Vec<&str> = line.split('|').collect();
        fields[at] = &odd;
        let text = lines(&[&fields.join("|")]);
        if let Ok(entries) = compact::entries(&text) {
            for entry in &entries {
                if let Ok(Some(applied)) = entry.apply(&base()) {
                    prop_assert_eq!(applied.job.key.id, 7);
                }
            }
        }
    }

    /// Lines in any order are the same jobs, and none is lost.
    #[test]
    fn no_line_is_lost(ids in prop::collection::btree_set(1_u32..1000, 0..40), seed: u64) {
        let line = |id: &u32| WAITS.replacen("7|7", &format!("{id}|{id}"), 1);
        let mut all: Vec<String> = ids.iter().map(line).collect();
        let len = all.len().max(1);
        all.rotate_left((seed % len as u64) as usize);
        let text = lines(&all.iter().map(String::as_str).collect::<Vec<_>>());
        let entries = entry(&text);
        let found: Vec<u32> = entries.iter().map(|entry| entry.id).collect();
        prop_assert_eq!(found, ids.into_iter().collect::<Vec<_>>());
    }
}
