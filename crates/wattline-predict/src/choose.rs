//! Which configurations to measure first: those that tell most about all the others.

use crate::features::{AXES, Coordinates, Scale, squares};
use crate::reading::Point;
use nalgebra::DMatrix;

/// How far a measurement reaches, in the unit cube, and how noisy it is taken to be.
const REACH: f64 = 0.6;
const NOISE: f64 = 0.05;

/// Indices of up to `count` of the candidates, the most telling first: the lowest corner, the
/// highest corner, and then whichever leaves the least uncertainty over all candidates. Values need
/// not be known, and the order of the candidates does not matter.
#[must_use]
pub fn choose(candidates: &[Point], count: usize) -> Vec<usize> {
    if candidates.is_empty() {
        return Vec::new();
    }
    let scale = Scale::new(candidates.iter());
    let at: Vec<Coordinates> = candidates.iter().map(|p| scale.apply(p)).collect();
    let size = at.len();
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|a, b| {
        let by_axis = (0..AXES).map(|axis| at[*a][axis].total_cmp(&at[*b][axis]));
        by_axis.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
    });
    let mut uncertain = DMatrix::from_fn(size, size, |r, c| {
        let far: f64 = squares(&at[r], &at[c]).iter().sum();
        (-0.5 * far / (REACH * REACH)).exp()
    });
    let mut chosen: Vec<usize> = Vec::with_capacity(count.min(size));
    while chosen.len() < count.min(size) {
        let corner = |k: usize| at[k].iter().sum::<f64>();
        let gain = |k: usize| match chosen.len() {
            0 => -corner(k),
            1 => corner(k),
            _ => {
                let column = uncertain.column(k);
                column.norm_squared() / (uncertain[(k, k)] + NOISE * NOISE)
            }
        };
        // Equal gains go to the first in the order of coordinates, whatever the order of rows.
        let mut best: Option<(f64, usize)> = None;
        for &k in order.iter().filter(|k| !chosen.contains(k)) {
            let gain = gain(k);
            if best.is_none_or(|(most, _)| gain > most + 1e-9 * most.abs()) {
                best = Some((gain, k));
            }
        }
        let Some((_, next)) = best else { break };
        chosen.push(next);
        let column = uncertain.column(next).clone_owned();
        let known = column[next] + NOISE * NOISE;
        uncertain -= &column * column.transpose() / known;
    }
    chosen
}
