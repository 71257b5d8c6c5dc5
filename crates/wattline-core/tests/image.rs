//! Numbers in an image are the very numbers, whatever they are.
#![allow(clippy::unwrap_used, missing_docs)]

use wattline_core::Timestamp;
use wattline_core::job::{Work, WorkRate};
use wattline_core::units::{Euros, Joules, Seconds, Watts};

#[test]
fn numbers_come_back_bit_by_bit() {
    let numbers =
        [0.0, -0.0, 1.0 / 3.0, -1e-310, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for number in numbers {
        let all = (
            Watts::new(number),
            Joules::new(number),
            Seconds::new(number),
            Euros::new(number),
            (Work(number), WorkRate(number)),
            Timestamp::from_micros(i64::MIN),
        );
        let bytes = rmp_serde::to_vec_named(&all).unwrap();
        let back: (Watts, Joules, Seconds, Euros, (Work, WorkRate), Timestamp) =
            rmp_serde::from_slice(&bytes).unwrap();
        let (watts, joules, seconds, euros, (work, rate), time) = back;
        for back in [watts.get(), joules.get(), seconds.get(), euros.get(), work.0, rate.0] {
            assert_eq!(back.to_bits(), number.to_bits());
        }
        assert_eq!(time, all.5);
    }
}
