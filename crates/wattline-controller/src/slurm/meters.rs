//! What the nodes draw, added up look by look: by node, and by job.
//!
//! A look stands for the time since the one before. After a longer pause nothing is added: nobody
//! knows what was drawn. So sums are what was measured while the controller looked, and begin anew
//! with it; what a job has drawn is also in the journal, and goes on from there.

use super::readings::Readings;
use super::{Site, Slurm};
use crate::backend::{BackendEvent, Known};
use crate::job_registry::{Drawn, JournalNote};
use std::collections::BTreeMap;
use wattline_core::Timestamp;
use wattline_core::cluster::{Node, NodeDraw};
use wattline_core::engine::Event;
use wattline_core::ids::{JobId, NodeId};
use wattline_core::state::{NodeState, State};
use wattline_core::units::{Joules, Seconds, Watts};

/// A pause that is longer than so many looks is not filled.
const MOST_LOOKS: f64 = 10.0;

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    nodes: Vec<Reading>,
    looked: Option<Timestamp>,
    jobs: BTreeMap<JobId, Account>,
}

/// A node's meter.
#[derive(Clone, Debug, Default)]
struct Reading {
    /// What it draws; none if it does not say.
    power: Option<Watts>,
    /// What it has drawn; none if it never said.
    energy: Option<Joules>,
}

/// What a job has drawn.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// None: it was on a node that does not say.
    drawn: Option<Drawn>,
    /// When that was last written down.
    noted: Timestamp,
}

impl Meters {
    /// What all nodes draw together, if all of them say so.
    pub(crate) fn drawn(&self) -> Option<Watts> {
        if self.nodes.is_empty() {
            return None;
        }
        self.nodes.iter().map(|node| node.power).sum()
    }

    /// What a node draws.
    pub(crate) fn power(&self, node: NodeId) -> Option<Watts> {
        self.nodes.get(node.index())?.power
    }

    /// What a node has drawn.
    pub(crate) fn energy(&self, node: NodeId) -> Option<Joules> {
        self.nodes.get(node.index())?.energy
    }

    /// What a job has drawn, if it is on nodes that say so.
    pub(crate) fn job(&self, job: JobId) -> Option<Drawn> {
        self.jobs.get(&job)?.drawn
    }

    fn look(&mut self, site: &Site, readings: &Readings) {
        self.nodes.resize(site.cluster.nodes().len(), Reading::default());
        for (id, reading) in site.cluster.node_ids().zip(&mut self.nodes) {
            reading.power = readings.power(id);
        }
    }

    /// Adds what was drawn for so long.
    fn add(&mut self, time: Seconds) {
        for node in &mut self.nodes {
            if let Some(power) = node.power {
                node.energy = Some(node.energy.unwrap_or(Joules::ZERO) + power * time);
            }
        }
    }
}

/// What each job on a node draws, if the node says what it draws: what is above its base and its
/// idle GPUs is theirs, in equal parts for each GPU, for nobody sees more. Where a site knows only
/// whole nodes, all of it is theirs.
fn parts(node: &Node, idle: Watts, state: &NodeState, power: Watts) -> Vec<(JobId, Watts)> {
    let busy = state.held.mask().count_ones();
    let theirs = match &node.draw {
        NodeDraw::Additive { base } => {
            let others = u32::from(node.gpus).saturating_sub(busy);
            (power - *base - idle * f64::from(others)).max(Watts::ZERO)
        }
        NodeDraw::ByBusyGpus(_) => power,
    };
    let each = theirs / f64::from(busy.max(1));
    let part = |(job, mask): (JobId, u64)| (job, each * f64::from(mask.count_ones()));
    state.held.iter().map(|resident| part((resident.job, resident.mask))).collect()
}

impl Slurm {
    pub(crate) fn meters(&self) -> &Meters {
        &self.meters
    }

    /// The limits in force on a node, as far as they were read back.
    pub(crate) fn limits_read(&self, node: NodeId) -> Vec<(u8, Watts)> {
        self.readings.limits(node).collect()
    }

