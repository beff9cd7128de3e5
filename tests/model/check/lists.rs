//! Checks of lists: each has the requested revision, and its pages are the complete state at that revision.

use std::time::Duration;

use super::{Check, Violation, story};
use crate::model::collections::ObservedObject;
use crate::model::history::{At, List, ListEnding};
use crate::model::reconstructed_history::ReconstructedHistory;

/// Checks all lists of the history.
pub fn check(reconstructed: &ReconstructedHistory, retention: Duration, violations: &mut Vec<Violation>) {
    for list in &reconstructed.history.lists {
        let found = check_revision(reconstructed, list)
            .or_else(|| check_snapshot(reconstructed, list))
            .or_else(|| check_expiry(reconstructed, list, retention));
        if let Some((check, description)) = found {
            let mut lines = story::format_list(list);
            if let Some(page) = list.pages.first() {
                let first = page.revision.saturating_sub(40);
                lines.extend(story::format_scope(reconstructed, &list.scope, first, page.revision + 10));
            }
            violations.push(Violation { check, description, story: lines });
        }
    }
}

/// Violated check with a description; None means no violation.
type ListViolation = Option<(Check, String)>;

/// Checks that the revision of a list is the requested one, and the same on all pages.
fn check_revision(reconstructed: &ReconstructedHistory, list: &List) -> ListViolation {
    let first = list.pages.first()?;
    let observed = reconstructed.observed_before(first.begin);
    let revision = first.revision;
    let wrong = match list.at {
        At::MostRecent => {
            (revision < observed).then(|| format!("{observed} had been observed before the request"))
        }
        At::NotOlderThan(least) => {
            (revision < least).then(|| format!("not older than {least} was requested"))
        }
        At::Exact(exactly) => (revision != exactly).then(|| format!("exactly {exactly} was requested")),
        At::Any => None,
    };
    if let Some(why) = wrong {
        return Some((Check::Version, format!("a list is of revision {revision}, and {why}")));
    }
    let other = list.pages.iter().find(|page| page.revision != revision)?;
    let description = format!("a later page is of revision {}, the first one of {revision}", other.revision);
    Some((Check::Snapshot, description))
}

/// Checks that the pages of a list are the complete state at its revision, in order.
fn check_snapshot(reconstructed: &ReconstructedHistory, list: &List) -> ListViolation {
    let revision = list.pages.first()?.revision;
    if revision > reconstructed.covered(&list.scope) {
        return None;
    }
    let expected = reconstructed.snapshot(&list.scope, revision);
    let items: Vec<&ObservedObject> = list.pages.iter().flat_map(|page| &page.items).collect();
    let is_complete = list.ending == ListEnding::Complete;
    for index in 0..expected.len().max(items.len()) {
        let description = match (expected.get(index), items.get(index)) {
            (Some((key, at, content)), Some(seen)) => {
                if **key == seen.key && *at == seen.revision && content.write == seen.write {
                    continue;
                }
                let observed = reconstructed
                    .operation(content.write)
                    .filter(|writer| writer.outcome != crate::model::history::Outcome::Unknown);
                let acknowledged = if observed.is_some() { ", which was acknowledged," } else { "" };
                format!(
                    "a list of revision {revision} has {} where {key} of revision {at}{acknowledged} is expected",
                    story::format_object(seen)
                )
            }
            (Some((key, at, _)), None) if is_complete => {
                format!("a list of revision {revision} lacks {key} of revision {at}")
            }
            (Some(_), None) => break,
            (None, Some(seen)) => {
                format!(
                    "a list of revision {revision} has {}, which did not exist",
                    story::format_object(seen)
                )
            }
            (None, None) => break,
        };
        return Some((Check::Snapshot, description));
    }
    let mut read = 0;
    for page in &list.pages {
        read += page.items.len();
        let counts_all_objects =
            list.scope.is_everything() && list.scope.collections.len() == 1 && !page.foreign;
        if let Some(remaining) = page.remaining.filter(|_| counts_all_objects)
            && remaining != expected.len() - read
        {
            let rest = expected.len() - read;
            return Some((Check::Snapshot, format!("a page says that {remaining} remain, and {rest} do")));
        }
        if list.limit > 0 && list.at != At::Any && page.items.len() > list.limit {
            return Some((Check::Snapshot, format!("a page has {} objects", page.items.len())));
        }
    }
    None
}

/// Checks that the server returned 410 for a list only after the requested revision had expired.
fn check_expiry(reconstructed: &ReconstructedHistory, list: &List, retention: Duration) -> ListViolation {
    let ListEnding::Expired(at, revision) = list.ending else { return None };
    let description = premature_expiry(reconstructed, revision, at, retention)?;
    Some((Check::Expiry, format!("a list of revision {revision} returns 410, and {description}")))
}

/// Returns the reason why a revision cannot have expired at a time; None if it may have expired.
///
/// A revision that was the newest one less than the history retention before cannot have expired.
pub fn premature_expiry(
    reconstructed: &ReconstructedHistory,
    revision: u64,
    at: crate::model::history::Time,
    retention: Duration,
) -> Option<String> {
    let newest_at = reconstructed.latest_time_at(revision);
    let age = at.saturating_sub(newest_at);
    (age < retention)
        .then(|| format!("it was the newest {age:.3?} before: history is kept for {retention:?}"))
}
