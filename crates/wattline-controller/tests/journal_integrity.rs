//! Mishaps of a journal: each is noticed, says what to do, and loses nothing.
#![allow(clippy::unwrap_used, missing_docs)]

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rusqlite::Connection;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use wattline_controller::JournalNote;
use wattline_controller::daemon::Hour;
use wattline_controller::job_history::{EndedJob, JobHistory};
use wattline_controller::journal::{
    BackupError, Entry, Keep, Prunable, Saved, Store, StoreError, backup, verify,
};
use wattline_core::Timestamp;
use wattline_core::engine::Event;
use wattline_core::ids::JobId;
use wattline_core::job::Work;
use wattline_core::units::{Euros, EurosPerSecond, Joules, Seconds, Watts};

const ABOUT: [(&str, &str); 1] = [("cluster", "demo")];

fn entry(number: u64) -> Entry {
    let job = JobId(number as u32);
    Entry {
        at: Timestamp::from_seconds(1e6 + number as f64),
        events: vec![
            Event::Progress { job, done: Work(number as f64 / 3.0) },
            Event::Finished(job),
        ],
        next_report: number,
        acts: true,
        notes: vec![JournalNote::Ended { job, how: format!("COMPLETED by user {number}").into() }],
        decisions: Vec::new(),
    }
}

fn write(store: &mut Store, entries: std::ops::RangeInclusive<u64>) {
    for number in entries {
        store.append(&entry(number)).unwrap();
    }
}

fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory).unwrap()
    } else {
        tempfile::tempdir().unwrap()
    }
}

/// A journal with so many entries, closed.
fn journal(folder: &Path, entries: u64) -> PathBuf {
    let path = folder.join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=entries);
    store.close().unwrap();
    path
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", path.display()))
}

/// What a process that is killed leaves: the files as they are while it writes.
fn killed(path: &Path, to: &Path) {
    for ending in ["", "-wal", "-shm", ".state"] {
        fs::copy(beside(path, ending), beside(to, ending)).unwrap();
    }
}

fn read_all(store: &Store) -> Result<u64, StoreError> {
    let mut read = 0;
    store.read(|entry_read| -> Result<(), StoreError> {
        read += 1;
        assert_eq!(entry_read, entry(read));
        Ok(())
    })?;
    Ok(read)
}

fn sql(path: &Path, statement: &str) {
    let connection = Connection::open(path).unwrap();
    assert!(connection.execute(statement, ()).unwrap() > 0, "{statement}");
}

/// What opening says, which names the journal.
fn refused(path: &Path) -> String {
    let error = Store::open(path, &ABOUT).unwrap_err().to_string();
    assert!(error.contains(path.to_str().unwrap()), "{error}");
    error
}

/// A row of a table in SQLite's file: where its sizes and types are, and where its values are.
struct Cell {
    frame: std::ops::Range<usize>,
    values: std::ops::Range<usize>,
}

/// The cells of a b-tree's leaf page that hold table rows. See "B-tree Pages" and "Record Format"
/// in SQLite's description of its file format.
fn cells(page: &[u8], at: usize) -> Vec<Cell> {
    if page[0] != 0x0d {
        return Vec::new();
    }
    let count = usize::from(u16::from_be_bytes([page[3], page[4]]));
    let varint = |mut from: usize| {
        let mut number = 0;
        loop {
            number = number << 7 | usize::from(page[from] & 0x7f);
            from += 1;
            if page[from - 1] & 0x80 == 0 {
                return (number, from);
            }
        }
    };
    (0..count)
        .map(|cell| {
            let pointer = 8 + 2 * cell;
            let begin = usize::from(u16::from_be_bytes([page[pointer], page[pointer + 1]]));
            let (payload, next) = varint(begin);
            let (_, record) = varint(next);
            let (header, _) = varint(record);
            let (values, end) = (at + record + header, at + record + payload);
            Cell { frame: at + begin..values, values: values..end }
        })
        .collect()
}

/// The bytes of a journal with 300 entries, and where these are.
fn with_cells(path: &Path) -> (Vec<u8>, Vec<Cell>) {
    let bytes = fs::read(path).unwrap();
    let page_size = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    let pages = bytes.chunks(page_size).enumerate().skip(1);
    let cells: Vec<_> = pages.flat_map(|(number, page)| cells(page, number * page_size)).collect();
    // Of the journal's rows, and not of another table's.
    let says =
        |cell: &Cell| bytes[cell.values.clone()].windows(11).any(|text| text == b"next_report");
    let cells: Vec<_> = cells.into_iter().filter(says).collect();
    assert_eq!(cells.len(), 300);
    (bytes, cells)
}

/// Opens a journal in which a byte was changed, as a file alone: nothing beside it helps.
fn read_changed(bytes: &[u8], at: usize, to: u8, path: &Path) -> Result<u64, StoreError> {
    let mut changed = bytes.to_vec();
    changed[at] = to;
    fs::write(path, &changed).unwrap();
    let _ = fs::remove_file(beside(path, ".state"));
    Store::open(path, &ABOUT).and_then(|store| read_all(&store))
}

