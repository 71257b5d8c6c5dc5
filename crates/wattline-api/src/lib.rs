//! What goes over the wire between the controller and whoever asks it, and nothing else.
//!
//! All requests refuse fields they do not know. Answers carry a `schema` with a version; within a
//! version fields are only added. Times are seconds since the Unix epoch on the cluster's clock,
//! which an emulated cluster may run faster.

mod advice;
mod budget;
mod event;
mod explain;
mod job;
mod limits;
mod node;
mod page;
mod plan;
mod problem;
mod report;
mod status;

pub use advice::{Advice, AdvisedJob};
pub use budget::{
    Budget, BudgetForecast, BudgetQuery, BudgetRequest, ForecastJob, ForecastJobs, ForecastNodes,
};
pub use event::Event;
pub use explain::{Choice, Explanation, WeightParts, WhatIf};
pub use job::{Accepted, JobRow, Placement, SubmitRequest, UpdateRequest};
pub use limits::{AccountLimits, LimitRow, Limits};
pub use node::{NodeList, NodeRow};
pub use page::{JobPage, JobQuery, MOST_IN_A_PAGE, Reach};
pub use plan::{
    Foreseen, On, PlanInForce, PlanQuery, Planned, PlannedJob, PlannedNode, PlannedRow, Runs,
};
pub use problem::Problem;
pub use report::{JobFigures, PowerFigures, Report, ReportQuery, ReportRow, ReportRows};
pub use status::Status;

/// The version of the paths.
pub const VERSION: &str = "v1";
/// The media type of a [`Problem`].
pub const PROBLEM: &str = "application/problem+json";
