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
    let mut uncertain = uncertainty(&at);
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
        measure(&mut uncertain, next);
    }
    chosen
}

/// Indices of up to `count` of the candidates, the first to measure first: each is the one that
/// tells most about all candidates per GPU-second, given the `known` points and those before it.
///
/// Known points, and points equal to one already chosen, are not chosen again; nor are points whose
/// cost is not a positive number. The order of the candidates does not matter. Memory and the time
/// of each choice grow with the square of the number of points.
#[must_use]
pub fn choose_by_cost(
    candidates: &[Point],
    known: &[Point],
    gpu_seconds: impl Fn(&Point) -> f64,
    count: usize,
) -> Vec<usize> {
    let scale = Scale::new(candidates.iter().chain(known));
    // Sums depend on their order in the last digit, so everything is done in that of coordinates.
    // Known points come first among equals: then an equal candidate is seen to be known.
    let mut places: Vec<(Coordinates, Option<usize>)> = known
        .iter()
        .map(|p| (scale.apply(p), None))
        .chain(candidates.iter().enumerate().map(|(k, p)| (scale.apply(p), Some(k))))
        .collect();
    places.sort_by(|a, b| {
        let by_axis = (0..AXES).map(|axis| a.0[axis].total_cmp(&b.0[axis]));
        by_axis.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then).then(a.1.cmp(&b.1))
    });
    places.dedup_by(|next, first| next.0 == first.0);
    let at: Vec<Coordinates> = places.iter().map(|(at, _)| *at).collect();
    let mut uncertain = uncertainty(&at);
    for (k, _) in places.iter().enumerate().filter(|(_, (_, candidate))| candidate.is_none()) {
        measure(&mut uncertain, k);
    }
    // What is told about known points is of no use.
    let asked: Vec<usize> = (0..places.len()).filter(|k| places[*k].1.is_some()).collect();
    let mut open: Vec<(usize, usize, f64)> = asked
        .iter()
        .filter_map(|place| {
            let candidate = places[*place].1?;
            let cost = gpu_seconds(&candidates[candidate]);
            (cost.is_finite() && cost > 0.0).then_some((*place, candidate, cost))
        })
        .collect();
    let mut chosen = Vec::with_capacity(count.min(open.len()));
    while chosen.len() < count && !open.is_empty() {
        let worth = |(place, _, cost): &(usize, usize, f64)| {
            let told: f64 = asked.iter().map(|k| uncertain[(*k, *place)].powi(2)).sum();
            told / (uncertain[(*place, *place)] + NOISE * NOISE) / cost
        };
        let mut best = (0, worth(&open[0]));
        for (k, point) in open.iter().enumerate().skip(1) {
            let worth = worth(point);
            if worth > best.1 * (1.0 + 1e-9) {
                best = (k, worth);
            }
        }
        let (place, candidate, _) = open.remove(best.0);
        chosen.push(candidate);
        measure(&mut uncertain, place);
    }
    chosen
}

/// Covariances of what is not known, before anything was measured.
fn uncertainty(at: &[Coordinates]) -> DMatrix<f64> {
    DMatrix::from_fn(at.len(), at.len(), |r, c| {
        let far: f64 = squares(&at[r], &at[c]).iter().sum();
        (-0.5 * far / (REACH * REACH)).exp()
    })
}

/// What is left after a measurement there.
fn measure(uncertain: &mut DMatrix<f64>, at: usize) {
    let column = uncertain.column(at).clone_owned();
    let known = column[at] + NOISE * NOISE;
    *uncertain -= &column * column.transpose() / known;
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattline_core::units::Watts;

    fn point(gpus: u32, batch: f64, limit: f64) -> Point {
        Point { gpus, nodes: 1, batch, limit: Watts::new(limit) }
    }

    #[test]
    fn the_cheaper_of_two_equally_telling_points_is_chosen() {
        // Mirror images of each other along the limit, with the known point in the middle.
        let (low, middle, high) =
            (point(1, 64.0, 100.0), point(1, 64.0, 200.0), point(1, 64.0, 400.0));
        for cheap in [low, high] {
            let cost = |p: &Point| if *p == cheap { 10.0 } else { 20.0 };
            let chosen = choose_by_cost(&[low, high], &[middle], cost, 1);
            assert_eq!([low, high][chosen[0]], cheap);
        }
    }

    #[test]
    fn much_dearer_points_come_later_and_impossible_ones_never() {
        let all = [point(1, 64.0, 100.0), point(8, 64.0, 100.0), point(2, 64.0, 100.0)];
        let cost = |p: &Point| if p.gpus == 2 { f64::NAN } else { f64::from(p.gpus).powi(4) };
        assert_eq!(choose_by_cost(&all, &[], cost, 5), [0, 1]);
        assert!(choose_by_cost(&[], &[], |_| 1.0, 3).is_empty());
        assert!(choose_by_cost(&all, &all, |_| 1.0, 3).is_empty());
    }
}