#[test]
fn a_thousand_changed_bytes_inside_entries_are_noticed() {
    let folder = folder();
    let (bytes, cells) = with_cells(&journal(folder.path(), 300));
    let copy = folder.path().join("copy");
    let mut random = Pcg64Mcg::seed_from_u64(wattline_testing::seed(17));
    for _ in 0..1000 {
        let cell = &cells[random.random_range(0..cells.len())];
        let at = random.random_range(cell.values.clone());
        let to = bytes[at] ^ random.random_range(1..=255_u8);
        let error = read_changed(&bytes, at, to, &copy).expect_err("a changed byte went unnoticed");
        let error = error.to_string();
        assert!(error.contains("copy: damaged"), "byte {at}: {error}");
        assert!(error.contains("last good entry is") || error.contains("no entry"), "{error}");
        assert!(!verify(&copy).unwrap().is_sound(), "byte {at}");
    }
}

/// The same of SQLite's own bytes around an entry: its number, its size, the types of its values.
/// Some mean nothing (the type of a number that is kept elsewhere); then every entry is read as it
/// was written.
#[test]
fn a_thousand_changed_bytes_around_entries_are_noticed_or_change_nothing() {
    let folder = folder();
    let (bytes, cells) = with_cells(&journal(folder.path(), 300));
    let copy = folder.path().join("copy");
    let mut random = Pcg64Mcg::seed_from_u64(wattline_testing::seed(18));
    let mut unnoticed = 0;
    for _ in 0..1000 {
        let cell = &cells[random.random_range(0..cells.len())];
        let at = random.random_range(cell.frame.clone());
        let to = bytes[at] ^ random.random_range(1..=255_u8);
        match read_changed(&bytes, at, to, &copy) {
            Ok(read) => {
                assert_eq!(read, 300, "byte {at}");
                unnoticed += 1;
            }
            Err(error) => assert!(error.to_string().contains("copy"), "byte {at}: {error}"),
        }
    }
    assert!(unnoticed < 20, "{unnoticed}");
}

/// With a snapshot a start does not need old entries; it says so when they are damaged.
#[test]
fn a_changed_entry_below_a_snapshot_is_told_and_does_not_stop_a_start() {
    let folder = folder();
    let path = journal(folder.path(), 20);
    let mut store = Store::open(&path, &ABOUT).unwrap();
    let saved = Saved { number: 20, at: Timestamp::from_seconds(1e6 + 20.0) };
    store.save(saved, b"image", &Keep::default()).unwrap();
    drop(store);
    sql(&path, "UPDATE journal SET entry = replace(entry, 'user 7', 'user 8') WHERE number = 7");
    let store = Store::open(&path, &ABOUT).unwrap();
    let notice = store.notices().join(" ");
    assert!(notice.contains("entry 7 is not as it was written"), "{notice}");
    assert!(notice.contains("last good entry before that is 6"), "{notice}");
    assert!(read_all(&store).unwrap_err().to_string().contains("the last good entry is 6"));
}

#[test]
fn two_hundred_truncations_name_the_journal_and_the_last_good_entry() {
    let folder = folder();
    // The tables' own pages come first in the file, and without them nothing can be read.
    let path = journal(folder.path(), 800);
    let bytes = fs::read(&path).unwrap();
    let mut random = Pcg64Mcg::seed_from_u64(wattline_testing::seed(5));
    let copy = folder.path().join("copy");
    let mut lengths: Vec<usize> = (0..195).map(|_| random.random_range(1..bytes.len())).collect();
    lengths.extend([1, 15, 16, 99, bytes.len() - 1]);
    lengths.sort_unstable();
    let mut before = 0;
    let mut some = 0;
    for length in lengths {
        fs::write(&copy, &bytes[..length]).unwrap();
        fs::copy(beside(&path, ".state"), beside(&copy, ".state")).unwrap();
        let error = refused(&copy);
        assert!(!error.contains("disk I/O"), "{length} bytes: {error}");
        let found = verify(&copy).unwrap();
        assert!(!found.is_sound(), "{length} bytes");
        let last = found.last_good;
        assert!(last >= before && last <= 800, "{length} bytes: {last} after {before}");
        let says = match last {
            0 => "no entry".to_owned(),
            last => format!("the last good entry is {last}"),
        };
        assert!(error.contains(&says), "{length} bytes: {error}");
        assert!(found.can_be_saved().contains("can be read"), "{}", found.can_be_saved());
        let look = Store::look(&copy).unwrap_err().to_string();
        assert!(look.contains("copy") && !look.contains("disk I/O"), "{length} bytes: {look}");
        // Nothing was thrown away by looking at it.
        assert_eq!(fs::metadata(&copy).unwrap().len(), length as u64);
        before = last;
        some += usize::from(last > 0);
    }
    assert!(some > 130 && before > 760, "{some} {before}");
}