    /// Takes the readings of all meters, and adds up.
    pub(super) fn meter(&mut self, now: Timestamp, known: Known<'_>) {
        let before = self.meters.looked.replace(now);
        let time = before.map_or(Seconds::ZERO, |before| now.since(before));
        self.meters.look(&self.site, &self.readings);
        let most = self.site.config.poll * MOST_LOOKS;
        if time > Seconds::ZERO && time <= most {
            self.meters.add(time);
            self.meter_jobs(now - time, now, known);
        }
    }

    fn meter_jobs(&mut self, from: Timestamp, to: Timestamp, known: Known<'_>) {
        let state: &State = known.engine.state();
        let prices = known.engine.prices();
        let mut power: BTreeMap<JobId, Option<Watts>> = BTreeMap::new();
        for id in self.site.cluster.node_ids() {
            let held = state.node(id);
            if held.held.is_empty() {
                continue;
            }
            let node = self.site.node(id);
            let idle = self.site.cluster.gpu_type(node.gpu_type).idle;
            let drawn = self.meters.nodes.get(id.index()).and_then(|node| node.power);
            match drawn {
                Some(drawn) => {
                    for (job, part) in parts(node, idle, held, drawn) {
                        let all = power.entry(job).or_insert(Some(Watts::ZERO));
                        *all = all.map(|all| all + part);
                    }
                }
                None => held.held.iter().for_each(|resident| {
                    power.insert(resident.job, None);
                }),
            }
        }
        for (job, power) in power {
            let account = self.meters.jobs.entry(job).or_insert_with(|| Account {
                drawn: Some(known.registry.drawn(job).unwrap_or_default()),
                noted: from,
            });
            account.drawn = account.drawn.zip(power).map(|(drawn, power)| Drawn {
                energy: drawn.energy + power * to.since(from),
                bill: drawn.bill + prices.bill(power * prices.pue, from, to).total(),
            });
        }
    }

