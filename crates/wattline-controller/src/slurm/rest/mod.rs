//! slurmrestd instead of SLURM's commands.
//!
//! What is asked and what the answers mean are functions of text (`orders.rs`, `answer.rs`); lists of
//! jobs and nodes are read as those of the commands. [`Rest`] sends requests, with the token that is
//! in a file, and remembers which version it speaks.

mod answer;
mod client;
mod error;
mod orders;
mod token;
mod version;

pub use error::RestError;
pub use orders::Kind;
pub use version::Version;

pub(super) use answer::Jobs;
pub(super) use client::Place;

use super::instruction::Instruction;
use super::read::{self, SlurmNode};
use answer::Answer;
use client::Sender;
use orders::Request;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use token::Token;
use wattline_core::Timestamp;

/// The `[slurm.rest]` table of a site's file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestConfig {
    /// Where slurmrestd listens: `unix:/path` or `http://host:port`.
    pub url: String,
    /// The file with the token.
    pub token_file: PathBuf,
    /// Whose token it is.
    #[serde(default = "root")]
    pub user: String,
    /// The version that is spoken; none: the newest that both sides know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Control also where some orders cannot be given.
    #[serde(default)]
    pub partial: bool,
}

fn root() -> String {
    "root".to_owned()
}

impl RestConfig {
    /// What is wrong with it: the field, and what was expected.
    ///
    /// # Errors
    /// The first thing.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        Place::parse(&self.url).map_err(|why| ("url", why))?;
        if self.token_file.as_os_str().is_empty() {
            return Err(("token_file", "name the file that has the token".to_owned()));
        }
        let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
        if self.user.is_empty() || !self.user.chars().all(name) {
            return Err(("user", "expected the name of a user".to_owned()));
        }
        match &self.version {
            Some(version) if Version::parse(version).is_none() => {
                Err(("version", format!("'{version}' is none of {}", Version::known())))
            }
            _ => Ok(()),
        }
    }
}

/// How old what is known of slurmctld's clock may be: clocks that are kept by NTP drift by less than
/// a millisecond in this time.
const CLOCK_EVERY: Duration = Duration::from_secs(300);
/// Times are whole seconds, and a change in the second of a look may be older or newer than it.
const CLOCK_MARGIN_S: i64 = 2;
/// What is answered that quickly was refused: where slurmctld does not answer, slurmrestd waits for
/// its `MessageTimeout` first (9 s were seen).
const QUICK: Duration = Duration::from_secs(2);

/// What slurmctld says about itself.
#[derive(Clone, Debug)]
pub(super) struct Diagnostics {
    pub(super) release: String,
    /// Its time, in seconds since 1970.
    pub(super) time: i64,
}

/// slurmrestd, and what is remembered of it.
#[derive(Debug)]
pub(super) struct Rest {
    config: RestConfig,
    place: Place,
    limit: Duration,
    known: Mutex<Remembered>,
}

#[derive(Debug, Default)]
struct Remembered {
    token: Option<Token>,
    version: Option<Version>,
    /// slurmctld's time, and when it was told.
    clock: Option<(i64, Instant)>,
}

impl Rest {
    /// One that was not asked yet. What is wrong with its settings was told before.
    pub(super) fn new(config: RestConfig, limit: Duration) -> Self {
        // A path that nobody listens at, if the settings make no sense.
        let place = Place::parse(&config.url).unwrap_or(Place::Unix(PathBuf::from(&config.url)));
        Self { config, place, limit, known: Mutex::default() }
    }

    pub(super) fn config(&self) -> &RestConfig {
        &self.config
    }

    fn known(&self) -> MutexGuard<'_, Remembered> {
        // Nobody panics with it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token, read again if its file is another one.
    fn token(&self) -> Result<String, RestError> {
        let path = &self.config.token_file;
        let known = self.known().token.clone().filter(|token| !token.is_old(path));
        let token = match known {
            Some(token) => token,
            None => Token::read(path)?,
        };
        let text = token.text.clone();
        self.known().token = Some(token);
        Ok(text)
    }

    fn send(&self, request: &Request) -> Result<Answer, RestError> {
        let (place, user, limit) = (&self.place, self.config.user.as_str(), self.limit);
        let mut token = self.token()?;
        loop {
            let most_bytes = read::MOST_BYTES;
            let answer = Sender { place, user, token: &token, limit, most_bytes }.send(request)?;
            if answer.status != 401 {
                return Ok(answer);
            }
            // It may just have been exchanged.
            self.known().token = None;
            let next = self.token()?;
            if next == token {
                return Ok(answer);
            }
            token = next;
        }
    }

    /// Sends a request that is understood by `read`.
    fn ask<T>(
        &self,
        request: &Request,
        read: impl FnOnce(&Answer) -> Result<T, RestError>,
    ) -> Result<T, RestError> {
        let began = Instant::now();
        let result = self.send(request).and_then(|answer| read(&answer));
        result.map_err(|error| {
            if matches!(error, RestError::NotFound) {
                // Another slurmrestd is there by now.
                self.known().version = None;
            }
            self.explained(error, began.elapsed())
        })
    }

