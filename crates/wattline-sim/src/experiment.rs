//! One instance, several policies.

use crate::instance::Instance;
use crate::simulation::{Outcome, SimulationError, Watch, simulate};
use rayon::prelude::*;

/// Runs each policy on the instance, in parallel where there are threads; results come in the
/// order asked for and do not depend on the number of threads.
///
/// # Errors
/// The first policy's error, if one fails.
pub fn compare(
    instance: &Instance,
    policies: &[String],
    watch: &Watch<'_>,
) -> Result<Vec<Outcome>, SimulationError> {
    // All names are checked before hours are spent on the first.
    for policy in policies {
        wattline_policies::policy(policy)?;
    }
    policies.par_iter().map(|policy| simulate(instance, policy, watch)).collect()
}
