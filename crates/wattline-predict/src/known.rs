//! Every group, and what was worked out from them: models, and tables of what to expect.
//!
//! All of it is kept as long as what it follows from stays as it is.

use crate::belief::{Belief, log_links, log_speed};
use crate::borrow::{Lender, Pair, borrow};
use crate::group::Group;
use crate::model::{Expectation, Model};
use crate::reading::Point;
use crate::store::{Store, StoreImage, Stretch, look_at};
use crate::table::Table;
use std::collections::{BTreeMap, HashMap};
use wattline_core::cluster::Cluster;
use wattline_core::ids::{GpuTypeId, WorkloadId};
use wattline_core::job::Job;
use wattline_core::placement::Configuration;
use wattline_core::time::Timestamp;

/// Before runs tell: their scatter, and as many degrees of freedom as that is worth. What all groups
/// say is worth no more to any of them than so many.
const SCATTER: (f64, f64) = (0.03, 4.0);
const OTHERS: f64 = 12.0;

/// Tables of a group beyond this many are not kept.
const MOST_TABLES: usize = 4096;

/// A workload on a kind of GPU.
pub(crate) type GroupKey = (WorkloadId, GpuTypeId);

/// Groups look at the age of their readings at different times, so that not all are fitted at once.
fn phase((workload, gpu_type): GroupKey) -> f64 {
    let mixed = u64::from(workload.0) * 7919 + u64::from(gpu_type.0) * 104_729;
    (mixed % 64) as f64 / 64.0
}

/// See the module's description.
pub(crate) struct Known {
    groups: BTreeMap<GroupKey, Group>,
    /// Groups with measurements that were not looked at.
    unseen: Vec<GroupKey>,
    /// The last measurement that ages were looked at for.
    newest: Timestamp,
    /// Rises whenever some group's formula changes.
    version: u64,
    /// How runs of the same configuration scatter anywhere, and what follows for each group.
    scatter: (f64, f64),
    scatters: Vec<f64>,
    models: HashMap<(GroupKey, Usual), Kept>,
}

/// Octaves of samples per GPU that a workload is trained with, as its job says; `None` where it was
/// measured.
type Usual = Option<i32>;

/// A model and what it follows from.
struct Kept {
    /// Known to hold as of this version.
    version: u64,
    belief: Belief,
    /// Which of the group's formulas.
    formula: u64,
    model: Model,
    /// Standard deviation of the logarithm of a run's time around its configuration's, rounded.
    scatter: f64,
    tables: HashMap<(u32, u32, u32), Table>,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            groups: BTreeMap::new(),
            unseen: Vec::new(),
            newest: Timestamp::ZERO,
            version: 0,
            scatter: (0.0, 0.0),
            scatters: Vec::new(),
            models: HashMap::new(),
        }
    }
}

impl Known {
    /// Takes a stretch in.
    pub(crate) fn add(&mut self, key: GroupKey, stretch: &Stretch) {
        self.groups.entry(key).or_default().store.add(stretch);
        if self.unseen.last() != Some(&key) {
            self.unseen.push(key);
        }
    }

    /// All that was measured.
    pub(crate) fn image(&self) -> Vec<(GroupKey, StoreImage)> {
        self.groups.iter().map(|(key, group)| (*key, group.store.image())).collect()
    }

    /// As measured, with nothing looked at.
    pub(crate) fn from_image(image: Vec<(GroupKey, StoreImage)>) -> Self {
        let mut known = Self::default();
        for (key, store) in image {
            known.groups.entry(key).or_default().store = Store::from_image(store);
            known.unseen.push(key);
        }
        known
    }

