//! Instances in the format of the ANDREAS optimizer: four CSV files in a folder.
//!
//! * `tNodes.csv`: `ID,GPUtype,nGPUs,cost`, the cost of an idle node in EUR/h;
//! * `GPU-costs.csv`: `GPUtype,nGPUs,PowerConsumption[W],EnergyCost[€/kWh],PUE,cost`, the cost in
//!   EUR/h of a node with that many busy GPUs. Counts without a row are interpolated;
//! * `Lof_Selectjobs.csv`: `ID,SubmissionTime,Deadline,TardinessWeight,…`;
//! * `SelectJobs_times.csv`: `ID,GPUtype,nGPUs,ExecutionTime`. A row with more GPUs than the
//!   largest node of its type has means whole nodes, spread.

pub mod reference;

use crate::instance::Instance;
use crate::trace::TraceError;
use crate::trace::lines::Source;
use crate::trace::table::{Column, Row, Style, Table};
use crate::trace::value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;
use wattline_core::Timestamp;
use wattline_core::calendar::Calendar;
use wattline_core::cluster::{BusyPower, Cluster, ClusterError, GpuType, Node, NodeDraw, Shape};
use wattline_core::ids::{GpuTypeId, UserId};
use wattline_core::job::{Bounds, Elasticity, Job, RestartCost, Work};
use wattline_core::prices::Prices;
use wattline_core::units::{EnergyPrice, EurosPerSecond, Seconds, Watts};
use wattline_world::physics::Physics;

/// What a restart costs unless somebody says otherwise.
pub const RESTART: Seconds = Seconds::new(60.0);

/// Why a folder is not an instance.
#[derive(Debug, Error)]
pub enum AndreasError {
    /// One of the files is not as it should be.
    #[error(transparent)]
    Table(#[from] TraceError),
    /// A name that no other file explains.
    #[error("{file}:{line}: field `{field}` is \"{name}\", which {missing_in} does not have")]
    Unknown {
        /// Which file.
        file: String,
        /// Which line.
        line: u64,
        /// Which field.
        field: &'static str,
        /// What stands there.
        name: String,
        /// Where it was looked for.
        missing_in: &'static str,
    },
    /// The same thing twice.
    #[error("{file}:{line}: \"{name}\" stands there already; remove one of the two rows")]
    Twice {
        /// Which file.
        file: String,
        /// Which line.
        line: u64,
        /// What stands there.
        name: String,
    },
    /// A GPU type without any cost row.
    #[error("GPU-costs.csv has no row for GPU type \"{0}\", which tNodes.csv has: add one")]
    NoCost(String),
    /// A job that no row of the times fits on this cluster.
    #[error(
        "job \"{0}\" of Lof_Selectjobs.csv has no row in SelectJobs_times.csv that fits on the \
         nodes of tNodes.csv: add one"
    )]
    NeverFits(String),
    /// Machines that do not make sense.
    #[error("tNodes.csv: {0}")]
    Cluster(#[from] ClusterError),
}

/// Reads the four files in `folder`.
///
/// # Errors
/// Names file, line and field.
pub fn read(folder: &Path) -> Result<Instance, AndreasError> {
    let costs = read_costs(folder)?;
    let (cluster, types) = read_nodes(folder, &costs)?;
    let mut jobs = read_jobs(folder)?;
    let times = read_times(folder, &types, &jobs)?;

    let cluster = Arc::new(cluster);
    let mut physics = Physics::new(Arc::clone(&cluster), None);
    for (job, times) in jobs.iter_mut().zip(times) {
        let fits = |shape: &Shape| shape.gpus <= cluster.gpus_of(shape.gpu_type);
        let shapes: Arc<[Shape]> = times.keys().copied().filter(fits).collect();
        let (Some(least), Some(most)) =
            (shapes.iter().map(|s| s.gpus).min(), shapes.iter().map(|s| s.gpus).max())
        else {
            return Err(AndreasError::NeverFits(job.name.to_string()));
        };
        job.gpus = Bounds { min: least, max: most, requested: least };
        job.shapes = Some(shapes);
        job.workload = physics.listed(&job.name, times);
    }
    let name = folder
        .file_name()
        .map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned());
    let mut instance = Instance::new(name, physics, cluster, jobs);
    // Times count from zero: nodes that idle until the first job comes cost what they cost.
    instance.start = instance.start.min(Timestamp::ZERO);
    instance.prices = Prices {
        energy: Calendar::constant(EnergyPrice::new(costs.price)),
        pue: costs.pue,
        ..Prices::default()
    };
    Ok(instance)
}

