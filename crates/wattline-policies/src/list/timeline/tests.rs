use super::*;
use crate::packing::sample::cluster;
use proptest::prelude::*;
use std::collections::BTreeMap;
use wattline_core::ids::GpuTypeId;

/// A job of the tests: the shapes it can run in, each with the time it then takes.
#[derive(Clone, Debug)]
struct Wanted {
    rank: Rank,
    choices: Vec<(Shape, Seconds)>,
    /// Its real run time, in percent of the predicted one.
    runs: u32,
    /// The time of its start's plan, in percent of the time it was looked for with: what a plan
    /// starts may take longer than its search said, for example on more nodes.
    held: u32,
}

impl Wanted {
    fn new(rank: Rank, gpus: u32, seconds: u32) -> Self {
        let choices = vec![(Shape { gpu_type: GpuTypeId(0), gpus }, seconds_of(seconds))];
        Self { rank, choices, runs: 100, held: 100 }
    }
}

fn seconds_of(seconds: u32) -> Seconds {
    Seconds::new(seconds.into())
}

fn percent(time: Seconds, percent: u32) -> Seconds {
    time * (f64::from(percent) / 100.0)
}

struct Running {
    on: Counts,
    predicted: Timestamp,
    ends: Timestamp,
}

/// The definition, evaluated point by point: what a timeline must find.
struct Definition<'c> {
    cluster: &'c Cluster,
    now: Timestamp,
    /// By node.
    residents: Vec<Residents>,
    taken: Vec<Taken>,
}

impl Definition<'_> {
    fn free_at(&self, node: NodeId, time: Timestamp) -> u32 {
        let Residents { free, ends } = &self.residents[node.index()];
        let ended: u32 = ends.iter().filter(|(end, _)| *end <= time).map(|(_, gpus)| gpus).sum();
        let held = self.taken.iter().filter(|taken| taken.from <= time && time < taken.to);
        let here = held.flat_map(|taken| &taken.on).filter(|(on, _)| *on == node);
        here.fold(free + ended, |free, (_, gpus)| free.saturating_sub(*gpus))
    }

    /// When the number of free GPUs may change.
    fn changes(&self, node: NodeId) -> Vec<Timestamp> {
        let ends = self.residents[node.index()].ends.iter().map(|(end, _)| *end);
        let taken = self.taken.iter().filter(|taken| taken.on.iter().any(|(on, _)| *on == node));
        let taken = taken.flat_map(|taken| [taken.from, taken.to]);
        let mut changes: Vec<Timestamp> = ends.chain(taken).chain([self.now]).collect();
        changes.sort_unstable();
        changes
    }

    fn is_free(&self, node: NodeId, gpus: u32, from: Timestamp, time: Seconds) -> bool {
        let inside = self.changes(node).into_iter().filter(|at| from < *at && *at < from + time);
        inside.chain([from]).all(|at| self.free_at(node, at) >= gpus)
    }

    fn earliest(&self, shape: Shape, time: Seconds) -> Option<(Timestamp, Counts)> {
        let is = |id: &NodeId| self.cluster.node(*id).gpu_type == shape.gpu_type;
        let mut nodes: Vec<NodeId> = self.cluster.node_ids().filter(is).collect();
        if shape.gpus <= self.cluster.largest_node(shape.gpu_type) {
            let first = |id: NodeId| {
                let mut starts = self.changes(id).into_iter();
                let start = starts.find(|at| self.is_free(id, shape.gpus, *at, time))?;
                Some((start, self.free_at(id, start), id))
            };
            let (start, _, id) = nodes.into_iter().filter_map(first).min()?;
            return Some((start, vec![(id, shape.gpus)]));
        }
        nodes.sort_by_key(|id| std::cmp::Reverse(self.cluster.node(*id).gpus));
        let mut starts: Vec<Timestamp> = nodes.iter().flat_map(|id| self.changes(*id)).collect();
        starts.sort_unstable();
        starts.into_iter().find_map(|start| Some((start, self.gang(&nodes, shape, start, time)?)))
    }

    /// Whole nodes, and the rest on the node with the fewest GPUs free.
    fn gang(&self, nodes: &[NodeId], shape: Shape, at: Timestamp, time: Seconds) -> Option<Counts> {
        let mut counts = Counts::new();
        let mut left = shape.gpus;
        for id in nodes {
            let size = u32::from(self.cluster.node(*id).gpus);
            if size <= left && self.is_free(*id, size, at, time) {
                left -= size;
                counts.push((*id, size));
            }
        }
        if left > 0 {
            let others = nodes.iter().filter(|id| counts.iter().all(|(whole, _)| whole != *id));
            let fitting = others.filter(|id| self.is_free(**id, left, at, time));
            let rest = *fitting.min_by_key(|id| (self.free_at(**id, at), **id))?;
            counts.push((rest, left));
        }
        Some(counts)
    }
}

