//! The controller killed, SLURM killed and frozen, nodes lost and drained, the disk full, under a mix of
//! jobs: no job is lost, none runs twice, none that may not be stopped is stopped, and an answer that
//! does not come is never taken for an empty one.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{Lab, Spec};
use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use wattline_controller::slurm::read::{SlurmJob, State};

const KILLS: u32 = 50;
/// Two labs at a time would disturb each other on a small machine.
static ONE: Mutex<()> = Mutex::new(());

fn spec(n: u32) -> Spec {
    Spec {
        workload: ["wa", "wb"][(n % 2) as usize],
        work: 120 + 20 * (n % 5),
        gpus: 1 + n % 2,
        range: "1-4",
        deadline: 30,
        weight: 200,
        after: 0.0,
    }
}

/// A job that saves nothing, so that it must run through: ours, or with `open` of a partition that is
/// not controlled. It says how long it may run: one that may run for a day can wait for an hour.
fn plain(lab: &Lab, name: &str, seconds: u32, options: &[&str]) -> u32 {
    let folder = lab.folder.display();
    let script = format!(
        "#!/bin/bash\n#SBATCH --gres=gpu:1 --output={folder}/jobs/%j.out --open-mode=append -t 10\n\
         echo began\nsleep {seconds}\necho ended\n"
    );
    lab.submit_with(name, &script, options)
}

/// Such jobs ran through, at the first try.
fn each_ran_through(lab: &Lab, numbers: &[u32]) {
    for number in numbers {
        let path = lab.folder.join(format!("jobs/{number}.out"));
        let text = fs::read_to_string(path).unwrap_or_default();
        assert_eq!(text, "began\nended\n", "job {number}\n{}", lab.log());
    }
}

/// The longest turn of the controller's loop so far, in ms, as the running one tells.
fn longest_turn(lab: &Lab) -> f64 {
    let status = lab.status();
    status.and_then(|status| status["turn_max_ms"].as_f64()).unwrap_or(0.0)
}

/// A turn of the loop takes no longer, whatever SLURM and the disk do.
const MOST_PER_TURN_MS: f64 = 1000.0;

/// Each job ran to its end once, each time from where it was, and never twice at a time.
fn each_ran_once(lab: &Lab, numbers: &[u32]) {
    for number in numbers {
        let runs = lab.runs(*number);
        let ends = runs.iter().filter(|(event, _, _)| event == "stop").count();
        assert_eq!(runs.len(), 2 * ends, "job {number}: {runs:?}\n{}", lab.log());
        for pair in runs.windows(2) {
            assert_ne!(pair[0].0, pair[1].0, "job {number}: {runs:?}");
        }
    }
}

/// Waits until all these jobs are completed, as SLURM tells.
fn completed(lab: &Lab, numbers: &[u32], limit: Duration, mut meanwhile: impl FnMut()) {
    // SLURM may forget a job some minutes after its end.
    let mut ended: BTreeSet<u32> = BTreeSet::new();
    lab.until("the jobs' end", limit, || {
        meanwhile();
        let jobs = lab.queue().unwrap_or_default();
        let completed = jobs.iter().filter(|job| job.state == State::Completed);
        ended.extend(completed.map(|job| job.key.id));
        numbers.iter().all(|number| ended.contains(number))
    });
}

