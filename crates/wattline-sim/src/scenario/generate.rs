//! Jobs from a seed.

use super::{Arrivals, JobsSection, Scenario, ScenarioError};
use crate::instance::{keep_possible_shapes, widen};
use rand::SeedableRng;
use rand_distr::weighted::WeightedIndex;
use rand_distr::{Distribution, Exp1, LogNormal, Uniform};
use rand_pcg::Pcg64Mcg;
use wattline_core::Timestamp;
use wattline_core::cluster::{Cluster, Shape};
use wattline_core::ids::{UserId, WorkloadId};
use wattline_core::job::{Bounds, Job, RestartCost, Work};
use wattline_core::units::Seconds;
use wattline_world::physics::Physics;

/// A workload that can be drawn.
struct Candidate {
    id: WorkloadId,
    batch: u32,
    restart: RestartCost,
}

/// Draws the jobs of a scenario. Each property has its own stream of random numbers, so that
/// changing one (say, deadlines) leaves the others as they were.
///
/// # Errors
/// When the scenario names a workload that is not known on its GPUs.
pub fn generate(
    scenario: &Scenario,
    file: &str,
    cluster: &Cluster,
    physics: &mut Physics,
    seed: u64,
) -> Result<Vec<Job>, ScenarioError> {
    let section = &scenario.jobs;
    let (candidates, shares) = candidates(scenario, file, physics)?;
    let mut streams =
        (0..7_u64).map(|k| Pcg64Mcg::seed_from_u64(seed.wrapping_mul(0x9e37_79b9) ^ (k << 56)));
    let mut stream = || streams.next().unwrap_or_else(|| Pcg64Mcg::seed_from_u64(seed));
    let (mut which, mut how_long, mut how_many, mut due, mut weighty, mut whose, mut when) =
        (stream(), stream(), stream(), stream(), stream(), stream(), stream());

    let workloads = weighted(&shares);
    let counts = weighted(&section.gpus.iter().map(|g| g.share).collect::<Vec<_>>());
    let weights = weighted(&section.weights.iter().map(|w| w.share).collect::<Vec<_>>());
    let durations = LogNormal::new(section.duration.median.get().ln(), section.duration.sigma)
        .unwrap_or_else(|_| unreachable!("the scenario was checked"));
    let unit = Uniform::new(0.0, 1.0).unwrap_or_else(|_| unreachable!("0 is below 1"));

    let mut jobs = Vec::with_capacity(section.count as usize);
    for number in 0..section.count {
        let candidate = &candidates[workloads.sample(&mut which)];
        let gpus = section.gpus[counts.sample(&mut how_many)].count.min(cluster.largest_job());
        let drawn = Seconds::new(durations.sample(&mut how_long));
        let time = drawn.max(section.duration.min).min(section.duration.max);
        let (has_deadline, slack) = (unit.sample(&mut due), unit.sample(&mut due));
        let class = &section.weights[weights.sample(&mut weighty)];
        let user = UserId((unit.sample(&mut whose) * f64::from(section.users)) as u32);
        let d = &section.deadlines;
        let multiple = d.tightest + (d.loosest - d.tightest) * slack;
        let mut job = Job {
            name: format!("{}-{:05}", class.name, number + 1).into(),
            user,
            workload: candidate.id,
            work: Work::ZERO,
            submit: Timestamp::ZERO,
            deadline: (has_deadline < d.share).then(|| Timestamp::ZERO + time * multiple),
            weight: class.weight,
            elasticity: section.elasticity,
            gpus: Bounds::exactly(gpus),
            batch: Bounds::exactly(candidate.batch.saturating_mul(gpus)),
            restart: section
                .restart
                .map_or(candidate.restart, |load| RestartCost { save: Seconds::ZERO, load }),
            preemptible: true,
            shapes: None,
            nodes: None,
        };
        widen(&mut job, cluster.largest_job());
        keep_possible_shapes(&mut job, cluster, physics);
        job.work = work_for(&job, time, cluster, physics);
        jobs.push((time, job));
    }
    let asked: f64 =
        jobs.iter().map(|(time, job)| time.get() * f64::from(job.gpus.requested)).sum();
    let span = asked / (section.load * f64::from(cluster.total_gpus()));
    let arrivals = arrivals(section, scenario.start_time(), span, &mut when);
    Ok(jobs
        .into_iter()
        .zip(arrivals)
        .map(|((_, mut job), submit)| {
            job.submit = submit;
            job.deadline = job.deadline.map(|due| submit + (due - Timestamp::ZERO));
            job
        })
        .collect())
}

