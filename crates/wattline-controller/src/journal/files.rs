//! The journal's file and those beside it: who holds it, who may read it, and what tells that there
//! was one.

use super::StoreError;
use super::chain::Link;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// For its owner alone: a journal has names, habits and prices.
const OWNER_ONLY: u32 = 0o600;
/// What SQLite keeps beside its file.
pub(super) const WAL: &str = "-wal";
const SHM: &str = "-shm";
/// How far the journal was written when it was written last.
pub(super) const STATE: &str = ".state";
/// What tells that there was a journal. `.lock` was made by versions that wrote format 1.
const COMPANIONS: [&str; 5] = [STATE, WAL, SHM, ".lock", ".audit"];

/// A file beside another.
pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.to_owned().into_os_string();
    name.push(ending);
    name.into()
}

/// The file itself, whatever it was called: SQLite's companions are beside that.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, StoreError> {
    match fs::canonicalize(path) {
        // Opening a pipe would wait for somebody to write into it.
        Ok(resolved) => match fs::metadata(&resolved) {
            Ok(about) if !about.is_file() => Err(StoreError::NotAFile(path.to_owned())),
            _ => Ok(resolved),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => match fs::read_link(path) {
            Ok(target) => Ok(path.parent().unwrap_or_else(|| Path::new("")).join(target)),
            Err(_) => Ok(path.to_owned()),
        },
        Err(error) => Err(StoreError::io(path, error)),
    }
}

/// A journal that is missing or empty though it has companions must not be begun anew: SQLite
/// would throw its WAL away. Says whether there is nothing at all.
pub(super) fn check_gone(path: &Path) -> Result<bool, StoreError> {
    let how = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => "missing",
        Err(error) => return Err(StoreError::io(path, error)),
        Ok(about) if about.len() == 0 => "empty",
        Ok(_) => return Ok(false),
    };
    match companion(path) {
        None => Ok(true),
        Some(companion) => {
            let entries = State::read(path).map(|state| state.last);
            Err(StoreError::Gone { path: path.to_owned(), how, companion, entries })
        }
    }
}

/// A file that tells that there was a journal.
pub(super) fn companion(path: &Path) -> Option<PathBuf> {
    COMPANIONS.iter().map(|ending| beside(path, ending)).find(|path| path.exists())
}

/// Whether something beside a file tells that it was written under this name. An empty WAL does
/// not: whoever only looks leaves one.
pub(super) fn was_written_here(path: &Path) -> bool {
    let wal = fs::metadata(beside(path, WAL)).is_ok_and(|about| about.len() > 0);
    wal || [STATE, ".lock", ".audit"].iter().any(|ending| beside(path, ending).exists())
}

/// The files that this process writes, by device and inode. Opening one of them a second time and
/// closing it again would end SQLite's locks on it.
static HELD: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// Whether this process writes a file.
pub(super) fn is_held(path: &Path) -> bool {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    fs::metadata(path).is_ok_and(|about| held.contains(&(about.dev(), about.ino())))
}

/// The lock on a journal: on the file itself, so that neither another name for it (a symbolic or
/// hard link) nor deleting something beside it lets a second writer in.
#[derive(Debug)]
pub(super) struct Hold {
    path: PathBuf,
    file: File,
    id: (u64, u64),
}

impl Hold {
    /// Takes the file, and makes it if it is not there.
    pub(super) fn take(path: &Path) -> Result<Self, StoreError> {
        let io = |source| StoreError::io(path, source);
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        if fs::metadata(path).is_ok_and(|about| held.contains(&(about.dev(), about.ino()))) {
            return Err(StoreError::InUse(path.to_owned()));
        }
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(OWNER_ONLY);
        let file = options.open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let about = file.metadata().map_err(io)?;
        let hold = Self { path: path.to_owned(), file, id: (about.dev(), about.ino()) };
        held.insert(hold.id);
        drop(held);
        // Somebody may have put another in its place since it was opened.
        hold.check()?;
        // What is written last is beside the name that was used: another name would not find it.
        if about.nlink() > 1 {
            return Err(StoreError::Linked { path: path.to_owned(), names: about.nlink() });
        }
        Ok(hold)
    }

