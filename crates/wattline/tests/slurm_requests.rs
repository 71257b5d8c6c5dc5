//! Whatever users ask `sbatch` for, they get: GPUs counted in any way, certain nodes, whole nodes,
//! several parts, others first. The cluster is busy with jobs that can be moved, and the budget
//! holds.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "common/lab.rs"]
mod lab;

use lab::{Lab, Spec};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use wattline_controller::slurm::read::{SlurmJob, State};

/// One lab at a time.
static ONE: Mutex<()> = Mutex::new(());

/// How a job was seen to run: its nodes with the GPUs on each, and when SLURM says that it began.
#[derive(Clone, Debug, Default)]
struct Run {
    gpus: BTreeMap<String, u32>,
    nodes: Vec<String>,
    began: f64,
    ended: bool,
}

fn look(lab: &Lab, runs: &mut BTreeMap<u32, Run>) {
    for job in lab.queue().unwrap_or_default() {
        let run = runs.entry(job.key.id).or_default();
        if job.state == State::Running {
            run.gpus = job.gpus.iter().map(|on| (on.node.clone(), on.count)).collect();
            run.nodes.clone_from(&job.nodes);
            run.began = job.start.unwrap().seconds();
        }
        run.ended |= job.state == State::Completed;
        assert!(!job.state.is_over() || job.state == State::Completed, "{job:?}");
    }
}

/// What a job found when it ran: tasks, GPUs, or whatever its script wrote.
fn wrote(lab: &Lab, number: u32) -> String {
    let text = std::fs::read_to_string(lab.path(&format!("jobs/{number}.wrote")));
    text.unwrap_or_default().trim().to_owned()
}

fn script(lab: &Lab, seconds: u32) -> String {
    let folder = lab.folder.display();
    format!(
        "#!/bin/bash\n#SBATCH --output=/dev/null\n#WATTLINE workload=wa work=30\n\
         echo \"tasks=$SLURM_NTASKS nodes=$SLURM_JOB_NUM_NODES\" \
         >{folder}/jobs/$SLURM_JOB_ID.wrote\nsleep {seconds}\n"
    )
}

fn long(range: &'static str) -> Spec {
    Spec { workload: "wa", work: 3000, gpus: 4, range, deadline: 60, weight: 20, after: 0.0 }
}

