//! Whatever is wrong with the input: exit code 2, one clear message with file, line and field, no
//! panic.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::refused;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

const PHILLY: &str = "timestamp,duration,num_gpus,gpu_time,cluster\n";
const ELASTICFLOW: &str =
    "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n";

/// Compares a trace with this content.
fn trace(format: &str, content: &[u8], parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.csv");
    fs::write(&file, content).unwrap();
    let file = file.to_str().unwrap();
    refused(&["compare", "--trace", file, "--format", format], parts);
    refused(&["trace", "describe", "--trace", file, "--format", format], parts);
}

fn scenario(content: &str, parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    fs::write(&file, content).unwrap();
    let file = file.to_str().unwrap();
    refused(&["compare", "--scenario", file], parts);
    refused(&["config", "check", file], parts);
}

#[test]
fn a_wrong_column() {
    trace("philly", b"when,duration,num_gpus\n1,2,3\n", &["trace.csv", "timestamp", "when"]);
    trace("sacct", b"JobID|State\n1|COMPLETED\n", &["trace.csv", "Submit", "sacct -a -P"]);
}

#[test]
fn numbers_that_are_none() {
    let row = |row: &str| format!("{PHILLY}{row}").into_bytes();
    let at = ["trace.csv:2", "duration"];
    trace("philly", &row("2017-10-09 07:01:55,NaN,1,0,a\n"), &at);
    trace("philly", &row("2017-10-09 07:01:55,-5,1,0,a\n"), &at);
    trace("philly", &row("2017-10-09 07:01:55,inf,1,0,a\n"), &at);
    trace("philly", &row("yesterday,5,1,0,a\n"), &["trace.csv:2", "timestamp", "yesterday"]);
    trace("philly", &row("2017-10-09 07:01:55,5,1.5,0,a\n"), &["trace.csv:2", "num_gpus"]);
    trace("philly", &row("2017-10-09 07:01:55,5\n"), &["trace.csv:2", "2 fields"]);
}

#[test]
fn a_deadline_before_the_submission() {
    let row = format!("{ELASTICFLOW}a,100,1,bert,50,8,1,60\n");
    trace("elasticflow", row.as_bytes(), &["trace.csv:2", "deadline", "50", "100"]);
}

#[test]
fn nothing_in_it_or_nothing_of_use() {
    trace("philly", b"", &["trace.csv", "no rows"]);
    trace("philly", PHILLY.as_bytes(), &["trace.csv", "no rows"]);
    let row = format!("{ELASTICFLOW}a,100,1,bert,500,8,0,60\n");
    trace("elasticflow", row.as_bytes(), &["trace.csv", "asks for no GPU"]);
    trace("sacct", br#"{"jobs": [], "errors": [{"error": "slurmdbd is down"}]}"#, &["slurmdbd"]);
}

#[test]
fn text_that_is_none() {
    let mut bytes = PHILLY.as_bytes().to_vec();
    bytes.extend(b"2017-10-09 07:01:55,5,1,0,\xff\xfe\n");
    trace("philly", &bytes, &["trace.csv:2", "UTF-8"]);
}

/// Without line ends, memory and time stay small.
#[test]
fn a_line_of_200_megabytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.csv");
    let mut file = File::create(&path).unwrap();
    file.write_all(PHILLY.as_bytes()).unwrap();
    let chunk = vec![b'7'; 1 << 20];
    for _ in 0..200 {
        file.write_all(&chunk).unwrap();
    }
    drop(file);
    let path = path.to_str().unwrap();
    let began = std::time::Instant::now();
    refused(&["compare", "--trace", path, "--format", "philly"], &["long.csv:2", "longer than"]);
    assert!(began.elapsed().as_secs() < 5);
    refused(&["config", "check", path], &["long.csv", "longer than"]);
}

#[test]
fn files_that_are_not_there() {
    let missing = "no/such/file.csv";
    refused(&["compare", "--trace", missing, "--format", "philly"], &[missing, "cannot open"]);
    refused(&["compare", "--scenario", "no/such.toml"], &["no/such.toml", "cannot read"]);
    refused(&["compare", "--andreas", "no/such"], &["no/such", "cannot open"]);
}

