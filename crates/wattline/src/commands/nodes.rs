//! `wattline nodes`: the nodes of a controller.

use crate::client::Server;
use crate::failure::Result;
use crate::output::{self, harmless};
use wattline_api::NodeList;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema wattline.nodes/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let list: NodeList = args.server.get("/v1/nodes")?;
    if args.json {
        return output::json(&list);
    }
    let header = ["node", "gpu", "held", "state", "plan", "jobs", "committed", "why"];
    let rows = list.nodes.iter().map(|node| {
        let jobs: Vec<String> = node.job_numbers.iter().map(|number| harmless(number)).collect();
        vec![
            harmless(&node.name),
            harmless(&node.gpu),
            format!("{} of {}", node.gpus_held, node.gpus),
            harmless(&node.state),
            harmless(&node.target),
            jobs.join(" "),
            format!("{:.0} W", node.committed_w),
            harmless(&node.why),
        ]
    });
    output::text(&output::table(&header, rows.collect()))
}
