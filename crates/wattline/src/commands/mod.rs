//! One file per subcommand.

pub(crate) mod advise;
pub(crate) mod bench;
pub(crate) mod budget;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod job;
pub(crate) mod journal;
pub(crate) mod limits;
pub(crate) mod man;
pub(crate) mod nodes;
pub(crate) mod plan;
pub(crate) mod policies;
pub(crate) mod predict;
pub(crate) mod queue;
pub(crate) mod release;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod submit;
pub(crate) mod sweep;
pub(crate) mod trace;

use crate::cli::{Cli, Command};
use crate::failure::Result;

/// Does what was asked for.
pub(crate) fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Simulate(args) => simulate::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Advise(args) => advise::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Release(args) => release::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Submit(args) => submit::run(&args),
        Command::Whatif(args) => submit::what_if(&args),
        Command::Queue(args) => queue::run(&args),
        Command::Nodes(args) => nodes::run(&args),
        Command::Limits(args) => limits::run(&args),
        Command::Job(command) => job::run(&command),
        Command::Journal(command) => journal::run(&command),
        Command::Explain(args) => explain::run(&args),
        Command::Budget(command) => budget::run(&command),
        Command::Trace(command) => trace::run(&command),
        Command::Bench(command) => bench::run(&command),
        Command::Policies(args) => policies::run(&args),
        Command::Predict(command) => predict::run(&command),
        Command::Config(command) => config::run(&command),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
