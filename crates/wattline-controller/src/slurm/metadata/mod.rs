//! What users say about a job: `#WATTLINE key=value …` lines in a script, the same words or JSON in
//! `--comment`, and both together as the gate keeps them in the admin comment.
//!
//! All of it is anybody's text. It is only ever data: bounded, never run, quoted escaped and
//! shortened in complaints. What is wrong is complained about and left out; it never loses the rest.
//! Nothing here reads a file or knows the job's other properties.

mod value;

pub use crate::job_registry::Checkpoint;

use super::read::shown;
use jiff::tz::TimeZone;
use serde_json::Value;
use std::fmt;
use wattline_core::job::{Elasticity, Work};
use wattline_core::time::Timestamp;
use wattline_core::units::{EurosPerSecond, Seconds};

/// How much of a script is looked at, as sbatch does it for its own lines.
pub const MOST_SCRIPT_BYTES: usize = 64 << 10;
/// How much of a comment is looked at.
pub const MOST_COMMENT_BYTES: usize = 16 << 10;
/// The admin comment of a job that came through the gate begins with this word.
pub const MARK: &str = "wattline/1";
/// The word between the script's words and the comment in the admin comment.
pub const THEN_COMMENT: &str = ";";
/// The gate adds this word when there was more than fits.
pub const CUT: &str = "cut=1";

const LONGEST_WORD: usize = 256;
const MOST_WORDS: usize = 64;
const MOST_COMPLAINTS: usize = 32;

/// All keys that a user may give.
pub const KEYS: [&str; 15] = [
    "deadline",
    "weight",
    "gpus",
    "batch",
    "workload",
    "work",
    "epochs",
    "samples",
    "elasticity",
    "save",
    "load",
    "checkpoint",
    "hold",
    "nodes",
    "cut",
];

/// Fewest, most, and how many it would like to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The fewest.
    pub min: u32,
    /// The most.
    pub max: u32,
    /// What it would like to have, if said.
    pub requested: Option<u32>,
}

/// What a user asks for; nothing where he says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Asked {
    /// When it should be done.
    pub deadline: Option<Timestamp>,
    /// What it costs to be late.
    pub weight: Option<EurosPerSecond>,
    /// How many GPUs.
    pub gpus: Option<Range>,
    /// Which global batch.
    pub batch: Option<Range>,
    /// What is trained.
    pub workload: Option<String>,
    /// How many samples in all.
    pub work: Option<Work>,
    /// What may be changed.
    pub elasticity: Option<Elasticity>,
    /// How long it takes to save.
    pub save: Option<Seconds>,
    /// How long it takes to load.
    pub load: Option<Seconds>,
    /// How it is asked to save.
    pub checkpoint: Option<Checkpoint>,
    /// Whether the user wants it to wait until he says otherwise; the gate notes `sbatch --hold`.
    pub hold: Option<bool>,
}

/// Something that was said and not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Which key, escaped and shortened.
    pub key: String,
    /// What is wrong with it, in words that may be shown to anyone.
    pub why: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.why)
    }
}

/// What was understood and what was not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// What was understood.
    pub asked: Asked,
    /// What was not.
    pub complaints: Vec<Complaint>,
}

/// What relative and local times mean.
#[derive(Clone, Copy, Debug)]
pub struct When<'a> {
    /// When the job was submitted.
    pub submit: Timestamp,
    /// The site's time zone.
    pub zone: &'a TimeZone,
}

/// What the `#WATTLINE` lines of a batch script say.
///
/// Only those before the first line that is neither empty nor a comment, as with `#SBATCH`.
#[must_use]
pub fn script(script: &[u8], when: When<'_>) -> Told {
    let script = script.get(..MOST_SCRIPT_BYTES).unwrap_or(script);
    let mut words = Words::default();
    for line in script.split(|byte| *byte == b'\n') {
        let line = String::from_utf8_lossy(line);
        let line = line.trim();
        if !(line.is_empty() || line.starts_with('#')) {
            break;
        }
        if let Some(rest) = line.strip_prefix("#WATTLINE")
            && (rest.is_empty() || rest.starts_with(char::is_whitespace))
        {
            words.split(rest);
            continue;
        }
        let word = line.trim_start_matches(|c: char| c == '#' || c.is_whitespace());
        if word.get(..8).is_some_and(|word| word.eq_ignore_ascii_case("wattline"))
            && word.contains('=')
        {
            words.complain(line, "is not read: such a line begins with '#WATTLINE '");
        }
    }
    words.told(when)
}

/// What `--comment` says: `key=value` words, or a JSON object with the same keys, at its top or
/// under `wattline`. A comment without any of the keys is about something else and fine.
#[must_use]
pub fn comment(comment: &str, when: When<'_>) -> Told {
    let mut words = Words::default();
    words.comment(comment);
    words.told(when)
}

/// What the gate kept at submission; `None` if the job did not come through it.
///
/// The comment is the later word: it wins over the script, as options win over `#SBATCH` lines.
#[must_use]
pub fn admin_comment(text: &str, when: When<'_>) -> Option<Told> {
    let rest = text.strip_prefix(MARK)?;
    if !(rest.is_empty() || rest.starts_with(' ')) {
        return None;
    }
    let mut from_script = Words::default();
    let mut from_comment = Words::default();
    let separator = format!(" {THEN_COMMENT} ");
    match rest.split_once(&separator) {
        Some((words, comment)) => {
            from_script.split(words);
            from_comment.comment(comment);
        }
        None => from_script.split(rest),
    }
    from_script.overridden_by(from_comment);
    Some(from_script.told(when))
}

/// Keys and values as they were given, before anyone asks what they mean.
#[derive(Default)]
struct Words {
    given: Vec<(String, String)>,
    complaints: Vec<Complaint>,
}

