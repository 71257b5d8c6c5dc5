//! Policies by name.
//!
//! A policy is written `name` or `name+option+option=value`, for example `edf+backfill` or
//! `tiresias+queues=3600/36000`.

use crate::andreas::{self, AndreasOptions};
use crate::list::ListOptions;
use crate::node_constrained::NodeConstrained;
use crate::ones::{self, Counted, OnesOptions};
use crate::powerflow::{self, PowerflowOptions, Sleep};
use crate::tiresias::{self, TiresiasOptions};
use crate::wattline::{self, Goal, Tuning, WattlineOptions};
use thiserror::Error;
use wattline_core::policy::Policy;
use wattline_core::units::Seconds;

/// How many waiting jobs get a reservation when `+backfill` does not say.
pub const BACKFILL_DEPTH: usize = 100;

/// By how much `+scale` may multiply a constant.
const SCALES: std::ops::RangeInclusive<f64> = 0.25..=4.0;

/// What `wattline+without=PART` can turn off.
pub const WATTLINE_PARTS: &[&str] = Tuning::PARTS;

/// What `wattline+scale=CONSTANT:FACTOR` can multiply: names and defaults.
#[must_use]
pub fn wattline_constants() -> Vec<(&'static str, String)> {
    Tuning::default().constants()
}

/// A policy that can be asked for.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// What to call it.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// The options it takes.
    pub options: &'static str,
}

const LIST_OPTIONS: &str = "+backfill[=DEPTH], +sleep=DURATION (for example +sleep=10min), +cap=uniform (one power limit for all GPUs that fits the budget)";

/// All policies.
pub const POLICIES: &[Entry] = &[
    Entry {
        name: "wattline",
        about: "ours: order, size, place, batch, limits and sleep, at prices that all jobs bid over time",
        options: "+objective=cost|tardiness|deadlines|jct|jct-under-energy, +energy=SHARE (with the last), +work=N, +seed=N, +hysteresis=X, +headroom=SHARE (of GPUs that rigid jobs of hours leave to short ones), +eager (a job that can start does not wait for cheaper energy or company), +without=PART and +scale=CONSTANT:FACTOR (for experiments: `wattline bench ablation --list`)",
    },
    Entry { name: "fifo", about: "first come, first served", options: LIST_OPTIONS },
    Entry { name: "edf", about: "earliest deadline first", options: LIST_OPTIONS },
    Entry { name: "priority", about: "weightiest first", options: LIST_OPTIONS },
    Entry {
        name: "tiresias",
        about: "least attained GPU-time first, in discretised queues, preemptive",
        options: "+queues=SECONDS/SECONDS/… (GPU-seconds at which a job sinks a queue)",
    },
    Entry {
        name: "andreas",
        about: "the ANDREAS authors' randomised greedy: plans all jobs anew each time, preemptive",
        options: "+greedy (no search), +rounds=N (random plans tried), +improve (the best of them), +seed=N, +sleep=DURATION",
    },
    Entry {
        name: "powerflow",
        about: "shortest average completion time for the energy: GPUs and watts to whom they help most, preemptive",
        options: "+energy=SHARE (of what jobs would take as requested; 1 unless said, inf for no bound), +sleep=DURATION|never (when it pays unless said), +lend (GPUs to whom each helps most and who gives them back soon: not in the paper)",
    },
    Entry {
        name: "ones",
        about: "after ONES: evolves schedules with elastic GPU counts and batches for short completion times, preemptive",
        options: "+generations=N, +population=N (schedules that live on), +seed=N, +waiting (jobs that wait count, and GPUs go to whoever gains most: not in the paper)",
    },
];

/// A text that does not name a policy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RegistryError {
    /// No policy of that name.
    #[error("unknown policy '{name}': known are {known}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// An option it does not have, or a value the option does not take.
    #[error("policy '{name}' does not take '+{option}': it takes {takes}")]
    Option {
        /// Which policy.
        name: &'static str,
        /// Which option.
        option: String,
        /// What it takes.
        takes: &'static str,
    },
}

/// Makes the policy that a text names. It takes constrained jobs in as well: jobs that may have certain nodes
/// only.
///
/// # Errors
/// Says which name or option is unknown and which there are.
pub fn policy(spec: &str) -> Result<Box<dyn Policy>, RegistryError> {
    bare(spec).map(NodeConstrained::before)
}

