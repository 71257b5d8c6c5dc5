//! A site's own rules: what SLURM will not start keeps nobody else waiting, and its owner reads why.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{GPUS, Lab, NODES};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};
use wattline_controller::slurm::read::{SlurmJob, State};

/// Within this an unrelated job starts although one before it is refused. Five seconds is what is
/// promised; the rest is for SLURM and for a machine on which other tests run.
const SOON: Duration = Duration::from_secs(5);
const SLACK: Duration = Duration::from_secs(10);

struct Site {
    lab: Lab,
    jobs: u32,
    names: BTreeMap<u32, String>,
}

impl Site {
    /// Submits as a user. Says the number, and when.
    fn submit(&mut self, user: &str, seconds: u32, lines: &str, options: &[&str]) -> u32 {
        self.jobs += 1;
        let path = self.lab.folder.join(format!("jobs/rule{}.sh", self.jobs));
        let script = format!("#!/bin/bash\n#SBATCH -o /dev/null\n{lines}\nsleep {seconds}\n");
        fs::write(&path, script).unwrap();
        let path = path.display().to_string();
        let mut args = vec!["--parsable"];
        args.extend(options);
        args.push(&path);
        let output = self.lab.as_user(user, "sbatch", &args);
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let number = said.parse().unwrap_or_else(|_| panic!("{options:?}: {said} {error}"));
        self.names.insert(number, format!("rule{}.sh", self.jobs));
        number
    }

    fn job(&self, number: u32) -> Option<SlurmJob> {
        self.lab.queue()?.into_iter().find(|job| job.key.id == number)
    }

    fn runs(&self, number: u32) -> bool {
        self.job(number).is_some_and(|job| job.state == State::Running)
    }

    fn wait(&self, what: &str, is: impl FnMut() -> bool) {
        self.lab.until(what, Duration::from_secs(60), is);
    }

    /// Why a job waits, as its owner is told.
    fn why(&self, number: u32) -> String {
        let queue = self.lab.ask(&["queue"]).unwrap();
        let jobs = queue["jobs"].as_array().unwrap();
        let name = self.names.get(&number).unwrap();
        let shown = jobs.iter().find(|job| job["name"].as_str() == Some(name));
        shown.map_or_else(String::new, |job| job["why"].as_str().unwrap_or_default().to_owned())
    }

    /// A job that SLURM refuses, and after it one of somebody else's for the same GPUs: that one
    /// runs soon, and the refused one's owner reads why his does not.
    fn refused(&mut self, what: &str, reason: &str, options: &[&str]) -> u32 {
        let refused = self.submit("alice", 30, "", options);
        let tried = Instant::now();
        self.wait(&format!("{what}: to be told why it waits"), || {
            self.why(refused).contains(reason)
        });
        let told = tried.elapsed();
        let job = self.job(refused).unwrap();
        assert!(job.held && job.state.waits(), "{what}: {job:?}");
        let asked = Instant::now();
        let other = self.submit("bob", 1, "", &["--gres=gpu:4", "-t", "1"]);
        self.wait(&format!("{what}: the other's start"), || {
            self.job(other).is_none_or(|job| job.start.is_some() && !job.state.waits())
        });
        let took = asked.elapsed();
        println!(
            "{what}: told '{reason}' after {:.1} s, the next one started after {:.1} s",
            told.as_secs_f64(),
            took.as_secs_f64()
        );
        assert!(took < SOON + SLACK, "{what}: an unrelated job started after {took:?}");
        let comment = self.job(refused).and_then(|job| job.comment).unwrap_or_default();
        assert!(comment.contains(reason), "{what}: its owner sees '{comment}' in squeue");
        self.wait("the other's end", || !self.runs(other));
        refused
    }

    fn cancel(&self, numbers: &[u32]) {
        for number in numbers {
            self.lab.run("scancel", &[&number.to_string()]);
        }
        self.wait("the end of what was cancelled", || {
            self.lab.queue().is_some_and(|jobs| {
                jobs.iter().all(|job| !numbers.contains(&job.key.id) || job.state.is_over())
            })
        });
    }
}

