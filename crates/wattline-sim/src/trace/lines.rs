//! Getting at the text of a trace without trusting it: byte-order mark, line ends, encoding, and a
//! limit on how much of it is held at once.

use super::TraceError;
use std::io::{self, BufRead, BufReader, Cursor, Read};

/// The longest row that is read: far beyond any real one, and small enough to hold.
pub(crate) const LINE_LIMIT: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// The input of a trace, past any byte-order mark and leading blank space.
pub(crate) struct Source<'a> {
    pub(crate) reader: BufReader<io::Chain<Cursor<Vec<u8>>, &'a mut dyn Read>>,
    pub(crate) file: &'a str,
    /// The line the reader stands on.
    pub(crate) line: u64,
    first: Option<u8>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(input: &'a mut dyn Read, file: &'a str) -> Result<Self, TraceError> {
        let failed = |line| move |source| TraceError::Read { file: file.into(), line, source };
        let mut start = Vec::with_capacity(BYTE_ORDER_MARK.len());
        (&mut *input)
            .take(BYTE_ORDER_MARK.len() as u64)
            .read_to_end(&mut start)
            .map_err(failed(1))?;
        if start == BYTE_ORDER_MARK {
            start.clear();
        }
        let reader = BufReader::with_capacity(1 << 16, Cursor::new(start).chain(input));
        let mut source = Self { reader, file, line: 1, first: None };
        // Skipped here, so that the first byte can tell JSON from a table; counted, so that line
        // numbers stay those of the file.
        loop {
            let buffer = match source.reader.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(failed(source.line)(error)),
            };
            let blank = buffer.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            source.first = buffer.get(blank).copied();
            let end = buffer.is_empty();
            source.line += newlines(&buffer[..blank]);
            source.reader.consume(blank);
            if end || source.first.is_some() {
                return Ok(source);
            }
        }
    }

    /// The first byte that is not blank, if there is one.
    pub(crate) fn first(&self) -> Option<u8> {
        self.first
    }
}

pub(crate) fn newlines(bytes: &[u8]) -> u64 {
    bytes.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// What a reader found wrong with the text itself. Travels inside an [`io::Error`] through the
/// parsers, which know nothing of lines or limits.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("line {line} is too long")]
    LineTooLong { line: u64 },
    #[error("line {line} is in a job that is too long")]
    JobTooLong { line: u64 },
    #[error("line {line} is not UTF-8")]
    NotUtf8 { line: u64 },
}

impl Fault {
    pub(crate) fn into_io(self) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, self)
    }

    /// The trace error behind an input error; `line` is for those that came from the system.
    pub(crate) fn explain(error: io::Error, file: &str, line: u64) -> TraceError {
        let file = file.to_owned();
        match error.downcast::<Self>() {
            Ok(Self::LineTooLong { line }) => {
                TraceError::LineTooLong { file, line, limit: LINE_LIMIT }
            }
            Ok(Self::JobTooLong { line }) => {
                TraceError::JobTooLong { file, line, limit: super::json::JOB_LIMIT }
            }
            Ok(Self::NotUtf8 { line }) => TraceError::NotUtf8 { file, line },
            Err(source) => TraceError::Read { file, line, source },
        }
    }
}

/// Hands a table's lines on one at a time: each `read` gives (part of) one line, so that whoever
/// parses them never reads ahead and the line of a row is known. Drops blank lines and `\r`, and
/// refuses what is too long or not UTF-8.
pub(crate) struct LineReader<'a> {
    source: Source<'a>,
    text: Vec<u8>,
    given: usize,
    /// Lines taken so far.
    taken: u64,
    row_line: Option<u64>,
    row_bytes: usize,
}

impl<'a> LineReader<'a> {
    pub(crate) fn new(source: Source<'a>) -> Self {
        let taken = source.line - 1;
        Self { source, text: Vec::new(), given: 0, taken, row_line: None, row_bytes: 0 }
    }

    pub(crate) fn file(&self) -> &'a str {
        self.source.file
    }

    /// A new row begins with the next line.
    pub(crate) fn begin_row(&mut self) {
        self.row_line = None;
        self.row_bytes = 0;
    }

    /// The line on which the row began, or the next one if none was taken yet.
    pub(crate) fn row_line(&self) -> u64 {
        self.row_line.unwrap_or(self.taken + 1)
    }

    /// Takes the next line that is not blank; `false` at the end.
    fn take_line(&mut self) -> io::Result<bool> {
        loop {
            self.text.clear();
            self.given = 0;
            // One byte more than the limit tells a line that is too long from one that just fits.
            let mut bounded = (&mut self.source.reader).take(LINE_LIMIT as u64 + 1);
            if bounded.read_until(b'\n', &mut self.text)? == 0 {
                return Ok(false);
            }
            self.taken += 1;
            if self.text.len() > LINE_LIMIT {
                return Err(Fault::LineTooLong { line: self.taken }.into_io());
            }
            while let Some(b'\n' | b'\r') = self.text.last() {
                self.text.pop();
            }
            if self.text.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            if std::str::from_utf8(&self.text).is_err() {
                return Err(Fault::NotUtf8 { line: self.taken }.into_io());
            }
            self.text.push(b'\n');
            let line = *self.row_line.get_or_insert(self.taken);
            self.row_bytes += self.text.len();
            // A quote that is never closed would otherwise collect the rest of the file.
            if self.row_bytes > LINE_LIMIT {
                return Err(Fault::LineTooLong { line }.into_io());
            }
            return Ok(true);
        }
    }
}

impl Read for LineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.given == self.text.len() && !self.take_line()? {
            return Ok(0);
        }
        let rest = &self.text[self.given..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}
