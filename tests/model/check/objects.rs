//! Single objects, by the revisions: every answer is explained by a state that the object had while it was asked. Quick, and
//! exact about which revision; [`super::linear`] does without revisions.

use super::{Check, Violation, story};
use crate::chronicle::{Chronicle, State};
use crate::history::{Action, At, Operation, Outcome};

/// See the module.
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
            // Acknowledged: whoever asks afterwards does not find this one.
            let gone = chronicle
                .revisions_of(&seen.key)
                .iter()
                .any(|at| *at > seen.revision && chronicle.state(&seen.key, *at).is_none());
            if !gone && chronicle.told_before(removal.end) <= chronicle.covered[seen.key.collection] {
                violations.push(Violation {
                    check: Check::Linearizable,
                    what: "an object that a delete of its collection told to be gone was never deleted"
                        .to_owned(),
                    story: story::of_key(chronicle, &seen.key, seen.revision, u64::MAX),
                });
            }
        }
    }
}

fn unexplained(chronicle: &Chronicle, operation: &Operation) -> Option<String> {
    let Operation { key, begin, end, action, outcome, .. } = operation;
    // What is not known of deletes cannot explain anything.
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
                    "a read of {at:?} showed revision {} of {key}, which was replaced at {next}, and {since} had been told \
                     before it was sent",
                    seen.revision
                )
            })
        }
        (Action::Get(At::MostRecent), Outcome::Missing) => (!explained(&|state| state.is_none()))
            .then(|| format!("a read did not find {key}, which was there all the time")),
        (Action::Create | Action::CreateByPut, Outcome::Exists) => (!explained(&|state| state.is_some()))
            .then(|| format!("a create was refused because of {key}, which was not there")),
        (Action::Write(_) | Action::Delete(_), Outcome::Missing) => (!explained(&|state| state.is_none()))
            .then(|| format!("a write did not find {key}, which was there all the time")),
        (Action::Write(Some(expected)) | Action::Delete(Some(expected)), Outcome::Conflict) => {
            let other = |state: State| state.is_some_and(|(at, _)| at != expected.revision);
            (!explained(&other)).then(|| {
                format!("a write was refused though {key} was at revision {} all the time", expected.revision)
            })
        }
        (Action::Delete(_), Outcome::Deleted) => {
            let from = chronicle.told_before(*begin);
            let deleted = chronicle
                .revisions_of(key)
                .iter()
                .filter(|at| **at > from)
                .any(|at| chronicle.state(key, *at).is_none());
            (!deleted).then(|| format!("a delete of {key} was acknowledged, and no watch told of it"))
        }
        _ => None,
    }
}
