//! The traces published with ElasticFlow (Gu et al., ASPLOS 2023,
//! <https://github.com/microsoft/elasticflow-traces>): CSV with the header
//! `job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration`.
//!
//! `submission_time` and `deadline` are absolute, in seconds from the trace's own zero; `duration`
//! is in seconds on `num_gpu` GPUs. `num_iteration` counts the same work in iterations and
//! is not read.

use super::lines::Source;
use super::table::{Row, Style, Table};
use super::value;
use super::{Outcome, SkipReason, Tally, TraceError, TraceJob};

pub(super) fn read(source: Source<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    let table = Table::open(source, Style::Comma, |_| None)?;
    let name = table.column("job_id")?;
    let submit = table.column("submission_time")?;
    let model = table.column("model_name")?;
    let deadline = table.column("deadline")?;
    let batch = table.column("batch_size")?;
    let gpus = table.column("num_gpu")?;
    let duration = table.column("duration")?;
    table.each(tally, |row: &Row<'_>, _| {
        let job = TraceJob {
            name: row.name(name)?,
            user: None,
            submit: row.value(submit, value::instant)?,
            duration: row.value(duration, value::duration)?,
            gpus: row.value(gpus, value::count)?,
            model: row.some_box(Some(model)),
            batch: row.some_value(batch, |text| match value::count(text)? {
                0 => Err("a whole number of at least 1"),
                batch => Ok(batch),
            })?,
            deadline: row.some_value(deadline, value::instant)?,
        };
        if let Some(deadline) = job.deadline.filter(|deadline| *deadline < job.submit) {
            return Err(TraceError::DeadlineBeforeSubmit {
                file: row.file.into(),
                line: row.line,
                field: "deadline",
                deadline: deadline.seconds(),
                submit: job.submit.seconds(),
            });
        }
        if job.gpus == 0 {
            return Ok(Outcome::Skip(SkipReason::NoGpus));
        }
        Ok(Outcome::Job(job))
    })
}
