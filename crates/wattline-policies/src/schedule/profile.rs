//! Free GPUs of every node, and committed watts, over the time to come.

use super::Spot;

/// However little is left to do, a job holds its GPUs for a moment: a reservation that takes no
/// time would be free on a full node.
pub(crate) const MIN_HOLD: f64 = 1.0;

/// A node over time.
#[derive(Clone, Debug)]
struct Host {
    node: u32,
    size: u8,
    /// Seconds until an idle node can start a job; the first job on it pays them.
    wake: f64,
    /// From that time on so many GPUs are free; rising in time, the first is now.
    steps: Vec<(f64, u8)>,
}

impl Host {
    /// How many GPUs are free at a time.
    fn free_at(&self, time: f64) -> u8 {
        self.steps[self.steps.partition_point(|(from, _)| *from <= time).saturating_sub(1)].1
    }

    /// The first time, no later than `latest`, at which so many GPUs are free for that long.
    fn earliest(&self, gpus: u8, time: f64, from: f64, latest: f64) -> Option<f64> {
        let mut since: Option<f64> = None;
        for (at, (begin, free)) in self.steps.iter().enumerate() {
            let until = self.steps.get(at + 1).map_or(f64::INFINITY, |(next, _)| *next);
            if *free < gpus {
                since = None;
                if *begin > latest {
                    return None;
                }
                continue;
            }
            if until <= from {
                continue;
            }
            let start = *since.get_or_insert(begin.max(from));
            if start > latest {
                return None;
            }
            if start + time <= until {
                return Some(start);
            }
        }
        None
    }

    fn is_free(&self, gpus: u8, from: f64, to: f64) -> bool {
        let first = self.steps.partition_point(|(begin, _)| *begin <= from).saturating_sub(1);
        self.steps[first..].iter().take_while(|(begin, _)| *begin < to).all(|(_, f)| *f >= gpus)
    }

    fn take(&mut self, gpus: u8, from: f64, to: f64) {
        let first = cut(&mut self.steps, from);
        let last = cut(&mut self.steps, to);
        for (_, free) in &mut self.steps[first..last] {
            *free = free.saturating_sub(gpus);
        }
    }
}

/// Where a step begins at that time, which is made if there is none.
fn cut<T: Copy>(steps: &mut Vec<(f64, T)>, time: f64) -> usize {
    let at = steps.partition_point(|(begin, _)| *begin < time);
    if steps.get(at).is_none_or(|(begin, _)| *begin != time) {
        let value = steps[at.saturating_sub(1)].1;
        steps.insert(at, (time, value));
    }
    at
}

/// A node on which nothing runs that ends.
pub(crate) struct Bare {
    pub(crate) node: u32,
    pub(crate) gpu_type: usize,
    pub(crate) size: u8,
    /// GPUs that nobody holds for good.
    pub(crate) free: u8,
    /// Seconds until it is awake.
    pub(crate) wake: f64,
}

/// A place in a profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    /// When its GPUs are there.
    pub(crate) start: f64,
    /// Seconds until its nodes are awake.
    pub(crate) wake: f64,
    pub(crate) spot: Spot,
}

/// Free GPUs of every node, and committed watts, over the time to come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    hosts: Vec<Host>,
    /// By GPU type, largest nodes first.
    of_type: Vec<Vec<u32>>,
    /// By node: its host.
    host_of: Vec<Option<u32>>,
    /// Committed watts from that time on; nothing without a budget.
    watts: Vec<(f64, f64)>,
    budget: f64,
}

impl Profile {
    /// Nothing runs.
    pub(crate) fn new(
        nodes: impl Iterator<Item = Bare>,
        gpu_types: usize,
        (committed, budget): (f64, f64),
    ) -> Self {
        let mut profile = Self { budget, ..Self::default() };
        profile.of_type.resize(gpu_types, Vec::new());
        for Bare { node, gpu_type, size, free, wake } in nodes {
            let at = profile.hosts.len() as u32;
            profile.hosts.push(Host { node, size, wake, steps: vec![(0.0, free)] });
            profile.of_type[gpu_type].push(at);
            if profile.host_of.len() <= node as usize {
                profile.host_of.resize(node as usize + 1, None);
            }
            profile.host_of[node as usize] = Some(at);
        }
        for of_type in &mut profile.of_type {
            of_type.sort_by_key(|at| std::cmp::Reverse(profile.hosts[*at as usize].size));
        }
        if budget.is_finite() {
            profile.watts.push((0.0, committed));
        }
        profile
    }

    fn host(&self, node: u32) -> Option<usize> {
        self.host_of.get(node as usize).copied().flatten().map(|at| at as usize)
    }

    /// GPUs are in use from one time to another, with so many committed watts.
    pub(crate) fn take(&mut self, spot: &Spot, (from, to): (f64, f64), watts: f64) {
        for (node, gpus) in spot {
            if let Some(at) = self.host(*node) {
                let host = &mut self.hosts[at];
                host.take(*gpus, from, to);
                host.wake = 0.0;
            }
        }
        if !self.watts.is_empty() {
            let (first, last) = (cut(&mut self.watts, from), cut(&mut self.watts, to));
            self.watts[first..last].iter_mut().for_each(|(_, committed)| *committed += watts);
        }
    }

    /// Whether the watts are there between two times.
    fn has_watts(&self, rise: f64, from: f64, to: f64) -> bool {
        self.watts_from(rise, from, to - from) == Some(from)
    }

