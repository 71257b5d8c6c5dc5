//! `wattline policies`: what can be asked for.

use crate::failure::Result;
use crate::output;
use serde::Serialize;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print JSON (schema wattline.policies/1)
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listing {
    schema: &'static str,
    policies: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    about: &'static str,
    options: &'static str,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let entries = wattline_policies::POLICIES.iter().map(|p| Entry {
        name: p.name,
        about: p.about,
        options: p.options,
    });
    if args.json {
        let policies = entries.collect();
        return output::json(&Listing { schema: "wattline.policies/1", policies });
    }
    let rows = entries.map(|p| [p.name, p.about, p.options].map(str::to_owned).to_vec()).collect();
    output::text(&output::table(&["policy", "what it does", "options"], rows))
}
