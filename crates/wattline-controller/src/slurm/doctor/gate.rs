//! Whether the gate is there, and is ours.

use super::settings::Settings;
use super::{Finding, needed};
use crate::slurm::config::Mode;
use crate::slurm::{Config, GATE};
use std::io::ErrorKind;
use std::path::Path;

const WHAT: &str = "gate";
/// What an administrator changes in it.
const SETTINGS: [&str; 4] = ["CONTROLLED", "HEARTBEAT", "PATIENCE_S", "ADMINS"];

pub(super) fn judge(settings: &Settings, config: &Config, me: Option<u32>) -> Finding {
    let plugins = settings.get("JobSubmitPlugins").map(String::as_str).unwrap_or_default();
    let loaded = plugins.split(',').any(|plugin| plugin.trim() == "lua");
    let control = config.mode == Mode::Control;
    if !loaded {
        if !control {
            return Finding::ok(WHAT, "not installed; it is not needed before mode = \"control\"");
        }
        let found = format!("JobSubmitPlugins is '{plugins}'");
        let fix = "copy gate.lua to job_submit.lua beside slurm.conf, set JobSubmitPlugins=lua \
                   there, and run `scontrol reconfigure`; without it SLURM starts jobs by itself";
        return Finding::wrong(WHAT, found, fix);
    }
    let folder = settings.get("SLURM_CONF").map(Path::new).and_then(Path::parent);
    let Some(folder) = folder else {
        return Finding::warn(WHAT, "loaded; SLURM does not say from where", "compare it by hand");
    };
    let path = folder.join("job_submit.lua");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let found = format!("{}: not here", path.display());
            let fix = "on slurmctld's machine: copy gate.lua there. If that is another machine, \
                       run doctor there";
            return Finding::warn(WHAT, found, fix);
        }
        Err(error) => {
            let found = format!("{}: {error}", path.display());
            return Finding::warn(WHAT, found, "run doctor as root to have it compared");
        }
    };
    compare(&path.display().to_string(), &text, config, me)
}

/// A gate against ours and against the site's file.
fn compare(path: &str, text: &str, config: &Config, me: Option<u32>) -> Finding {
    if !text.contains("wattline_job_submit") {
        let fix = "a site's own job_submit.lua must call wattline_job_submit and \
                   wattline_job_modify from gate.lua";
        return needed(config.mode, WHAT, format!("{path}: another job_submit.lua"), fix);
    }
    if let Some(wrong) = mismatch(text, config, me) {
        let fix = format!("correct it in {path} and run `scontrol reconfigure`");
        return needed(config.mode, WHAT, wrong, fix);
    }
    if plain(text) != plain(GATE) {
        let fix = "compare it with this version's gate.lua (/usr/share/wattline/gate.lua)";
        return Finding::warn(WHAT, format!("{path}: differs from this version's"), fix);
    }
    if config.mode != Mode::Control {
        let found = format!("{path}: installed; it lets jobs pass while the mode is not control");
        return Finding::ok(WHAT, found);
    }
    Finding::ok(WHAT, path)
}

/// Everything but settings, comments and empty lines.
fn plain(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim);
    let setting = |line: &str| SETTINGS.iter().any(|name| is_setting(line, name));
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("--"))
        .filter(|line| !setting(line))
        .collect()
}

fn is_setting(line: &str, name: &str) -> bool {
    let rest = line.strip_prefix("local ").and_then(|rest| rest.strip_prefix(name));
    rest.is_some_and(|rest| rest.trim_start().starts_with('='))
}

/// What follows `local NAME =`, where it is on one line.
fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().map(str::trim).find(|line| is_setting(line, name))?;
    line.split_once('=').map(|(_, value)| value.trim())
}

/// What does not fit the site's file.
fn mismatch(text: &str, config: &Config, me: Option<u32>) -> Option<String> {
    let heartbeat = setting(text, "HEARTBEAT").map(|value| value.trim_matches('"'));
    match (&config.heartbeat, heartbeat) {
        (None, _) => return Some("slurm.heartbeat is not set: the gate never closes".into()),
        (Some(ours), Some(theirs)) if ours != Path::new(theirs) => {
            let ours = ours.display();
            return Some(format!("HEARTBEAT is {theirs}, slurm.heartbeat is {ours}"));
        }
        _ => {}
    }
    let controlled = setting(text, "CONTROLLED").unwrap_or("{}");
    let named: Vec<&str> = controlled.split('"').skip(1).step_by(2).collect();
    // None at all stands for all of them.
    let lacks = |name: &&String| !named.is_empty() && !named.contains(&name.as_str());
    if let Some(missing) = config.partitions.iter().find(lacks) {
        return Some(format!("CONTROLLED lacks partition {missing}"));
    }
    let ours = |name: &str| config.partitions.iter().any(|mine| mine == name);
    if let Some(extra) = named.iter().find(|name| !ours(name)) {
        return Some(format!("CONTROLLED has partition {extra}, slurm.partitions does not"));
    }
    let admins = setting(text, "ADMINS").unwrap_or_default().replace(' ', "");
    let me = me.filter(|id| *id != 0)?;
    let may = admins.contains(&format!("[{me}]=true"));
    (!may).then(|| format!("ADMINS lacks {me}, the user that this runs as"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::doctor::Verdict;

    fn config(mode: Mode) -> Config {
        let (partitions, heartbeat) = (vec!["gpu".into()], Some("/run/wattline/heartbeat".into()));
        Config { mode, partitions, heartbeat, ..Config::default() }
    }

    fn gate(controlled: &str) -> String {
        GATE.replace("local CONTROLLED = {}", &format!("local CONTROLLED = {controlled}"))
    }

    #[test]
    fn another_gate_is_noticed() {
        let judge = |text: &str| compare("g", text, &config(Mode::Control), Some(0));
        for fine in [GATE.to_owned(), gate("{ \"gpu\" }"), format!("-- mine\n\n{GATE}")] {
            assert_eq!(judge(&fine).verdict, Verdict::Ok, "{:?}", judge(&fine));
        }
        let older = GATE.replace("job.priority = 0 end", "job.priority = 1 end");
        assert_ne!(older, GATE);
        assert_eq!(judge(&older).verdict, Verdict::Warn);
        for (text, says) in [
            ("return slurm.SUCCESS".to_owned(), "another"),
            (GATE.replace("/run/wattline/heartbeat", "/elsewhere"), "/elsewhere"),
            (gate("{ \"cpu\" }"), "lacks partition gpu"),
            (gate("{ \"gpu\", \"cpu\" }"), "has partition cpu"),
        ] {
            let found = judge(&text);
            assert_eq!(found.verdict, Verdict::Wrong, "{found:?}");
            assert!(found.found.contains(says), "{found:?}");
        }
        let other = compare("g", &gate("{ \"gpu\" }"), &config(Mode::Control), Some(990));
        assert!(other.found.contains("ADMINS lacks 990"), "{other:?}");
    }

    #[test]
    fn who_only_watches_needs_no_gate() {
        let none = Settings::new();
        assert_eq!(judge(&none, &config(Mode::Observe), None).verdict, Verdict::Ok);
        assert_eq!(judge(&none, &config(Mode::Control), None).verdict, Verdict::Wrong);
    }
}