    /// The first time from `from` on at which so many watts are there for that long.
    fn watts_from(&self, rise: f64, from: f64, time: f64) -> Option<f64> {
        if self.watts.is_empty() {
            return Some(from);
        }
        let fits = |committed: f64| committed + rise <= self.budget + 1e-6;
        let first = self.watts.partition_point(|(begin, _)| *begin <= from).saturating_sub(1);
        let mut since = None;
        for (at, (begin, committed)) in self.watts.iter().enumerate().skip(first) {
            if !fits(*committed) {
                since = None;
                continue;
            }
            let start = *since.get_or_insert(begin.max(from));
            if self.watts.get(at + 1).is_none_or(|(next, _)| start + time <= *next) {
                return Some(start);
            }
        }
        None
    }

    /// Whether GPUs and watts are free between two times.
    pub(crate) fn is_free(&self, spot: &Spot, (from, to): (f64, f64), watts: f64) -> bool {
        let free = |(node, gpus): &(u32, u8)| {
            self.host(*node).is_some_and(|at| self.hosts[at].is_free(*gpus, from, to))
        };
        spot.iter().all(free) && self.has_watts(watts, from, to)
    }

    /// Where so many GPUs of a type are free first for that long, from a time on.
    pub(crate) fn earliest(
        &self,
        gpu_type: usize,
        gpus: u32,
        (time, watts): (f64, f64),
        mut from: f64,
    ) -> Option<Place> {
        loop {
            let place = self.earliest_gpus(gpu_type, gpus, time, from)?;
            let start = self.watts_from(watts, place.start, place.wake + time)?;
            if start <= place.start {
                return Some(place);
            }
            from = start;
        }
    }

    fn earliest_gpus(&self, gpu_type: usize, gpus: u32, time: f64, from: f64) -> Option<Place> {
        let hosts = self.of_type.get(gpu_type)?;
        let largest = self.hosts[*hosts.first()? as usize].size;
        if gpus > u32::from(largest) {
            return self.earliest_gang(hosts, gpus, time, from);
        }
        let gpus = gpus as u8;
        // Soonest; then where fewest GPUs are left over.
        let mut best: Option<(f64, u8, f64, &Host)> = None;
        for at in hosts {
            let host = &self.hosts[*at as usize];
            if host.size < gpus {
                break;
            }
            let latest = best.map_or(f64::INFINITY, |(ready, _, _, _)| ready - host.wake);
            let Some(start) = host.earliest(gpus, time + host.wake, from, latest) else { continue };
            let (ready, free) = (start + host.wake, host.free_at(start));
            if best.is_none_or(|(soonest, left, _, _)| (ready, free) < (soonest, left)) {
                best = Some((ready, free, start, host));
            }
        }
        best.map(|(_, _, start, host)| Place {
            start,
            wake: host.wake,
            spot: std::iter::once((host.node, gpus)).collect(),
        })
    }

    /// Whole nodes, and the rest on a part of one more.
    fn earliest_gang(&self, hosts: &[u32], gpus: u32, time: f64, from: f64) -> Option<Place> {
        let wake = hosts.iter().map(|at| self.hosts[*at as usize].wake).fold(0.0, f64::max);
        let mut times: Vec<f64> = vec![from];
        for at in hosts {
            let steps = &self.hosts[*at as usize].steps;
            // More than before are free: only then something may fit that did not.
            let rises = steps.windows(2).filter(|pair| pair[1].1 > pair[0].1);
            times.extend(rises.map(|pair| pair[1].0).filter(|begin| *begin > from));
        }
        times.sort_unstable_by(f64::total_cmp);
        times.dedup();
        times.into_iter().find_map(|start| {
            let spot = self.gang_at(hosts, gpus, start, start + time + wake)?;
            let wake = spot.iter().filter_map(|(node, _)| self.host(*node));
            let wake = wake.map(|at| self.hosts[at].wake).fold(0.0, f64::max);
            Some(Place { start, wake, spot })
        })
    }

    fn gang_at(&self, hosts: &[u32], gpus: u32, from: f64, to: f64) -> Option<Spot> {
        let mut left = gpus;
        let mut spot = Spot::new();
        // Nodes that are awake before those that sleep.
        for asleep in [false, true] {
            for at in hosts {
                let host = &self.hosts[*at as usize];
                if u32::from(host.size) > left || (host.wake > 0.0) != asleep {
                    continue;
                }
                if host.is_free(host.size, from, to) {
                    left -= u32::from(host.size);
                    spot.push((host.node, host.size));
                }
            }
        }
        if left > 0 {
            let rest = u8::try_from(left).ok()?;
            let part = hosts
                .iter()
                .map(|at| &self.hosts[*at as usize])
                .filter(|host| host.size > rest && host.is_free(rest, from, to))
                .filter(|host| spot.iter().all(|(node, _)| *node != host.node))
                .min_by_key(|host| (host.wake > 0.0, host.free_at(from)))?;
            spot.push((part.node, rest));
        }
        spot.sort_unstable();
        Some(spot)
    }

    /// From when on so many GPUs of a type are free, wherever they are.
    pub(crate) fn free_from(&self, gpu_type: usize, gpus: u32) -> Option<f64> {
        let hosts = || self.of_type[gpu_type].iter().map(|at| &self.hosts[*at as usize]);
        let mut free: i64 = hosts().map(|host| i64::from(host.steps[0].1)).sum();
        if free >= i64::from(gpus) {
            return Some(0.0);
        }
        let mut changes: Vec<(f64, i64)> = Vec::new();
        for host in hosts() {
            let change =
                |pair: &[(f64, u8)]| (pair[1].0, i64::from(pair[1].1) - i64::from(pair[0].1));
            changes.extend(host.steps.windows(2).map(change));
        }
        changes.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        changes.into_iter().find_map(|(time, change)| {
            free += change;
            (free >= i64::from(gpus)).then_some(time)
        })
    }
}