/// The same of what a killed controller leaves: a journal with most entries in its WAL.
#[test]
fn truncations_of_the_wal_are_noticed() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=60);
    let copy = folder.path().join("copy");
    killed(&path, &copy);
    let wal = fs::read(beside(&copy, "-wal")).unwrap();
    let mut random = Pcg64Mcg::seed_from_u64(wattline_testing::seed(6));
    for _ in 0..100 {
        let length = random.random_range(0..wal.len() - 4096);
        killed(&path, &copy);
        fs::write(beside(&copy, "-wal"), &wal[..length]).unwrap();
        let error = refused(&copy);
        let journal_is_gone = error.contains("the journal is empty");
        assert!(journal_is_gone || error.contains("The last good entry is"), "{length}: {error}");
        let found = verify(&copy).unwrap();
        assert!(!found.is_sound(), "{length} bytes");
        let said = found.problems.join("; ");
        assert!(said.contains("copy.state") || said.contains("copy-wal"), "{length}: {said}");
        let saved = if found.last_good == 0 { "no entry can be read" } else { "entries 1 to " };
        assert!(found.can_be_saved().contains(saved), "{length}: {}", found.can_be_saved());
    }
    killed(&path, &copy);
    assert_eq!(read_all(&Store::open(&copy, &ABOUT).unwrap()).unwrap(), 60);
}

#[test]
fn a_copy_of_the_file_alone_is_complete_after_a_clean_end() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=50);
    store.close().unwrap();
    // The store is still there, as in a process whose threads have not ended.
    let copy = folder.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    assert_eq!(read_all(&Store::open(&copy, &ABOUT).unwrap()).unwrap(), 50);
    let refused = store.append(&entry(51)).unwrap_err();
    assert!(matches!(refused, StoreError::Closed(_)), "{refused}");
}

#[test]
fn a_copy_of_the_file_alone_taken_while_it_is_written_is_refused() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=50);
    // Its entries are in the WAL.
    let copy = folder.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    let before = fs::read(&copy).unwrap();
    let error = refused(&copy);
    assert!(error.contains("-wal") && error.contains("--new"), "{error}");
    assert!(error.contains("wattline journal backup"), "{error}");
    assert_eq!(fs::read(&copy).unwrap(), before);
    assert!(Store::look(&copy).is_err());
    let found = verify(&copy).unwrap();
    let said = found.problems.join("; ");
    assert!(said.contains("copy-wal") && !found.is_sound(), "{said}");
}

/// Refuses a file that was taken from a writer that had not ended, and says how to go on from it.
fn refused_without_wal(taken: &Path, last: u64) {
    let before = fs::read(taken).unwrap();
    for looked in 0..2 {
        let error = refused(taken);
        assert!(error.contains(&format!("ends with entry {last},")), "{looked}: {error}");
        assert!(error.contains("had not ended when this file"), "{looked}: {error}");
        let look = Store::look(taken).unwrap_err();
        assert!(matches!(look, StoreError::TakenWithoutWal { .. }), "{looked}: {look}");
        let found = verify(taken).unwrap();
        assert!(found.problems.join("; ").contains("had not ended when this file"), "{found:?}");
        assert_eq!(found.last_good, last, "{found:?}");
        assert_eq!(fs::read(taken).unwrap(), before, "{looked}");
    }
    // On purpose it goes on with what is there.
    let on_purpose = beside(taken, "-on-purpose");
    assert_eq!(backup(taken, &on_purpose).unwrap(), last);
    assert_eq!(read_all(&Store::open(&on_purpose, &ABOUT).unwrap()).unwrap(), last);
}

/// As above, when SQLite has brought a part of the WAL into the file meanwhile: the last entries
/// were missing without a word.
#[test]
fn a_copy_of_the_file_alone_that_lacks_the_last_entries_is_refused() {
    let folder = folder();
    let path = journal(folder.path(), 30);
    let mut store = Store::open(&path, &ABOUT).unwrap();
    // More than SQLite lets the WAL grow to.
    write(&mut store, 31..=1500);
    let copy = folder.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    let last = verify(&copy).unwrap().last.unwrap();
    assert!((31..1500).contains(&last), "{last}");
    refused_without_wal(&copy, last);
    // The journal itself goes on, as after a kill, and a clean end is told by the file.
    let killed_there = folder.path().join("killed");
    killed(&path, &killed_there);
    assert_eq!(read_all(&Store::open(&killed_there, &ABOUT).unwrap()).unwrap(), 1500);
    store.close().unwrap();
    let closed = folder.path().join("closed");
    fs::copy(&path, &closed).unwrap();
    assert_eq!(read_all(&Store::open(&closed, &ABOUT).unwrap()).unwrap(), 1500);
}

