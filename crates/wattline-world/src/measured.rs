//! Physics read from a measurement file, so that a site simulates its own machines.
//!
//! Columns: `workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w`. Between
//! measured points time and power are interpolated linearly in the logarithms, one axis after the
//! other: power limit, batch per GPU, GPU count. Outside, the nearest point's time per sample is
//! used; for GPU counts that were not measured it scales by the stated default curve.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use thiserror::Error;
use wattline_core::units::{Seconds, Watts};

use crate::physics::DEFAULT_SCALING;
use crate::step::Step;

/// Why a file is not a measurement file.
#[derive(Debug, Error)]
pub enum MeasuredError {
    /// Cannot be read, or rows of different lengths.
    #[error("{file}: not a measurement table")]
    Csv {
        /// Which file.
        file: String,
        /// What is wrong; names the line.
        source: csv::Error,
    },
    /// A field that is not a number, or a column that is not there.
    #[error("{file}, line {line}: field `{field}`: {message}")]
    Field {
        /// Which file.
        file: String,
        /// Which line.
        line: u64,
        /// Which field.
        field: String,
        /// What is wrong.
        message: String,
    },
    /// A line that is no row of this table.
    #[error("{file}, line {line}: {message}")]
    Row {
        /// Which file.
        file: String,
        /// Which line.
        line: u64,
        /// What is wrong.
        message: String,
    },
    /// A line that cannot be a row.
    #[error("{file}, line {line}: longer than {LONGEST_LINE} bytes; is this a measurement table?")]
    LineTooLong {
        /// Which file.
        file: String,
        /// Which line.
        line: u64,
    },
    /// A value that cannot be.
    #[error("{file}, line {line}: {field} is {value}, it must be finite and positive")]
    Value {
        /// Which file.
        file: String,
        /// Which line.
        line: u64,
        /// Which field.
        field: &'static str,
        /// What stands there.
        value: f64,
    },
    /// No rows.
    #[error("{file}: no measurements in it")]
    Empty {
        /// Which file.
        file: String,
    },
}

/// One row of a measurement file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// What was trained.
    pub workload: Box<str>,
    /// On which kind of GPU.
    pub gpu: Box<str>,
    /// On how many nodes.
    pub nodes: u32,
    /// On how many GPUs.
    pub gpus: u32,
    /// With which global batch.
    pub global_batch: f64,
    /// Under which limit; empty: the card's default.
    pub power_limit_w: Option<f64>,
    /// How many samples.
    pub samples: f64,
    /// Took so long.
    pub seconds: f64,
    /// And each GPU drew so much on average; empty: not measured.
    pub power_w: Option<f64>,
}

/// All measurements of a file, by workload and GPU type.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    groups: BTreeMap<(Box<str>, Box<str>), Group>,
}

/// Measurements of one workload on one GPU type: by spread over nodes, by GPU count, by batch, by
/// limit. All keys and values are logarithms but for the counts.
#[derive(Clone, Debug, Default)]
struct Group {
    one_node: BTreeMap<u32, ByBatch>,
    several_nodes: BTreeMap<u32, ByBatch>,
}

type ByBatch = Vec<(f64, ByLimit)>;
type ByLimit = Vec<(f64, LogStep)>;

#[derive(Clone, Copy, Debug)]
struct LogStep {
    per_sample: f64,
    power: Option<f64>,
}

/// The columns of a measurement file.
pub const COLUMNS: [&str; 9] = [
    "workload",
    "gpu",
    "nodes",
    "gpus",
    "global_batch",
    "power_limit_w",
    "samples",
    "seconds",
    "power_w",
];

/// One line of a measurement file.
#[derive(Debug)]
pub struct Line {
    /// Its number.
    pub number: u64,
    /// Workload and GPU type, where they can be read.
    pub names: Option<(Box<str>, Box<str>)>,
    /// The row, or what is wrong with it.
    pub row: Result<Row, MeasuredError>,
}

/// Reads the rows of a measurement file.
///
/// # Errors
/// Names the file, the line and the field.
pub fn read_rows(input: impl Read, file: &str) -> Result<Vec<Row>, MeasuredError> {
    let lines = read(input, file, true)?.1;
    let rows = lines.into_iter().map(|line| line.row).collect::<Result<Vec<Row>, _>>()?;
    if rows.is_empty() {
        return Err(MeasuredError::Empty { file: file.to_owned() });
    }
    Ok(rows)
}

