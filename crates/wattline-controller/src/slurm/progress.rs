//! How far jobs are, as they say themselves.
//!
//! A job writes `progress/NUMBER`, a line of words each time: `done=1200 saved=1000 t=1794786848.2`.
//! `done` is its work so far, `saved` what a checkpoint has of it, `t` when that was. The last
//! whole line counts. What makes no sense, is too long or is another user's file is as if it were
//! not there: jobs are believed only what could be true.

use super::bounded;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// How much of a file is looked at.
const MOST_BYTES: u64 = 4096;

/// What a job says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// Its work so far.
    pub done: f64,
    /// What a checkpoint has.
    pub saved: Option<f64>,
    /// When, in seconds since 1970.
    pub at: Option<f64>,
}

/// What a job of this user last said.
#[must_use]
pub fn read(folder: &Path, number: u32, user: u32) -> Option<Said> {
    let path = folder.join(number.to_string());
    let bytes = bounded::read_end(&path, MOST_BYTES, |about| about.uid() == user).ok()?;
    last(&String::from_utf8_lossy(&bytes))
}

/// The last whole line that makes sense.
fn last(text: &str) -> Option<Said> {
    let whole = &text[..text.rfind('\n')?];
    whole.lines().rev().find_map(line)
}

fn line(text: &str) -> Option<Said> {
    let word = |name: &str| -> Option<f64> {
        let mut words = text.split_whitespace();
        let value = words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
        value.parse().ok().filter(|value: &f64| value.is_finite() && *value >= 0.0)
    };
    let done = word("done")?;
    let saved = word("saved").filter(|saved| *saved <= done);
    Some(Said { done, saved, at: word("t") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_line_counts() {
        let said = |done, saved, at| Some(Said { done, saved, at });
        assert_eq!(last("done=1\ndone=2 saved=1 t=10.5\ndone=3"), said(2.0, Some(1.0), Some(10.5)));
        assert_eq!(last("done=1\n"), said(1.0, None, None));
        assert_eq!(last("done=1\nnonsense\ndone=NaN\ndone=-4\n"), said(1.0, None, None));
        assert_eq!(last("done=5 saved=9\n"), said(5.0, None, None));
        for text in ["", "done=1", "\n", "done=\n", "d\u{0}one=1\n", "saved=2\n"] {
            assert_eq!(last(text), None, "{text:?}");
        }
    }
}
