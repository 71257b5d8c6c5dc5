//! Format 2: the types that are in the file. Their field names, variant names and units are the
//! format: a change to them needs a new format number, a new file beside this one, and a fixture.
//!
//! What may be added without one: fields with a default that old entries mean, and variants.

use super::stored::{Number, Quantity, Stored, stored};
use super::{Decision as CoreDecision, Entry as CoreEntry};
use crate::job_registry::{
    Checkpoint as CoreCheckpoint, Drawn as CoreDrawn, JournalNote as CoreNote,
    Origin as CoreOrigin, Per as CorePer, Priority as CorePriority, Request as CoreRequest,
    SlurmKey as CoreSlurmKey, SlurmOrigin as CoreSlurmOrigin,
};
use serde::{Deserialize, Serialize};
use wattline_core::calendar::{Calendar as CoreCalendar, CalendarError};
use wattline_core::cluster::Shape as CoreShape;
use wattline_core::engine::Event as CoreEvent;
use wattline_core::host::{
    HostAmount as CoreHostAmount, HostRequest as CoreHostRequest, NodeHost as CoreNodeHost,
    Shortage as CoreShortage,
};
use wattline_core::job::{
    Bounds as CoreBounds, Elasticity as CoreElasticity, Job as CoreJob,
    NodeChoice as CoreNodeChoice, RestartCost as CoreRestartCost,
};
use wattline_core::placement::{
    Configuration as CoreConfiguration, Placement as CorePlacement, Share as CoreShare,
};
use wattline_core::plan::{
    Decision as CoreJobDecision, JobChange as CoreJobChange, NodeChange as CoreNodeChange,
    Plan as CorePlan, Reason as CoreReason, Refusal as CoreRefusal,
};
use wattline_core::predictor::Measurement as CoreMeasurement;
use wattline_core::prices::Prices as CorePrices;
use wattline_core::state::Target as CoreTarget;
use wattline_core::units::{
    CarbonIntensity, CarbonPrice, EnergyPrice, Euros, EurosPerSecond, Joules, Seconds, Watts,
};

fn yes() -> bool {
    true
}

fn per_node() -> Per {
    Per::Node
}

stored! {
    struct Entry of CoreEntry {
        at: i64,
        events: Vec<Event>,
        next_report: u64,
        acts: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        notes: Vec<JournalNote>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        decisions: Vec<Decision>,
    }
}

stored! {
    struct Decision of CoreDecision {
        based_on: u64,
        policy: Box<str>,
        version: Box<str>,
        trigger: Box<str>,
        took: Quantity<Seconds>,
        plan: Plan,
    }
}

stored! {
    struct Plan of CorePlan {
        based_on: u64,
        jobs: Vec<JobChange>,
        nodes: Vec<NodeChange>,
        revisit: Option<i64>,
    }
}

stored! {
    struct JobChange of CoreJobChange {
        job: u32,
        decision: JobDecision,
        reason: Reason,
    }
}

stored! {
    struct NodeChange of CoreNodeChange {
        node: u32,
        target: Target,
        reason: Reason,
    }
}

stored! {
    #[serde(rename_all = "snake_case")]
    enum JobDecision of CoreJobDecision {
        Wait,
        Run(Placement),
    }
}

stored! {
    #[serde(rename_all = "snake_case")]
    enum Target of CoreTarget {
        Up,
        Asleep,
    }
}

stored! {
    #[serde(rename_all = "snake_case")]
    enum Reason of CoreReason {
        Arrived,
        AsRequested,
        CheapestInTime,
        FastestWhenLate,
        NoRoom,
        NoPower,
        Reserved { at: i64 },
        Backfilled,
        NeverFits,
        GaveWay { to: u32 },
        Postponed,
        MostForItsEnergy,
        LeastForAll,
        BetterLater,
        NextInLine,
        MadeRoom,
        LeastGpuTime,
        BatchScaled { from: u32, to: u32, learning_rate: Number },
        LimitLowered,
        LimitRaised,
        ShedForBudget,
        KilledForBudget,
        StartFailed,
        Refused(Refusal),
        NoHost(Shortage),
        NodeLost,
        WakeFailed,
        NodeClosed,
        NodeNeeded,
        NodeIdle,
        NodeOverBudget,
        NodeNotNeeded,
        ActionFailed,
        OnHold,
        Found,
    }
}

