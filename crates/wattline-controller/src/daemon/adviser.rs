//! Tells what a policy would do, when that changes.

use std::time::{Duration, Instant};
use wattline_api::Advice;

/// Nobody is told more often than this.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct Adviser {
    said: Option<Instant>,
    told: Option<Advice>,
}

impl Adviser {
    /// Whether it is time to tell something again.
    pub(super) fn is_due(&self) -> bool {
        self.said.is_none_or(|said| said.elapsed() >= TELL_EVERY)
    }

    /// What to tell, if the policy would do something else than it would have when it was last
    /// told of.
    pub(super) fn news(&mut self, advice: Advice) -> Option<String> {
        let same = |told: &Advice| {
            let jobs = |advice: &Advice| -> Vec<_> {
                let job = |job: &wattline_api::AdvisedJob| (job.job, job.runs.clone());
                advice.jobs.iter().map(job).collect()
            };
            jobs(told) == jobs(&advice) && told.nodes == advice.nodes
        };
        // As long as there is nothing to tell, nobody is told so.
        let nothing = advice.jobs.is_empty() && advice.nodes.is_empty();
        let old = self.told.as_ref().map_or(nothing, same);
        if old {
            return None;
        }
        self.said = Some(Instant::now());
        let text = advice.text.clone();
        self.told = Some(advice);
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wattline_api::AdvisedJob;

    fn advice(jobs: &[u32]) -> Advice {
        let job = |job: &u32| AdvisedJob {
            job: *job,
            number: job.to_string(),
            name: String::new(),
            user: String::new(),
            action: "stop".to_owned(),
            holds: None,
            runs: None,
            why: String::new(),
            forecast: None,
        };
        Advice {
            schema: String::new(),
            now_s: 0.0,
            policy: String::new(),
            decides: false,
            text: format!("{jobs:?}"),
            accepted: true,
            violations: Vec::new(),
            committed_now_w: 0.0,
            committed_w: 0.0,
            budget_w: None,
            jobs: jobs.iter().map(job).collect(),
            nodes: Vec::new(),
            staying: 0,
            waiting: 0,
            outlook: String::new(),
        }
    }

    #[test]
    fn only_what_is_new_is_told() {
        let mut adviser = Adviser::default();
        assert!(adviser.is_due());
        let mut told = |jobs: &[u32]| adviser.news(advice(jobs));
        assert_eq!(told(&[]), None);
        assert_eq!(told(&[1]).as_deref(), Some("[1]"));
        assert_eq!(told(&[1]), None);
        assert_eq!(told(&[1, 2]).as_deref(), Some("[1, 2]"));
        assert_eq!(told(&[]).as_deref(), Some("[]"));
        assert!(!adviser.is_due());
    }
}