#[test]
fn units_policies_and_options_that_nobody_knows() {
    let demo = ["compare", "--scenario", "demo"];
    let with = |more: &[&'static str], parts: &[&str]| {
        let args: Vec<&str> = demo.iter().copied().chain(more.iter().copied()).collect();
        refused(&args, parts);
    };
    with(&["--budget", "12 kX"], &["12 kX", "unknown unit 'kX'", "W, kW, MW"]);
    with(&["--budget", "12"], &["no unit", "12 kW"]);
    with(&["--budget=-1 kW"], &["not negative"]);
    with(&["--policies", "fifo,best"], &["unknown policy 'best'", "fifo, edf, priority, tiresias"]);
    with(&["--policies", "fifo+turbo"], &["+turbo", "+backfill"]);
    with(&["--policies", "tiresias+queues=9/3"], &["+queues=9/3"]);
    with(&["--restart-seconds", "NaN"], &["--restart-seconds", "NaN"]);
    with(&["--restart-seconds=-1"], &["--restart-seconds", "-1"]);
    with(&["--elasticity", "liquid"], &["liquid", "malleable"]);
    with(&["--foresight", "crystal-ball"], &["crystal-ball", "learned", "noisy=SIGMA"]);
    with(&["--foresight", "noisy=9"], &["noisy=9", "from 0 to 5"]);
    with(&["--gpus", "8"], &["--trace"]);
    refused(&["compare"], &["--scenario", "--andreas", "--trace"]);
    refused(&["compare", "--trace", "x.csv"], &["--format"]);
    refused(&["compare", "--trace", "x", "--format", "excel"], &["excel", "philly"]);
    refused(&["fly"], &["fly"]);
}

#[test]
fn scenarios_that_make_no_sense() {
    let nodes = "[[nodes]]\ncount = 1\ngpu = \"h200\"\ngpus = 8\n";
    let jobs = "[jobs]\ncount = 5\n";
    let head = "name = \"x\"\n";
    let all = |more: &str| format!("{head}{nodes}{jobs}{more}");
    scenario("", &["scenario.toml", "name"]);
    scenario("name = ", &["scenario.toml", "line 1"]);
    scenario(&all("colour = \"red\"\n"), &["scenario.toml", "unknown field `colour`", "line"]);
    scenario(&all("[budget]\npower = \"5 miles\"\n"), &["unknown unit 'miles'", "line"]);
    scenario(&all("[budget]\npower = 5000\n"), &["a power as text with its unit", "line"]);
    scenario(&all("[budget]\nshare_of_peak = 1.5\n"), &["budget.share_of_peak", "1.5"]);
    let rule = "[budget]\npower = \"5 kW\"\n[[budget.rules]]\ndays = \"mun\"\nvalue = \"1 kW\"\n";
    scenario(&all(rule), &["mun", "mon-fri"]);
    scenario(&all("load = nan\n"), &["jobs.load", "NaN"]);
    scenario(&all("load = -1.0\n"), &["jobs.load"]);
    scenario(&all("[[jobs.workloads]]\nname = \"doom\"\n"), &["doom", "resnet50-imagenet"]);
    scenario(
        &format!("{head}{jobs}[[nodes]]\ncount = 1\ngpu = \"abacus\"\ngpus = 8\n"),
        &["abacus", "h200"],
    );
    scenario(
        &format!("{head}{jobs}[[nodes]]\ncount = 1\ngpu = \"h200\"\ngpus = 65\n"),
        &["65", "64"],
    );
    let card = "[[gpu]]\nname = \"a100\"\nidle = \"50 W\"\nbusy = \"380 W\"\nmin_limit = \"100 W\"\n\
                default_limit = \"400 W\"\nmax_limit = \"400 W\"\nlimit_step = \"25 W\"\n";
    let links = |links: &str| format!("{}{card}links = {links}\n", all(""));
    scenario(&links("{ node = 0.0, net = 20.0 }"), &["gpu.links.node", "0.001"]);
    scenario(&links("{ node = 200.0, net = nan }"), &["gpu.links.net", "NaN"]);
    scenario(&links("{ node = 200.0 }"), &["missing field `net`", "line"]);
    scenario(&all("[world]\nnoise = 50.0\n"), &["world.noise", "50"]);
    // Beyond all machines and money: sums of such numbers are no numbers.
    for field in ["base", "sleep", "boot"] {
        let node = format!("{head}{jobs}{nodes}{field} = \"1e308 W\"\n");
        scenario(&node, &[&format!("nodes.{field}"), "10 MW"]);
    }
    for field in ["idle", "busy", "min_limit", "default_limit", "max_limit", "limit_step"] {
        let huge: String = card
            .lines()
            .map(|line| match line.split_once(" = ") {
                Some((name, _)) if name == field => format!("{name} = \"1e308 W\"\n"),
                _ => format!("{line}\n"),
            })
            .collect();
        scenario(&format!("{}{huge}", all("")), &["gpu"]);
    }
    // A step that makes a milliard of power limits.
    let tiny = card.replace("\"25 W\"", "\"1e-7 W\"");
    let of_it = nodes.replace("h200", "a100");
    scenario(&format!("{head}{of_it}{jobs}{tiny}"), &["a100", "power limits"]);
    for (field, section) in [
        ("boot_time", ""),
        ("shutdown_time", ""),
        ("restart", "[jobs]\n"),
        ("node_repair", "[world]\n"),
        ("debounce", "[engine]\n"),
        ("budget_lead", "[engine]\n"),
    ] {
        let text = match section {
            "" => format!("{head}{jobs}{nodes}{field} = \"1e308 s\"\n"),
            "[jobs]\n" => all(&format!("{field} = \"1e308 s\"\n")),
            section => all(&format!("{section}{field} = \"1e308 s\"\n")),
        };
        scenario(&text, &[field, "30 years"]);
    }
    scenario(&all("[budget]\npower = \"1e308 W\"\n"), &["budget.power", "1 TW"]);
    scenario(&all("[budget]\npower = \"5 kW\"\nmargin = \"1e308 W\"\n"), &["budget.margin"]);
    scenario(&all("[prices]\nenergy = \"1e308 EUR/kWh\"\n"), &["prices.energy"]);
    scenario(&all("[prices]\ncarbon = \"1e308 g/kWh\"\n"), &["prices.carbon"]);
    let rule = "[[prices.energy_rules]]\nfrom = \"20:00\"\nto = \"06:00\"\n";
    scenario(&all(&format!("{rule}value = \"1e308 EUR/kWh\"\n")), &["prices.energy_rules.value"]);
    scenario(&all("[prices]\ncarbon_price = \"1e308 EUR/t\"\n"), &["prices.carbon_price"]);
    scenario(
        &all("weights = [{ name = \"x\", weight = \"1e308 EUR/h\", share = 1.0 }]\n"),
        &["weight"],
    );
    scenario(&all("duration = { median = \"1e308 s\" }\n"), &["jobs.duration.median"]);
    scenario(&format!("start = \"soon\"\n{}", all("")), &["start", "soon"]);
    scenario(&format!("measurements = \"gone.csv\"\n{}", all("")), &["gone.csv"]);
}

