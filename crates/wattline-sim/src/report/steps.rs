//! Step functions over time, and how they are thinned out without losing their extremes.

use super::TimeDomain;
use super::svg::{drawable, push_coord, push_point};

/// A stretch of time and the range of values that a step function takes in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) low: f64,
    pub(super) high: f64,
}

/// A step function, possibly with gaps.
pub(super) struct Steps {
    /// Start of each stretch and its value; neighbours differ. `None` is a gap.
    steps: Vec<(f64, Option<f64>)>,
    end: f64,
}

impl Steps {
    /// Takes points in order of time; the last one holds until `end`. Points with a value that
    /// cannot be drawn are passed over, so that the value before them goes on.
    pub(super) fn new(points: impl Iterator<Item = (f64, Option<f64>)>, end: f64) -> Steps {
        let mut steps: Vec<(f64, Option<f64>)> = Vec::new();
        for (t, value) in points {
            let usable = value.is_none_or(drawable);
            if usable && steps.last().is_none_or(|(_, last)| *last != value) {
                steps.push((t, value));
            }
        }
        Steps { steps, end }
    }

    /// Each stretch of constant value, gaps included.
    fn stretches(&self) -> impl Iterator<Item = (f64, f64, Option<f64>)> {
        let ends = self.steps.iter().skip(1).map(|s| s.0).chain([self.end]);
        self.steps.iter().zip(ends).map(|(&(from, value), to)| (from, to.max(from), value))
    }

    /// The function as it is where it has at most `most` pieces, otherwise the range of values in
    /// each of `most` columns of equal width.
    pub(super) fn pieces(&self, domain: TimeDomain, most: usize) -> Vec<Piece> {
        if self.steps.len() > most {
            return self.columns(domain, most).into_iter().flatten().collect();
        }
        self.stretches()
            .filter_map(|(from, to, value)| value.map(|v| Piece { from, to, low: v, high: v }))
            .collect()
    }

    /// The range of values in each of `n` columns of equal width; `None` where there is no value.
    ///
    /// A column counts every value that holds at any time in it, however short, so that no peak
    /// falls between two columns.
    pub(super) fn columns(&self, domain: TimeDomain, n: usize) -> Vec<Option<Piece>> {
        let width = (domain.end - domain.start) / n as f64;
        let last = n.saturating_sub(1);
        let mut columns: Vec<Option<Piece>> = vec![None; n];
        for (from, to, value) in self.stretches() {
            let Some(v) = value else { continue };
            // The cast saturates, so that times outside the domain fall into the outer columns.
            let a = (((from - domain.start) / width).floor() as usize).min(last);
            // A stretch that ends on a column's edge does not reach into that column.
            let b = (((to - domain.start) / width).ceil() as usize).saturating_sub(1).min(last);
            for (i, slot) in columns.iter_mut().enumerate().take(b.max(a) + 1).skip(a) {
                let from = domain.start + i as f64 * width;
                let piece = slot.get_or_insert(Piece { from, to: from + width, low: v, high: v });
                piece.low = piece.low.min(v);
                piece.high = piece.high.max(v);
            }
        }
        // The function may start or end inside a column; the drawing should as well.
        let start = self.steps.first().map_or(domain.start, |s| s.0);
        for piece in columns.iter_mut().flatten() {
            piece.from = piece.from.max(start).min(piece.to);
            piece.to = piece.to.min(self.end.max(piece.from));
        }
        columns
    }
}

/// Splits pieces where one does not begin at the end of the one before.
fn unbroken(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    pieces.chunk_by(|a, b| (b.from - a.to).abs() <= 1e-9 * (1.0 + b.from.abs()))
}

/// A step line through `value` of each piece.
pub(super) fn line(
    pieces: &[Piece],
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
    value: impl Fn(&Piece) -> f64,
) -> String {
    let mut d = String::new();
    for part in unbroken(pieces) {
        let Some(first) = part.first() else { continue };
        let mut level = y(value(first));
        push_point(&mut d, 'M', x(first.from), level);
        for piece in part {
            let next = y(value(piece));
            if next != level {
                push_coord(&mut d, 'H', x(piece.from));
                push_coord(&mut d, 'V', next);
                level = next;
            }
        }
        if let Some(last) = part.last() {
            push_coord(&mut d, 'H', x(last.to));
        }
    }
    d
}

/// The area between `bottom` and `top` of each piece.
pub(super) fn area(
    pieces: &[Piece],
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
    bottom: impl Fn(&Piece) -> f64,
    top: impl Fn(&Piece) -> f64,
) -> String {
    let mut d = String::new();
    for part in unbroken(pieces) {
        d.push_str(&line(part, &x, &y, &top));
        let mut level = f64::NAN;
        for piece in part.iter().rev() {
            let next = y(bottom(piece));
            if next != level {
                if !level.is_nan() {
                    push_coord(&mut d, 'H', x(piece.to));
                }
                push_coord(&mut d, 'V', next);
                level = next;
            }
        }
        if let Some(first) = part.first() {
            push_coord(&mut d, 'H', x(first.from));
            d.push('z');
        }
    }
    d
}
