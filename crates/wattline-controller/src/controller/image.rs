//! All that a controller knows, as bytes, and a controller that goes on from them.

use super::ControllerError;
use super::replica::{Replica, Sent};
use crate::job_registry::JobRegistry;
use crate::request_intake::{IdCounters, JournalWriter, RequestIntake};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::engine::EngineImage;
use wattline_core::ids::JobId;
use wattline_core::image::ImageError;
use wattline_core::job::Job;

/// See [`Replica`] and [`IdCounters`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    engine: EngineImage,
    /// The policy that made the last decision.
    last_policy: Option<Box<str>>,
    registry: JobRegistry,
    now: Timestamp,
    next_report: u64,
    sent: Vec<(Action, Option<Timestamp>)>,
    counts: IdCounters,
    /// Of the cluster, if it dies with its controller.
    #[serde(with = "serde_bytes")]
    backend: Vec<u8>,
}

/// What a controller began with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// The number of the last entry that it did not have to read: the snapshot's; 0 for none.
    pub after: u64,
    /// Newer snapshots that could not be used, by number, and why.
    pub refused: Vec<(u64, String)>,
}

/// The jobs that the controller knew.
type Jobs<'a> = &'a dyn Fn(JobId) -> Option<Arc<Job>>;

pub(super) fn of(
    replica: &Replica,
    counts: IdCounters,
    backend: Vec<u8>,
) -> Result<Vec<u8>, ImageError> {
    // What was learned is for those who live now.
    let Replica {
        engine,
        last_policy,
        registry,
        now,
        next_report,
        sent,
        learned: _,
        // What has ended is filed before a snapshot is taken.
        ended: _,
        drawn_later: _,
    } = replica;
    let image = Image {
        engine: engine.image(),
        last_policy: last_policy.clone(),
        registry: registry.clone(),
        now: *now,
        next_report: *next_report,
        sent: sent.values().map(|sent| (sent.action.clone(), sent.at)).collect(),
        counts,
        backend,
    };
    rmp_serde::to_vec_named(&image).map_err(|error| ImageError::Unreadable(error.to_string()))
}

/// Puts everything as the newest sound snapshot has it; as it was, if there is none.
pub(super) fn load_snapshot(
    intake: &RequestIntake,
    replica: &mut Replica,
    mut cluster: impl FnMut(&[u8], Jobs<'_>) -> Result<(), ImageError>,
) -> Result<Opened, ControllerError> {
    let mut writer = intake.writer();
    let JournalWriter { store, counts, .. } = &mut *writer;
    let mut opened = Opened::default();
    for saved in store.saved()? {
        let outcome = match store.load_snapshot(saved)? {
            Ok(bytes) => put_back(&bytes, replica, counts, &mut cluster),
            Err(why) => Err(ImageError::Unreadable(why)),
        };
        match outcome {
            Ok(()) => {
                opened.after = saved.number;
                return Ok(opened);
            }
            Err(why) => opened.refused.push((saved.number, why.to_string())),
        }
    }
    // Then from the beginning, if it is there.
    store.whole()?;
    Ok(opened)
}

/// All or nothing.
fn put_back(
    bytes: &[u8],
    replica: &mut Replica,
    counts: &mut IdCounters,
    cluster: &mut impl FnMut(&[u8], Jobs<'_>) -> Result<(), ImageError>,
) -> Result<(), ImageError> {
    let image: Image =
        rmp_serde::from_slice(bytes).map_err(|error| ImageError::Unreadable(error.to_string()))?;
    let before = replica.engine.image();
    let jobs: BTreeMap<JobId, Arc<Job>> =
        image.engine.jobs().map(|(id, job)| (id, Arc::clone(job))).collect();
    replica.engine.restore(image.engine)?;
    if let Err(error) = cluster(&image.backend, &|id| jobs.get(&id).cloned()) {
        replica.engine.restore(before)?;
        return Err(error);
    }
    replica.last_policy = image.last_policy;
    replica.registry = image.registry.looked_up();
    replica.now = image.now;
    replica.next_report = image.next_report;
    let sent = image.sent.into_iter().map(|(action, at)| (action.id, Sent { action, at }));
    replica.sent = sent.collect();
    *counts = image.counts;
    Ok(())
}