/// The policy itself, which knows nothing of constrained jobs.
pub(crate) fn bare(spec: &str) -> Result<Box<dyn Policy>, RegistryError> {
    let mut parts = spec.split('+');
    let name = parts.next().unwrap_or_default();
    let Some(entry) = POLICIES.iter().find(|p| p.name == name) else {
        let known: Vec<&str> = POLICIES.iter().map(|p| p.name).collect();
        return Err(RegistryError::Unknown {
            name: name.chars().take(40).collect(),
            known: known.join(", "),
        });
    };
    let wrong = |option: &str| RegistryError::Option {
        name: entry.name,
        option: option.chars().take(40).collect(),
        takes: entry.options,
    };
    if entry.name == "tiresias" {
        let mut options = TiresiasOptions::default();
        for option in parts {
            let queues = option.strip_prefix("queues=").and_then(thresholds);
            options.thresholds = queues.ok_or_else(|| wrong(option))?;
        }
        return Ok(tiresias::tiresias(options));
    }
    if entry.name == "wattline" {
        let mut options = WattlineOptions::default();
        for option in parts {
            wattline_option(&mut options, option).ok_or_else(|| wrong(option))?;
        }
        return Ok(wattline::wattline(options));
    }
    if entry.name == "andreas" {
        let mut options = AndreasOptions::default();
        for option in parts {
            andreas_option(&mut options, option).ok_or_else(|| wrong(option))?;
        }
        return Ok(andreas::andreas(options));
    }
    if entry.name == "powerflow" {
        let mut options = PowerflowOptions::default();
        for option in parts {
            powerflow_option(&mut options, option).ok_or_else(|| wrong(option))?;
        }
        return Ok(powerflow::powerflow(options));
    }
    if entry.name == "ones" {
        let mut options = OnesOptions::default();
        for option in parts {
            ones_option(&mut options, option).ok_or_else(|| wrong(option))?;
        }
        return Ok(ones::ones(options));
    }
    let mut options = ListOptions::default();
    for option in parts {
        match option.split_once('=').unwrap_or((option, "")) {
            ("backfill", "") => options.backfill = Some(BACKFILL_DEPTH),
            ("backfill", depth) => {
                let depth = depth.parse().ok().filter(|depth| *depth > 0);
                options.backfill = Some(depth.ok_or_else(|| wrong(option))?);
            }
            ("cap", "uniform") => options.uniform_cap = true,
            ("sleep", after) => {
                let after: Seconds = after.parse().map_err(|_| wrong(option))?;
                options.sleep_after = Some(after);
            }
            _ => return Err(wrong(option)),
        }
    }
    Ok(match entry.name {
        "edf" => crate::edf::edf(options),
        "priority" => crate::priority::priority(options),
        _ => crate::fifo::fifo(options),
    })
}

fn wattline_option(options: &mut WattlineOptions, text: &str) -> Option<()> {
    let tuning = &mut options.tuning;
    if text == "eager" {
        return tuning.turn_off("waiting_on_purpose");
    }
    match text.split_once('=')? {
        ("without", part) => tuning.turn_off(part)?,
        ("scale", constant) => {
            let (name, factor) = constant.split_once(':')?;
            let factor = factor.parse().ok().filter(|factor| SCALES.contains(factor))?;
            tuning.scale(name, factor)?;
        }
        ("objective", "cost") => options.goal = Goal::Cost,
        ("objective", "tardiness") => options.goal = Goal::Tardiness,
        ("objective", "deadlines") => options.goal = Goal::Deadlines,
        ("objective", "jct") => options.goal = Goal::Jct,
        // With a share given before or after, that share.
        ("objective", "jct-under-energy") => {
            if !matches!(options.goal, Goal::JctUnderEnergy { .. }) {
                options.goal = Goal::JctUnderEnergy { share: 1.0 };
            }
        }
        ("energy", share) => {
            let share = share.parse().ok().filter(|share: &f64| *share > 0.0)?;
            options.goal = Goal::JctUnderEnergy { share };
        }
        ("work", work) => options.work = work.parse().ok()?,
        ("seed", seed) => options.seed = seed.parse().ok()?,
        ("headroom", share) => {
            let share = share.parse().ok().filter(|share| (0.0..=0.5).contains(share));
            tuning.headroom = share?;
        }
        ("hysteresis", part) => {
            tuning.hysteresis = part.parse().ok().filter(|part: &f64| *part >= 0.0)?;
        }
        _ => return None,
    }
    Some(())
}

/// Takes in one option; `None`: there is no such option, or not with that value.
fn andreas_option(options: &mut AndreasOptions, text: &str) -> Option<()> {
    match text.split_once('=').unwrap_or((text, "")) {
        ("greedy", "") => options.rounds = 0,
        ("rounds", rounds) => {
            let rounds = rounds.parse().ok();
            options.rounds = rounds.filter(|n| (1..=andreas::MOST_ROUNDS).contains(n))?;
        }
        ("improve", "") => options.improve = true,
        ("seed", seed) => options.seed = seed.parse().ok()?,
        ("sleep", after) => options.sleep_after = Some(after.parse().ok()?),
        _ => return None,
    }
    Some(())
}

/// Takes in one option; `None`: there is no such option, or not with that value.
fn powerflow_option(options: &mut PowerflowOptions, text: &str) -> Option<()> {
    match text.split_once('=').unwrap_or((text, "")) {
        ("lend", "") => options.lend = true,
        ("energy", share) => options.energy = share.parse().ok().filter(|share| *share > 0.0)?,
        ("sleep", "never") => options.sleep = Sleep::Never,
        ("sleep", after) => options.sleep = Sleep::After(after.parse().ok()?),
        _ => return None,
    }
    Some(())
}

