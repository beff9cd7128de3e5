//! Checks of a history. Each named check reports its violations with the relevant part of the history.
//!
//! # Reference
//!
//! etcd's robustness tests, whose six watch guarantees are [`Check::Ordered`] to [`Check::Bookmarkable`];
//! Wing and Gong's search for linearizations with Lowe's cache of visited states ([`linear`]).

mod linear;
mod lists;
mod objects;
mod revisions;
mod story;
mod tests;
mod watches;

use std::fmt;
use std::time::Duration;

use crate::model::collections::Scope;
use crate::model::history::History;
use crate::model::reconstructed_history::ReconstructedHistory;

/// The requirements on a history that the checks verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Every response is valid for its request.
    Answers,
    /// All clients observe the same change at the same revision.
    OneHistory,
    /// Revisions never decrease and are never reused, also over restarts.
    Revisions,
    /// A rejected write has no effect.
    Refused,
    /// Operations on one object have an order that explains every response to them.
    Linearizable,
    /// A list is the state at its revision, over all pages.
    Snapshot,
    /// A list has a revision that its `resourceVersion` parameters allow.
    Version,
    /// The server returns 410 only when the history has expired.
    Expiry,
    /// Events come in the order of revisions, after the start of the watch.
    Ordered,
    /// No event comes twice.
    Unique,
    /// An event is one complete change: type, object and revision belong together.
    Atomic,
    /// No event is missing.
    Reliable,
    /// A watch that continues an earlier watch misses no event.
    Resumable,
    /// A bookmark comes only after all events before it.
    Bookmarkable,
    /// A watch with a selector reports objects that begin or cease to match.
    Selected,
    /// A watch with initial events sends the same objects as a list.
    Initial,
    /// Watches of whole collections have no gap, so the other checks know every change.
    Covered,
}

/// Violation of a check.
#[derive(Debug)]
pub struct Violation {
    /// Violated check.
    pub check: Check,
    /// Description of the error.
    pub description: String,
    /// Relevant part of the history.
    pub story: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}: {}", self.check, self.description)?;
        self.story.iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// Runs all checks.
///
/// `base`: for each collection a revision at which it was empty. `retention`: the history retention of the
/// store.
///
/// # Errors
///
/// The violations, the most informative first.
pub fn check_all(history: &History, base: &[u64], retention: Duration) -> Result<(), Vec<Violation>> {
    let (reconstructed, contradictions) = ReconstructedHistory::new(history, base);
    let mut violations = Vec::new();
    revisions::check(&reconstructed, &contradictions, &mut violations);
    watches::check(&reconstructed, retention, &mut violations);
    lists::check(&reconstructed, retention, &mut violations);
    objects::check(&reconstructed, &mut violations);
    linear::check(&reconstructed, &mut violations);
    check_coverage(&reconstructed, &mut violations);
    for complaint in &history.direct_violations {
        let named = complaint.strip_prefix("Reliable: ");
        let check = if named.is_some() { Check::Reliable } else { Check::Answers };
        let description = named.unwrap_or(complaint).to_owned();
        violations.push(Violation { check, description, story: Vec::new() });
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Checks that all changes of every collection are known up to its last write.
///
/// The other checks ignore revisions after the known ones. Changes may be unknown if a watch could not
/// continue, because the store had compacted the history. [`Check::Expiry`] checks that the compaction was
/// allowed.
fn check_coverage(reconstructed: &ReconstructedHistory, violations: &mut Vec<Violation>) {
    for (collection, fence) in reconstructed.uncovered() {
        let name = Scope::whole(collection);
        if !reconstructed.is_trimmed(collection) {
            let covered = reconstructed.covered[collection];
            let description = format!(
                "watches of {name} cover all changes up to {covered}, and its last write is at {fence}"
            );
            let story = story::format_scope(reconstructed, &name, covered, covered + 40);
            violations.push(Violation { check: Check::Covered, description, story });
        }
    }
}
