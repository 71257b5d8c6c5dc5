//! SLURM's accounting as `sacct -P` prints it: fields separated by `|`, never quoted, with a
//! header. Fields are documented in sacct(1), <https://slurm.schedmd.com/sacct.html>. For example:
//!
//! ```text
//! sacct -a -P -S 2025-01-01 -o JobID,User,Submit,Start,End,ElapsedRaw,State,AllocTRES,NNodes
//! ```
//!
//! * A job is named by its ID. Tasks of an array (`123_4`) are jobs; steps (`123.batch`, `123.0`)
//!   are skipped, because the job's own row already counts them.
//! * It ran for `ElapsedRaw` or `Elapsed`, which leave out the time it was suspended, or else from
//!   `Start` to `End`.
//! * Its GPUs are `gres/gpu` in `AllocTRES`, or else in `ReqTRES`: the total, or the sum over types
//!   where there is no total. Older SLURM has `AllocGRES` and `ReqGRES` instead, which are per
//!   node. GPUs are in the TRES only where slurm.conf lists them in `AccountingStorageTRES`.
//! * Times are the local time of where `sacct` ran, without a zone, and are taken as UTC; run it
//!   with `TZ=UTC` to get that.
//! * A job that was requeued has one row, for its last run. With `sacct -D` it has one for each,
//!   and they would be read as jobs of their own: do not use `-D`.

use super::lines::Source;
use super::table::{Column, Row, Style, Table};
use super::value::{self, Expected};
use super::{Outcome, SkipReason, Tally, TraceError, TraceJob};
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

const HINT: &str = "export it with: sacct -a -P -S 2025-01-01 -o \
                    JobID,User,Submit,Start,End,ElapsedRaw,State,AllocTRES,NNodes";

/// Columns beside the job's name that hold what users typed.
const FREE_TEXT: &[&str] = &[
    "Account",
    "AdminComment",
    "Comment",
    "Constraints",
    "Container",
    "Reservation",
    "SubmitLine",
    "SystemComment",
    "WCKey",
    "WorkDir",
];

/// Whether a job in this state may still run on. `CANCELLED by 1000` is one state, with a reason.
pub(super) fn is_unfinished(state: &str) -> bool {
    const UNFINISHED: [&str; 15] = [
        "PENDING",
        "RUNNING",
        "SUSPENDED",
        "COMPLETING",
        "CONFIGURING",
        "POWER_UP_NODE",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESIZING",
        "RESV_DEL_HOLD",
        "SIGNALING",
        "SPECIAL_EXIT",
        "STAGE_OUT",
        "STOPPED",
    ];
    let word = state.split_whitespace().next().unwrap_or_default();
    UNFINISHED.iter().any(|state| word.eq_ignore_ascii_case(state))
}

/// Which columns there are to tell how long a job ran.
#[derive(Clone, Copy)]
enum Ran {
    Seconds(Column),
    Clock(Column),
    Times(Column, Column),
}

pub(super) fn read(source: Source<'_>, tally: &mut Tally<'_>) -> Result<(), TraceError> {
    let mut table = Table::open(source, Style::Bar, |_| None)?;
    // People put bars into job names. That can be told apart if no other column is theirs to fill.
    let others = FREE_TEXT.iter().any(|name| table.find(name).is_some());
    if let (Some(name), false) = (table.find("JobName"), others) {
        table.allow_separator_in(name);
    }
    let table = table;
    let need = |found: Option<Column>, what| found.ok_or_else(|| table.missing(what, HINT));
    let id = need(table.find("JobID").or(table.find("JobIDRaw")), "JobID or JobIDRaw")?;
    let user = table.find("User");
    let submit = need(table.find("Submit"), "Submit")?;
    let state = need(table.find("State"), "State")?;
    let (start, end) = (table.find("Start"), table.find("End"));
    let ran = if let Some(seconds) = table.find("ElapsedRaw") {
        Ran::Seconds(seconds)
    } else if let Some(clock) = table.find("Elapsed") {
        Ran::Clock(clock)
    } else {
        let what = "ElapsedRaw, Elapsed, or Start and End";
        Ran::Times(need(start, what)?, need(end, what)?)
    };
    let nodes = table.find("NNodes").or(table.find("AllocNodes"));
    let alloc_tres = table.find("AllocTRES");
    let tres: Vec<_> = [alloc_tres, table.find("ReqTRES")].into_iter().flatten().collect();
    let gres: Vec<_> =
        [table.find("AllocGRES"), table.find("ReqGRES")].into_iter().flatten().collect();
    if tres.is_empty() {
        need(gres.first().copied(), "AllocTRES, ReqTRES, AllocGRES or ReqGRES")?;
        need(nodes, "NNodes")?;
    }

    table.each(tally, |row: &Row<'_>, _| {
        let name = row.name(id)?;
        if name.contains('.') {
            return Ok(Outcome::Skip(SkipReason::JobStep));
        }
        if is_unfinished(&row.name(state)?) {
            return Ok(Outcome::Skip(SkipReason::NotFinished));
        }
        let Some(submit) = row.some_value(submit, value::date_time)? else {
            return Ok(Outcome::Skip(SkipReason::NoSubmitTime));
        };
        if start.is_some_and(|start| row.some_text(start).is_none()) {
            return Ok(Outcome::Skip(SkipReason::NeverRan));
        }
        let duration = match ran_for(row, ran)? {
            Ok(duration) => duration,
            Err(reason) => return Ok(Outcome::Skip(reason)),
        };
        // A job cancelled in the queue may get the time of that as its start and end; it has no
        // resources then.
        let nothing_allocated = alloc_tres.is_some_and(|column| row.text(column).is_empty());
        if duration.get() == 0.0 && nothing_allocated {
            return Ok(Outcome::Skip(SkipReason::NeverRan));
        }
        let gpus = gpus(row, &tres, &gres, nodes)?;
        if gpus == 0 {
            return Ok(Outcome::Skip(SkipReason::NoGpus));
        }
        let user = row.some_box(user);
        let (model, batch, deadline) = (None, None, None);
        Ok(Outcome::Job(TraceJob { name, user, submit, duration, gpus, model, batch, deadline }))
    })
}

