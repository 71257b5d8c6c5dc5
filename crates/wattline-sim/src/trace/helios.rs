//! SenseTime's Helios traces (Hu et al., SC 2021,
//! <https://github.com/S-Lab-System-Group/HeliosData>): one `cluster_log.csv` per cluster with the
//! header
//! `job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue`,
//! documented in that repository's README.
//!
//! `duration` is the run time in seconds, without the time in the queue. About half of the jobs ask
//! for no GPU and are skipped. The README lists final states only; the few rows in a state that is
//! not final are skipped too, because their duration is only how long they had run so far. Times
//! have no zone and are taken as UTC.

use super::lines::Source;
use super::table::{Row, Style, Table};
use super::value;
use super::{Outcome, SkipReason, Tally, TraceError, TraceJob};

pub(super) fn read(source: Source<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    let table = Table::open(source, Style::Comma, |_| None)?;
    let name = table.column("job_id")?;
    let user = table.find("user");
    let gpus = table.column("gpu_num")?;
    let state = table.column("state")?;
    let submit = table.column("submit_time")?;
    let start = table.find("start_time");
    let duration = table.column("duration")?;
    table.each(tally, |row: &Row<'_>, _| {
        let name = row.name(name)?;
        let gpus = row.value(gpus, value::count)?;
        if gpus == 0 {
            return Ok(Outcome::Skip(SkipReason::NoGpus));
        }
        if super::sacct::is_unfinished(row.text(state)) {
            return Ok(Outcome::Skip(SkipReason::NotFinished));
        }
        if start.is_some_and(|start| row.some_text(start).is_none()) {
            return Ok(Outcome::Skip(SkipReason::NeverRan));
        }
        let Some(submit) = row.some_value(submit, value::date_time)? else {
            return Ok(Outcome::Skip(SkipReason::NoSubmitTime));
        };
        Ok(Outcome::Job(TraceJob {
            name,
            user: row.some_box(user),
            submit,
            duration: row.value(duration, value::duration)?,
            gpus,
            model: None,
            batch: None,
            deadline: None,
        }))
    })
}
