//! Checks of single objects by revision: a state of the object during the request explains every response.
//!
//! This check is fast and exact about revisions; [`super::linear`] ignores revisions.

use super::{Check, Violation, story};
use crate::model::history::{Action, At, Operation, Outcome};
use crate::model::reconstructed_history::{ReconstructedHistory, State};

/// Checks all operations of the history.
pub fn check(reconstructed: &ReconstructedHistory, violations: &mut Vec<Violation>) {
    for operation in &reconstructed.history.operations {
        if let Some(description) = describe_violation(reconstructed, operation) {
            let seen = if let Outcome::Done(seen) = &operation.outcome { seen.revision } else { 0 };
            let known = reconstructed.observed_before(operation.begin);
            let mut lines = vec![story::format_operation(operation)];
            lines.extend(story::format_key(reconstructed, &operation.key, seen.min(known), seen.max(known)));
            violations.push(Violation { check: Check::Linearizable, description, story: lines });
        }
    }
    for removal in &reconstructed.history.removals {
        for seen in removal.removed.iter().flatten() {
            // The response reports the object as deleted, so a later revision must be this deletion.
            let is_deleted = reconstructed
                .revisions_of(&seen.key)
                .iter()
                .any(|at| *at > seen.revision && reconstructed.state(&seen.key, *at).is_none());
            if !is_deleted
                && reconstructed.observed_before(removal.end) <= reconstructed.covered[seen.key.collection]
            {
                violations.push(Violation {
                    check: Check::Linearizable,
                    description: "an object in the response of a deletecollection was never deleted"
                        .to_owned(),
                    story: story::format_key(reconstructed, &seen.key, seen.revision, u64::MAX),
                });
            }
        }
    }
}

/// Returns the violation of an operation whose response no state of its object explains; None means no violation.
fn describe_violation(reconstructed: &ReconstructedHistory, operation: &Operation) -> Option<String> {
    let Operation { key, begin, end, action, outcome, .. } = operation;
    // Later deletes in this collection may be unknown, so the response cannot be judged.
    if reconstructed.observed_before(*end) > reconstructed.covered[key.collection] {
        return None;
    }
    let is_explained =
        |by: &dyn Fn(State) -> bool| reconstructed.states_between(key, *begin, *end).into_iter().any(by);
    match (action, outcome) {
        (Action::Get(at), Outcome::Done(seen)) => {
            let since = match at {
                At::MostRecent => reconstructed.observed_before(*begin),
                At::NotOlderThan(revision) => *revision,
                At::Any | At::Exact(_) => 0,
            };
            let next = reconstructed.revisions_of(key).iter().find(|at| **at > seen.revision);
            let replaced = next.filter(|next| **next <= since);
            replaced.map(|next| {
                format!(
                    "a read of {at:?} showed revision {} of {key}, which was replaced at {next}, and {since} had been observed \
                     before it was sent",
                    seen.revision
                )
            })
        }
        (Action::Get(At::MostRecent), Outcome::Missing) => (!is_explained(&|state| state.is_none()))
            .then(|| format!("a read did not find {key}, which existed all the time")),
        (Action::Create | Action::CreateByPut, Outcome::Exists) => (!is_explained(&|state| state.is_some()))
            .then(|| format!("a create was rejected because of {key}, which did not exist")),
        (Action::Write(_) | Action::Delete(_), Outcome::Missing) => (!is_explained(&|state| state.is_none()))
            .then(|| format!("a write did not find {key}, which existed all the time")),
        (Action::Write(Some(expected)) | Action::Delete(Some(expected)), Outcome::Conflict) => {
            let other = |state: State| state.is_some_and(|(at, _)| at != expected.revision);
            (!is_explained(&other)).then(|| {
                format!(
                    "a write was rejected although {key} was at revision {} all the time",
                    expected.revision
                )
            })
        }
        (Action::Delete(_), Outcome::Deleted) => {
            let from = reconstructed.observed_before(*begin);
            let deleted = reconstructed
                .revisions_of(key)
                .iter()
                .filter(|at| **at > from)
                .any(|at| reconstructed.state(key, *at).is_none());
            (!deleted).then(|| format!("a delete of {key} was acknowledged, and no watch reported it"))
        }
        _ => None,
    }
}