/// After `kill -9` the last entries are in the WAL beside the name that the journal was written
/// under: under another name it went on without them.
#[test]
fn a_journal_that_was_not_closed_is_refused_under_another_hard_link() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=1500);
    let left = folder.path().join("left");
    killed(&path, &left);
    drop(store);
    let last = verify(&path).unwrap().last.unwrap();
    assert_eq!(last, 1500);
    let link = folder.path().join("link");
    fs::hard_link(&left, &link).unwrap();
    for name in [&left, &link] {
        let error = refused(name);
        assert!(error.contains("2 names (hard links)") && error.contains("backup"), "{error}");
    }
    // The name that it was written under is lost.
    let other = folder.path().join("other");
    fs::rename(&left, &other).unwrap();
    fs::copy(&other, &left).unwrap();
    fs::remove_file(&other).unwrap();
    let last = verify(&link).unwrap().last.unwrap();
    assert!((1..1500).contains(&last), "{last}");
    refused_without_wal(&link, last);
    // Nothing was lost: under its own name it is complete.
    assert_eq!(read_all(&Store::open(&left, &ABOUT).unwrap()).unwrap(), 1500);
}

#[test]
fn what_is_no_file_is_refused_and_nothing_waits_for_it() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&pipe, folder.path(), Path::new("/dev/null")] {
        let says = |error: StoreError| {
            let said = error.to_string();
            assert!(said.contains("not a regular file"), "{said}");
            assert!(said.starts_with(path.to_str().unwrap()), "{said}");
        };
        says(Store::open(path, &ABOUT).unwrap_err());
        says(Store::look(path).unwrap_err());
        says(verify(path).unwrap_err());
    }
}

#[test]
fn an_emptied_or_missing_journal_beside_its_wal_is_refused_and_the_wal_is_left() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=50);
    let copy = folder.path().join("copy");
    for (how, emptied) in [("empty", true), ("missing", false)] {
        killed(&path, &copy);
        if emptied {
            fs::write(&copy, "").unwrap();
        } else {
            fs::remove_file(&copy).unwrap();
        }
        let wal = fs::read(beside(&copy, "-wal")).unwrap();
        let error = refused(&copy);
        assert!(error.contains(how) && error.contains("with 50 entries"), "{error}");
        assert!(error.contains("--new") && error.contains("backup"), "{error}");
        assert_eq!(fs::read(beside(&copy, "-wal")).unwrap(), wal);
        assert_eq!(copy.exists(), emptied);
        let found = verify(&copy).unwrap();
        assert!(found.problems.join("; ").contains(how) && !found.is_sound(), "{found:?}");
        // Each of them alone tells that there was one.
        for left in ["-wal", "-shm", ".state"] {
            let alone = folder.path().join(format!("alone{left}"));
            fs::copy(beside(&copy, left), beside(&alone, left)).unwrap();
            assert!(refused(&alone).contains("the journal is missing"), "{left}");
        }
    }
    for left in [".audit", ".lock"] {
        let alone = folder.path().join(format!("alone{left}"));
        fs::write(beside(&alone, left), "").unwrap();
        assert!(refused(&alone).contains("the journal is missing"), "{left}");
    }
    // A first start needs nothing.
    assert!(Store::open(&folder.path().join("first"), &ABOUT).unwrap().is_empty());
}

#[test]
fn a_new_journal_moves_the_old_one_aside_and_deletes_nothing() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=50);
    let error = Store::open_anew(&path, &ABOUT, "now").unwrap_err();
    assert!(matches!(error, StoreError::InUse(_)), "{error}");
    let copy = folder.path().join("copy");
    killed(&path, &copy);
    fs::write(beside(&copy, ".audit"), "who\n").unwrap();
    let (new, aside) = Store::open_anew(&copy, &ABOUT, "now").unwrap();
    assert!(new.is_empty());
    drop(new);
    let aside = aside.unwrap();
    assert_eq!(aside, folder.path().join("copy.old-now"));
    assert_eq!(read_all(&Store::open(&aside, &ABOUT).unwrap()).unwrap(), 50);
    assert_eq!(fs::read_to_string(beside(&copy, ".audit")).unwrap(), "who\n");
    // Once more in the same second, and after the journal was lost.
    fs::remove_file(&copy).unwrap();
    let (_, again) = Store::open_anew(&copy, &ABOUT, "now").unwrap();
    assert_eq!(again.unwrap(), folder.path().join("copy.old-now-2"));
    let (_, none) = Store::open_anew(&folder.path().join("first"), &ABOUT, "now").unwrap();
    assert_eq!(none, None);
}

#[test]
fn a_removed_wal_is_noticed() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=30);
    store.close().unwrap();
    drop(store);
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 31..=50);
    let copy = folder.path().join("copy");
    killed(&path, &copy);
    fs::remove_file(beside(&copy, "-wal")).unwrap();
    let error = refused(&copy);
    assert!(error.contains("ends with entry 30") && error.contains("entry 50"), "{error}");
    assert!(error.contains("-wal") && error.contains("The last good entry is 30"), "{error}");
    let found = verify(&copy).unwrap();
    assert_eq!((found.is_sound(), found.last_good, found.last), (false, 30, Some(50)));
    // On purpose it goes on with what is left.
    fs::remove_file(beside(&copy, ".state")).unwrap();
    assert_eq!(read_all(&Store::open(&copy, &ABOUT).unwrap()).unwrap(), 30);
}

