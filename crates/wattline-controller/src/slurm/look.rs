//! Looks at SLURM that cost what has changed.
//!
//! Each look reads one line of text for each job ([`compact`]) and applies those that differ from
//! the line before to the job's record. Records come from full answers (`squeue --json`), which take
//! seconds for ten thousand jobs: the first one is waited for, later ones are read beside the looks,
//! when a job is there of which no record is, or lines do not tell enough, and every now and then.
//! A full answer is only a new base: the next lines go over it, so that its age does not matter.
//!
//! Where lines are not understood each look reads the full answer, as if there were no lines.

use super::command::Commands;
use super::link::{FULL, Link};
use super::orders::{Stamp, Ticks};
use super::read::compact::{self, Applied, Entry};
use super::read::{self, JobKey, SlurmJob};
use super::rest::{Jobs, Rest, RestError};
use super::rules::Rules;
use super::seen::{Nodes, Seen, SeenError, node_is};
use super::{progress, seen::NodeIs};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// A full answer is read at least this often, for what lines do not tell: a comment, a name, nodes
/// that are excluded. At 3 s for ten thousand jobs these are 1 % of the time; with half of it the
/// cost doubles, with twice as much its owner waits ten minutes for what he has changed.
const FULL_EVERY: Duration = Duration::from_secs(300);
/// Between full answers there are at least so many times as long as one takes: jobs come in all the
/// time, and slurmctld has others to answer. At ten thousand jobs a new one is known within 15 s.
const FULL_SHARE: u32 = 4;
/// A full answer that takes no longer than this is waited for: a job that is new in a short queue
/// is known at the same look. At 0.3 ms for each job these are 800 jobs.
const FULL_WAITED_FOR: Duration = Duration::from_millis(250);
/// Jobs whose GPUs are asked for at one look, at some 10 ms each. The others wait for the next one.
const MOST_DETAILS: usize = 64;
/// Nodes on which nothing happens are asked for this often: what an administrator does to them and
/// nodes that are lost are known within three seconds. Half costs 15 commands a minute more.
const NODES_EVERY: Duration = Duration::from_millis(2_500);

/// slurmrestd is believed that nothing has changed for this long. slurmctld notes a change of a job's
/// state at once, but not each reason why a job waits. Half of it, and a queue in which nothing
/// happens costs twice as many whole answers.
const WHOLE_EVERY: Duration = Duration::from_secs(15);
/// And for this many times as long as a whole answer takes: 3 % of slurmrestd's time for large queues.
const WHOLE_SHARE: u32 = 30;
/// Reservations are asked for this often: those who make them do so hours before. Half costs four
/// commands a minute more.
const RULES_EVERY: Duration = Duration::from_secs(30);
/// Commands that do not work beside slurmrestd are tried again after this many times as long as they
/// took to fail: a look waits for them.
const USELESS_SHARE: u32 = 30;
/// One that a job names, and that is not known, is asked for after this long, again and again.
const RULES_AT_ONCE: Duration = Duration::from_secs(5);

type Full = (Result<Vec<SlurmJob>, SeenError>, Duration);

/// What is known of SLURM from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Looker {
    jobs: BTreeMap<u32, Record>,
    nodes: Option<NodesRead>,
    rules: Option<RulesRead>,
    full: FullAnswers,
    /// Nobody needs to know which GPUs jobs hold.
    skips_gpus: bool,
    /// What those said last that have ended: they say nothing new.
    ended: BTreeMap<JobKey, Option<progress::Said>>,
    /// The last whole answer of slurmrestd.
    whole: Option<Whole>,
}

/// An answer of slurmrestd that had all jobs.
#[derive(Clone, Copy, Debug)]
struct Whole {
    /// slurmctld's time then.
    as_of: i64,
    at: Instant,
    took: Duration,
}

/// A job, and the line that it was brought up to date with; none if it came with a full answer.
#[derive(Debug)]
struct Record {
    job: Arc<SlurmJob>,
    line: Option<Box<str>>,
    /// Which GPUs it holds is not known.
    lacks_gpus: bool,
}

#[derive(Debug)]
struct NodesRead {
    nodes: Arc<Nodes>,
    stamp: Stamp,
    at: Instant,
    /// Some are on their way to sleep or up.
    moving: bool,
}

#[derive(Debug)]
struct RulesRead {
    rules: Arc<Rules>,
    at: Instant,
    took: Duration,
}