/// Backfill on the timeline alone.
struct Replay {
    cluster: Cluster,
    depth: usize,
    now: Timestamp,
    jobs: u32,
    waiting: BTreeMap<Turn, Wanted>,
    running: Vec<Running>,
    closed: Vec<bool>,
    timeline: Timeline,
}

impl Replay {
    fn new(cluster: Cluster, depth: usize) -> Self {
        Self {
            timeline: Timeline::new(&cluster),
            closed: vec![false; cluster.nodes().len()],
            cluster,
            depth,
            now: Timestamp::ZERO,
            jobs: 0,
            waiting: BTreeMap::new(),
            running: Vec::new(),
        }
    }

    fn submit(&mut self, wanted: Wanted) {
        self.waiting.insert((wanted.rank, JobId(self.jobs)), wanted);
        self.jobs += 1;
    }

    fn go_to(&mut self, now: Timestamp) {
        self.now = now;
        self.running.retain(|job| job.ends > now);
    }

    fn residents(&self, id: NodeId) -> Residents {
        let soon = self.now + Seconds::new(1.0);
        let mut into = Residents { free: self.cluster.node(id).gpus.into(), ends: Vec::new() };
        for job in &self.running {
            for (_, gpus) in job.on.iter().filter(|(node, _)| *node == id) {
                into.free -= gpus;
                into.ends.push((job.predicted.max(soon), *gpus));
            }
        }
        if self.closed[id.index()] {
            into.free = 0;
        }
        into.ends.sort_unstable();
        into
    }

    /// Walks until nothing starts. Each walk finds what the definition says, whatever was known
    /// from the walk before.
    fn plan(&mut self) {
        loop {
            let order: Vec<Turn> = self.waiting.keys().copied().take(self.depth).collect();
            let mut timeline = std::mem::take(&mut self.timeline);
            timeline.begin(self.now, |id, into| *into = self.residents(id));
            let mut taken = Vec::new();
            let mut started = Vec::new();
            for turn in order {
                let wanted = &self.waiting[&turn];
                timeline.turn(&self.cluster, turn, wanted.choices.iter().copied());
                let mut best = None;
                let definition = Definition {
                    cluster: &self.cluster,
                    now: self.now,
                    residents: self.cluster.node_ids().map(|id| self.residents(id)).collect(),
                    taken,
                };
                for (at, (shape, time)) in wanted.choices.iter().enumerate() {
                    let found = timeline.earliest(at).map(|(from, on)| (from, on.clone()));
                    let defined = definition.earliest(*shape, *time);
                    assert_eq!(found, defined, "{turn:?} {wanted:?} at {}", self.now);
                    let ends = found.map(|(from, on)| (from + *time, from, at, on));
                    best = best.into_iter().chain(ends).min();
                }
                taken = definition.taken;
                let mut mine = None;
                if let Some((to, from, at, on)) = best {
                    let time = wanted.choices[at].1;
                    let starts = from <= self.now;
                    let to = if starts { from + percent(time, wanted.held) } else { to };
                    if starts {
                        let ends = self.now + percent(time, wanted.runs);
                        started.push((turn, Running { on: on.clone(), predicted: to, ends }));
                    }
                    mine = Some(Taken { on, from, to });
                }
                taken.extend(mine.clone());
                timeline.settle(mine);
            }
            self.timeline = timeline;
            if started.is_empty() {
                return;
            }
            for (turn, running) in started {
                self.waiting.remove(&turn);
                self.running.push(running);
            }
        }
    }

