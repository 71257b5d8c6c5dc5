//! In which order a job's configurations are tried: the rule of ANDREAS's first-principle methods.

use super::UniformCap;
use wattline_core::cluster::Shape;
use wattline_core::placement::{Allocation, Configuration, Placement};
use wattline_core::plan::Reason;
use wattline_core::policy::ClusterView;
use wattline_core::state::JobState;
use wattline_core::units::{Seconds, Watts};

/// A configuration worth trying.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) shape: Shape,
    pub(crate) batch: u32,
    pub(crate) limit: Watts,
    /// Predicted time to the job's end.
    pub(crate) time: Seconds,
    /// Predicted power of each of its GPUs.
    pub(crate) power: Watts,
    /// It does not meet the job's deadline.
    pub(crate) late: bool,
    pub(crate) reason: Reason,
}

impl Choice {
    /// The choice on particular GPUs.
    pub(crate) fn placed(&self, on: Allocation) -> Placement {
        let configuration = Configuration {
            gpu_type: self.shape.gpu_type,
            gpus: self.shape.gpus,
            nodes: on.0.len() as u32,
            batch: self.batch,
            power_limit: self.limit,
        };
        Placement { configuration, allocation: on }
    }
}

/// The share of such runs that must end in time for a configuration to be one that meets a deadline.
const SURE_OF_DEADLINE: f64 = 0.8;

/// First the configurations that meet the deadline, by rising energy cost; then the others, by
/// rising time. All with the batch that was asked for, at the card's default limit or the cap, if
/// there is one.
pub(crate) fn choices(
    view: &ClusterView<'_>,
    job: &JobState,
    cap: Option<&UniformCap>,
    out: &mut Vec<Choice>,
) {
    list(view, job, (job.load_time(view.predictor), cap), out);
}

/// The same without a cap, where a start costs `load` before work goes on.
pub(crate) fn choices_after(
    view: &ClusterView<'_>,
    job: &JobState,
    load: Seconds,
    out: &mut Vec<Choice>,
) {
    list(view, job, (load, None), out);
}

fn list(
    view: &ClusterView<'_>,
    job: &JobState,
    (load, cap): (Seconds, Option<&UniformCap>),
    out: &mut Vec<Choice>,
) {
    out.clear();
    let cluster = view.state.cluster();
    let menu = view.state.menu(job.menu);
    let mut keyed: Vec<(bool, f64, Choice)> = Vec::with_capacity(menu.len());
    for &shape in menu.iter() {
        let mut configuration = cluster.plain_configuration(&job.job, shape);
        if let Some(cap) = cap {
            configuration.power_limit = cap.of(shape.gpu_type);
        }
        let Configuration { batch, power_limit: limit, .. } = configuration;
        let Some(prediction) = view.predictor.predict(&job.job, &configuration) else { continue };
        let time = job.remaining(view.now) / prediction.rate + load;
        // Where times are known for sure this is the time itself.
        let surely = time * prediction.time_quantile(SURE_OF_DEADLINE);
        let late = job.job.deadline.is_some_and(|deadline| view.now + surely > deadline);
        let key = if late {
            time.get()
        } else {
            (cluster.power_alone(shape, prediction.power) * time).get()
        };
        let reason = match (menu.len(), late) {
            (1, _) => Reason::AsRequested,
            (_, false) => Reason::CheapestInTime,
            (_, true) => Reason::FastestWhenLate,
        };
        let power = prediction.power;
        keyed.push((late, key, Choice { shape, batch, limit, time, power, late, reason }));
    }
    keyed.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    out.extend(keyed.into_iter().map(|(_, _, choice)| choice));
}
