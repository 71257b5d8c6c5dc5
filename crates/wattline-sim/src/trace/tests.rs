#![allow(clippy::unwrap_used)]
#![allow(
    clippy::disallowed_methods,
    reason = "one test reads data whose place the environment tells"
)]

use super::*;
use proptest::prelude::*;
use std::io::Read;

fn read_bytes(format: Format, bytes: &[u8]) -> Result<(ReadStats, Vec<TraceJob>), TraceError> {
    let mut jobs = Vec::new();
    let stats = read_from(bytes, "t.csv", format, &mut |job| jobs.push(job))?;
    assert_eq!(stats.jobs, jobs.len() as u64);
    let skipped: u64 = stats.skipped.iter().map(|(_, count)| count).sum();
    assert_eq!(stats.rows, stats.jobs + skipped);
    assert!(jobs.iter().all(|job| job.gpus > 0 && job.duration.get() >= 0.0));
    Ok((stats, jobs))
}

fn read_text(format: Format, text: &str) -> (ReadStats, Vec<TraceJob>) {
    read_bytes(format, text.as_bytes()).unwrap()
}

fn error(format: Format, text: &str) -> TraceError {
    read_bytes(format, text.as_bytes()).unwrap_err()
}

fn job(name: &str, user: Option<&str>, submit: f64, duration: f64, gpus: u32) -> TraceJob {
    TraceJob {
        name: name.into(),
        user: user.map(Into::into),
        submit: Timestamp::from_seconds(submit),
        duration: Seconds::new(duration),
        gpus,
        model: None,
        batch: None,
        deadline: None,
    }
}

const PHILLY: &str = "timestamp,duration,num_gpus,gpu_time,cluster\n";
const ELASTICFLOW: &str =
    "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n";

#[test]
fn formats_have_names() {
    for format in Format::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    let error = "slurm".parse::<Format>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown trace format `slurm`; the known ones are philly, elasticflow, helios, alibaba, sacct"
    );
    assert!(SkipReason::ALL.iter().enumerate().all(|(index, reason)| *reason as usize == index));
}

#[test]
fn philly_csv() {
    let text =
        format!("{PHILLY}1970-01-01 00:00:10,66.0,1,66.0,11cb48\n1970-01-02 00:00:00,0,8,0,\n\n");
    let (stats, jobs) = read_text(Format::Philly, &text);
    assert_eq!(stats, ReadStats { rows: 2, jobs: 2, skipped: vec![] });
    assert_eq!(jobs[0], job("philly-1", Some("11cb48"), 10.0, 66.0, 1));
    assert_eq!(jobs[1], job("philly-2", None, 86_400.0, 0.0, 8));
}

#[test]
fn marks_line_ends_blanks_quotes_order_and_further_columns_are_tolerated() {
    let text = "\u{feff}\r\n\r\n \"cluster\" ,extra,num_gpus, Duration,timestamp\r\n\r\n\
                \"a,b\",\"\"\"x\",2,5,1970-01-01 00:00:01\r\n  \r\n\t\r\n\
                c,\"two\r\n\r\nlines\",3,6,1970-01-01T00:00:02";
    let (stats, jobs) = read_text(Format::Philly, text);
    assert_eq!(stats.jobs, 2);
    assert_eq!(jobs[0], job("philly-1", Some("a,b"), 1.0, 5.0, 2));
    assert_eq!(jobs[1], job("philly-2", Some("c"), 2.0, 6.0, 3));
}

