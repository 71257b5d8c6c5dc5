//! Tables with a header: CSV, and what `sacct -P` prints.

use super::error::clip_to;
use super::lines::{Fault, LineReader, Source};
use super::value::{self, Expected};
use super::{Outcome, Tally, TraceError};
use csv::StringRecord;

/// How a table separates its fields.
#[derive(Clone, Copy)]
pub(crate) enum Style {
    /// Commas, with quotes around fields that hold one.
    Comma,
    /// Bars; a quote is a character like any other.
    Bar,
}

/// A table being read, row by row.
pub(crate) struct Table<'a> {
    reader: csv::Reader<LineReader<'a>>,
    header: StringRecord,
    row: StringRecord,
    /// Whether `row` holds a row that was read to see what it is.
    held: bool,
    /// The one column whose text may hold the separator.
    free_text: Option<usize>,
}

/// Where a column is, and what it is called in errors.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    index: usize,
    name: &'static str,
}

impl<'a> Table<'a> {
    /// Reads the first row as the header, unless `headerless` says what the columns of a first row
    /// that names none are.
    pub(crate) fn open(
        source: Source<'a>,
        style: Style,
        headerless: impl FnOnce(&StringRecord) -> Option<&'static [&'static str]>,
    ) -> Result<Self, TraceError> {
        let (delimiter, quoting) = match style {
            Style::Comma => (b',', true),
            Style::Bar => (b'|', false),
        };
        let reader = csv::ReaderBuilder::new()
            .has_headers(false)
            // Counted here instead, where the line is known.
            .flexible(true)
            .delimiter(delimiter)
            .quoting(quoting)
            .terminator(csv::Terminator::Any(b'\n'))
            .from_reader(LineReader::new(source));
        let (header, row) = (StringRecord::new(), StringRecord::new());
        let mut table = Self { reader, header, row, held: false, free_text: None };
        if !table.advance()? {
            return Err(TraceError::Empty { file: table.file().into() });
        }
        if let Some(names) = headerless(&table.row) {
            table.header = StringRecord::from(names);
            table.held = true;
        } else {
            table.header = std::mem::take(&mut table.row);
        }
        Ok(table)
    }

    fn file(&self) -> &'a str {
        self.reader.get_ref().file()
    }

    fn advance(&mut self) -> Result<bool, TraceError> {
        self.reader.get_mut().begin_row();
        self.reader.read_record(&mut self.row).map_err(|error| {
            let (file, line) = (self.file(), self.reader.get_ref().row_line());
            match error.into_kind() {
                csv::ErrorKind::Io(error) => Fault::explain(error, file, line),
                // The lines were checked one by one, and nothing else is asked of the parser.
                _ => TraceError::NotUtf8 { file: file.into(), line },
            }
        })
    }

    /// The column of that name, if there is one. The case of letters does not matter, nor does a
    /// unit in brackets behind the name, which people write in many ways.
    pub(crate) fn find(&self, name: &'static str) -> Option<Column> {
        let index = self
            .header
            .iter()
            .position(|held| without_unit(held).eq_ignore_ascii_case(without_unit(name)))?;
        Some(Column { index, name })
    }

    /// The column of that name.
    pub(crate) fn column(&self, name: &'static str) -> Result<Column, TraceError> {
        self.find(name).ok_or_else(|| {
            self.missing(name, "check that the file is this trace, and that its header was kept")
        })
    }

    /// Only this column's text may hold the separator: a row with too many fields is put together
    /// again there.
    pub(super) fn allow_separator_in(&mut self, column: Column) {
        self.free_text = Some(column.index);
    }

    fn put_together(&mut self) {
        let surplus = self.row.len().saturating_sub(self.header.len());
        let Some(at) = self.free_text.filter(|_| surplus > 0) else { return };
        let fields: Vec<&str> = self.row.iter().collect();
        let whole = fields[at..=at + surplus].join("|");
        let mut row = StringRecord::from(&fields[..at]);
        row.push_field(&whole);
        row.extend(&fields[at + surplus + 1..]);
        self.row = row;
    }

    /// The error for a column that is not there.
    pub(crate) fn missing(&self, column: &'static str, hint: &'static str) -> TraceError {
        let found: Vec<_> = self.header.iter().map(str::trim).collect();
        let found = format!("\"{}\"", clip_to(&found.join(", "), 200));
        TraceError::MissingColumn { file: self.file().into(), column, found, hint }
    }

    /// Gives every row to `read` and its outcome to `tally`. `read` also gets the row's number,
    /// from 1.
    pub(super) fn each(
        self,
        tally: &mut Tally<'_>,
        read: impl Fn(&Row<'_>, u64) -> Result<Outcome, TraceError>,
    ) -> Result<(), TraceError> {
        self.rows(|row, number| {
            tally.take(read(row, number)?);
            Ok(())
        })
    }

    /// Gives every row to `read`, with its number, from 1.
    pub(crate) fn rows(
        mut self,
        mut read: impl FnMut(&Row<'_>, u64) -> Result<(), TraceError>,
    ) -> Result<(), TraceError> {
        let mut number = 0;
        while std::mem::take(&mut self.held) || self.advance()? {
            number += 1;
            self.put_together();
            let (file, line) = (self.file(), self.reader.get_ref().row_line());
            let (expected, found) = (self.header.len(), self.row.len());
            if found != expected {
                return Err(TraceError::FieldCount { file: file.into(), line, expected, found });
            }
            read(&Row { file, line, fields: &self.row }, number)?;
        }
        if number == 0 {
            return Err(TraceError::Empty { file: self.file().into() });
        }
        Ok(())
    }
}

/// `PowerConsumption[W]` is the column `PowerConsumption`.
fn without_unit(name: &str) -> &str {
    name.split('[').next().unwrap_or_default().trim()
}

/// A row, which has a field for every column.
pub(crate) struct Row<'a> {
    pub(crate) file: &'a str,
    pub(crate) line: u64,
    fields: &'a StringRecord,
}

