//! What the nodes draw, added up look by look: by node, and by job.
//!
//! A look stands for the time since the one before. After a longer pause nothing is added: nobody
//! knows what was drawn. So sums are what was measured while the controller looked, and begin anew
//! with it; what a job has drawn is also in the journal, and goes on from there.

use super::{Site, Slurm};
use crate::backend::{Known, News};
use crate::directory::{Drawn, Note};
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
    limits: Vec<(u8, Watts)>,
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

    /// The limits in force on a node, read back at the last look.
    pub(crate) fn limits(&self, node: NodeId) -> &[(u8, Watts)] {
        self.nodes.get(node.index()).map_or(&[], |node| &node.limits)
    }

    /// What a job has drawn, if it is on nodes that say so.
    pub(crate) fn job(&self, job: JobId) -> Option<Drawn> {
        self.jobs.get(&job)?.drawn
    }

    fn look(&mut self, site: &Site) {
        self.nodes.resize(site.cluster.nodes().len(), Reading::default());
        for (id, reading) in site.cluster.node_ids().zip(&mut self.nodes) {
            let Some(actuator) = site.actuator(id) else { continue };
            reading.power = actuator.power().ok().flatten();
            let gpus = 0..site.node(id).gpus;
            let limit = |gpu: u8| Some((gpu, actuator.read(gpu.into()).ok()?));
            reading.limits = gpus.filter_map(limit).collect();
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

    /// Reads all meters, and adds up.
    pub(super) fn meter(&mut self, now: Timestamp, known: Known<'_>) {
        let before = self.meters.looked.replace(now);
        let time = before.map_or(Seconds::ZERO, |before| now.since(before));
        self.meters.look(&self.site);
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
                drawn: Some(known.directory.drawn(job).unwrap_or_default()),
                noted: from,
            });
            account.drawn = account.drawn.zip(power).map(|(drawn, power)| Drawn {
                energy: drawn.energy + power * to.since(from),
                bill: drawn.bill + prices.bill(power * prices.pue, from, to).total(),
            });
        }
    }

    /// What is to be remembered of it: when a job has left its GPUs, and once in a while before.
    pub(super) fn meter_news(&mut self, now: Timestamp, known: Known<'_>, news: &mut Vec<News>) {
        let every = self.site.config.measure_every;
        let state = known.engine.state();
        self.meters.jobs.retain(|job, account| {
            let holds = state.find_job(*job).is_some_and(|job| job.held.is_some());
            let is_noted = known.directory.drawn(*job) == account.drawn;
            if holds && now < account.noted + every {
                return true;
            }
            account.noted = now;
            match account.drawn {
                Some(drawn) if !is_noted => {
                    let note = Note::Drawn { job: *job, drawn };
                    news.push(News::Noted(Event::Clock, note));
                    true
                }
                // It is written down, or there is nothing to write.
                _ => holds,
            }
        });
    }
}
