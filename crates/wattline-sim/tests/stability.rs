//! What a run's figures say about the reservations that its policy gave.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::run;
use std::fmt::Write;
use std::fs;
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;
use wattline_sim::metrics::Summary;
use wattline_sim::replay::{ReplayOptions, replay};
use wattline_sim::trace::Format;

/// Jobs on one node of 8 GPUs, as a trace that states run times: minutes after midnight, GPUs,
/// minutes.
fn node(jobs: &[(u32, u32, u32)]) -> Instance {
    let mut text = "timestamp,duration,num_gpus,gpu_time,cluster\n".to_owned();
    for (submit, gpus, minutes) in jobs {
        let (hour, minute, seconds) = (submit / 60, submit % 60, minutes * 60);
        writeln!(text, "2026-01-05 {hour:02}:{minute:02}:00,{seconds},{gpus},0,a").unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    fs::write(&file, text).unwrap();
    let options = ReplayOptions {
        gpus: Some(8),
        deadline_slack: Some(3.0),
        restart: Seconds::ZERO,
        ..ReplayOptions::default()
    };
    replay(&file, Format::Philly, &options).unwrap().0
}

fn figures(summary: &Summary) -> (Option<u64>, Option<u64>, Option<f64>) {
    (summary.reservations, summary.reservations_moved, summary.reservations_moved_share)
}

#[test]
fn a_reservation_that_holds_is_none_that_moved() {
    // Four GPUs are busy for 10 h; a job of eight waits for them, one of four ends before.
    let site = node(&[(0, 4, 600), (10, 8, 60), (20, 4, 60)]);
    let held = run(&site, "fifo+backfill").summary;
    assert_eq!(figures(&held), (Some(1), Some(0), Some(0.0)));
    // Without backfill nobody is told a start, which is not the same as starts that hold.
    assert_eq!(figures(&run(&site, "fifo").summary), (None, None, None));
}

/// Under `edf` a job with an earlier deadline takes the place of one that was told a start.
#[test]
fn a_reservation_that_another_job_takes_is_counted() {
    let site = node(&[(0, 8, 600), (10, 8, 1200), (20, 8, 300)]);
    let summary = run(&site, "edf+backfill").summary;
    let (given, moved, share) = figures(&summary);
    assert_eq!((given, moved), (Some(2), Some(1)), "the job of 20 h starts 5 h later than told");
    // One of the two jobs that waited then, over all plans made while a job waited.
    assert!(share.unwrap() > 0.0 && share.unwrap() <= 1.0, "{share:?}");
    let fair = run(&site, "fifo+backfill").summary;
    assert_eq!(figures(&fair), (Some(2), Some(0), Some(0.0)));
}

/// Rigid jobs that may not be moved get reservations from `wattline`.
#[test]
fn wattline_tells_reservations_of_rigid_jobs() {
    let jobs: Vec<_> = (0..60).map(|n| (n, 1 + n * 5 % 8, 30 + n * 37 % 400)).collect();
    let summary = run(&node(&jobs), "wattline").summary;
    assert_eq!(summary.finished, 60);
    let (given, moved, share) = figures(&summary);
    assert!(given.unwrap() > 0 && moved.is_some());
    assert!((0.0..=1.0).contains(&share.unwrap()), "{share:?}");
}