    /// slurmrestd does not tell a slurmctld that is gone from a token that it refuses; the token's own
    /// words and the time that it took do.
    fn explained(&self, error: RestError, took: Duration) -> RestError {
        if !error.may_be_token() {
            return error;
        }
        let path = self.config.token_file.display();
        let user = &self.config.user;
        let claims = self.token().ok().and_then(|token| token::claims(&token));
        let claims = claims.unwrap_or_default();
        let hint = match (claims.ends, claims.user) {
            (Some(ends), _) if ends < seconds_now() => format!(
                "the token in {path} ended {} s ago: `scontrol token username={user} lifespan=…` \
                 prints a new one",
                seconds_now() - ends
            ),
            (_, Some(whose)) if whose != *user => {
                format!("the token in {path} is of user {whose}, slurm.rest.user is {user}")
            }
            _ if took < QUICK || matches!(error, RestError::Refused(_)) => format!(
                "slurmctld refuses the token in {path}: made with another key (AuthAltParameters), or \
                 for a user that it does not know; its log says which"
            ),
            _ => "slurmctld does not answer slurmrestd".to_owned(),
        };
        let said = match error {
            RestError::Reported(said) => format!("slurmrestd reports: {said}"),
            other => other.to_string(),
        };
        RestError::Suspect { said, hint }
    }

    /// The version that is spoken; found out if it is neither set nor known.
    pub(super) fn version(&self) -> Result<Version, RestError> {
        let set = self.config.version.as_deref().and_then(Version::parse);
        if let Some(version) = set.or_else(|| self.known_version()) {
            return Ok(version);
        }
        let found =
            self.ask(&Request::get("/openapi/v3".to_owned()), |answer| match answer.status {
                401 => Err(RestError::Refused("401".to_owned())),
                200 => Version::newest_in(&answer.text)
                    .ok_or_else(|| RestError::Versions(Version::known())),
                status => Err(RestError::Status(status, "no description".to_owned())),
            })?;
        self.known().version = Some(found);
        Ok(found)
    }

    /// The version, if it is known without asking.
    pub(super) fn known_version(&self) -> Option<Version> {
        let set = self.config.version.as_deref().and_then(Version::parse);
        set.or(self.known().version)
    }

    /// What slurmctld says about itself.
    pub(super) fn diagnostics(&self) -> Result<Diagnostics, RestError> {
        let version = self.version()?;
        let request = Request::get(format!("/slurm/{version}/diag"));
        let (release, time) = self.ask(&request, answer::diagnostics)?;
        self.known().clock = Some((time, Instant::now()));
        Ok(Diagnostics { release, time })
    }

    /// slurmctld's time: no later than it is there.
    fn slurmctld_time(&self) -> Result<i64, RestError> {
        let known = self.known().clock.filter(|(_, told)| told.elapsed() < CLOCK_EVERY);
        let (time, told) = match known {
            Some(known) => known,
            None => (self.diagnostics()?.time, Instant::now()),
        };
        Ok(time + told.elapsed().as_secs() as i64 - CLOCK_MARGIN_S)
    }

    /// The queue, and slurmctld's time when it was read. `since`: as an earlier answer said.
    pub(super) fn jobs(&self, since: Option<i64>) -> Result<(Jobs, i64), RestError> {
        let version = self.version()?;
        let time = self.slurmctld_time()?;
        let query = since.map(|since| format!("?update_time={since}")).unwrap_or_default();
        let request = Request::get(format!("/slurm/{version}/jobs{query}"));
        let jobs = self.ask(&request, |answer| answer::jobs(answer, since.is_some()))?;
        let time = match &jobs {
            Jobs::All(_, Some(as_of)) => *as_of,
            _ => time,
        };
        Ok((jobs, time))
    }

    /// All nodes. They are never asked for by time: SLURM 22.05 answers with an error if nodes have
    /// changed and partitions have not.
    pub(super) fn nodes(&self) -> Result<Vec<SlurmNode>, RestError> {
        let version = self.version()?;
        self.ask(&Request::get(format!("/slurm/{version}/nodes")), answer::nodes)
    }

    /// Whether an instruction can be said.
    pub(super) fn can(&self, kind: Kind) -> bool {
        self.known_version().is_some_and(|version| kind.is_known_to(version))
    }

    /// Tells slurmctld something; says if there are no words for it.
    pub(super) fn tell(&self, instruction: &Instruction) -> Result<Result<(), RestError>, Kind> {
        let version = match self.version() {
            Ok(version) => version,
            Err(error) => return Ok(Err(error)),
        };
        let now = Timestamp::from_seconds(seconds_now() as f64);
        let requests = orders::requests(version, instruction, now)?;
        let send = |request: &Request| self.ask(request, |answer| answer::told(version, answer));
        Ok(requests.iter().try_for_each(send))
    }

    /// When the token ends, if it says so, and whose it is.
    pub(super) fn token_says(&self) -> Result<(Option<i64>, Option<String>), RestError> {
        let claims = token::claims(&self.token()?).unwrap_or_default();
        Ok((claims.ends, claims.user))
    }
}

/// Seconds since 1970, on this machine.
fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() as i64
}

#[cfg(test)]
mod tests;
