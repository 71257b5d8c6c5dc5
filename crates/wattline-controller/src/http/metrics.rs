//! Figures for Prometheus.

use super::Api;
use crate::daemon::{Picture, Turns};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;
use wattline_api::Problem;
use wattline_core::units::Watts;

const KIND: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Figures for Prometheus, in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", responses(
    (status = 200, body = String, content_type = "application/openmetrics-text"),
    (status = "default", body = Problem)
))]
pub(super) async fn show(State(api): State<Api>) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(api.daemon.picture())));
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    ([(header::CONTENT_TYPE, KIND)], text).into_response()
}

struct Figures(Arc<Picture>);

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "figures of {}", self.0.at)
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let picture = &self.0;
        let mut gauge = |name: &str, help: &str, value: Option<f64>| -> fmt::Result {
            let Some(value) = value else { return Ok(()) };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge(
            "wattline_power_budget_watts",
            "What committed power must stay below",
            picture.budget_now.map(Watts::get),
        )?;
        gauge(
            "wattline_power_committed_watts",
            "What the cluster could draw at worst",
            Some(picture.committed.get()),
        )?;
        gauge(
            "wattline_power_measured_watts",
            "What the cluster draws",
            picture.drawn.map(Watts::get),
        )?;
        gauge(
            "wattline_jobs_waiting",
            "Jobs that hold no GPU and are not over",
            Some(picture.unfinished.len().saturating_sub(picture.running) as f64),
        )?;
        gauge("wattline_jobs_running", "Jobs that hold GPUs", Some(picture.running as f64))?;
        self.limits(&mut encoder)?;
        self.delays(&mut encoder)?;
        self.counters(&mut encoder)?;
        self.plans(&mut encoder)?;
        self.errors(&mut encoder)?;
        let build = [("version", env!("CARGO_PKG_VERSION"))];
        let help = "The program";
        let mut info = encoder.encode_descriptor("wattline_build", help, None, MetricType::Info)?;
        info.encode_info(&build)
    }
}

impl Figures {
    /// A GPU that nobody holds has no enforced limit of ours: it counts at its default one.
    fn limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let picture = &self.0;
        let name = "wattline_gpu_power_limit_watts";
        let help = "The limit that is counted for a GPU: set for the job on it, or its default";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (id, view) in picture.cluster.node_ids().zip(picture.nodes.iter()) {
            let node = picture.cluster.node(id);
            let default = picture.cluster.gpu_type(node.gpu_type).default_limit;
            for gpu in 0..node.gpus {
                let set = view.limits.iter().find(|(held, _)| *held == gpu);
                let (kind, limit) = set.map_or(("default", default), |(_, limit)| ("set", *limit));
                let number = gpu.to_string();
                let labels = [("node", &*node.name), ("gpu", number.as_str()), ("kind", kind)];
                let one = family.encode_family(&labels)?;
                ConstGauge::new(limit.get()).encode(one)?;
            }
        }
        Ok(())
    }

    fn delays(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let name = "wattline_delay_seconds";
        let help = "What the cluster usually takes to do what it is told, saving and loading apart";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (what, delay) in ["start", "restart", "stop"].iter().zip(self.0.delays) {
            let labels = [("action", *what)];
            let one = family.encode_family(&labels)?;
            ConstGauge::new(delay.get()).encode(one)?;
        }
        Ok(())
    }

    fn counters(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let picture = &self.0;
        let counter = MetricType::Counter;
        if let Some(energy) = picture.energy {
            let help = "What was drawn; all nodes together where single ones are not metered";
            let name = "wattline_energy_joules";
            let mut family = encoder.encode_descriptor(name, help, None, counter)?;
            let labels = [("node", "all")];
            let one = family.encode_family(&labels)?;
            ConstCounter::new(energy.get()).encode(one)?;
        }
        let (name, help) =
            ("wattline_budget_exceeded_seconds", "How long more than the budget was drawn");
        let seconds = ConstCounter::new(picture.over_budget.get());
        seconds.encode(encoder.encode_descriptor(name, help, None, counter)?)?;
        let (name, help) = ("wattline_deadlines_missed", "Jobs that ended after their deadline");
        let missed = ConstCounter::new(picture.tally.deadlines_missed);
        missed.encode(encoder.encode_descriptor(name, help, None, counter)?)?;
        let (name, help) = ("wattline_actions", "Steps towards the plan, by what came of them");
        let mut family = encoder.encode_descriptor(name, help, None, counter)?;
        for (kind, count) in &picture.tally.done {
            let labels = [("kind", *kind), ("outcome", "done")];
            let one = family.encode_family(&labels)?;
            ConstCounter::new(*count).encode(one)?;
        }
        let stats = picture.stats;
        for (outcome, count) in [("sent", stats.actions), ("failed", stats.failures)] {
            let labels = [("kind", "any"), ("outcome", outcome)];
            let one = family.encode_family(&labels)?;
            ConstCounter::new(count).encode(one)?;
        }
        Ok(())
    }

    fn plans(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let turns = &self.0.turns;
        let help = "A turn with a plan: hearing, planning, acting";
        let (name, kind) = ("wattline_plan_duration", MetricType::Histogram);
        let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
        // Each bucket by itself; they are added up when they are written.
        let mut before = 0;
        let mut buckets = Vec::new();
        for (bound, within) in Turns::BOUNDS.iter().zip(turns.within) {
            buckets.push((*bound, within - before));
            before = within;
        }
        buckets.push((f64::INFINITY, turns.plans - before));
        let sum = turns.plan_sum.as_secs_f64();
        metric.encode_histogram::<NoLabelSet>(sum, turns.plans, &buckets, None)
    }

    fn errors(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let errors = &self.0.tally.time_errors;
        if errors.is_empty() {
            return Ok(());
        }
        let mean = errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64;
        let help = "Mean of |realised / predicted - 1| over the last jobs that ended";
        let name = "wattline_prediction_error_ratio";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let labels = [("quantity", "time")];
        let one = family.encode_family(&labels)?;
        ConstGauge::new(mean).encode(one)
    }
}