#[test]
fn removed_exchanged_and_foreign_rows_are_noticed() {
    let folder = folder();
    let path = journal(folder.path(), 30);
    let other = folder.path().join("other");
    let mut store = Store::open(&other, &ABOUT).unwrap();
    write(&mut store, 1..=30);
    store.close().unwrap();
    drop(store);
    let attach = format!("ATTACH '{}' AS other", other.display());
    let changes: [(&str, &str, u64); 9] = [
        ("DELETE FROM journal WHERE number > 27", "entries 28 to 30 are missing", 27),
        ("DELETE FROM journal WHERE number = 12", "entry 12 is missing", 11),
        ("DELETE FROM journal", "entries 1 to 30 are missing", 0),
        ("UPDATE journal SET number = 31 WHERE number = 30", "entry 31", 29),
        ("UPDATE journal SET at = at + 1 WHERE number = 4", "entry 4 is not as it was written", 3),
        ("UPDATE head SET last = 29", "damaged", 0),
        ("DELETE FROM head", "missing", 30),
        ("UPDATE about SET value = 'other'", "about itself", 30),
        (
            "UPDATE journal SET (at, link, entry) = (SELECT at, link, entry FROM other.journal AS o
             WHERE o.number = 9) WHERE number = 9",
            "entry 9 is not as it was written",
            8,
        ),
    ];
    for (change, says, last_good) in changes {
        let copy = folder.path().join("copy");
        let _ = fs::remove_file(beside(&copy, ".state"));
        fs::copy(&path, &copy).unwrap();
        let connection = Connection::open(&copy).unwrap();
        connection.execute(&attach, ()).unwrap();
        assert!(connection.execute(change, ()).unwrap() > 0);
        drop(connection);
        let opened = Store::open(&copy, &ABOUT).and_then(|store| read_all(&store));
        let error = opened.expect_err(change).to_string();
        assert!(error.contains(says) && error.contains("journal verify"), "{change}: {error}");
        let found = verify(&copy).unwrap();
        assert!(!found.is_sound(), "{change}");
        if last_good > 0 {
            assert!(error.contains(&format!("the last good entry is {last_good}")), "{error}");
            assert_eq!(found.last_good, last_good, "{change}: {found:?}");
        }
    }
    // Two rows change their places.
    let copy = folder.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    for (from, to) in [(5, 100), (6, 5), (100, 6)] {
        sql(&copy, &format!("UPDATE journal SET number = {to} WHERE number = {from}"));
    }
    let error = Store::open(&copy, &ABOUT).and_then(|store| read_all(&store)).unwrap_err();
    assert!(error.to_string().contains("entry 5 is not as it was written"), "{error}");
}

#[test]
fn another_journal_in_the_place_of_one_is_noticed() {
    let folder = folder();
    let path = journal(folder.path(), 30);
    let old = folder.path().join("old");
    fs::copy(&path, &old).unwrap();
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 31..=40);
    store.close().unwrap();
    drop(store);
    // An older copy.
    let state = fs::read(beside(&path, ".state")).unwrap();
    fs::copy(&old, &path).unwrap();
    assert!(refused(&path).contains("ends with entry 30"));
    // One that went on otherwise.
    let mut store = Store::open(&old, &ABOUT).unwrap();
    for _ in 31..=45 {
        store.append(&entry(7)).unwrap();
    }
    store.close().unwrap();
    drop(store);
    fs::copy(&old, &path).unwrap();
    assert!(refused(&path).contains("another past"));
    // Another one.
    fs::remove_file(&path).unwrap();
    fs::remove_file(beside(&path, ".state")).unwrap();
    drop(Store::open(&path, &ABOUT).unwrap());
    fs::write(beside(&path, ".state"), state).unwrap();
    let error = refused(&path);
    assert!(error.contains("not the journal that was written here last"), "{error}");
}

#[test]
fn damaged_hours_and_snapshots_are_noticed() {
    let folder = folder();
    let path = journal(folder.path(), 10);
    let mut store = Store::open(&path, &ABOUT).unwrap();
    let hour = Hour { peak: Watts::new(7e3), ..Hour::default() };
    let hours = [(Timestamp::ZERO, hour), (Timestamp::from_seconds(3600.0), hour)];
    store.write_hours(&hours).unwrap();
    let saved = Saved { number: 10, at: Timestamp::from_seconds(5.0) };
    store.save(saved, b"image", &Keep::default()).unwrap();
    assert_eq!(store.hours().unwrap(), hours);
    drop(store);
    assert!(verify(&path).unwrap().is_sound());
    sql(&path, "UPDATE power SET load = replace(load, '7', '8') WHERE hour = 0");
    sql(&path, "UPDATE snapshot SET at = at + 1");
    let store = Store::open(&path, &ABOUT).unwrap();
    assert_eq!(store.hours().unwrap(), hours[1..]);
    let found = verify(&path).unwrap();
    assert!(found.problems.iter().any(|problem| problem.contains("1 hours")), "{found:?}");
    assert!(found.snapshots[0].wrong.is_some());
    // Of another journal, and with a sound checksum there.
    assert!(store.load_snapshot(store.saved().unwrap()[0]).unwrap().is_err());
}

