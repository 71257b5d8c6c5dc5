//! The reader, the metadata and the gate against a real SLURM, where one is installed and we are root.

use jiff::tz::TimeZone;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use wattline_controller::slurm::metadata::{self, Range, Told, When};
use wattline_controller::slurm::read::{self, ReadError, SlurmJob, State};
use wattline_core::units::{EurosPerSecond, Seconds};

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A lab that stops when it goes out of scope.
struct Lab {
    dir: PathBuf,
}

impl Lab {
    /// `None` where there cannot be one.
    fn start(name: &str) -> Option<Self> {
        let root = Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n");
        let installed = Command::new("slurmctld").arg("-V").output().is_ok();
        if std::env::var_os("WATTLINE_LAB").is_some_and(|lab| lab == "no") {
            wattline_testing::skipped("WATTLINE_LAB=no");
            return None;
        }
        if !(root && installed) {
            wattline_testing::skipped("a lab needs root and SLURM (lab/up.sh installs it)");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("wattline-{name}-{}", std::process::id()));
        let lab = Self { dir };
        for attempt in 0..5 {
            let port = 20_000 + (std::process::id() + 31 * attempt) % 120 * 100;
            let up = Command::new(project().join("lab/up.sh"))
                .env("LAB", &lab.dir)
                .env("CTLPORT", port.to_string())
                .env("NODEPORT", (port + 10).to_string())
                .envs([("NODES", "2"), ("GPUS", "4"), ("GATE", "1")])
                .output()
                .expect("bash");
            if up.status.success() {
                return Some(lab);
            }
            eprintln!("{}", String::from_utf8_lossy(&up.stderr));
        }
        panic!("no lab came up");
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Output {
        Command::new(command)
            .args(arguments)
            .env("SLURM_CONF", self.dir.join("etc/slurm.conf"))
            .current_dir(self.dir.join("jobs"))
            .output()
            .unwrap_or_else(|e| panic!("{command}: {e}"))
    }

    fn text(&self, command: &str, arguments: &[&str]) -> String {
        let output = self.run(command, arguments);
        assert!(output.status.success(), "{command} {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn jobs(&self) -> Result<Vec<SlurmJob>, ReadError> {
        read::jobs(&read::text(&self.run("squeue", &["--json"]).stdout))
    }

    fn submit(&self, user: &str, arguments: &[&str]) -> u32 {
        let conf = format!("SLURM_CONF={}", self.dir.join("etc/slurm.conf").display());
        let mut all = vec!["-u", user, "--", "env", &conf, "sbatch", "--parsable"];
        all.extend(arguments);
        self.text("runuser", &all).trim().parse().expect("a job id")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let down = project().join("lab/down.sh");
        let _ = Command::new(down).env("LAB", &self.dir).env("WIPE", "1").output();
    }
}

fn job(jobs: &[SlurmJob], id: u32) -> &SlurmJob {
    jobs.iter().find(|job| job.key.id == id).expect("the job")
}

fn told(job: &SlurmJob) -> Told {
    let when = When { submit: job.key.submit, zone: &TimeZone::UTC };
    let comment = job.admin_comment.as_deref().expect("the gate's comment");
    metadata::admin_comment(comment, when).expect("the gate's mark")
}

#[test]
fn what_a_user_says_comes_through_the_gate_and_is_read() {
    let Some(lab) = Lab::start("gate") else { return };
    let script = "#!/bin/bash\n#SBATCH --gres=gpu:2\n#WATTLINE deadline=6h gpus=1-4:2\n\
                  #WATTLINE workload=$(reboot) weight=2 save=2s\u{1b}[31m\nsleep 600\n#WATTLINE weight=9\n";
    std::fs::write(lab.dir.join("jobs/job.sh"), script).expect("written");
    let words = lab.submit("alice", &["-J", "a\"b<b>$(id)", "--comment", "weight=3 'x", "job.sh"]);
    let json =
        lab.submit("bob", &["--hold", "--comment", r#"{"weight": 4, "gpus": "2"}"#, "job.sh"]);
    let other =
        lab.submit("bob", &["-p", "open", "--wrap", "sleep 600", "-N2", "--gres=gpu:h100:3"]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let jobs = loop {
        let jobs = lab.jobs().expect("a queue");
        if job(&jobs, other).state == State::Running || Instant::now() > deadline {
            break jobs;
        }
        std::thread::sleep(Duration::from_millis(200));
    };

    let of_words = job(&jobs, words);
    assert_eq!((&of_words.state, of_words.held), (&State::Pending, true));
    assert_eq!((of_words.user_name.as_deref(), of_words.gpus_asked()), (Some("alice"), 2));
    assert_eq!(of_words.name, "a\"b<b>$(id)");
    let said = told(of_words);
    assert_eq!(said.asked.deadline, Some(of_words.key.submit + Seconds::hours(6.0)));
    assert_eq!(said.asked.gpus, Some(Range { min: 1, max: 4, requested: Some(2) }));
    // The comment wins over the script.
    assert_eq!(said.asked.weight, Some(EurosPerSecond::new(3.0 / 3600.0)));
    assert_eq!((said.asked.workload, said.asked.save, said.asked.hold), (None, None, None));
    let keys: Vec<&str> = said.complaints.iter().map(|c| c.key.as_str()).collect();
    assert_eq!(keys, ["\\'x", "workload", "save"]);

    let said = told(job(&jobs, json));
    assert_eq!(said.asked.weight, Some(EurosPerSecond::new(4.0 / 3600.0)));
    assert_eq!(said.asked.gpus, Some(Range { min: 2, max: 2, requested: None }));
    assert_eq!(said.asked.hold, Some(true));

    let free = job(&jobs, other);
    assert_eq!((&free.state, &free.admin_comment), (&State::Running, &None));
    let held: Vec<(&str, u32)> = free.gpus.iter().map(|g| (g.node.as_str(), g.count)).collect();
    assert_eq!((held, free.gpus_held), (vec![("n1", 3), ("n2", 3)], Some(6)));

    let nodes = read::nodes(&lab.text("sinfo", &["--json"])).expect("nodes");
    assert_eq!(nodes.len(), 2);
    assert!(nodes.iter().all(|n| n.gpus.count == 4 && n.gpus_used == 3 && n.is_usable()));

    // The same SLURM without slurmctld: an exit code of 0, no jobs, and not an empty queue.
    let pid = std::fs::read_to_string(lab.dir.join("run/slurmctld.pid")).expect("a pid");
    lab.text("kill", &["-9", pid.trim()]);
    assert!(lab.jobs().is_err());
}
