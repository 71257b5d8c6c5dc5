//! Every constant of the policy, with its unit, its default and its reason.
//!
//! [`Tuning`] is part of the policy value, so an experiment can change it: `+without=PART` turns a
//! part off, `+scale=NAME:FACTOR` multiplies a constant. `wattline bench ablation` prints what each
//! part is worth and what each constant does when it is halved and doubled; a constant for which no
//! measurement is given here is a guess that this command can put to the test.

use crate::tunable::tunable;

tunable! {
    pub(crate) struct Tuning;
    parts {
        /// Rigid jobs get reservations in one complete schedule (`reservations.rs`).
        reservations,
        /// Complete schedules of few jobs are annealed (`anneal.rs`).
        annealing,
        /// Candidate plans are judged by running all jobs to their ends (`rollout.rs`).
        rollouts,
        /// GPUs are split by marginal gain where completion time counts (`share.rs`).
        splits,
        /// Nodes are filled at several levels of prices, not only at the market's (`mod.rs`).
        price_levels,
        /// Jobs like those of the last while bid for GPUs too (`arrivals.rs`).
        expected_jobs,
        /// GPU time in annealed schedules costs the jobs to come (`costs.rs`).
        arrival_toll,
        /// A job that could start may wait for cheaper energy or a shared node (not with `+eager`).
        waiting_on_purpose,
        /// A job that had to hurry goes on frugally once it has time (`downshift.rs`).
        downshift,
        /// Runs may have a mishap where lateness alone counts (`costs.rs`).
        mishaps,
        /// Jobs that have waited too long go first and get GPUs kept (`starvation.rs`).
        starvation_guard,
    }
    constants {
        // ---- Restarts ----

        /// Multiplies what a restart must gain beyond its cost, everywhere. `+hysteresis` sets it.
        hysteresis: f64 = 1.0,
        /// At market prices a restart counts this many times: predictions are not that good, and
        /// the next plan may see it otherwise.
        restart_margin: f64 = 5.0,
        /// This many times where lateness alone counts: kept where they are, jobs with room to spare
        /// were late. Weighted tardiness with seed 101 of `overload`, `capped-60` and `bursts`:
        /// 21.9, 111.9 and 5.7 EUR with 5 and no mishaps; with mishaps 19.1, 81.7 and 0.05 with
        /// 1.5, and with 0.5 and mishaps of ten minutes more 26.5, 107.0 and 0.
        restart_margin_lateness: f64 = 1.5,
        /// In complete schedules a restart counts this many times. Total cost over the best
        /// reference method on 24 ANDREAS instances at loads of 0.5 and less: 0.821; 0.824 with
        /// half of it, 0.830 with 2.5.
        anneal_restart: f64 = 1.0,
        /// Added to that: this share of what the energy of the rest of the job costs.
        anneal_restart_energy: f64 = 0.1,
        /// In rollouts seconds of a restart count this many times when GPUs are split anew. Mean
        /// completion time of Pollux's three workloads and of `ones-64` (five seeds), in seconds:
        /// 2,557 / 1,976 / 2,207 and 396; with 1 2,522 / 1,981 / 2,220 and 405, with 2 2,565 /
        /// 1,967 / 2,197 and 401.
        rollout_restart: f64 = 3.0,
        /// Seconds of a restart at once count this many times: jobs to come may undo what it is
        /// for. With 1 `ones-64` takes 2 % longer, with 3 1 %.
        rollout_restart_now: f64 = 1.5,
        /// Splits are made with a restart counted this many times; with the first where there is no
        /// work left for rollouts.
        split_restarts: [f64; 4] = [3.0, 1.0, 8.0, 20.0],
        /// A split is taken to last for at least and at most this many seconds when a restart is
        /// weighed. Half an hour: by then jobs have come or gone.
        split_lasts_min_s: f64 = 10.0,
        split_lasts_max_s: f64 = 1800.0,
        /// A running rigid job's power limit changes only if that saves this share of its cost.
        limit_gain: f64 = 0.02,
        /// A downshift must save this share of the energy that is left, beside its restart:
        /// predictions are not good enough for less.
        downshift_gain: f64 = 0.1,

        // ---- Objectives ----

        /// Energy counts this share of its price where it only breaks ties: enough that a job with
        /// slack is run frugally, too little to be worth a second of tardiness at usual weights.
        tie_break_share: f64 = 0.02,
        /// Where met deadlines count, a missed one costs as much as this many seconds of tardiness,
        /// beside its tardiness. With 8 hours and a fiftieth of the tardiness the market's prices,
        /// which follow from the weights, did not tell jobs apart that must hurry: 473 deadlines of
        /// 560 met with seed 101 of `overload`, 136 of 160 and 299 of 300 with 101 of `demo` and 102
        /// of `bursts`; so 484, 140 and 300. With 2 hours (restarts
        /// cheaper) 482, 139 and 300.
        missed_deadline_s: f64 = 4.0 * 3600.0,
        /// Reservations are given without the market's prices, and a wrong start cannot be made
        /// good. There a missed deadline counts this many times as much, and tardiness the
        /// tie-breaking share: with the figures above 401 instead of 450 deadlines of 1,000 are met
        /// on ElasticFlow's second cluster.
        missed_deadline_rigid: f64 = 2.0,
        /// Where lateness alone counts, this share of all runs is taken to have a mishap: on a slow
        /// node, after a failure, or because an urgent job comes. So jobs end before their
        /// deadlines while GPUs are free, and nothing else suffers, as energy only breaks ties.
        mishap_share: f64 = 0.3,
        /// Such a run takes this many times as long, and this many seconds more: without added
        /// seconds `overload` and `capped-60` are late for 21.4 and 100.7 EUR.
        mishap_times: f64 = 2.0,
        mishap_s: f64 = 300.0,
        /// A job that may be late for nothing loses by waiting this share of what its energy costs,
        /// or it would wait for ever.
        no_deadline_share: f64 = 0.5,
        /// Under an energy bound its price follows from this many latest submissions.
        energy_latest_jobs: usize = 200,
        /// Seconds of waiting for a joule that no job is worth.
        energy_max_s_per_j: f64 = 1.0,
        /// An energy bound is at least this much above the least energy that the jobs could take:
        /// the last joules cost endless time.
        energy_min_margin: f64 = 0.03,

        // ---- Candidates ----

        /// Most batches and limits kept per shape: the fastest, the most frugal, some between.
        limits_per_shape: usize = 4,
        /// Longer menus of GPU counts are thinned to powers of two.
        shapes_max: usize = 8,
        /// Lateness is the mean over a usual run and the runs at this quantile from either end.
        run_time_tail: f64 = 0.2,

        // ---- Starvation ----

        /// A job that has been there for this many times its shortest run time is overdue ...
        patience_runs: f64 = 20.0,
        /// ... but not before half a day,
        patience_min_s: f64 = 12.0 * 3600.0,
        /// and after a week at the latest.
        patience_max_s: f64 = 7.0 * 24.0 * 3600.0,

        // ---- Jobs to come ----

        /// Jobs are expected for this many mean shortest run times ahead: a job that may run
        /// on 64 GPUs in a hundredth of the time does not need to look ahead for the days it would
        /// take on one. Total cost over five seeds of `overload` and `capped-60`, and of
        /// ElasticFlow's two peers: 2,252, 2,654 and 403 EUR; with 1.5 2,285, 2,906 and 409, with 4
        /// 2,236, 2,897 and 403.
        ahead_runs: f64 = 2.5,
        /// No more jobs than this are expected; of more, some stand for all.
        expected_max: usize = 300,
        /// At the beginning the little that was seen is repeated at most this often.
        expected_repeats: f64 = 20.0,
        /// GPU time in a complete schedule costs jobs to come as much as this many waiting jobs
        /// lose, when the cluster is full; with half the jobs, a quarter of that. Total cost over
        /// the best reference method on the ANDREAS instances at loads of 0.5 and less: 0.826,
        /// 0.827 with 12, 0.826 with 3; above the optimum where no job comes later (`bench gap`):
        /// 4.8 %, 10 % and 3.5 %.
        arrival_toll_jobs: f64 = 6.0,
        /// They have come within this share of a mean run time.
        arrival_toll_delay_share: f64 = 0.5,

        // ---- Market ----

        /// The time ahead is cut into this many slots, short ones first.
        slots: usize = 16,
        /// The first slot, as a share of a mean run time.
        first_slot_share: f64 = 1.0 / 30.0,
        /// Slots reach over this many times what all work takes on all GPUs,
        horizon_work: f64 = 1.3,
        /// and this many times the longest job.
        horizon_runs: f64 = 2.5,
        /// Rounds of bidding, at least and at most; between them `+work` decides.
        rounds_min: usize = 8,
        rounds_max: usize = 60,
        /// This many bids count as a unit of work.
        bids_per_work: usize = 60,
        /// With more jobs than this, each bids with a few of its candidates: they tell enough.
        few_jobs: usize = 200,
        few_bids: usize = 8,
        /// Prices move in the first round by this share of what all jobs lose in a second.
        price_step: f64 = 0.3,
        /// Also where only watts are short, GPUs count for this share of what is scarce.
        gpu_scarcity_min: f64 = 0.05,
        /// This many changes of the energy price are looked at; then the mean goes on.
        price_changes: usize = 64,

        // ---- Filling nodes ----

        /// Factors on the prices of GPUs and of watts, those first that promise most. Prices are
        /// right for all jobs and for hours; at one moment more or fewer GPUs may be free.
        gpu_levels: [f64; 6] = [1.0, 0.5, 0.25, 0.0, 2.0, 0.1],
        watt_levels: [f64; 4] = [1.0, 2.0, 0.3, 4.0],
        /// A job looked at while nodes are filled costs this much work.
        fill_work_per_job: usize = 10,
        /// After this many jobs that do not fit, no other is tried.
        misfits_max: usize = 200,
        /// A job that cannot change once it has started starts if that costs at most this share
        /// more than to wait for what suits it better.
        commit_margin: f64 = 0.1,
        /// A second of boot counts as this many watts: a sleeping node is taken only if none is up.
        wake_w_per_s: f64 = 1000.0,

        // ---- Splits and rollouts ----

        /// The last part of a run, this share of it, tells what a unit of work is worth.
        last_share: f64 = 0.1,
        /// A change of configuration that takes no more GPUs counts as this share of one.
        no_gpu_share: f64 = 1e-3,
        /// A job weighs by its time left to this power, inverted. Workloads and figures as for
        /// `rollout_restart`; with 0.5 2,566 / 1,974 / 2,222 and 403, with 0.7 2,558 / 1,981 /
        /// 2,212 and 398; shortest first, and the rest grows: 2,706 / 2,022 / 2,354 and 393.
        shortness: f64 = 0.4,

        // ---- Annealing ----

        /// Complete schedules are tried with at most this many jobs and nodes: with more, annealing
        /// does not get far enough and moves jobs to and fro.
        anneal_jobs_max: usize = 10,
        anneal_nodes_max: usize = 64,
        /// Schedules tried for each job from one beginning; each is a unit of work.
        anneal_tries_per_job: usize = 1600,
        /// Temperatures where chains begin, as shares of the cost: a cold one improves what there
        /// is, a hot one finds what is quite different.
        anneal_hot: [f64; 3] = [0.02, 0.1, 0.4],
        /// The temperature where they end.
        anneal_cold: f64 = 0.002,
        /// A GPU is taken to draw at least this many watts when the energy of a move is reckoned.
        anneal_min_gpu_w: f64 = 100.0,

        // ---- Reservations for rigid jobs ----
        // "Tuning set": that of decision 38; total cost over the best simple rule, geometric mean.

        /// A plan reserves if rigid jobs ask for at least this share of all GPU time.
        rigid_share: f64 = 2.0 / 3.0,
        /// Jobs that get a reservation; the others start only where they delay none of these.
        /// Simple rules with `+backfill` have the same depth.
        reservation_depth: usize = 100,
        /// Slack counts by this share of a mean run time. 0.71 on the tuning set with half of it
        /// and with twice as much.
        slack_scale: f64 = 0.1,
        /// What a GPU-second costs, over the weights of all waiting jobs divided by all GPUs: with
        /// 1 a candidate pays for the delay of all jobs behind it. 0.77 on the tuning set with 0.3,
        /// 0.70 with 2 and with 1.
        gpu_price: f64 = 1.0,
        /// A later start costs this many times the job's weight beside its tardiness: a wait that
        /// looks short grows with the jobs that come. 0.75 on the tuning set with 0, 0.72 with 0.5
        /// and with 1.
        wait_price: f64 = 1.0,
        /// This share of a GPU type is free now or within `turnover_s`: a job that would hold the
        /// last GPUs for longer waits. Without it a cluster full of week-long jobs keeps hundreds
        /// of short ones waiting (Philly's first 2,000 jobs: 4.1 times the best simple rule; 0.35
        /// with 3 % and with 6 %). `+headroom` sets it.
        headroom: f64 = 0.06,
        /// Half a working day; an hour is too short for clusters without short jobs (1.8 times).
        turnover_s: f64 = 4.0 * 3600.0,

        // ---- When to look again ----

        /// A short time is this share of a mean run time, and at most these seconds.
        moment_share: f64 = 0.1,
        moment_max_s: f64 = 60.0,
        /// A job that waits on purpose is looked at after this share of its age.
        look_again_share: f64 = 0.1,
        /// The next overdue job is looked at after this long, and while a job waits an idle node
        /// stays up for at least this long.
        look_again_s: f64 = 60.0,
        /// No idle node stays up for longer: an hour.
        idle_max_s: f64 = 3600.0,
    }
}

impl Tuning {
    /// How long a split is taken to last that would last for `time_s` if nothing happened.
    pub(super) fn split_lasts(&self, time_s: f64) -> f64 {
        time_s.max(self.split_lasts_min_s).min(self.split_lasts_max_s)
    }
}

// Ranks and numerical limits: no trade-off is in them, so they are not for tuning.

/// An overdue job goes before all others, and no gain is as great as a broken promise is bad.
pub(super) const OVERDUE: f64 = 1e15;
pub(super) const PROMISE: f64 = 1e15;
/// A job that never starts costs more than anything but a broken promise.
pub(super) const NEVER: f64 = 1e12;
/// Halvings of an interval in which a price or a factor is searched for.
pub(super) const ENERGY_HALVINGS: usize = 20;
pub(super) const SLOT_HALVINGS: usize = 40;
/// Bids looked at by one core before it takes on more; the result is the same with any number.
pub(super) const TERMS_PER_GROUP: usize = 10_000;
