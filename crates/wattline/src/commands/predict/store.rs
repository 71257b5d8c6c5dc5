//! The store: measurements that were imported, in a file of the same columns.
//!
//! It only grows, and is replaced as a whole: a new file is written beside it, made durable and put
//! in its place, so that readers see the old rows or all of them, whatever happens in between.

use crate::failure::{Failure, Result};
use anyhow::{Context, anyhow};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use wattline_world::measured::{COLUMNS, Row, read_lines};

/// Identical rows, by the text of the row, and how often each stands there.
pub(super) type Counts = BTreeMap<String, usize>;

/// Where measurements are kept unless something else is said.
pub(super) fn default_path() -> Result<PathBuf> {
    // The base directory specification: a relative path is to be ignored.
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .ok_or_else(|| {
            Failure::input(anyhow!(
                "neither XDG_DATA_HOME nor HOME says where measurements are kept; name the file"
            ))
        })?;
    Ok(data.join("wattline/measurements.csv"))
}

/// The file to read: the one that was named, or the store.
pub(super) fn to_read(named: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path.to_owned());
    }
    let path = default_path()?;
    if path.try_exists().unwrap_or(true) {
        return Ok(path);
    }
    Err(Failure::input(anyhow!(
        "no measurements yet: {} is not there; run `wattline predict import FILE` first, or name a \
         file with --measurements",
        path.display()
    )))
}

/// A row as it stands in the store: equal rows have equal text.
pub(super) fn line(row: &Row) -> Result<String> {
    let number = |x: Option<f64>| x.map_or_else(String::new, |x| x.to_string());
    let fields = [
        row.workload.to_string(),
        row.gpu.to_string(),
        row.nodes.to_string(),
        row.gpus.to_string(),
        row.global_batch.to_string(),
        number(row.power_limit_w),
        row.samples.to_string(),
        row.seconds.to_string(),
        number(row.power_w),
    ];
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&fields).map_err(|error| Failure::Failed(error.into()))?;
    let bytes = writer.into_inner().map_err(|error| Failure::Failed(anyhow!("{error}")))?;
    String::from_utf8(bytes).map_err(|error| Failure::Failed(error.into()))
}

/// What is in a store.
pub(super) struct Contents {
    /// Word for word: what was kept once is never written anew.
    text: String,
    pub(super) counts: Counts,
}

/// Reads a store; one that is not there is empty, one that cannot be read is an error.
pub(super) fn read(path: &Path) -> Result<Contents> {
    let header = COLUMNS.join(",");
    let file = path.display();
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => format!("{header}\n"),
        Err(error) => {
            let advice = format!("cannot read the store {file}; nothing was changed");
            return Err(Failure::Input(anyhow::Error::new(error).context(advice)));
        }
    };
    if text.lines().next().map(str::trim_end) != Some(&header) {
        return Err(Failure::input(anyhow!(
            "{file} is no store: its first line must be {header}; nothing was changed. Name another \
             file with --into, or move this one away"
        )));
    }
    let mut counts = Counts::new();
    let (_, lines) = read_lines(text.as_bytes(), &file.to_string()).map_err(Failure::input)?;
    for each in lines {
        let row = each
            .row
            .context("the store has a bad row; correct it or remove it; nothing was changed")
            .map_err(Failure::Input)?;
        *counts.entry(line(&row)?).or_default() += 1;
    }
    Ok(Contents { text, counts })
}

/// Holds off other imports until it is dropped.
pub(super) struct Lock {
    _file: File,
}

/// Waits for other imports into this store.
pub(super) fn lock(path: &Path) -> Result<Lock> {
    let failed = |what: &str, path: &Path, error: io::Error| {
        let context = format!("cannot {what} {}; nothing was changed", path.display());
        Failure::Failed(anyhow::Error::new(error).context(context))
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder).map_err(|e| failed("create the folder", folder, e))?;
    }
    let beside = beside(path, ".lock");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&beside)
        .map_err(|e| failed("open the lock", &beside, e))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            crate::output::note("waiting for another import to end");
            file.lock().map_err(|e| failed("lock", &beside, e))?;
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock", &beside, error)),
    }
    Ok(Lock { _file: file })
}

/// Puts more lines at the end of a store. The caller holds its lock.
pub(super) fn append(path: &Path, old: &Contents, lines: &[String], _: &Lock) -> Result<()> {
    // Where the store is a link, what it leads to is replaced, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let new = beside(&path, ".new");
    let written = write(&path, &new, old, lines);
    if written.is_err() {
        // The old store is untouched; a leftover is overwritten by the next import.
        let _ = fs::remove_file(&new);
    }
    written
        .with_context(|| format!("cannot write {}; the old store is untouched", path.display()))
        .map_err(Failure::Failed)
}

fn write(path: &Path, new: &Path, old: &Contents, lines: &[String]) -> io::Result<()> {
    let mut file = File::create(new)?;
    file.write_all(old.text.as_bytes())?;
    if !old.text.ends_with('\n') {
        file.write_all(b"\n")?;
    }
    for line in lines {
        file.write_all(line.as_bytes())?;
    }
    if let Ok(metadata) = fs::metadata(path) {
        file.set_permissions(metadata.permissions())?;
    }
    file.sync_all()?;
    fs::rename(new, path)?;
    // The name is durable once its folder is; some file systems cannot do that, none needs it more.
    if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}
