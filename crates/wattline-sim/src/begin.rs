//! The engine and the world as an instance begins, for whoever drives them.

use crate::foresight::MEASURE_EVERY;
use crate::instance::Instance;
use std::sync::Arc;
use wattline_core::ids::NodeId;
use wattline_core::policy::Policy;
use wattline_core::scheduler::Scheduler;
use wattline_core::state::State;
use wattline_policies::RegistryError;
use wattline_world::world::World;

/// An engine that knows of no job yet, and an idle world. The world keeps a log for a report if
/// asked to.
///
/// # Errors
/// When the policy does not exist.
pub fn begin(
    instance: &Instance,
    policy: &str,
    keep_log: bool,
) -> Result<(Scheduler<'static>, World), RegistryError> {
    Ok(begin_with(instance, wattline_policies::policy(policy)?, keep_log))
}

/// The same with a policy that is there already.
pub(crate) fn begin_with(
    instance: &Instance,
    policy: Box<dyn Policy>,
    keep_log: bool,
) -> (Scheduler<'static>, World) {
    let mut state = State::new(Arc::clone(&instance.cluster), instance.start);
    let asleep = asleep_at_first(instance, &mut state);
    let engine = Scheduler::new(
        instance.engine.clone(),
        state,
        policy,
        instance.predictor(),
        instance.prices.clone(),
        instance.budget.clone(),
    );
    let mut config = instance.world.clone();
    if instance.learns() {
        config.measure_every.get_or_insert(MEASURE_EVERY);
    }
    config.keep_log |= keep_log;
    let mut world = World::new(
        Arc::clone(&instance.cluster),
        Arc::clone(&instance.physics),
        config,
        instance.start,
        instance.prices.clone(),
        instance.budget.clone(),
    );
    for node in asleep {
        world.begin_asleep(instance.start, node);
    }
    (engine, world)
}

/// A budget below what idle nodes draw has been kept before the simulation begins too: as many
/// nodes sleep as it takes, the last ones first.
fn asleep_at_first(instance: &Instance, state: &mut State) -> Vec<NodeId> {
    let Some(budget) = &instance.budget else {
        return Vec::new();
    };
    let lead = instance.start + instance.engine.budget_lead;
    let line = budget.least(instance.start, lead, |a, b| a < b) - instance.engine.margin;
    let mut asleep = Vec::new();
    let nodes: Vec<NodeId> = instance.cluster.node_ids().collect();
    for node in nodes.into_iter().rev() {
        if state.planned_committed() <= line {
            break;
        }
        state.begin_asleep(node);
        asleep.push(node);
    }
    asleep
}
