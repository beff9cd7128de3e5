//! Linearizability of single objects, from values and times alone.
//!
//! The check searches an order of all operations, each between its request and its response, that explains
//! every response. The search ignores revisions, so it also finds errors that consistent wrong revisions
//! hide.
//!
//! # Contract
//!
//! An operation without a response may have happened between its request and the death of its server, or
//! never. A write whose content a client observed happened before this observation; a write whose content no watch of
//! the whole collection delivered did not happen. A list without a resourceVersion counts as a read of each object of its scope.
//!
//! # Reference
//!
//! J. Wing and C. Gong, Testing and Verifying Concurrent Objects (1993); G. Lowe, Testing for Linearizability
//! (2017).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::{Check, Violation};
use crate::model::collections::{Key, WriteId};
use crate::model::history::{Action, At, History, ListEnding, Notice, Operation, Outcome, Time};
use crate::model::reconstructed_history::ReconstructedHistory;

/// State of an object: the write of its content; None if the object does not exist.
type CurrentWrite = Option<WriteId>;

/// An operation on one object, as the search sees it.
#[derive(Clone, Debug)]
pub struct Call {
    /// Time of the request.
    pub begin: Time,
    /// Time of the response; without a response, the time after which the operation cannot happen.
    pub end: Time,
    /// Whether the operation may never have happened.
    pub optional: bool,
    /// Effect of the operation.
    pub effect: Effect,
    /// Description of the operation in the report.
    pub name: String,
}

/// Effect of an operation: the state of the object that it requires, and the change that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The operation read this state.
    Read(CurrentWrite),
    /// The operation observed that the object exists.
    Present,
    /// The operation observed that the object exists in another state than this.
    Other(WriteId),
    /// The operation created the object.
    Create(WriteId),
    /// The operation replaced the first state, or any existing state, by the second one.
    Write(Option<WriteId>, WriteId),
    /// The operation replaced the first state by the second one, or created the object.
    Put(WriteId, WriteId),
    /// The operation deleted the object in this state, or in any state.
    Delete(Option<WriteId>),
}

impl Effect {
    /// Returns the state after the operation; None if the operation is impossible in this state.
    fn apply(self, state: CurrentWrite) -> Option<CurrentWrite> {
        let is_expected = |expected: Option<WriteId>| match expected {
            None => state.is_some(),
            Some(_) => state == expected,
        };
        match self {
            Effect::Read(seen) => (state == seen).then_some(state),
            Effect::Present => state.is_some().then_some(state),
            Effect::Other(write) => (state.is_some() && state != Some(write)).then_some(state),
            Effect::Create(write) => state.is_none().then_some(Some(write)),
            Effect::Write(over, write) => is_expected(over).then_some(Some(write)),
            Effect::Put(over, write) => (state.is_none() || state == Some(over)).then_some(Some(write)),
            Effect::Delete(which) => is_expected(which).then_some(None),
        }
    }

    fn is_write(self) -> bool {
        matches!(self, Effect::Create(_) | Effect::Write(..) | Effect::Put(..) | Effect::Delete(_))
    }
}

/// Checks the operations of every object.
pub fn check(reconstructed: &ReconstructedHistory, violations: &mut Vec<Violation>) {
    for (key, calls) in calls(reconstructed) {
        if !is_linearizable(&calls) {
            let least = minimize(calls);
            violations.push(Violation {
                check: Check::Linearizable,
                description: format!("no order of these operations on {key} explains their responses"),
                story: least.iter().map(|call| format!("{} {:?}", call.name, call.effect)).collect(),
            });
        }
    }
}

