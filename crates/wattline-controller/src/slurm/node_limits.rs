//! What the largest nodes of the controlled partitions have, in a file beside the heartbeat.
//!
//! SLURM refuses a job that no node could ever run when it is submitted, but not one that is held,
//! which is how the gate takes jobs in. The gate cannot see nodes. So it reads this file, and refuses
//! such jobs itself; what it lets through is found by the controller and shown to the job's owner.

use super::seen::Seen;
use super::site::Site;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

/// Lines of "partition cpus memory gpus"; 0 says nothing.
pub(super) fn text(site: &Site, seen: &Seen) -> String {
    let mut text = String::new();
    for partition in &site.config.partitions {
        let there = seen.nodes.values().filter(|node| node.partitions.contains(partition));
        let nodes: Vec<_> = there.collect();
        let most = |of: &dyn Fn(&super::read::SlurmNode) -> u64| {
            nodes.iter().map(|node| of(node)).max().unwrap_or(0)
        };
        let shares = seen.rules.partitions.get(partition).is_some_and(|p| p.shares_cpus);
        let cpus = if shares { 0 } else { most(&|node| node.cpus.into()) };
        // One node that does not say how much memory it has may have any.
        let says = seen.rules.counts_memory && nodes.iter().all(|node| node.real_memory > 0);
        let memory = if says { most(&|node| node.real_memory) } else { 0 };
        let gpus = most(&|node| node.gpus.count.into());
        let _ = writeln!(text, "{partition} {cpus} {memory} {gpus}");
    }
    text
}

/// Writes it beside the heartbeat, at once.
pub(super) fn write(heartbeat: &Path, text: &str) -> io::Result<()> {
    let mut path = heartbeat.as_os_str().to_owned();
    path.push(".limits");
    let mut new = path.clone();
    new.push(".new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, path)
}