#[test]
fn errors_name_the_physical_line() {
    let rows = "1970-01-01 00:00:00,1,1,1,a\r\n\r\n1970-01-01 00:00:00,1,1,1,\"b\n\nc\"\n\n";
    let text = format!("\n\n{PHILLY}{rows}1970-01-01 00:00:00,NaN,1,1,a\n");
    let error = error(Format::Philly, &text);
    assert!(matches!(error, TraceError::BadValue { line: 10, field: "duration", .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "t.csv:10: field `duration` is \"NaN\", expected a number of seconds, not negative; fix or \
         remove the row"
    );
}

#[test]
fn philly_json() {
    let text = r#"[
      {"status": "Pass", "vc": "v", "jobid": "application_1", "user": "u",
       "submitted_time": "1970-01-01 00:00:00",
       "attempts": [
         {"start_time": "1970-01-01 00:01:00", "end_time": "1970-01-01 00:01:10",
          "detail": [{"ip": "m1", "gpus": ["gpu0"]}]},
         {"start_time": null, "end_time": "None", "detail": null},
         {"start_time": "1970-01-01 00:02:00", "end_time": "1970-01-01 00:02:05",
          "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}]}]},
      {"jobid": "never", "user": null, "submitted_time": "1970-01-01 00:00:00", "attempts": []},
      {"jobid": "running", "submitted_time": "1970-01-01 00:00:00",
       "attempts": [{"start_time": "1970-01-01 00:01:00", "end_time": null}]},
      {"jobid": "cpu", "submitted_time": "1970-01-01 00:00:00",
       "attempts": [{"start_time": "1970-01-01 00:01:00", "end_time": "1970-01-01 00:01:00"}]},
      {"jobid": "clock", "submitted_time": "1970-01-01 00:00:00",
       "attempts": [{"start_time": "1970-01-01 00:01:00", "end_time": "1970-01-01 00:00:00"}]},
      {"jobid": "when", "submitted_time": "None", "attempts": null}
    ]"#;
    let (stats, jobs) = read_text(Format::Philly, text);
    assert_eq!(jobs, [job("application_1", Some("u"), 0.0, 15.0, 3)]);
    let skipped = [
        (SkipReason::NoGpus, 1),
        (SkipReason::NeverRan, 1),
        (SkipReason::NotFinished, 1),
        (SkipReason::NoSubmitTime, 1),
        (SkipReason::EndsBeforeStart, 1),
    ];
    assert_eq!(stats, ReadStats { rows: 6, jobs: 1, skipped: skipped.into() });

    let text = "\n[\n{\"jobid\": \"a\", \"attempts\": [],\n\"submitted_time\": \"noon\"\n}]";
    let error = error(Format::Philly, text);
    assert!(
        matches!(error, TraceError::BadValue { line: 5, field: "submitted_time", .. }),
        "{error}"
    );
}

#[test]
fn broken_json_is_an_error_with_a_place() {
    for text in ["[{]", "[", "[{\"jobid\": 1}]", "{\"jobid\": \"a\"}", "[]]", "[] x", "[3]"] {
        let error = error(Format::Philly, text);
        assert!(matches!(error, TraceError::Json { line: 1, .. }), "{text}: {error}");
    }
    let error = error(Format::Philly, "\n[\n{\"jobid\": 1}]");
    assert!(error.to_string().starts_with("t.csv:3:12: invalid type: integer `1`"), "{error}");
}

#[test]
fn elasticflow() {
    let text = format!("{ELASTICFLOW}a-b,100,45775,resnet50,200,256,64,50\nc,1,2,,,,1,0\n");
    let (_, jobs) = read_text(Format::Elasticflow, &text);
    let first = TraceJob {
        model: Some("resnet50".into()),
        batch: Some(256),
        deadline: Some(Timestamp::from_seconds(200.0)),
        ..job("a-b", None, 100.0, 50.0, 64)
    };
    assert_eq!(jobs, [first, job("c", None, 1.0, 0.0, 1)]);

    let error = error(Format::Elasticflow, &format!("{ELASTICFLOW}a,100,1,m,99,1,1,1\n"));
    assert!(matches!(error, TraceError::DeadlineBeforeSubmit { line: 2, .. }), "{error}");
    assert!(error.to_string().contains("(99 s) is before the submit time (100 s)"), "{error}");
}

#[test]
fn helios() {
    let text = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n\
        1,u1,v,4,16,1,COMPLETED,1970-01-01 00:00:05,1970-01-01 00:00:07,1970-01-01 00:00:10,3,2\n\
        2,u2,v,0,1,1,COMPLETED,1970-01-01 00:00:05,1970-01-01 00:00:07,1970-01-01 00:00:10,3,2\n\
        3,u3,v,1,1,1,RUNNING,1970-01-01 00:00:05,1970-01-01 00:00:07,None,3,2\n\
        4,u4,v,1,1,1,CANCELLED,1970-01-01 00:00:05,None,1970-01-01 00:00:10,0,0\n";
    let (stats, jobs) = read_text(Format::Helios, text);
    assert_eq!(jobs, [job("1", Some("u1"), 5.0, 3.0, 4)]);
    let skipped =
        [(SkipReason::NoGpus, 1), (SkipReason::NeverRan, 1), (SkipReason::NotFinished, 1)];
    assert_eq!(stats, ReadStats { rows: 4, jobs: 1, skipped: skipped.into() });
}

#[test]
fn alibaba_tasks_with_and_without_a_header() {
    let rows = "j1,worker,3.0,Terminated,100.0,160.0,600.0,29.29,50.0,MISC\n\
        j1,ps,2.0,Terminated,100.0,160.0,600.0,29.29,,\n\
        j2,tensorflow,1.0,Waiting,,,600.0,29.29,100.0,T4\n\
        j3,tensorflow,1.0,Running,100.0,,600.0,29.29,100.0,T4\n\
        j4,tensorflow,1.0,Failed,0,5,600.0,29.29,100.0,T4\n\
        j5,tensorflow,,Failed,1,5,600.0,29.29,100.0,T4\n";
    let header = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n";
    let (stats, jobs) = read_text(Format::Alibaba, rows);
    assert_eq!(jobs, [job("j1/worker", None, 100.0, 60.0, 2)]);
    let skipped =
        [(SkipReason::NoGpus, 1), (SkipReason::NeverRan, 3), (SkipReason::NotFinished, 1)];
    assert_eq!(stats, ReadStats { rows: 6, jobs: 1, skipped: skipped.into() });
    assert_eq!(read_text(Format::Alibaba, &format!("{header}{rows}")), (stats, jobs));

    let error = error(Format::Alibaba, "j,t,1e7,Terminated,1,2,1,1,1e7,T4\n");
    assert!(matches!(error, TraceError::BadValue { line: 1, field: "plan_gpu", .. }), "{error}");
}

#[test]
fn alibaba_pods() {
    let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
        p0,1,1,1,460,,LS,Running,0,90,0\n\
        p1,1,1,8,1000,V100M16|V100M32,BE,Failed,10,40,15\n\
        p2,1,1,0,0,,BE,Running,10,40,15\n\
        p3,1,1,1,1000,,BE,Pending,10,40,\n";
    let (stats, jobs) = read_text(Format::Alibaba, text);
    assert_eq!(jobs, [job("p0", None, 0.0, 90.0, 1), job("p1", None, 10.0, 25.0, 8)]);
    assert_eq!(stats.skipped, [(SkipReason::NoGpus, 1), (SkipReason::NeverRan, 1)]);
}

#[test]
fn sacct_text() {
    let text = "JobID|JobName|User|Submit|Start|End|ElapsedRaw|State|AllocTRES|NNodes\n\
        1|a \"quoted|ann|1970-01-01T00:00:05|1970-01-01T00:01:00|1970-01-01T00:02:00|60|COMPLETED|cpu=8,gres/gpu:a100=2,gres/gpu=2|1\n\
        1.batch|batch||1970-01-01T00:00:05|1970-01-01T00:01:00|1970-01-01T00:02:00|60|COMPLETED|cpu=8,gres/gpu=2|1\n\
        2_7|b|bob|1970-01-01T00:00:06|1970-01-01T00:01:00|1970-01-01T00:02:00|60|CANCELLED by 1000|gres/gpu:a100=2,gres/gpu:v100=2|2\n\
        3|c|bob|1970-01-01T00:00:06|1970-01-01T00:01:00|Unknown|60|RUNNING|gres/gpu=2|2\n\
        4|d|bob|1970-01-01T00:00:06|None|1970-01-01T00:02:00|0|CANCELLED by 1000||0\n\
        5|e|bob|1970-01-01T00:00:06|1970-01-01T00:02:00|1970-01-01T00:02:00|0|CANCELLED||0\n\
        6|f|bob|1970-01-01T00:00:06|1970-01-01T00:01:00|1970-01-01T00:02:00|60|COMPLETED|cpu=8|2\n\
        7|g|bob|Unknown|1970-01-01T00:01:00|1970-01-01T00:02:00|60|COMPLETED|gres/gpu=8|2\n";
    let (stats, jobs) = read_text(Format::Sacct, text);
    assert_eq!(jobs, [job("1", Some("ann"), 5.0, 60.0, 2), job("2_7", Some("bob"), 6.0, 60.0, 4)]);
    let skipped = [
        (SkipReason::NoGpus, 1),
        (SkipReason::NeverRan, 2),
        (SkipReason::NotFinished, 1),
        (SkipReason::JobStep, 1),
        (SkipReason::NoSubmitTime, 1),
    ];
    assert_eq!(stats, ReadStats { rows: 8, jobs: 2, skipped: skipped.into() });
}

/// As printed by a real SLURM for a job called `odd|name "x"`.
#[test]
fn sacct_job_names_may_hold_the_separator() {
    let header = "JobID|JobName|User|Submit|Start|End|ElapsedRaw|State|AllocTRES|NNodes\n";
    let row = "11|odd|name `x`|root|2026-11-15T10:37:54|2026-11-15T10:38:03|2026-11-15T10:38:13|10|\
               FAILED|billing=1,cpu=1,gres/gpu=2,mem=100M,node=1|1\n";
    let (stats, jobs) = read_bytes(Format::Sacct, format!("{header}{row}").as_bytes()).unwrap();
    assert_eq!((stats.jobs, jobs[0].gpus, jobs[0].duration.get()), (1, 2, 10.0));
    assert_eq!(jobs[0].user.as_deref(), Some("root"));
    // With another column of free text nobody can tell where the bar belongs.
    let header = header.replace("|User|", "|Comment|User|");
    let row = row.replace("|root|", "|hello|root|");
    let error = read_bytes(Format::Sacct, format!("{header}{row}").as_bytes()).unwrap_err();
    assert!(matches!(error, TraceError::FieldCount { line: 2, .. }), "{error}");
}

#[test]
fn sacct_text_with_other_columns() {
    // GRES is per node; a trailing bar is what `sacct -p` adds.
    let text = "JobIDRaw|Submit|State|Elapsed|AllocGRES|NNodes|\n\
        9|1970-01-01T00:00:00|TIMEOUT|1-00:00:01|gpu:a100:4|3|\n";
    assert_eq!(read_text(Format::Sacct, text).1, [job("9", None, 0.0, 86_401.0, 12)]);
    let text = "JobID|Submit|State|Start|End|ReqTRES\n\
        9|1970-01-01T00:00:00|FAILED|1970-01-01T00:00:01|1970-01-01T00:00:03|gres/gpu=1\n\
        10|1970-01-01T00:00:00|FAILED|1970-01-01T00:00:01|Unknown|gres/gpu=1\n\
        11|1970-01-01T00:00:00|FAILED|1970-01-01T00:00:01|1970-01-01T00:00:00|gres/gpu=1\n";
    let (stats, jobs) = read_text(Format::Sacct, text);
    assert_eq!(jobs, [job("9", None, 0.0, 2.0, 1)]);
    let skipped = [(SkipReason::NotFinished, 1), (SkipReason::EndsBeforeStart, 1)];
    assert_eq!(stats.skipped, skipped);
}

#[test]
fn sacct_text_without_a_needed_column_says_what_to_run() {
    for (header, missing) in [
        ("Submit|State|Elapsed|AllocTRES", "JobID or JobIDRaw"),
        ("JobID|State|Elapsed|AllocTRES", "Submit"),
        ("JobID|Submit|Elapsed|AllocTRES", "State"),
        ("JobID|Submit|State|Start|AllocTRES", "ElapsedRaw, Elapsed, or Start and End"),
        ("JobID|Submit|State|Elapsed", "AllocTRES, ReqTRES, AllocGRES or ReqGRES"),
        ("JobID|Submit|State|Elapsed|AllocGRES", "NNodes"),
    ] {
        let error = error(Format::Sacct, header);
        let text = error.to_string();
        assert!(
            matches!(error, TraceError::MissingColumn { column, .. } if column == missing),
            "{text}"
        );
        assert!(text.contains("found \"") && text.contains("sacct -a -P -S 2025-01-01 -o JobID,"));
    }
}

#[test]
fn sacct_json_of_all_versions() {
    let text = r#"{"meta": {"plugin": {"type": "x"}}, "jobs": [
      {"job_id": 1, "name": "a", "user": "ann", "state": {"current": "COMPLETED", "reason": "None"},
       "array": {"job_id": 0, "task_id": null}, "steps": [{"state": "COMPLETED"}],
       "time": {"submission": 5, "start": 10, "end": 70, "elapsed": 60},
       "tres": {"allocated": [{"type": "cpu", "name": "", "count": 8},
         {"type": "gres", "name": "gpu", "id": 1001, "count": 2},
         {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 2}], "requested": []}},
      {"job_id": {"set": true, "infinite": false, "number": 12}, "association": {"user": "bob"},
       "state": ["FAILED"],
       "array": {"job_id": 2, "task_id": {"set": true, "infinite": false, "number": 7}},
       "time": {"submission": {"set": true, "infinite": false, "number": 6},
         "start": {"set": true, "infinite": false, "number": 10}, "end": {"number": 15},
         "elapsed": {"set": false, "infinite": false, "number": 0}},
       "tres": {"allocated": [{"type": "gres", "name": "gpu:a100", "count": 2},
         {"type": "gres", "name": "gpu:v100", "count": {"set": true, "number": 1}}]}},
      {"job_id": 3, "state": {"current": ["RUNNING"]},
       "time": {"submission": 5, "start": 10, "end": 0, "elapsed": 60}},
      {"job_id": 4, "state": "CANCELLED",
       "time": {"submission": 5, "start": 0, "end": 9, "elapsed": 0}},
      {"job_id": 5, "state": {"current": ["CANCELLED"]},
       "time": {"submission": 5, "start": 9, "end": 9, "elapsed": 0}, "tres": {"allocated": []}},
      {"job_id": 6, "state": {"current": ["COMPLETED"]},
       "time": {"submission": 5, "start": 9, "end": 19, "elapsed": 10},
       "tres": {"allocated": [{"type": "cpu", "name": "", "count": 8}]}}
    ], "warnings": [], "errors": []}"#;
    let (stats, jobs) = read_text(Format::Sacct, text);
    assert_eq!(jobs, [job("1", Some("ann"), 5.0, 60.0, 2), job("2_7", Some("bob"), 6.0, 5.0, 3)]);
    let skipped =
        [(SkipReason::NoGpus, 1), (SkipReason::NeverRan, 2), (SkipReason::NotFinished, 1)];
    assert_eq!(stats, ReadStats { rows: 6, jobs: 2, skipped: skipped.into() });
}

#[test]
fn sacct_json_that_is_no_list_of_jobs_is_an_error() {
    let failed =
        r#"{"jobs": [], "errors": [{"description": "slurmdbd is down", "error_number": 1}]}"#;
    let failed = error(Format::Sacct, failed);
    assert!(matches!(failed, TraceError::SacctFailed { .. }), "{failed}");
    assert!(failed.to_string().contains("slurmdbd is down"), "{failed}");
    let failed = error(Format::Sacct, r#"{"errors": ["no"], "jobs": []}"#);
    assert!(matches!(failed, TraceError::SacctFailed { .. }), "{failed}");
    let missing = error(Format::Sacct, r#"{"meta": {}, "nodes": []}"#);
    assert!(matches!(missing, TraceError::MissingColumn { column: "jobs", .. }), "{missing}");
    assert!(missing.to_string().contains("meta, nodes"), "{missing}");
    assert!(matches!(error(Format::Sacct, r#"{"jobs": []}"#), TraceError::Empty { .. }));
    let negative = r#"{"jobs": [{"job_id": 1, "state": "FAILED",
        "time": {"submission": 5, "start": 9, "elapsed": -1}}]}"#;
    let negative = error(Format::Sacct, negative);
    assert!(
        matches!(negative, TraceError::BadValue { line: 2, field: "time.elapsed", .. }),
        "{negative}"
    );
    let shape = error(Format::Sacct, r#"{"jobs": [{"job_id": "x", "state": "FAILED"}]}"#);
    assert!(matches!(shape, TraceError::Json { .. }), "{shape}");
    assert!(shape.to_string().contains("expected a number"), "{shape}");
}

#[test]
fn values_that_make_no_sense_are_refused() {
    for row in [
        "noon,1,1,1,a",
        "1970-01-01 00:00:00,-1,1,1,a",
        "1970-01-01 00:00:00,inf,1,1,a",
        "1970-01-01 00:00:00,,1,1,a",
        "1970-01-01 00:00:00,1,-1,1,a",
        "1970-01-01 00:00:00,1,1.5,1,a",
        "1970-01-01 00:00:00,1,many,1,a",
        "1970-01-01 00:00:00,1,99999999999,1,a",
        ",1,1,1,a",
    ] {
        let error = error(Format::Philly, &format!("{PHILLY}{row}\n"));
        assert!(matches!(error, TraceError::BadValue { line: 2, .. }), "{row}: {error}");
    }
    let long = format!("{PHILLY}\u{1b}[2J{},1,1,1,a\n", "x".repeat(1000));
    let text = error(Format::Philly, &long).to_string();
    assert!(text.len() < 250 && text.contains("\\u{1b}[2J") && text.contains('…'), "{text}");
}

#[test]
fn files_without_jobs_are_errors() {
    for format in Format::ALL {
        for text in ["", "\n \r\n\t\n", "\u{feff}"] {
            assert!(matches!(error(format, text), TraceError::Empty { .. }));
        }
    }
    assert!(matches!(error(Format::Philly, PHILLY), TraceError::Empty { .. }));
    assert!(matches!(error(Format::Philly, "[]"), TraceError::Empty { .. }));
    let error = error(Format::Philly, &format!("{PHILLY}1970-01-01 00:00:00,1,0,0,a\n"));
    assert_eq!(
        error.to_string(),
        "t.csv: none of its 1 rows is a finished GPU job (1 asks for no GPU); check what was exported"
    );
}

#[test]
fn a_missing_column_lists_what_is_there() {
    let text = error(Format::Helios, PHILLY).to_string();
    let expected =
        "t.csv: no column `job_id`; found \"timestamp, duration, num_gpus, gpu_time, cluster\"";
    assert!(text.starts_with(expected), "{text}");
    for (format, text) in [(Format::Alibaba, "a,b,c\n1,2,3\n"), (Format::Elasticflow, "a\n")] {
        assert!(matches!(error(format, text), TraceError::MissingColumn { .. }));
    }
}

#[test]
fn rows_with_too_few_or_too_many_fields_are_errors() {
    for row in ["1970-01-01 00:00:00,1,1,1", "1970-01-01 00:00:00,1,1,1,a,b"] {
        let error = error(Format::Philly, &format!("{PHILLY}{row}\n"));
        assert!(matches!(error, TraceError::FieldCount { line: 2, expected: 5, .. }), "{error}");
    }
}

#[test]
fn text_that_is_not_utf8_is_an_error_with_a_line() {
    let mut table = PHILLY.as_bytes().to_vec();
    table.extend_from_slice(b"1970-01-01 00:00:00,1,1,1,\xff\n");
    let error = read_bytes(Format::Philly, &table).unwrap_err();
    assert!(matches!(error, TraceError::NotUtf8 { line: 2, .. }), "{error}");
    for json in [&b"[\n\n\"\xff\"]"[..], b"[\n\n\"\xc3", b"[\n\n\"\xe2\x82x\"]"] {
        for chunk in [1, 2, 1000] {
            let error =
                read_from(Chunks(json, chunk), "t", Format::Philly, &mut |_| ()).unwrap_err();
            assert!(matches!(error, TraceError::NotUtf8 { line: 3, .. }), "{error}");
        }
    }
    let error = read_bytes(Format::Sacct, b"\xff\xfeJ\0o\0b\0").unwrap_err();
    assert!(matches!(error, TraceError::NotUtf8 { line: 1, .. }), "{error}");
}

/// Gives its bytes a few at a time.
struct Chunks<'a>(&'a [u8], usize);

impl Read for Chunks<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(buffer.len()).min(self.0.len());
        buffer[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

#[test]
fn small_reads_change_nothing() {
    let csv = format!("\u{feff}\n{PHILLY}1970-01-01 00:00:10,66.0,1,66.0,é\n");
    let json = r#" [{"jobid": "é", "submitted_time": "1970-01-01 00:00:00", "attempts": [
        {"start_time": "1970-01-01 00:01:00", "end_time": "1970-01-01 00:01:10",
         "detail": [{"gpus": ["gpu0"]}]}]}]"#;
    for text in [csv.as_str(), json] {
        let whole = read_text(Format::Philly, text);
        for chunk in 1..5 {
            let mut jobs = Vec::new();
            let input = Chunks(text.as_bytes(), chunk);
            let stats = read_from(input, "t", Format::Philly, &mut |job| jobs.push(job)).unwrap();
            assert_eq!((stats, jobs), whole);
        }
    }
}

/// `start`, then `fill` for ever (or for `left` bytes); counts what is asked of it.
struct Endless {
    start: Vec<u8>,
    fill: u8,
    left: usize,
    given: usize,
}

impl Read for &mut Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.left);
        for slot in &mut buffer[..count] {
            *slot = self.start.get(self.given).copied().unwrap_or(self.fill);
            self.given += 1;
        }
        self.left -= count;
        Ok(count)
    }
}