/// Reads the names of the columns and all rows, good and bad ones.
///
/// # Errors
/// If nothing more can be read.
pub fn read_lines(
    input: impl Read,
    file: &str,
) -> Result<(csv::StringRecord, Vec<Line>), MeasuredError> {
    read(input, file, false)
}

/// All lines, or those up to the first bad one.
fn read(
    input: impl Read,
    file: &str,
    stop: bool,
) -> Result<(csv::StringRecord, Vec<Line>), MeasuredError> {
    let input = ShortLines { input, line: 1, length: 0, too_long: None };
    let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(input);
    let headers = reader.headers().cloned().map_err(|source| {
        explain(source, file, &csv::StringRecord::new(), reader.get_ref().too_long)
    })?;
    let column = |name: &str| headers.iter().position(|header| header == name);
    let (workload, gpu) = (column("workload"), column("gpu"));
    let mut lines: Vec<Line> = Vec::new();
    let mut record = csv::StringRecord::new();
    loop {
        let (number, row) = match reader.read_record(&mut record) {
            Ok(false) => break,
            Ok(true) => {
                let line = record.position().map_or(0, csv::Position::line);
                let row = record.deserialize(Some(&headers));
                let row = row.map_err(|source| explain(source, file, &headers, None));
                (line, row.and_then(|row: Row| row.positive(file, line)))
            }
            Err(source) => {
                let line = source.position().map_or(0, csv::Position::line);
                let too_long = reader.get_ref().too_long;
                // After a failed read there is no next line.
                let over = too_long.is_some() || source.is_io_error();
                let error = explain(source, file, &headers, too_long);
                if over {
                    return Err(error);
                }
                (line, Err(error))
            }
        };
        let bad = row.is_err();
        let name = |at: Option<usize>| at.and_then(|at| record.get(at)).map(Box::from);
        lines.push(Line { number, names: name(workload).zip(name(gpu)), row });
        if bad && stop {
            break;
        }
    }
    Ok((headers, lines))
}

impl Row {
    fn positive(self, file: &str, line: u64) -> Result<Self, MeasuredError> {
        let required = [
            ("gpus", f64::from(self.gpus)),
            ("nodes", f64::from(self.nodes)),
            ("global_batch", self.global_batch),
            ("samples", self.samples),
            ("seconds", self.seconds),
            ("power_limit_w", self.power_limit_w.unwrap_or(1.0)),
            ("power_w", self.power_w.unwrap_or(1.0)),
        ];
        for (field, value) in required {
            if !value.is_finite() || value <= 0.0 {
                return Err(MeasuredError::Value { file: file.to_owned(), line, field, value });
            }
        }
        Ok(self)
    }
}

impl Measured {
    /// Reads a file.
    ///
    /// # Errors
    /// Names the file, the line and the field.
    pub fn read(input: impl Read, file: &str) -> Result<Self, MeasuredError> {
        read_rows(input, file).map(Self::from_rows)
    }

    fn from_rows(rows: Vec<Row>) -> Self {
        // Repeated readings of one configuration are averaged in the logarithm.
        type Key = (Box<str>, Box<str>, bool, u32, u64, u64);
        let mut sums: BTreeMap<Key, (f64, f64, f64, f64)> = BTreeMap::new();
        for row in rows {
            let limit = row.power_limit_w.unwrap_or(f64::MAX);
            let key = (
                row.workload,
                row.gpu,
                row.nodes > 1,
                row.gpus,
                (row.global_batch / f64::from(row.gpus)).to_bits(),
                limit.to_bits(),
            );
            let sum = sums.entry(key).or_default();
            sum.0 += (row.seconds / row.samples).ln();
            sum.1 += 1.0;
            if let Some(power) = row.power_w {
                sum.2 += power.ln();
                sum.3 += 1.0;
            }
        }
        let mut measured = Self::default();
        for ((workload, gpu, spread, gpus, batch, limit), sum) in sums {
            let group = measured.groups.entry((workload, gpu)).or_default();
            let side = if spread { &mut group.several_nodes } else { &mut group.one_node };
            let by_batch = side.entry(gpus).or_default();
            let batch = f64::from_bits(batch).ln();
            let step =
                LogStep { per_sample: sum.0 / sum.1, power: (sum.3 > 0.0).then(|| sum.2 / sum.3) };
            // Positive floats sort as their bits do, so keys arrive in rising order.
            match by_batch.last_mut() {
                Some((last, by_limit)) if *last == batch => {
                    by_limit.push((f64::from_bits(limit).ln(), step));
                }
                _ => by_batch.push((batch, vec![(f64::from_bits(limit).ln(), step)])),
            }
        }
        measured
    }