#[test]
fn measurements_that_make_no_sense() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.toml");
    let text = "name = \"x\"\nmeasurements = \"m.csv\"\n[[nodes]]\ncount = 1\ngpu = \"h200\"\n\
                gpus = 8\n[jobs]\ncount = 5\n[[jobs.workloads]]\nname = \"mine\"\n";
    fs::write(&file, text).unwrap();
    let header = "workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w\n";
    let with = |rows: &str, parts: &[&str]| {
        fs::write(folder.path().join("m.csv"), format!("{header}{rows}")).unwrap();
        refused(&["compare", "--scenario", file.to_str().unwrap()], parts);
    };
    with("mine,h200,1,1,8,700,8,NaN,300\n", &["m.csv, line 2", "seconds"]);
    with("mine,h200,1,1,8,700,8,0,300\n", &["m.csv, line 2", "seconds"]);
    with("mine,h200,1,many,8,700,8,1,300\n", &["m.csv, line 2", "gpus"]);
    with("", &["m.csv", "no measurements"]);
    with("yours,h200,1,1,8,700,8,1,300\n", &["mine", "not known"]);
}

#[test]
fn predictions_that_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.csv");
    let header = "workload,gpu,nodes,gpus,global_batch,power_limit_w,samples,seconds,power_w\n";
    let with = |rows: &str, args: &[&str], parts: &[&str]| {
        fs::write(&file, format!("{header}{rows}")).unwrap();
        let args = [args, &["--measurements", file.to_str().unwrap()]].concat();
        refused(&args, parts);
    };
    let evaluate = ["predict", "evaluate", "--fit-points", "3"];
    with("", &evaluate, &["m.csv", "no measurements"]);
    with("a,x,1,1,8,200,8,1,150\n", &evaluate, &["m.csv", "two measurements"]);
    with("a,x,1,1,8,200,8,NaN,150\n", &evaluate, &["m.csv, line 2", "seconds"]);
    with("a,x,1,1,8,200,8,1,1e9\n", &evaluate, &["a on x", "the power in watts"]);
    with("a,x,4,1,8,200,8,1,150\n", &evaluate, &["a on x", "1 GPUs on 4 nodes"]);
    with("a,x,1,1,8,200,8,1,150\n", &["predict", "evaluate", "--fit-points", "0"], &["0"]);
    with("a,x,1,1,8,200,8,1,150\n", &["predict", "show", "b"], &["'b'", "a on x"]);
    let two = "a,x,1,1,8,200,8,1,150\na,y,1,1,8,200,8,1,150\n";
    with(two, &["predict", "show", "a"], &["--gpu", "a on x, a on y"]);
}

/// An output folder that cannot be is found out before anything is simulated.
#[test]
fn a_folder_that_cannot_be_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let inside: &Path = &file.join("out");
    let out = inside.to_str().unwrap();
    refused(&["compare", "--scenario", "demo", "--out", out], &["cannot create", out]);
}