/// A job that ended.
fn ended(id: u32) -> EndedJob {
    EndedJob {
        id: JobId(id),
        address: None,
        slurm: Some(1000 + id),
        name: "train".to_owned(),
        user: "alice".to_owned(),
        account: None,
        workload: "gpt2".to_owned(),
        elasticity: "rigid".to_owned(),
        gpus: [2, 1, 4],
        submit: Timestamp::from_seconds(f64::from(id)),
        deadline: None,
        weight: EurosPerSecond::new(1.0 / 3600.0),
        first_start: Some(Timestamp::from_seconds(f64::from(id) + 1.0)),
        ended: Timestamp::from_seconds(f64::from(id) + 10.0),
        cancelled: false,
        how: Some("completed".to_owned()),
        done: 1.0,
        restarts: 0,
        gpu_seconds: 18.0 / 7.0,
        drawn: None,
    }
}

#[test]
fn damaged_history_is_noticed_and_not_shown() {
    let folder = folder();
    let path = journal(folder.path(), 3);
    let store = Store::open(&path, &ABOUT).unwrap();
    store.file_ended(&[ended(0), ended(1), ended(2)]).unwrap();
    let measured = (Joules::new(1e6 / 3.0), Euros::new(0.1));
    store.correct_drawn(&[(JobId(1), measured.0, measured.1)]).unwrap();
    let history = JobHistory::at(&path);
    let expected = EndedJob { drawn: Some(measured), ..ended(1) };
    assert_eq!(history.job(JobId(1)).unwrap(), Some(expected));
    assert_eq!(history.job(JobId(2)).unwrap(), Some(ended(2)));
    assert_eq!(history.job(JobId(3)).unwrap(), None);
    assert!(verify(&path).unwrap().is_sound());
    drop(store);
    let tables = |statement: &str| {
        Connection::open(&path).unwrap().execute_batch(statement).unwrap();
    };
    for change in ["user = 'mallory'", "weight = weight * 2", "how = NULL", "energy = energy + 1"] {
        tables("CREATE TABLE whole AS SELECT * FROM ended_job");
        sql(&path, &format!("UPDATE ended_job SET {change} WHERE job = 1"));
        let error = JobHistory::at(&path).job(JobId(1)).unwrap_err().to_string();
        assert!(error.contains("job 1 is damaged"), "{change}: {error}");
        let found = verify(&path).unwrap();
        let told = found.problems.iter().any(|p| p.contains("what became of 1 jobs"));
        assert!(told, "{change}: {found:?}");
        tables("DELETE FROM ended_job");
        tables("INSERT INTO ended_job SELECT * FROM whole");
        tables("DROP TABLE whole");
    }
    assert!(verify(&path).unwrap().is_sound());
}

#[test]
fn a_second_writer_is_refused_by_symbolic_link() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut first = Store::open(&path, &ABOUT).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let second = Store::open(&link, &ABOUT).unwrap_err();
    assert!(matches!(second, StoreError::InUse(_)), "{second}");
    write(&mut first, 1..=2);
    drop(first);
    // Afterwards the link is the journal, with the same files beside it.
    assert_eq!(Store::open(&link, &ABOUT).unwrap().len(), 2);
    assert!(!beside(&link, ".state").exists());
}

#[test]
fn a_second_writer_is_refused_by_hard_link() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut first = Store::open(&path, &ABOUT).unwrap();
    let link = folder.path().join("link");
    fs::hard_link(&path, &link).unwrap();
    let second = Store::open(&link, &ABOUT).unwrap_err();
    assert!(matches!(second, StoreError::InUse(_)), "{second}");
    write(&mut first, 1..=2);
}

#[test]
fn a_second_writer_is_refused_when_the_files_beside_the_journal_are_deleted() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut first = Store::open(&path, &ABOUT).unwrap();
    fs::remove_file(beside(&path, ".state")).unwrap();
    let second = Store::open(&path, &ABOUT).unwrap_err();
    assert!(matches!(second, StoreError::InUse(_)), "{second}");
    write(&mut first, 1..=2);
}