    /// The searches of a plan.
    fn searches(&mut self) -> usize {
        self.timeline.searches = 0;
        self.plan();
        self.timeline.searches
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Submit(wanted) => self.submit(wanted),
            Event::Cancel(pick) if !self.waiting.is_empty() => {
                let turn = *self.waiting.keys().nth(pick % self.waiting.len()).unwrap();
                self.waiting.remove(&turn);
            }
            Event::Stop(pick) if !self.running.is_empty() => {
                self.running.swap_remove(pick % self.running.len());
            }
            Event::Predict { pick, share } if !self.waiting.is_empty() => {
                let at = pick % self.waiting.len();
                let wanted = self.waiting.values_mut().nth(at).unwrap();
                for (_, time) in &mut wanted.choices {
                    *time = percent(*time, share);
                }
                let (now, count) = (self.now, self.running.len());
                if count > 0 {
                    let job = &mut self.running[pick % count];
                    job.predicted = now + percent(job.predicted.max(now) - now, share);
                }
            }
            Event::Close(pick) => {
                let at = pick % self.closed.len();
                self.closed[at] = !self.closed[at];
            }
            Event::Lose(pick) => {
                let at = pick % self.closed.len();
                self.closed[at] = true;
                self.running.retain(|job| job.on.iter().all(|(node, _)| node.index() != at));
            }
            Event::Cancel(_) | Event::Stop(_) | Event::Predict { .. } => {}
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Submit(Wanted),
    /// A waiting job is cancelled.
    Cancel(usize),
    /// A running job ends now.
    Stop(usize),
    /// A waiting job and a running one are now expected to take that percentage of their time.
    Predict {
        pick: usize,
        share: u32,
    },
    /// A node takes no more jobs, or takes jobs again.
    Close(usize),
    /// A node is lost, with what runs on it.
    Lose(usize),
}

/// Nodes of these GPU types and sizes.
fn of_sizes(nodes: &[(u16, u8)]) -> Cluster {
    let alike = cluster(&vec![0; nodes.len()]);
    let mut all = alike.nodes().to_vec();
    for (node, (gpu_type, gpus)) in all.iter_mut().zip(nodes) {
        (node.gpu_type, node.gpus) = (GpuTypeId(*gpu_type), *gpus);
    }
    Cluster::new(vec![alike.gpu_types()[0].clone(); 2], all).unwrap()
}

fn wanted() -> impl Strategy<Value = Wanted> {
    // Round times, so that jobs end together and reservations begin where others end.
    let seconds = prop_oneof![3 => (1..6_u32).prop_map(|minutes| 60 * minutes), 1 => 1..300_u32];
    let gpus = prop_oneof![3 => 1..=3_u32, 1 => 1..=12_u32];
    let choice = (0..2_u16, gpus, seconds).prop_map(|(gpu_type, gpus, seconds)| {
        (Shape { gpu_type: GpuTypeId(gpu_type), gpus }, seconds_of(seconds))
    });
    let runs = prop_oneof![3 => Just(100_u32), 1 => 10..180_u32];
    let held = prop_oneof![7 => Just(100_u32), 1 => 100..150_u32];
    let choices = proptest::collection::vec(choice, 1..3);
    (0..6_u64, choices, runs, held).prop_map(|(rank, choices, runs, held)| Wanted {
        rank,
        choices,
        runs,
        held,
    })
}

fn events() -> impl Strategy<Value = Vec<(u32, Event)>> {
    let after = prop_oneof![3 => Just(0_u32), 2 => 0..40_u32, 1 => Just(60)];
    let pick = || 0..100_usize;
    let event = prop_oneof![
        24 => wanted().prop_map(Event::Submit),
        2 => pick().prop_map(Event::Cancel),
        1 => pick().prop_map(Event::Stop),
        2 => (pick(), 50..200_u32).prop_map(|(pick, share)| Event::Predict { pick, share }),
        2 => pick().prop_map(Event::Close),
        1 => pick().prop_map(Event::Lose),
    ];
    proptest::collection::vec((after, event), 1..60)
}

proptest! {
    #![proptest_config(wattline_testing::cases(512, 1))]

    #[test]
    fn a_repaired_walk_finds_what_the_definition_says(
        events in events(), nodes in 0..3_usize, depth in 1..40_usize,
    ) {
        let clusters: [&[(u16, u8)]; 3] = [
            &[(0, 4), (0, 4), (0, 4), (1, 8), (1, 8)],
            &[(0, 8), (1, 2), (0, 4), (1, 4), (0, 2)],
            &[(0, 3), (1, 4)],
        ];
        let mut replay = Replay::new(of_sizes(clusters[nodes]), depth);
        for (after, event) in events {
            let at = replay.now + seconds_of(after);
            while let Some(next) = replay.running.iter().map(|job| job.ends).min()
                && next <= at
            {
                replay.go_to(next);
                replay.plan();
            }
            replay.go_to(at);
            replay.happens(event);
            replay.plan();
        }
    }
}

/// Eight full nodes, and that many jobs of a whole node waiting in turn.
fn queue(jobs: u32) -> Replay {
    let mut replay = Replay::new(cluster(&[0; 8]), 1000);
    for rank in 0..8 {
        replay.submit(Wanted::new(rank, 8, 1000 + 100 * rank as u32));
    }
    for rank in 0..jobs {
        replay.submit(Wanted::new(100 + u64::from(rank), 8, 50 + 7 * rank));
    }
    replay.plan();
    assert_eq!((replay.running.len(), replay.waiting.len()), (8, jobs as usize));
    replay
}

#[test]
fn an_event_costs_what_it_changes_however_long_the_queue() {
    for jobs in [10, 40, 100] {
        let mut replay = queue(jobs);
        assert_eq!(replay.searches(), 0, "nothing has changed");

        replay.go_to(Timestamp::from_seconds(500.0));
        assert_eq!(replay.searches(), 0, "time has gone on, and nothing has changed");

        replay.submit(Wanted::new(10_000, 1, 10_000));
        assert_eq!(replay.searches(), 8, "one more job, last of all, looks at each node");

        replay.go_to(Timestamp::from_seconds(1000.0));
        assert_eq!(replay.searches(), 0, "a job ends on time, and the first waiting one starts");
        assert_eq!(replay.running.len(), 8);
    }
}

#[test]
fn a_job_that_ends_early_is_noticed() {
    let mut replay = queue(100);
    // The last of the nodes to become free, an hour before it should.
    replay.running.retain(|job| job.predicted != Timestamp::from_seconds(1700.0));
    replay.go_to(Timestamp::from_seconds(600.0));
    let searches = replay.searches();
    assert_eq!(replay.running.len(), 8);
    assert!(searches > 0, "what has become free must be searched");
}

/// Two jobs end at the same time, and a reservation begins there: no GPU is missing for a moment.
#[test]
fn jobs_that_end_together_leave_no_gap_in_what_stays_free() {
    let mut replay = Replay::new(of_sizes(&[(0, 3), (1, 1)]), 10);
    replay.submit(Wanted::new(0, 1, 100));
    replay.submit(Wanted::new(1, 1, 100));
    replay.plan();
    replay.submit(Wanted::new(2, 2, 50));
    replay.submit(Wanted::new(3, 1, 120));
    replay.plan();
    let waiting: Vec<Rank> = replay.waiting.keys().map(|(rank, _)| *rank).collect();
    assert_eq!(waiting, [2], "one GPU is free all the time");
}
