//! Small clusters for the controller's tests.

use std::path::Path;
use wattline_controller::{Beginning, Emulated, Policies, Watch};
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
pub(crate) fn begin(instance: &Instance, policy: &str) -> (Beginning, Emulated) {
    let begun = wattline_sim::begin::begin(instance, policy, false);
    let (engine, world) = begun.unwrap_or_else(|error| panic!("{error}"));
    let begin =
        Beginning { engine, workloads: Vec::new(), at: instance.start, policies: policies() };
    (begin, Emulated::new(world, instance.start))
}

/// Policies by name.
fn policies() -> Policies {
    Box::new(|name| match name {
        "watch" => Ok(Box::new(Watch)),
        name => wattline_policies::policy(name).map_err(|error| error.to_string()),
    })
}

/// A folder in memory, if there is one: what is tested is what is written, not the disk.
pub(crate) fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.unwrap_or_else(|error| panic!("{error}"))
}
