//! `wattline journal`, and how a controller begins and ends with its journal.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{refused, stdout, wattline};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const SCENARIO: &str = "name = \"small\"\nseed = 3\n\
    [[nodes]]\ncount = 3\ngpu = \"h200\"\ngpus = 2\n\
    [jobs]\ncount = 4\nload = 0.9\n\
    duration = { median = \"6 min\", sigma = 0.7, min = \"1 min\", max = \"15 min\" }\n\
    gpus = [{ count = 1, share = 0.6 }, { count = 2, share = 0.4 }]\n";

/// Nobody waits longer than this for a controller.
const PATIENCE: Duration = Duration::from_secs(60);

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("small.toml"), SCENARIO).unwrap();
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    fn serve(&self, journal: &str, extra: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_wattline"));
        command
            .args(["serve", "--scenario", "small.toml", "--speed", "3000", "--json"])
            .args(["--journal", journal, "--socket", &format!("{}.sock", self.path("s"))])
            .args(extra)
            .current_dir(self.folder.path());
        command
    }

    /// A controller that stays, and has written something.
    fn running(&self, journal: &str) -> Child {
        // A file, because a controller ends when nobody reads what it prints.
        let out = self.path("out");
        let mut command = self.serve(journal, &["--stay"]);
        command.stdout(fs::File::create(&out).unwrap()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let text = fs::read_to_string(&out).unwrap();
            let mut entries = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["journal"].as_u64());
            if entries.any(|entries| entries > 0) {
                return child;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        panic!("it writes nothing: {:?}", child.wait_with_output());
    }

    /// Runs the scenario to its end.
    fn finished(&self, journal: &str) -> Output {
        let output = self.serve(journal, &[]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output
    }

    fn fails(&self, journal: &str, extra: &[&str]) -> String {
        let output = self.serve(journal, extra).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && !errors.contains("panicked"), "{errors}");
        errors
    }
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn stop(mut child: Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

/// What it says when it ends by itself.
fn ends(mut child: Child) -> String {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            let mut errors = String::new();
            std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut errors).unwrap();
            assert_eq!(status.code(), Some(1), "{errors}");
            return errors;
        }
        assert!(begun.elapsed() < PATIENCE, "it goes on");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn verified(journal: &str) -> Value {
    serde_json::from_str(&stdout(&["journal", "verify", journal, "--json"])).unwrap()
}

#[test]
fn after_a_clean_stop_a_copy_of_the_journal_alone_is_complete() {
    let place = Place::new();
    let journal = place.path("journal");
    stop(place.running("journal"));
    let copy = place.path("copy");
    fs::copy(&journal, &copy).unwrap();
    let (whole, alone) = (verified(&journal), verified(&copy));
    assert!(whole["last_entry"].as_u64().unwrap() > 0);
    assert_eq!(whole["last_entry"], alone["last_entry"]);
    assert_eq!(alone["sound"], true);
    for end in ["", ".state", ".audit"] {
        let mode = fs::metadata(format!("{journal}{end}")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{end}");
    }
}

#[test]
fn an_emptied_journal_is_refused_until_new_moves_it_aside() {
    let place = Place::new();
    let journal = place.path("journal");
    kill(place.running("journal"));
    let wal = fs::read(format!("{journal}-wal")).unwrap();
    assert!(!wal.is_empty());
    fs::write(&journal, "").unwrap();
    let errors = place.fails("journal", &[]);
    assert!(errors.contains("journal is empty") && errors.contains("--new"), "{errors}");
    assert_eq!(fs::read(format!("{journal}-wal")).unwrap(), wal);
    fs::remove_file(&journal).unwrap();
    let errors = place.fails("journal", &[]);
    assert!(errors.contains("journal is missing") && errors.contains("--new"), "{errors}");
    let output = place.serve("journal", &["--new"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("the journal that was there is now"), "{errors}");
    let names = fs::read_dir(place.folder.path()).unwrap();
    let names: Vec<PathBuf> = names.map(|entry| entry.unwrap().path()).collect();
    let is_aside = |name: &&PathBuf| {
        let name = name.to_str().unwrap();
        name.contains("journal.old-") && name.ends_with("-wal")
    };
    let aside = names.iter().find(is_aside).unwrap_or_else(|| panic!("{names:?}"));
    assert_eq!(fs::read(aside).unwrap(), wal);
    assert_eq!(verified(&journal)["sound"], true);
}

#[test]
fn a_second_controller_is_refused_by_every_name() {
    let place = Place::new();
    let journal = place.path("journal");
    let first = place.running("journal");
    std::os::unix::fs::symlink(&journal, place.path("symbolic")).unwrap();
    fs::hard_link(&journal, place.path("hard")).unwrap();
    for name in ["journal", "symbolic", "hard"] {
        let errors = place.fails(name, &[]);
        assert!(errors.contains("another controller uses this journal"), "{name}: {errors}");
    }
    let errors = place.fails("journal", &["--new"]);
    assert!(errors.contains("another controller uses this journal"), "{errors}");
    // With all that is beside it deleted.
    for end in [".state", ".audit"] {
        fs::remove_file(format!("{journal}{end}")).unwrap();
    }
    let errors = place.fails("journal", &[]);
    assert!(errors.contains("another controller uses this journal"), "{errors}");
    stop(first);
    assert_eq!(verified(&journal)["sound"], true);
}

/// Where no lock can tell, the first one ends itself: also if it has nothing to write.
#[test]
fn a_controller_whose_journal_was_replaced_ends_itself() {
    let place = Place::new();
    let journal = place.path("journal");
    let first = place.running("journal");
    fs::rename(&journal, place.path("elsewhere")).unwrap();
    fs::copy(place.path("elsewhere"), &journal).unwrap();
    let errors = ends(first);
    assert!(errors.contains("moved, deleted or replaced"), "{errors}");
}

#[test]
fn a_damaged_journal_is_verified_with_exit_code_1_and_what_can_be_saved() {
    let place = Place::new();
    let journal = place.path("journal");
    place.finished("journal");
    let last = verified(&journal)["last_entry"].as_u64().unwrap();
    let text = stdout(&["journal", "verify", &journal]);
    assert!(text.contains("result       sound"), "{text}");
    let bytes = fs::read(&journal).unwrap();
    let at = bytes.windows(11).rposition(|text| text == b"next_report").unwrap();
    let mut changed = bytes.clone();
    changed[at + 15] ^= 1;
    fs::write(&journal, changed).unwrap();
    for json in [false, true] {
        let mut args = vec!["journal", "verify", journal.as_str()];
        args.extend(json.then_some("--json"));
        let output = wattline(&args);
        assert_eq!(output.status.code(), Some(1));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(&journal) && errors.contains("damaged"), "{errors}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("can be read"), "{text}");
    }
    let errors = place.fails("journal", &[]);
    assert!(errors.contains("journal verify") && errors.contains("good"), "{errors}");
    // Cut off.
    fs::write(&journal, &bytes[..bytes.len() / 2]).unwrap();
    let errors = place.fails("journal", &[]);
    // Of so small a file perhaps nothing is left.
    let says = errors.contains("last good entry is") || errors.contains("no entry before that");
    assert!(says && errors.contains("cut off"), "{errors}");
    assert!(!errors.contains("disk I/O"), "{errors}");
    assert!(last > 4);
}

#[test]
fn a_backup_is_taken_while_the_controller_runs_and_goes_on_by_itself() {
    let place = Place::new();
    let (journal, copy) = (place.path("journal"), place.path("copy"));
    let running = place.running("journal");
    let text = stdout(&["journal", "backup", &journal, "--to", &copy, "--json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["schema"], "wattline.journal-backup/1");
    assert!(report["entries"].as_u64().unwrap() > 0);
    refused(&["journal", "backup", &journal, "--to", &copy], &["there is a file already"]);
    let prune = wattline(&["journal", "prune", &journal, "--older-than", "1 s"]);
    let errors = String::from_utf8_lossy(&prune.stderr);
    assert!(prune.status.code() == Some(1) && errors.contains("--keep-journal"), "{errors}");
    kill(running);
    assert_eq!(verified(&copy)["sound"], true);
    place.finished("copy");
    assert_eq!(verified(&copy)["last_good_entry"], verified(&copy)["last_entry"]);
}

#[test]
fn the_journal_is_shown_by_range_job_and_time() {
    let place = Place::new();
    let journal = place.path("journal");
    place.finished("journal");
    let shown = |extra: &[&str]| -> Vec<Value> {
        let args = [&["journal", "show", journal.as_str(), "--json"], extra].concat();
        let report: Value = serde_json::from_str(&stdout(&args)).unwrap();
        assert_eq!(report["schema"], "wattline.journal-show/1");
        report["entries"].as_array().unwrap().clone()
    };
    let all = shown(&["--from", "1"]);
    let number = |entry: &Value| entry["number"].as_u64().unwrap();
    assert!(all.iter().map(number).eq(1..=all.len() as u64));
    assert_eq!(
        shown(&["--from", "3", "--to", "5"]).iter().map(number).collect::<Vec<_>>(),
        [3, 4, 5]
    );
    assert_eq!(shown(&["--last", "2"]).len(), 2);
    let job = shown(&["--job", "2"]);
    assert!(!job.is_empty() && job.len() < all.len());
    let says: Vec<&str> =
        job.iter().flat_map(|e| e["says"].as_array().unwrap()).filter_map(Value::as_str).collect();
    assert!(says.iter().all(|line| line.starts_with("job 2: ")), "{says:?}");
    for part in ["submitted", "decided: runs on", "started", "finished"] {
        assert!(says.iter().any(|line| line.contains(part)), "{part}: {says:?}");
    }
    let since = shown(&["--since", "1 min"]);
    assert!(!since.is_empty() && since.len() < all.len());
    let text = stdout(&["journal", "show", "--journal", &journal]);
    assert!(text.contains("decided by wattline"), "{text}");
    refused(&["journal", "show", &place.path("none")], &["none"]);
}

#[test]
fn a_journal_without_snapshots_is_not_pruned_but_for_ended_jobs() {
    let place = Place::new();
    let file = place.path("journal");
    let journal = file.as_str();
    place.finished("journal");
    let last = verified(journal)["last_entry"].clone();
    let text = stdout(&["journal", "prune", journal, "--older-than", "1 s"]);
    assert!(text.contains("nothing can be pruned"), "{text}");
    let ended = ["journal", "prune", journal, "--history-older-than", "0 s"];
    let text = stdout(&[&ended[..], &["--dry-run"]].concat());
    assert!(text.contains("ended jobs would be pruned"), "{text}");
    let text = stdout(&ended);
    assert!(text.contains("0 entries and ") && text.contains("ended jobs pruned"), "{text}");
    // A copy alone is complete after that.
    let copy = place.path("copy");
    fs::copy(journal, &copy).unwrap();
    let copied = verified(&copy);
    assert_eq!((&copied["last_entry"], &copied["sound"]), (&last, &Value::Bool(true)));
    refused(&["journal", "prune", journal, "--to-size", "1"], &["size"]);
    assert!(Path::new(journal).exists());
}
