//! This machine: who we are, what we may do, which folders there are.

use super::settings::Settings;
use super::{Finding, needed, neighbours};
use crate::slurm::command::{Commands, printable};
use crate::slurm::{Config, Slurm};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use wattline_core::Timestamp;

/// Who this program runs as.
pub(super) struct Me {
    pub(super) id: u32,
    name: String,
}

/// Who this program runs as, if that can be found out.
pub(super) fn me(commands: &Commands) -> Option<Me> {
    let id = fs::metadata("/proc/self").ok()?.uid();
    let name = commands.run("id", &["-un"]).map(|name| printable(&name)).unwrap_or_default();
    Some(Me { id, name })
}

/// Whether SLURM lets us act.
pub(super) fn rights(
    commands: &Commands,
    settings: &Settings,
    config: &Config,
    me: Option<&Me>,
) -> Finding {
    const WHAT: &str = "rights in SLURM";
    let Some(me) = me else {
        return Finding::warn(WHAT, "who this runs as is not known", "is /proc mounted?");
    };
    let Me { id, name } = me;
    // SlurmUser is written as `slurm(64030)`.
    let owner = settings.get("SlurmUser").map(String::as_str).unwrap_or_default();
    if *id == 0 || owner.ends_with(&format!("({id})")) {
        return Finding::ok(WHAT, format!("{name} ({id}), SlurmUser is {owner}"));
    }
    let who = format!("name={name}");
    let ask = ["-nP", "show", "user", "where", &who, "format=adminlevel"];
    let level = commands.run("sacctmgr", &ask).map(|level| printable(&level)).unwrap_or_default();
    if level.starts_with("Admin") {
        return Finding::ok(WHAT, format!("{name} ({id}) is a SLURM administrator"));
    }
    let found = format!("{name} ({id}) is neither root nor SlurmUser {owner}, nor administrator");
    let fix = format!(
        "run it as SlurmUser, or `sacctmgr modify user {name} set adminlevel=Admin` (an Operator \
         may not put nodes to sleep)"
    );
    needed(config.mode, WHAT, found, fix)
}

/// The folders that are read and written.
pub(super) fn folders(config: &Config, journal: &Path) -> Vec<Finding> {
    let mut found = vec![writable("journal", journal)];
    found.push(match &config.heartbeat {
        Some(path) => fallback(Path::new("/"), path).unwrap_or_else(|| writable("heartbeat", path)),
        None => {
            let fix = "slurm.heartbeat = \"/run/wattline/heartbeat\"";
            needed(config.mode, "heartbeat", "slurm.heartbeat is not set: no gate closes", fix)
        }
    });
    found.push(match &config.progress {
        Some(path) => progress(path),
        None => Finding::warn(
            "progress folder",
            "slurm.progress is not set: how far jobs are is only guessed",
            "make a folder on a shared file system (mode 1777) and name it as slurm.progress",
        ),
    });
    found
}

/// What is wrong if the fallback, where its unit is installed, looks for the heartbeat elsewhere: it
/// would take a controller that lives for dead, and release what it holds.
fn fallback(root: &Path, heartbeat: &Path) -> Option<Finding> {
    const UNIT: &str = "wattline-gate-fallback.service";
    let own = root.join("etc/systemd/system");
    let units = [own.join(UNIT), root.join("usr/lib/systemd/system").join(UNIT)];
    let unit = units.iter().find_map(|path| fs::read_to_string(path).ok())?;
    let drop_ins = fs::read_dir(own.join(format!("{UNIT}.d"))).into_iter().flatten().flatten();
    let drop_ins = drop_ins.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let path = heartbeat.display().to_string();
    let told = |text: String| text.split_whitespace().any(|word| word == path);
    let mut all = std::iter::once(unit).chain(drop_ins);
    if all.any(told) {
        return None;
    }
    let found = format!("{UNIT} looks elsewhere than at {path}, and releases jobs that we hold");
    let fix = format!(
        "systemctl edit {UNIT}: [Service], ExecStart= and ExecStart=/usr/lib/wattline/wattline-gate-fallback {path} 10"
    );
    Some(Finding::wrong("heartbeat", found, fix))
}

/// Whether a file can be made beside where this one is or will be.
fn writable(what: &'static str, path: &Path) -> Finding {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let fix = "make the folder for the user that Wattline runs as; the package's unit does so \
               (RuntimeDirectory, StateDirectory)";
    let trial = folder.join(format!(".wattline-doctor-{}", std::process::id()));
    let made = fs::OpenOptions::new().write(true).create_new(true).open(&trial);
    match made.and_then(|_| fs::remove_file(&trial)) {
        Ok(()) => Finding::ok(what, path.display().to_string()),
        Err(error) => Finding::wrong(what, format!("{}: {error}", folder.display()), fix),
    }
}

/// All users write there, and none may remove another's file.
fn progress(path: &Path) -> Finding {
    const WHAT: &str = "progress folder";
    let shown = path.display();
    match fs::metadata(path) {
        Ok(about) if !about.is_dir() => {
            let fix = format!("name a folder as slurm.progress; {shown} is none");
            Finding::wrong(WHAT, format!("{shown}: not a folder"), fix)
        }
        Ok(about) if about.permissions().mode() & 0o1777 != 0o1777 => {
            let mode = about.permissions().mode() & 0o7777;
            Finding::wrong(WHAT, format!("{shown}: mode {mode:04o}"), format!("chmod 1777 {shown}"))
        }
        Ok(_) => Finding::ok(WHAT, shown.to_string()),
        Err(error) => {
            let fix = format!("mkdir -m 1777 {shown}, on a file system that nodes share");
            Finding::wrong(WHAT, format!("{shown}: {error}"), fix)
        }
    }
}

