//! Files that others may have made, read without ever waiting for them.

use rustix::fs::OFlags;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The end of a file that a user owns, at most so many bytes of it, if `may` says so of what was
/// opened. A pipe that nobody writes, a device and a link are refused, not waited for: what was
/// looked at before it was opened may have been swapped since.
pub(super) fn read_end(
    path: &Path,
    most: u64,
    may: impl FnOnce(&Metadata) -> bool,
) -> Result<Vec<u8>> {
    let (mut file, about) = open(path, OFlags::NOFOLLOW)?;
    if !may(&about) {
        return Err(ErrorKind::PermissionDenied.into());
    }
    file.seek(SeekFrom::Start(about.len().saturating_sub(most)))?;
    bytes(file, most)
}

/// The beginning of a file of the administrator's, at most so many bytes of it. It may be a link.
pub(super) fn read_start(path: &Path, most: u64) -> Result<Vec<u8>> {
    bytes(open(path, OFlags::empty())?.0, most)
}

fn open(path: &Path, more: OFlags) -> Result<(File, Metadata)> {
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    let about = file.metadata()?;
    if about.is_file() {
        Ok((file, about))
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "not a regular file"))
    }
}

fn bytes(file: File, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::os::unix::fs::symlink;
    use std::process::Command;
    use std::time::{Duration, Instant};

    /// A user could stop the loop with a named pipe where his job's progress was expected: the kind
    /// of file was checked before it was opened, and could be swapped in between.
    #[test]
    fn pipes_links_and_devices_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), "x".repeat(100) + "end").unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        symlink(at("file"), at("link")).unwrap();
        let read = |path: &Path| read_end(path, 10, |_| true);
        let began = Instant::now();
        assert_eq!(read(&at("file")).unwrap(), b"xxxxxxxend");
        for name in ["pipe", "link", "missing", "."] {
            assert!(read(&at(name)).is_err(), "{name}");
        }
        assert!(read(Path::new("/dev/zero")).is_err());
        assert_eq!(read_start(&at("link"), 2).unwrap(), b"xx");
        assert!(read_start(&at("pipe"), 2).is_err() && read_start(&at("missing"), 2).is_err());
        assert!(read_end(&at("file"), 10, |about| about.len() == 0).is_err());
        assert!(began.elapsed() < Duration::from_secs(5));
    }
}
