//! Who asked for what, and whether he got it. Lines are only ever added.
//!
//! A thread of its own writes, so that lines that come together are written, and brought to the
//! disk, together. An answer goes out after its line is written; after a refusal, or a change by an
//! administrator, not before it is on the disk. The file is set aside when it has become large, and
//! the oldest of those is thrown away.

use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

/// The audit log cannot be opened.
#[derive(Debug, Error)]
#[error("{}: the audit log cannot be opened: {source}", path.display())]
pub struct AuditError {
    path: PathBuf,
    source: io::Error,
}

/// When a log is set aside, and how many are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A file that would become larger than this is set aside.
    pub bytes: u64,
    /// So many are kept beside the one that is written: `.1` is the youngest.
    pub files: u32,
}

impl Default for Rotation {
    fn default() -> Self {
        Self { bytes: 16 << 20, files: 8 }
    }
}

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Line<'a> {
    /// Seconds since 1970.
    pub(super) time: f64,
    pub(super) who: &'a str,
    pub(super) role: &'a str,
    pub(super) remote: &'a str,
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// `accepted` or `refused`.
    pub(super) outcome: &'a str,
    pub(super) status: u16,
    /// What was changed, or why it was refused.
    pub(super) what: &'a str,
}

impl Line<'_> {
    /// As it is written.
    pub(super) fn written(&self) -> Option<String> {
        Some(serde_json::to_string(self).ok()? + "\n")
    }
}

/// Lines that may wait to be written.
const MOST_WAITING: usize = 1024;
/// A disk that does not answer must not keep requests from being answered.
const PATIENCE: Duration = Duration::from_secs(5);

/// The audit log.
pub struct Audit(Option<mpsc::Sender<Waiting>>);

/// A line on its way.
struct Waiting {
    text: String,
    /// It must be on the disk.
    keep: bool,
    done: oneshot::Sender<()>,
}

impl Audit {
    /// Adds to this file; begins it, for its owner alone, if it is not there.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, AuditError> {
        Self::rotating(path, Rotation::default())
    }

    /// The same, set aside at another size.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn rotating(path: &Path, rotation: Rotation) -> Result<Self, AuditError> {
        let failed = |source| AuditError { path: path.to_owned(), source };
        let log = Log::open(path, rotation).map_err(failed)?;
        let (send, waiting) = mpsc::channel(MOST_WAITING);
        let write = thread::Builder::new().name("wattline-audit".to_owned());
        write.spawn(move || log.write_all_that_comes(waiting)).map_err(failed)?;
        Ok(Self(Some(send)))
    }

    /// Writes nothing down: for measurements.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Writes a line down; if it must be kept, until it is on the disk. Whoever cannot be audited
    /// is still answered: a change is in the journal already.
    pub(super) async fn write(&self, text: String, keep: bool) {
        let Some(log) = &self.0 else { return };
        let (done, written) = oneshot::channel();
        let waiting = Waiting { text, keep, done };
        let write = async {
            if log.send(waiting).await.is_ok() {
                let _ = written.await;
            }
        };
        if tokio::time::timeout(PATIENCE, write).await.is_err() {
            tracing::error!("the audit log is not written: the disk does not answer");
        }
    }
}

/// The file.
struct Log {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    size: u64,
}

impl Log {
    fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        let mut file = open(path)?;
        let mut size = file.metadata()?.len();
        if !ends_with_a_line(path, size)? {
            // The power failed within a line: what comes next is a line of its own.
            file.write_all(b"\n")?;
            size += 1;
        }
        Ok(Self { path: path.to_owned(), rotation, file, size })
    }

    /// What waits is one write, and one look at the disk.
    fn write_all_that_comes(mut self, mut lines: mpsc::Receiver<Waiting>) {
        while let Some(first) = lines.blocking_recv() {
            let mut all = vec![first];
            all.extend(std::iter::from_fn(|| lines.try_recv().ok()).take(MOST_WAITING));
            let text: String = all.iter().map(|waiting| waiting.text.as_str()).collect();
            let before = self.size;
            if let Err(error) = self.write(&text) {
                tracing::error!(
                    "{}: the audit log cannot be written: {error}",
                    self.path.display()
                );
                let written = self.size.saturating_sub(before) as usize;
                let missing = text.get(written..).unwrap_or(&text);
                tracing::error!("not in the audit log: {}", missing.trim_end());
            }
            let (kept, written): (Vec<Waiting>, Vec<Waiting>) =
                all.into_iter().partition(|waiting| waiting.keep);
            written.into_iter().for_each(Waiting::tell);
            if !kept.is_empty()
                && let Err(error) = self.file.sync_data()
            {
                tracing::error!(
                    "{}: the audit log is not on the disk: {error}",
                    self.path.display()
                );
            }
            kept.into_iter().for_each(Waiting::tell);
        }
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.size > 0 && self.size + text.len() as u64 > self.rotation.bytes {
            self.set_aside()?;
        }
        let (size, written) = write_whole_lines(&mut self.file, self.size, text.as_bytes());
        self.size = size;
        written
    }

    fn set_aside(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let aside = |number: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{number}"));
            PathBuf::from(name)
        };
        for number in (1..self.rotation.files).rev() {
            match fs::rename(aside(number), aside(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if self.rotation.files > 0 {
            fs::rename(&self.path, aside(1))?;
        } else {
            fs::remove_file(&self.path)?;
        }
        self.file = open(&self.path)?;
        self.size = 0;
        Ok(())
    }
}

/// A file to which lines are added.
trait Lines: Write {
    /// Cuts it off there.
    fn cut(&mut self, size: u64) -> io::Result<()>;
}

impl Lines for File {
    fn cut(&mut self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }
}

/// Adds lines to a file of that size, or as many of them as there is room for, each of them whole.
/// Says how large it is then.
fn write_whole_lines(file: &mut impl Lines, size: u64, lines: &[u8]) -> (u64, io::Result<()>) {
    let mut written = 0;
    let error = loop {
        if written == lines.len() {
            return (size + written as u64, Ok(()));
        }
        match file.write(&lines[written..]) {
            Ok(0) => break io::ErrorKind::WriteZero.into(),
            Ok(more) => written += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => break error,
        }
    };
    // The disk is full: the last line is there in part.
    let whole = lines[..written].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let end = size + whole as u64;
    if whole < written && file.cut(end).is_err() {
        return (size + written as u64, Err(error));
    }
    (end, Err(error))
}

fn ends_with_a_line(path: &Path, size: u64) -> io::Result<bool> {
    let Some(last) = size.checked_sub(1) else { return Ok(true) };
    let mut byte = [0];
    match File::open(path)?.read_exact_at(&mut byte, last) {
        Ok(()) => Ok(byte == *b"\n"),
        // A pipe or a terminal has no end.
        Err(_) => Ok(true),
    }
}

impl Waiting {
    fn tell(self) {
        // Whoever asked may be gone.
        let _ = self.done.send(());
    }
}

/// For its owner alone, also if somebody made it otherwise.
fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let about = file.metadata()?;
    if about.is_file() && about.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
    }
    Ok(file)
}

