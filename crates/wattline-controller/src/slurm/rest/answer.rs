//! What slurmrestd answers; pure functions of a status and a text.
//!
//! *Errors first*, as everywhere: an answer may have the status 200, an empty list and a filled
//! `errors`, which means that nothing is known.

use super::error::RestError;
use super::version::Version;
use crate::slurm::command::printable;
use crate::slurm::read::{self, SlurmJob, SlurmNode};
use serde::Deserialize;
use serde_json::Value;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) text: String,
}

/// The queue, as far as it was told.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::slurm) enum Jobs {
    /// Nothing has changed since the time that was asked for.
    Unchanged,
    /// All jobs, and slurmctld's time when they were read, where it says so.
    All(Vec<SlurmJob>, Option<i64>),
    /// It cannot be told whether there are none or none has changed.
    Unclear,
}

const NOT_MODIFIED: u16 = 304;
const UNAUTHORIZED: u16 = 401;
const NOT_FOUND: u16 = 404;

/// What is around the lists.
#[derive(Default, Deserialize)]
struct Around {
    #[serde(default)]
    errors: Option<Value>,
    #[serde(default)]
    warnings: Option<Value>,
    #[serde(default)]
    last_update: Option<Value>,
    #[serde(default)]
    statistics: Option<Value>,
    #[serde(default)]
    meta: Option<Value>,
}

/// The errors of an answer, each in a few words.
fn errors(around: &Around) -> Vec<String> {
    let said = |entry: &Value| {
        let word = |name: &str| entry.get(name).and_then(Value::as_str).map(printable);
        let number = entry.get("error_number").or_else(|| entry.get("errno"));
        let words: Vec<String> = ["description", "error"].into_iter().filter_map(word).collect();
        match (words.is_empty(), number) {
            (true, _) => printable(&entry.to_string()),
            (false, Some(number)) => format!("{} ({number})", words.join(": ")),
            (false, None) => words.join(": "),
        }
    };
    match &around.errors {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list.iter().map(said).collect(),
        Some(other) => vec![printable(&other.to_string())],
    }
}

/// What is around the lists, if the answer is one and reports no error.
fn around(answer: &Answer) -> Result<Around, RestError> {
    match answer.status {
        UNAUTHORIZED => return Err(RestError::Refused(printable(&answer.text))),
        NOT_FOUND => return Err(RestError::NotFound),
        _ => {}
    }
    let parsed = serde_json::from_str::<Around>(&answer.text);
    let fine = (200..300).contains(&answer.status);
    let around = match parsed {
        Ok(around) => around,
        Err(error) if fine => return Err(RestError::Json(error)),
        Err(_) => return Err(RestError::Status(answer.status, printable(&answer.text))),
    };
    match errors(&around) {
        errors if !errors.is_empty() => Err(RestError::Reported(errors.join("; "))),
        _ if fine => Ok(around),
        _ => Err(RestError::Status(answer.status, String::new())),
    }
}

/// The queue. `since`: only changes since then were asked for.
pub(super) fn jobs(answer: &Answer, since: bool) -> Result<Jobs, RestError> {
    if since && answer.status == NOT_MODIFIED {
        return Ok(Jobs::Unchanged);
    }
    let around = around(answer)?;
    let as_of = around.last_update.as_ref().and_then(number);
    // From v0.0.39 on "nothing has changed" is a warning beside an empty list, or none.
    if since {
        let said = around.warnings.as_ref().map(Value::to_string).unwrap_or_default();
        if said.contains("No job changes since") {
            return Ok(Jobs::Unchanged);
        }
    }
    match read::jobs(&answer.text) {
        Ok(jobs) if since && jobs.is_empty() => Ok(Jobs::Unclear),
        Ok(jobs) => Ok(Jobs::All(jobs, as_of)),
        Err(read::ReadError::Missing { .. }) if since => Ok(Jobs::Unclear),
        Err(error) => Err(RestError::Read(error)),
    }
}

/// All nodes.
pub(super) fn nodes(answer: &Answer) -> Result<Vec<SlurmNode>, RestError> {
    around(answer)?;
    Ok(read::nodes(&answer.text)?)
}

/// Whether an instruction was carried out.
pub(super) fn told(version: Version, answer: &Answer) -> Result<(), RestError> {
    match around(answer) {
        Err(RestError::Reported(_)) if version == Version::V38 && is_no_error(answer) => Ok(()),
        other => other.map(drop),
    }
}

/// SLURM 22.05 reports an error without a number for every change of a task of an array, also when
/// it was made: it looks whether there is a list of codes, and not at the first code.
fn is_no_error(answer: &Answer) -> bool {
    let Ok(Around { errors: Some(Value::Array(list)), .. }) = serde_json::from_str(&answer.text)
    else {
        return false;
    };
    answer.status == 200
        && list.iter().all(|entry| {
            let said = entry.get("description").and_then(Value::as_str).unwrap_or_default();
            let bare = ["error", "error_number"].iter().all(|name| entry.get(name).is_none());
            bare && said.starts_with("job array update from ")
        })
}

/// SLURM's release, and slurmctld's time, from what it says about itself (`/diag`).
pub(super) fn diagnostics(answer: &Answer) -> Result<(String, i64), RestError> {
    let around = around(answer)?;
    let missing = |what| RestError::Missing(what);
    let meta = around.meta.as_ref();
    let slurm = meta.and_then(|meta| meta.get("Slurm").or_else(|| meta.get("slurm")));
    let release = slurm.and_then(|slurm| slurm.get("release")).and_then(Value::as_str);
    let release = printable(release.ok_or(missing("meta.slurm.release"))?);
    let time = around.statistics.as_ref().and_then(|all| all.get("req_time")).and_then(number);
    Ok((release, time.ok_or(missing("statistics.req_time"))?))
}

/// A number in any of SLURM's forms.
fn number(value: &Value) -> Option<i64> {
    let plain = |value: &Value| value.as_i64().filter(|number| *number > 0);
    match value.as_object() {
        Some(object) if object.get("set") == Some(&Value::Bool(false)) => None,
        Some(object) => plain(object.get("number")?),
        None => plain(value),
    }
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
