//! From QOS and shares to weights, by one rule.
//!
//! weight = what the user says (or the default), cut at what his account and QOS are allowed,
//! times the factor of the QOS, times the factor of his share.
//!
//! QOS: the priority of the normal QOS has factor 1, the highest one the factor that the site allows
//! at most (4), the lowest one its inverse, and those in between lie on a curve between them. Where
//! SLURM preempts by QOS, one that may preempt another has at least that factor times the other's, as
//! far as the bounds allow. Share: FairShare is 0.5 where as much was used as there was a share of,
//! which is factor 1; 1 has the factor that the site allows at most (2), 0 its inverse.

use super::Slurm;
use super::accounting::Accounting;
use super::config::{Config, PriorityConfig};
use super::read::SlurmJob;
use crate::backend::{BackendEvent, Known};
use crate::job_registry::{JournalNote, Priority};
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::units::{EurosPerSecond, Seconds};

/// The QOS whose factor is 1, as SLURM calls the one that it makes by itself.
const NORMAL: &str = "normal";
/// A weight is set anew when it is off by more than this share: shares change all the time, and each
/// change of a weight makes everything planned anew. With half of it there are twice as many plans.
const CHANGES: f64 = 0.1;
/// Weights of all jobs are looked at this often, and when accounting was read: what users change by
/// `wattline job update` counts with its factors after this long.
const LOOK_EVERY: Seconds = Seconds::new(10.0);

/// The factor of a QOS.
fn qos_factor(accounting: &Accounting, name: &str, config: &PriorityConfig) -> f64 {
    let Some(qos) = accounting.qos.get(name) else { return 1.0 };
    let plain = by_priority(accounting, qos.priority, config.qos_factor);
    if !accounting.preempts_by_qos {
        return plain;
    }
    let others = qos.preempts.iter().filter_map(|other| accounting.qos.get(other));
    let above =
        |priority: u64| by_priority(accounting, priority, config.qos_factor) * config.qos_factor;
    let least = others.map(|other| above(other.priority)).fold(plain, f64::max);
    least.min(config.qos_factor)
}

fn by_priority(accounting: &Accounting, priority: u64, most: f64) -> f64 {
    let normal = accounting.qos.get(NORMAL).map_or(0, |qos| qos.priority);
    let all = || accounting.qos.values().map(|qos| qos.priority);
    let (least, highest) = (all().min().unwrap_or(normal), all().max().unwrap_or(normal));
    let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
    if priority >= normal {
        most.powf(share(priority - normal, highest.saturating_sub(normal)))
    } else {
        most.powf(-share(normal - priority, normal.saturating_sub(least)))
    }
}

/// The factor of a share.
fn share_factor(fairshare: f64, most: f64) -> f64 {
    most.powf(2.0 * fairshare.clamp(0.0, 1.0) - 1.0)
}

/// The most that a user may say lateness costs.
pub(super) fn most_weight(
    config: &Config,
    account: Option<&str>,
    qos: Option<&str>,
) -> EurosPerSecond {
    let matches = |limit: &&super::config::WeightLimit| {
        limit.account.as_deref().is_none_or(|name| Some(name) == account)
            && limit.qos.as_deref().is_none_or(|name| Some(name) == qos)
    };
    let limits = config.limits.iter().filter(matches).map(|limit| limit.max_weight);
    let least = |a: EurosPerSecond, b: EurosPerSecond| if b < a { b } else { a };
    limits.reduce(least).unwrap_or(config.defaults.max_weight)
}

/// What a job's weight is made of.
pub(super) fn priority(
    config: &Config,
    accounting: Option<&Accounting>,
    job: &SlurmJob,
    weight: EurosPerSecond,
) -> Priority {
    let (account, qos) = (job.account.as_deref(), job.qos.as_deref());
    let most = most_weight(config, account, qos);
    let weight = if weight > most { most } else { weight };
    let by_qos = accounting.zip(qos).filter(|_| config.priority.qos);
    let by_share = accounting.filter(|_| config.priority.fairshare).and_then(|accounting| {
        let key = (account?.to_owned(), job.user_name.clone()?);
        accounting.fairshare.get(&key).copied()
    });
    Priority {
        weight,
        qos: by_qos.map(|(_, qos)| qos.into()),
        qos_factor: by_qos.map_or(1.0, |(known, qos)| qos_factor(known, qos, &config.priority)),
        fairshare: by_share,
        fairshare_factor: by_share
            .map_or(1.0, |share| share_factor(share, config.priority.fairshare_factor)),
    }
}