/// The room that is left where the journal is.
pub(super) fn disk(commands: &Commands, journal: &Path) -> Finding {
    let folder = journal.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).display().to_string();
    let said = commands.run("df", &["-Pk", &folder]).unwrap_or_default();
    neighbours::disk(&said, &folder)
}

/// The controller's heartbeat, if there is to be one.
pub(super) fn heartbeat(config: &Config, now: Timestamp) -> Option<Finding> {
    let path = config.heartbeat.as_ref()?;
    // Whoever may write there may also make it something else.
    let read = crate::slurm::bounded::read_start(path, 64);
    let text = read.ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some(neighbours::heartbeat(text.as_deref(), now, config))
}

/// Whether limits can be read on every node that has them.
pub(super) fn limits(slurm: &Slurm) -> Finding {
    const WHAT: &str = "power limits";
    let (mut nodes, mut gpus) = (0, 0);
    for id in slurm.site.cluster.node_ids() {
        let Some(actuator) = slurm.site.actuator(id) else { continue };
        nodes += 1;
        for gpu in 0..u32::from(slurm.site.node(id).gpus) {
            if let Err(error) = actuator.read(gpu) {
                let name = &slurm.site.node(id).name;
                let fix = "start what sets limits there, or take `limits` out of [[nodes]]: then \
                           its GPUs count at their default limit";
                return Finding::wrong(WHAT, format!("node {name}: {error}"), fix);
            }
            gpus += 1;
        }
    }
    if nodes == 0 {
        return Finding::ok(WHAT, "none are set: all GPUs count at their default limit");
    }
    Finding::ok(WHAT, format!("read from {gpus} GPUs of {nodes} nodes"))
}

/// Deadlines without a zone mean local time.
pub(super) fn zone(commands: &Commands, config: &Config) -> Finding {
    const WHAT: &str = "time zone";
    let said = commands.run("date", &["+%z"]).map(|said| printable(&said)).unwrap_or_default();
    let ours = config.defaults.utc_offset.seconds();
    let Some(here) = offset(&said) else {
        return Finding::warn(WHAT, format!("`date +%z` says '{said}'"), "compare by hand");
    };
    if here == ours {
        return Finding::ok(WHAT, format!("UTC{said}"));
    }
    let found = format!("this machine is at UTC{said}, slurm.defaults.utc_offset is not");
    let (hours, minutes) = said.split_at_checked(3).unwrap_or_default();
    let fix = format!("slurm.defaults.utc_offset = \"{hours}:{minutes}\"");
    Finding::warn(WHAT, found, fix)
}

/// `+0130` in seconds.
fn offset(text: &str) -> Option<i64> {
    let sign = match text.get(..1)? {
        "+" => 1,
        "-" => -1,
        _ => return None,
    };
    let digits = text.get(1..).filter(|digits| digits.len() == 4)?;
    let (hours, minutes) = digits.split_at_checked(2)?;
    let (hours, minutes): (u8, u8) = (hours.parse().ok()?, minutes.parse().ok()?);
    Some(sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::slurm::doctor::Verdict;

    #[test]
    fn offsets_are_read() {
        assert_eq!(offset("+0000"), Some(0));
        assert_eq!(offset("-0130"), Some(-5400));
        for text in ["", "CET", "+1", "+01:00", "+0x00", "ÄÖ000"] {
            assert_eq!(offset(text), None, "{text}");
        }
    }

    #[test]
    fn a_progress_folder_is_for_all_and_sticky() -> std::io::Result<()> {
        let dir = tempfile::tempdir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777))?;
        assert_eq!(progress(dir.path()).verdict, Verdict::Ok);
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o0777))?;
        assert_eq!(progress(dir.path()).verdict, Verdict::Wrong);
        assert_eq!(progress(&dir.path().join("none")).verdict, Verdict::Wrong);
        assert_eq!(writable("journal", &dir.path().join("journal")).verdict, Verdict::Ok);
        assert_eq!(fs::read_dir(dir.path())?.count(), 0);
        let nowhere = dir.path().join("none/journal");
        assert_eq!(writable("journal", &nowhere).verdict, Verdict::Wrong);
        Ok(())
    }

    #[test]
    fn the_fallback_must_look_where_the_heartbeat_is() {
        let root = tempfile::tempdir().unwrap();
        let (usual, other) = (Path::new("/run/wattline/heartbeat"), Path::new("/srv/beat"));
        // Nobody looks where there is no unit.
        assert!(fallback(root.path(), other).is_none());
        let shipped = include_str!("../../../../../packaging/wattline-gate-fallback.service");
        let units = root.path().join("usr/lib/systemd/system");
        fs::create_dir_all(&units).unwrap();
        fs::write(units.join("wattline-gate-fallback.service"), shipped).unwrap();
        assert!(fallback(root.path(), usual).is_none());
        let wrong = fallback(root.path(), other).unwrap();
        assert!(wrong.fix.contains("/srv/beat"), "{wrong:?}");
        let edited = root.path().join("etc/systemd/system/wattline-gate-fallback.service.d");
        fs::create_dir_all(&edited).unwrap();
        fs::write(edited.join("own.conf"), "[Service]\nExecStart=/x /srv/beat 10\n").unwrap();
        assert!(fallback(root.path(), other).is_none());
    }
}
