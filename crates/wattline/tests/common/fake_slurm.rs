//! A SLURM of four scripts that print files, and hang while a file called `frozen` is there. It
//! needs no SLURM and no root.
#![allow(dead_code, unreachable_pub)]

use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub const NODES: u32 = 4;
pub const GPUS: u32 = 4;

/// A folder with the scripts, what they print, and the nodes' limits.
pub struct FakeSlurm {
    pub folder: tempfile::TempDir,
    controller: Option<Child>,
}

impl FakeSlurm {
    /// Two jobs run on each node, on all of its GPUs; so many wait.
    pub fn new(waiting: u32) -> Self {
        let fake = Self { folder: tempfile::tempdir().unwrap(), controller: None };
        let folder = fake.path("");
        fs::create_dir(fake.path("bin")).unwrap();
        for (program, prints) in
            [("squeue", "jobs.json"), ("sinfo", "nodes.json"), ("scontrol", ""), ("scancel", "")]
        {
            let print = match prints {
                // What is only asked for is no order.
                "" => format!(
                    "case \"$*\" in\n\
                     *'show reservation') echo No reservations in the system; exit;;\n\
                     *'show partition') echo PartitionName=gpu MaxTime=UNLIMITED; exit;;\n\
                     *'show config') echo SelectTypeParameters = CR_CPU_MEMORY; exit;;\n\
                     esac\n\
                     echo {program} \"$@\" >>{}/orders",
                    folder.display()
                ),
                file => format!("exec cat {}/{file}", folder.display()),
            };
            let frozen = folder.join("frozen");
            let script =
                format!("#!/bin/sh\n[ ! -e {} ] || exec sleep 1000\n{print}\n", frozen.display());
            let path = fake.path("bin").join(program);
            fs::write(&path, script).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::create_dir(fake.path("run")).unwrap();
        for node in 1..=NODES {
            let pm = fake.path(&format!("pm/n{node}"));
            fs::create_dir_all(&pm).unwrap();
            for gpu in 0..GPUS {
                fs::write(pm.join(format!("limit{gpu}")), "400\n").unwrap();
                // What is asked for holds at once.
                symlink(format!("limit{gpu}"), pm.join(format!("enforced{gpu}"))).unwrap();
            }
        }
        fs::write(fake.path("nodes.json"), nodes()).unwrap();
        fs::write(fake.path("jobs.json"), jobs(waiting)).unwrap();
        fake
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// No command ends any more.
    pub fn freeze(&self) {
        fs::write(self.path("frozen"), "").unwrap();
    }

    pub fn thaw(&self) {
        fs::remove_file(self.path("frozen")).unwrap();
    }

    /// What SLURM was told.
    pub fn orders(&self) -> String {
        fs::read_to_string(self.path("orders")).unwrap_or_default()
    }

    /// Starts a controller over it.
    pub fn control(&mut self, site: &Path, policy: &str, more: &[&str]) {
        let log = || fs::File::create(self.path("controller.log")).unwrap();
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let child = Command::new(env!("CARGO_BIN_EXE_wattline"))
            .args(["serve", "--policy", policy, "--json", "--site"])
            .arg(site)
            .arg("--journal")
            .arg(self.path("journal"))
            .arg("--socket")
            .arg(self.path("socket"))
            .args(more)
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log())
            .spawn();
        self.controller = Some(child.unwrap());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("controller.log")).unwrap_or_default()
    }

    /// Asks the controller. None: nobody answers.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Option<serde_json::Value> {
        let mut stream = UnixStream::connect(self.path("socket")).ok()?;
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        assert!(head.starts_with("HTTP/1.1 20"), "{path}: {head} {body}");
        Some(serde_json::from_str(body).unwrap_or_default())
    }

    pub fn status(&self) -> serde_json::Value {
        self.ask("GET", "/v1/status", "").unwrap_or_default()
    }

    pub fn troubles(&self) -> String {
        self.status()["troubles"].to_string()
    }

    /// Sets the budget to so many watts.
    pub fn set_budget(&self, watts: u32) {
        let body = format!("{{\"calendar\": {{\"value\": {watts}}}}}");
        self.ask("PUT", "/v1/budget", &body).unwrap();
    }

    /// The limits of all GPUs, added up.
    pub fn limits(&self) -> f64 {
        let gpus = (1..=NODES).flat_map(|node| (0..GPUS).map(move |gpu| (node, gpu)));
        let read = |(node, gpu)| -> f64 {
            let text = fs::read_to_string(self.path(&format!("pm/n{node}/limit{gpu}"))).unwrap();
            text.trim().parse().unwrap()
        };
        gpus.map(read).sum()
    }

    /// How old the heartbeat is, in whole seconds; none if there is none.
    pub fn heartbeat(&self) -> Option<i64> {
        let beat = fs::read_to_string(self.path("run/heartbeat")).ok()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        Some(now - beat.trim().parse::<i64>().unwrap())
    }

    pub fn until(&self, what: &str, limit: Duration, mut is: impl FnMut() -> bool) -> Duration {
        let began = Instant::now();
        while !is() {
            let waited = began.elapsed();
            assert!(
                waited < limit,
                "waited {limit:?} for {what}\n{}\n{}",
                self.status(),
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        began.elapsed()
    }
}

impl Drop for FakeSlurm {
    fn drop(&mut self) {
        if let Some(mut child) = self.controller.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn nodes() -> String {
    let node = |n: u32| {
        format!(
            r#"{{"name":"n{n}","state":"allocated","state_flags":[],"gres":"gpu:h100:{GPUS}",
            "gres_used":"gpu:h100:{GPUS}(IDX:0-3)","cpus":64,"alloc_cpus":8,"real_memory":500000,
            "partitions":["gpu"]}}"#
        )
    };
    let nodes: Vec<String> = (1..=NODES).map(node).collect();
    format!("{{\"meta\":{{}},\"errors\":[],\"nodes\":[{}]}}", nodes.join(","))
}

fn jobs(waiting: u32) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let common = format!(
        r#""submit_time":{now},"restart_cnt":0,"user_id":1000,"user_name":"alice",
        "partition":"gpu","tres_per_node":"gres:gpu:2","node_count":1,"cpus":4,"tasks":1,
        "time_limit":600,"batch_flag":true,"requeue":true"#
    );
    let mut text = String::from("{\"meta\":{},\"errors\":[],\"jobs\":[");
    for n in 0..NODES * 2 {
        let (node, gpus) = (1 + n / 2, if n % 2 == 0 { "0-1" } else { "2-3" });
        let _ = write!(
            text,
            r#"{{"job_id":{},"name":"run{n}","job_state":"RUNNING","state_reason":"None",
            "priority":1,"nodes":"n{node}","start_time":{now},
            "gres_detail":["gpu:h100:2(IDX:{gpus})"],{common}}},"#,
            n + 1
        );
    }
    for n in 0..waiting {
        let _ = write!(
            text,
            r#"{{"job_id":{},"name":"wait{}","job_state":"PENDING","state_reason":"JobHeldUser",
            "priority":0,"admin_comment":"wattline/1",{common}}},"#,
            n + 100,
            n % 20
        );
    }
    text.pop();
    text + "]}"
}
