//! Small clusters for the controller's tests.

use std::path::Path;
use wattline_controller::{Emulated, InitialState, InlinePlanner, Planner, Watch};
use wattline_core::policy::Policy;
use wattline_core::units::Seconds;
use wattline_sim::instance::Instance;
use wattline_sim::scenario::Scenario;
use wattline_world::faults::Faults;

/// Three nodes and a few short jobs, some of which fail to start; every other one with a budget,
/// and on every fifth nodes are lost and come back.
pub(crate) fn instance(seed: u64) -> Instance {
    let budget = if seed.is_multiple_of(2) { "[budget]\nshare_of_peak = 0.7\n" } else { "" };
    let text = format!(
        "name = \"faults\"\nseed = {seed}\n\
         [[nodes]]\ncount = 3\ngpu = \"h200\"\ngpus = 2\n\
         [jobs]\ncount = 8\nload = 0.9\nelasticity = \"malleable\"\n\
         duration = {{ median = \"4 min\", sigma = 0.7, min = \"1 min\", max = \"15 min\" }}\n\
         gpus = [{{ count = 1, share = 0.6 }}, {{ count = 2, share = 0.4 }}]\n\
         deadlines = {{ share = 0.7, tightest = 1.5, loosest = 4.0 }}\n{budget}"
    );
    let scenario = Scenario::parse(&text, "faults").unwrap_or_else(|error| panic!("{error}"));
    let mut instance = scenario.instance("faults", None).unwrap_or_else(|error| panic!("{error}"));
    instance.world.action_failures = 0.05;
    if seed.is_multiple_of(5) {
        let (mean_time_between, repair) = (Seconds::new(3600.0), Seconds::new(300.0));
        instance.world.faults = Some(Faults { mean_time_between, repair });
    }
    instance.world.measure_every = Some(Seconds::new(60.0));
    instance
}

/// The engine and the cluster as they begin.
pub(crate) fn begin(instance: &Instance) -> (InitialState, Emulated) {
    let begun = wattline_sim::begin::begin(instance, "fifo", false);
    let (engine, world) = begun.unwrap_or_else(|error| panic!("{error}"));
    let engine = engine.into_engine();
    let initial = InitialState { engine, workloads: Vec::new(), at: instance.start };
    (initial, Emulated::new(world, instance.start))
}

/// Plans in line with the policy of that name.
pub(crate) fn planner(name: &str) -> Box<dyn Planner> {
    let policy: Box<dyn Policy> = match name {
        "watch" => Box::new(Watch),
        name => wattline_policies::policy(name).unwrap_or_else(|error| panic!("{error}")),
    };
    Box::new(InlinePlanner::new(name, policy))
}

/// A folder in memory, if there is one: what is tested is what is written, not the disk.
pub(crate) fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.unwrap_or_else(|error| panic!("{error}"))
}