/// Where no lock can tell, as on a file system without locks, the epoch in the journal does.
#[test]
fn a_writer_ends_when_another_has_opened_the_journal() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut first = Store::open(&path, &ABOUT).unwrap();
    assert_eq!(first.epoch(), 1);
    write(&mut first, 1..=2);
    // What the second one did, on a copy that knows nothing of the lock.
    let copy = folder.path().join("copy");
    killed(&path, &copy);
    assert_eq!(Store::open(&copy, &ABOUT).unwrap().epoch(), 2);
    let connection = Connection::open(&path).unwrap();
    connection.execute(&format!("ATTACH '{}' AS other", copy.display()), ()).unwrap();
    let opened = "UPDATE head SET (epoch, checksum) = (SELECT epoch, checksum FROM other.head)";
    assert_eq!(connection.execute(opened, ()).unwrap(), 1);
    drop(connection);
    let fenced = |error: StoreError| {
        assert!(matches!(error, StoreError::Fenced(_)), "{error}");
        assert!(error.to_string().contains("another controller has opened this journal since"));
    };
    fenced(first.append(&entry(3)).unwrap_err());
    fenced(first.write_hours(&[]).unwrap_err());
    fenced(first.begun_with("policy", "fifo").unwrap_err());
    let saved = Saved { number: 2, at: Timestamp::ZERO };
    fenced(first.save(saved, b"image", &Keep::default()).unwrap_err());
    drop(first);
    assert_eq!(read_all(&Store::open(&path, &ABOUT).unwrap()).unwrap(), 2);
}

#[test]
fn each_opening_raises_the_epoch() {
    let folder = folder();
    let path = folder.path().join("journal");
    for epoch in 1..4 {
        assert_eq!(Store::open(&path, &ABOUT).unwrap().epoch(), epoch);
    }
    assert_eq!(Store::look(&path).unwrap().epoch(), 3);
}

#[test]
fn a_writer_ends_when_its_journal_is_moved_or_replaced() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut first = Store::open(&path, &ABOUT).unwrap();
    write(&mut first, 1..=2);
    let moved = folder.path().join("moved");
    fs::rename(&path, &moved).unwrap();
    let error = first.append(&entry(3)).unwrap_err();
    assert!(matches!(error, StoreError::Moved(_)), "{error}");
    fs::copy(&moved, &path).unwrap();
    let error = first.append(&entry(3)).unwrap_err();
    assert!(matches!(error, StoreError::Moved(_)), "{error}");
    // Put back, it is the same again.
    fs::rename(&moved, &path).unwrap();
    write(&mut first, 3..=3);
}

#[test]
fn only_the_owner_can_read_the_journal() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=2);
    let all = ["", "-wal", "-shm", ".state"];
    let mode =
        |ending: &str| fs::metadata(beside(&path, ending)).unwrap().permissions().mode() & 0o777;
    for ending in all {
        assert_eq!(mode(ending), 0o600, "{ending}");
    }
    assert!(store.notices().is_empty(), "{:?}", store.notices());
    drop(store);
    // One that an earlier version made is repaired, with a word about it.
    for ending in ["", ".state"] {
        fs::set_permissions(beside(&path, ending), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 3..=3);
    assert!(all.iter().all(|ending| mode(ending) == 0o600));
    let notices = store.notices().join("\n");
    assert!(notices.contains("0644") && notices.contains("journal.state"), "{notices}");
}

#[test]
fn a_backup_is_complete_while_the_journal_is_written() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 1..=500);
    let to = folder.path().join("backup");
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            write(&mut store, 501..=700);
            store.len()
        });
        let entries = backup(&path, &to).unwrap();
        assert!((500..=700).contains(&entries), "{entries}");
        let copy = Store::open(&to, &ABOUT).unwrap();
        assert_eq!(read_all(&copy).unwrap(), entries);
        writer.join().unwrap()
    });
    assert_eq!(written, 700);
    assert_eq!(fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    let again = backup(&path, &to).unwrap_err();
    assert!(matches!(again, BackupError::Exists(_)), "{again}");
    // A damaged journal is not copied as if it were sound.
    drop(store);
    sql(&path, "DELETE FROM journal WHERE number = 3");
    let other = folder.path().join("other");
    let error = backup(&path, &other).unwrap_err();
    assert!(error.to_string().contains("entry 3 is missing"), "{error}");
    let names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().starts_with("other")), "{names:?}");
}

#[test]
fn only_what_two_sound_snapshots_stand_for_is_pruned() {
    let folder = folder();
    let path = journal(folder.path(), 2000);
    let mut store = Store::open(&path, &ABOUT).unwrap();
    let all = Prunable { older_than: Some(Seconds::ZERO), ..Prunable::default() };
    assert_eq!(store.prune(&all, false).unwrap().entries, 0);
    for number in [1500, 1800] {
        let saved = Saved { number, at: Timestamp::from_seconds(1e6 + number as f64) };
        store.save(saved, b"image", &Keep::default()).unwrap();
    }
    // By age: 2,000 s in all.
    let old = Prunable { older_than: Some(Seconds::new(1400.5)), ..Prunable::default() };
    let would = store.prune(&old, true).unwrap();
    assert_eq!((would.entries, would.first, would.covered), (599, 600, 1500));
    assert_eq!(store.pruned().unwrap(), 0);
    let pruned = store.prune(&old, false).unwrap();
    assert_eq!(pruned.entries, 599);
    assert!(pruned.bytes_after < pruned.bytes_before);
    let length = fs::metadata(&path).unwrap().len();
    assert_eq!(length, pruned.bytes_after);
    // By size: as far as may be.
    let half = Prunable { to_bytes: Some(length / 2), ..Prunable::default() };
    let pruned = store.prune(&half, false).unwrap();
    assert!(pruned.first > 600 && pruned.first <= 1501, "{pruned:?}");
    let tiny = Prunable { to_bytes: Some(1), ..Prunable::default() };
    assert_eq!(store.prune(&tiny, false).unwrap().first, 1501);
    drop(store);
    let found = verify(&path).unwrap();
    assert!(found.is_sound(), "{found:?}");
    assert_eq!((found.pruned, found.last_good, found.readable()), (1500, 2000, 500));
    let mut store = Store::open(&path, &ABOUT).unwrap();
    write(&mut store, 2001..=2010);
    drop(store);
    // A damaged snapshot stands for nothing.
    let store = Store::open(&path, &ABOUT).unwrap();
    let saved = Saved { number: 2005, at: Timestamp::from_seconds(1e6 + 2005.0) };
    let mut store = store;
    store.save(saved, b"image", &Keep::default()).unwrap();
    drop(store);
    sql(&path, "UPDATE snapshot SET image = x'00' WHERE number = 1800");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    assert_eq!(store.prune(&all, false).unwrap().entries, 0);
}