    /// Whether the file is still where it was taken.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        match fs::metadata(&self.path) {
            Ok(about) if (about.dev(), about.ino()) == self.id => Ok(()),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(StoreError::io(&self.path, error))
            }
            _ => Err(StoreError::Moved(self.path.clone())),
        }
    }

    /// Its first bytes, at most so many.
    pub(super) fn begins_with(&self, most: usize) -> Result<Vec<u8>, StoreError> {
        let mut bytes = vec![0; most];
        let mut read = 0;
        while read < most {
            match self.file.read_at(&mut bytes[read..], read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(StoreError::io(&self.path, error)),
            }
        }
        bytes.truncate(read);
        Ok(bytes)
    }

    pub(super) fn len(&self) -> Result<u64, StoreError> {
        let about = self.file.metadata().map_err(|source| StoreError::io(&self.path, source))?;
        Ok(about.len())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        HELD.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

/// Lets nobody but the owner read the journal and what is beside it. Says what was changed.
pub(super) fn close_to_others(path: &Path) -> Result<Vec<String>, StoreError> {
    let mut notices = Vec::new();
    for path in ["", WAL, SHM, STATE, ".lock"].map(|ending| beside(path, ending)) {
        let Ok(about) = fs::metadata(&path) else { continue };
        let mode = about.permissions().mode() & 0o777;
        if about.is_file() && mode & !OWNER_ONLY != 0 {
            fs::set_permissions(&path, Permissions::from_mode(OWNER_ONLY))
                .map_err(|source| StoreError::io(&path, source))?;
            notices.push(format!(
                "{}: others could read it (mode {mode:04o}); now only its owner can (0600)",
                path.display()
            ));
        }
    }
    Ok(notices)
}

/// Moves a journal and what is beside it aside, so that another can be begun. The audit log goes
/// on. Says where the journal is now; nothing if there was none.
pub(super) fn set_aside(path: &Path, stamp: &str) -> Result<Option<PathBuf>, StoreError> {
    let aside = (1..)
        .map(|number: u32| match number {
            1 => beside(path, &format!(".old-{stamp}")),
            number => beside(path, &format!(".old-{stamp}-{number}")),
        })
        .find(|aside| ["", WAL, SHM, STATE].iter().all(|end| !beside(aside, end).exists()))
        .unwrap_or_else(|| unreachable!("names do not run out"));
    let mut moved = false;
    // The state last: if this is interrupted, it tells the next start that something is missing.
    for ending in [WAL, SHM, "", ".lock", STATE] {
        match fs::rename(beside(path, ending), beside(&aside, ending)) {
            Ok(()) => moved = true,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io(path, error)),
        }
    }
    sync_folder(path)?;
    Ok(moved.then_some(aside))
}

/// Brings new names in a folder to the disk.
pub(super) fn sync_folder(path: &Path) -> Result<(), StoreError> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let sync = File::open(folder).and_then(|folder| folder.sync_all());
    sync.map_err(|source| StoreError::io(folder, source))
}

/// How far a journal was written: in a file of its own, so that a journal that has lost its WAL is
/// noticed. It is written after the journal and never before, so it never says too much; after a
/// power failure it may say too little.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) journal: String,
    pub(super) epoch: u64,
    pub(super) last: u64,
    pub(super) link: Link,
}

const STATE_BEGINS: &str = "wattline-journal-state 1";

impl State {
    /// What the file beside a journal says; nothing if it is not there or makes no sense.
    pub(super) fn read(journal: &Path) -> Option<Self> {
        let text = fs::read_to_string(beside(journal, STATE)).ok()?;
        let (said, checksum) = text.trim_end().rsplit_once(' ')?;
        if format!("{:08x}", crc32fast::hash(said.as_bytes())) != checksum {
            return None;
        }
        let mut words = said.strip_prefix(STATE_BEGINS)?.split_whitespace();
        let mut word = |name: &str| words.next()?.strip_prefix(name)?.strip_prefix('=');
        Some(Self {
            journal: word("journal")?.to_owned(),
            epoch: word("epoch")?.parse().ok()?,
            last: word("entries")?.parse().ok()?,
            link: Link::from_str_radix(word("link")?, 16).ok()?,
        })
    }

    /// One line of always the same length, so that it can be written over.
    fn line(&self) -> String {
        let Self { journal, epoch, last, link } = self;
        let said = format!(
            "{STATE_BEGINS} journal={journal} epoch={epoch:020} entries={last:020} link={link:08x}"
        );
        let checksum = crc32fast::hash(said.as_bytes());
        format!("{said} {checksum:08x}\n")
    }
}

/// The open file with the [`State`].
#[derive(Debug)]
pub(super) struct StateFile(File);

impl StateFile {
    pub(super) fn create(journal: &Path, state: &State) -> Result<Self, StoreError> {
        let path = beside(journal, STATE);
        let io = |source| StoreError::io(&path, source);
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(OWNER_ONLY);
        let file = Self(options.open(&path).map_err(io)?);
        let line = state.line();
        file.0.write_all_at(line.as_bytes(), 0).map_err(io)?;
        file.0.set_len(line.len() as u64).map_err(io)?;
        file.0.sync_data().map_err(io)?;
        Ok(file)
    }

    /// Says how far the journal goes now. A failure does no harm: the file then says too little.
    pub(super) fn write(&self, state: &State) {
        let _ = self.0.write_all_at(state.line().as_bytes(), 0);
    }

    /// Brings it to the disk.
    pub(super) fn sync(&self) {
        let _ = self.0.sync_data();
    }
}