    /// All groups that were measured.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&GroupKey, &Group)> {
        self.groups.iter()
    }

    /// Brings everything up to date with the measurements that came; `newest` is the last of them.
    pub(crate) fn refresh(&mut self, cluster: &Cluster, newest: Timestamp) {
        if newest != self.newest {
            self.newest = newest;
            let due = |(key, group): (&GroupKey, &Group)| {
                (group.look != look_at(newest, phase(*key))).then_some(*key)
            };
            self.unseen.extend(self.groups.iter().filter_map(due));
        }
        if self.unseen.is_empty() {
            return;
        }
        let mut unseen = std::mem::take(&mut self.unseen);
        unseen.sort_unstable();
        unseen.dedup();
        for key in unseen {
            if let Some(group) = self.groups.get_mut(&key)
                && group.refresh(cluster.gpu_type(key.1), look_at(newest, phase(key)))
            {
                self.version += 1;
                group.formula = self.version;
            }
        }
        let both = |a: (f64, f64), b: (f64, f64)| (a.0 + b.0, a.1 + b.1);
        self.scatter = self.groups.values().map(|g| g.scatter).fold((0.0, 0.0), both);
        let unmeasured = Group::default();
        let all = self.groups.values().chain([&unmeasured]);
        let scatters: Vec<f64> = all.map(|group| self.scatter_of(group)).collect();
        if scatters != self.scatters {
            self.scatters = scatters;
            self.version += 1;
        }
    }

    /// Of a group's runs, rounded to a quarter of an octave.
    fn scatter_of(&self, group: &Group) -> f64 {
        let (mut squares, mut freedom) = (SCATTER.0 * SCATTER.0 * SCATTER.1, SCATTER.1);
        let share = (OTHERS / self.scatter.1.max(OTHERS)).min(1.0);
        squares += share * self.scatter.0 + group.scatter.0;
        freedom += share * self.scatter.1 + group.scatter.1;
        let scatter = (squares / freedom).sqrt();
        ((scatter.log2() * 4.0).round() / 4.0).exp2()
    }

    /// The logarithm of samples per GPU that a workload is usually trained with, where it was
    /// measured.
    fn local(&self, workload: WorkloadId) -> Option<f64> {
        let on_all = (workload, GpuTypeId(0))..=(workload, GpuTypeId(u16::MAX));
        self.groups.range(on_all).find_map(|(_, group)| group.local())
    }

    /// What to expect of a job in a configuration, and how many runs stand behind it.
    pub(crate) fn expect(
        &mut self,
        cluster: &Cluster,
        job: &Job,
        c: &Configuration,
    ) -> Option<(Expectation, u32)> {
        let key = (job.workload, c.gpu_type);
        let card = cluster.gpu_type(c.gpu_type);
        let at = self.keep_model(cluster, key, || {
            let per_gpu = f64::from(job.batch.requested) / f64::from(job.gpus.requested.max(1));
            per_gpu.max(1.0).log2().round() as i32
        });
        let kept = self.models.get_mut(&at)?;
        if kept.tables.len() >= MOST_TABLES {
            kept.tables.clear();
        }
        let table = kept
            .tables
            .entry((c.gpus, c.nodes, c.batch))
            .or_insert_with(|| Table::new(&kept.model, card, &point(c), kept.scatter));
        let runs = self.groups.get(&key).map_or(0, |group| group.runs);
        Some((table.at(c.power_limit), runs))
    }

    /// What to expect of a workload that was measured, anywhere; the batch need not be whole.
    pub(crate) fn expect_measured(
        &mut self,
        cluster: &Cluster,
        key: GroupKey,
        point: &Point,
    ) -> Option<Expectation> {
        let at = self.keep_model(cluster, key, || 0);
        let kept = self.models.get(&at)?;
        let table = Table::new(&kept.model, cluster.gpu_type(key.1), point, kept.scatter);
        Some(table.at(point.limit))
    }

    /// Sees to it that the model of a group is as of now; says where it is kept. `asked` are the
    /// octaves of samples per GPU of the job that is asked about.
    fn keep_model(
        &mut self,
        cluster: &Cluster,
        key: GroupKey,
        asked: impl Fn() -> i32,
    ) -> (GroupKey, Usual) {
        let local = self.local(key.0);
        let usual = local.is_none().then(asked);
        let at = (key, usual);
        if self.models.get(&at).is_some_and(|kept| kept.version == self.version) {
            return at;
        }
        let guessed = f64::from(usual.unwrap_or_default()) * std::f64::consts::LN_2;
        let belief = self.borrowed(cluster, key, local.unwrap_or(guessed));
        let nothing = Group::default();
        let group = self.groups.get(&key).unwrap_or(&nothing);
        let scatter = self.scatter_of(group);
        let same = |kept: &&mut Kept| kept.formula == group.formula && kept.belief == belief;
        if let Some(kept) = self.models.get_mut(&at).filter(same) {
            kept.version = self.version;
            if kept.scatter != scatter {
                kept.scatter = scatter;
                kept.tables.clear();
            }
            return at;
        }
        let kept = Kept {
            version: self.version,
            model: group.model(&belief, cluster.gpu_type(key.1)),
            belief,
            scatter,
            formula: group.formula,
            tables: HashMap::new(),
        };
        self.models.insert(at, kept);
        at
    }

    /// What everything else says of a group.
    fn borrowed(&self, cluster: &Cluster, (workload, gpu_type): GroupKey, local: f64) -> Belief {
        let power = |t: GpuTypeId| cluster.gpu_type(t).busy.get().max(2.0).ln();
        let links = |t: GpuTypeId| {
            let both = log_links(cluster.gpu_type(t)).zip(log_links(cluster.gpu_type(gpu_type)));
            both.map_or([0.0; 2], |(there, here)| [there[0] - here[0], there[1] - here[1]])
        };
        let of = |key: GroupKey| self.groups.get(&key).and_then(Group::evidence);
        let (mut lenders, mut types) = (Vec::new(), Vec::new());
        for (key, group) in self.groups.iter().filter(|(key, _)| **key != (workload, gpu_type)) {
            let Some(evidence) = group.evidence() else { continue };
            types.push(key.1);
            lenders.push(Lender {
                evidence,
                card: power(key.1) - power(gpu_type),
                speed: log_speed(cluster.gpu_type(key.1)) - log_speed(cluster.gpu_type(gpu_type)),
                links: links(key.1),
                local: group.local().unwrap_or(local) - local,
                same_workload: key.0 == workload,
                same_card: key.1 == gpu_type,
            });
        }
        let pairs = |lender: usize| {
            let other = types[lender];
            let workloads = self.groups.keys().filter(|key| key.1 == other && key.0 != workload);
            workloads
                .filter_map(|key| Some(Pair { here: of((key.0, gpu_type))?, there: of(*key)? }))
                .collect()
        };
        borrow(&Belief::of_card(cluster.gpu_type(gpu_type), local), &lenders, pairs)
    }
}

/// As models see it.
pub(crate) fn point(c: &Configuration) -> Point {
    Point { gpus: c.gpus, nodes: c.nodes, batch: f64::from(c.batch), limit: c.power_limit }
}