    /// Names of the workloads and GPU types in it.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &str)> {
        self.groups.keys().map(|(workload, gpu)| (&**workload, &**gpu))
    }

    /// A step, interpolated; `None` where the workload was never measured on that GPU type.
    #[must_use]
    pub fn step(
        &self,
        workload: &str,
        gpu: &str,
        (gpus, nodes): (u32, u32),
        batch: u32,
        limit: Watts,
    ) -> Option<Step> {
        let group = self.groups.get(&(workload.into(), gpu.into()))?;
        let (mine, other) = if nodes > 1 {
            (&group.several_nodes, &group.one_node)
        } else {
            (&group.one_node, &group.several_nodes)
        };
        let side = if mine.is_empty() { other } else { mine };
        let (count, limit) = (f64::from(gpus).ln(), limit.get().ln());
        let batch = f64::from(batch).ln();
        let points: Vec<(f64, LogStep)> = side
            .iter()
            .map(|(measured, by_batch)| {
                let by_batch: Vec<(f64, LogStep)> =
                    by_batch.iter().map(|(at, by_limit)| (*at, between(by_limit, limit))).collect();
                (f64::from(*measured).ln(), between(&by_batch, batch - count))
            })
            .collect();
        let log = between(&points, count);
        let (least, most) = (points.first()?.0, points.last()?.0);
        let beyond = count - count.clamp(least, most);
        let per_sample = log.per_sample - DEFAULT_SCALING * beyond;
        Some(Step {
            time: Seconds::new((per_sample + batch).exp()),
            power: log.power.map_or(Watts::ZERO, |power| Watts::new(power.exp())),
        })
    }
}

/// The longest row that is read.
const LONGEST_LINE: usize = 1 << 20;

/// Fails on a line that is too long, so that a file without line ends is not read into memory.
struct ShortLines<R> {
    input: R,
    line: u64,
    length: usize,
    too_long: Option<u64>,
}

impl<R: Read> Read for ShortLines<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(buffer)?;
        for byte in &buffer[..count] {
            self.length += 1;
            if *byte == b'\n' {
                self.line += 1;
                self.length = 0;
            }
            if self.length > LONGEST_LINE {
                self.too_long = Some(self.line);
                return Err(std::io::ErrorKind::InvalidData.into());
            }
        }
        Ok(count)
    }
}

/// Says which field of which line is wrong.
fn explain(
    error: csv::Error,
    file: &str,
    headers: &csv::StringRecord,
    too_long: Option<u64>,
) -> MeasuredError {
    let file = file.to_owned();
    if let Some(line) = too_long {
        return MeasuredError::LineTooLong { file, line };
    }
    let line = error.position().map_or(0, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => {
            let named = err.field().and_then(|at| headers.get(at as usize));
            let message = err.kind().to_string();
            // A missing column has no position; its name is in the message.
            let field =
                named.map_or_else(|| "header".to_owned(), |name| name.chars().take(40).collect());
            MeasuredError::Field { file, line, field, message }
        }
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            let message = format!("has {len} fields, expected {expected_len}");
            MeasuredError::Row { file, line, message }
        }
        csv::ErrorKind::Utf8 { .. } => {
            MeasuredError::Row { file, line, message: "is not UTF-8 text".to_owned() }
        }
        _ => MeasuredError::Csv { file, source: error },
    }
}