#[test]
fn what_slurm_will_not_start_blocks_nobody_and_its_owner_reads_why() {
    let more = "Licenses=matlab:1\nAccountingStorageEnforce=associations,limits,qos";
    let Some(mut lab) = Lab::up("rules", &[("DB", "1"), ("EXTRA_CONF", more)]) else { return };
    for line in [
        "-i add account research",
        "-i add user alice,bob account=research",
        "-i add qos small",
        "-i modify qos small set MaxTRESPerUser=gres/gpu=1",
        "-i modify user alice set qos+=small",
    ] {
        lab.ran("sacctmgr", &line.split(' ').collect::<Vec<_>>());
    }
    let file = lab.site("12 kW", "control");
    lab.control(&file);
    lab.until("the controller", Duration::from_secs(30), || lab.ask(&["queue"]).is_some());
    let mut site = Site { lab, jobs: 0, names: BTreeMap::new() };
    // Only one node is free: whoever keeps its GPUs keeps them from everybody.
    let full: Vec<u32> = (2..=NODES)
        .map(|node| {
            let on = format!("n{node}");
            let gres = format!("--gres=gpu:{GPUS}");
            site.submit("bob", 600, "", &["-p", "open", "-w", &on, &gres])
        })
        .collect();
    site.wait("the other nodes to be busy", || full.iter().all(|job| site.runs(*job)));

    let small = site.refused("QOS", "QOSMaxGRESPerUser", &["--qos=small", "--gres=gpu:4"]);

    let holder = site.submit("bob", 600, "", &["-p", "open", "-w", "n4", "-L", "matlab:1"]);
    site.wait("the licence to be taken", || site.runs(holder));
    let licence = site.refused("licence", "Licenses", &["-L", "matlab:1", "--gres=gpu:4"]);
    // When it is free, the job that waits for it gets it by itself.
    site.cancel(&[holder, small]);
    site.wait("the job that waits for a licence", || site.runs(licence));
    let comment = site.job(licence).and_then(|job| job.comment).unwrap_or_default();
    assert_eq!(comment, "", "what was said of it is taken back");
    site.cancel(&[licence]);

    let hog = ["-p", "open", "-w", "n1", "-c", "8"];
    let taken = site.submit("bob", 600, "", &[&hog[..], &["--mem=400000"]].concat());
    site.wait("the memory to be taken", || site.runs(taken));
    let memory = site.refused("memory", "Resources", &["--mem=200000", "--gres=gpu:4"]);
    let whole = site.refused("exclusive", "Resources", &["--exclusive", "--gres=gpu:4"]);
    let cpus = site.refused("CPUs", "Resources", &["-c", "60", "--gres=gpu:4"]);
    site.cancel(&[taken, memory, whole, cpus]);

    // Maintenance begins before its limit ends; a short job ends before.
    let soon = ["create", "reservation", "ReservationName=service", "Users=root", "Nodes=n1"];
    site.lab.ran(
        "scontrol",
        &[&soon[..], &["StartTime=now+3minutes", "Duration=10", "Flags=MAINT"]].concat(),
    );
    let long = site.refused("maintenance ahead", "ReqNodeNotAvail", &["-t", "60", "--gres=gpu:4"]);
    site.lab.ran("scontrol", &["delete", "ReservationName=service"]);
    site.wait("it to run when the maintenance is off", || site.runs(long));
    site.cancel(&[long]);

    // Nodes that somebody has reserved: a job in the reservation runs there, others do not.
    site.lab.ran(
        "scontrol",
        &[&soon[..4], &["Nodes=n1", "StartTime=now", "Duration=10", "ReservationName=course"]]
            .concat()
            .iter()
            .map(|word| if *word == "Users=root" { "Users=bob" } else { *word })
            .filter(|word| *word != "ReservationName=service")
            .collect::<Vec<_>>(),
    );
    let course = site.submit("bob", 2, "", &["--reservation=course", "--gres=gpu:4", "-t", "1"]);
    site.wait("the job in the reservation", || {
        site.job(course).is_some_and(|job| !job.state.waits())
    });
    assert_eq!(site.job(course).unwrap().nodes, ["n1"]);
    let outside = site.submit("alice", 2, "", &["--gres=gpu:4", "-t", "1"]);
    site.wait("it to be told", || {
        let why = site.why(outside);
        why.contains("ReqNodeNotAvail") || why.contains("Reserv") || why.contains("room")
    });
    site.lab.ran("scontrol", &["delete", "ReservationName=course"]);
    site.wait("it to run then", || site.job(outside).is_some_and(|job| !job.state.waits()));

    // One that may have fewer GPUs does not get so few that its time limit ends it.
    let lines = "#WATTLINE gpus=1:4 elasticity=malleable checkpoint=term";
    let elastic = site.submit("alice", 20, lines, &["--gres=gpu:4", "-t", "1"]);
    site.wait("the elastic job's start", || site.runs(elastic));
    let gpus: u32 = site.job(elastic).unwrap().gpus.iter().map(|on| on.count).sum();
    assert_eq!(gpus, 4, "on fewer it would run into its limit");
    site.wait("its end", || site.job(elastic).is_some_and(|job| job.state.is_over()));
    assert_eq!(site.job(elastic).unwrap().state, State::Completed);
    // Nobody touched the strangers.
    for job in &full {
        let job = site.job(*job).unwrap();
        assert!(job.state == State::Running && job.key.restarts == 0, "{job:?}");
    }
    assert!(site.lab.is_controlled(), "{}", site.lab.log());
}
