//! How SLURM is reached: by its commands, or through slurmrestd.
//!
//! Through slurmrestd everything is read. What it has no words for is said by the commands where
//! they work, and not at all where they do not: an image may have them without a `slurm.conf`,
//! without munge, or without a way to slurmctld.

use super::command::{CommandError, Commands};
use super::config::Config;
use super::instruction::Instruction;
use super::orders::{CommandLine, Failure};
use super::read;
use super::rest::{Kind, Rest, RestError, Version};
use super::seen::{Nodes, Seen, SeenError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How SLURM is reached.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Its commands, which may not be there if there is slurmrestd.
    pub(super) commands: Commands,
    pub(super) rest: Option<Arc<Rest>>,
    /// Whether they work, where slurmrestd does the rest. All that are copied know it.
    beside: Arc<Mutex<Beside>>,
}

/// What is known of SLURM's commands beside slurmrestd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Beside {
    #[default]
    Untried,
    /// They have worked. When they fail that is an error, and means nothing else.
    Work,
    /// They have never worked although slurmrestd answered: they are not set up here.
    Useless,
}

/// How it begins what is said about an order that cannot be given.
const NO_WORDS: &str = "slurmrestd has no words to ";

/// Whether an order failed because there are no words for it: it will, whenever it is given.
pub(super) fn is_unsayable(said: &str) -> bool {
    said.contains(NO_WORDS)
}

/// The arguments of squeue for everything that it knows, also of hidden partitions: only root sees those
/// unasked.
pub(super) const FULL: [&str; 3] = ["--all", "--json", "--states=all"];

impl Link {
    /// As a site's file has it.
    pub(super) fn new(config: &Config) -> Self {
        let limit = Duration::from_secs_f64(config.command_limit.get().clamp(0.1, 3600.0));
        let rest = config.rest_in_use().map(|rest| Arc::new(Rest::new(rest.clone(), limit)));
        let commands = Commands::new(config.slurm_conf.clone(), limit);
        Self { rest, ..Self::by_commands(commands) }
    }

    /// By commands alone.
    pub(super) fn by_commands(commands: Commands) -> Self {
        Self { commands, rest: None, beside: Arc::default() }
    }

    fn beside(&self) -> MutexGuard<'_, Beside> {
        // Nobody panics with it.
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything, at once.
    pub(super) fn look(&self) -> Result<Seen, SeenError> {
        let jobs = match &self.rest {
            None => read::jobs(&self.commands.run("squeue", &FULL)?)?,
            Some(rest) => match rest.jobs(None)?.0 {
                super::rest::Jobs::All(jobs, _) => jobs,
                // Nobody asked for changes only.
                _ => return Err(RestError::Missing("jobs").into()),
            },
        };
        let jobs = jobs.into_iter().map(Arc::new).collect();
        let nodes = Arc::new(self.nodes()?);
        Ok(Seen::new(jobs, (nodes, Default::default()), Default::default()))
    }

    /// All nodes, by name.
    pub(super) fn nodes(&self) -> Result<Nodes, SeenError> {
        let nodes = match &self.rest {
            Some(rest) => rest.nodes()?,
            None => match read::nodes(&self.commands.run("sinfo", &["--all", "--json"])?) {
                Ok(nodes) => nodes,
                // Newer releases show groups of nodes there, and older ones know only the first.
                Err(error) => self
                    .commands
                    .run("scontrol", &["show", "nodes", "--json"])
                    .ok()
                    .and_then(|text| read::nodes(&text).ok())
                    .ok_or(error)?,
            },
        };
        Ok(nodes.into_iter().map(|node| (node.name.clone(), node)).collect())
    }

    /// Tells slurmctld something, however long that takes.
    pub(super) fn tell(&self, instruction: &Instruction) -> Result<(), Failure> {
        if let Some(rest) = &self.rest {
            match rest.tell(instruction) {
                Ok(told) => return told.map_err(Failure::from),
                Err(kind) if !self.has_commands() => {
                    let lacks =
                        if self.are_installed() { "do not work here" } else { "are not there" };
                    let said = format!("{NO_WORDS}{kind}, and SLURM's commands {lacks}");
                    return Err(Failure { said, unanswered: false });
                }
                Err(_) => {}
            }
        }
        let CommandLine { program, args } = instruction.line();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.commands.run(program, &args).map(drop).map_err(Failure::from)
    }

    /// Whether SLURM's commands can be used, as far as is known.
    pub(super) fn has_commands(&self) -> bool {
        self.rest.is_none() || (self.are_installed() && *self.beside() != Beside::Useless)
    }

    /// Whether the commands that orders need are installed.
    pub(super) fn are_installed(&self) -> bool {
        ["scontrol", "scancel"].iter().all(|program| self.commands.has(program))
    }

    /// A command has told what it was asked for.
    pub(super) fn commands_worked(&self) {
        *self.beside() = Beside::Work;
    }

    /// A command has failed just after slurmrestd has answered. Says whether there is no more to
    /// expect of them: then all goes on as where they are not installed.
    pub(super) fn commands_are_useless(&self, error: &SeenError) -> bool {
        let mut beside = self.beside();
        let never = self.rest.is_some() && *beside != Beside::Work;
        // What they tell, and we do not understand, is no reason to go on without.
        let useless = never && matches!(error, SeenError::Command(_));
        if useless {
            *beside = Beside::Useless;
        }
        useless
    }

    /// Whether such an instruction can be given at all.
    pub(super) fn can(&self, kind: Kind) -> bool {
        self.rest.as_ref().is_none_or(|rest| rest.can(kind)) || self.has_commands()
    }

    /// What cannot be said over slurmrestd, and the version that it speaks: what needs the commands.
    pub(super) fn lacking(&self) -> Option<(Version, Vec<Kind>)> {
        let rest = self.rest.as_ref()?;
        let version = rest.known_version()?;
        let lacking: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| !rest.can(*kind)).collect();
        (!lacking.is_empty()).then_some((version, lacking))
    }

    /// Whether the commands reach slurmctld.
    ///
    /// # Errors
    /// When they do not.
    pub(super) fn commands_answer(&self) -> Result<(), CommandError> {
        self.commands.run("scontrol", &["ping"]).map(drop)?;
        self.commands_worked();
        Ok(())
    }
}

impl From<RestError> for Failure {
    fn from(error: RestError) -> Self {
        Self { unanswered: error.is_unanswered(), said: error.to_string() }
    }
}
