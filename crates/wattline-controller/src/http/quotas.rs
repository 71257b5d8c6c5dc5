//! What each user, and each account, may ask for at most.
//!
//! Administrators are not limited, except in their connections. An account is a list of users who
//! have some limits together.

use super::access::{Identity, Role};
use super::rate::{Buckets, Rate};
use super::refusal::{Answer, Refusal};
use super::rows::per_hour;
use crate::daemon::{Daemon, JobView};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;
use wattline_api::{AccountLimits, LimitRow};
use wattline_core::units::EurosPerSecond;

/// What one user may ask for at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// Jobs that hold no GPUs yet.
    pub jobs_waiting: u64,
    /// Submissions in a minute; as many at once after a pause.
    pub jobs_per_minute: u32,
    /// Requests in a second; twice as many at once after a pause.
    pub requests_per_second: u32,
    /// The weight of a job.
    pub weight: EurosPerSecond,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            // A large sweep. Planning slows down from 20,000 waiting jobs of all users on.
            jobs_waiting: 10_000,
            // A script that submits as fast as it can is slowed down after a large sweep.
            jobs_per_minute: 3_000,
            requests_per_second: 1_000,
            // An hour of some 500 GPUs: nothing that is late costs more.
            weight: EurosPerSecond::new(1_000.0 / 3_600.0),
        }
    }
}

/// The limits of a site, as its file says; what it leaves out is as before.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuotaFile {
    /// Of users who are not named below.
    pub default: QuotaEntry,
    /// Of these users.
    pub users: BTreeMap<String, QuotaEntry>,
    /// Of these users together.
    pub accounts: BTreeMap<String, AccountQuota>,
}

/// See [`Quota`].
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "as in Quota")]
pub struct QuotaEntry {
    pub jobs_waiting: Option<u64>,
    pub jobs_per_minute: Option<u32>,
    pub requests_per_second: Option<u32>,
    pub weight: Option<EurosPerSecond>,
}

/// What the users of an account may ask for together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountQuota {
    /// Who belongs to it.
    pub users: BTreeSet<String>,
    /// Jobs that hold no GPUs yet; any number, if not set.
    #[serde(default)]
    pub jobs_waiting: Option<u64>,
    /// Submissions in a minute; any number, if not set.
    #[serde(default)]
    pub jobs_per_minute: Option<u32>,
    /// The weight of a job; as each user's, if not set.
    #[serde(default)]
    pub weight: Option<EurosPerSecond>,
}

/// A limit that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("field `{field}`: {why}")]
pub struct QuotaError {
    field: String,
    why: &'static str,
}

impl QuotaFile {
    /// Whether its values make sense.
    ///
    /// # Errors
    /// Names the field that does not.
    pub fn check(&self) -> Result<(), QuotaError> {
        let rate = |field: String, value: Option<u32>| match value {
            Some(0) => Err(QuotaError { field, why: "is 0, expected at least 1" }),
            _ => Ok(()),
        };
        let highest = |field: String, weight: Option<EurosPerSecond>| match weight {
            Some(weight) if per_hour(weight) > super::MOST_WEIGHT => {
                Err(QuotaError { field, why: "is above a milliard of euros an hour" })
            }
            _ => Ok(()),
        };
        let named = self.users.iter().map(|(name, entry)| (format!("users.{name}"), entry));
        for (table, entry) in std::iter::once(("default".to_owned(), &self.default)).chain(named) {
            rate(format!("{table}.jobs_per_minute"), entry.jobs_per_minute)?;
            rate(format!("{table}.requests_per_second"), entry.requests_per_second)?;
            highest(format!("{table}.weight"), entry.weight)?;
        }
        for (name, account) in &self.accounts {
            rate(format!("accounts.{name}.jobs_per_minute"), account.jobs_per_minute)?;
            highest(format!("accounts.{name}.weight"), account.weight)?;
            if account.users.is_empty() {
                let field = format!("accounts.{name}.users");
                return Err(QuotaError { field, why: "names nobody" });
            }
        }
        Ok(())
    }

    /// The lowest weight that an account of this user sets.
    pub(super) fn account_weight(&self, user: &str) -> Option<EurosPerSecond> {
        let own = self.accounts.values().filter(|account| account.users.contains(user));
        own.filter_map(|account| account.weight).min_by(|a, b| a.get().total_cmp(&b.get()))
    }

