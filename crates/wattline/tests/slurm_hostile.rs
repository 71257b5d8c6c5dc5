//! Job scripts, names and comments that want to be more than data.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::Lab;
use std::fs;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wattline_controller::slurm::read::State;

/// One lab at a time.
static ONE: Mutex<()> = Mutex::new(());

#[test]
fn no_shell_sees_what_users_write_and_it_is_shown_escaped() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
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

/// A job's progress file is its user's: whatever he puts there, the controller goes on.
#[test]
fn no_progress_file_holds_the_controller_up() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut lab) = Lab::up("progress", &[]) else { return };
    let site = lab.site("6 kW", "control");
    lab.control(&site);
    let folder = lab.path("progress");
    let is = |lab: &Lab, number: u32, state: &State| {
        let jobs = lab.queue().unwrap_or_default();
        jobs.iter().any(|job| job.key.id == number && job.state == *state)
    };
    // A pipe without a writer, endless and huge files, another's file, a folder, links in a circle.
    for (n, swap) in [
        "mkfifo $P",
        "ln -s /dev/zero $P",
        "ln -s /proc/kmsg $P",
        "truncate -s 1T $P",
        "ln -s /etc/shadow $P",
        "mkdir $P",
        "ln -s $P $P",
        "yes done=1e308 of=-1 t=nan gpus=99999999999 rate=inf | head -c 3000000 >$P",
    ]
    .into_iter()
    .enumerate()
    {
        let script = format!(
            "#!/bin/bash\n#SBATCH --gres=gpu:1 --output=/dev/null --time=5\n\
             #WATTLINE workload=wa work=100\nP={folder}/$SLURM_JOB_ID\nrm -rf $P; {swap}\nsleep 3\n"
        );
        let job = lab.submit(&format!("swap{n}"), &script);
        lab.until(swap, Duration::from_secs(60), || is(&lab, job, &State::Completed));
        // Nobody waits for it: the end is known, and the next job starts.
        lab.until("the end to be known", Duration::from_secs(20), || {
            let queue = lab.ask(&["queue", "--all"]).unwrap_or_default();
            let jobs = queue["jobs"].as_array().cloned().unwrap_or_default();
            jobs.iter().any(|row| row["id"] == job && row["state"] == "finished")
        });
    }
    let status = lab.status().unwrap();
    let longest = status["turn_max_ms"].as_f64().unwrap();
    println!("longest turn {longest:.0} ms");
    assert!(longest <= 1000.0, "{status}");
    assert_eq!(status["troubles"].to_string(), "[]");
    assert!(lab.is_controlled(), "{}", lab.log());
}
