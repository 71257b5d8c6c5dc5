//! How far readings may be from what is expected of them.
//!
//! A model says how much it does not know, as a variance. Whether that is right shows only where
//! readings were left out: how many of its own standard deviations hold 90 % of them. That
//! number is a formula, fitted to what came of leaving readings out, for groups that resemble each
//! other: those whose readings differ along as many axes and are as many. A group's own left-out readings are no help:
//! a dozen of them do not tell whether the next ones are further off (over 75 sets of readings, a
//! correlation of -0.1 with what would have been right).

/// Half of 90 % of a normal distribution, in standard deviations.
pub(crate) const HALF_OF_90: f64 = 1.645;
/// Two readings of a step that waits for the host differ by 15 % on average; a single one scatters
/// by √π/2 times that. Every step has its part of it by how much the host's pace shows in it.
const PACE: f64 = 0.133;
/// How many of a model's standard deviations hold 90 % of the readings that were left out, of time
/// and of power: with readings along one axis, and by how much more with each further axis, which
/// falls with the number of readings to this power (few readings along many axes agree with wrong
/// formulas too). These are the calibration, set on the files in [`SET_ON`].
const REACH: [(f64, f64); 2] = [(1.0, 1.5), (1.5, 0.4)];
const FALLS: f64 = 0.75;
/// How errors of time and power go together in groups that were read under one power limit, and in
/// groups that were read under several. A GPU that waits longer than expected draws less; where
/// other limits were read, what is left is mostly the luck of a run.
const TOGETHER: (f64, f64) = (-0.8, -0.2);

/// The files that the calibration was set on. Of the others one figure was seen before it was final:
/// coverage of cifar10 with 24 readings.
pub const SET_ON: [&str; 5] =
    ["h200", "h200-repeat", "zeus-v100", "pollux-t4-bert", "pollux-t4-deepspeech2"];

/// What makes groups alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alike {
    /// Along how many axes the readings differ.
    pub(crate) axes: usize,
    /// Whether the power limit is one of them.
    pub(crate) limits: bool,
    /// How many there are.
    pub(crate) readings: usize,
}

/// What a model does not know about time and power, in logarithms.
pub(crate) struct Unknown {
    pub(crate) variances: [f64; 2],
    /// How much of a change of the host's pace shows.
    pub(crate) host: [f64; 2],
}

/// How far 90 % of all readings of time, power and energy lie from what is expected, in logarithms.
/// `alike` is `None` where there are no readings, and what is believed is all there is.
pub(crate) fn within(unknown: &Unknown, alike: Option<Alike>) -> [f64; 3] {
    let half = |quantity: usize| {
        let pace = PACE * unknown.host[quantity];
        let reach = alike.map_or(HALF_OF_90, |alike| {
            let (one_axis, more) = REACH[quantity];
            let beyond =
                alike.axes.saturating_sub(1) as f64 / (alike.readings.max(1) as f64).powf(FALLS);
            one_axis * (1.0 + more * beyond)
        });
        reach * (unknown.variances[quantity] + pace * pace).sqrt()
    };
    let (time, power) = (half(0), half(1));
    let several = alike.is_some_and(|alike| alike.limits);
    let together = if several { TOGETHER.1 } else { TOGETHER.0 };
    let energy = time * time + power * power + 2.0 * together * time * power;
    [time, power, energy.max(0.0).sqrt()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNKNOWN: Unknown = Unknown { variances: [4e-4, 4e-4], host: [0.0, 0.0] };
    const ALIKE: Alike = Alike { axes: 2, limits: true, readings: 12 };

    #[test]
    fn fewer_readings_and_more_axes_make_intervals_wider() {
        let usual = within(&UNKNOWN, Some(ALIKE));
        let few = within(&UNKNOWN, Some(Alike { readings: 3, ..ALIKE }));
        let many_axes = within(&UNKNOWN, Some(Alike { axes: 3, ..ALIKE }));
        for quantity in 0..3 {
            assert!(few[quantity] > 1.1 * usual[quantity], "{few:?} of {usual:?}");
            assert!(many_axes[quantity] > 1.02 * usual[quantity], "{many_axes:?} of {usual:?}");
        }
    }

    #[test]
    fn a_step_that_waits_for_its_host_is_less_sure_in_time_than_in_energy() {
        let waiting = Unknown { host: [1.0, -0.7], ..UNKNOWN };
        let (usual, waiting) = (
            within(&UNKNOWN, Some(ALIKE)),
            within(&waiting, Some(Alike { limits: false, ..ALIKE })),
        );
        assert!(waiting[0] > 3.0 * usual[0], "{waiting:?} of {usual:?}");
        assert!(waiting[2] < waiting[0], "{waiting:?}");
    }

    #[test]
    fn energy_is_neither_surer_than_it_can_be_nor_less_sure() {
        for limits in [false, true] {
            for axes in 0..5 {
                let alike = Some(Alike { axes, limits, readings: 4 });
                let [time, power, energy] = within(&UNKNOWN, alike);
                assert!((time - power).abs() <= energy && energy <= time + power);
            }
        }
    }
}
