//! Alibaba's GPU cluster traces (<https://github.com/alibaba/clusterdata>), told apart by header:
//!
//! * `cluster-trace-gpu-v2020`, `pai_task_table.csv` (Weng et al., NSDI 2022; columns in that
//!   folder's README). It is published without a header row; one is accepted. A row is a task: some
//!   instances of one role in a job, all alike. `plan_gpu` is what each instance asks for in
//!   percent of a GPU, so the task counts as ⌈`inst_num` · `plan_gpu` / 100⌉ GPUs: shares are
//!   packed. There is no submit time in the table (it is in the job table), so **the start stands
//!   for it**, and the time a task waited is lost. A missing time is empty or 0. Times are seconds
//!   moved by a constant; read as UTC+8 they give the right hour of the day.
//! * `cluster-trace-gpu-v2023`, `openb_pod_list_*.csv` (Weng et al., USENIX ATC 2023; columns in
//!   that folder's README). A row is a pod, which runs from `scheduled_time` to `deletion_time`,
//!   also when its last phase was `Running`: many are services, and those alive at the end of the
//!   trace are listed as deleted then. Pods that were never scheduled are skipped. `gpu_milli`
//!   below 1000 is a share of a GPU; it counts as a whole one.
//!
//! The GPU type in both is what ran the job, not what the job is, and is not read.

use super::lines::Source;
use super::table::{Row, Style, Table};
use super::value;
use super::{Outcome, SkipReason, Tally, TraceError, TraceJob};
use wattline_core::Timestamp;

const TASK_COLUMNS: &[&str] = &[
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
];

pub(super) fn read(source: Source<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    let table = Table::open(source, Style::Comma, |row| {
        let names_columns = row
            .iter()
            .any(|field| TASK_COLUMNS.iter().any(|name| field.trim().eq_ignore_ascii_case(name)));
        (row.len() == TASK_COLUMNS.len() && !names_columns).then_some(TASK_COLUMNS)
    })?;
    if table.find("job_name").is_none() && table.find("name").is_some() {
        read_pods(table, tally)
    } else {
        read_tasks(table, tally)
    }
}

fn read_tasks(table: Table<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    let job_name = table.column("job_name")?;
    let task_name = table.column("task_name")?;
    let instances = table.column("inst_num")?;
    let start = table.column("start_time")?;
    let end = table.column("end_time")?;
    let share = table.column("plan_gpu")?;
    table.each(tally, |row: &Row<'_>, _| {
        let job_name = row.name(job_name)?;
        let percent = row.some_value(share, value::amount)?.unwrap_or(0.0);
        if percent == 0.0 {
            return Ok(Outcome::Skip(SkipReason::NoGpus));
        }
        let Some(instances) = row.some_value(instances, value::count)?.filter(|count| *count > 0)
        else {
            return Ok(Outcome::Skip(SkipReason::NeverRan));
        };
        let given = |time: &Timestamp| *time != Timestamp::ZERO;
        let start = row.some_value(start, value::instant)?.filter(given);
        let end = row.some_value(end, value::instant)?.filter(given);
        let duration = match value::run_time(start, end) {
            Ok(duration) => duration,
            Err(reason) => return Ok(Outcome::Skip(reason)),
        };
        Ok(Outcome::Job(TraceJob {
            name: format!("{job_name}/{}", row.text(task_name)).into(),
            user: None,
            submit: start.unwrap_or_default(),
            duration,
            gpus: row.value(share, |_| {
                value::count_number((f64::from(instances) * percent / 100.0).ceil())
            })?,
            model: None,
            batch: None,
            deadline: None,
        }))
    })
}

fn read_pods(table: Table<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    let name = table.column("name")?;
    let gpus = table.column("num_gpu")?;
    let created = table.column("creation_time")?;
    let deleted = table.column("deletion_time")?;
    let scheduled = table.column("scheduled_time")?;
    table.each(tally, |row: &Row<'_>, _| {
        let name = row.name(name)?;
        let gpus = row.value(gpus, value::count)?;
        if gpus == 0 {
            return Ok(Outcome::Skip(SkipReason::NoGpus));
        }
        let start = row.some_value(scheduled, value::instant)?;
        let end = row.some_value(deleted, value::instant)?;
        let duration = match value::run_time(start, end) {
            Ok(duration) => duration,
            Err(reason) => return Ok(Outcome::Skip(reason)),
        };
        Ok(Outcome::Job(TraceJob {
            name,
            user: None,
            submit: row.value(created, value::instant)?,
            duration,
            gpus,
            model: None,
            batch: None,
            deadline: None,
        }))
    })
}
