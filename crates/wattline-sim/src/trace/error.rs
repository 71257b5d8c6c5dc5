//! What can be wrong with a trace.

use std::io;

/// Why a trace was not read. Lines count from 1; for JSON, `line` is where the job in question
/// ends, because that is where its values are known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("cannot open trace {file}; check the path and its permissions")]
    Open {
        /// The trace.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// Reading failed half-way.
    #[error("{file}:{line}: cannot read on; check the disk or the pipe it comes from")]
    Read {
        /// The trace.
        file: String,
        /// The line being read.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing in the file, or only a header.
    #[error("{file}: no rows in this trace; was the export cut short?")]
    Empty {
        /// The trace.
        file: String,
    },
    /// Rows were read, but none of them gave a job.
    #[error(
        "{file}: none of its {rows} rows is a finished GPU job ({why}); check what was exported"
    )]
    NoJobs {
        /// The trace.
        file: String,
        /// Rows seen.
        rows: u64,
        /// Why they gave no jobs: counts and reasons.
        why: String,
    },
    /// A column (or, in JSON, a key) that is needed is not there.
    #[error("{file}: no column `{column}`; found {found}; {hint}")]
    MissingColumn {
        /// The trace.
        file: String,
        /// What was looked for.
        column: &'static str,
        /// What is there instead, clipped.
        found: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// A value is not what its field is for.
    #[error(
        "{file}:{line}: field `{field}` is \"{value}\", expected {expected}; fix or remove the row"
    )]
    BadValue {
        /// The trace.
        file: String,
        /// The row's line.
        line: u64,
        /// The field.
        field: &'static str,
        /// What it holds, escaped and clipped.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A line, or a quoted field that runs over several lines, is too long to be a row.
    #[error(
        "{file}:{line}: row longer than {limit} bytes; is this a text trace, and is every quote \
         closed?"
    )]
    LineTooLong {
        /// The trace.
        file: String,
        /// The line on which the row begins.
        line: u64,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A single job in a JSON trace is too long to be one.
    #[error("{file}:{line}: JSON job longer than {limit} bytes; is this a trace in this format?")]
    JobTooLong {
        /// The trace.
        file: String,
        /// A line inside the job.
        line: u64,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The file is not text.
    #[error("{file}:{line}: not UTF-8 text; decompress it or convert it to UTF-8 first")]
    NotUtf8 {
        /// The trace.
        file: String,
        /// The first line that is not.
        line: u64,
    },
    /// A deadline that was missed before the job existed.
    #[error(
        "{file}:{line}: field `{field}` ({deadline} s) is before the submit time ({submit} s); \
         deadlines are absolute times in seconds"
    )]
    DeadlineBeforeSubmit {
        /// The trace.
        file: String,
        /// The row's line.
        line: u64,
        /// The deadline's field.
        field: &'static str,
        /// The deadline, in seconds.
        deadline: f64,
        /// The submit time, in seconds.
        submit: f64,
    },
    /// A row has more or fewer fields than the header.
    #[error(
        "{file}:{line}: {found} fields where {expected} are named; a name holds the separator, or \
         the line was cut: fix or remove it"
    )]
    FieldCount {
        /// The trace.
        file: String,
        /// The row's line.
        line: u64,
        /// Fields in the header.
        expected: usize,
        /// Fields in the row.
        found: usize,
    },
    /// The JSON is broken or of another shape.
    #[error("{file}:{line}:{column}: {message}; check that the export is whole and in this format")]
    Json {
        /// The trace.
        file: String,
        /// The line.
        line: u64,
        /// The column.
        column: u64,
        /// What the parser said.
        message: String,
    },
    /// `sacct` wrote an error into its own output.
    #[error("{file}: sacct reported \"{message}\"; what it printed is not whole: run it again")]
    SacctFailed {
        /// The trace.
        file: String,
        /// What it reported, escaped and clipped.
        message: String,
    },
}

/// At most 60 characters of `text`, escaped: it goes to terminals and logs, and may be anything.
pub(crate) fn clip(text: &str) -> String {
    clip_to(text, 60)
}

/// As [`clip`], with another limit.
pub(crate) fn clip_to(text: &str, limit: usize) -> String {
    let mut clipped: String = text.chars().take(limit).flat_map(char::escape_debug).collect();
    if text.chars().nth(limit).is_some() {
        clipped.push('…');
    }
    clipped
}