stored! {
    #[serde(rename_all = "snake_case")]
    enum Event of CoreEvent {
        Clock,
        Submitted(Job),
        Cancelled(u32),
        Updated { job: u32, deadline: Option<i64>, weight: Quantity<EurosPerSecond> },
        Weighed { job: u32, from: Quantity<EurosPerSecond>, to: Quantity<EurosPerSecond> },
        OnHold { job: u32, hold: bool },
        Foreign { job: u32, foreign: bool },
        Asked { job: u32, asked: Job },
        HostAsked { job: u32, request: HostRequest },
        Barred { job: u32, nodes: Vec<u32>, over: u32, why: Refusal },
        NodeHost { node: u32, host: NodeHost },
        Found { job: u32, placement: Placement },
        Started { job: u32, action: u64 },
        Stopped { job: u32, run: u64, done: Number },
        Finished(u32),
        Progress { job: u32, done: Number },
        Measured(Measurement),
        Limited { job: u32, action: u64 },
        NodeUp(u32),
        NodeAsleep(u32),
        NodeLost(u32),
        NodeClosed(u32),
        Failed { action: u64 },
        Refused { action: u64, why: Refusal },
        StopRefused { job: u32, action: u64 },
        StaysPut { job: u32, stays: bool },
        BudgetSet(Option<Calendar<Quantity<Watts>>>),
        PricesSet(Prices),
    }
}

stored! {
    #[serde(rename_all = "snake_case")]
    enum Refusal of CoreRefusal {
        Resources,
        Nodes,
        Limit,
        Licences,
        Never,
        Other,
    }
}

stored! {
    struct HostAmount of CoreHostAmount { cpus: u32, memory_mib: u64 }
}

stored! {
    struct HostRequest of CoreHostRequest {
        per_node: HostAmount,
        per_gpu: HostAmount,
        #[serde(default)]
        all_cpus: bool,
        #[serde(default)]
        all_memory: bool,
    }
}

stored! {
    struct NodeHost of CoreNodeHost { all: HostAmount, taken: HostAmount }
}

stored! {
    #[serde(rename_all = "snake_case")]
    enum Shortage of CoreShortage {
        Cpus { needed: u32, free: u32 },
        Memory { needed_mib: u64, free_mib: u64 },
    }
}

stored! {
    struct Job of CoreJob {
        name: Box<str>,
        user: u32,
        workload: u32,
        work: Number,
        submit: i64,
        deadline: Option<i64>,
        weight: Quantity<EurosPerSecond>,
        elasticity: Elasticity,
        gpus: Bounds,
        batch: Bounds,
        restart: RestartCost,
        #[serde(default = "yes")]
        preemptible: bool,
        shapes: Option<Vec<Shape>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nodes: Option<NodeChoice>,
    }
}

stored! {
    #[serde(rename_all = "lowercase")]
    enum Elasticity of CoreElasticity {
        Rigid,
        Moldable,
        Malleable,
        Adaptive,
    }
}

stored! {
    struct Bounds of CoreBounds { min: u32, max: u32, requested: u32 }
}

stored! {
    struct RestartCost of CoreRestartCost { save: Quantity<Seconds>, load: Quantity<Seconds> }
}

stored! {
    struct Shape of CoreShape { gpu_type: u16, gpus: u32 }
}

stored! {
    struct NodeChoice of CoreNodeChoice {
        count: u32,
        required: Vec<u32>,
        allowed: Vec<u32>,
    }
}

stored! {
    struct Placement of CorePlacement {
        configuration: Configuration,
        allocation: Vec<Share>,
    }
}

stored! {
    struct Configuration of CoreConfiguration {
        gpu_type: u16,
        gpus: u32,
        nodes: u32,
        batch: u32,
        power_limit: Quantity<Watts>,
    }
}

stored! {
    struct Share of CoreShare { node: u32, mask: u64 }
}

stored! {
    struct Measurement of CoreMeasurement {
        at: i64,
        job: u32,
        workload: u32,
        configuration: Configuration,
        node: Option<u32>,
        processed: Number,
        seconds: Quantity<Seconds>,
        power: Option<Quantity<Watts>>,
        noise_scale: Option<Number>,
        load: Option<Quantity<Seconds>>,
    }
}

stored! {
    struct Prices of CorePrices {
        energy: Calendar<Quantity<EnergyPrice>>,
        pue: Number,
        carbon: Calendar<Quantity<CarbonIntensity>>,
        carbon_price: Quantity<CarbonPrice>,
    }
}

