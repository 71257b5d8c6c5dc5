//! What SLURM's accounting says about priorities: QOS and shares. A function of text.
//!
//! It is read beside the loop every few minutes. Without slurmdbd there is nothing to read, and
//! nothing follows from it.

use super::command::{Commands, printable};
use std::collections::BTreeMap;

/// Lines that are looked at: a large site has some ten thousand users in a few accounts each, at
/// 60 bytes a line. What comes after is left out, and counts as unknown.
const MOST_LINES: usize = 200_000;

/// A quality of service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Qos {
    pub(super) priority: u64,
    /// Names of those that it may preempt.
    pub(super) preempts: Vec<String>,
}

/// What is known of QOS and shares.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Accounting {
    pub(super) qos: BTreeMap<String, Qos>,
    /// FairShare by account and user: 0.5 is as much used as there was a share of.
    pub(super) fairshare: BTreeMap<(String, String), f64>,
    /// One QOS may preempt another.
    pub(super) preempts_by_qos: bool,
}

/// Asks SLURM. None: there is no accounting, or it does not answer.
pub(super) fn read(commands: &Commands) -> Option<Accounting> {
    let ask = ["-nP", "show", "qos", "format=name,priority,preempt"];
    let qos = qos(&commands.run("sacctmgr", &ask).ok()?);
    // Without the multifactor plugin there are no shares, and sshare says so.
    let shares = commands.run("sshare", &["-anP", "-o", "Account,User,FairShare"]);
    let fairshare = shares.map(|text| fairshare(&text)).unwrap_or_default();
    let config = commands.run("scontrol", &["show", "config"]).unwrap_or_default();
    let preempts_by_qos = preempts_by_qos(&config);
    Some(Accounting { qos, fairshare, preempts_by_qos })
}

/// The QOS that sacctmgr lists, with priority and whom they may preempt.
fn qos(text: &str) -> BTreeMap<String, Qos> {
    let line = |line: &str| {
        let mut fields = line.split('|');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let priority = fields.next()?.trim().parse().unwrap_or(0);
        let preempts = fields.next().unwrap_or_default();
        let preempts = preempts.split(',').map(str::trim).filter(|name| !name.is_empty());
        let preempts = preempts.map(printable).collect();
        Some((printable(name), Qos { priority, preempts }))
    };
    text.lines().take(MOST_LINES).filter_map(line).collect()
}

/// The shares of users that sshare lists. Where nobody has any, shares are not kept.
fn fairshare(text: &str) -> BTreeMap<(String, String), f64> {
    let line = |line: &str| {
        let mut fields = line.split('|').map(str::trim);
        let (account, user, share) = (fields.next()?, fields.next()?, fields.next()?);
        let share: f64 = share.parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
        (!user.is_empty()).then(|| ((printable(account), printable(user)), share))
    };
    let all: BTreeMap<_, _> = text.lines().take(MOST_LINES).filter_map(line).collect();
    if all.values().all(|share| *share == 0.0) { BTreeMap::new() } else { all }
}

fn preempts_by_qos(config: &str) -> bool {
    let setting = config.lines().filter_map(|line| line.split_once('='));
    setting
        .into_iter()
        .any(|(name, value)| name.trim() == "PreemptType" && value.trim() == "preempt/qos")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qos_and_shares_are_read_and_what_makes_no_sense_is_left_out() {
        let all = qos("normal|0|\nhigh|1000|normal,low\nlow||\n|5|\nodd|x|high\n");
        assert_eq!(all.len(), 4);
        assert_eq!(
            all["high"],
            Qos { priority: 1000, preempts: vec!["normal".into(), "low".into()] }
        );
        assert_eq!((all["low"].priority, all["odd"].priority), (0, 0));
        let shares = fairshare(
            "root||\n root|root|1.000000\n vision||\n  vision|alice|0.250000\n  text|alice|nan\n\
             text|bob|1.5\ntext|carol|inf\n",
        );
        let key = |account: &str, user: &str| (account.to_owned(), user.to_owned());
        assert_eq!(shares.get(&key("vision", "alice")), Some(&0.25));
        assert_eq!(shares.len(), 2, "{shares:?}");
        // SLURM without shares prints zeros.
        assert!(fairshare("a|x|0.000000\na|y|0.000000\n").is_empty());
        assert!(fairshare("").is_empty() && qos("").is_empty());
        assert!(preempts_by_qos("PreemptMode = REQUEUE\nPreemptType             = preempt/qos\n"));
        assert!(!preempts_by_qos("PreemptType             = preempt/partition_prio\n"));
    }
}