/// Takes in one option; `None`: there is no such option, or not with that value.
fn ones_option(options: &mut OnesOptions, text: &str) -> Option<()> {
    let number = |text: &str, least: usize, most: usize| {
        text.parse().ok().filter(|n| (least..=most).contains(n))
    };
    match text.split_once('=').unwrap_or((text, "")) {
        ("waiting", "") => options.counted = Counted::Waiting,
        ("generations", n) => options.generations = number(n, 1, ones::MOST_GENERATIONS)?,
        ("population", n) => options.population = number(n, 2, ones::MOST_POPULATION)?,
        ("seed", seed) => options.seed = seed.parse().ok()?,
        _ => return None,
    }
    Some(())
}

/// Rising, positive, few enough.
fn thresholds(text: &str) -> Option<Vec<f64>> {
    let values: Vec<f64> = text.split('/').map(|t| t.parse().ok()).collect::<Option<_>>()?;
    let rising = values.windows(2).all(|w| w[0] < w[1]);
    let sound = values.iter().all(|v| v.is_finite() && *v > 0.0);
    (rising && sound && values.len() < tiresias::MOST_QUEUES).then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_policy_can_be_made() {
        for entry in POLICIES {
            assert_eq!(policy(entry.name).unwrap().name(), entry.name);
        }
        assert!(policy("edf+backfill=20+sleep=10min+cap=uniform").is_ok());
        assert!(policy("wattline+objective=tardiness+headroom=0").is_ok());
        assert!(policy("wattline+objective=deadlines+eager").is_ok());
        assert!(policy("tiresias+queues=100/1000").is_ok());
        assert!(policy("andreas+greedy").is_ok());
        assert!(policy("wattline+objective=jct+work=1000+seed=3+hysteresis=0.5").is_ok());
        for part in WATTLINE_PARTS {
            assert!(policy(&format!("wattline+without={part}")).is_ok(), "{part}");
        }
        for (constant, _) in wattline_constants() {
            assert!(policy(&format!("wattline+scale={constant}:0.5")).is_ok(), "{constant}");
        }
        let mut options = WattlineOptions::default();
        wattline_option(&mut options, "scale=gpu_price:2").unwrap();
        wattline_option(&mut options, "without=arrival_toll").unwrap();
        let expected = Tuning { gpu_price: 2.0, arrival_toll: false, ..Tuning::default() };
        assert_eq!(options.tuning, expected);
        for option in ["energy=0.8", "objective=jct-under-energy"] {
            wattline_option(&mut options, option).unwrap();
        }
        assert_eq!(options.goal, Goal::JctUnderEnergy { share: 0.8 });
        assert!(policy("andreas+rounds=50+improve+seed=7+sleep=5min").is_ok());
        assert!(policy("powerflow+energy=0.8+sleep=5min").is_ok());
        assert!(policy("powerflow+energy=inf+sleep=never+lend").is_ok());
        assert!(policy("ones+generations=5+population=8+seed=7+waiting").is_ok());
    }

    #[test]
    fn says_what_there_is() {
        let message = |spec: &str| policy(spec).err().unwrap().to_string();
        assert!(message("sjf").contains(
            "known are wattline, fifo, edf, priority, tiresias, andreas, powerflow, ones"
        ));
        assert!(message("fifo+fast").contains("+backfill"));
        assert!(message("fifo+sleep=10").contains("+sleep=DURATION"));
        assert!(message("fifo+backfill=0").contains("+backfill[=DEPTH]"));
        assert!(message("fifo+cap=200W").contains("+cap=uniform"));
        assert!(message("tiresias+queues=10/5").contains("+queues="));
        assert!(message("andreas+rounds=0").contains("+rounds=N"));
        assert!(message("andreas+seed=x").contains("+seed=N"));
        for wrong in [
            "objective=speed",
            "energy=0",
            "energy=NaN",
            "work=x",
            "headroom=1",
            "hysteresis=-1",
            "without=luck",
            "without",
            "scale=gpu_price",
            "scale=luck:2",
            "scale=gpu_price:5",
            "scale=gpu_price:NaN",
        ] {
            assert!(message(&format!("wattline+{wrong}")).contains("+objective="), "{wrong}");
        }
        for wrong in
            ["energy", "energy=0", "energy=-1", "energy=NaN", "energy=x", "sleep=5", "lend=1"]
        {
            assert!(message(&format!("powerflow+{wrong}")).contains("+energy=SHARE"), "{wrong}");
        }
        assert!(message("ones+population=1").contains("+population=N"));
        assert!(message("ones+generations").contains("+generations=N"));
        assert!(message("ones+waiting=1").contains("+waiting"));
        assert!(message("").contains("unknown policy ''"));
    }
}