/// Returns the operations on each object, ordered by request time.
fn calls(reconstructed: &ReconstructedHistory) -> BTreeMap<Key, Vec<Call>> {
    let history = reconstructed.history;
    let mut calls: BTreeMap<Key, Vec<Call>> = BTreeMap::new();
    let first_observations = first_observations(history);
    for operation in &history.operations {
        if let Some(effect) = effect(operation) {
            let mut end = operation.end;
            if operation.outcome == Outcome::Unknown && !matches!(effect, Effect::Delete(_)) {
                match first_observations.get(&operation.id) {
                    Some(observed) => end = end.min(*observed),
                    // The watches of the collection have every change, so the write did not happen.
                    None if reconstructed.is_covered(operation.key.collection) => continue,
                    None => {}
                }
            }
            calls.entry(operation.key.clone()).or_default().push(Call {
                begin: operation.begin,
                end,
                optional: operation.outcome == Outcome::Unknown,
                effect,
                name: super::story::format_operation(operation),
            });
        }
    }
    let keys: Vec<Key> = calls.keys().chain(reconstructed.keys()).cloned().collect();
    for removal in &history.removals {
        for key in keys.iter().filter(|key| removal.scope.contains(key)) {
            let (begin, end) = (removal.begin, removal.end);
            let name = format!("[{begin:.3?}, {end:.3?}] delete of the collection");
            let call = Call { begin, end, optional: true, effect: Effect::Delete(None), name };
            calls.entry(key.clone()).or_default().push(call);
        }
    }
    for list in history.lists.iter().filter(|list| list.at == At::MostRecent && list.scope.is_everything()) {
        let Some(first) = list.pages.first() else { continue };
        for key in calls.keys().filter(|key| list.scope.contains(key)).cloned().collect::<Vec<_>>() {
            let mut items = list.pages.iter().flat_map(|page| &page.items);
            let seen = items.find(|seen| seen.key == key).map(|seen| seen.write);
            if seen.is_some() || list.ending == ListEnding::Complete {
                let name = format!("[{:.3?}, {:.3?}] list at {}", first.begin, first.end, first.revision);
                let (begin, end) = (first.begin, first.end);
                let call = Call { begin, end, optional: false, effect: Effect::Read(seen), name };
                calls.entry(key).or_default().push(call);
            }
        }
    }
    for calls in calls.values_mut() {
        calls.sort_by_key(|call| call.begin);
    }
    calls
}

/// Returns the earliest time at which a client observed the content of each write.
fn first_observations(history: &History) -> HashMap<WriteId, Time> {
    let mut first = HashMap::new();
    let mut observe = |write: WriteId, at: Time| {
        let earliest = first.entry(write).or_insert(at);
        *earliest = at.min(*earliest);
    };
    for operation in &history.operations {
        if let Outcome::Done(seen) = &operation.outcome {
            observe(seen.write, operation.end);
        }
    }
    for page in history.lists.iter().flat_map(|list| &list.pages) {
        page.items.iter().for_each(|seen| observe(seen.write, page.end));
    }
    for (at, notice) in history.streams.iter().flat_map(|stream| &stream.notices) {
        if let Notice::Added(seen) | Notice::Modified(seen) | Notice::Deleted(seen) = notice {
            observe(seen.write, *at);
        }
    }
    first
}

/// Returns the effect of an operation; None means the outcome says nothing about the object.
fn effect(operation: &Operation) -> Option<Effect> {
    let id = operation.id;
    let replaced_write =
        |expected: Option<crate::model::history::Expected>| expected.map(|expected| expected.write);
    match (operation.action, &operation.outcome) {
        (_, Outcome::Refused(..)) => None,
        (Action::Get(At::MostRecent), Outcome::Done(seen)) => Some(Effect::Read(Some(seen.write))),
        (Action::Get(At::MostRecent), Outcome::Missing) => Some(Effect::Read(None)),
        (Action::Get(_), _) => None,
        (_, Outcome::Missing) => Some(Effect::Read(None)),
        (_, Outcome::Exists) => Some(Effect::Present),
        (Action::Write(Some(expected)) | Action::Delete(Some(expected)), Outcome::Conflict) => {
            Some(Effect::Other(expected.write))
        }
        (_, Outcome::Conflict) => None,
        (Action::Create | Action::CreateByPut, _) => Some(Effect::Create(id)),
        (Action::Write(expected), _) => Some(Effect::Write(replaced_write(expected), id)),
        (Action::Put(expected), _) => Some(Effect::Put(expected.write, id)),
        (Action::Delete(expected), _) => Some(Effect::Delete(replaced_write(expected))),
    }
}

/// Step of the search: the chosen call, and the state of the search before this call.
///
/// `latest` is the latest request time, `first` the index of the first call without a place in the order.
struct Step {
    call: usize,
    state: CurrentWrite,
    latest: Time,
    first: usize,
}

/// Maximum number of visited states. A search that reaches the limit assumes that an order exists.
const MAX_VISITED_STATES: usize = 1 << 20;

/// Whether some order of the calls explains all responses.
///
/// `calls` are sorted by request time. The object does not exist at first.
pub fn is_linearizable(calls: &[Call]) -> bool {
    let required = calls.iter().filter(|call| !call.optional).count();
    let mut placed = PlacedCalls(vec![0; calls.len().div_ceil(64)]);
    let mut visited = HashSet::new();
    let mut path: Vec<Step> = Vec::new();
    let (mut state, mut latest, mut found) = (None, Time::ZERO, 0);
    // Index of the first call that has no place in the order yet, and index of the next call to try.
    let (mut first, mut next) = (0, 0);
    loop {
        if found == required || visited.len() >= MAX_VISITED_STATES {
            return true;
        }
        if let Some((call, after)) = next_candidate(calls, &placed, first, next, state, latest) {
            placed.set(call, true);
            let then = latest.max(calls[call].begin);
            let mut front = first;
            while front < calls.len() && (placed.has(front) || is_past(&calls[front], then)) {
                front += 1;
            }
            if visited.insert((placed.with_past_calls(calls, front, then), after)) {
                path.push(Step { call, state, latest, first });
                found += usize::from(!calls[call].optional);
                (state, latest, first, next) = (after, then, front, front);
            } else {
                placed.set(call, false);
                next = call + 1;
            }
            continue;
        }
        let Some(step) = path.pop() else { return false };
        placed.set(step.call, false);
        found -= usize::from(!calls[step.call].optional);
        (state, latest, first, next) = (step.state, step.latest, step.first, step.call + 1);
    }
}