/// Opens a table and gives each of its rows, with the columns asked for, to `read`.
fn each_row<const N: usize>(
    folder: &Path,
    file: &str,
    names: [&'static str; N],
    mut read: impl FnMut(&Row<'_>, [Column; N]) -> Result<(), AndreasError>,
) -> Result<(), AndreasError> {
    let path = folder.join(file);
    let shown = path.display().to_string();
    let mut input =
        File::open(&path).map_err(|source| TraceError::Open { file: shown.clone(), source })?;
    let table = Table::open(Source::new(&mut input, &shown)?, Style::Comma, |_| None)?;
    let mut columns = Vec::with_capacity(N);
    for name in names {
        columns.push(table.column(name)?);
    }
    let Ok(columns): Result<[Column; N], _> = columns.try_into() else {
        unreachable!("as many columns as names")
    };
    // An error that is not the table's own is carried past the table's reader.
    let mut other = None;
    table.rows(|row, _| match read(row, columns) {
        Ok(()) => Ok(()),
        Err(AndreasError::Table(error)) => Err(error),
        Err(error) if other.is_none() => {
            other = Some(error);
            Ok(())
        }
        Err(_) => Ok(()),
    })?;
    other.map_or(Ok(()), Err)
}

/// Cost rows of all GPU types.
struct Costs {
    price: f64,
    pue: f64,
    by_type: BTreeMap<Box<str>, BTreeMap<u32, CostRow>>,
}

#[derive(Clone, Copy)]
struct CostRow {
    watts: f64,
    euros_per_hour: f64,
}

fn read_costs(folder: &Path) -> Result<Costs, AndreasError> {
    const WATTS: &str = "PowerConsumption[W]";
    let mut costs = Costs { price: 0.0, pue: 0.0, by_type: BTreeMap::new() };
    let names = ["GPUtype", "nGPUs", WATTS, "EnergyCost[€/kWh]", "PUE", "cost"];
    each_row(folder, "GPU-costs.csv", names, |row, [kind, gpus, watts, price, pue, cost]| {
        let (price, pue) = (row.value(price, positive)?, row.value(pue, positive)?);
        if costs.price == 0.0 {
            (costs.price, costs.pue) = (price, pue);
        }
        let entry = CostRow {
            watts: row.value(watts, value::amount)?,
            euros_per_hour: row.value(cost, value::amount)?,
        };
        let gpus = row.value(gpus, at_least_one)?;
        let kind = row.name(kind)?;
        let name = format!("{kind}, {gpus}");
        let before = costs.by_type.entry(kind).or_default().insert(gpus, entry);
        once(before, row, name)
    })?;
    Ok(costs)
}

/// Refuses a row that says again what another said.
fn once<T>(before: Option<T>, row: &Row<'_>, name: String) -> Result<(), AndreasError> {
    match before {
        None => Ok(()),
        Some(_) => Err(AndreasError::Twice { file: row.file.into(), line: row.line, name }),
    }
}

fn positive(text: &str) -> Result<f64, value::Expected> {
    value::amount(text).and_then(|x| if x > 0.0 { Ok(x) } else { Err("a number above 0") })
}

fn at_least_one(text: &str) -> Result<u32, value::Expected> {
    value::count(text).and_then(|n| if n > 0 { Ok(n) } else { Err("a whole number above 0") })
}

impl Costs {
    /// Power and billing of a node by busy GPUs: as listed, between listed counts linear, beyond
    /// the last along the last two, and nothing running costs what the node says.
    fn table(&self, rows: &BTreeMap<u32, CostRow>, gpus: u8, idle_cost: f64) -> Vec<BusyPower> {
        let kilowatt_hour = self.price * self.pue;
        let idle = CostRow { watts: idle_cost / kilowatt_hour * 1e3, euros_per_hour: idle_cost };
        let mut known: Vec<(u32, CostRow)> = vec![(0, idle)];
        known.extend(rows.iter().map(|(count, row)| (*count, *row)));
        (0..=u32::from(gpus))
            .map(|busy| {
                let after = known.partition_point(|(count, _)| *count < busy);
                let (a, b) = match known.get(after) {
                    Some((count, _)) if *count == busy => (after, after),
                    Some(_) => (after - 1, after),
                    // Along the last two listed rows, or from idle if there is only one.
                    None => (known.len() - 2, known.len() - 1),
                };
                let ((x0, y0), (x1, y1)) = (known[a], known[b]);
                let share = if a == b {
                    0.0
                } else {
                    (f64::from(busy) - f64::from(x0)) / (f64::from(x1) - f64::from(x0))
                };
                let mix = |from: f64, to: f64| from + (to - from) * share;
                let cost = mix(y0.euros_per_hour, y1.euros_per_hour).max(0.0);
                let mut watts = mix(y0.watts, y1.watts).max(0.0);
                if watts == 0.0 && cost > 0.0 {
                    watts = cost / kilowatt_hour * 1e3;
                }
                let pue = if watts > 0.0 { cost / (watts / 1e3 * self.price) } else { self.pue };
                BusyPower { watts: Watts::new(watts), pue }
            })
            .collect()
    }
}

type TypeIds = BTreeMap<Box<str>, GpuTypeId>;

fn read_nodes(folder: &Path, costs: &Costs) -> Result<(Cluster, TypeIds), AndreasError> {
    let mut types = TypeIds::new();
    let mut cards: Vec<GpuType> = Vec::new();
    let mut nodes: Vec<Node> = Vec::new();
    each_row(folder, "tNodes.csv", ["ID", "GPUtype", "nGPUs", "cost"], |row, columns| {
        let [id, kind, gpus, cost] = columns;
        let kind = row.name(kind)?;
        let gpus = row.value(gpus, |text| {
            let n = at_least_one(text)?;
            u8::try_from(n).ok().filter(|n| *n <= 64).ok_or("at most 64 GPUs a node")
        })?;
        let idle_cost = row.value(cost, value::amount)?;
        let Some(rows) = costs.by_type.get(&kind) else {
            return Err(AndreasError::NoCost(kind.to_string()));
        };
        let table = costs.table(rows, gpus, idle_cost);
        let next = GpuTypeId(cards.len() as u16);
        let gpu_type = *types.entry(kind.clone()).or_insert(next);
        if gpu_type == next {
            // Power limits do not exist in this format: one limit, never changed.
            let busy = table[1].watts;
            cards.push(GpuType {
                name: kind,
                idle: Watts::ZERO,
                busy,
                min_limit: busy,
                default_limit: busy,
                max_limit: busy,
                limit_step: Watts::ZERO,
                tflops: None,
                links: None,
            });
        }
        let most = table.iter().fold(Watts::ZERO, |most, entry| most.max(entry.watts));
        nodes.push(Node {
            name: row.name(id)?,
            gpu_type,
            gpus,
            sleep: table[0].watts,
            boot: most,
            draw: NodeDraw::ByBusyGpus(table.into()),
            boot_time: Seconds::ZERO,
            shutdown_time: Seconds::ZERO,
            rack: 0,
        });
        Ok(())
    })?;
    Ok((Cluster::new(cards, nodes)?, types))
}

fn read_jobs(folder: &Path) -> Result<Vec<Job>, AndreasError> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut seen: HashSet<Box<str>> = HashSet::new();
    let names = ["ID", "SubmissionTime", "Deadline", "TardinessWeight"];
    each_row(folder, "Lof_Selectjobs.csv", names, |row, [id, submit, deadline, weight]| {
        let name = row.name(id)?;
        if !seen.insert(name.clone()) {
            return Err(AndreasError::Twice {
                file: row.file.into(),
                line: row.line,
                name: name.into(),
            });
        }
        let submit: Timestamp = row.value(submit, value::instant)?;
        let due: Timestamp = row.value(deadline, value::instant)?;
        if due < submit {
            return Err(TraceError::DeadlineBeforeSubmit {
                file: row.file.into(),
                line: row.line,
                field: "Deadline",
                deadline: due.seconds(),
                submit: submit.seconds(),
            }
            .into());
        }
        jobs.push(Job {
            name,
            user: UserId(0),
            workload: wattline_core::ids::WorkloadId(0),
            work: Work(1.0),
            submit,
            deadline: Some(due),
            weight: EurosPerSecond::new(row.value(weight, value::amount)?),
            elasticity: Elasticity::Malleable,
            gpus: Bounds::exactly(1),
            batch: Bounds::exactly(1),
            restart: RestartCost { save: Seconds::ZERO, load: RESTART },
            preemptible: true,
            shapes: None,
            nodes: None,
        });
        Ok(())
    })?;
    Ok(jobs)
}

/// The times of each job, in the jobs' order.
fn read_times(
    folder: &Path,
    types: &TypeIds,
    jobs: &[Job],
) -> Result<Vec<BTreeMap<Shape, Seconds>>, AndreasError> {
    let by_name: HashMap<&str, usize> =
        jobs.iter().enumerate().map(|(at, job)| (&*job.name, at)).collect();
    let mut times = vec![BTreeMap::new(); jobs.len()];
    let names = ["ID", "GPUtype", "nGPUs", "ExecutionTime"];
    each_row(folder, "SelectJobs_times.csv", names, |row, [id, kind, gpus, time]| {
        let (name, kind) = (row.name(id)?, row.name(kind)?);
        let unknown = |field, name: &str, missing_in| AndreasError::Unknown {
            file: row.file.into(),
            line: row.line,
            field,
            name: crate::trace::error::clip(name),
            missing_in,
        };
        let gpus = row.value(gpus, at_least_one)?;
        let time = row.value(time, |text| match value::duration(text)? {
            time if time > Seconds::ZERO => Ok(time),
            _ => Err("a number of seconds above 0"),
        })?;
        let job = by_name.get(&*name).ok_or_else(|| unknown("ID", &name, "Lof_Selectjobs.csv"))?;
        // Times on GPU types that this cluster does not have are of no use, and no harm.
        if let Some(gpu_type) = types.get(&kind) {
            let shape = Shape { gpu_type: *gpu_type, gpus };
            let before = times[*job].insert(shape, time);
            return once(before, row, format!("{name}, {kind}, {gpus}"));
        }
        Ok(())
    })?;
    Ok(times)
}