impl Slurm {
    /// Weights that are no longer what they should be.
    pub(super) fn weigh(&mut self, now: Timestamp, known: Known<'_>, news: &mut Vec<BackendEvent>) {
        let due = self.weighed.is_none_or(|last| now >= last + LOOK_EVERY);
        let Some(seen) = self.seen.clone().filter(|_| due && self.controls()) else { return };
        self.weighed = Some(now);
        for (id, job) in seen.known() {
            let mine = known.registry.slurm(id).is_some_and(|slurm| slurm.controlled);
            let Some(state) = known.engine.state().find_job(id) else { continue };
            if !mine || state.has_ended() || job.state.is_over() {
                continue;
            }
            let is = state.job.weight;
            let near = |a: EurosPerSecond, b: EurosPerSecond, by: f64| {
                (a.get() - b.get()).abs() <= by * a.get().abs().max(b.get().abs())
            };
            // One that its user has changed since is what he says now.
            let before = known.registry.priority(id);
            let before = before.filter(|before| near(before.comes_to(), is, 1e-9));
            let said = before.map_or(is, |before| before.weight);
            let priority = priority(&self.site.config, self.accounting.as_ref(), job, said);
            let to = priority.comes_to();
            // What is not allowed is cut however little that is.
            if near(is, to, CHANGES) && priority.weight >= said {
                continue;
            }
            let note = JournalNote::Priority { job: id, priority };
            news.push(BackendEvent::Noted(Event::Weighed { job: id, from: is, to }, note));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::accounting::Qos;
    use super::super::config::WeightLimit;
    use super::*;
    use crate::slurm::read;

    fn accounting(preempts_by_qos: bool) -> Accounting {
        let qos = |priority, preempts: &[&str]| Qos {
            priority,
            preempts: preempts.iter().map(|name| (*name).to_owned()).collect(),
        };
        Accounting {
            qos: [
                ("normal".to_owned(), qos(100, &[])),
                ("high".to_owned(), qos(1100, &[])),
                ("middle".to_owned(), qos(600, &[])),
                ("scavenger".to_owned(), qos(0, &[])),
                ("urgent".to_owned(), qos(100, &["scavenger", "normal"])),
            ]
            .into(),
            fairshare: [
                (("vision".to_owned(), "alice".to_owned()), 1.0),
                (("text".to_owned(), "alice".to_owned()), 0.0),
            ]
            .into(),
            preempts_by_qos,
        }
    }

    fn job(account: &str, qos: &str) -> SlurmJob {
        let text = format!(
            r#"{{"jobs":[{{"job_id":1,"submit_time":1,"restart_cnt":0,"user_id":1,"partition":"p",
            "user_name":"alice","job_state":"PENDING","priority":0,"account":"{account}",
            "qos":"{qos}","name":"x"}}]}}"#
        );
        read::jobs(&text).unwrap().remove(0)
    }

    fn euros(an_hour: f64) -> EurosPerSecond {
        EurosPerSecond::new(an_hour / 3600.0)
    }

    #[test]
    fn weights_follow_qos_and_share_within_their_bounds() {
        let config = Config::default();
        let known = accounting(false);
        let of = |account: &str, qos: &str| {
            priority(&config, Some(&known), &job(account, qos), euros(1.0)).comes_to().get()
                * 3600.0
        };
        for (account, qos, expected) in [
            ("", "normal", 1.0),
            ("", "high", 4.0),
            ("", "middle", 2.0),
            ("", "scavenger", 0.25),
            ("", "urgent", 1.0),
            ("", "unknown", 1.0),
            ("", "", 1.0),
            ("vision", "normal", 2.0),
            ("text", "normal", 0.5),
            ("text", "high", 2.0),
            ("other", "normal", 1.0),
        ] {
            let is = of(account, qos);
            assert!((is - expected).abs() < 1e-9, "{account} {qos}: {is}, expected {expected}");
        }
        // Nothing is known, or nothing of it counts.
        let nothing = priority(&config, None, &job("vision", "high"), euros(1.0));
        assert_eq!((nothing.comes_to(), nothing.qos, nothing.fairshare), (euros(1.0), None, None));
        let off = PriorityConfig { qos: false, fairshare: false, ..PriorityConfig::default() };
        let off = Config { priority: off, ..Config::default() };
        assert_eq!(
            priority(&off, Some(&known), &job("vision", "high"), euros(1.0)).comes_to(),
            euros(1.0)
        );
    }

    #[test]
    fn a_qos_that_may_preempt_another_outweighs_it() {
        let known = accounting(true);
        let config = PriorityConfig::default();
        let of = |name: &str| qos_factor(&known, name, &config);
        assert!((of("urgent") / of("normal") - 4.0).abs() < 1e-9, "{}", of("urgent"));
        assert!((of("urgent") / of("scavenger") - 16.0).abs() < 1e-9);
        assert!(of("high") <= 4.0 && of("scavenger") >= 0.25);
    }

    #[test]
    fn the_most_that_may_be_said_is_the_least_of_what_fits_the_account_and_the_qos() {
        let limit = |account: Option<&str>, qos: Option<&str>, most: f64| WeightLimit {
            account: account.map(Into::into),
            qos: qos.map(Into::into),
            max_weight: euros(most),
        };
        let limits = vec![
            limit(Some("vision"), None, 20.0),
            limit(None, Some("scavenger"), 0.5),
            limit(Some("vision"), Some("scavenger"), 1.0),
        ];
        let config = Config { limits, ..Config::default() };
        for (account, qos, most) in [
            ("vision", "normal", 20.0),
            ("vision", "scavenger", 0.5),
            ("text", "scavenger", 0.5),
            ("text", "normal", 10.0),
        ] {
            assert_eq!(
                most_weight(&config, Some(account), Some(qos)),
                euros(most),
                "{account} {qos}"
            );
            let said = priority(&config, None, &job(account, qos), euros(1e9));
            assert_eq!(said.weight, euros(most));
        }
    }
}
