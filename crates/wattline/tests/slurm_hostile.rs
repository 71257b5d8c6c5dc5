//! Job scripts, names and comments that want to be more than data.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::Lab;
use std::fs;
use std::process::Command;
use std::time::Duration;
use wattline_controller::slurm::read::State;

#[test]
fn no_shell_sees_what_users_write_and_it_is_shown_escaped() {
    let Some(mut lab) = Lab::up("hostile", &[]) else { return };
    let site = lab.site("6 kW", "control");
    lab.control(&site);
    let trap = lab.folder.join("jobs/trap");
    let shell = format!("$(touch {0}) `touch {0}` '; touch {0}; '", trap.display());
    let long = "x".repeat(300);
    let texts = [
        shell.clone(),
        "\"' \\ \n second line \t tab".to_owned(),
        "\u{1b}[31mred\u{1b}[0m \u{7}wakeup \u{202e}backwards".to_owned(),
        "<script>alert(1)</script> & <b>bold</b>".to_owned(),
        long,
    ];
    let mut numbers = Vec::new();
    for (n, text) in texts.iter().enumerate() {
        let folder = lab.folder.display();
        // Everywhere a user can write: the name, the comment, our own lines, the script itself.
        let big = "# ".to_owned() + &"y".repeat(1 << 20) + "\n";
        // In a script a second line would be the user's own command.
        let line = text.replace('\n', " ");
        let script = format!(
            "#!/bin/bash\n#SBATCH --gres=gpu:1 --output={folder}/jobs/%j.out\n\
             #WATTLINE workload={line} deadline={line}\n#WATTLINE work=100 {line}=1\n{}\
             sleep 1\necho done\n",
            if n == 3 { big.as_str() } else { "" }
        );
        let path = lab.folder.join(format!("jobs/hostile{n}.sh"));
        fs::write(&path, script).unwrap();
        let path = path.display().to_string();
        let comment = format!("deadline={text} weight=1e999 {text}");
        let args = ["--parsable", "-J", text, "--comment", &comment, &path];
        let output = lab.as_user("alice", "sbatch", &args);
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        numbers.push(said.parse::<u32>().unwrap_or_else(|_| panic!("{n}: {said} {error}")));
    }
    let mut seen = String::new();
    lab.until("the jobs' end", Duration::from_secs(90), || {
        let mut shown = Command::new(env!("CARGO_BIN_EXE_wattline"));
        let shown = shown.args(["queue", "--all", "--socket"]).arg(lab.socket()).output().unwrap();
        seen = String::from_utf8_lossy(&shown.stdout).into_owned();
        let jobs = lab.queue().unwrap_or_default();
        let ended = |number: &u32| {
            jobs.iter().any(|job| job.key.id == *number && job.state == State::Completed)
        };
        numbers.iter().all(ended)
    });
    assert!(lab.is_controlled(), "{}", lab.log());
    assert!(!trap.exists(), "a shell saw it");
    let escaped = |text: &str| !text.chars().any(|c| c.is_control() && c != '\n');
    assert!(seen.contains("touch") && escaped(&seen), "{seen:?}");
    let log = lab.log();
    assert!(escaped(&log), "{log:?}");
    let queue = lab.ask(&["queue", "--all"]).unwrap();
    for job in queue["jobs"].as_array().unwrap() {
        let name = job["name"].as_str().unwrap();
        assert!(escaped(name) && name.len() <= 1024, "{name:?}");
    }
}
