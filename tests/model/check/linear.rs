//! Linearizability of single objects, from values and times alone: is there an order of all operations, each between its
//! sending and its answer, in which every answer is right? No revision is looked at, so that what the revisions say is
//! checked by something that does not believe them.
//!
//! # Contract
//!
//! An operation without an answer may have happened between its sending and the death of its server, or never. A list of
//! the newest state is a read of each object of its scope.
//!
//! # Reference
//!
//! J. Wing and C. Gong, Testing and Verifying Concurrent Objects (1993); G. Lowe, Testing for Linearizability (2017).

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use super::{Check, Violation};
use crate::chronicle::Chronicle;
use crate::collections::Key;
use crate::history::{Action, At, ListEnding, Operation, Outcome, Time, WriteId};

/// What an object is: who wrote it, or that there is none.
type State = Option<WriteId>;

/// An operation as the search sees it.
#[derive(Clone, Debug)]
pub struct Call {
    /// When it was sent.
    pub begin: Time,
    /// When it was answered, or after which it cannot happen any more.
    pub end: Time,
    /// Whether it may not have happened at all.
    pub optional: bool,
    /// What it does.
    pub effect: Effect,
    /// Who it is, for the report.
    pub name: String,
}

/// What an operation demands of the state, and what it makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It saw this.
    Read(State),
    /// It saw that there is something.
    Present,
    /// It saw something else than this.
    Other(WriteId),
    /// It made something of nothing.
    Create(WriteId),
    /// It replaced this, or whatever there is.
    Write(Option<WriteId>, WriteId),
    /// It replaced this, or made something of nothing.
    Put(WriteId, WriteId),
    /// It removed this, or whatever there is.
    Delete(Option<WriteId>),
}

impl Effect {
    /// The state afterwards; None when this cannot happen now.
    fn apply(self, state: State) -> Option<State> {
        let expected = |expected: Option<WriteId>| match expected {
            None => state.is_some(),
            Some(_) => state == expected,
        };
        match self {
            Effect::Read(seen) => (state == seen).then_some(state),
            Effect::Present => state.is_some().then_some(state),
            Effect::Other(than) => (state.is_some() && state != Some(than)).then_some(state),
            Effect::Create(write) => state.is_none().then_some(Some(write)),
            Effect::Write(over, write) => expected(over).then_some(Some(write)),
            Effect::Put(over, write) => (state.is_none() || state == Some(over)).then_some(Some(write)),
            Effect::Delete(which) => expected(which).then_some(None),
        }
    }

    fn changes(self) -> bool {
        matches!(self, Effect::Create(_) | Effect::Write(..) | Effect::Put(..) | Effect::Delete(_))
    }
}

/// Searches every object's operations.
pub fn check(chronicle: &Chronicle, violations: &mut Vec<Violation>) {
    for (key, calls) in calls(chronicle) {
        if !is_linearizable(&calls) {
            let least = minimal(calls);
            violations.push(Violation {
                check: Check::Linearizable,
                what: format!("no order of these operations on {key} explains their answers"),
                story: least.iter().map(|call| format!("{} {:?}", call.name, call.effect)).collect(),
            });
        }
    }
}

/// What was done to each object, by the time of sending.
fn calls(chronicle: &Chronicle) -> BTreeMap<Key, Vec<Call>> {
    let history = chronicle.history;
    let mut calls: BTreeMap<Key, Vec<Call>> = BTreeMap::new();
    for operation in &history.operations {
        if let Some(effect) = effect(operation) {
            calls.entry(operation.key.clone()).or_default().push(Call {
                begin: operation.begin,
                end: operation.end,
                optional: operation.outcome == Outcome::Unknown,
                effect,
                name: super::story::of_operation(operation),
            });
        }
    }
    let keys: Vec<Key> = calls.keys().chain(chronicle.keys()).cloned().collect();
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

/// None: nothing follows from it.
fn effect(operation: &Operation) -> Option<Effect> {
    let id = operation.id;
    let over = |expected: Option<crate::history::Expected>| expected.map(|expected| expected.write);
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
        (Action::Write(expected), _) => Some(Effect::Write(over(expected), id)),
        (Action::Put(expected), _) => Some(Effect::Put(expected.write, id)),
        (Action::Delete(expected), _) => Some(Effect::Delete(over(expected))),
    }
}

/// A place in the search: what was tried, and what was known before it.
struct Step {
    call: usize,
    state: State,
    latest: Time,
    first: usize,
}

/// States that a search looks at before it gives up and holds that there is an order.
const PATIENCE: usize = 1 << 20;

