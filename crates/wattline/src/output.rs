//! Tables for people, JSON for programs.

use crate::failure::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::io::{self, Write};
pub(crate) use wattline_controller::log::harmless;

/// Prints a value as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Prints text.
pub(crate) fn text(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        writeln!(out)?;
    }
    Ok(())
}

/// Says something beside the result.
pub(crate) fn note(text: &str) {
    // Nobody can be told if standard error is closed.
    let _ = writeln!(io::stderr(), "{text}");
}

/// A table of words.
pub(crate) fn left_table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    filled(header, rows).to_string()
}

fn filled(header: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    table
}

/// A table with the first column to the left and the others to the right.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = filled(header, rows);
    for (at, column) in table.column_iter_mut().enumerate() {
        if at > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// Seconds as people say them.
pub(crate) fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{:.1} min", s / 60.0),
        s if s < 2.0 * 86_400.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} d", s / 86_400.0),
    }
}

/// A share as people say it; a dash where there is none.
pub(crate) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.1} %", share * 100.0))
}
