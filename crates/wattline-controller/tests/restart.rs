//! How long a restart takes, with and without a snapshot. Measured on demand:
//! `cargo test --release -p wattline-controller --test restart -- --ignored --nocapture`
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use wattline_controller::journal::{Keep, Store};
use wattline_controller::{Controller, Emulated, InitialState, InlinePlanner, SnapshotSchedule};
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;
use wattline_sim::scenario::Scenario;

/// How far the cluster is in the meantime.
const SECONDS_PER_TURN: f64 = 15.0;

/// 400 GPUs that are well used.
fn instance(jobs: u32) -> Instance {
    let text = format!(
        "name = \"restart\"\nseed = 1\n[[nodes]]\ncount = 50\ngpu = \"h200\"\ngpus = 8\n\
         [jobs]\ncount = {jobs}\nload = 0.8\nelasticity = \"malleable\"\n\
         deadlines = {{ share = 0.7, tightest = 1.5, loosest = 4.0 }}\n"
    );
    Scenario::parse(&text, "restart").unwrap().instance("restart", None).unwrap()
}

fn policy() -> String {
    std::env::var("WATTLINE_POLICY").unwrap_or_else(|_| "wattline".to_owned())
}

fn open(instance: &Instance, path: &Path) -> Controller<Emulated> {
    let (engine, world) = wattline_sim::begin::begin(instance, &policy(), false).unwrap();
    let engine = engine.into_engine();
    let initial = InitialState { engine, workloads: Vec::new(), at: instance.start };
    let policy = wattline_policies::policy(&policy()).unwrap();
    let planner = Box::new(InlinePlanner::new("measured", policy));
    let store = Store::open(path, &[]).unwrap();
    let cluster = Emulated::new(world, instance.start);
    Controller::open_emulated(initial, store, cluster, planner).unwrap()
}

#[test]
#[ignore = "takes minutes; for measuring"]
fn restart() {
    let wanted = std::env::var("WATTLINE_ENTRIES").map_or(100_000, |n| n.parse().unwrap());
    let instance = instance(200_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut controller = open(&instance, &path);
    let (mut entries, mut saving, mut saves, mut longest) = (0, 0.0, 0, 0.0_f64);
    let mut cluster_clock = SnapshotSchedule::default();
    let (began, mut now) = (Instant::now(), instance.start);
    while entries < wanted {
        now = now + Seconds::new(SECONDS_PER_TURN);
        let arrived = controller.engine().state().job_count();
        for job in instance.jobs[arrived..].iter().take_while(|job| job.submit <= now) {
            controller.intake().submit_job(now, Arc::clone(job)).unwrap();
        }
        let begins = Instant::now();
        controller.turn(now).unwrap();
        cluster_clock.turned(begins.elapsed());
        if cluster_clock.is_due(controller.entries_to_read()) {
            let begins = Instant::now();
            controller.save(&Keep::default()).unwrap();
            cluster_clock.saved(begins.elapsed());
            let took = begins.elapsed().as_secs_f64();
            (saving, saves, longest) = (saving + took, saves + 1, longest.max(took));
        }
        entries = controller.intake().journal(Store::len);
    }
    let state = controller.engine().state();
    let (jobs, running) = (state.job_count(), state.held_jobs());
    let knew = controller.digest();
    println!(
        "{}: {entries} entries, {:.0} days, {jobs} jobs ({running} running) in {:.0} s; {saves} snapshots: \
         {:.3} s each, {longest:.3} s at most",
        policy(),
        now.since(instance.start).get() / 86_400.0,
        began.elapsed().as_secs_f64(),
        saving / f64::from(saves),
    );
    drop(controller);
    println!("journal: {:.1} MB", std::fs::metadata(&path).unwrap().len() as f64 / 1e6);
    let begins = Instant::now();
    let controller = open(&instance, &path);
    let took = begins.elapsed().as_secs_f64();
    let read = entries - controller.opened().after;
    println!("restart with snapshots: {took:.2} s, {read} entries read");
    assert!(controller.digest() == knew);
    drop(controller);
    let size = "SELECT length(image) FROM snapshot ORDER BY number DESC LIMIT 1";
    let connection = rusqlite::Connection::open(&path).unwrap();
    let size: i64 = connection.query_row(size, (), |row| row.get(0)).unwrap();
    println!("snapshot: {:.2} MB", size as f64 / 1e6);
    connection.execute("DELETE FROM snapshot", ()).unwrap();
    drop(connection);
    let begins = Instant::now();
    let controller = open(&instance, &path);
    println!("restart without: {:.2} s", begins.elapsed().as_secs_f64());
    assert!(controller.digest() == knew);
}