/// What became of jobs was kept for ever, whatever size was asked for.
#[test]
fn ended_jobs_are_pruned_by_age_and_by_size_oldest_first() {
    let folder = folder();
    let path = journal(folder.path(), 20);
    let mut store = Store::open(&path, &ABOUT).unwrap();
    // They ended at 1e6 - 20,000 s and each second after that; the last entry is at 1e6 + 20 s.
    let jobs: Vec<EndedJob> = (0..20_000_u32)
        .map(|id| {
            let ended_at = Timestamp::from_seconds(1e6 - 20_000.0 + f64::from(id));
            let address = id.is_multiple_of(3).then(|| format!("{id}_1"));
            EndedJob { ended: ended_at, address, ..ended(id) }
        })
        .collect();
    store.file_ended(&jobs).unwrap();
    let left = |path: &Path| {
        let history = JobHistory::at(path);
        (0..20_000).filter(|id| history.job(JobId(*id)).unwrap().is_some()).collect::<Vec<_>>()
    };
    let old = Prunable { ended_before: Some(Seconds::new(15_020.0)), ..Prunable::default() };
    let would = store.prune(&old, true).unwrap();
    assert_eq!((would.entries, would.ended_jobs), (0, 5_000));
    assert_eq!(left(&path).len(), 20_000, "a dry run changes nothing");
    assert_eq!(store.prune(&old, false).unwrap().ended_jobs, 5_000);
    assert_eq!(left(&path), (5_000..20_000).collect::<Vec<_>>());
    let length = fs::metadata(&path).unwrap().len();
    let half = Prunable { to_bytes: Some(length / 2), ..Prunable::default() };
    let would = store.prune(&half, true).unwrap().ended_jobs;
    let pruned = store.prune(&half, false).unwrap();
    assert_eq!(pruned.ended_jobs, would);
    assert!(pruned.bytes_after <= length / 2, "{pruned:?}");
    assert!(pruned.bytes_after > length / 3, "no more than was asked for: {pruned:?}");
    assert_eq!(fs::metadata(&path).unwrap().len(), pruned.bytes_after);
    let kept = left(&path);
    assert_eq!(kept, (20_000 - kept.len() as u32..20_000).collect::<Vec<_>>());
    // No entry is covered by snapshots, and none is gone.
    assert_eq!(read_all(&store).unwrap(), 20);
    // A controller that runs does the same with its snapshots.
    let keep = Keep { ended_within: Some(Seconds::new(120.0)), ..Keep::default() };
    let saved = Saved { number: 20, at: Timestamp::from_seconds(1e6 + 20.0) };
    store.save(saved, b"image", &keep).unwrap();
    assert_eq!(left(&path), (19_900..20_000).collect::<Vec<_>>());
    store.close().unwrap();
    assert!(verify(&path).unwrap().is_sound());
    let addresses = "SELECT count(*) FROM ended_job_address";
    let addresses: u32 =
        Connection::open(&path).unwrap().query_row(addresses, (), |row| row.get(0)).unwrap();
    assert_eq!(addresses, 33);
}

#[test]
fn numbers_that_are_not_finite_are_read_as_written() {
    let folder = folder();
    let path = folder.path().join("journal");
    let mut store = Store::open(&path, &ABOUT).unwrap();
    for done in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, -0.0, 5e-324, f64::MAX] {
        let events = vec![Event::Progress { job: JobId(0), done: Work(done) }];
        store.append(&Entry { events, ..entry(1) }).unwrap();
        let mut last = None;
        let read = store.read_after(store.len() - 1, |entry| -> Result<(), StoreError> {
            last = entry.events.into_iter().next();
            Ok(())
        });
        read.unwrap();
        let Some(Event::Progress { done: Work(read), .. }) = last else { panic!("{last:?}") };
        assert!(read.to_bits() == done.to_bits() || (read.is_nan() && done.is_nan()), "{done}");
    }
}