    /// What this user may.
    #[must_use]
    pub fn of(&self, user: &str) -> Quota {
        let usual = Quota::default();
        let own = self.users.get(user);
        fn pick<T: Copy>(own: Option<T>, all: Option<T>, usual: T) -> T {
            own.or(all).unwrap_or(usual)
        }
        let all = &self.default;
        Quota {
            jobs_waiting: pick(
                own.and_then(|q| q.jobs_waiting),
                all.jobs_waiting,
                usual.jobs_waiting,
            ),
            jobs_per_minute: pick(
                own.and_then(|q| q.jobs_per_minute),
                all.jobs_per_minute,
                usual.jobs_per_minute,
            ),
            requests_per_second: pick(
                own.and_then(|q| q.requests_per_second),
                all.requests_per_second,
                usual.requests_per_second,
            ),
            weight: pick(own.and_then(|q| q.weight), all.weight, usual.weight),
        }
    }
}

/// How long counts of waiting jobs are used: counting looks at all jobs that are not over.
const FRESH: Duration = Duration::from_secs(1);

/// What has been used up.
#[derive(Default)]
pub(super) struct Quotas {
    requests: Buckets,
    submissions: Buckets,
    waiting: Mutex<Waiting>,
}

/// Waiting jobs by user: those that were counted, and those that were taken in since.
#[derive(Default)]
struct Waiting {
    counted: Option<Instant>,
    counts: BTreeMap<Arc<str>, u64>,
}

impl Waiting {
    fn refresh(&mut self, daemon: &Daemon) {
        if self.counted.is_some_and(|at| at.elapsed() < FRESH) {
            return;
        }
        self.counts.clear();
        let read_model = daemon.read_model();
        let known = read_model.unfinished.iter().filter_map(|id| read_model.job(*id));
        let mut count = |view: &JobView| {
            if view.held.is_none() && !view.is_over() {
                *self.counts.entry(Arc::clone(&view.user)).or_default() += 1;
            }
        };
        known.for_each(|view| count(view));
        daemon.overlay().jobs.values().for_each(|(_, view)| {
            if read_model.job(view.id).is_none() {
                count(view);
            }
        });
        self.counted = Some(Instant::now());
    }

    fn of(&self, user: &str) -> u64 {
        self.counts.get(user).copied().unwrap_or(0)
    }

    fn of_account(&self, account: &AccountQuota) -> u64 {
        account.users.iter().map(|user| self.of(user)).sum()
    }
}

fn a_minute(jobs: u32) -> Rate {
    Rate { per_second: f64::from(jobs) / 60.0, burst: f64::from(jobs) }
}

fn a_second(requests: u32) -> Rate {
    Rate { per_second: f64::from(requests), burst: 2.0 * f64::from(requests) }
}

impl Quotas {
    /// Counts a request, or refuses it.
    pub(super) fn request(&self, who: &Identity) -> Answer<()> {
        if who.role == Role::Admin {
            return Ok(());
        }
        let rate = a_second(who.quota.requests_per_second);
        self.requests.take(&who.user, 1.0, rate, Instant::now()).map_err(Refusal::too_often)
    }

    /// Counts a submission, or refuses it.
    pub(super) fn submission(
        &self,
        daemon: &Daemon,
        who: &Identity,
        site: &QuotaFile,
    ) -> Answer<()> {
        if who.role == Role::Admin {
            return Ok(());
        }
        let accounts = || site.accounts.iter().filter(|(_, a)| a.users.contains(&*who.user));
        let wait_for = "wait until some have started, cancel some, or ask an administrator for more; \
            GET /v1/limits and `wattline limits` show all limits";
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.refresh(daemon);
        let (own, most) = (waiting.of(&who.user), who.quota.jobs_waiting);
        if own >= most {
            let detail = format!("{own} of your jobs wait; {most} may (limit jobs_waiting)");
            return Err(Refusal::limit(detail, wait_for, None));
        }
        for (name, account) in accounts() {
            let count = waiting.of_account(account);
            if let Some(most) = account.jobs_waiting.filter(|most| count >= *most) {
                let detail = format!(
                    "{count} jobs of account {name} wait; {most} may (limit accounts.{name}.jobs_waiting)"
                );
                return Err(Refusal::limit(detail, wait_for, None));
            }
        }
        let now = Instant::now();
        let too_fast = |whose: String, most: u32| {
            move |seconds: f64| {
                let detail =
                    format!("{whose} submit {most} jobs a minute at most (limit jobs_per_minute)");
                let help = "wait as long as Retry-After says, or ask an administrator for more; \
                    GET /v1/limits and `wattline limits` show all limits";
                Refusal::limit(detail, help, Some(seconds))
            }
        };
        let most = who.quota.jobs_per_minute;
        let own = self.submissions.take(&format!("user {}", who.user), 1.0, a_minute(most), now);
        own.map_err(too_fast("you may".to_owned(), most))?;
        for (name, account) in accounts() {
            let Some(most) = account.jobs_per_minute else { continue };
            let taken = self.submissions.take(&format!("account {name}"), 1.0, a_minute(most), now);
            taken.map_err(too_fast(format!("the users of account {name} may"), most))?;
        }
        *waiting.counts.entry(Arc::clone(&who.user)).or_default() += 1;
        Ok(())
    }