/// Whether calls, by the time of sending, have an order that explains them. In the beginning there is nothing.
pub fn is_linearizable(calls: &[Call]) -> bool {
    let required = calls.iter().filter(|call| !call.optional).count();
    let mut done = Done(vec![0; calls.len().div_ceil(64)]);
    let mut visited = HashSet::new();
    let mut path: Vec<Step> = Vec::new();
    let (mut state, mut latest, mut found) = (None, Time::ZERO, 0);
    // The first call that is still to come, and the next to be tried.
    let (mut first, mut next) = (0, 0);
    loop {
        if found == required || visited.len() >= PATIENCE {
            return true;
        }
        if let Some((call, after)) = candidate(calls, &done, first, next, state, latest) {
            done.set(call, true);
            let then = latest.max(calls[call].begin);
            let mut front = first;
            while front < calls.len() && (done.has(front) || is_past(&calls[front], then)) {
                front += 1;
            }
            if visited.insert((done.settled(calls, front, then), after)) {
                path.push(Step { call, state, latest, first });
                found += usize::from(!calls[call].optional);
                (state, latest, first, next) = (after, then, front, front);
            } else {
                done.set(call, false);
                next = call + 1;
            }
            continue;
        }
        let Some(step) = path.pop() else { return false };
        done.set(step.call, false);
        found -= usize::from(!calls[step.call].optional);
        (state, latest, first, next) = (step.state, step.latest, step.first, step.call + 1);
    }
}

/// Whether a call that may not have happened cannot happen any more.
fn is_past(call: &Call, latest: Time) -> bool {
    call.optional && call.end < latest
}

/// The next call from `next` on that can happen now, and the state after it.
fn candidate(
    calls: &[Call],
    done: &Done,
    first: usize,
    next: usize,
    state: State,
    latest: Time,
) -> Option<(usize, State)> {
    // No call that was sent after another's answer happens before it.
    let mut bound = Time::MAX;
    for (index, call) in calls.iter().enumerate().skip(first) {
        if call.begin > bound {
            return None;
        }
        if done.has(index) {
            continue;
        }
        if index >= next
            && !is_past(call, latest)
            && let Some(after) = call.effect.apply(state)
            && earlier_allow(calls, done, first, index)
        {
            return Some((index, after));
        }
        if !call.optional {
            bound = bound.min(call.end);
        }
    }
    None
}

/// Whether no call that is to happen first was answered before this one was sent.
fn earlier_allow(calls: &[Call], done: &Done, first: usize, index: usize) -> bool {
    let before = calls[first..index].iter().enumerate();
    before
        .filter(|(at, call)| !call.optional && !done.has(first + at))
        .all(|(_, call)| call.end >= calls[index].begin)
}

/// A set of calls.
struct Done(Vec<u64>);

impl Done {
    fn has(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 == 1
    }

    /// The set with all that cannot happen any more: what is left to do is the same for all sets that are then equal.
    fn settled(&self, calls: &[Call], first: usize, latest: Time) -> Vec<u64> {
        let mut all = Done(self.0.clone());
        (0..first).for_each(|index| all.set(index, true));
        for (index, call) in calls.iter().enumerate().skip(first).take_while(|(_, call)| call.begin <= latest)
        {
            if is_past(call, latest) {
                all.set(index, true);
            }
        }
        all.0
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

/// How long a history is made smaller.
const MINIMIZING: Duration = Duration::from_secs(5);

/// Some of the calls that still have no order: the shortest beginning, without the reads that are not needed.
fn minimal(calls: Vec<Call>) -> Vec<Call> {
    let mut by_end = calls.clone();
    by_end.sort_by_key(|call| call.end);
    // A beginning is what was sent before a time; what was not answered by then may not have happened.
    let beginning = |count: usize| -> Vec<Call> {
        let time = by_end[count - 1].end;
        let sent = calls.iter().filter(|call| call.begin <= time).cloned();
        let unanswered = |mut call: Call| {
            call.optional |= call.end > time;
            call
        };
        let kept = |call: &Call| !call.optional || call.effect.changes();
        sent.map(unanswered).filter(kept).collect()
    };
    let (mut holds, mut fails) = (0, by_end.len());
    while fails - holds > 1 {
        let middle = holds.midpoint(fails);
        if is_linearizable(&beginning(middle)) {
            holds = middle;
        } else {
            fails = middle;
        }
    }
    let mut least = beginning(fails);
    // A state that somebody read in peace can stand for all before it; what only looked can go.
    let mut index = 0;
    let begun = Instant::now();
    while index < least.len() && begun.elapsed() < MINIMIZING {
        let mut without = least.clone();
        let gone = without.remove(index);
        if !gone.effect.changes() && !is_linearizable(&without) {
            least = without;
        } else {
            index += 1;
        }
    }
    let shown = least.len().saturating_sub(24);
    least.split_off(shown)
}
