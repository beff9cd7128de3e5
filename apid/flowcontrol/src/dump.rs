//! Texts of the debug endpoints: levels, queues and requests, as tables with a comma after each cell.
//!
//! # Reference
//!
//! `/debug/api_priority_and_fairness/` of kube-apiserver: the same columns in the same order.

use std::fmt::Write as _;

use jiff::Timestamp;

use crate::configuration::LimitResponse;
use crate::fair_queues::Place;
use crate::level::{Request, Snapshot};

/// State of all levels at one time.
pub struct Dump {
    levels: Vec<(String, Snapshot)>,
}

const LEVEL_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "ActiveQueues",
    "IsIdle",
    "IsQuiescing",
    "WaitingRequests",
    "ExecutingRequests",
    "DispatchedRequests",
    "RejectedRequests",
    "TimedoutRequests",
    "CancelledRequests",
];

const QUEUE_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "Index",
    "PendingRequests",
    "ExecutingRequests",
    "SeatsInUse",
    "NextDispatchR",
    "InitialSeatsSum",
    "MaxSeatsSum",
    "TotalWorkSum",
];

const REQUEST_COLUMNS: &[&str] = &[
    "PriorityLevelName",
    "FlowSchemaName",
    "QueueIndex",
    "RequestIndexInQueue",
    // This is how kube-apiserver spells it.
    "FlowDistingsher",
    "ArriveTime",
    "InitialSeats",
    "FinalSeats",
    "AdditionalLatency",
    "StartTime",
];

const DETAIL_COLUMNS: &[&str] =
    &["UserName", "Verb", "APIPath", "Namespace", "Name", "APIVersion", "Resource", "SubResource"];

impl Dump {
    pub(crate) fn new(levels: impl IntoIterator<Item = (String, Snapshot)>) -> Self {
        let mut levels: Vec<_> = levels.into_iter().collect();
        levels.sort_by(|a, b| a.0.cmp(&b.0));
        Dump { levels }
    }

    /// A line for each level.
    pub fn levels(&self) -> String {
        let rows = self.levels.iter().map(|(name, level)| {
            let (load, counts) = (level.load, level.counts);
            vec![
                name.clone(),
                load.active_queues.to_string(),
                (load.running + load.waiting == 0).to_string(),
                level.is_removed.to_string(),
                load.waiting.to_string(),
                load.running.to_string(),
                counts.dispatched.to_string(),
                counts.rejected.to_string(),
                counts.timed_out.to_string(),
                counts.cancelled.to_string(),
            ]
        });
        table(LEVEL_COLUMNS.iter().copied(), rows)
    }

    /// A line for each queue.
    pub fn queues(&self) -> String {
        let rows = self.levels.iter().flat_map(|(name, level)| {
            level.queues.iter().enumerate().map(move |(index, queue)| {
                vec![
                    name.clone(),
                    index.to_string(),
                    queue.waiting.to_string(),
                    queue.running.to_string(),
                    queue.seats_in_use.to_string(),
                    seat_seconds(queue.next_start),
                    queue.seats_waiting.to_string(),
                    queue.max_seats_waiting.to_string(),
                    seat_seconds(queue.work_waiting),
                ]
            })
        });
        table(QUEUE_COLUMNS.iter().copied(), rows)
    }

    /// A line for each request that waits or runs. `with_details`: also what the requests ask for.
    pub fn requests(&self, with_details: bool) -> String {
        let details = if with_details { DETAIL_COLUMNS } else { &[] };
        let rows = self.levels.iter().flat_map(|(name, level)| {
            level.requests.iter().map(move |(request, place)| {
                let is_queued_level = matches!(level.response, LimitResponse::Queue(_));
                let mut row = request_row(name, request, *place, is_queued_level);
                if with_details {
                    row.extend(detail_row(request));
                }
                row
            })
        });
        table(REQUEST_COLUMNS.iter().chain(details).copied(), rows)
    }
}

fn request_row(
    level: &str,
    request: &Request,
    (queue, position): Place,
    is_queued_level: bool,
) -> Vec<String> {
    let index = |index: Option<usize>| index.map_or_else(|| "-1".to_owned(), |index| index.to_string());
    let distinguisher = match is_queued_level {
        true => request.schema.spec.distinguisher(&request.user, &request.attributes),
        false => "",
    };
    vec![
        level.to_owned(),
        request.schema.name().to_owned(),
        index(queue),
        index(position),
        distinguisher.to_owned(),
        time(Some(request.arrived)),
        request.work.seats.to_string(),
        request.work.final_seats.to_string(),
        format!("{:?}", request.work.final_time),
        time(request.started),
    ]
}

fn detail_row(request: &Request) -> [String; 8] {
    let (user, attributes) = (&request.user, &request.attributes);
    [
        user.name.clone(),
        attributes.verb.clone(),
        attributes.path.clone(),
        attributes.namespace.clone(),
        attributes.name.clone(),
        attributes.version.clone(),
        attributes.resource.clone(),
        attributes.subresource.clone(),
    ]
}

/// A time as RFC 3339 with nine digits; empty for a request that has not started.
fn time(time: Option<Timestamp>) -> String {
    time.map(|time| format!("{time:.9}")).unwrap_or_default()
}

fn seat_seconds(value: f64) -> String {
    format!("{value:.8}ss")
}

/// Formats rows under a header, with columns of equal width.
fn table<'a>(header: impl Iterator<Item = &'a str>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut lines: Vec<Vec<String>> = vec![header.map(str::to_owned).collect()];
    lines.extend(rows);
    let mut widths: Vec<usize> = Vec::new();
    for line in &lines {
        widths.resize(widths.len().max(line.len()), 0);
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.len() + 2);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let last = line.len().saturating_sub(1);
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // Writing to a string does not fail.
            let _ = if column == last {
                writeln!(text, "{}", printable(cell))
            } else {
                write!(text, "{:width$}", format!("{},", printable(cell)))
            };
        }
    }
    text
}

/// Replaces control characters, which a user name or path can contain.
fn printable(cell: &str) -> String {
    cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
