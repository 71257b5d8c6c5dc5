//! A site's own rules: what SLURM will not start keeps nobody else waiting, and its owner reads why.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{GPUS, Lab, NODES, now};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};
use wattline_controller::slurm::read::{SlurmJob, State};

/// Within this an unrelated job starts although one before it is refused: half of them at least, and
/// none takes much longer on a machine on which other tests run.
const SOON: f64 = 5.0;
const LATE: f64 = 15.0;

struct Site {
    lab: Lab,
    jobs: u32,
    /// Seconds until unrelated jobs started.
    took: Vec<f64>,
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

    /// SLURM refuses a request at once; says in which words.
    fn rejected(&self, user: &str, options: &[&str]) -> String {
        let path = self.lab.path("jobs/never.sh");
        fs::write(&path, "#!/bin/bash\nsleep 1\n").unwrap();
        let args: Vec<&str> = options.iter().copied().chain([path.as_str()]).collect();
        let output = self.lab.as_user(user, "sbatch", &args);
        assert!(!output.status.success(), "{options:?} was taken in");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// As its owner.
    fn update(&self, user: &str, args: &[&str]) {
        let output = self.lab.as_user(user, "scontrol", args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {error}");
    }

    fn gpus(&self, number: u32) -> u32 {
        self.job(number).map_or(0, |job| job.gpus.iter().map(|on| on.count).sum())
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
        let explained = self.lab.ask(&["explain", &refused.to_string()]).unwrap().to_string();
        assert!(explained.contains(reason), "{what}: {explained}");
        let asked = now();
        let other = self.submit("bob", 1, "", &["--gres=gpu:4", "-t", "1"]);
        let mut started = None;
        self.wait(&format!("{what}: the other's start"), || {
            let starts = self.lab.starts();
            started = starts.iter().find(|(number, _)| *number == other).map(|(_, at)| *at);
            started.is_some()
        });
        let took = started.unwrap() - asked;
        println!(
            "{what}: told '{reason}' after {:.1} s, the next one started after {took:.1} s",
            told.as_secs_f64()
        );
        assert!(took < LATE, "{what}: an unrelated job started after {took} s");
        self.took.push(took);
        self.wait(&format!("{what}: its owner to see it in squeue"), || {
            let comment = self.job(refused).and_then(|job| job.comment).unwrap_or_default();
            comment.contains(reason)
        });
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
        "-i add account course",
        "-i add user alice account=course",
        "-i modify account course set GrpTRES=gres/gpu=2",
    ] {
        lab.ran("sacctmgr", &line.split(' ').collect::<Vec<_>>());
    }
    let file = lab.site("12 kW", "control");
    lab.control(&file);
    lab.until("the controller", Duration::from_secs(30), || lab.ask(&["queue"]).is_some());
    let mut site = Site { lab, jobs: 0, took: Vec::new(), names: BTreeMap::new() };
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

    let course = site.refused("association", "AssocGrpGRES", &["-A", "course", "--gres=gpu:4"]);
    site.cancel(&[course]);

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
    // Two looks at nodes must agree.
    std::thread::sleep(Duration::from_secs(6));
    // These are seen beforehand, and not tried.
    let memory =
        site.refused("memory", "needs 200000 MiB of memory", &["--mem=200000", "--gres=gpu:4"]);
    let whole = site.refused("exclusive", "needs 64 CPUs", &["--exclusive", "--gres=gpu:4"]);
    let cpus = site.refused("CPUs", "needs 60 CPUs", &["-c", "60", "--gres=gpu:4"]);
    let tried = site.lab.log().matches("is refused: SLURM says Resources").count();
    assert!(tried <= 1, "{}", site.lab.log());
    site.cancel(&[taken, whole, cpus]);
    site.wait("it to run when the memory is free", || site.runs(memory));
    site.cancel(&[memory]);

    // Maintenance begins before its limit ends; a short job ends before. First on all nodes.
    let soon = ["create", "reservation", "ReservationName=service", "Users=root", "Nodes=n1"];
    let later = ["StartTime=now+5minutes", "Duration=10", "Flags=MAINT,IGNORE_JOBS"];
    site.lab.ran("scontrol", &[&soon[..4], &["Nodes=ALL"], &later].concat());
    // It is read every half minute; before that SLURM refuses.
    let long =
        site.refused("maintenance ahead", "maintenance 'service'", &["-t", "60", "--gres=gpu:4"]);
    // Then on one, and the others are busy.
    site.lab.ran("scontrol", &["update", "ReservationName=service", "Nodes=n1"]);
    site.wait("it to be told that others are busy", || {
        let why = site.why(long);
        why.contains("maintenance 'service'") && !why.contains("those nodes now")
    });
    assert!(site.job(long).unwrap().held);
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
        why.contains("reserved ('course')")
    });
    // SLURM keeps a reservation as long as somebody runs in it.
    site.wait("its end", || site.job(course).is_some_and(|job| job.state == State::Completed));
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
    impossible(&site);
    owners_changes(&mut site);
    other_ways_to_ask(&mut site);
    site.took.sort_by(f64::total_cmp);
    let median = site.took[site.took.len() / 2];
    println!("unrelated jobs started after {median:.1} s (median of {})", site.took.len());
    assert!(median < SOON, "{:?}", site.took);
    // Nobody touched the strangers.
    for job in &full {
        let job = site.job(*job).unwrap();
        assert!(job.state == State::Running && job.key.restarts == 0, "{job:?}");
    }
    assert!(site.lab.is_controlled(), "{}", site.lab.log());
}

