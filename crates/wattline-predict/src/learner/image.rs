//! The image of a learner: what was measured, and nothing that follows from it. Models are fitted
//! again when somebody asks; being functions of what was measured, they are the same.

use super::{Learner, Reports};
use crate::efficiency::NoiseScale;
use crate::known::{GroupKey, Known};
use crate::store::{LastReports, Run, StoreImage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use wattline_core::cluster::Cluster;
use wattline_core::ids::WorkloadId;
use wattline_core::image::{ImageError, require};
use wattline_core::predictor::Measurement;
use wattline_core::time::Timestamp;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LearnerImage {
    groups: Vec<(GroupKey, StoreImage)>,
    /// Noise scales, and times to load.
    reports: BTreeMap<WorkloadId, (LastReports, LastReports)>,
    imported: Run,
    newest: Timestamp,
    refused: u64,
    /// Why follows from what they say.
    refusals: Vec<Measurement>,
}

pub(super) fn save(learner: &Learner) -> Vec<u8> {
    // Named one by one, so that none is forgotten.
    let Learner { cluster: _, known, reports, usual_scale: _, imported, newest, refused, refusals } =
        learner;
    let reports = reports.iter().map(|(workload, reports)| {
        (*workload, (reports.noise_scales.clone(), reports.loads.clone()))
    });
    let image = LearnerImage {
        groups: known.lock().unwrap_or_else(PoisonError::into_inner).image(),
        reports: reports.collect(),
        imported: *imported,
        newest: *newest,
        refused: *refused,
        refusals: refusals.iter().map(|(measurement, _)| *measurement).collect(),
    };
    rmp_serde::to_vec_named(&image)
        .unwrap_or_else(|_| unreachable!("numbers and lists can be written to memory"))
}

pub(super) fn read(cluster: Arc<Cluster>, image: &[u8]) -> Result<Learner, ImageError> {
    let image: LearnerImage = rmp_serde::from_slice(image)
        .map_err(|error| ImageError::Unreadable(format!("what was learned: {error}")))?;
    let known = |(key, _): &(GroupKey, _)| key.1.index() < cluster.gpu_types().len();
    require(image.groups.iter().all(known), "measurements on GPUs that are not there")?;
    let reports = image.reports.into_iter().map(|(workload, (noise_scales, loads))| {
        let values = noise_scales.values();
        let noise_scale = (!values.is_empty()).then(|| NoiseScale::from_reports(&values));
        (workload, Reports { noise_scales, noise_scale, loads })
    });
    let mut learner = Learner {
        known: Mutex::new(Known::from_image(image.groups)),
        reports: reports.collect(),
        imported: image.imported,
        newest: image.newest,
        refused: image.refused,
        ..Learner::new(cluster)
    };
    for measurement in image.refusals {
        let reason = learner.check(&measurement).err();
        let reason = reason.ok_or(ImageError::Wrong("a measurement was refused for no reason"))?;
        learner.refusals.push_back((measurement, reason));
    }
    Ok(learner)
}