impl Words {
    fn complain(&mut self, key: &str, why: impl Into<String>) {
        if self.complaints.len() < MOST_COMPLAINTS {
            self.complaints.push(Complaint { key: shown(key), why: why.into() });
        }
    }

    /// Takes `key=value` words up to a `#`.
    fn split(&mut self, text: &str) {
        for word in text.split_whitespace() {
            if word.starts_with('#') {
                break;
            }
            match word.split_once('=') {
                Some((key, value)) => self.give(key, value),
                None => self.complain(word, "has no value: expected key=value"),
            }
        }
    }

    fn comment(&mut self, text: &str) {
        let text = head(text, MOST_COMMENT_BYTES).trim();
        if text.starts_with('{') {
            return self.json(text);
        }
        let is_ours = text
            .split_whitespace()
            .any(|word| word.split_once('=').is_some_and(|(key, _)| KEYS.contains(&key)));
        if is_ours {
            self.split(text);
        }
    }

    fn json(&mut self, text: &str) {
        let object = match serde_json::from_str(text) {
            Ok(Value::Object(object)) => object,
            // It may be cut off or somebody else's: only what names us is worth a complaint.
            _ if text.contains("wattline")
                || KEYS.iter().any(|k| text.contains(&format!("\"{k}\""))) =>
            {
                return self.complain("comment", "begins with '{' but is not a JSON object");
            }
            _ => return,
        };
        let (object, all_ours) = match object.get("wattline") {
            Some(Value::Object(inner)) => (inner, true),
            Some(_) => return self.complain("wattline", "is not a JSON object"),
            None => (&object, false),
        };
        for (key, value) in object {
            if !all_ours && !KEYS.contains(&key.as_str()) {
                continue;
            }
            match value {
                Value::String(text) => self.give(key, text),
                Value::Number(number) => self.give(key, &number.to_string()),
                _ => self.complain(key, "is neither a text nor a number"),
            }
        }
    }

    fn give(&mut self, key: &str, value: &str) {
        if !KEYS.contains(&key) {
            let known =
                KEYS.iter().filter(|k| **k != "cut").copied().collect::<Vec<_>>().join(", ");
            return self.complain(key, format!("is not known: expected one of {known}"));
        }
        if value.len() > LONGEST_WORD {
            return self
                .complain(key, format!("has a value of {} bytes, which is too long", value.len()));
        }
        if let Some((_, earlier)) = self.given.iter_mut().find(|(earlier, _)| earlier == key) {
            *earlier = value.to_owned();
            return self.complain(key, "is given twice, the last one counts");
        }
        if self.given.len() < MOST_WORDS {
            self.given.push((key.to_owned(), value.to_owned()));
        }
    }

    /// The later words win, and nobody need complain about that.
    fn overridden_by(&mut self, later: Self) {
        self.given.retain(|(key, _)| !later.given.iter().any(|(k, _)| k == key));
        self.given.extend(later.given);
        self.complaints.extend(later.complaints);
        self.complaints.truncate(MOST_COMPLAINTS);
    }

    fn told(mut self, when: When<'_>) -> Told {
        let mut asked = Asked::default();
        let mut parts = (None, None);
        for (key, value) in std::mem::take(&mut self.given) {
            if let Err(why) = take(&mut asked, &mut parts, &key, &value, when) {
                self.complain(&key, why);
            }
        }
        match (asked.work, parts) {
            (None, (Some(epochs), Some(samples))) => match value::work(epochs * samples) {
                Ok(work) => asked.work = Some(work),
                Err(why) => self.complain("epochs", why),
            },
            (None, (Some(_), None)) => {
                self.complain("epochs", "needs samples=, the samples of one epoch")
            }
            (None, (None, Some(_))) => {
                self.complain("samples", "needs epochs=, how often they are seen")
            }
            (Some(_), (Some(_), _) | (_, Some(_))) => {
                self.complain(
                    "work",
                    "is given as well as epochs or samples; it is the one that counts",
                );
            }
            _ => {}
        }
        Told { asked, complaints: self.complaints }
    }
}

/// The longest beginning of so many bytes that is still text.
fn head(text: &str, most: usize) -> &str {
    (0..=most.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

fn take(
    asked: &mut Asked,
    (epochs, samples): &mut (Option<f64>, Option<f64>),
    key: &str,
    text: &str,
    when: When<'_>,
) -> Result<(), String> {
    match key {
        "deadline" => asked.deadline = Some(value::deadline(text, when)?),
        "weight" => asked.weight = Some(value::weight(text)?),
        "gpus" => asked.gpus = Some(value::range(text)?),
        "batch" => asked.batch = Some(value::range(text)?),
        "workload" => asked.workload = Some(value::workload(text)?),
        "work" => asked.work = Some(value::work(value::number(text)?)?),
        "epochs" => *epochs = Some(value::number(text)?),
        "samples" => *samples = Some(value::number(text)?),
        "elasticity" => {
            asked.elasticity = Some(text.parse().map_err(|_| {
                format!("'{}' is none of rigid, moldable, malleable, adaptive", shown(text))
            })?);
        }
        "save" => asked.save = Some(value::cost(text)?),
        "load" => asked.load = Some(value::cost(text)?),
        "checkpoint" => asked.checkpoint = Some(value::checkpoint(text)?),
        "hold" => asked.hold = Some(value::hold(text)?),
        // The gate notes that he named nodes, for when there is no controller.
        "nodes" if text == "user" => {}
        "nodes" => return Err("is the gate's; say which nodes with sbatch -N, -w or -x".into()),
        "cut" => return Err("more was said than the gate can keep, the rest is lost".into()),
        _ => return Err("is not known".into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