/// Values over the week: from so many seconds after Monday 00:00, local time, on.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "CalendarSteps<T>")]
pub(super) struct Calendar<T> {
    steps: Vec<(i64, T)>,
    utc_offset: i64,
}

#[derive(Deserialize)]
struct CalendarSteps<T> {
    steps: Vec<(i64, T)>,
    utc_offset: i64,
}

impl<T> TryFrom<CalendarSteps<T>> for Calendar<T> {
    type Error = CalendarError;
    fn try_from(written: CalendarSteps<T>) -> Result<Self, CalendarError> {
        let CalendarSteps { steps, utc_offset } = written;
        // The same rules as for a calendar that is made: then it can be loaded.
        let times = steps.iter().map(|(from, _)| (*from, ())).collect();
        CoreCalendar::from_steps(times, utc_offset)?;
        Ok(Self { steps, utc_offset })
    }
}

impl<C: Copy + PartialEq, T: Stored<C>> Stored<CoreCalendar<C>> for Calendar<T> {
    fn store(value: &CoreCalendar<C>) -> Self {
        let steps = value.steps().iter().map(|(from, value)| (*from, T::store(value)));
        Self { steps: steps.collect(), utc_offset: value.utc_offset_seconds() }
    }
    fn load(self) -> CoreCalendar<C> {
        let steps = self.steps.into_iter().map(|(from, value)| (from, value.load()));
        CoreCalendar::from_steps(steps.collect(), self.utc_offset)
            .unwrap_or_else(|_| unreachable!("checked when it was read"))
    }
}

stored! {
    #[serde(rename_all = "snake_case")]
    enum JournalNote of CoreNote {
        Workload(Box<str>),
        Origin { job: u32, origin: Origin },
        Key { job: u32, key: SlurmKey },
        Before { node: Box<str>, limits: Vec<Number> },
        Ended { job: u32, how: Box<str> },
        Drawn { job: u32, drawn: Drawn },
        Placed {
            job: u32,
            placement: Placement,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            after: Option<Quantity<Seconds>>,
        },
        Left { job: u32, after: Quantity<Seconds> },
        Limited { job: u32, limit: Quantity<Watts> },
        Request { job: u32, key: Box<str>, fingerprint: u64 },
        Refused { job: u32, said: Box<str> },
        Asked { job: u32 },
        RestartHold {
            job: u32,
            #[serde(default, skip_serializing_if = "Option::is_none")]
            said: Option<Box<str>>,
            since: i64,
        },
        Priority { job: u32, priority: Priority },
        Overrun { user: u32, workload: Box<str>, factor: Number },
    }
}

stored! {
    struct Priority of CorePriority {
        weight: Quantity<EurosPerSecond>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qos: Option<Box<str>>,
        qos_factor: Number,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fairshare: Option<Number>,
        fairshare_factor: Number,
    }
}

stored! {
    struct Drawn of CoreDrawn { energy: Quantity<Joules>, bill: Quantity<Euros> }
}

stored! {
    struct Origin of CoreOrigin {
        user: Box<str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        slurm: Option<SlurmOrigin>,
    }
}

stored! {
    struct SlurmKey of CoreSlurmKey { id: u32, submitted: i64, restarts: u32 }
}

stored! {
    struct SlurmOrigin of CoreSlurmOrigin {
        key: SlurmKey,
        partition: Box<str>,
        asked: Request,
        checkpoint: Checkpoint,
        controlled: bool,
        #[serde(default)]
        as_asked: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<Box<str>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        account: Option<Box<str>>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        qos: Option<Box<str>>,
    }
}

stored! {
    struct Request of CoreRequest {
        nodes: u32,
        tasks: u32,
        cpus: u32,
        gpus_per_node: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu_type: Option<Box<str>>,
        #[serde(default = "per_node")]
        way: Per,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tasks_per_node: Option<u32>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        required: Vec<Box<str>>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        excluded: Vec<Box<str>>,
    }
}

stored! {
    #[serde(rename_all = "snake_case")]
    enum Per of CorePer {
        Node,
        Job,
        Task(u32),
    }
}

stored! {
    #[serde(rename_all = "lowercase")]
    enum Checkpoint of CoreCheckpoint {
        Usr1,
        Term,
        None,
    }
}