#[test]
fn a_controller_that_is_killed_fifty_times_loses_nothing() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut lab) = Lab::up("kills", &[]) else { return };
    let site = lab.site("4.5 kW", "control");
    let (mut numbers, mut through, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    let (began, mut longest) = (Instant::now(), 0.0_f64);
    for kill in 0..KILLS {
        lab.control(&site);
        match kill % 12 {
            0 | 4 | 8 => {
                numbers.push(lab.submit(&format!("job{kill}"), &lab.train(&spec(kill))));
            }
            2 | 6 => through.push(plain(&lab, &format!("plain{kill}"), 5 + kill % 7, &[])),
            10 => theirs.push(plain(&lab, &format!("theirs{kill}"), 6, &["-p", "open"])),
            _ => {}
        }
        // Long enough to do something, and each time something else.
        let life = 150 + u64::from(kill.wrapping_mul(2_654_435_761) >> 20) % 1_100;
        std::thread::sleep(Duration::from_millis(life));
        assert!(lab.is_controlled(), "it ended by itself: {}", lab.log());
        longest = longest.max(longest_turn(&lab));
        lab.kill_controller();
    }
    println!(
        "{KILLS} kills in {:.0} s, {} jobs that save, {} that do not, {} of another partition",
        began.elapsed().as_secs_f64(),
        numbers.len(),
        through.len(),
        theirs.len()
    );
    lab.control(&site);
    let all: Vec<u32> = [&numbers[..], &through, &theirs].concat();
    completed(&lab, &all, Duration::from_secs(240), || ());
    each_ran_once(&lab, &numbers);
    each_ran_through(&lab, &through);
    each_ran_through(&lab, &theirs);
    longest = longest.max(longest_turn(&lab));
    println!("longest turn {longest:.0} ms");
    assert!(longest <= MOST_PER_TURN_MS, "{longest} ms");
    // The controller knows each job once. Those of the other partition need not have met it.
    let queue = lab.ask(&["queue", "--all"]).unwrap();
    let shown = queue["jobs"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap());
    let mut names: Vec<&str> = shown.filter(|name| !name.starts_with("theirs")).collect();
    names.sort_unstable();
    let (all, ours) = (names.len(), numbers.len() + through.len());
    names.dedup();
    assert_eq!((names.len(), all), (ours, ours), "{queue}");
    // Nobody asks the others before they start: one of their GPUs may come on top for a moment.
    let most = lab.samples().iter().map(|(_, watts)| *watts).fold(0.0, f64::max);
    assert!(most <= 4500.0 + lab::BUSY, "{most} W drawn");
}

fn running(lab: &Lab) -> Vec<SlurmJob> {
    let jobs = lab.queue().unwrap_or_default();
    jobs.into_iter().filter(|job| job.state == State::Running).collect()
}

/// A node on which a job runs, as soon as so many do.
fn some_node(lab: &Lab, jobs: usize) -> String {
    let mut node = None;
    lab.until("jobs to run", Duration::from_secs(150), || {
        let running = running(lab);
        let nodes = || running.iter().find_map(|job| job.nodes.first().cloned());
        node = (running.len() >= jobs).then(nodes).flatten();
        node.is_some()
    });
    node.unwrap()
}

/// Waits until no job has just started, and none is about to start or stop: SLURM itself gives up what
/// it starts on a node whose slurmd is gone, and who was told to leave a node leaves it.
fn nobody_moves(lab: &Lab) {
    lab.until("a moment in which nobody moves", Duration::from_secs(90), || {
        let newest = lab.starts().iter().map(|(_, at)| *at).fold(0.0, f64::max);
        let queue = lab.ask(&["queue"]).unwrap_or_default();
        let moves =
            |row: &serde_json::Value| row["state"] == "starting" || row["state"] == "stopping";
        let rows = queue["jobs"].as_array();
        rows.is_some_and(|rows| !rows.iter().any(moves)) && lab::now() > newest + 2.0
    });
}

/// The processes of all jobs on a node end with it. Says whose they were.
fn processes_end(lab: &Lab, node: &str) -> BTreeSet<u32> {
    let (conf, node) = (format!("SLURM_CONF={}", lab.conf()), format!("SLURMD_NODENAME={node}"));
    let mut victims = BTreeSet::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let words: Vec<_> = environment.split(|b| *b == 0).map(String::from_utf8_lossy).collect();
        let has = |word: &str| words.iter().any(|own| own == word);
        let job = words.iter().find_map(|word| word.strip_prefix("SLURM_JOB_ID=")?.parse().ok());
        if let Some(job) = job.filter(|_| has(&conf) && has(&node)) {
            victims.insert(job);
            let pid = entry.file_name().to_string_lossy().into_owned();
            let _ = std::process::Command::new("kill").args(["-9", &pid]).status();
        }
    }
    victims
}

fn signal(name: &str, pid: &str) {
    let sent = std::process::Command::new("kill").args([name, pid]).status().unwrap();
    assert!(sent.success(), "kill {name} {pid}");
}

/// A small file system of its own.
struct SmallDisk(String);