#[test]
fn what_never_ends_fails_before_it_is_read() {
    let endless = |start: &str, fill| {
        let start = start.as_bytes().to_vec();
        Endless { start, fill, left: 200_000_000, given: 0 }
    };
    for format in Format::ALL {
        let mut input = endless("", b'x');
        let error = read_from(&mut input, "t", format, &mut |_| ()).unwrap_err();
        assert!(matches!(error, TraceError::LineTooLong { line: 1, limit: 1_048_576, .. }));
        assert!(input.given < 2 << 20, "{}", input.given);
    }
    // A quote that is not closed, over lines that are each short enough.
    let rows = "1970-01-01 00:00:00,1,1,1,a\n";
    let text = format!("{PHILLY}{rows}1970-01-01 00:00:00,1,1,1,\"{}", rows.repeat(100_000));
    let error = error(Format::Philly, &text);
    assert!(matches!(error, TraceError::LineTooLong { line: 3, .. }), "{error}");

    for (format, start) in [
        (Format::Philly, "[{\"jobid\": \""),
        (Format::Sacct, "{\"jobs\": [{\"name\": \""),
        (Format::Sacct, "{\"meta\": \""),
    ] {
        let mut input = endless(start, b'x');
        let error = read_from(&mut input, "t", format, &mut |_| ()).unwrap_err();
        assert!(matches!(error, TraceError::JobTooLong { line: 1, .. }), "{error}");
        assert!(input.given < 32 << 20, "{}", input.given);
    }
    let mut input = endless("", b'[');
    let error = read_from(&mut input, "t", Format::Philly, &mut |_| ()).unwrap_err();
    assert!(matches!(error, TraceError::Json { .. }), "{error}");
}

