//! All that a controller knows, as bytes, and a controller that goes on from them.

use super::ControllerError;
use super::replica::{Replica, Sent};
use crate::desk::{Counts, Desk, Ledger};
use crate::directory::Directory;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use wattline_core::Timestamp;
use wattline_core::action::Action;
use wattline_core::engine::EngineImage;
use wattline_core::ids::JobId;
use wattline_core::image::ImageError;
use wattline_core::job::Job;

/// See [`Replica`] and [`Counts`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    engine: EngineImage,
    /// The policy that made the last decision.
    last_policy: Option<Box<str>>,
    directory: Directory,
    now: Timestamp,
    next_report: u64,
    sent: Vec<(Action, Option<Timestamp>)>,
    counts: Counts,
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
    counts: Counts,
    backend: Vec<u8>,
) -> Result<Vec<u8>, ImageError> {
    // What was learned is for those who live now.
    let Replica {
        engine,
        last_policy,
        directory,
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
        directory: directory.clone(),
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
    desk: &Desk,
    replica: &mut Replica,
    mut cluster: impl FnMut(&[u8], Jobs<'_>) -> Result<(), ImageError>,
) -> Result<Opened, ControllerError> {
    let mut ledger = desk.ledger();
    let Ledger { store, counts, .. } = &mut *ledger;
    let mut opened = Opened::default();
    for saved in store.saved()? {
        let outcome = match store.recall(saved)? {
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
    counts: &mut Counts,
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
    replica.directory = image.directory.looked_up();
    replica.now = image.now;
    replica.next_report = image.next_report;
    let sent = image.sent.into_iter().map(|(action, at)| (action.id, Sent { action, at }));
    replica.sent = sent.collect();
    *counts = image.counts;
    Ok(())
}