    /// Jobs of this user that wait.
    pub(super) fn waiting(&self, daemon: &Daemon, who: &Identity) -> LimitRow {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.refresh(daemon);
        let limit = (who.role != Role::Admin).then_some(who.quota.jobs_waiting as f64);
        LimitRow { limit, used: Some(waiting.of(&who.user) as f64) }
    }

    /// Submissions of this user in the last minute, as they count.
    pub(super) fn submitted(&self, who: &Identity) -> LimitRow {
        let most = who.quota.jobs_per_minute;
        let left = self.submissions.left(&format!("user {}", who.user), a_minute(most));
        used(who, f64::from(most), left.map(|left| (f64::from(most) - left).round()))
    }

    /// Requests of this user in the last second, as they count.
    pub(super) fn requested(&self, who: &Identity) -> LimitRow {
        let most = f64::from(who.quota.requests_per_second);
        let rate = a_second(who.quota.requests_per_second);
        let left = self.requests.left(&who.user, rate);
        used(who, most, left.map(|left| (rate.burst - left).round()))
    }

    /// The same of the accounts that this user belongs to.
    pub(super) fn accounts(&self, who: &Identity, site: &QuotaFile) -> Vec<AccountLimits> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let own = site.accounts.iter().filter(|(_, a)| a.users.contains(&*who.user));
        let row = |(name, account): (&String, &AccountQuota)| {
            let most = account.jobs_per_minute.map(f64::from);
            let left = account
                .jobs_per_minute
                .and_then(|most| self.submissions.left(&format!("account {name}"), a_minute(most)));
            AccountLimits {
                name: name.clone(),
                jobs_waiting: LimitRow {
                    limit: account.jobs_waiting.map(|most| most as f64),
                    used: Some(waiting.of_account(account) as f64),
                },
                jobs_per_minute: LimitRow {
                    limit: most,
                    used: Some(most.zip(left).map_or(0.0, |(most, left)| (most - left).round())),
                },
            }
        };
        own.map(row).collect()
    }
}

fn used(who: &Identity, limit: f64, used: Option<f64>) -> LimitRow {
    let limit = (who.role != Role::Admin).then_some(limit);
    LimitRow { limit, used: limit.map(|_| used.unwrap_or(0.0)) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_users_own_entry_comes_before_the_sites_and_the_usual_one() {
        let entry = |jobs_waiting, jobs_per_minute| QuotaEntry {
            jobs_waiting,
            jobs_per_minute,
            ..QuotaEntry::default()
        };
        let users = BTreeMap::from([("alice".to_owned(), entry(Some(7), None))]);
        let file = QuotaFile { default: entry(Some(5), Some(3)), users, ..QuotaFile::default() };
        assert_eq!((file.of("alice").jobs_waiting, file.of("bob").jobs_waiting), (7, 5));
        assert_eq!(file.of("alice").jobs_per_minute, 3);
        assert_eq!(file.of("bob").weight, Quota::default().weight);
    }

    #[test]
    fn limits_that_nobody_can_meet_are_refused_with_their_field() {
        let mut file = QuotaFile::default();
        file.default.requests_per_second = Some(0);
        let said = file.check().unwrap_err().to_string();
        assert_eq!(said, "field `default.requests_per_second`: is 0, expected at least 1");
        let nobody = AccountQuota {
            users: BTreeSet::new(),
            jobs_waiting: None,
            jobs_per_minute: None,
            weight: None,
        };
        let accounts = BTreeMap::from([("vision".to_owned(), nobody)]);
        let said = QuotaFile { accounts, ..QuotaFile::default() }.check().unwrap_err().to_string();
        assert_eq!(said, "field `accounts.vision.users`: names nobody");
    }
}
