//! The judgement of a history: named checks, each of which says what it saw and shows the part of the history that it saw
//! it in.
//!
//! # Reference
//!
//! etcd's robustness tests, whose six watch guarantees are [`Check::Ordered`] to [`Check::Bookmarkable`]; Wing and Gong's
//! search for linearizations with Lowe's memory of visited states ([`linear`]).

mod linear;
mod lists;
mod objects;
mod revisions;
mod story;
mod tests;
mod watches;

use std::fmt;
use std::time::Duration;

use crate::chronicle::Chronicle;
use crate::collections::Scope;
use crate::history::History;

/// What is demanded of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Every answer is one that a server should give.
    Answers,
    /// Every revision is one change, whoever tells of it.
    OneHistory,
    /// Revisions never go back and are never used twice, also over restarts.
    Revisions,
    /// A refused write does nothing.
    Refused,
    /// Operations on one object have an order that explains every answer.
    Linearizable,
    /// A list is the state of its revision, page by page.
    Snapshot,
    /// A list is of the version that was asked for.
    Version,
    /// 410 is answered only when the history is as old as it says.
    Expiry,
    /// Events come in the order of revisions, after where the watch begins.
    Ordered,
    /// No event comes twice.
    Unique,
    /// An event is one whole change: type, object and version belong together.
    Atomic,
    /// No event is left out.
    Reliable,
    /// A watch that goes on where another ended leaves nothing out.
    Resumable,
    /// A bookmark says that all before it was told, and only then.
    Bookmarkable,
    /// A watch that selects tells of objects that begin and cease to be selected.
    Selected,
    /// A watch that begins with what exists tells it as a list would.
    Initial,
    /// What the other checks measure by is known up to the end: watches of whole collections told it without a gap.
    Covered,
}

/// What is wrong.
#[derive(Debug)]
pub struct Violation {
    /// Which demand is not met.
    pub check: Check,
    /// How.
    pub what: String,
    /// The part of the history that shows it.
    pub story: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}: {}", self.check, self.what)?;
        self.story.iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// All checks. `base`: for each collection a revision at which it was empty; `retention`: how long the store keeps history.
///
/// # Errors
///
/// What is wrong, the most telling first.
pub fn all(history: &History, base: &[u64], retention: Duration) -> Result<(), Vec<Violation>> {
    let (chronicle, contradictions) = Chronicle::new(history, base);
    let mut violations = Vec::new();
    revisions::check(&chronicle, &contradictions, &mut violations);
    watches::check(&chronicle, retention, &mut violations);
    lists::check(&chronicle, retention, &mut violations);
    objects::check(&chronicle, &mut violations);
    linear::check(&chronicle, &mut violations);
    covered(&chronicle, &mut violations);
    for complaint in &history.complaints {
        let named = complaint.strip_prefix("Reliable: ");
        let check = if named.is_some() { Check::Reliable } else { Check::Answers };
        let what = named.unwrap_or(complaint).to_owned();
        violations.push(Violation { check, what, story: Vec::new() });
    }
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Checks pass over what is not covered: a collection that nobody follows any more would pass them all. It may end when
/// the store had trimmed what its watchers lacked, which is judged as [`Check::Expiry`].
fn covered(chronicle: &Chronicle, violations: &mut Vec<Violation>) {
    for (collection, fence) in chronicle.uncovered() {
        let name = Scope::whole(collection);
        if !chronicle.is_trimmed(collection) {
            let covered = chronicle.covered[collection];
            let what =
                format!("watches of {name} told all up to {covered}, and it was last written at {fence}");
            let story = story::of_scope(chronicle, &name, covered, covered + 40);
            violations.push(Violation { check: Check::Covered, what, story });
        }
    }
}