/// What no node could ever run is refused at once, as plain SLURM does, though the gate holds jobs.
fn impossible(site: &Site) {
    for (options, why) in [
        (&["--mem=900000", "--gres=gpu:1"][..], "900000 MiB of memory"),
        (&["-c", "65", "--gres=gpu:1"][..], "65 CPUs"),
        (&["--gres=gpu:9"][..], "9 GPUs"),
    ] {
        let said = site.rejected("alice", options);
        assert!(said.contains(why), "{options:?}: {said}");
    }
}

/// A job that waits: what its owner changes counts, at the first start.
fn owners_changes(site: &mut Site) {
    let busy = site.submit("bob", 600, "", &["-p", "open", "-w", "n1", "--gres=gpu:4"]);
    site.wait("all nodes to be busy", || site.runs(busy));
    let job = site.submit("alice", 20, "", &["--gres=gpu:4", "-t", "1"]);
    let id = format!("JobId={job}");
    site.wait("it to be known", || !site.why(job).is_empty());
    // More memory than any node has, which is told; then less.
    site.update("alice", &["update", &id, "MinMemoryNode=900000"]);
    site.wait("it to be impossible", || site.why(job).contains("900000 MiB"));
    site.update("alice", &["update", &id, "MinMemoryNode=1000", "Gres=gpu:2"]);
    site.wait("it to be possible", || !site.why(job).contains("900000 MiB"));
    site.update("alice", &["hold", &job.to_string()]);
    site.wait("it to be held", || site.why(job).contains("its owner holds it"));
    site.cancel(&[busy]);
    // Others go before it.
    let other = site.submit("bob", 1, "", &["--gres=gpu:4", "-t", "1"]);
    site.wait("the other's end", || site.job(other).is_some_and(|job| job.state.is_over()));
    assert!(site.job(job).unwrap().state.waits(), "its owner holds it");
    // An administrator holds it as well: its owner cannot undo that.
    site.lab.ran("scontrol", &["hold", &job.to_string()]);
    site.wait("it to be held by both", || site.job(job).is_some_and(|job| job.held));
    site.update("alice", &["release", &job.to_string()]);
    std::thread::sleep(Duration::from_secs(3));
    assert!(site.job(job).unwrap().state.waits(), "an administrator holds it");
    site.lab.ran("scontrol", &["release", &job.to_string()]);
    site.wait("its start", || site.runs(job));
    assert_eq!(site.gpus(job), 2, "as its owner asked in the end");
    assert_eq!(site.job(job).unwrap().key.restarts, 0, "it started once");
    // He takes it off its node, and wants it to wait. What is done to a job before the controller has
    // seen it run counts as a start that failed.
    std::thread::sleep(Duration::from_secs(4));
    site.update("alice", &["requeuehold", &job.to_string()]);
    site.wait("it to be told", || site.why(job).contains("its owner holds it"));
    std::thread::sleep(Duration::from_secs(3));
    assert!(site.job(job).unwrap().state.waits(), "its owner requeued and held it");
    site.update("alice", &["release", &job.to_string()]);
    site.wait("its second start", || site.runs(job));
    site.wait("its end", || site.job(job).is_some_and(|job| job.state.is_over()));
}

/// Elastic jobs that name the type of their GPUs, or ask by task and by GPU, get fewer when that is
/// all there is.
fn other_ways_to_ask(site: &mut Site) {
    let half = site.submit("bob", 600, "", &["-p", "open", "-w", "n1", "--gres=gpu:2"]);
    site.wait("half a node to be busy", || site.runs(half));
    let lines = "#WATTLINE gpus=1-4:2 elasticity=malleable checkpoint=term";
    for options in [
        &["--gres=gpu:h100:4"][..],
        &["-n", "4", "--gpus-per-task=1", "--cpus-per-gpu=2"][..],
        &["--gpus=h100:4", "--cpus-per-gpu=2"][..],
    ] {
        let job = site.submit("alice", 3, lines, &[options, &["-t", "1"]].concat());
        site.wait(&format!("{options:?} to start"), || site.runs(job));
        assert_eq!(site.gpus(job), 2, "{options:?}");
        site.wait("its end", || site.job(job).is_some_and(|job| job.state.is_over()));
        let ended = site.job(job).unwrap();
        assert_eq!((ended.state, ended.key.restarts), (State::Completed, 0), "{options:?}");
    }
    site.cancel(&[half]);
}
