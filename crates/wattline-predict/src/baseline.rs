//! What the model must beat: the nearest reading, and straight lines between readings.

use crate::features::{AXES, Coordinates, Scale, squares};
use crate::reading::{Point, Reading};
use nalgebra::{DMatrix, DVector};
use wattline_core::units::{Seconds, Watts};

/// A baseline's answer: time per sample, and power if it was measured.
pub type Answer = (Seconds, Option<Watts>);

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

    /// Readings by distance.
    fn by_distance(&self, point: &Point) -> Vec<(f64, &(Coordinates, Reading))> {
        let at = self.scale.apply(point);
        let mut all: Vec<_> = self
            .known
            .iter()
            .map(|known| (squares(&known.0, &at).iter().sum::<f64>(), known))
            .collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    }

    /// As the nearest reading.
    #[must_use]
    pub fn nearest(&self, point: &Point) -> Answer {
        let reading = &self.by_distance(point)[0].1.1;
        (reading.per_sample, reading.power)
    }

    /// Linear in the logarithms through the nearest readings that span the space, kept within
    /// their range; the nearest reading where they do not span it.
    #[must_use]
    pub fn interpolated(&self, point: &Point) -> Answer {
        let near = self.by_distance(point);
        let at = self.scale.apply(point);
        let axes: Vec<usize> = (0..AXES)
            .filter(|axis| self.known.iter().any(|(k, _)| k[*axis] != self.known[0].0[*axis]))
            .collect();
        // The simplex: readings one by one, as long as each adds a direction.
        let mut corners: Vec<&(Coordinates, Reading)> = Vec::new();
        for (_, candidate) in &near {
            corners.push(candidate);
            let rows = DMatrix::from_fn(corners.len(), axes.len() + 1, |r, c| {
                if c == 0 { 1.0 } else { corners[r].0[axes[c - 1]] }
            });
            if rows.rank(1e-6) < corners.len() {
                corners.pop();
            }
            if corners.len() == axes.len() + 1 {
                break;
            }
        }
        if corners.len() < axes.len() + 1 {
            return self.nearest(point);
        }
        let matrix = DMatrix::from_fn(corners.len(), corners.len(), |r, c| {
            if r == 0 { 1.0 } else { corners[c].0[axes[r - 1]] }
        });
        let target =
            DVector::from_fn(corners.len(), |r, _| if r == 0 { 1.0 } else { at[axes[r - 1]] });
        let Some(shares) = matrix.lu().solve(&target) else { return self.nearest(point) };
        let mix = |value: &dyn Fn(&Reading) -> Option<f64>| -> Option<f64> {
            let values: Vec<f64> =
                corners.iter().map(|(_, r)| value(r).map(f64::ln)).collect::<Option<_>>()?;
            let mixed: f64 = values.iter().zip(shares.iter()).map(|(v, s)| v * s).sum();
            let (low, high) = values
                .iter()
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
            Some(mixed.clamp(low, high).exp())
        };
        let nearest = self.nearest(point);
        (
            mix(&|r| Some(r.per_sample.get())).map_or(nearest.0, Seconds::new),
            mix(&|r| r.power.map(|p| p.get())).map(Watts::new).or(nearest.1),
        )
    }
}
