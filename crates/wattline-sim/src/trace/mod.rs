//! Reading job traces: what a real cluster ran, as a stream of [`TraceJob`]s.
//!
//! Five formats are read ([`Format`]), each in its own file, which says where the format is
//! documented and what is made of its columns. They share these rules:
//!
//! * A trace is read as a stream. Memory stays bounded whatever the file holds: a line, a quoted
//!   field or a JSON job beyond a fixed limit is an error, not an allocation.
//! * A row that is no job of interest (no GPU, never ran, still running) is skipped and counted by
//!   [reason](SkipReason). A row that makes no sense is an error that names file, line and field:
//!   a trace read by halves would give wrong results without a word.
//! * Columns are found by the name in the header, in any order; further columns are ignored.
//! * Times without a zone are taken as UTC. Most traces do not say which zone they were written in;
//!   a fixed offset moves every job alike. Times with a zone are converted.

mod alibaba;
mod elasticflow;
pub(crate) mod error;
mod helios;
mod json;
pub(crate) mod lines;
mod philly;
mod sacct;
mod sacct_json;
pub(crate) mod table;
pub(crate) mod value;

#[cfg(test)]
mod tests;

pub use error::TraceError;

use lines::Source;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::str::FromStr;
use wattline_core::Timestamp;
use wattline_core::units::Seconds;

/// A job as a trace tells it.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceJob {
    /// The trace's name for the job; where the trace has none, the format and the row's number.
    pub name: Box<str>,
    /// Who submitted it: a user or, where the trace names none, a virtual cluster.
    pub user: Option<Box<str>>,
    /// When it was submitted.
    pub submit: Timestamp,
    /// How long it ran, not counting the time it waited. May be zero.
    pub duration: Seconds,
    /// How many GPUs it held; at least 1. A part of a GPU counts as a whole one.
    pub gpus: u32,
    /// The model it trained, where the trace tells.
    pub model: Option<Box<str>>,
    /// The batch size it trained with, where the trace tells.
    pub batch: Option<u32>,
    /// When it had to be done, where the trace tells; never before `submit`.
    pub deadline: Option<Timestamp>,
}

/// A trace format that [`read`] knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// Microsoft Philly, as the published JSON or as a CSV made from it.
    Philly,
    /// The CSV traces published with ElasticFlow, with models and deadlines.
    Elasticflow,
    /// SenseTime Helios.
    Helios,
    /// Alibaba's GPU traces of 2020 (tasks) and 2023 (pods).
    Alibaba,
    /// What SLURM's `sacct -P` or `sacct --json` prints.
    Sacct,
}

impl Format {
    /// All formats, in the order in which they are listed to people.
    pub const ALL: [Self; 5] =
        [Self::Philly, Self::Elasticflow, Self::Helios, Self::Alibaba, Self::Sacct];

    /// The name by which the format is chosen.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Philly => "philly",
            Self::Elasticflow => "elasticflow",
            Self::Helios => "helios",
            Self::Alibaba => "alibaba",
            Self::Sacct => "sacct",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that is no [`Format`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown trace format `{name}`; the known ones are {}", known_formats())]
pub struct UnknownFormat {
    /// The name that was given, clipped.
    pub name: String,
}

fn known_formats() -> String {
    Format::ALL.map(Format::name).join(", ")
}

impl FromStr for Format {
    type Err = UnknownFormat;
    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| UnknownFormat { name: error::clip(name) })
    }
}

/// Why a row of a trace gave no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SkipReason {
    /// It asks for no GPU.
    NoGpus,
    /// It was cancelled or failed before it started.
    NeverRan,
    /// It has no end yet, so how long it runs is unknown.
    NotFinished,
    /// It is a step of a job that has its own row.
    JobStep,
    /// It has no submit time, so it cannot be placed in the trace.
    NoSubmitTime,
    /// Its end is before its start, as happens where a trace's local clock is set back.
    EndsBeforeStart,
}