fn weighted(shares: &[f64]) -> WeightedIndex<f64> {
    WeightedIndex::new(shares).unwrap_or_else(|_| unreachable!("the scenario was checked"))
}

/// What to draw from, and how often.
fn candidates(
    scenario: &Scenario,
    file: &str,
    physics: &mut Physics,
) -> Result<(Vec<Candidate>, Vec<f64>), ScenarioError> {
    let catalogue = physics.catalogue();
    let mut wanted: Vec<(String, f64, Option<u32>)> =
        scenario.jobs.workloads.iter().map(|w| (w.name.clone(), w.share, w.batch)).collect();
    let everything = wanted.is_empty();
    if everything {
        wanted = catalogue.workloads().iter().map(|w| (w.name.to_string(), 1.0, None)).collect();
    }
    let (mut found, mut shares) = (Vec::new(), Vec::new());
    for (name, share, batch) in wanted {
        let entry = catalogue.workload(&name);
        match physics.sampled(&name) {
            Some(id) => {
                let batch = batch.or(entry.map(|w| w.base_batch)).unwrap_or(64);
                let restart = entry.map_or(
                    RestartCost { save: Seconds::new(1.0), load: Seconds::new(15.0) },
                    |w| w.restart(),
                );
                found.push(Candidate { id, batch, restart });
                shares.push(share);
            }
            None if everything => {}
            None => {
                let known: Vec<String> = catalogue
                    .workloads()
                    .iter()
                    .filter(|w| w.gpus().any(|gpu| physics.gpu_type(gpu).is_some()))
                    .map(|w| w.name.to_string())
                    .collect();
                return Err(ScenarioError::UnknownWorkload {
                    file: file.to_owned(),
                    name: name.chars().take(60).collect(),
                    known: known.join(", "),
                });
            }
        }
    }
    if found.is_empty() {
        return Err(ScenarioError::UnknownWorkload {
            file: file.to_owned(),
            name: "(all of the catalogue)".to_owned(),
            known: "none".to_owned(),
        });
    }
    Ok((found, shares))
}

/// The work that takes this long at the requested size, on the GPU type where it goes fastest.
fn work_for(job: &Job, time: Seconds, cluster: &Cluster, physics: &Physics) -> Work {
    let fastest = cluster
        .gpu_type_ids()
        .filter_map(|gpu_type| {
            let shape = Shape { gpu_type, gpus: job.gpus.requested };
            let configuration = cluster.plain_configuration(job, shape);
            physics.speed(job, &configuration).map(|speed| speed.rate.0)
        })
        .fold(0.0, f64::max);
    Work(fastest * time.get())
}

/// Submission times: as many as jobs, rising, over about `span` seconds.
fn arrivals(
    section: &JobsSection,
    start: Timestamp,
    span: f64,
    random: &mut Pcg64Mcg,
) -> Vec<Timestamp> {
    let count = section.count as usize;
    let mean_gap = span / count as f64;
    let mut times = Vec::with_capacity(count);
    let mut gap = |mean: f64| -> f64 {
        let unit: f64 = Exp1.sample(random);
        unit * mean
    };
    match section.arrivals {
        Arrivals::Poisson => {
            let mut time = 0.0;
            for _ in 0..count {
                times.push(start + Seconds::new(time));
                time += gap(mean_gap);
            }
        }
        Arrivals::Diurnal { swing } => {
            // Time runs slower when the rate is low: the integral of the rate is inverted step by
            // step, a minute at a time.
            let mut time = 0.0;
            for _ in 0..count {
                times.push(start + Seconds::new(time));
                let mut left = gap(mean_gap);
                loop {
                    let rate = rate_of_day((start + Seconds::new(time)).seconds(), swing);
                    let step = 60.0_f64.min(left / rate);
                    left -= step * rate;
                    time += step;
                    if left <= 1e-9 * mean_gap {
                        break;
                    }
                }
            }
        }
        Arrivals::Bursts { size, within } => {
            let mut time = 0.0;
            while times.len() < count {
                let burst = (1.0 + gap(size - 1.0)).round() as usize;
                for _ in 0..burst.min(count - times.len()) {
                    let offset = gap(within.get() / 3.0).min(within.get());
                    times.push(start + Seconds::new(time + offset));
                }
                time += gap(mean_gap * size);
            }
            times.sort_unstable();
        }
    }
    times
}

/// Relative rate over the day, 1 on average: a sine with its top at 15:00.
fn rate_of_day(seconds: f64, swing: f64) -> f64 {
    let amplitude = (swing - 1.0) / (swing + 1.0);
    let angle = (seconds / 86_400.0 - 15.0 / 24.0) * std::f64::consts::TAU;
    1.0 + amplitude * angle.cos()
}
