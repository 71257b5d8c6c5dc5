//! The token (JWT) that slurmrestd hands on to slurmctld.

use super::error::RestError;
use serde_json::Value;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The longest one that is read. SLURM's have some 150 characters, those of a site's own issuer a few
/// thousand.
const MOST_BYTES: u64 = 16 << 10;

/// A token, and the file that it came from.
#[derive(Clone)]
pub(super) struct Token {
    pub(super) text: String,
    file: Stamp,
}

/// What changes with a file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    modified: (i64, i64),
    bytes: u64,
}

impl Stamp {
    fn of(about: &Metadata) -> Self {
        let modified = (about.mtime(), about.mtime_nsec());
        Self { inode: about.ino(), modified, bytes: about.len() }
    }
}

impl std::fmt::Debug for Token {
    /// It is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads it.
    pub(super) fn read(path: &Path) -> Result<Self, RestError> {
        let wrong = |why: String| RestError::Token { path: path.to_owned(), why };
        // It may be a link: that is how secrets come into containers.
        let open = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
        let (about, file) = open.map_err(|error| wrong(error.to_string()))?;
        if !about.is_file() {
            return Err(wrong("is not a file".to_owned()));
        }
        let mut text = String::new();
        let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
        read.map_err(|error| wrong(error.to_string()))?;
        let text = trimmed(&text).map_err(wrong)?;
        Ok(Self { text, file: Stamp::of(&about) })
    }

    /// Whether its file is another one by now.
    pub(super) fn is_old(&self, path: &Path) -> bool {
        path.metadata().map_or(true, |about| Stamp::of(&about) != self.file)
    }
}

/// The token in a file: as it is, or as `scontrol token` prints it.
fn trimmed(text: &str) -> Result<String, String> {
    let token = text.trim();
    let token = token.strip_prefix("SLURM_JWT=").unwrap_or(token);
    if token.is_empty() {
        return Err("is empty; `scontrol token username=… lifespan=…` prints one".to_owned());
    }
    if text.len() as u64 > MOST_BYTES {
        return Err(format!("has more than {MOST_BYTES} bytes"));
    }
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '=');
    if !token.chars().all(fine) || token.split('.').count() != 3 {
        return Err("has no token (JWT: three parts with dots between them)".to_owned());
    }
    Ok(token.to_owned())
}

/// What a token says about itself. Nothing is verified: slurmctld does that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    /// When it ends, in seconds since 1970.
    pub(super) ends: Option<i64>,
    /// Whose it is.
    pub(super) user: Option<String>,
}

/// What a token says about itself, if it can be read.
pub(super) fn claims(token: &str) -> Option<Claims> {
    let payload = decoded(token.split('.').nth(1)?)?;
    let payload: Value = serde_json::from_slice(&payload).ok()?;
    let user = ["sun", "username"].into_iter().find_map(|name| payload.get(name)?.as_str());
    let ends =
        payload.get("exp").and_then(|ends| ends.as_i64().or(ends.as_f64().map(|s| s as i64)));
    Some(Claims { ends, user: user.map(str::to_owned) })
}

/// Base64 for URLs, without padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' | b'+' => 62,
            b'_' | b'/' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// As `scontrol token username=alice lifespan=100` of 22.05 makes it, with another signature.
    const TOKEN: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.\
                         eyJleHAiOjE3OTUwNjg3MjMsImlhdCI6MTc5NTA2ODYyMywic3VuIjoiYWxpY2UifQ.abc-_9";

    #[test]
    fn a_token_says_whose_it_is_and_when_it_ends() {
        let said = claims(TOKEN).unwrap();
        assert_eq!(said, Claims { ends: Some(1_795_068_723), user: Some("alice".into()) });
        for odd in ["", "a.b", "a.!!.c", "a.aGFsbG8.c"] {
            assert_eq!(claims(odd), None, "{odd}");
        }
    }

    #[test]
    fn tokens_are_read_as_they_are_written_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        for text in [format!("{TOKEN}\n"), format!("SLURM_JWT={TOKEN}\n"), TOKEN.to_owned()] {
            write(&text);
            assert_eq!(Token::read(&path).unwrap().text, TOKEN);
        }
        let token = Token::read(&path).unwrap();
        assert!(!token.is_old(&path));
        write(&format!("{TOKEN}0"));
        assert!(token.is_old(&path));
        assert!(!format!("{token:?}").contains("eyJ"), "it is a secret");
        let long = "a".repeat(20_000);
        for text in ["", "\n", "no token", "a.b\r\nX: y.c", "a.b", long.as_str()] {
            write(text);
            assert!(Token::read(&path).is_err(), "{text:.20}");
        }
        assert!(Token::read(folder.path()).is_err() && Token::read(&path.join("x")).is_err());
    }
}
