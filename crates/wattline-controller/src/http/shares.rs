//! Slots for work that takes long: so many in all, so many for each user, and some that only
//! administrators get.
//!
//! A slot belongs to the work, not to the connection: it is given back when the work is done, also
//! if nobody waits for the answer any more. So nobody starts more work than there are slots by
//! hanging up.

use super::access::{Identity, Role};
use super::refusal::{Answer, Refusal};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Slots for one kind of work. Copies are the same.
#[derive(Clone)]
pub(super) struct Shares(Arc<Parts>);

struct Parts {
    /// What takes long, for messages: "views are being planned".
    what: &'static str,
    /// For everybody together.
    all: usize,
    /// For each user.
    each: usize,
    /// Beyond `all`, for administrators.
    reserved: usize,
    taken: Mutex<BTreeMap<Arc<str>, usize>>,
}

/// How often whoever waits for a slot looks again.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A slot. Move it into the work.
pub(super) struct Share {
    of: Shares,
    user: Arc<str>,
}

impl Shares {
    pub(super) fn new(what: &'static str, all: usize, each: usize, reserved: usize) -> Self {
        Self(Arc::new(Parts { what, all, each, reserved, taken: Mutex::default() }))
    }

    /// A slot, if there is one for him.
    pub(super) fn take(&self, who: &Identity) -> Answer<Share> {
        let Parts { what, all, each, reserved, taken } = &*self.0;
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let in_all: usize = taken.values().sum();
        let own = taken.get(&who.user).copied().unwrap_or(0);
        let admin = who.role == Role::Admin;
        let (all, each) = if admin { (all + reserved, each + reserved) } else { (*all, *each) };
        if own >= each {
            return Err(Refusal::own_share(&format!("{own} of your {what}; {each} may at a time")));
        }
        if in_all >= all {
            let help = "try again after as many seconds as Retry-After says";
            return Err(Refusal::unavailable(format!("{in_all} {what}"), help));
        }
        taken.insert(Arc::clone(&who.user), own + 1);
        Ok(Share { of: self.clone(), user: Arc::clone(&who.user) })
    }

    /// How many slots he may have, and how many he has.
    pub(super) fn of(&self, who: &Identity) -> (usize, usize) {
        let Parts { each, reserved, taken, .. } = &*self.0;
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.get(&who.user).copied().unwrap_or(0);
        (if who.role == Role::Admin { each + reserved } else { *each }, own)
    }

    /// As [`Shares::take`], for work that is over soon: waits for a slot this long.
    pub(super) async fn wait(&self, who: &Identity, patience: Duration) -> Answer<Share> {
        let began = Instant::now();
        loop {
            match self.take(who) {
                Err(_) if began.elapsed() < patience => tokio::time::sleep(LOOK_EVERY).await,
                taken => return taken,
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.of.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(taken.remove(&self.user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::quotas::Quota;
    use super::*;
    use wattline_core::ids::UserId;

    fn who(user: &str, role: Role) -> Identity {
        Identity {
            user: user.into(),
            id: UserId(0),
            role,
            max_weight: None,
            quota: Quota::default(),
        }
    }

    #[test]
    fn each_has_his_share_and_administrators_have_theirs() {
        let shares = Shares::new("views are being planned", 3, 2, 1);
        let (alice, bob) = (who("alice", Role::User), who("bob", Role::User));
        let first = shares.take(&alice).ok();
        let _second = shares.take(&alice).ok();
        assert_eq!(shares.take(&alice).err().map(|r| r.status()), Some(429));
        let _third = shares.take(&bob).ok();
        assert_eq!(shares.take(&bob).err().map(|r| r.status()), Some(503));
        assert!(shares.take(&who("carol", Role::Admin)).is_ok());
        drop(first);
        assert!(shares.take(&bob).is_ok());
    }
}
