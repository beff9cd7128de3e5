//! Checks of revisions: each is one change, they never decrease and are never reused; a client wrote every
//! change.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Check, Violation, story};
use crate::model::history::{Action, Outcome};
use crate::model::reconstructed_history::{Contradiction, ReconstructedHistory};

/// Checks all revisions of the history.
pub fn check(
    reconstructed: &ReconstructedHistory,
    contradictions: &[Contradiction],
    violations: &mut Vec<Violation>,
) {
    for Contradiction { revision, observed: [first, second] } in contradictions {
        violations.push(Violation {
            check: Check::OneHistory,
            description: format!("two different changes were observed at revision {revision}"),
            story: vec![story::format_change(*revision, first), story::format_change(*revision, second)],
        });
    }
    check_revisions_increase(reconstructed, violations);
    check_changes_have_writers(reconstructed, violations);
    check_uids(reconstructed, violations);
}

/// Checks that a write gets a later revision than all those that clients observed before its request.
fn check_revisions_increase(reconstructed: &ReconstructedHistory, violations: &mut Vec<Violation>) {
    for operation in reconstructed.history.operations.iter().filter(|operation| operation.writes()) {
        let Outcome::Done(seen) = &operation.outcome else { continue };
        let observed = reconstructed.observed_before(operation.begin);
        if seen.revision <= observed {
            violations.push(Violation {
                check: Check::Revisions,
                description: format!(
                    "a write got revision {}, and {observed} had been observed before its request",
                    seen.revision
                ),
                story: vec![story::format_operation(operation)],
            });
        }
    }
}

/// Checks that every change belongs to a write at this revision that was sent and not rejected.
fn check_changes_have_writers(reconstructed: &ReconstructedHistory, violations: &mut Vec<Violation>) {
    for (revision, change) in reconstructed.changes() {
        let Some(content) = &change.after else { continue };
        let Some(writer) = reconstructed.operation(content.write) else {
            violations.push(Violation {
                check: Check::Refused,
                description: format!("revision {revision} contains a change that no client wrote"),
                story: vec![story::format_change(revision, change)],
            });
            continue;
        };
        let refused = match &writer.outcome {
            Outcome::Done(seen) => seen.revision != revision,
            Outcome::Unknown => false,
            _ => true,
        };
        if refused || writer.key != change.key || !writer.writes() {
            violations.push(Violation {
                check: Check::Refused,
                description: format!("revision {revision} contains a write with another response"),
                story: vec![story::format_change(revision, change), story::format_operation(writer)],
            });
        }
        if writer.group != content.group {
            violations.push(Violation {
                check: Check::Atomic,
                description: format!("revision {revision} mixes two writes: its group is not the writer's"),
                story: vec![story::format_change(revision, change), story::format_operation(writer)],
            });
        }
    }
}

/// Checks that an object keeps its uid while it exists, and that no other object ever has this uid.
fn check_uids(reconstructed: &ReconstructedHistory, violations: &mut Vec<Violation>) {
    let mut owners: HashMap<Arc<str>, u64> = HashMap::new();
    for (revision, change) in reconstructed.changes() {
        let Some(content) = &change.after else { continue };
        if revision > reconstructed.covered[change.key.collection] {
            continue;
        }
        let before = reconstructed.state(&change.key, revision - 1);
        let wrong = match before {
            Some((_, old)) => old.uid != content.uid,
            None => owners.contains_key(&content.uid),
        };
        // A create requires that the object does not exist, an update that it exists.
        let created = reconstructed.operation(content.write).map(|writer| writer.action);
        let out_of_place = match created {
            Some(Action::Create | Action::CreateByPut) => before.is_some(),
            Some(Action::Write(Some(expected))) => before.is_none_or(|(at, _)| at != expected.revision),
            Some(Action::Write(None)) => before.is_none(),
            _ => false,
        };
        if wrong {
            violations.push(Violation {
                check: Check::Atomic,
                description: format!("revision {revision} shows the uid of another object"),
                story: story::format_key(reconstructed, &change.key, revision, revision),
            });
        }
        if out_of_place {
            violations.push(Violation {
                check: Check::Linearizable,
                description: format!(
                    "the write of revision {revision} succeeded on a state that should have been rejected: {:?} after {:?}",
                    created,
                    before.map(|(at, content)| (at, content.write))
                ),
                story: story::format_key(reconstructed, &change.key, revision, revision),
            });
        }
        owners.insert(Arc::clone(&content.uid), revision);
    }
}