/// Whether an optional call can no longer happen after a call that began at `latest`.
fn is_past(call: &Call, latest: Time) -> bool {
    call.optional && call.end < latest
}

/// Returns the first call from index `next` on that can come next in the order, and the state after it.
fn next_candidate(
    calls: &[Call],
    placed: &PlacedCalls,
    first: usize,
    next: usize,
    state: CurrentWrite,
    latest: Time,
) -> Option<(usize, CurrentWrite)> {
    // A call whose response came before the request of another call precedes that call in the order.
    let mut bound = Time::MAX;
    for (index, call) in calls.iter().enumerate().skip(first) {
        if call.begin > bound {
            return None;
        }
        if placed.has(index) {
            continue;
        }
        if index >= next
            && !is_past(call, latest)
            && let Some(after) = call.effect.apply(state)
            && no_open_call_precedes(calls, placed, first, index)
        {
            return Some((index, after));
        }
        if !call.optional {
            bound = bound.min(call.end);
        }
    }
    None
}

/// Whether each required call without a place in the order got its response after the request of the call at
/// `index`.
fn no_open_call_precedes(calls: &[Call], placed: &PlacedCalls, first: usize, index: usize) -> bool {
    let before = calls[first..index].iter().enumerate();
    before
        .filter(|(at, call)| !call.optional && !placed.has(first + at))
        .all(|(_, call)| call.end >= calls[index].begin)
}

/// The set of calls that have a place in the order, one bit per index.
struct PlacedCalls(Vec<u64>);

impl PlacedCalls {
    fn has(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// Returns the set together with all optional calls that can no longer happen.
    ///
    /// Two searches that have equal sets and equal states of the object continue in the same way.
    fn with_past_calls(&self, calls: &[Call], first: usize, latest: Time) -> Vec<u64> {
        let mut past_or_placed = PlacedCalls(self.0.clone());
        (0..first).for_each(|index| past_or_placed.set(index, true));
        for (index, call) in calls.iter().enumerate().skip(first).take_while(|(_, call)| call.begin <= latest)
        {
            if is_past(call, latest) {
                past_or_placed.set(index, true);
            }
        }
        past_or_placed.0
    }

    fn set(&mut self, index: usize, to: bool) {
        let bit = 1 << (index % 64);
        if to {
            self.0[index / 64] |= bit;
        } else {
            self.0[index / 64] &= !bit;
        }
    }
}

/// Time limit for the removal of unnecessary calls from a violation.
const MINIMIZE_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Reduces calls without a valid order to the shortest prefix without one, and removes unnecessary reads.
///
/// Returns at most the last 24 of the remaining calls.
fn minimize(calls: Vec<Call>) -> Vec<Call> {
    let mut by_end = calls.clone();
    by_end.sort_by_key(|call| call.end);
    // A prefix contains the calls that began before a time. Those without a response at that time are
    // optional.
    let prefix = |count: usize| -> Vec<Call> {
        let time = by_end[count - 1].end;
        let sent = calls.iter().filter(|call| call.begin <= time).cloned();
        let without_late_response = |mut call: Call| {
            call.optional |= call.end > time;
            call
        };
        let is_relevant = |call: &Call| !call.optional || call.effect.is_write();
        sent.map(without_late_response).filter(is_relevant).collect()
    };
    let (mut holds, mut fails) = (0, by_end.len());
    while fails - holds > 1 {
        let middle = holds.midpoint(fails);
        if is_linearizable(&prefix(middle)) {
            holds = middle;
        } else {
            fails = middle;
        }
    }
    let mut least = prefix(fails);
    // Remove each read whose removal does not make an order possible.
    let mut index = 0;
    let begun = Instant::now();
    while index < least.len() && begun.elapsed() < MINIMIZE_TIME_LIMIT {
        let mut without = least.clone();
        let removed = without.remove(index);
        if !removed.effect.is_write() && !is_linearizable(&without) {
            least = without;
        } else {
            index += 1;
        }
    }
    let first_listed = least.len().saturating_sub(24);
    least.split_off(first_listed)
}