/// When full answers were read, and the one that is being read.
#[derive(Debug, Default)]
struct FullAnswers {
    last: Option<(Instant, Duration)>,
    wanted: bool,
    beside: Option<JoinHandle<Full>>,
}

impl FullAnswers {
    fn is_due(&self) -> bool {
        self.last.is_none_or(|(ended, took)| {
            let pause = if self.wanted { took * FULL_SHARE } else { FULL_EVERY };
            ended.elapsed() >= pause.min(FULL_EVERY)
        })
    }

    fn is_quick(&self) -> bool {
        self.last.is_some_and(|(_, took)| took <= FULL_WAITED_FOR)
    }

    fn ended(&mut self, took: Duration, fine: bool) {
        self.last = Some((Instant::now(), took));
        self.wanted &= !fine;
    }
}

fn read_full(commands: &Commands) -> Full {
    let began = Instant::now();
    let jobs = commands
        .run("squeue", &FULL)
        .map_err(SeenError::from)
        .and_then(|text| Ok(read::jobs(&text)?));
    (jobs, began.elapsed())
}

impl Looker {
    /// One that does not ask which GPUs jobs hold that have just started.
    pub(super) fn without_gpus() -> Self {
        Self { skips_gpus: true, ..Self::default() }
    }

    /// Looks at SLURM.
    ///
    /// # Errors
    /// When it does not answer, or what it says is not understood: then nothing is known.
    pub(super) fn look(&mut self, link: &Link, ticks: &Ticks) -> Result<Seen, SeenError> {
        let began = ticks.next();
        let moved = match &link.rest {
            Some(rest) => self.read_rest(rest)?,
            None => self.read_by_commands(&link.commands)?,
        };
        let nodes = self.nodes(link, ticks, moved)?;
        let rules = if self.skips_gpus { Arc::default() } else { self.rules(link)? };
        let jobs = self.jobs.values().map(|record| Arc::clone(&record.job)).collect();
        let mut seen = Seen::new(jobs, nodes, began);
        seen.rules = rules;
        let lacking = self.jobs.iter().filter(|(_, record)| record.lacks_gpus);
        seen.lacks_gpus = lacking.map(|(id, _)| *id).collect();
        Ok(seen)
    }

    /// Brings all records up to date. Says whether any job may have taken or left GPUs.
    fn read_by_commands(&mut self, commands: &Commands) -> Result<bool, SeenError> {
        let begun = Instant::now();
        self.take_full(commands)?;
        match self.read_lines(commands) {
            // Without lines that make sense only a full answer says what is.
            Err(SeenError::Read(_)) => {
                if self.full.last.is_none_or(|(ended, _)| ended < begun) {
                    self.read_full(commands)?;
                }
                Ok(true)
            }
            other => other,
        }
    }

    /// The same through slurmrestd: whole answers, and none where nothing has changed.
    fn read_rest(&mut self, rest: &Rest) -> Result<bool, SeenError> {
        let begun = Instant::now();
        let pause = |took: Duration| WHOLE_EVERY.max(took * WHOLE_SHARE);
        let recent = self.whole.filter(|whole| whole.at.elapsed() < pause(whole.took));
        let since = recent.map(|whole| whole.as_of);
        let (mut jobs, mut as_of) = rest.jobs(since)?;
        if since.is_some() && jobs == Jobs::Unclear {
            (jobs, as_of) = rest.jobs(None)?;
        }
        match jobs {
            Jobs::Unchanged => Ok(false),
            Jobs::All(jobs, _) => {
                self.whole = Some(Whole { as_of, at: begun, took: begun.elapsed() });
                self.rebase(jobs);
                Ok(true)
            }
            Jobs::Unclear => Err(RestError::Missing("jobs").into()),
        }
    }

    /// The same, with what jobs say about themselves there.
    pub(super) fn look_all(
        &mut self,
        link: &Link,
        ticks: &Ticks,
        folder: Option<&Path>,
    ) -> Result<Seen, SeenError> {
        let mut seen = self.look(link, ticks)?;
        let Some(folder) = folder else { return Ok(seen) };
        let (mut still, mut all) = (BTreeMap::new(), BTreeMap::new());
        for job in seen.jobs() {
            if job.state.waits() && job.key.restarts == 0 {
                continue;
            }
            let read = || progress::read(folder, job.key.id, job.user_id);
            let said = if job.state.is_over() {
                let before = || self.ended.remove(&job.key).unwrap_or_else(read);
                *still.entry(job.key).or_insert_with(before)
            } else {
                read()
            };
            all.extend(said.map(|said| (job.key.id, said)));
        }
        self.ended = still;
        seen.said = all;
        Ok(seen)
    }