#[test]
fn a_long_json_trace_of_short_jobs_is_no_long_job() {
    let job = r#"{"jobid": "a", "submitted_time": "1970-01-01 00:00:00", "attempts": [
        {"start_time": "1970-01-01 00:01:00", "end_time": "1970-01-01 00:01:10",
         "detail": [{"gpus": ["gpu0"]}]}]},"#;
    let count = 2 * json::JOB_LIMIT / job.len();
    let text = format!("[{}", job.repeat(count));
    let text = format!("{}]", text.trim_end_matches(','));
    let stats = read_from(text.as_bytes(), "t", Format::Philly, &mut |_| ()).unwrap();
    assert_eq!(stats.jobs, count as u64);
}

#[test]
fn input_errors_are_passed_on() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("unplugged"))
        }
    }
    for (start, line) in [("", 1), ("\n\n\n\n", 5), (PHILLY, 2), ("[\n\n", 3)] {
        let input = start.as_bytes().chain(Broken);
        let error = read_from(input, "t", Format::Philly, &mut |_| ()).unwrap_err();
        let found = match &error {
            TraceError::Read { line, .. } => Some(*line),
            _ => None,
        };
        assert_eq!(found, Some(line), "{error}");
        assert!(std::error::Error::source(&error).is_some());
    }
    let error = read(Path::new("/no/such/trace"), Format::Philly, &mut |_| ()).unwrap_err();
    assert!(matches!(error, TraceError::Open { .. }), "{error}");
}

