//! Small problems whose optimum can be found: whole units of time, jobs that run without a break on
//! one node.

use serde::Serialize;
use thiserror::Error;

/// How a small node's power follows from what runs on it. Resting costs nothing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum SmallDraw {
    /// So many watts for each busy GPU.
    PerGpu(f64),
    /// Watts by the number of busy GPUs, from none (which must draw nothing) to all.
    Table(Vec<f64>),
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallNode {
    /// Which GPU type it has.
    pub kind: usize,
    /// How many GPUs.
    pub gpus: u8,
    /// What it draws.
    pub draw: SmallDraw,
}

/// One way to run a job: without a break on GPUs of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SmallWay {
    /// On which GPU type.
    pub kind: usize,
    /// On how many GPUs.
    pub gpus: u8,
    /// For how many units of time.
    pub time: u32,
}

/// A job; times in units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallJob {
    /// It cannot start before.
    pub release: u32,
    /// When it should be done.
    pub deadline: u32,
    /// EUR per unit past the deadline.
    pub weight: f64,
    /// How it can run.
    pub ways: Vec<SmallWay>,
}

/// Machines and jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SmallProblem {
    /// What a unit of time is.
    pub unit_seconds: f64,
    /// What a joule costs when it is drawn, cooling included.
    pub euros_per_joule: f64,
    /// How many GPU types there are.
    pub kinds: usize,
    /// The machines.
    pub nodes: Vec<SmallNode>,
    /// The jobs.
    pub jobs: Vec<SmallJob>,
}

/// Why no optimum was looked for, or none was found.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ExactError {
    /// Too many jobs to look at all sets of them.
    #[error("{0} jobs are too many: at most {MOST_JOBS} can be solved exactly")]
    TooManyJobs(usize),
    /// A job that fits nowhere.
    #[error("job number {0} fits on no node")]
    NeverFits(usize),
    /// A node whose table does not fit it, or whose rest is not free, or whose power falls with
    /// more busy GPUs.
    #[error(
        "node number {0}: the table must have one entry more than the node has GPUs, begin with 0 \
         and never fall; a node has at most {MOST_GPUS} GPUs"
    )]
    Table(usize),
    /// More states than there is memory for.
    #[error("more than {0} states were looked at without an end; take fewer jobs")]
    TooHard(usize),
}

/// The most jobs of a problem: all sets of them are looked at.
pub const MOST_JOBS: usize = 10;
/// The most GPUs of a node.
pub const MOST_GPUS: usize = 4;

impl SmallNode {
    /// Watts with so many busy GPUs.
    #[must_use]
    pub fn watts(&self, busy: usize) -> f64 {
        match &self.draw {
            SmallDraw::PerGpu(watts) => watts * busy as f64,
            SmallDraw::Table(table) => table.get(busy).copied().unwrap_or(0.0),
        }
    }

    /// Whether a GPU draws the same whatever its neighbours do.
    #[must_use]
    pub fn is_additive(&self) -> bool {
        matches!(self.draw, SmallDraw::PerGpu(_))
    }

    fn is_sound(&self) -> bool {
        let size = usize::from(self.gpus);
        let table = match &self.draw {
            SmallDraw::PerGpu(watts) => watts.is_finite() && *watts >= 0.0,
            SmallDraw::Table(table) => table.len() == size + 1 && table[0] == 0.0,
        };
        let rises = (0..size).all(|busy| self.watts(busy) <= self.watts(busy + 1));
        table && rises && (1..=MOST_GPUS).contains(&size)
    }
}

impl SmallProblem {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// Says what does not.
    pub fn validate(&self) -> Result<(), ExactError> {
        if self.jobs.len() > MOST_JOBS {
            return Err(ExactError::TooManyJobs(self.jobs.len()));
        }
        if let Some(at) = self.nodes.iter().position(|node| !node.is_sound()) {
            return Err(ExactError::Table(at));
        }
        let fits = |job: &SmallJob| {
            let on = |way: &SmallWay| {
                way.time > 0
                    && way.gpus > 0
                    && self.nodes.iter().any(|n| n.kind == way.kind && n.gpus >= way.gpus)
            };
            job.ways.iter().any(on)
        };
        match self.jobs.iter().position(|job| !fits(job)) {
            Some(at) => Err(ExactError::NeverFits(at)),
            None => Ok(()),
        }
    }

    /// EUR for a power over a unit of time.
    #[must_use]
    pub fn euros_per_unit(&self, watts: f64) -> f64 {
        watts * self.unit_seconds * self.euros_per_joule
    }

    /// EUR for ending then.
    #[must_use]
    pub fn late(&self, job: usize, end: u32) -> f64 {
        let job = &self.jobs[job];
        job.weight * f64::from(end.saturating_sub(job.deadline))
    }
}
