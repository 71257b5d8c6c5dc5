//! What the model must beat: the last value at the nearest configuration, and straight lines between
//! readings.

use crate::features::{AXES, Coordinates, Scale, squares};
use crate::reading::{Point, Reading};
use nalgebra::{SMatrix, SVector};
use wattline_core::units::{Seconds, Watts};

/// A baseline's answer: time per sample, and power if it was measured.
pub type Answer = (Seconds, Option<Watts>);

/// One more than the axes: the corners of a simplex.
const CORNERS: usize = AXES + 1;
/// A direction that is less than this part of the cube away from others is none.
const NEW_DIRECTION: f64 = 1e-6;

/// The ways to predict without a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaselineMethod {
    /// As the nearest reading.
    Nearest,
    /// On straight lines between readings.
    Lines,
}

/// Predicts without a model.
#[derive(Clone, Debug)]
pub struct Baseline {
    scale: Scale,
    known: Vec<(Coordinates, Reading)>,
}

impl Baseline {
    /// Over these readings; `None` without any.
    #[must_use]
    pub fn new(readings: &[Reading], space: &[Point]) -> Option<Self> {
        if readings.is_empty() {
            return None;
        }
        let scale = Scale::new(space.iter().chain(readings.iter().map(|r| &r.point)));
        let known = readings.iter().map(|r| (scale.apply(&r.point), *r)).collect();
        Some(Self { scale, known })
    }

    /// In one of the ways.
    #[must_use]
    pub fn answer(&self, way: BaselineMethod, point: &Point) -> Answer {
        let near = self.by_distance(&self.scale.apply(point), None);
        match way {
            BaselineMethod::Nearest => nearest(&near),
            BaselineMethod::Lines => self.lines(&self.scale.apply(point), &near),
        }
    }

    /// As the nearest reading.
    #[must_use]
    pub fn nearest(&self, point: &Point) -> Answer {
        self.answer(BaselineMethod::Nearest, point)
    }

    /// Linear in the logarithms through the nearest readings that span the space, kept within
    /// their range; the nearest reading where they do not span it.
    #[must_use]
    pub fn interpolated(&self, point: &Point) -> Answer {
        self.answer(BaselineMethod::Lines, point)
    }

    /// Each reading as the others lead to expect; nothing with fewer than two.
    pub(crate) fn without_each(&self, way: BaselineMethod) -> Vec<Answer> {
        if self.known.len() < 2 {
            return Vec::new();
        }
        let without = |skip: usize| {
            let at = self.known[skip].0;
            let near = self.by_distance(&at, Some(skip));
            match way {
                BaselineMethod::Nearest => nearest(&near),
                BaselineMethod::Lines => self.lines(&at, &near),
            }
        };
        (0..self.known.len()).map(without).collect()
    }

    /// Readings by distance, but for one.
    fn by_distance(&self, at: &Coordinates, skip: Option<usize>) -> Vec<Near<'_>> {
        let mut all: Vec<Near<'_>> = self
            .known
            .iter()
            .enumerate()
            .filter(|(k, _)| Some(*k) != skip)
            .map(|(_, known)| (squares(&known.0, at).iter().sum::<f64>(), known))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    }

    fn lines(&self, at: &Coordinates, near: &[Near<'_>]) -> Answer {
        let varies =
            |axis: &usize| self.known.iter().any(|(k, _)| k[*axis] != self.known[0].0[*axis]);
        let axes: Vec<usize> = (0..AXES).filter(varies).collect();
        let column = |at: &Coordinates| {
            SVector::<f64, CORNERS>::from_fn(|r, _| match r.checked_sub(1) {
                None => 1.0,
                Some(axis) if axes.contains(&axis) => at[axis],
                Some(_) => 0.0,
            })
        };
        // The simplex: readings one by one, as long as each adds a direction.
        let mut corners: Vec<&Reading> = Vec::with_capacity(CORNERS);
        let mut matrix = SMatrix::<f64, CORNERS, CORNERS>::identity();
        let mut directions: Vec<SVector<f64, CORNERS>> = Vec::with_capacity(CORNERS);
        for (_, (at, reading)) in near {
            let own = column(at);
            let seen =
                |rest: SVector<f64, CORNERS>, d: &SVector<f64, CORNERS>| rest - d * d.dot(&rest);
            let rest = directions.iter().fold(own, seen);
            if rest.norm() > NEW_DIRECTION {
                directions.push(rest.normalize());
                matrix.set_column(corners.len(), &own);
                corners.push(reading);
            }
            if corners.len() == axes.len() + 1 {
                break;
            }
        }
        let last = nearest(near);
        if corners.len() < axes.len() + 1 {
            return last;
        }
        // Axes along which nothing varies have a unit column and a zero row of their own.
        for (spare, axis) in (0..AXES).filter(|axis| !axes.contains(axis)).enumerate() {
            let unit =
                SVector::<f64, CORNERS>::from_fn(|r, _| if r == axis + 1 { 1.0 } else { 0.0 });
            matrix.set_column(corners.len() + spare, &unit);
        }
        let Some(shares) = matrix.lu().solve(&column(at)) else { return last };
        let mix = |value: &dyn Fn(&Reading) -> Option<f64>| -> Option<f64> {
            let values: Vec<f64> =
                corners.iter().map(|r| value(r).map(f64::ln)).collect::<Option<_>>()?;
            let mixed: f64 = values.iter().zip(shares.iter()).map(|(v, s)| v * s).sum();
            let (low, high) = values
                .iter()
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
            Some(mixed.clamp(low, high).exp())
        };
        (
            mix(&|r| Some(r.per_sample.get())).map_or(last.0, Seconds::new),
            mix(&|r| r.power.map(|p| p.get())).map(Watts::new).or(last.1),
        )
    }
}

/// A reading and its squared distance.
type Near<'a> = (f64, &'a (Coordinates, Reading));

/// There is at least one.
fn nearest(near: &[Near<'_>]) -> Answer {
    let reading = &near[0].1.1;
    (reading.per_sample, reading.power)
}