impl Row<'_> {
    /// The text of a field, without blank space around it.
    pub(crate) fn text(&self, column: Column) -> &str {
        self.fields.get(column.index).unwrap_or_default().trim()
    }

    /// The text of a field that may stand for nothing.
    pub(crate) fn some_text(&self, column: Column) -> Option<&str> {
        Some(self.text(column)).filter(|text| !value::is_none(text))
    }

    /// As [`Self::some_text`], for a column that may be missing too, as a boxed text.
    pub(crate) fn some_box(&self, column: Option<Column>) -> Option<Box<str>> {
        column.and_then(|column| self.some_text(column)).map(Into::into)
    }

    /// What `parse` makes of a field.
    pub(crate) fn value<T>(
        &self,
        column: Column,
        parse: impl FnOnce(&str) -> Result<T, Expected>,
    ) -> Result<T, TraceError> {
        let text = self.text(column);
        parse(text).map_err(|expected| self.bad(column.name, text, expected))
    }

    /// As [`Self::value`], unless the field stands for nothing.
    pub(crate) fn some_value<T>(
        &self,
        column: Column,
        parse: impl FnOnce(&str) -> Result<T, Expected>,
    ) -> Result<Option<T>, TraceError> {
        match self.some_text(column) {
            Some(_) => self.value(column, parse).map(Some),
            None => Ok(None),
        }
    }

    /// A name: any text but none at all.
    pub(crate) fn name(&self, column: Column) -> Result<Box<str>, TraceError> {
        self.value(column, |text| match text {
            "" => Err("a name"),
            text => Ok(text.into()),
        })
    }

    fn bad(&self, field: &'static str, value: &str, expected: Expected) -> TraceError {
        let (file, value) = (self.file.to_owned(), super::error::clip(value));
        TraceError::BadValue { file, line: self.line, field, value, expected }
    }
}
