//! How often somebody may ask.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// So many a second, and so many at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// In the long run.
    pub per_second: f64,
    /// After a pause.
    pub burst: f64,
}

/// Whoever has not asked for long is forgotten when there are more than this.
const MOST: usize = 10_000;

/// A bucket of tokens for each who asks.
#[derive(Default)]
pub(super) struct Buckets {
    buckets: Mutex<BTreeMap<Arc<str>, (f64, Instant)>>,
}

impl Buckets {
    /// Takes `cost` tokens. Otherwise says in how many seconds to come again.
    pub(super) fn take(&self, who: &str, cost: f64, rate: Rate, now: Instant) -> Result<(), f64> {
        let Rate { per_second, burst } = rate;
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() > MOST {
            let full = |since: &Instant| now.duration_since(*since).as_secs_f64() * per_second;
            buckets.retain(|_, (left, since)| *left + full(since) < burst);
        }
        if !buckets.contains_key(who) {
            buckets.insert(who.into(), (burst, now));
        }
        let Some((left, since)) = buckets.get_mut(who) else { return Ok(()) };
        let passed = now.saturating_duration_since(*since).as_secs_f64();
        *left = (*left + passed * per_second).min(burst);
        *since = now;
        if *left < cost {
            return Err((cost - *left) / per_second);
        }
        *left -= cost;
        Ok(())
    }

    /// How many tokens are left; none: all of them, as nobody has asked for long.
    pub(super) fn left(&self, who: &str, rate: Rate) -> Option<f64> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, since) = buckets.get(who)?;
        Some((left + since.elapsed().as_secs_f64() * rate.per_second).min(rate.burst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_bucket_runs_dry_and_fills_again() {
        let (buckets, rate) = (Buckets::default(), Rate { per_second: 10.0, burst: 3.0 });
        let begin = Instant::now();
        let take =
            |who, after| buckets.take(who, 1.0, rate, begin + Duration::from_millis(after)).is_ok();
        assert!((0..3).all(|_| take("a", 0)));
        assert!(!take("a", 0) && take("b", 0));
        assert!(take("a", 101) && !take("a", 101));
        assert!((0..3).all(|_| take("a", 60_000)) && !take("a", 60_000));
    }
}
