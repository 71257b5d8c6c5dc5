//! What a sample of a larger batch is worth.

/// The gradient noise scale of a workload that never reported one.
const UNKNOWN: f64 = 3000.0;

/// What a sample of `batch` is worth against one of the batch that was asked for.
pub(crate) fn worth(noise_scale: Option<f64>, asked: u32, batch: u32) -> f64 {
    let scale = noise_scale.unwrap_or(UNKNOWN);
    (scale + f64::from(asked)) / (scale + f64::from(batch))
}
