//! `wattline explain`: why a job is planned as it is, and what else it could be.

use crate::client::{Server, job_number};
use crate::commands::job;
use crate::failure::Result;
use crate::output::{self, duration, harmless};
use wattline_api::{Explanation, Placement, WeightParts};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The job's number
    job: String,
    /// Print JSON (schema wattline.explain/1)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: Server,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let path = format!("/v1/jobs/{}/explain", job_number(&args.job)?);
    let explained: Explanation = args.server.get(&path)?;
    if args.json {
        return output::json(&explained);
    }
    output::text(&text(&explained))
}

fn weight(parts: &WeightParts) -> String {
    let mut text = format!("{:.2} EUR/h", parts.said_eur_per_h);
    if let Some(qos) = &parts.qos {
        text += &format!(" x {:.2} for QOS {}", parts.qos_factor, harmless(qos));
    }
    if let Some(share) = parts.fairshare {
        let account = harmless(parts.account.as_deref().unwrap_or_default());
        let factor = parts.fairshare_factor;
        text += &format!(" x {factor:.2} for a fairshare of {share:.2} in account {account}");
    }
    text
}

fn text(explained: &Explanation) -> String {
    let place = |placement: &Option<Placement>| {
        placement.as_ref().map_or_else(
            || "nothing".to_owned(),
            |p| {
                let nodes: Vec<String> = p.on.iter().map(|on| harmless(&on.node)).collect();
                let (gpu, on) = (harmless(&p.gpu), nodes.join(" "));
                format!(
                    "{} {gpu} on {on}, {:.0} W each, batch {}",
                    p.gpus, p.power_limit_w, p.batch
                )
            },
        )
    };
    let mut text = job::text(&explained.job, explained.now_s);
    text += &format!(
        "\nholds        {}\nplan {:<7} {}\noutlook      {}\n",
        place(&explained.holds),
        explained.plan,
        place(&explained.planned),
        harmless(&explained.outlook)
    );
    if let Some(parts) = &explained.weight {
        text += &format!("weight       {}\n", weight(parts));
    }
    if explained.options.is_empty() {
        return text;
    }
    let dash = || "–".to_owned();
    let header = ["gpu", "gpus", "rest takes", "between", "and", "power", "kWh", "measured"];
    let rows = explained.options.iter().map(|option| {
        let [low, high] = option.left_between_s.map_or([None, None], |[a, b]| [Some(a), Some(b)]);
        vec![
            harmless(&option.gpu),
            option.gpus.to_string(),
            option.left_s.map_or_else(dash, duration),
            low.map_or_else(dash, duration),
            high.map_or_else(dash, duration),
            option.power_w.map_or_else(dash, |w| format!("{w:.0} W")),
            option.energy_kwh.map_or_else(dash, |e| format!("{e:.2}")),
            option.measurements.to_string(),
        ]
    });
    text + "\nWhat it could run on, at the default power limit:\n\n"
        + &output::table(&header, rows.collect())
}
