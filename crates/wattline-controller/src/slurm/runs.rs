//! What runs say about themselves, made into measurements.

use super::Slurm;
use super::measurement_window::{MeasurementWindow, Report};
use super::progress::Said;
use super::read::SlurmJob;
use crate::backend::{BackendEvent, Known};
use wattline_core::Timestamp;
use wattline_core::cluster::NodeDraw;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::job::Work;
use wattline_core::placement::Placement;
use wattline_core::predictor::Measurement;
use wattline_core::state::JobState;
use wattline_core::units::Watts;

impl Slurm {
    /// What a job says about itself.
    pub(super) fn said(&self, job: &SlurmJob) -> Option<Said> {
        self.seen.as_ref()?.said.get(&job.key.id).copied()
    }

    /// How far a running job is, and how fast, if it is time to say so or it is its end.
    pub(super) fn measure(
        &mut self,
        now: Timestamp,
        id: JobId,
        job: &SlurmJob,
        known: Known<'_>,
        ends: bool,
        news: &mut Vec<BackendEvent>,
    ) {
        let Some(state) = known.engine.state().find_job(id) else { return };
        let Some(held) = &state.held else { return };
        let Some(said) = self.said(job) else { return };
        let at = said.at.map_or(now, |at| Timestamp::from_seconds(at).min(now));
        let report = Report { at, done: said.done };
        let power = self.gpu_power(held, known);
        let configuration = held.configuration;
        let window =
            self.windows.entry(id).or_insert_with(|| MeasurementWindow::new(configuration, now));
        if window.configuration != configuration || window.is_behind(report) {
            *window = MeasurementWindow::new(configuration, now);
        }
        let measured = if ends {
            window.end(report)
        } else {
            window.heard(report, power);
            window.due(self.site.config.measure_every)
        };
        let Some(measured) = measured else { return };
        news.push(BackendEvent::Event(Event::Progress { job: id, done: Work(said.done) }));
        news.push(BackendEvent::Event(Event::Measured(Measurement {
            at: measured.until,
            job: id,
            workload: state.job.workload,
            configuration,
            node: held.allocation.only_node(),
            processed: Work(measured.processed),
            seconds: measured.seconds,
            power: measured.power,
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
