//! Configurations as points of a unit cube.

use crate::reading::Point;

/// How many coordinates: batch per GPU, limit, GPUs, and how much of the traffic leaves a node.
pub(crate) const AXES: usize = 4;
/// Which of them is the power limit.
pub(crate) const LIMIT: usize = 1;

/// Coordinates of a configuration.
pub(crate) type Coordinates = [f64; AXES];

fn logs(point: &Point) -> Coordinates {
    let gpus = f64::from(point.gpus);
    let outside = 1.0 - 1.0 / f64::from(point.nodes.max(1));
    [(point.batch / gpus).ln(), point.limit.get().ln(), gpus.ln(), outside]
}

/// Maps known configurations to the unit cube, others to its surroundings.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    low: Coordinates,
    width: Coordinates,
}

impl Scale {
    pub(crate) fn new<'a>(points: impl Iterator<Item = &'a Point>) -> Self {
        let mut low = [f64::INFINITY; AXES];
        let mut high = [f64::NEG_INFINITY; AXES];
        for point in points {
            for (axis, value) in logs(point).into_iter().enumerate() {
                low[axis] = low[axis].min(value);
                high[axis] = high[axis].max(value);
            }
        }
        let mut width = [1.0; AXES];
        for axis in 0..AXES {
            if high[axis] > low[axis] {
                width[axis] = high[axis] - low[axis];
            }
        }
        Self { low, width }
    }

    pub(crate) fn apply(&self, point: &Point) -> Coordinates {
        let mut at = logs(point);
        for (axis, value) in at.iter_mut().enumerate() {
            *value = (*value - self.low[axis]) / self.width[axis];
        }
        at
    }
}

/// Squared differences along each axis.
pub(crate) fn squares(a: &Coordinates, b: &Coordinates) -> Coordinates {
    std::array::from_fn(|axis| (a[axis] - b[axis]) * (a[axis] - b[axis]))
}
