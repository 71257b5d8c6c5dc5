//! What runs say about themselves, made into measurements.

use super::Slurm;
use super::progress::{self, Said};
use super::read::SlurmJob;
use crate::backend::{Known, News};
use wattline_core::Timestamp;
use wattline_core::cluster::NodeDraw;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::job::Work;
use wattline_core::placement::{Configuration, Placement};
use wattline_core::predictor::Measurement;
use wattline_core::state::JobState;
use wattline_core::units::{Seconds, Watts};

/// Less than this is no stretch to measure.
const LEAST: Seconds = Seconds::new(1.0);

/// A stretch of a run that is being measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    configuration: Configuration,
    since: Timestamp,
    done: f64,
    /// Watts of a GPU, added up, and how often.
    power: (f64, u32),
}

impl Slurm {
    /// What a job says about itself.
    pub(super) fn said(&self, job: &SlurmJob) -> Option<Said> {
        progress::read(self.site.config.progress.as_deref()?, job.key.id, job.user_id)
    }

    /// How far a running job is, and how fast, if it is time to say so or it is its end.
    pub(super) fn measure(
        &mut self,
        now: Timestamp,
        id: JobId,
        job: &SlurmJob,
        known: Known<'_>,
        ends: bool,
        news: &mut Vec<News>,
    ) {
        let state = known.engine.state().job(id);
        let Some(held) = &state.held else { return };
        let Some(said) = self.said(job) else { return };
        let at = said.at.map_or(now, |at| Timestamp::from_seconds(at).min(now));
        let power = self.gpu_power(held, known);
        let fresh = Stretch {
            configuration: held.configuration,
            since: at,
            done: said.done,
            power: (0.0, 0),
        };
        let stretch = self.stretches.entry(id).or_insert(fresh);
        if let Some(watts) = power {
            stretch.power = (stretch.power.0 + watts.get(), stretch.power.1 + 1);
        }
        let stretch = *stretch;
        if stretch.configuration != held.configuration || said.done < stretch.done {
            self.stretches.insert(id, fresh);
            return;
        }
        let seconds = at.since(stretch.since);
        let due = seconds >= self.site.config.measure_every || ends;
        if !due || seconds < LEAST || said.done <= stretch.done {
            return;
        }
        self.stretches.insert(id, fresh);
        news.push(News::Event(Event::Progress { job: id, done: Work(said.done) }));
        let (sum, count) = stretch.power;
        news.push(News::Event(Event::Measured(Measurement {
            at,
            job: id,
            workload: state.job.workload,
            configuration: held.configuration,
            node: held.allocation.only_node(),
            processed: Work(said.done - stretch.done),
            seconds,
            power: (count > 0).then(|| Watts::new(sum / f64::from(count))),
            noise_scale: None,
            load: None,
        })));
    }

    /// What each GPU of a job draws, if that follows from what its nodes draw: they say so, and
    /// nobody else is on them.
    fn gpu_power(&self, held: &Placement, known: Known<'_>) -> Option<Watts> {
        let (mut watts, mut gpus) = (0.0, 0);
        for share in held.allocation.shares() {
            let node = self.site.node(share.node);
            let NodeDraw::Additive { base } = &node.draw else { return None };
            let residents = &known.engine.state().node(share.node).held;
            if residents.mask() != share.mask {
                return None;
            }
            let drawn = self.meters.power(share.node)?;
            let idle = self.site.cluster.gpu_type(node.gpu_type).idle;
            let others = f64::from(u32::from(node.gpus) - share.count());
            watts += (drawn - *base - idle * others).get();
            gpus += share.count();
        }
        (gpus > 0 && watts > 0.0).then(|| Watts::new(watts / f64::from(gpus)))
    }

    /// What a job has saved when it left its GPUs. A job that was asked to go has saved all; of one
    /// that was lost only what it said is known to be.
    pub(super) fn saved(
        &self,
        now: Timestamp,
        job: &SlurmJob,
        state: &JobState,
        asked: bool,
    ) -> Work {
        let believed = if asked { state.done(now) } else { state.progress.done };
        let saved = self.said(job).map_or(believed.0, |said| {
            said.saved.unwrap_or(if asked {
                said.done
            } else {
                state.progress.done.0.min(said.done)
            })
        });
        Work(saved.min(state.job.work.0))
    }
}