impl SkipReason {
    const ALL: [Self; 6] = [
        Self::NoGpus,
        Self::NeverRan,
        Self::NotFinished,
        Self::JobStep,
        Self::NoSubmitTime,
        Self::EndsBeforeStart,
    ];
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NoGpus => "asks for no GPU",
            Self::NeverRan => "never ran",
            Self::NotFinished => "still running or pending",
            Self::JobStep => "a job step, counted with its job",
            Self::NoSubmitTime => "has no submit time",
            Self::EndsBeforeStart => "ends before it starts (a clock set back)",
        })
    }
}

/// What was read from a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadStats {
    /// Rows (or JSON jobs) seen, without the header and blank lines.
    pub rows: u64,
    /// Jobs given to the sink.
    pub jobs: u64,
    /// Rows that gave no job, by reason: in the order of [`SkipReason`], without zeros.
    pub skipped: Vec<(SkipReason, u64)>,
}

/// Reads the trace at `path` and gives its jobs to `sink` in the order of the file.
///
/// Jobs reach `sink` while the file is still being read: after an error, throw away what it got.
///
/// # Errors
/// If the file cannot be read, is not in this format, or holds a value that makes no sense; and if
/// there is no job in it.
pub fn read(
    path: &Path,
    format: Format,
    sink: &mut dyn FnMut(TraceJob),
) -> Result<ReadStats, TraceError> {
    let file = path.display().to_string();
    match File::open(path) {
        Ok(input) => read_from(input, &file, format, sink),
        Err(source) => Err(TraceError::Open { file, source }),
    }
}

/// Reads a trace from `input`, as [`read`] does; `file_name` is what errors call it.
///
/// # Errors
/// As [`read`].
pub fn read_from(
    mut input: impl io::Read,
    file_name: &str,
    format: Format,
    sink: &mut dyn FnMut(TraceJob),
) -> Result<ReadStats, TraceError> {
    let source = Source::new(&mut input, file_name)?;
    let mut tally = Tally::new(sink);
    match (format, source.first()) {
        (_, None) => {
            return Err(TraceError::Empty { file: file_name.into() });
        }
        (Format::Philly, Some(b'[' | b'{')) => philly::read_json(source, &mut tally)?,
        (Format::Philly, _) => philly::read_csv(source, &mut tally)?,
        (Format::Elasticflow, _) => elasticflow::read(source, &mut tally)?,
        (Format::Helios, _) => helios::read(source, &mut tally)?,
        (Format::Alibaba, _) => alibaba::read(source, &mut tally)?,
        (Format::Sacct, Some(b'[' | b'{')) => sacct_json::read(source, &mut tally)?,
        (Format::Sacct, _) => sacct::read(source, &mut tally)?,
    }
    tally.finish(file_name)
}

/// What a row came to.
#[derive(Debug)]
enum Outcome {
    Job(TraceJob),
    Skip(SkipReason),
}

/// Hands jobs on and counts.
struct Tally<'a> {
    sink: &'a mut dyn FnMut(TraceJob),
    jobs: u64,
    skipped: [u64; SkipReason::ALL.len()],
}

impl<'a> Tally<'a> {
    fn new(sink: &'a mut dyn FnMut(TraceJob)) -> Self {
        Self { sink, jobs: 0, skipped: [0; SkipReason::ALL.len()] }
    }

    fn take(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Job(job) => {
                self.jobs += 1;
                (self.sink)(job);
            }
            Outcome::Skip(reason) => self.skipped[reason as usize] += 1,
        }
    }

    fn rows(&self) -> u64 {
        self.jobs + self.skipped.iter().sum::<u64>()
    }

    /// A trace without a job is refused: an empty result would look like an idle cluster.
    fn finish(self, file: &str) -> Result<ReadStats, TraceError> {
        let rows = self.rows();
        let skipped: Vec<_> =
            SkipReason::ALL.into_iter().zip(self.skipped).filter(|(_, count)| *count > 0).collect();
        if rows == 0 {
            return Err(TraceError::Empty { file: file.into() });
        }
        if self.jobs == 0 {
            let why: Vec<_> =
                skipped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            return Err(TraceError::NoJobs { file: file.into(), rows, why: why.join(", ") });
        }
        Ok(ReadStats { rows, jobs: self.jobs, skipped })
    }
}
