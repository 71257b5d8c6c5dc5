//! `wattline release` and `wattline doctor` on a real SLURM.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{LIMIT, Lab, NODES, Spec};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;
use std::time::Duration;
use wattline_controller::slurm::read::{NodeFlag, SlurmJob, State};

/// One lab at a time.
static ONE: Mutex<()> = Mutex::new(());

fn wattline(command: &str, lab: &Lab, site: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_wattline"))
        .arg(command)
        .args(args)
        .arg("--site")
        .arg(site)
        .args(["--journal", &lab.path("journal")])
        .output()
        .unwrap()
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// What became of one thing.
fn outcome(report: &Value, kind: &str, name: &str) -> Option<String> {
    let lines = report["lines"].as_array().unwrap();
    let line = lines.iter().find(|line| line["kind"] == kind && line["name"] == name)?;
    line["outcome"].as_str().map(str::to_owned)
}

fn job(lab: &Lab, number: u32) -> SlurmJob {
    let jobs = lab.queue().unwrap();
    jobs.into_iter().find(|job| job.key.id == number).unwrap()
}

const LONG: Duration = Duration::from_secs(40);

#[test]
fn everything_goes_back_to_slurm_as_it_was() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut lab) = Lab::up("release", &[]) else { return };
    let site = lab.site("6 kW", "control");
    lab.control(&site);
    let spec = Spec {
        workload: "wa",
        work: 6_000,
        gpus: 2,
        range: "1-4",
        deadline: 30,
        weight: 200,
        after: 0.0,
    };
    let moved = lab.submit("moved", &lab.train(&spec));
    let hold = ["--parsable", "--hold", "--gres=gpu:1", "--wrap", "sleep 600"];
    let user = lab.as_user("alice", "sbatch", &hold);
    let user: u32 = String::from_utf8_lossy(&user.stdout).trim().parse().unwrap();
    // One that SLURM places on the nodes it is told, and one that waits for it.
    let sleeps = "#!/bin/bash\nsleep 600\n";
    let choosy = lab.submit_with("choosy", sleeps, &["-x", "n1", "--gpus=1", "--requeue"]);
    let after = ["--gres=gpu:1", "--begin=now+3600", "-d", &format!("afterok:{choosy}")];
    let after = lab.submit_with("after", sleeps, &after);
    let parked = |lab: &Lab| {
        let after = job(lab, after);
        !after.held && after.eligible.is_some_and(|at| at.seconds() > 4e9)
    };
    lab.until("runs", LONG, || {
        [moved, choosy].iter().all(|number| job(&lab, *number).state == State::Running)
    });
    lab.until("a job that waits for another", LONG, || parked(&lab));
    let down = |lab: &Lab| {
        let nodes = lab.nodes().unwrap_or_default();
        let node = nodes
            .into_iter()
            .find(|node| node.is(&NodeFlag::PoweringDown) || node.is(&NodeFlag::PoweredDown));
        node.map(|node| node.name)
    };
    // Less than the nodes need: one must sleep.
    assert!(lab.ask(&["budget", "set", "2.2 kW"]).is_some(), "{}", lab.log());
    lab.until("a node that goes to sleep", LONG, || down(&lab).is_some());
    let asleep = down(&lab).unwrap();

    let refused = wattline("release", &lab, &site, &["--all"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("systemctl stop wattline"), "{said}");

    lab.kill_controller();
    // As the controller does it when it moves a job, and it died in between.
    for number in [moved, choosy] {
        lab.ran("scontrol", &["requeuehold", &number.to_string()]);
        lab.until("a held job", LONG, || {
            let job = job(&lab, number);
            job.held && job.state.waits()
        });
        assert!(!job(&lab, number).required_nodes.is_empty());
    }
    fs::write(lab.folder.join("pm/n1/limit0"), "250\n").unwrap();
    lab.until("a lower limit", LONG, || {
        fs::read_to_string(lab.folder.join("pm/n1/enforced0")).is_ok_and(|t| t.trim() == "250")
    });
    // The gate holds one of which no controller has heard.
    lab.beat();
    let stranger = lab.submit("stranger", "#!/bin/bash\n#SBATCH --gres=gpu:1\nsleep 600\n");
    assert!(job(&lab, stranger).held);

    let dry = wattline("release", &lab, &site, &["--all", "--dry-run", "--json"]);
    let dry = json(&dry);
    for (kind, name) in [
        ("job", moved.to_string()),
        ("job", choosy.to_string()),
        ("job", after.to_string()),
        ("job", stranger.to_string()),
        ("node", asleep.clone()),
    ] {
        assert_eq!(outcome(&dry, kind, &name).as_deref(), Some("planned"), "{kind} {name}: {dry}");
    }
    assert!(job(&lab, moved).held && job(&lab, stranger).held);
    assert!(lab.folder.join("run/heartbeat").exists());

    let done = wattline("release", &lab, &site, &["--all", "--json"]);
    assert!(done.status.success(), "{done:?}");
    let done = json(&done);
    assert_eq!(done["failed"], 0);
    for (kind, name, what) in [
        ("job", moved.to_string(), "done"),
        ("job", choosy.to_string(), "done"),
        ("job", after.to_string(), "done"),
        ("job", stranger.to_string(), "done"),
        ("job", user.to_string(), "kept"),
        ("node", asleep, "done"),
        ("limits", "n1".into(), "done"),
    ] {
        assert_eq!(outcome(&done, kind, &name).as_deref(), Some(what), "{kind} {name}: {done}");
    }
    let now = job(&lab, moved);
    assert!(!now.held && now.required_nodes.is_empty(), "{now:?}");
    assert_eq!((now.gpus_per_node.map(|gpus| gpus.count), now.node_count), (Some(2), Some(1)));
    let now = job(&lab, choosy);
    assert!(!now.held && now.required_nodes.is_empty(), "{now:?}");
    assert_eq!((now.excluded_nodes, now.gpus_per_job.unwrap().count), (vec!["n1".into()], 1));
    let after = job(&lab, after);
    let in_an_hour = after.eligible.map(|at| at.seconds() - after.key.submit.seconds());
    assert!(!after.held && in_an_hour.is_some_and(|s| (3590.0..3610.0).contains(&s)), "{after:?}");
    lab.until("what SLURM starts", LONG, || {
        [moved, choosy, stranger].iter().all(|number| job(&lab, *number).state == State::Running)
    });
    assert_eq!(job(&lab, moved).gpus_held, Some(2));
    assert!(job(&lab, user).held);
    assert!(!lab.folder.join("run/heartbeat").exists());
    for node in lab.nodes().unwrap() {
        assert!(node.is_usable(), "{node:?}");
        for gpu in 0..4 {
            let path = lab.folder.join(format!("pm/{}/enforced{gpu}", node.name));
            let limit: f64 = fs::read_to_string(path).unwrap().trim().parse().unwrap();
            assert_eq!(limit, LIMIT, "{} {gpu}", node.name);
        }
    }
    let fresh = lab.submit("fresh", "#!/bin/bash\n#SBATCH --gres=gpu:1\nsleep 600\n");
    assert!(!job(&lab, fresh).held, "the gate is open");

    // A second time there is nothing to do, and nothing is done.
    let again = wattline("release", &lab, &site, &["--all", "--json"]);
    assert!(again.status.success(), "{again:?}");
    let again = json(&again);
    let lines = again["lines"].as_array().unwrap();
    assert!(lines.iter().all(|line| line["outcome"] == "kept"), "{again}");
    assert_eq!(job(&lab, moved).state, State::Running);

    let nobody = wattline("release", &lab, &site, &["--job", "4000000"]);
    assert_eq!(nobody.status.code(), Some(1));
}