fn ran_for(row: &Row<'_>, ran: Ran) -> Result<Result<Seconds, SkipReason>, TraceError> {
    let time = |column| -> Result<Option<Timestamp>, TraceError> {
        row.some_value(column, value::date_time)
    };
    Ok(match ran {
        Ran::Seconds(column) => Ok(row.value(column, value::duration)?),
        Ran::Clock(column) => Ok(row.value(column, value::clock_duration)?),
        Ran::Times(start, end) => value::run_time(time(start)?, time(end)?),
    })
}

/// The GPUs from the first of the fields that names any, or 0.
fn gpus(
    row: &Row<'_>,
    tres: &[Column],
    gres: &[Column],
    nodes: Option<Column>,
) -> Result<u32, TraceError> {
    for column in tres {
        if let Some(gpus) = row.value(*column, tres_gpus)? {
            return Ok(gpus);
        }
    }
    let Some(nodes) = nodes else { return Ok(0) };
    for column in gres {
        if let Some(per_node) = row.value(*column, gres_gpus)? {
            return Ok(per_node.saturating_mul(row.value(nodes, value::count)?));
        }
    }
    Ok(0)
}

/// Total and typed GPU counts, added up as they come: a total already includes the typed ones.
#[derive(Default)]
pub(super) struct GpuCount {
    total: Option<u32>,
    typed: Option<u32>,
}

impl GpuCount {
    pub(super) fn add(&mut self, typed: bool, count: u32) {
        let sum = if typed { &mut self.typed } else { &mut self.total };
        *sum = Some(sum.unwrap_or(0).saturating_add(count));
    }

    pub(super) fn get(&self) -> Option<u32> {
        self.total.or(self.typed)
    }
}

/// `billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2,mem=64G,node=1`
fn tres_gpus(text: &str) -> Result<Option<u32>, Expected> {
    let mut gpus = GpuCount::default();
    for (name, count) in text.split(',').filter_map(|part| part.split_once('=')) {
        let typed = name.starts_with("gres/gpu:");
        if typed || name == "gres/gpu" {
            let count = value::count(count)
                .map_err(|_| "TRES like cpu=8,gres/gpu=2 with whole numbers of GPUs")?;
            gpus.add(typed, count);
        }
    }
    Ok(gpus.get())
}

/// `gpu:2`, `gpu:a100:2`, `gpu:a100:2(S:0-1),mps:100`
fn gres_gpus(text: &str) -> Result<Option<u32>, Expected> {
    const GRES: Expected = "GRES like gpu:2 or gpu:a100:2";
    let mut gpus = None::<u32>;
    for part in text.split(',') {
        // The sockets in parentheses may hold a comma, too; what is cut off there is no `gpu`.
        let part = part.split_once('(').map_or(part, |(part, _)| part);
        let part = part.trim_start_matches("gres:").trim_start_matches("gres/");
        let mut words = part.split(':');
        if words.next() != Some("gpu") {
            continue;
        }
        let count = match (words.next(), words.next(), words.next()) {
            (None, None, None) => 1,
            (Some(count), None, None) => match value::count(count) {
                Ok(count) => count,
                // A type without a count is one GPU of that type.
                Err(_) if count.starts_with(|c: char| c.is_ascii_alphabetic()) => 1,
                Err(_) => return Err(GRES),
            },
            (Some(_), Some(count), None) => value::count(count).map_err(|_| GRES)?,
            _ => return Err(GRES),
        };
        gpus = Some(gpus.unwrap_or(0).saturating_add(count));
    }
    Ok(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_in_tres_are_the_total_or_else_the_sum_of_the_types() {
        assert_eq!(
            tres_gpus("billing=8,cpu=8,gres/gpu=2,gres/gpu:a100=2,mem=64G,node=1"),
            Ok(Some(2))
        );
        assert_eq!(tres_gpus("cpu=8,gres/gpu:a100=2,gres/gpu:v100=1"), Ok(Some(3)));
        assert_eq!(tres_gpus("cpu=8,gres/gpumem=40G,gres/gpuutil=50"), Ok(None));
        assert_eq!(tres_gpus(""), Ok(None));
        assert!(tres_gpus("gres/gpu=two").is_err() && tres_gpus("gres/gpu=-1").is_err());
    }

    #[test]
    fn gpus_in_gres_add_up() {
        assert_eq!(gres_gpus("gpu:2"), Ok(Some(2)));
        assert_eq!(gres_gpus("gpu:a100:2(S:0-1),gpu:v100:1,mps:100"), Ok(Some(3)));
        assert_eq!(gres_gpus("gpu"), Ok(Some(1)));
        assert_eq!(gres_gpus("gpu:a100"), Ok(Some(1)));
        assert_eq!(gres_gpus("gres:gpu:4"), Ok(Some(4)));
        assert_eq!(gres_gpus("mps:100"), Ok(None));
        assert!(gres_gpus("gpu:a100:x").is_err() && gres_gpus("gpu:-2").is_err());
        assert!(gres_gpus("gpu:a:b:c").is_err());
    }
}
