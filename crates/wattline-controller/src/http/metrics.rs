//! Figures for Prometheus.

use super::Api;
use crate::daemon::{LoopStats, ReadModel};
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
    (status = "default", body = Problem, content_type = "application/problem+json")
))]
pub(super) async fn show(State(api): State<Api>) -> Response {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Figures(api.daemon.read_model())));
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    ([(header::CONTENT_TYPE, KIND)], text).into_response()
}

struct Figures(Arc<ReadModel>);

impl fmt::Debug for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "figures of {}", self.0.at)
    }
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let read_model = &self.0;
        let mut gauge = |name: &str, help: &str, value: Option<f64>| -> fmt::Result {
            let Some(value) = value else { return Ok(()) };
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge(
            "wattline_power_budget_watts",
            "What committed power must stay below",
            read_model.budget_now.map(Watts::get),
        )?;
        gauge(
            "wattline_power_committed_watts",
            "What the cluster could draw at worst",
            Some(read_model.committed.get()),
        )?;
        gauge(
            "wattline_power_measured_watts",
            "What the cluster draws",
            read_model.drawn.map(Watts::get),
        )?;
        gauge(
            "wattline_jobs_waiting",
            "Jobs that hold no GPU and are not over",
            Some(read_model.unfinished.len().saturating_sub(read_model.running) as f64),
        )?;
        gauge("wattline_jobs_running", "Jobs that hold GPUs", Some(read_model.running as f64))?;
        gauge(
            "wattline_plan_effort_ratio",
            "How much of their usual work plans may do, so that they are there in time",
            Some(read_model.effort.get()),
        )?;
        self.limits(&mut encoder)?;
        self.energy(&mut encoder)?;
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
    /// A GPU whose limit nobody reads back has none of ours in force: it counts at its default one.
    fn limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let read_model = &self.0;
        let name = "wattline_gpu_power_limit_watts";
        let help = "The power limit of a GPU: planned, enforced as read back, or its default";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let nodes = read_model.cluster.node_ids().zip(read_model.nodes.iter());
        for ((id, view), gauge) in nodes.zip(read_model.gauges.iter()) {
            let node = read_model.cluster.node(id);
            let default = read_model.cluster.gpu_type(node.gpu_type).default_limit;
            for gpu in 0..node.gpus {
                let of = |limits: &[(u8, Watts)]| {
                    limits.iter().find(|(number, _)| *number == gpu).map(|(_, limit)| *limit)
                };
                let (kind, limit) =
                    of(&gauge.limits).map_or(("default", default), |limit| ("enforced", limit));
                let planned = of(&view.planned_limits).map(|limit| ("planned", limit));
                let number = gpu.to_string();
                for (kind, limit) in [(kind, limit)].into_iter().chain(planned) {
                    let labels = [("node", &*node.name), ("gpu", number.as_str()), ("kind", kind)];
                    let one = family.encode_family(&labels)?;
                    ConstGauge::new(limit.get()).encode(one)?;
                }
            }
        }
        Ok(())
    }

    fn energy(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let read_model = &self.0;
        let help = "What a node has drawn, where it is metered";
        let (name, counter) = ("wattline_energy_joules", MetricType::Counter);
        let mut family = encoder.encode_descriptor(name, help, None, counter)?;
        for (id, gauge) in read_model.cluster.node_ids().zip(read_model.gauges.iter()) {
            if let Some(energy) = gauge.energy {
                let labels = [("node", &*read_model.cluster.node(id).name)];
                let one = family.encode_family(&labels)?;
                ConstCounter::new(energy.get()).encode(one)?;
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
        let read_model = &self.0;
        let counter = MetricType::Counter;
        let (name, help) =
            ("wattline_budget_exceeded_seconds", "How long more than the budget was drawn");
        let seconds = ConstCounter::new(read_model.over_budget.get());
        seconds.encode(encoder.encode_descriptor(name, help, None, counter)?)?;
        let (name, help) = ("wattline_deadlines_missed", "Jobs that ended after their deadline");
        let missed = ConstCounter::new(read_model.prediction_errors.deadlines_missed);
        missed.encode(encoder.encode_descriptor(name, help, None, counter)?)?;
        let (name, help) = ("wattline_actions", "Steps towards the plan, by what came of them");
        let mut family = encoder.encode_descriptor(name, help, None, counter)?;
        let outcomes = &read_model.stats.outcomes;
        let sent = outcomes.handed_out().map(|(kind, count)| (kind, "sent", count));
        let ended = outcomes.counts().map(|(kind, outcome, count)| (kind, outcome.name(), count));
        for (kind, outcome, count) in sent.chain(ended) {
            let labels = [("kind", kind), ("outcome", outcome)];
            let one = family.encode_family(&labels)?;
            ConstCounter::new(count).encode(one)?;
        }
        let (name, help) = ("wattline_plans_refused", "Plans that the checker refused");
        let refused = ConstCounter::new(read_model.stats.refused);
        refused.encode(encoder.encode_descriptor(name, help, None, counter)?)
    }

    fn plans(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let turns = &self.0.turns;
        let help = "A plan: taking in what was heard, planning, checking";
        let (name, kind) = ("wattline_plan_duration", MetricType::Histogram);
        let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), kind)?;
        // Each bucket by itself; they are added up when they are written.
        let mut before = 0;
        let mut buckets = Vec::new();
        for (bound, within) in LoopStats::BOUNDS.iter().zip(turns.within) {
            buckets.push((*bound, within - before));
            before = within;
        }
        buckets.push((f64::INFINITY, turns.plans - before));
        let sum = turns.plan_sum.as_secs_f64();
        metric.encode_histogram::<NoLabelSet>(sum, turns.plans, &buckets, None)
    }

    fn errors(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Mean of |realised / predicted - 1| over the last jobs that ended";
        let name = "wattline_prediction_error_ratio";
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (quantity, mean) in self.0.prediction_errors.errors() {
            let labels = [("quantity", quantity.name())];
            let one = family.encode_family(&labels)?;
            ConstGauge::new(mean).encode(one)?;
        }
        Ok(())
    }
}
