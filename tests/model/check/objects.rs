//! Checks of single objects by revision: a state of the object during the request explains every response.
//!
//! This check is fast and exact about revisions; [`super::linear`] ignores revisions.

use super::{Check, Violation, story};
use crate::chronicle::{Chronicle, State};
use crate::history::{Action, At, Operation, Outcome};

/// Checks all operations of the history.
pub fn check(chronicle: &Chronicle, violations: &mut Vec<Violation>) {
    for operation in &chronicle.history.operations {
        if let Some(what) = unexplained(chronicle, operation) {
            let seen = if let Outcome::Done(seen) = &operation.outcome { seen.revision } else { 0 };
            let known = chronicle.told_before(operation.begin);
            let mut lines = vec![story::of_operation(operation)];
            lines.extend(story::of_key(chronicle, &operation.key, seen.min(known), seen.max(known)));
            violations.push(Violation { check: Check::Linearizable, what, story: lines });
        }
    }
    for removal in &chronicle.history.removals {
        for seen in removal.removed.iter().flatten() {
            // The delete is acknowledged: later reads do not find this revision.
            let gone = chronicle
                .revisions_of(&seen.key)
                .iter()
                .any(|at| *at > seen.revision && chronicle.state(&seen.key, *at).is_none());
            if !gone && chronicle.told_before(removal.end) <= chronicle.covered[seen.key.collection] {
                violations.push(Violation {
                    check: Check::Linearizable,
                    what: "an object in the response of a deletecollection was never deleted".to_owned(),
                    story: story::of_key(chronicle, &seen.key, seen.revision, u64::MAX),
                });
            }
        }
    }
}

fn unexplained(chronicle: &Chronicle, operation: &Operation) -> Option<String> {
    let Operation { key, begin, end, action, outcome, .. } = operation;
    // Unknown deletes explain nothing.
    if chronicle.told_before(*end) > chronicle.covered[key.collection] {
        return None;
    }
    let explained =
        |by: &dyn Fn(State) -> bool| chronicle.states_between(key, *begin, *end).into_iter().any(by);
    match (action, outcome) {
        (Action::Get(at), Outcome::Done(seen)) => {
            let since = match at {
                At::MostRecent => chronicle.told_before(*begin),
                At::NotOlderThan(revision) => *revision,
                At::Any | At::Exact(_) => 0,
            };
            let next = chronicle.revisions_of(key).iter().find(|at| **at > seen.revision);
            let replaced = next.filter(|next| **next <= since);
            replaced.map(|next| {
                format!(
                    "a read of {at:?} showed revision {} of {key}, which was replaced at {next}, and {since} had been observed \
                     before it was sent",
                    seen.revision
                )
            })
        }
        (Action::Get(At::MostRecent), Outcome::Missing) => (!explained(&|state| state.is_none()))
            .then(|| format!("a read did not find {key}, which existed all the time")),
        (Action::Create | Action::CreateByPut, Outcome::Exists) => (!explained(&|state| state.is_some()))
            .then(|| format!("a create was rejected because of {key}, which did not exist")),
        (Action::Write(_) | Action::Delete(_), Outcome::Missing) => (!explained(&|state| state.is_none()))
            .then(|| format!("a write did not find {key}, which existed all the time")),
        (Action::Write(Some(expected)) | Action::Delete(Some(expected)), Outcome::Conflict) => {
            let other = |state: State| state.is_some_and(|(at, _)| at != expected.revision);
            (!explained(&other)).then(|| {
                format!(
                    "a write was rejected although {key} was at revision {} all the time",
                    expected.revision
                )
            })
        }
        (Action::Delete(_), Outcome::Deleted) => {
            let from = chronicle.told_before(*begin);
            let deleted = chronicle
                .revisions_of(key)
                .iter()
                .filter(|at| **at > from)
                .any(|at| chronicle.state(key, *at).is_none());
            (!deleted).then(|| format!("a delete of {key} was acknowledged, and no watch reported it"))
        }
        _ => None,
    }
}
