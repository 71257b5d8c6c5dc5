//! Tokens, kept as hashes.

use super::access::Role;
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq;
use thiserror::Error;

/// Why a file of tokens cannot be used.
#[derive(Debug, Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Others can read or change it.
    #[error("{}: others may read or change it (mode {mode:03o}); run: chmod 600 {}", path.display(), path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// A line that is none.
    #[error(
        "{}: line {line}: {what}; write \"USER ROLE SHA256\" with ROLE admin, user or read-only, and SHA256 of the token in 64 hex digits",
        path.display()
    )]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// One token.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) user: String,
    pub(super) role: Role,
    hash: [u8; 32],
}

/// All tokens.
#[derive(Clone, Debug, Default)]
pub struct Tokens(Vec<Entry>);

impl Tokens {
    /// Reads a file of lines `USER ROLE SHA256`; `#` begins a comment.
    ///
    /// # Errors
    /// When it cannot be read, others may read it, or a line makes no sense.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let io = |source| TokenError::Io { path: path.to_owned(), source };
        let mode = fs::metadata(path).map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o027 != 0 {
            return Err(TokenError::Open { path: path.to_owned(), mode });
        }
        let text = fs::read_to_string(path).map_err(io)?;
        let mut entries = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let wrong = |what: &str| TokenError::Line {
                path: path.to_owned(),
                line: at + 1,
                what: what.to_owned(),
            };
            entries.push(parse(line).map_err(wrong)?);
        }
        Ok(Self(entries))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whose token this is. Takes as long for a wrong one as for a right one.
    pub(super) fn find(&self, token: &str) -> Option<&Entry> {
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = None;
        for entry in &self.0 {
            if bool::from(entry.hash.ct_eq(&hash)) {
                found = Some(entry);
            }
        }
        found
    }
}

fn parse(line: &str) -> Result<Entry, &'static str> {
    let mut words = line.split_whitespace();
    let (Some(user), Some(role), Some(hex), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("not three words");
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    if user.len() > 64 || !user.chars().all(plain) {
        return Err("the user's name has characters that names do not have");
    }
    let role = role.parse().map_err(|()| "unknown role")?;
    let hash = digest(hex).ok_or("not a SHA-256 in hex digits")?;
    Ok(Entry { user: user.to_owned(), role, hash })
}

fn digest(hex: &str) -> Option<[u8; 32]> {
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const ALICE: &str =
        "alice user 2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90";

    fn read(text: &str, mode: u32) -> Result<Tokens, TokenError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Tokens::read(&path)
    }

    #[test]
    fn a_token_is_found_by_its_hash() {
        // printf alice | sha256sum
        let tokens = read(&format!("# mine\n\n{ALICE} # hers\n"), 0o600).unwrap();
        assert_eq!(tokens.find("alice").unwrap().user, "alice");
        assert!(tokens.find("Alice").is_none());
        assert!(tokens.find("").is_none());
    }

    #[test]
    fn what_others_may_read_is_refused() {
        for mode in [0o644, 0o604, 0o620, 0o602] {
            assert!(matches!(read(ALICE, mode), Err(TokenError::Open { .. })), "{mode:o}");
        }
        assert!(read(ALICE, 0o640).is_ok());
    }

    #[test]
    fn bad_lines_are_named() {
        for line in ["alice", "alice king 00", "alice user zz", "a/b user 00", "a user 00 x"] {
            let error = read(&format!("\n{line}\n"), 0o600).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{line}: {error}");
        }
        let odd = "alice user ".to_owned() + &"é".repeat(32);
        assert!(read(&odd, 0o600).unwrap_err().to_string().contains("SHA-256"));
    }
}