/// What doctor finds wrong.
fn wrong(lab: &Lab, site: &Path) -> (Vec<String>, Option<i32>) {
    let output = wattline("doctor", lab, site, &["--json"]);
    let report = json(&output);
    let checks = report["checks"].as_array().unwrap().iter();
    let wrong = checks.filter(|check| check["verdict"] == "wrong").map(|check| {
        assert!(!check["fix"].as_str().unwrap().is_empty(), "{check}");
        check["what"].as_str().unwrap().to_owned()
    });
    (wrong.collect(), output.status.code())
}

#[test]
fn what_is_broken_is_named() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut lab) = Lab::up("doctor", &[]) else { return };
    let site = lab.site("6 kW", "control");
    assert_eq!(wrong(&lab, &site), (Vec::new(), Some(0)));
    assert_eq!(
        fs::read_dir(lab.folder.join("run"))
            .unwrap()
            .filter(|file| {
                file.as_ref().unwrap().file_name().to_string_lossy().contains("doctor")
            })
            .count(),
        0,
        "it leaves nothing behind"
    );

    let one = |what: &str| (vec![what.to_owned()], Some(1));
    let report = json(&wattline("doctor", &lab, &site, &["--json"]));
    let checks = report["checks"].as_array().unwrap();
    let shared = checks.iter().find(|check| check["what"] == "shared nodes").unwrap();
    assert_eq!(shared["verdict"], "warn", "{shared}");
    assert!(shared["found"].as_str().unwrap().contains("open: n1, n2"), "{shared}");
    fs::write(lab.folder.join("run/heartbeat"), "99999999999\n").unwrap();
    assert_eq!(wrong(&lab, &site), one("heartbeat"));
    lab.beat();
    let edited = |path: &Path, from: &str, to: &str| {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(path, text.replace(from, to)).unwrap();
        text
    };

    let text = edited(&site, "gpus = 4", "gpus = 3");
    let (found, code) = wrong(&lab, &site);
    assert_eq!((found.len(), code), (NODES as usize, Some(1)), "{found:?}");
    assert!(found.iter().all(|what| what == "the site's file and SLURM"), "{found:?}");
    fs::write(&site, &text).unwrap();
    edited(&site, "poll =", "pole =");
    assert_eq!(wrong(&lab, &site), one("site's file"));
    fs::write(&site, &text).unwrap();

    fs::rename(lab.folder.join("progress"), lab.folder.join("elsewhere")).unwrap();
    assert_eq!(wrong(&lab, &site), one("progress folder"));
    fs::rename(lab.folder.join("elsewhere"), lab.folder.join("progress")).unwrap();

    let gate = lab.folder.join("etc/job_submit.lua");
    let text = edited(&gate, "run/heartbeat", "run/elsewhere");
    assert_eq!(wrong(&lab, &site), one("gate"));
    fs::write(&gate, text).unwrap();

    let conf = lab.folder.join("etc/slurm.conf");
    for (from, to, what) in
        [("RequeueExitHold=86", "", "RequeueExitHold"), ("JobSubmitPlugins=lua", "", "gate")]
    {
        let text = edited(&conf, from, to);
        lab.ran("scontrol", &["reconfigure"]);
        lab.until("another configuration", LONG, || wrong(&lab, &site) == one(what));
        fs::write(&conf, text).unwrap();
        lab.ran("scontrol", &["reconfigure"]);
        lab.until("the old configuration", LONG, || wrong(&lab, &site).0.is_empty());
    }

    // SLURM's commands cannot write JSON where that plugin is not installed.
    let plugins = lab.path("plugins");
    fs::create_dir(&plugins).unwrap();
    let config = lab.ran("scontrol", &["show", "config"]);
    let installed = config.lines().find(|line| line.starts_with("PluginDir")).unwrap();
    let installed = installed.split_once('=').unwrap().1.trim();
    for file in fs::read_dir(installed).unwrap().map(Result::unwrap) {
        if !file.file_name().to_string_lossy().contains("json") {
            symlink(file.path(), Path::new(&plugins).join(file.file_name())).unwrap();
        }
    }
    let bare = lab.path("etc/bare.conf");
    fs::write(&bare, fs::read_to_string(&conf).unwrap() + &format!("\nPluginDir={plugins}\n"))
        .unwrap();
    let text = edited(&site, conf.to_str().unwrap(), &bare);
    assert_eq!(wrong(&lab, &site), one("SLURM's JSON"));
    fs::write(&site, &text).unwrap();

    // A controller that hangs no longer writes its heartbeat.
    lab.control(&site);
    lab.until("an answer", LONG, || lab.ask(&["queue"]).is_some());
    lab.ran("kill", &["-STOP", &lab.controller_pid().unwrap().to_string()]);
    lab.until("a heartbeat that is old", LONG, || {
        let report = json(&wattline("doctor", &lab, &site, &["--json"]));
        let checks = report["checks"].as_array().unwrap();
        checks.iter().any(|check| {
            let hangs = check["fix"].as_str().unwrap().contains("hangs");
            check["what"] == "heartbeat" && check["verdict"] == "warn" && hangs
        })
    });
    lab.kill_controller();

    let pid = fs::read_to_string(lab.folder.join("run/slurmctld.pid")).unwrap();
    lab.ran("kill", &["-9", pid.trim()]);
    assert_eq!(wrong(&lab, &site), one("slurmctld"));
}