/// Linear between the neighbours, constant outside.
fn between(points: &[(f64, LogStep)], at: f64) -> LogStep {
    let next = points.partition_point(|(x, _)| *x < at);
    match (next.checked_sub(1).map(|k| &points[k]), points.get(next)) {
        (Some((x0, a)), Some((x1, b))) => {
            let share = ((at - x0) / (x1 - x0)).clamp(0.0, 1.0);
            let mix = |a: f64, b: f64| a + (b - a) * share;
            LogStep {
                per_sample: mix(a.per_sample, b.per_sample),
                power: a.power.zip(b.power).map(|(a, b)| mix(a, b)),
            }
        }
        (Some((_, only)), None) | (None, Some((_, only))) => *only,
        (None, None) => LogStep { per_sample: 0.0, power: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w\n";

    fn read(rows: &str) -> Result<Measured, MeasuredError> {
        Measured::read(format!("{HEADER}{rows}").as_bytes(), "site.csv")
    }

    #[test]
    fn measured_points_are_repeated_exactly_and_others_lie_between() {
        let m = read(
            "bert,x,1,1,8,200,8,1.0,150\nbert,x,1,1,32,200,32,2.0,180\n\
                      bert,x,1,1,8,300,8,0.8,200\nbert,x,1,1,32,300,32,1.5,250\n\
                      bert,x,1,4,32,300,32,0.5,230\n",
        )
        .unwrap();
        let at =
            |gpus, batch, limit| m.step("bert", "x", (gpus, 1), batch, Watts::new(limit)).unwrap();
        assert!((at(1, 8, 200.0).time.get() - 1.0).abs() < 1e-12);
        assert!((at(1, 32, 300.0).power.get() - 250.0).abs() < 1e-9);
        assert!((at(4, 32, 300.0).time.get() - 0.5).abs() < 1e-12);
        let middle = at(1, 16, 250.0).time.get();
        assert!(middle > 0.8 && middle < 2.0);
        assert!(at(2, 32, 300.0).time.get() < 1.5 && at(2, 32, 300.0).time.get() > 0.5);
        // Eight GPUs were not measured: twice four, by the default curve, at the same batch per GPU.
        let eight = at(8, 64, 300.0).time.get() / at(4, 32, 300.0).time.get();
        assert!((eight - 2.0 / 2.0_f64.powf(DEFAULT_SCALING)).abs() < 1e-9, "{eight}");
        assert!(m.step("gpt", "x", (1, 1), 8, Watts::new(200.0)).is_none());
    }

    #[test]
    fn a_bad_line_does_not_hide_the_others() {
        let rows = "bert,x,1,1,8,200,8,1,150\nbert,x,1\nbert,x,1,1,8,200,8,nope,150\n\
                    bert,x,1,1,8,200,8,-1,150\nbert,x,1,1,16,,8,1,\n";
        let text = format!("{HEADER}{rows}");
        let (headers, lines) = read_lines(text.as_bytes(), "site.csv").unwrap();
        assert_eq!(headers.iter().collect::<Vec<_>>(), COLUMNS);
        let good: Vec<(u64, bool)> =
            lines.iter().map(|line| (line.number, line.row.is_ok())).collect();
        assert_eq!(good, [(2, true), (3, false), (4, false), (5, false), (6, true)]);
        assert_eq!(lines[2].names, Some(("bert".into(), "x".into())));
    }

    #[test]
    fn errors_name_file_line_and_field() {
        let message = |rows| read(rows).unwrap_err().to_string();
        let bad = message("bert,x,1,1,8,200,8,NaN,150\n");
        assert!(bad.contains("site.csv, line 2") && bad.contains("seconds"), "{bad}");
        assert!(message("bert,x,1,1,8,200,8,-1,150\n").contains("seconds is -1"));
        let bad = message("bert,x,1,one,8,200,8,1,150\n");
        assert!(bad.contains("site.csv, line 2: field `gpus`"), "{bad}");
        let endless = Measured::read(std::io::repeat(b'1'), "endless.csv").unwrap_err();
        assert!(endless.to_string().contains("endless.csv, line 1: longer than"), "{endless}");
        assert!(message("").contains("no measurements"));
        let missing = Measured::read("workload,gpu\na,b\n".as_bytes(), "f.csv").unwrap_err();
        assert!(missing.to_string().contains("missing field"), "{missing}");
    }
}