#[test]
fn whatever_users_ask_for_they_get() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut lab) = Lab::up("requests", &[]) else { return };
    let site = lab.site("6 kW", "control");
    lab.control(&site);

    // Jobs that can be moved take all GPUs; they ask for them in all ways.
    let train = lab.train(&long("2-4"));
    let ways = [
        "--gres=gpu:4 --cpus-per-task=2",
        "--gpus=4 --cpus-per-gpu=2",
        "-n4 --gpus-per-task=1 --cpus-per-task=2",
        "--gpus-per-node=4 --ntasks-per-node=4",
    ];
    let asking = |way: &str| {
        let asks = train.replace("--gres=gpu:4", way).replacen(" --cpus-per-task=2\n", "\n", 1);
        assert!(asks.contains(way), "{asks}");
        asks
    };
    let busy: Vec<u32> =
        (0..).zip(ways).map(|(n, way)| lab.submit(&format!("busy{n}"), &asking(way))).collect();
    let running = |lab: &Lab| -> Vec<SlurmJob> {
        let jobs = lab.queue().unwrap_or_default();
        jobs.into_iter().filter(|job| job.state == State::Running).collect()
    };
    lab.until("jobs to run", Duration::from_secs(60), || running(&lab).len() == 4);

    let ask = |name: &str, options: &[&str]| lab.submit_with(name, &script(&lab, 3), options);
    let in_all = ask("in-all", &["--gpus=2"]);
    let by_task = ask("by-task", &["-n4", "--gpus-per-task=1"]);
    let tasks = ask("tasks", &["--gres=gpu:2", "--ntasks-per-node=2"]);
    let spread = ask("spread", &["-N2", "--gres=gpu:1"]);
    let uneven = ask("uneven", &["--gpus=6"]);
    let there = ask("there", &["-w", "n3", "--gres=gpu:1"]);
    let and_there = ask("and-there", &["-w", "n2", "-N2", "--gres=gpu:1"]);
    let not_there = ask("not-there", &["-x", "n1,n2", "--gres=gpu:2"]);
    let alone = ask("alone", &["--exclusive", "--gres=gpu:1"]);
    let bare = ask("bare", &[]);
    let after = ask("after", &["--gres=gpu:1", "-d", &format!("afterok:{there}")]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let later = ask("later", &["--gres=gpu:1", "--begin=now+10"]);
    let both = ["--gres=gpu:1", "--begin=now+25", "-d", &format!("afterok:{there}")];
    let both = ask("both", &both);
    let parts = ask("parts", &["--gres=gpu:1", ":", "--gres=gpu:2"]);
    let all = [
        in_all,
        by_task,
        tasks,
        spread,
        uneven,
        there,
        and_there,
        not_there,
        alone,
        bare,
        after,
        later,
        both,
        parts,
        parts + 1,
    ];
    let mut runs = BTreeMap::new();
    lab.until("all of them to end", Duration::from_secs(240), || {
        look(&lab, &mut runs);
        all.iter().all(|number| runs.get(number).is_some_and(|run| run.ended))
    });
    println!("{runs:#?}");

    let gpus = |number: u32| runs[&number].gpus.values().copied().collect::<Vec<u32>>();
    let on = |number: u32| runs[&number].nodes.iter().map(String::as_str).collect::<Vec<&str>>();
    assert_eq!(gpus(in_all), [2]);
    assert_eq!((gpus(by_task), wrote(&lab, by_task)), (vec![4], "tasks=4 nodes=1".into()));
    assert_eq!((gpus(tasks), wrote(&lab, tasks)), (vec![2], "tasks=2 nodes=1".into()));
    assert_eq!((gpus(spread), wrote(&lab, spread)), (vec![1, 1], "tasks= nodes=2".into()));
    assert_eq!(gpus(uneven).iter().sum::<u32>(), 6);
    assert_eq!(on(there), ["n3"]);
    assert!(on(and_there).len() == 2 && on(and_there).contains(&"n2"), "{:?}", on(and_there));
    assert!(matches!(on(not_there)[..], ["n3" | "n4"]), "{:?}", on(not_there));
    assert_eq!((gpus(alone), gpus(bare)), (vec![4], vec![]));
    assert_eq!((gpus(parts), gpus(parts + 1)), (vec![1], vec![2]));
    assert_eq!(runs[&parts].began, runs[&(parts + 1)].began);
    assert!(runs[&after].began >= runs[&there].began + 3.0);
    // SLURM counts whole seconds.
    assert!(runs[&later].began >= now + 9.0, "{:?} {now}", runs[&later]);
    assert!(runs[&both].began >= (now + 24.0).max(runs[&there].began + 3.0), "{:?}", runs[&both]);

    // Those who can be moved have the cluster to themselves again, as far as the budget goes.
    lab.until("jobs to run again", Duration::from_secs(60), || {
        running(&lab).iter().map(|job| job.gpus_asked()).sum::<u32>() >= 8
    });
    let mut reshaped = 0;
    for number in &busy {
        println!("{number}: {:?}", lab.runs(*number));
        reshaped += u32::from(lab.runs(*number).iter().any(|(_, gpus, _)| *gpus != 4));
        lab.ran("scancel", &[&number.to_string()]);
    }
    assert!(reshaped > 0, "nobody was asked for in another size");
    let most = lab.samples().iter().map(|(_, watts)| *watts).fold(0.0, f64::max);
    println!("at most {most:.0} W of 6000 W");
    assert!(most <= 6000.0);
    assert!(lab.is_controlled(), "{}", lab.log());
}

#[test]
fn a_job_whose_turn_it_is_goes_before_those_of_other_partitions() {
    let _one = ONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(mut lab) = Lab::up("first", &[]) else { return };
    let site = lab.site("6 kW", "control");
    lab.control(&site);
    let one = lab.submit_with("one", &lab.train(&long("4-4")), &["--time=10"]);
    let state = |lab: &Lab, number: u32| {
        let jobs = lab.queue().unwrap_or_default();
        jobs.into_iter().find(|job| job.key.id == number)
    };
    let runs = |lab: &Lab, number| state(lab, number).is_some_and(|j| j.state == State::Running);
    lab.until("a job to run", Duration::from_secs(60), || runs(&lab, one));
    // It waits for the whole cluster, with a priority above all who come after it: SLURM starts
    // nobody on its nodes.
    let rival =
        lab.submit_with("rival", "#!/bin/bash\nsleep 1\n", &["-p", "open", "-N4", "--gres=gpu:4"]);
    lab.until("a rival to wait", Duration::from_secs(20), || {
        state(&lab, rival).is_some_and(|job| job.state_reason == "Resources")
    });
    let two = lab.submit("two", &lab.train(&long("4-4")));
    lab.until("the second to run", Duration::from_secs(40), || runs(&lab, two));
    // SLURM may have started it at once, before it kept nodes for the rival: then its priority was
    // never raised. What counts is that it runs and the rival still waits.
    let rival = state(&lab, rival).unwrap();
    assert!(rival.state == State::Pending, "{rival:?}");
    assert!(lab.is_controlled(), "{}", lab.log());
}