#[test]
fn who_only_watches_from_now_on_touches_nothing() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut lab) = Lab::up("watch", &[]) else { return };
    let site = lab.site("6 kW", "control");
    lab.control(&site);
    let spec = |work| Spec {
        workload: "wa",
        work,
        gpus: 2,
        range: "1-4",
        deadline: 30,
        weight: 200,
        after: 0.0,
    };
    let long = lab.submit("long", &lab.train(&spec(6_000)));
    let short = lab.submit("short", &lab.train(&spec(400)));
    lab.until("both to run", LONG, || {
        [long, short].iter().all(|number| job(&lab, *number).state == State::Running)
    });
    lab.kill_controller();
    lab.site("6 kW", "observe");
    lab.control(&site);
    lab.until("an answer", LONG, || lab.ask(&["queue"]).is_some());
    assert!(lab.log().contains("from now on the cluster is only observed"), "{}", lab.log());
    let restarts = job(&lab, long).key.restarts;
    // One ends, GPUs become free, and a budget below what the other needs changes nothing.
    lab.until("the end of one", Duration::from_secs(90), || {
        job(&lab, short).state == State::Completed
    });
    lab.ask(&["budget", "set", "1 kW"]);
    let asleep = |lab: &Lab| {
        let nodes = lab.nodes().unwrap_or_default();
        nodes
            .into_iter()
            .filter(|n| n.is(&NodeFlag::PoweringDown) || n.is(&NodeFlag::PowerDown))
            .count()
    };
    let before = (asleep(&lab), limits(&lab));
    std::thread::sleep(Duration::from_secs(8));
    let now = job(&lab, long);
    assert_eq!((now.state.clone(), now.key.restarts), (State::Running, restarts), "{now:?}");
    assert_eq!((asleep(&lab), limits(&lab)), before);
    lab.until("its end to be known", LONG, || {
        let queue = lab.ask(&["queue", "--all"]).unwrap();
        let mut jobs = queue["jobs"].as_array().unwrap().iter();
        jobs.any(|job| job["name"] == "short" && job["state"] == "finished")
    });
    // And back: what waits is decided about again.
    lab.kill_controller();
    lab.site("6 kW", "control");
    lab.control(&site);
    lab.until("an answer", LONG, || lab.ask(&["budget", "set", "6 kW"]).is_some());
    let next = lab.submit("next", &lab.train(&spec(60)));
    lab.until("another run", LONG, || {
        matches!(job(&lab, next).state, State::Running | State::Completed)
    });
    assert!(lab.is_controlled(), "{}", lab.log());
}

/// The limits of all GPUs, as the nodes say.
fn limits(lab: &Lab) -> Vec<String> {
    let of = |node: u32, gpu: u32| lab.folder.join(format!("pm/n{node}/enforced{gpu}"));
    let all = (1..=NODES).flat_map(|node| (0..lab::GPUS).map(move |gpu| (node, gpu)));
    all.map(|(node, gpu)| fs::read_to_string(of(node, gpu)).unwrap_or_default()).collect()
}
