//! Which refusals the audit log gets one by one.
//!
//! Whoever may fill it at will can push what others did out of it. So of each user, and of all
//! clients that nobody knows together, a number of refusals a minute is written as they come. The
//! others are counted, and one line says how many there were.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Refusals that are counted together.
const WINDOW: Duration = Duration::from_secs(60);
/// Lines of unknown clients in a window, all together: some 5 kB a minute.
const UNKNOWN: u32 = 20;
/// Lines of one user in a window: some 75 kB a minute, so that one user needs 30 h to fill all that
/// is kept.
const KNOWN: u32 = 300;

/// By user; nobody stands for clients that are not known.
#[derive(Default)]
pub(super) struct Refusals(Mutex<BTreeMap<Option<Arc<str>>, Window>>);

struct Window {
    began: Instant,
    written: u32,
    left_out: u64,
}

impl Refusals {
    /// Counts a refusal. True: it is written; false: it is only counted.
    pub(super) fn is_written(&self, user: Option<&Arc<str>>, now: Instant) -> bool {
        let most = if user.is_some() { KNOWN } else { UNKNOWN };
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Window { began: now, written: 0, left_out: 0 };
        let window = windows.entry(user.cloned()).or_insert_with(fresh);
        if now.duration_since(window.began) >= WINDOW {
            // What was left out before is still to be told.
            *window = Window { left_out: window.left_out, ..fresh() };
        }
        if window.written < most {
            window.written += 1;
            return true;
        }
        window.left_out += 1;
        false
    }

    /// How many refusals were left out, of whom, in windows that are over, or in all of them.
    pub(super) fn take_left_out(&self, now: Instant, all: bool) -> Vec<(Option<Arc<str>>, u64)> {
        let mut windows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |window: &Window| all || now.duration_since(window.began) >= WINDOW;
        let told: Vec<(Option<Arc<str>>, u64)> = windows
            .iter_mut()
            .filter(|(_, window)| over(window) && window.left_out > 0)
            .map(|(user, window)| (user.clone(), std::mem::take(&mut window.left_out)))
            .collect();
        windows.retain(|_, window| !over(window));
        told
    }
}

/// What the line says.
pub(super) fn sentence(user: Option<&str>, count: u64) -> String {
    match user {
        Some(user) => format!("{count} more refusals of {user} were counted and not written"),
        None => format!("{count} more refusals of unknown clients were counted and not written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_flood_some_are_written_and_all_are_counted() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let alice: Arc<str> = "alice".into();
        let written = (0..1000).filter(|_| refusals.is_written(None, begin)).count();
        assert_eq!(written, UNKNOWN as usize);
        assert!(refusals.is_written(Some(&alice), begin), "others have their own");
        assert!(refusals.take_left_out(begin, false).is_empty(), "not before the minute is over");
        let later = begin + WINDOW;
        assert!(refusals.is_written(None, later));
        let soon = later + WINDOW;
        assert_eq!(refusals.take_left_out(soon, false), [(None, 1000 - u64::from(UNKNOWN))]);
        assert!(refusals.take_left_out(soon, false).is_empty(), "each is told once");
    }
}