    /// Reads a full answer if one is due: the first one, and those that are quick, at once.
    fn take_full(&mut self, commands: &Commands) -> Result<(), SeenError> {
        if let Some(beside) = self.full.beside.take_if(|beside| beside.is_finished()) {
            // A thread that died has no answer; another one is asked.
            if let Ok((jobs, took)) = beside.join() {
                self.full.ended(took, jobs.is_ok());
                // While it could not be read lines say whether SLURM answers.
                if let Ok(jobs) = jobs {
                    self.rebase(jobs);
                }
            }
        }
        if self.full.beside.is_some() || !self.full.is_due() {
            return Ok(());
        }
        if self.full.last.is_none() || self.full.is_quick() {
            return self.read_full(commands);
        }
        let own = commands.clone();
        let name = "wattline-full-look".to_owned();
        match Builder::new().name(name).spawn(move || read_full(&own)) {
            Ok(beside) => self.full.beside = Some(beside),
            // No thread is to be had.
            Err(_) => self.read_full(commands)?,
        }
        Ok(())
    }

    fn read_full(&mut self, commands: &Commands) -> Result<(), SeenError> {
        let (jobs, took) = read_full(commands);
        let jobs = jobs?;
        self.full.ended(took, true);
        self.rebase(jobs);
        Ok(())
    }

    fn rebase(&mut self, jobs: Vec<SlurmJob>) {
        let mut before = std::mem::take(&mut self.jobs);
        let record = |job: SlurmJob| {
            let same = before.remove(&job.key.id).filter(|record| *record.job == job);
            let id = job.key.id;
            let job = same.map_or_else(|| Arc::new(job), |record| record.job);
            (id, Record { job, line: None, lacks_gpus: false })
        };
        self.jobs = jobs.into_iter().map(record).collect();
    }

    /// Brings all records up to date. Says whether any job has taken or left GPUs.
    fn read_lines(&mut self, commands: &Commands) -> Result<bool, SeenError> {
        let arguments = compact::arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let text = commands.run_in(&compact::ENVIRONMENT, "squeue", &arguments)?;
        let entries = compact::entries(&text)?;
        let mut moved = self.apply(&entries)?;
        // A job without a record is read at once if that takes no time.
        if self.full.wanted && self.full.is_quick() && self.full.is_due() {
            self.read_full(commands)?;
            moved |= self.apply(&entries)?;
        }
        if !self.skips_gpus {
            self.ask_for_gpus(commands);
        }
        Ok(moved)
    }

