//! What can be typed.

use crate::commands;
use clap::{Parser, Subcommand};

/// Energy-aware scheduling of deep-learning training on GPU clusters.
///
/// Start with `wattline compare --scenario demo --out out`.
#[derive(Debug, Parser)]
#[command(name = "wattline", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Simulate one policy and show how each job fared
    Simulate(commands::simulate::Args),
    /// Simulate several policies on the same work and compare what they cost
    Compare(commands::compare::Args),
    /// Plan once, for a cluster as a file describes it, and say why
    Plan(commands::plan::Args),
    /// Turn one knob (load, budget, price, restart cost, an option) and see what each policy costs
    Sweep(Box<commands::sweep::Args>),
    /// Run live, on an emulated cluster or over SLURM, with a journal that survives anything
    Serve(Box<commands::serve::Args>),
    /// Run what a journal recorded once more, under any policy, and compare it with what happened
    Replay(Box<commands::replay::Args>),
    /// Say what the policy would do now on a cluster that is watched, and what it would have saved
    Advise(commands::advise::Args),
    /// Submit a job to a controller
    Submit(Box<commands::submit::Args>),
    /// Ask a controller what a job would get if it were submitted
    Whatif(Box<commands::submit::WhatIfArgs>),
    /// List a controller's jobs: when they start and end, what they cost, why they wait
    Queue(commands::queue::Args),
    /// List a controller's nodes
    Nodes(commands::nodes::Args),
    /// Show your limits at a controller and how much of them you use
    Limits(commands::limits::Args),
    /// Show, cancel, hold, release or change a job
    #[command(subcommand)]
    Job(commands::job::Command),
    /// Show, check, copy or shorten a controller's journal
    #[command(subcommand)]
    Journal(commands::journal::Command),
    /// Say why a job is planned as it is, and what else it could be
    Explain(commands::explain::Args),
    /// Show or set the power budget
    #[command(subcommand)]
    Budget(commands::budget::Command),
    /// What a period has come to: jobs, lateness, energy, power against the budget
    Report(commands::report::Args),
    /// Give jobs, nodes and power limits back to SLURM as they were
    Release(commands::release::Args),
    /// Check SLURM, the gate, rights, folders and clocks, and say how to fix what is wrong
    Doctor(commands::doctor::Args),
    /// Look at, convert and generate traces
    #[command(subcommand)]
    Trace(commands::trace::Command),
    /// Measure Wattline's own speed
    #[command(subcommand)]
    Bench(commands::bench::Command),
    /// Predict time and power from measurements
    #[command(subcommand)]
    Predict(commands::predict::Command),
    /// List policies and their options
    Policies(commands::policies::Args),
    /// Show or check a scenario with all its defaults
    #[command(subcommand)]
    Config(commands::config::Command),
    /// Print a completion script for a shell
    Completions(commands::completions::Args),
    /// Print the manual, or write its pages to a folder
    Man(commands::man::Args),
}
