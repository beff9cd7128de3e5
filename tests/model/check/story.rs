//! Formats parts of a history for the report of a violation.

use crate::model::collections::{GROUPS, Key, ObservedObject, Scope};
use crate::model::history::{List, Notice, Operation, Outcome, Stream};
use crate::model::reconstructed_history::{Change, ReconstructedHistory};

/// Maximum number of lines of each part of a report, such as changes or notices.
const MAX_LINES: usize = 14;

/// Formats the changes of an object around some revisions, and the operations and watches that observed them.
pub fn format_key(reconstructed: &ReconstructedHistory, key: &Key, first: u64, last: u64) -> Vec<String> {
    let revisions = reconstructed.revisions_of(key);
    let from = revisions.partition_point(|at| *at < first).saturating_sub(2);
    let upto = (revisions.partition_point(|at| *at <= last) + 2).min(revisions.len());
    let mut story = vec![format!("changes of {key}:")];
    for revision in revisions.iter().take(upto).skip(from).take(MAX_LINES) {
        let change = reconstructed.between(revision - 1, *revision).next();
        story.extend(change.map(|(revision, change)| format!("  {}", format_change(revision, change))));
    }
    let has_observed = |operation: &&Operation| {
        let seen = if let Outcome::Done(seen) = &operation.outcome { seen.revision } else { 0 };
        operation.key == *key && seen >= first && seen <= last
    };
    story.push("operations that observed these changes:".to_owned());
    story.extend(
        reconstructed
            .history
            .operations
            .iter()
            .filter(has_observed)
            .take(MAX_LINES)
            .map(|operation| format!("  {}", format_operation(operation))),
    );
    story
}

/// Formats a change.
pub fn format_change(revision: u64, change: &Change) -> String {
    match &change.after {
        Some(content) => format!(
            "{revision}: {} is #{} in group {}, uid {}",
            change.key, content.write, GROUPS[content.group], content.uid
        ),
        None => format!("{revision}: {} is gone", change.key),
    }
}

/// Formats an operation.
pub fn format_operation(operation: &Operation) -> String {
    let Operation { id, begin, end, key, action, outcome, .. } = operation;
    let outcome = match outcome {
        Outcome::Done(seen) => format!("{} = #{}", seen.revision, seen.write),
        other => format!("{other:?}"),
    };
    format!("#{id} [{begin:.3?}, {end:.3?}] {action:?} {key} -> {outcome}")
}

/// Formats a watch with its events (notices) around index `at`, and the changes of its scope from `first` to
/// `last`.
pub fn format_stream(
    reconstructed: &ReconstructedHistory,
    stream: &Stream,
    at: usize,
    first: u64,
    last: u64,
) -> Vec<String> {
    let Stream { id, scope, start, resumes, begin, notices, ending, .. } = stream;
    let mut story = vec![format!(
        "watch {id} of {scope} from {start:?} at {begin:.3?}, after watch {resumes:?}, {} notices, {ending:?}:",
        notices.len()
    )];
    let from = at.saturating_sub(MAX_LINES / 2);
    for (index, (time, notice)) in notices.iter().enumerate().skip(from).take(MAX_LINES) {
        let mark = if index == at { '>' } else { ' ' };
        story.push(format!(" {mark}{time:.3?} {}", format_notice(notice)));
    }
    story.extend(format_scope(reconstructed, scope, first, last));
    story
}

/// Formats the changes of a scope in a range of revisions.
pub fn format_scope(
    reconstructed: &ReconstructedHistory,
    scope: &Scope,
    first: u64,
    last: u64,
) -> Vec<String> {
    let changes = reconstructed.between(first.saturating_sub(1), last);
    let mut within: Vec<_> = changes.filter(|(_, change)| scope.contains(&change.key)).collect();
    let from = within.len().saturating_sub(MAX_LINES);
    let mut story = vec![format!("changes of the scope from {first} to {last}:")];
    story.extend(
        within.drain(from..).map(|(revision, change)| format!("  {}", format_change(revision, change))),
    );
    story
}

/// Formats a list.
pub fn format_list(list: &List) -> Vec<String> {
    let List { scope, at, limit, pages, ending } = list;
    let mut story = vec![format!("list of {scope} {at:?}, {limit} a page, {ending:?}:")];
    for page in pages {
        let items: Vec<String> = page.items.iter().map(format_object).collect();
        story.push(format!(
            "  [{:.3?}, {:.3?}] {}: {}",
            page.begin,
            page.end,
            page.revision,
            items.join(", ")
        ));
    }
    story
}

fn format_notice(notice: &Notice) -> String {
    match notice {
        Notice::Added(seen) => format!("ADDED {}", format_object(seen)),
        Notice::Modified(seen) => format!("MODIFIED {}", format_object(seen)),
        Notice::Deleted(seen) => format!("DELETED {}", format_object(seen)),
        Notice::Bookmark { revision, initial } => {
            format!("BOOKMARK {revision}{}", if *initial { " of the initial events" } else { "" })
        }
    }
}

/// Formats an observed object.
pub fn format_object(seen: &ObservedObject) -> String {
    format!("{}@{} = #{} {}", seen.key.name, seen.revision, seen.write, GROUPS[seen.group])
}
