//! A real SLURM on this machine, with nodes whose power is emulated, and a controller on it.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use wattline_controller::slurm::read::{self, SlurmJob, SlurmNode};

/// What the nodes draw, for the lab's emulation and for the site's file alike.
pub const BASE: f64 = 300.0;
pub const IDLE: f64 = 50.0;
pub const BUSY: f64 = 350.0;
pub const LIMIT: f64 = 400.0;
pub const BOOT: f64 = 550.0;
pub const SLEEP: f64 = 10.0;
pub const NODES: u32 = 4;
pub const GPUS: u32 = 4;

/// Samples a second that a workload does on one GPU, and the share that more GPUs do not speed up.
pub const WORKLOADS: [(&str, f64); 2] = [("wa", 10.0), ("wb", 14.0)];
pub const SERIAL: f64 = 0.1;

/// How fast a workload is, as `lab/train.pl` and `lab/power.pl` make it.
pub fn rate(alone: f64, gpus: u32, limit: f64) -> f64 {
    alone / (SERIAL + (1.0 - SERIAL) / f64::from(gpus)) * (limit / BUSY).min(1.0).sqrt()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A lab that goes down when it is dropped.
pub struct Lab {
    pub folder: PathBuf,
    /// Where the controller keeps its journal.
    pub journal: PathBuf,
    /// What the controller's environment has besides.
    pub env: Vec<(String, String)>,
    power: Option<Child>,
    controller: Option<Child>,
}

impl Lab {
    /// Starts one, unless this is not the machine for it.
    pub fn up(name: &str, settings: &[(&str, &str)]) -> Option<Self> {
        if std::env::var_os("WATTLINE_LAB").is_some_and(|lab| lab == "no") {
            wattline_testing::skipped("WATTLINE_LAB=no");
            return None;
        }
        let id = Command::new("id").arg("-u").output().unwrap();
        if String::from_utf8_lossy(&id.stdout).trim() != "0" {
            wattline_testing::skipped("a SLURM lab needs root");
            return None;
        }
        let folder = PathBuf::from(format!("/tmp/wattline-{name}-{}", std::process::id()));
        for attempt in 0..5_u32 {
            let port = 20_000 + (std::process::id() * 7 + attempt * 1_700) % 20_000;
            let up = Command::new("bash")
                .arg(root().join("lab/up.sh"))
                .env("LAB", &folder)
                .envs([("NODES", NODES.to_string()), ("GPUS", GPUS.to_string())])
                .envs([("CTLPORT", port.to_string()), ("NODEPORT", (port + 10).to_string())])
                .env("RESTPORT", (port + 5).to_string())
                .envs([("GATE", "1"), ("SUSPENDTIMEOUT", "3"), ("PATIENCE_S", "60")])
                .envs(settings.iter().copied())
                .output()
                .unwrap();
            if up.status.success() {
                let journal = folder.join("journal");
                let env = Vec::new();
                let lab = Self { folder, journal, env, power: None, controller: None };
                return Some(lab.furnished());
            }
            eprintln!("{}", String::from_utf8_lossy(&up.stderr));
        }
        panic!("the lab does not start");
    }

    fn furnished(mut self) -> Self {
        fs::copy(root().join("lab/train.pl"), self.folder.join("bin/train.pl")).unwrap();
        self.ran("chmod", &["755", &self.path("bin/train.pl")]);
        fs::create_dir_all(self.folder.join("pm")).unwrap();
        self.beat();
        let gpus = GPUS.to_string();
        let watts = [BASE, IDLE, BUSY, LIMIT, BOOT, SLEEP].map(|watts| watts.to_string());
        let [base, idle, busy, limit, boot, sleep] = watts.each_ref().map(String::as_str);
        let power = Command::new("perl")
            .arg(root().join("lab/power.pl"))
            .arg(&self.folder)
            .args(["--gpus", &gpus, "--base", base, "--idle", idle, "--busy", busy])
            .args(["--limit", limit, "--boot", boot, "--sleep", sleep])
            .spawn();
        self.power = Some(power.unwrap());
        self.until("the nodes' power", Duration::from_secs(10), || {
            self.folder.join("pm/n1/enforced0").exists()
        });
        self
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    pub fn conf(&self) -> String {
        self.path("etc/slurm.conf")
    }

    /// The gate is closed for a minute.
    pub fn beat(&self) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        fs::write(self.folder.join("run/heartbeat"), format!("{}\n", now.as_secs())).unwrap();
    }

    /// The site's file, with a budget.
    pub fn site(&self, budget: &str, mode: &str) -> PathBuf {
        site(&self.folder, budget, mode)
    }

    /// Starts the controller; it writes to `controller.log`.
    pub fn control(&mut self, site: &Path) {
        self.control_by(site, "wattline");
    }

    /// The same with another policy.
    pub fn control_by(&mut self, site: &Path, policy: &str) {
        let open = || {
            let path = self.folder.join("controller.log");
            fs::OpenOptions::new().create(true).append(true).open(path).unwrap()
        };
        let child = Command::new(env!("CARGO_BIN_EXE_wattline"))
            .args(["serve", "--policy", policy, "--json", "--site"])
            .arg(site)
            .arg("--journal")
            .arg(&self.journal)
            .arg("--socket")
            .arg(self.socket())
            .envs(self.env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(open())
            .stderr(open())
            .spawn();
        self.controller = Some(child.unwrap());
    }

    /// Where the controller answers.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// What a client command of Wattline prints as JSON; `None` while nobody answers.
    pub fn ask(&self, args: &[&str]) -> Option<serde_json::Value> {
        let output = Command::new(env!("CARGO_BIN_EXE_wattline"))
            .args(args)
            .args(["--json", "--socket"])
            .arg(self.socket())
            .output()
            .unwrap();
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// What `GET /v1/status` answers; `None` while nobody does.
    pub fn status(&self) -> Option<serde_json::Value> {
        let socket = self.socket().display().to_string();
        let path = "http://lab/v1/status";
        let output = self.run("curl", &["-s", "--unix-socket", &socket, path]);
        serde_json::from_slice(&output.stdout).ok()
    }

    /// How long SLURM takes to start a job and to have its GPUs free again, in seconds, as the
    /// controller has learnt it.
    pub fn delays(&self) -> (f64, f64) {
        let socket = self.socket().display().to_string();
        let output = self.run("curl", &["-s", "--unix-socket", &socket, "http://lab/metrics"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let of = |action: &str| -> f64 {
            let name = format!("wattline_delay_seconds{{action=\"{action}\"}} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&name));
            value.unwrap_or_else(|| panic!("no {name}in\n{text}")).parse().unwrap()
        };
        (0.5 * (of("start") + of("restart")), of("stop"))
    }

    /// The number of its process.
    pub fn controller_pid(&self) -> Option<u32> {
        self.controller.as_ref().map(Child::id)
    }

    /// Whether the controller still runs.
    pub fn is_controlled(&mut self) -> bool {
        self.controller.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// `kill -9`.
    pub fn kill_controller(&mut self) {
        if let Some(mut child) = self.controller.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// What the controller said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("controller.log")).unwrap_or_default()
    }

    /// A command in the lab.
    pub fn run(&self, program: &str, args: &[&str]) -> Output {
        Command::new(program)
            .args(args)
            .env("SLURM_CONF", self.conf())
            .env("LAB_PROGRESS", self.path("progress"))
            .current_dir(self.folder.join("jobs"))
            .output()
            .unwrap()
    }

    /// The same, and it must work.
    pub fn ran(&self, program: &str, args: &[&str]) -> String {
        let output = self.run(program, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {error}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// As a user.
    pub fn as_user(&self, user: &str, program: &str, args: &[&str]) -> Output {
        let mut all = vec!["-u", user, "--", program];
        all.extend(args);
        self.run("runuser", &all)
    }

    /// Submits a job of alice's, by its script. Says its number.
    pub fn submit(&self, name: &str, script: &str) -> u32 {
        self.submit_with(name, script, &[])
    }

    /// The same with options of `sbatch`.
    pub fn submit_with(&self, name: &str, script: &str, options: &[&str]) -> u32 {
        let path = self.folder.join("jobs").join(format!("{name}.sh"));
        fs::write(&path, script).unwrap();
        let path = path.display().to_string();
        let mut args = vec!["--parsable", "-J", name];
        args.extend(options);
        args.push(&path);
        let output = self.as_user("alice", "sbatch", &args);
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        text.parse().unwrap_or_else(|_| panic!("{name}: {text} {error}"))
    }

    /// A job that trains.
    pub fn train(&self, spec: &Spec) -> String {
        let folder = self.folder.display();
        let Spec { workload, work, gpus, range, deadline, weight, .. } = spec;
        let alone = WORKLOADS.iter().find(|(name, _)| name == workload).unwrap().1;
        format!(
            r#"#!/bin/bash
#SBATCH --gres=gpu:{gpus} --output={folder}/jobs/%j.out --cpus-per-task=2
#WATTLINE workload={workload} work={work} gpus={range}:{gpus} batch=256
#WATTLINE deadline={deadline}s weight={weight} elasticity=malleable
#WATTLINE checkpoint=usr1 save={SAVE}s load={LOAD}s
exec perl {folder}/bin/train.pl --work {work} --rate {alone} --serial {SERIAL} --save {SAVE} \
  --load {LOAD} --every 0.5 --checkpoint {folder}/jobs/$SLURM_JOB_ID.saved \
  --speed {folder}/pm/speed/$SLURM_JOB_ID
"#
        )
    }

    /// What SLURM shows; `None` while it does not answer.
    pub fn queue(&self) -> Option<Vec<SlurmJob>> {
        let output = self.run("squeue", &["--json", "--states=all"]);
        read::jobs(&String::from_utf8_lossy(&output.stdout)).ok()
    }

    /// The same for nodes.
    pub fn nodes(&self) -> Option<Vec<SlurmNode>> {
        let output = self.run("sinfo", &["--json"]);
        read::nodes(&String::from_utf8_lossy(&output.stdout)).ok()
    }

    /// All samples of emulated power: time and watts.
    pub fn samples(&self) -> Vec<(f64, f64)> {
        let text = fs::read_to_string(self.folder.join("pm/samples")).unwrap();
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    /// When jobs started, as slurmctld's prolog says: number and seconds since 1970.
    pub fn starts(&self) -> Vec<(u32, f64)> {
        let log = fs::read_to_string(self.folder.join("events/log")).unwrap_or_default();
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let at = words.next()?.parse().ok()?;
            let started = words.next()? == "prolog_slurmctld";
            let number = words.next()?.strip_prefix("job=")?.parse().ok()?;
            started.then_some((number, at))
        };
        log.lines().filter_map(line).collect()
    }

    /// What a job wrote when it started and stopped: (event, gpus, work).
    pub fn runs(&self, number: u32) -> Vec<(String, u32, f64)> {
        let path = self.folder.join(format!("jobs/{number}.out"));
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = |line: &str| {
            let word = |name: &str| {
                line.split_whitespace().find_map(|w| w.strip_prefix(name)?.strip_prefix('='))
            };
            let event = line.split_whitespace().nth(1)?;
            let work = if event == "start" { word("from")? } else { word("done")? };
            Some((event.to_owned(), word("gpus")?.parse().ok()?, work.parse().ok()?))
        };
        text.lines().filter_map(line).collect()
    }

    /// Waits.
    pub fn until(&self, what: &str, limit: Duration, mut is: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is() {
            let jobs = || self.ran("squeue", &["-a", "-t", "all", "-o", "%A %T %r %b %N"]);
            assert!(
                began.elapsed() < limit,
                "waited {limit:?} for {what}\n{}\n{}",
                self.log(),
                jobs()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Lab {
    /// With `WATTLINE_KEEP=1` the folder of a test that fails stays, with `WATTLINE_KEEP=all` each:
    /// the journal, the controller's log, what jobs wrote and what nodes drew.
    fn drop(&mut self) {
        self.kill_controller();
        if let Some(mut power) = self.power.take() {
            let _ = power.kill();
            let _ = power.wait();
        }
        let keep = std::env::var("WATTLINE_KEEP")
            .is_ok_and(|keep| keep == "all" || std::thread::panicking());
        let _ = Command::new("bash")
            .arg(root().join("lab/down.sh"))
            .env("LAB", &self.folder)
            .env("WIPE", if keep { "0" } else { "1" })
            .output();
    }
}

/// Seconds since 1970.
pub fn now() -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs_f64()
}

/// How long saving takes, and reading it again.
pub const SAVE: f64 = 0.3;
pub const LOAD: f64 = 0.5;

/// A job.
#[derive(Clone, Debug)]
pub struct Spec {
    pub workload: &'static str,
    pub work: u32,
    pub gpus: u32,
    pub range: &'static str,
    /// Seconds from its submission.
    pub deadline: u32,
    /// EUR an hour.
    pub weight: u32,
    /// When it is submitted, in seconds from the first.
    pub after: f64,
}

/// Writes the site's file of a lab into its folder, and what was measured there.
pub fn site(lab: &Path, budget: &str, mode: &str) -> PathBuf {
    fs::write(lab.join("measured.csv"), measurements()).unwrap();
    let folder = lab.display();
    let text = format!(
        r#"name = "lab"
measurements = "measured.csv"
[[gpu]]
name = "lab"
idle = "{IDLE} W"
busy = "{BUSY} W"
min_limit = "200 W"
default_limit = "{LIMIT} W"
max_limit = "{LIMIT} W"
limit_step = "50 W"
[[nodes]]
names = "n[1-{NODES}]"
gpu = "lab"
gpus = {GPUS}
base = "{BASE} W"
sleep = "{SLEEP} W"
boot = "{BOOT} W"
boot_time = "2 s"
shutdown_time = "8 s"
limits = "pm"
[budget]
power = "{budget}"
[prices]
energy = "0.2 EUR/kWh"
pue = 1.0
[engine]
debounce = "0.3 s"
budget_lead = "5 s"
[slurm]
mode = "{mode}"
partitions = ["gpu"]
slurm_conf = "{folder}/etc/slurm.conf"
progress = "{folder}/progress"
heartbeat = "{folder}/run/heartbeat"
measure_every = "5 s"
poll = "0.5 s"
stop_grace = "15 s"
[slurm.defaults]
max_weight = "1000 EUR/h"
"#
    );
    let path = lab.join("site.toml");
    fs::write(&path, text).unwrap();
    path
}

fn measurements() -> String {
    let mut text = String::from(
        "workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w\n",
    );
    for (name, alone) in WORKLOADS {
        for gpus in 1..=GPUS {
            for limit in [200.0, 300.0, LIMIT] {
                let samples = rate(alone, gpus, limit) * 100.0;
                let watts = BUSY.min(limit);
                text += &format!("{name},lab,1,{gpus},256,{limit},{samples},100,{watts}\n");
            }
        }
    }
    text
}
