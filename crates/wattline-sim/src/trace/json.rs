//! JSON traces, read job by job: a whole one may be larger than memory.
//!
//! A JSON trace is often a single line, so the limit on lines cannot hold here. Instead no more
//! than [`JOB_LIMIT`] bytes are read from the end of one job to the end of the next, which bounds
//! what the parser can hold; it bounds the depth of nesting itself.

use super::error::clip;
use super::lines::{Fault, Source, newlines};
use super::value::Expected;
use super::{Outcome, Tally, TraceError};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::marker::PhantomData;

/// The longest JSON job that is read. More than for a line: `sacct` nests a job's steps in it, and
/// there may be thousands.
pub(super) const JOB_LIMIT: usize = 16 << 20;

/// What is wrong with a job; the line is filled in where the parser tells it.
pub(super) enum JobError {
    Value { field: &'static str, value: String, expected: Expected },
    Missing { field: &'static str },
}

impl JobError {
    pub(super) fn value(
        field: &'static str,
        value: impl fmt::Display,
    ) -> impl FnOnce(Expected) -> Self {
        move |expected| Self::Value { field, value: clip(&value.to_string()), expected }
    }

    fn at(self, file: &str, line: u64) -> TraceError {
        let (field, value, expected) = match self {
            Self::Value { field, value, expected } => (field, value, expected),
            Self::Missing { field } => (field, "null".to_owned(), "a value"),
        };
        TraceError::BadValue { file: file.into(), line, field, value, expected }
    }
}

/// State shared by the parser's parts: how far the job being read has come, and what stopped it.
#[derive(Default)]
pub(super) struct Progress {
    bytes: Cell<usize>,
    line: Cell<u64>,
    stopped: Cell<Option<JobError>>,
}

/// Parses `source` with `parse`, and turns whatever goes wrong into a trace error.
pub(super) fn parse<T>(
    source: Source<'_>,
    parse: impl FnOnce(
        &mut serde_json::Deserializer<serde_json::de::IoRead<BufReader<Checked<'_, '_>>>>,
        &Progress,
    ) -> serde_json::Result<T>,
) -> Result<T, TraceError> {
    let (file, first_line) = (source.file, source.line);
    let progress = Progress::default();
    progress.line.set(first_line);
    let checked = Checked { source, progress: &progress, partial: Vec::new() };
    let mut deserializer = serde_json::Deserializer::from_reader(BufReader::new(checked));
    let parsed = parse(&mut deserializer, &progress).and_then(|parsed| {
        deserializer.end()?;
        Ok(parsed)
    });
    parsed.map_err(|error| {
        if error.is_io() {
            return Fault::explain(error.into(), file, progress.line.get());
        }
        // The parser counts from where the source stood.
        let line = first_line + (error.line() as u64).saturating_sub(1);
        match progress.stopped.take() {
            Some(job_error) => job_error.at(file, line),
            None => {
                let column = error.column() as u64;
                let text = error.to_string();
                let message = text.rsplit_once(" at line ").map_or(&*text, |(message, _)| message);
                let (file, message) = (file.into(), super::error::clip_to(message, 200));
                TraceError::Json { file, line, column, message }
            }
        }
    })
}

/// The bytes of a JSON trace, checked: they are UTF-8, and no job goes on for ever.
pub(super) struct Checked<'s, 'p> {
    source: Source<'s>,
    progress: &'p Progress,
    /// The beginning of a character whose other bytes have not come yet.
    partial: Vec<u8>,
}

impl Checked<'_, '_> {
    fn check(&mut self, mut bytes: &[u8]) -> Result<(), Fault> {
        let line = self.progress.line.get();
        while !self.partial.is_empty() {
            let Some((byte, rest)) = bytes.split_first() else {
                return Ok(());
            };
            self.partial.push(*byte);
            bytes = rest;
            match std::str::from_utf8(&self.partial) {
                Ok(_) => self.partial.clear(),
                Err(error) if error.error_len().is_some() => return Err(Fault::NotUtf8 { line }),
                Err(_) => {}
            }
        }
        if let Err(error) = std::str::from_utf8(bytes) {
            let (valid, rest) = bytes.split_at(error.valid_up_to());
            if error.error_len().is_some() {
                return Err(Fault::NotUtf8 { line: line + newlines(valid) });
            }
            self.partial.extend_from_slice(rest);
        }
        self.progress.line.set(line + newlines(bytes));
        Ok(())
    }
}

impl Read for Checked<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.source.reader.read(buffer)?;
        let line = self.progress.line.get();
        if count == 0 && !self.partial.is_empty() {
            return Err(Fault::NotUtf8 { line }.into_io());
        }
        self.check(&buffer[..count]).map_err(Fault::into_io)?;
        let bytes = self.progress.bytes.get().saturating_add(count);
        self.progress.bytes.set(bytes);
        if bytes > JOB_LIMIT {
            return Err(Fault::JobTooLong { line }.into_io());
        }
        Ok(count)
    }
}

/// An array of jobs: each is parsed as a `T`, given to `read`, its outcome to `tally`, and dropped.
pub(super) struct Jobs<'a, 't, T, F> {
    pub(super) tally: &'a mut Tally<'t>,
    pub(super) progress: &'a Progress,
    pub(super) read: F,
    pub(super) job: PhantomData<T>,
}

impl<'de, T, F> DeserializeSeed<'de> for Jobs<'_, '_, T, F>
where
    T: DeserializeOwned,
    F: Fn(T) -> Result<Outcome, JobError>,
{
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T, F> Visitor<'de> for Jobs<'_, '_, T, F>
where
    T: DeserializeOwned,
    F: Fn(T) -> Result<Outcome, JobError>,
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of jobs")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut jobs: A) -> Result<(), A::Error> {
        self.progress.bytes.set(0);
        while let Some(job) = jobs.next_element()? {
            match (self.read)(job) {
                Ok(outcome) => self.tally.take(outcome),
                Err(error) => {
                    self.progress.stopped.set(Some(error));
                    return Err(A::Error::custom("a value makes no sense"));
                }
            }
            self.progress.bytes.set(0);
        }
        Ok(())
    }
}