    /// What is to be remembered of it: when a job has left its GPUs, and once in a while before.
    pub(super) fn meter_news(
        &mut self,
        now: Timestamp,
        known: Known<'_>,
        news: &mut Vec<BackendEvent>,
    ) {
        let every = self.site.config.measure_every;
        let state = known.engine.state();
        self.meters.jobs.retain(|job, account| {
            let holds = state.find_job(*job).is_some_and(|job| job.held.is_some());
            let is_noted = known.registry.drawn(*job) == account.drawn;
            if holds && now < account.noted + every {
                return true;
            }
            account.noted = now;
            match account.drawn {
                Some(drawn) if !is_noted => {
                    let note = JournalNote::Drawn { job: *job, drawn };
                    news.push(BackendEvent::Noted(Event::Clock, note));
                    true
                }
                // It is written down, or there is nothing to write.
                _ => holds,
            }
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::job_registry::JobRegistry;
    use crate::slurm::Config;
    use std::fs;
    use std::sync::Arc;
    use wattline_core::engine::{Engine, EngineConfig};
    use wattline_core::placement::{Allocation, Configuration, Placement, Share};
    use wattline_core::prices::Prices;
    use wattline_sim::scenario::Scenario;
    use wattline_world::oracle::Oracle;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    fn found(job: u32, node: u32, mask: u64, limit: Watts) -> Event {
        let gpus = mask.count_ones();
        let gpu_type = wattline_core::ids::GpuTypeId(0);
        let configuration =
            Configuration { gpu_type, gpus, nodes: 1, batch: 64, power_limit: limit };
        let allocation =
            Allocation::over([Share { node: NodeId(node), mask }].into_iter().collect());
        Event::Found { job: JobId(job), placement: Placement { configuration, allocation } }
    }

    #[test]
    fn jobs_share_what_is_above_base_and_idle_and_it_is_written_down() {
        let text =
            "name = \"m\"\n[[nodes]]\ncount = 2\ngpu = \"h200\"\ngpus = 4\n[jobs]\ncount = 3\n";
        let scenario = Scenario::parse(text, "m").unwrap();
        let instance = scenario.instance("m", None).unwrap();
        let cluster = Arc::clone(&instance.cluster);
        let folder = tempfile::tempdir().unwrap();
        let (NodeDraw::Additive { base }, card) =
            (&cluster.node(NodeId(0)).draw, cluster.gpu_type(cluster.node(NodeId(0)).gpu_type))
        else {
            panic!("by its parts")
        };
        let (base, idle, limit) = (base.get(), card.idle.get(), card.default_limit);
        let say =
            |watts: f64| fs::write(folder.path().join("watts"), format!("{watts}\n")).unwrap();
        say(base + idle + 900.0);
        fs::write(folder.path().join("enforced1"), "321\n").unwrap();
        let limits = [Some(folder.path().to_owned()), None];
        let site = Site::new(Config::default(), Arc::clone(&cluster), &limits, Vec::new());
        let mut slurm = Slurm::new(site);
        let mut engine = Engine::new(
            EngineConfig::default(),
            State::new(cluster, at(0.0)),
            Box::new(Oracle(Arc::clone(&instance.physics))),
            Prices::default(),
            None,
        );
        for job in instance.jobs.iter().take(3) {
            engine.handle(at(0.0), Event::Submitted(Arc::clone(job))).unwrap();
        }
        // Two jobs on three GPUs of a node that says what it draws, one on a node that does not.
        for event in [found(0, 0, 0b11, limit), found(1, 0, 0b100, limit), found(2, 1, 1, limit)] {
            engine.handle(at(0.0), event).unwrap();
        }
        let mut registry = JobRegistry::default();
        let known = Known { engine: &engine, registry: &registry };
        let meter = |slurm: &mut Slurm, now: f64| {
            slurm.readings = Readings::take(&slurm.site, &slurm.ticks);
            slurm.meter(at(now), known);
        };
        meter(&mut slurm, 10.0);
        assert_eq!(slurm.meters().energy(NodeId(0)), None, "one look is no time");
        meter(&mut slurm, 12.0);
        let energy = |job| slurm.meters().job(JobId(job)).map(|drawn| drawn.energy.get().round());
        assert_eq!([energy(0), energy(1), energy(2)], [Some(1200.0), Some(600.0), None]);
        let node = slurm.meters().energy(NodeId(0)).unwrap().get();
        assert!((node - 2.0 * (base + idle + 900.0)).abs() < 1e-6);
        assert_eq!((slurm.meters().energy(NodeId(1)), slurm.meters().drawn()), (None, None));
        assert_eq!(slurm.limits_read(NodeId(0)), [(1, Watts::new(321.0))]);
        // Less than base and idle is nobody's, and a long pause is not filled.
        say(base / 2.0);
        meter(&mut slurm, 13.0);
        say(base + idle + 900.0);
        meter(&mut slurm, 1000.0);
        let drawn = slurm.meters().job(JobId(0)).unwrap();
        assert_eq!(drawn.energy.get().round(), 1200.0);
        let bill = Prices::default();
        let paid = bill.bill(Watts::new(600.0) * bill.pue, at(10.0), at(12.0)).total();
        assert!((drawn.bill.get() - paid.get()).abs() < 1e-12);
        // What is due is told until it is written down, and then no more.
        let tell = |slurm: &mut Slurm, now: f64, registry: &JobRegistry| -> Vec<JournalNote> {
            let mut news = Vec::new();
            slurm.meter_news(at(now), Known { engine: &engine, registry }, &mut news);
            let note = |news| match news {
                BackendEvent::Noted(Event::Clock, note) => note,
                other => panic!("{other:?}"),
            };
            news.into_iter().map(note).collect()
        };
        assert_eq!(tell(&mut slurm, 20.0, &registry), [], "not yet");
        for now in [1000.0, 2000.0] {
            let notes = tell(&mut slurm, now, &registry);
            assert_eq!(notes.len(), 2, "{notes:?}");
            assert_eq!(notes[0], JournalNote::Drawn { job: JobId(0), drawn });
            if now > 1000.0 {
                notes.iter().for_each(|note| registry.note(note));
            }
        }
        assert_eq!(tell(&mut slurm, 3000.0, &registry), []);
        // Another controller goes on from what is written down.
        let known = Known { engine: &engine, registry: &registry };
        let limits = [Some(folder.path().to_owned()), None];
        let cluster = Arc::clone(engine.state().cluster());
        let mut next = Slurm::new(Site::new(Config::default(), cluster, &limits, Vec::new()));
        next.readings = Readings::take(&next.site, &next.ticks);
        next.meter(at(4000.0), known);
        next.meter(at(4001.0), known);
        assert_eq!(next.meters().job(JobId(0)).unwrap().energy.get().round(), 1800.0);
    }
}
