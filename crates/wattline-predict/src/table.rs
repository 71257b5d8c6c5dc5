//! What to expect of a job's configurations that differ only in the power limit, worked out once.

use crate::model::{Curve, Expectation, Model};
use crate::reading::Point;
use wattline_core::cluster::GpuType;
use wattline_core::units::Watts;

/// The part of a model's own variance that is not the scatter of runs, at least.
const NOT_SCATTER: f64 = 0.3;

/// See the module's description.
pub(crate) struct Table {
    curve: Curve,
    /// At the limits we use, from the card's default down.
    default: f64,
    step: f64,
    at_steps: Box<[Expectation]>,
}

impl Table {
    pub(crate) fn new(model: &Model, card: &GpuType, point: &Point, scatter: f64) -> Self {
        let mut curve = model.curve(point);
        curve.scatter(scatter, NOT_SCATTER);
        let at_steps = card.limits_down().map(|limit| curve.at(limit)).collect();
        let (default, step) = (card.default_limit.get(), card.limit_step.get());
        Self { curve, default, step, at_steps }
    }

    pub(crate) fn at(&self, limit: Watts) -> Expectation {
        let place = (self.default - limit.get()) / self.step;
        let whole = place.fract() == 0.0 && place >= 0.0;
        let at_step = if whole { self.at_steps.get(place as usize) } else { None };
        // The lowest limit need not be a whole number of steps down; nor any limit a user sets.
        at_step.copied().unwrap_or_else(|| self.curve.at(limit))
    }
}