    fn apply(&mut self, entries: &[Entry<'_>]) -> Result<bool, SeenError> {
        let (mut moved, mut wanted) = (false, false);
        let mut before = std::mem::take(&mut self.jobs);
        let mut jobs: BTreeMap<u32, Record> = BTreeMap::new();
        let mut outcome = Ok(());
        for entry in entries {
            let known = before.get(&entry.id);
            let same = known.and_then(|record| record.line.as_ref());
            if !same.is_some_and(|line| entry.is(line)) {
                match apply_one(entry, known, &jobs) {
                    Ok(Some(one)) => {
                        moved |= one.moved;
                        wanted |= one.is_vague;
                        jobs.insert(entry.id, one.record);
                    }
                    Ok(None) => wanted = true,
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
                before.remove(&entry.id);
            } else if let Some(record) = before.remove(&entry.id) {
                jobs.insert(entry.id, record);
            }
        }
        // Who is not listed any more has left. Where a line made no sense nothing is known of that.
        moved |= before.values().any(|record| record.job.state.holds_gpus());
        if outcome.is_err() {
            jobs.append(&mut before);
        }
        self.full.wanted |= wanted;
        self.jobs = jobs;
        outcome.map(|()| moved)
    }

    /// Which GPUs jobs hold that have just started. What cannot be told is in the next full answer.
    fn ask_for_gpus(&mut self, commands: &Commands) {
        let lacking = self.jobs.values_mut().filter(|record| record.lacks_gpus);
        for record in lacking.take(MOST_DETAILS) {
            let job = &record.job;
            let number = match (job.het_job_id, job.het_job_offset) {
                (Some(het), Some(offset)) => format!("{het}+{offset}"),
                _ => job.address(),
            };
            let text = commands.run("scontrol", &["--details", "show", "job", &number]);
            let gpus = text.ok().and_then(|t| compact::gpus(&t, job.key.id, &job.nodes).ok());
            let Some(gpus) = gpus else {
                self.full.wanted = true;
                continue;
            };
            let held = Some(compact::sum(&gpus));
            record.job = Arc::new(SlurmJob { gpus, gpus_held: held, ..SlurmJob::clone(job) });
            record.lacks_gpus = false;
        }
    }

    /// Reservations and partitions, from time to time, and when a job names a reservation that is not
    /// known. Without SLURM's commands nothing is known beforehand: what SLURM refuses is learnt then.
    fn rules(&mut self, link: &Link) -> Result<Arc<Rules>, SeenError> {
        if !link.are_installed() && link.rest.is_some() {
            return Ok(Arc::default());
        }
        let works = link.has_commands();
        if let Some(read) = &self.rules {
            let lacks =
                |record: &Record| record.job.state.waits() && read.rules.lacks_one_of(&record.job);
            let age = read.at.elapsed();
            let lacks = works && age >= RULES_AT_ONCE && self.jobs.values().any(lacks);
            let pause =
                if works { RULES_EVERY } else { RULES_EVERY.max(read.took * USELESS_SHARE) };
            if age < pause && !lacks {
                return Ok(Arc::clone(&read.rules));
            }
        }
        let at = Instant::now();
        let before = self.rules.as_ref().filter(|_| works).map(|read| &*read.rules);
        let rules = match Rules::read(&link.commands, before) {
            Ok(rules) => {
                link.commands_worked();
                Arc::new(rules)
            }
            Err(error) if link.commands_are_useless(&error) => Arc::default(),
            Err(error) => return Err(error),
        };
        self.rules = Some(RulesRead { rules: Arc::clone(&rules), at, took: at.elapsed() });
        Ok(rules)
    }

    fn nodes(
        &mut self,
        link: &Link,
        ticks: &Ticks,
        moved: bool,
    ) -> Result<(Arc<Nodes>, Stamp), SeenError> {
        // Who gives everything back waits for nodes, and tells none of them twice to wake.
        let fresh = moved || self.skips_gpus;
        let old = |read: &NodesRead| fresh || read.moving || read.at.elapsed() >= NODES_EVERY;
        if let Some(read) = self.nodes.as_ref().filter(|read| !old(read)) {
            return Ok((Arc::clone(&read.nodes), read.stamp));
        }
        let (stamp, at) = (ticks.next(), Instant::now());
        let nodes = Arc::new(link.nodes()?);
        let moving = nodes.values().any(|node| matches!(node_is(node), NodeIs::Moving));
        self.nodes = Some(NodesRead { nodes: Arc::clone(&nodes), stamp, at, moving });
        Ok((nodes, stamp))
    }
}

struct One {
    record: Record,
    /// It has taken or left GPUs.
    moved: bool,
    is_vague: bool,
}

/// One record brought up to date. None: there is none to begin with.
fn apply_one(
    entry: &Entry<'_>,
    known: Option<&Record>,
    others: &BTreeMap<u32, Record>,
) -> Result<Option<One>, SeenError> {
    let applied = match known {
        Some(record) => entry.apply(&record.job)?,
        // Arrays have lower numbers than their tasks, so theirs was applied before.
        None => match entry.array().and_then(|array| others.get(&array)) {
            Some(array) => entry.split_from(&array.job)?,
            None => None,
        },
    };
    let Some(Applied { job, lacks_gpus, is_vague }) = applied else { return Ok(None) };
    let holds = job.state.holds_gpus();
    let held = known.is_some_and(|record| record.job.state.holds_gpus());
    // One that lacked them still does, unless they are in a full answer by now.
    let lacked = known.is_some_and(|record| record.lacks_gpus);
    let job = match known {
        Some(record) if *record.job == job => Arc::clone(&record.job),
        _ => Arc::new(job),
    };
    let lacks_gpus = holds && (lacks_gpus || lacked);
    let record = Record { job, line: Some(entry.text()), lacks_gpus };
    Ok(Some(One { record, moved: holds != held || lacks_gpus, is_vague }))
}