/// The published traces are not part of this repository: where they are is told by
/// `WATTLINE_SHARED`.
#[test]
fn published_traces_are_read_whole() {
    let shared = std::env::var("WATTLINE_SHARED").ok();
    let Some(shared) = shared.filter(|path| Path::new(path).join("data/traces").exists()) else {
        wattline_testing::skipped("WATTLINE_SHARED does not say where the published traces are");
        return;
    };
    let traces = Path::new(&shared).join("data/traces");
    let stats = read(&traces.join("philly.csv"), Format::Philly, &mut |_| ()).unwrap();
    assert_eq!(stats, ReadStats { rows: 82_247, jobs: 82_247, skipped: vec![] });
    for (name, jobs) in [("01", 1595), ("02", 5778), ("03", 3011), ("05", 3629)] {
        let path = traces.join(format!("elasticflow/cluster{name}.csv"));
        let stats = read(&path, Format::Elasticflow, &mut |job| {
            assert!(job.model.is_some() && job.batch.is_some() && job.deadline.is_some());
        });
        assert_eq!(stats.unwrap().jobs, jobs);
    }
}

/// Pieces of which broken and whole traces of every format are made.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        PHILLY,
        ELASTICFLOW,
        "job_id,user,gpu_num,state,submit_time,start_time,duration\n",
        "name,num_gpu,creation_time,deletion_time,scheduled_time\n",
        "JobID|Submit|State|Start|End|AllocTRES|AllocGRES|NNodes\n",
        "JobID|Submit|State|Elapsed|AllocGRES|NNodes\n",
        "1|1970-01-01T00:00:00|FAILED|1970-01-01T00:00:01|1970-01-01T00:00:03|gres/gpu=1|gpu:2|3\n",
        "1970-01-01 00:00:00,1,1,1,a\n",
        "9999-12-31 23:59:59,1e11,1e7,1,a\n",
        "j,t,1,Terminated,1,2,1,1,100,T4\n",
        "[{\"jobid\":\"a\",\"submitted_time\":\"1970-01-01 00:00:00\",\"attempts\":[",
        "{\"start_time\":\"1970-01-01 00:00:00\",\"end_time\":\"-9999-01-01 00:00:00\"}",
        "{\"jobs\":[{\"job_id\":1,\"state\":[\"FAILED\"],\"time\":{\"submission\":5,\"start\":9,\"elapsed\":",
        "1e308",
        "-1",
        "}}]}",
        "}",
        "]",
        "\"",
        "|",
        ",",
        "\r\n",
        "\u{feff}",
        "gres/gpu=",
        "é",
        "null",
    ]);
    prop_oneof![
        4 => known.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #![proptest_config(wattline_testing::cases(256, 1))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for format in Format::ALL {
            let _ = read_bytes(format, &bytes);
        }
    }

    #[test]
    fn arbitrary_pieces_never_panic(pieces in prop::collection::vec(piece(), 0..12)) {
        let bytes = pieces.concat();
        for format in Format::ALL {
            if let Err(error) = read_bytes(format, &bytes) {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    #[test]
    fn arbitrary_fields_never_panic(fields in prop::collection::vec("\\PC{0,30}", 8)) {
        let header = "JobID|Submit|State|Elapsed|AllocTRES|ReqTRES|AllocGRES|NNodes\n";
        let _ = read_bytes(Format::Sacct, format!("{header}{}\n", fields.join("|")).as_bytes());
        let _ = read_bytes(
            Format::Elasticflow,
            format!("{ELASTICFLOW}{}\n", fields.join(",")).as_bytes(),
        );
        for field in &fields {
            let _ = (value::date_time(field), value::clock_duration(field), value::count(field));
        }
    }
}