impl SmallDisk {
    fn mount(path: String) -> Self {
        fs::create_dir_all(&path).unwrap();
        let args = ["-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", &path];
        let mounted = std::process::Command::new("mount").args(args).status().unwrap();
        assert!(mounted.success(), "mount {args:?}");
        Self(path)
    }

    /// Until nothing more fits.
    fn fill(&self) {
        let mut file = fs::File::create(format!("{}/fill", self.0)).unwrap();
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    }

    fn clear(&self) {
        fs::remove_file(format!("{}/fill", self.0)).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn slurm_may_be_killed_and_frozen_and_nodes_may_be_lost() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(mut lab) = Lab::up("survives", &[]) else { return };
    let disk = SmallDisk::mount(lab.path("state"));
    lab.journal = lab.folder.join("state/journal");
    let site = lab.site("6 kW", "control");
    lab.control(&site);
    let long = |n: u32| Spec { work: 1500, deadline: 60, ..spec(n) };
    let numbers: Vec<u32> =
        (0..6).map(|n| lab.submit(&format!("job{n}"), &lab.train(&long(n)))).collect();
    let mut through: Vec<u32> = ["plain0", "plain1"].map(|name| plain(&lab, name, 70, &[])).into();
    through.push(plain(&lab, "theirs0", 70, &["-p", "open"]));
    // Only the last thousand turns are remembered: it is asked after each part.
    let mut longest = 0.0_f64;
    // slurmctld is killed and comes back. It forgets what it has not saved by then, and ends jobs that
    // it does not know to run: so none has started or ended for a while. It saves all jobs up to 5 s
    // after any is changed; a start by its backfill alone may stay unsaved for longer.
    let saves = [format!("JobId={}", numbers[0]), "JobName=job0".into()];
    let mut calm = (Vec::new(), Instant::now(), false);
    lab.until("jobs to run and nothing to change", Duration::from_secs(150), || {
        let runs: Vec<_> = running(&lab).iter().map(|job| (job.key, job.gpus.clone())).collect();
        if runs != calm.0 {
            calm = (runs, Instant::now(), false);
        }
        if !calm.2 && calm.1.elapsed() > Duration::from_secs(4) {
            // If it has ended by now, that was saved as well.
            lab.run("scontrol", &["update", &saves[0], &saves[1]]);
            calm.2 = true;
        }
        calm.0.len() >= 3 && calm.1.elapsed() > Duration::from_secs(12)
    });
    let pid = |lab: &Lab, name: &str| {
        fs::read_to_string(lab.folder.join("run").join(name)).unwrap().trim().to_owned()
    };
    signal("-9", &pid(&lab, "slurmctld.pid"));
    std::thread::sleep(Duration::from_secs(12));
    assert!(lab.is_controlled(), "{}", lab.log());
    // Some may have ended before.
    let queue = lab.ask(&["queue", "--all"]).unwrap();
    let submitted = numbers.len() + through.len();
    let states: Vec<&str> = queue["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["state"].as_str().unwrap())
        .collect();
    let finished = states.iter().filter(|state| **state == "finished").count();
    assert!(states.len() == submitted && !states.contains(&"cancelled"), "{queue}");
    assert!(submitted - finished >= calm.0.len(), "{queue}");
    lab.ran("slurmctld", &[]);
    lab.until("slurmctld", Duration::from_secs(30), || lab.queue().is_some());
    longest = longest.max(longest_turn(&lab));

    // It is frozen for a minute.
    let ctld = pid(&lab, "slurmctld.pid");
    signal("-STOP", &ctld);
    std::thread::sleep(Duration::from_secs(60));
    let queue = lab.ask(&["queue"]).unwrap();
    let known = queue["jobs"].as_array().unwrap().len();
    signal("-CONT", &ctld);
    assert!(lab.is_controlled(), "{}", lab.log());
    let mut over = 0;
    lab.until("slurmctld", Duration::from_secs(60), || {
        let jobs = lab.queue();
        over = jobs.iter().flatten().filter(|job| job.state.is_over()).count();
        jobs.is_some()
    });
    assert!(known + over >= submitted, "{known} jobs known: {queue}");
    longest = longest.max(longest_turn(&lab));

    // A slurmd is killed and comes back: its jobs go on.
    let more: Vec<u32> =
        (6..12).map(|n| lab.submit(&format!("job{n}"), &lab.train(&long(n)))).collect();
    through.push(plain(&lab, "plain2", 40, &[]));
    through.push(plain(&lab, "theirs1", 40, &["-p", "open"]));
    nobody_moves(&lab);
    let node = some_node(&lab, 2);
    let bin = lab.path("bin/node");
    lab.ran(&bin, &["kill", &node]);
    std::thread::sleep(Duration::from_secs(3));
    lab.ran(&bin, &["start", &node]);

    // A node is drained: whoever runs there goes on.
    nobody_moves(&lab);
    let drained = some_node(&lab, 1);
    let before: Vec<_> = running(&lab)
        .into_iter()
        .filter(|job| job.nodes.contains(&drained))
        .map(|job| job.key)
        .collect();
    let name = format!("NodeName={drained}");
    lab.ran("scontrol", &["update", &name, "State=DRAIN", "Reason=test"]);
    std::thread::sleep(Duration::from_secs(4));
    let mut shown = None;
    lab.until("an answer", Duration::from_secs(20), || {
        shown = lab.queue();
        shown.is_some()
    });
    for key in &before {
        // The same run goes on, or has come to its end.
        let same = shown.iter().flatten().find(|job| job.key == *key);
        let fine = same.is_some_and(|job| {
            let ends = matches!(job.state, State::Completing | State::Completed);
            ends || (job.state == State::Running && job.nodes.contains(&drained))
        });
        assert!(fine, "{key:?}: {same:?}\n{}", lab.log());
    }
    lab.ran("scontrol", &["update", &name, "State=RESUME"]);

    // The disk is full: nothing can be decided, so the gate opens in time, and nothing is lost.
    disk.fill();
    lab.until("it to notice", Duration::from_secs(20), || {
        lab.status().is_some_and(|status| status["troubles"].to_string().contains("journal"))
    });
    let beat = || fs::read_to_string(lab.folder.join("run/heartbeat")).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let stale = beat();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(beat(), stale, "a heartbeat without a journal\n{}", lab.log());
    disk.clear();
    lab.until("the heartbeat", Duration::from_secs(20), || beat() != stale);
    assert!(lab.is_controlled(), "{}", lab.log());
    longest = longest.max(longest_turn(&lab));

    // A node is lost: what ran there runs elsewhere. Jobs that were submitted before may be over.
    let late = (12..15).map(|n| lab.submit(&format!("job{n}"), &lab.train(&long(n))));
    let late: Vec<u32> = late.collect();
    lab.until("late jobs to run", Duration::from_secs(90), || {
        running(&lab).iter().any(|job| late.contains(&job.key.id))
    });
    // SLURM itself gives up a job that it starts on a node whose slurmd has just died.
    let theirs = through[through.len() - 1];
    lab.until("theirs to have started", Duration::from_secs(90), || {
        lab.starts().iter().any(|(number, _)| *number == theirs)
    });
    let lost = some_node(&lab, 1);
    // Nothing starts there from here on, so that all who were there are found.
    lab.ran(&bin, &["kill", &lost]);
    let mut victims = processes_end(&lab, &lost);
    // One may just have been starting.
    std::thread::sleep(Duration::from_secs(1));
    victims.extend(processes_end(&lab, &lost));
    let all: Vec<u32> = numbers.iter().chain(&more).chain(&late).copied().collect();
    let of_both = [&all[..], &through].concat();
    completed(&lab, &of_both, Duration::from_secs(300), || {
        longest = longest.max(longest_turn(&lab));
    });
    through.retain(|number| !victims.contains(number));
    each_ran_through(&lab, &through);
    println!("longest turn {longest:.0} ms");
    assert!(longest <= MOST_PER_TURN_MS, "{longest} ms");
    for victim in victims.iter().filter(|victim| all.contains(victim)) {
        let runs = lab.runs(*victim);
        assert!(runs.iter().filter(|run| run.0 == "start").count() >= 2, "job {victim}: {runs:?}");
    }
    println!("node {lost} was lost with jobs {victims:?}, which ended elsewhere");
    let survivors: Vec<u32> = all.into_iter().filter(|n| !victims.contains(n)).collect();
    each_ran_once(&lab, &survivors);
}