pub(super) fn wall_clock() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn line(what: &str) -> String {
        let line = Line {
            time: 1.0,
            who: "alice",
            role: "user",
            remote: "unix uid 7",
            method: "POST",
            path: "/v1/jobs",
            outcome: "refused",
            status: 403,
            what,
        };
        line.written().unwrap()
    }

    #[tokio::test]
    async fn a_large_log_is_set_aside_and_the_oldest_is_thrown_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let audit = Audit::rotating(&path, Rotation { bytes: 1000, files: 2 }).unwrap();
        for number in 0..40 {
            audit.write(line(&format!("number {number:02}")), number % 2 == 0).await;
        }
        let mut names: Vec<String> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["audit", "audit.1", "audit.2"]);
        let mut seen = Vec::new();
        for name in ["audit.2", "audit.1", "audit"] {
            let path = folder.path().join(name);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.len() <= 1000, "{name}: {}", text.len());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{name}");
            for line in text.lines() {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                seen.push(line["what"].as_str().unwrap().to_owned());
            }
        }
        // The last ones, each once and in order.
        let last: Vec<String> = (40 - seen.len()..40).map(|n| format!("number {n:02}")).collect();
        assert_eq!(seen, last);
        assert!(seen.len() >= 12, "{}", seen.len());
    }

    #[tokio::test]
    async fn lines_that_come_together_are_all_there_when_they_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let audit = std::sync::Arc::new(Audit::open(&path).unwrap());
        let all = (0..200).map(|number| {
            let (audit, path) = (std::sync::Arc::clone(&audit), path.clone());
            tokio::spawn(async move {
                let what = format!("number {number}");
                audit.write(line(&what), true).await;
                assert!(fs::read_to_string(path).unwrap().contains(&format!("{what}\"")));
            })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 200);
    }

    /// A disk with room for some bytes.
    struct Full {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for Full {
        fn write(&mut self, more: &[u8]) -> io::Result<usize> {
            let fits = more.len().min(self.room - self.bytes.len());
            if fits == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.extend_from_slice(&more[..fits]);
            Ok(fits)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Lines for Full {
        fn cut(&mut self, size: u64) -> io::Result<()> {
            self.bytes.truncate(size as usize);
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_tears_no_line() {
        let lines = [line("one"), line("two"), line("three")].concat();
        for room in 0..lines.len() {
            let mut file = Full { bytes: Vec::new(), room };
            let (size, written) = write_whole_lines(&mut file, 0, lines.as_bytes());
            assert_eq!(written.unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert_eq!(size, file.bytes.len() as u64);
            let text = String::from_utf8(file.bytes).unwrap();
            assert!(text.is_empty() || text.ends_with('\n'), "{room}: {text}");
            assert!(lines.starts_with(&text));
            text.lines()
                .for_each(|line| drop(serde_json::from_str::<serde_json::Value>(line).unwrap()));
        }
    }

    #[tokio::test]
    async fn after_a_torn_line_the_next_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        fs::write(&path, "{\"time\":1.0,\"wh").unwrap();
        Audit::open(&path).unwrap().write(line("next"), true).await;
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            ["{\"time\":1.0,\"wh", line("next").trim_end()]
        );
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Audit::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains(&folder.path().display().to_string()), "{error}");
    }
}
