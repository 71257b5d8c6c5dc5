#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::slurm::read::State;
use serde_json::json;

const VERSIONS: std::ops::RangeInclusive<u16> = 38..=45;

fn file(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/slurm/rest");
    std::fs::read_to_string(format!("{folder}/{name}")).unwrap()
}

/// What slurmrestd of a version answers.
fn fixture(version: u16, what: &str) -> Answer {
    let all: Value = serde_json::from_str(&file(&format!("0.0.{version}.json"))).unwrap();
    match &all[what] {
        Value::Object(one) if one.contains_key("status") => {
            let status = one["status"].as_u64().unwrap() as u16;
            let text = if one["body"].is_null() { String::new() } else { one["body"].to_string() };
            Answer { status, text }
        }
        other => Answer { status: 200, text: other.to_string() },
    }
}

fn answer(status: u16, body: &Value) -> Answer {
    Answer { status, text: body.to_string() }
}

fn list(answer: &Answer) -> Vec<SlurmJob> {
    match jobs(answer, false).unwrap() {
        Jobs::All(jobs, _) => jobs,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_versions_answer_with_the_same_jobs_and_nodes() {
    let (first, others) = (list(&fixture(38, "jobs")), nodes(&fixture(38, "nodes")).unwrap());
    let states: Vec<&State> = first.iter().map(|job| &job.state).collect();
    assert_eq!(states, [&State::Running, &State::Pending, &State::Pending, &State::SpecialExit]);
    assert_eq!((first[0].gpus_held, others.len()), (Some(6), 2));
    for version in VERSIONS {
        assert_eq!(list(&fixture(version, "jobs")), first, "{version}");
        assert_eq!(nodes(&fixture(version, "nodes")).unwrap(), others, "{version}");
        let Jobs::All(_, as_of) = jobs(&fixture(version, "jobs"), true).unwrap() else { panic!() };
        assert_eq!(as_of, (version >= 40).then_some(1_794_786_121), "{version}");
        let (release, time) = diagnostics(&fixture(version, "diag")).unwrap();
        assert_eq!((release.starts_with("2"), time), (true, 1_794_786_120), "{version}");
    }
}

/// What SLURM 22.05.8 was seen to answer.
#[test]
fn a_real_answer_is_read() {
    let all = list(&Answer { status: 200, text: file("jobs-22.05.8.json") });
    let of = |id: u32| all.iter().find(|job| job.key.id == id).unwrap();
    assert_eq!((&of(1).state, of(1).gpus.len(), of(1).gpus_held), (&State::Running, 1, Some(1)));
    assert_eq!((&of(3).state, of(3).key.restarts, of(3).held), (&State::SpecialExit, 1, true));
    assert_eq!((of(4).array_tasks.as_deref(), of(4).array_at_once), (Some("0,3%2"), Some(2)));
    assert!(all.iter().any(|job| job.address() == "4_2"), "{all:?}");
    let nodes = nodes(&Answer { status: 200, text: file("nodes-22.05.8.json") }).unwrap();
    assert_eq!((nodes.len(), nodes[0].gpus.count, nodes[0].name.as_str()), (2, 4, "n1"));
    assert_eq!(nodes[1].gpus_used, 2);
}

#[test]
fn an_error_is_never_an_empty_queue() {
    for version in VERSIONS {
        for since in [false, true] {
            let refused = fixture(version, "refused");
            let error = jobs(&refused, since).unwrap_err();
            assert!(matches!(error, RestError::Reported(_)) && error.may_be_token(), "{error}");
            // With status 200 it says no less.
            assert!(jobs(&Answer { status: 200, ..refused }, since).is_err(), "{version}");
        }
    }
    let empty = json!({ "errors": [], "jobs": [] });
    assert_eq!(jobs(&answer(200, &empty), false).unwrap(), Jobs::All(Vec::new(), None));
    for (status, text) in [
        (200, ""),
        (200, "{"),
        (200, "{}"),
        (200, r#"{"jobs": null, "errors": []}"#),
        (200, r#"{"jobs": [], "errors": "no"}"#),
        (200, r#"{"jobs": [], "errors": {}}"#),
        (304, ""),
        (500, r#"{"jobs": [], "errors": []}"#),
        (502, "<html>Bad gateway</html>"),
        (404, "Unable find requested URL"),
    ] {
        let answer = Answer { status, text: text.to_owned() };
        assert!(jobs(&answer, false).is_err(), "{status} {text}");
        assert!(
            nodes(&answer).is_err() && told(Version::V38, &answer).is_err()
                || text == "{}"
                || text.contains("null"),
            "{status} {text}"
        );
    }
    let unauthorized = Answer { status: 401, text: "Authentication failure".into() };
    assert!(matches!(jobs(&unauthorized, true), Err(RestError::Refused(_))));
}

/// From v0.0.39 on "nothing has changed" may come as an empty list with status 200.
#[test]
fn nothing_new_is_not_nothing() {
    for version in VERSIONS {
        let unchanged = fixture(version, "unchanged");
        assert_eq!(jobs(&unchanged, true).unwrap(), Jobs::Unchanged, "{version}");
    }
    let empty = answer(200, &json!({ "errors": [], "warnings": [], "jobs": [] }));
    assert_eq!(jobs(&empty, true).unwrap(), Jobs::Unclear);
    let none = answer(200, &json!({ "errors": [], "warnings": [] }));
    assert_eq!(jobs(&none, true).unwrap(), Jobs::Unclear);
    assert!(jobs(&none, false).is_err());
}

#[test]
fn an_order_is_refused_in_slurms_own_words() {
    for version in VERSIONS {
        let spoken = Version::parse(&format!("v0.0.{version}")).unwrap();
        let error = told(spoken, &fixture(version, "no such job")).unwrap_err();
        assert!(error.to_string().contains("Invalid job id specified"), "{error}");
        assert!(!error.is_unanswered());
        let fine = answer(200, &json!({ "meta": {}, "errors": [] }));
        assert!(told(spoken, &fine).is_ok());
    }
    let down = json!({ "errors": [{ "error_number": 1800,
        "error": "Unable to contact slurm controller (connect failure)" }] });
    assert!(told(Version::V38, &answer(500, &down)).unwrap_err().is_unanswered());
}

/// SLURM 22.05 says so of each task of an array whose change was made.
#[test]
fn an_error_without_a_number_about_a_task_is_none_on_22_05() {
    let said = "job array update from /run/slurmrestd->fd:9 failed";
    let bare = json!({ "errors": [{ "description": said, "source": "_parse_job_list" }] });
    assert!(told(Version::V38, &answer(200, &bare)).is_ok());
    assert!(told(Version::V40, &answer(200, &bare)).is_err(), "later ones mean it");
    assert!(told(Version::V38, &answer(500, &bare)).is_err());
    let real = json!({ "errors": [{ "description": said, "error_number": 2119,
        "error": "Invalid GRES specification (with and without type identification)" }] });
    assert!(told(Version::V38, &answer(200, &real)).is_err());
    let both = json!({ "errors": [bare["errors"][0], real["errors"][0]] });
    assert!(told(Version::V38, &answer(200, &both)).is_err());
}
