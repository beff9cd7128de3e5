//! Tests of the checks on hand-made histories: a valid one passes, and each check finds its own violation.

use std::sync::Arc;
use std::time::Duration;

use super::linear::{Call, Effect, is_linearizable};
use super::{Check, check_all};
use crate::model::collections::{Key, ObservedObject, Scope};
use crate::model::history::{
    Action, At, Expected, History, List, ListEnding, ListPage, Notice, Operation, Outcome, Start, Stream,
    StreamEnding, Time,
};

/// Revision at which the collections are empty.
const BASE: u64 = 10;

fn at(second: u64) -> Time {
    Duration::from_secs(second)
}

fn seen(name: &str, revision: u64, write: u64, group: usize) -> ObservedObject {
    ObservedObject { key: Key::new(0, name), revision, write, group, uid: Arc::from(name) }
}

fn operation(id: u64, second: u64, name: &str, action: Action, group: usize, outcome: Outcome) -> Operation {
    let (begin, end) = (at(second), at(second + 1));
    Operation { id, begin, end, key: Key::new(0, name), action, group, outcome }
}

fn stream(id: u64, start: Start, groups: Option<Vec<usize>>, notices: Vec<Notice>) -> Stream {
    Stream {
        id,
        scope: Scope { groups, ..Scope::whole(0) },
        start,
        resumes: None,
        bookmarks: true,
        begin: at(20),
        notices: notices.into_iter().map(|notice| (at(21), notice)).collect(),
        ending: StreamEnding::Closed,
    }
}

fn list(second: u64, asked: At, revision: u64, items: Vec<ObservedObject>) -> List {
    let (begin, end) = (at(second), at(second + 1));
    let page = ListPage { begin, end, revision, items, foreign: false, remaining: None };
    List { scope: Scope::whole(0), at: asked, limit: 0, pages: vec![page], ending: ListEnding::Complete }
}

fn bookmark(revision: u64, initial: bool) -> Notice {
    Notice::Bookmark { revision, initial }
}

/// Two objects: one is created, updated (which removes it from group 0) and deleted, the other only created.
fn valid_history() -> History {
    let first = seen("m-0", 11, 1, 0);
    let changed = seen("m-0", 12, 2, 1);
    let second = seen("m-1", 13, 3, 0);
    let gone = ObservedObject { revision: 14, ..changed.clone() };
    let whole = vec![
        Notice::Added(first.clone()),
        Notice::Modified(changed.clone()),
        Notice::Added(second.clone()),
        Notice::Deleted(gone),
        bookmark(14, false),
    ];
    let selected = vec![
        Notice::Added(first.clone()),
        Notice::Deleted(ObservedObject { revision: 12, ..first.clone() }),
        Notice::Added(second.clone()),
    ];
    let expected = Expected { revision: 11, write: 1 };
    let write = Action::Write(Some(expected));
    History {
        operations: vec![
            operation(1, 1, "m-0", Action::Create, 0, Outcome::Done(first)),
            operation(2, 3, "m-0", write, 1, Outcome::Done(changed.clone())),
            operation(3, 5, "m-1", Action::Create, 0, Outcome::Done(second.clone())),
            operation(4, 7, "m-0", Action::Delete(None), 0, Outcome::Deleted),
            operation(5, 30, "m-1", Action::Get(At::MostRecent), 0, Outcome::Done(second.clone())),
            operation(6, 30, "m-0", Action::Get(At::MostRecent), 0, Outcome::Missing),
        ],
        streams: vec![
            stream(100, Start::After(BASE), None, whole.clone()),
            stream(101, Start::After(BASE), None, whole),
            stream(102, Start::After(BASE), Some(vec![0]), selected),
            stream(103, Start::Streamed, None, vec![Notice::Added(second.clone()), bookmark(14, true)]),
            stream(104, Start::State(At::MostRecent), None, vec![Notice::Added(second.clone())]),
        ],
        lists: vec![
            list(40, At::MostRecent, 14, vec![second.clone()]),
            list(42, At::Exact(12), 12, vec![changed.clone()]),
            list(44, At::NotOlderThan(12), 13, vec![changed, second]),
        ],
        fences: vec![(0, 14)],
        ..History::default()
    }
}

fn violated_checks(history: &History) -> Vec<Check> {
    let base = [BASE; crate::model::collections::COLLECTIONS.len()];
    let violations = check_all(history, &base, Duration::from_secs(60)).err().unwrap_or_default();
    violations.into_iter().map(|violation| violation.check).collect()
}

/// Returns the notices of a stream of the valid history.
fn notices(history: &mut History, stream: usize) -> &mut Vec<(Time, Notice)> {
    &mut history.streams[stream].notices
}

#[test]
fn valid_history_passes_all_checks() {
    assert_eq!(violated_checks(&valid_history()), []);
}

#[test]
fn each_check_detects_its_violation() {
    type Corruption = fn(&mut History);
    let table: [(&str, Check, Corruption); 29] = [
        ("an unexpected response", Check::Answers, |h| h.direct_violations.push("500".to_owned())),
        ("two contents of a revision", Check::OneHistory, |h| {
            notices(h, 1)[1].1 = Notice::Modified(seen("m-0", 12, 3, 0));
        }),
        ("a reused revision", Check::Revisions, |h| {
            let done = Outcome::Done(seen("m-2", 12, 7, 0));
            h.operations.push(operation(7, 50, "m-2", Action::Create, 0, done));
        }),
        ("a revision below an observed one", Check::Revisions, |h| {
            notices(h, 0).push((at(22), bookmark(90, false)));
            let done = Outcome::Done(seen("m-2", 20, 7, 0));
            h.operations.push(operation(7, 50, "m-2", Action::Create, 0, done));
        }),
        ("a rejected write that happened", Check::Refused, |h| h.operations[1].outcome = Outcome::Conflict),
        ("a change without a writer", Check::Refused, |h| drop(h.operations.remove(2))),
        ("a mixture of two writes", Check::Atomic, |h| h.operations[2].group = 2),
        ("a condition that did not hold", Check::Linearizable, |h| {
            h.operations[1].action = Action::Write(Some(Expected { revision: 9, write: 9 }));
        }),
        ("a stale read", Check::Linearizable, |h| {
            h.operations[5].outcome = Outcome::Done(seen("m-0", 12, 2, 1));
        }),
        ("an object that is not found", Check::Linearizable, |h| h.operations[4].outcome = Outcome::Missing),
        ("a delete without an event", Check::Linearizable, |h| {
            h.operations.push(operation(8, 50, "m-1", Action::Delete(None), 0, Outcome::Deleted));
        }),
        ("a list that lacks an object", Check::Snapshot, |h| h.lists[2].pages[0].items.truncate(1)),
        ("a list of the present under an old version", Check::Snapshot, |h| {
            h.lists[1].pages[0].items = vec![seen("m-1", 13, 3, 0)];
        }),
        ("a page of another version", Check::Snapshot, |h| {
            let mut page = h.lists[0].pages[0].clone();
            page.revision = 13;
            h.lists[0].pages.push(page);
        }),
        ("an old list for the newest", Check::Version, |h| {
            h.lists[0] = list(40, At::MostRecent, 13, h.lists[2].pages[0].items.clone());
        }),
        ("another version than asked for", Check::Version, |h| h.lists[1].at = At::Exact(11)),
        ("410 within the retention time", Check::Expiry, |h| {
            h.lists[1].ending = ListEnding::Expired(at(45), 14);
        }),
        ("events in another order", Check::Ordered, |h| notices(h, 1).swap(2, 3)),
        ("an event before the beginning", Check::Ordered, |h| h.streams[1].start = Start::After(12)),
        ("an event that comes twice", Check::Unique, |h| {
            let again = notices(h, 1)[1].clone();
            notices(h, 1).insert(2, again);
        }),
        ("an event of another type", Check::Atomic, |h| {
            notices(h, 1)[2].1 = Notice::Modified(seen("m-1", 13, 3, 0));
        }),
        ("a delete that shows an older object", Check::Atomic, |h| {
            notices(h, 1)[3].1 = Notice::Deleted(seen("m-0", 14, 1, 0));
        }),
        ("a missing event", Check::Reliable, |h| drop(notices(h, 1).remove(1))),
        ("a missing event at the start", Check::Resumable, |h| drop(notices(h, 1).remove(0))),
        ("a bookmark before an event", Check::Bookmarkable, |h| notices(h, 1).swap(3, 4)),
        ("no DELETED for a deselected object", Check::Selected, |h| drop(notices(h, 2).remove(1))),
        ("a collection that no watch covers to the end", Check::Covered, |h| h.fences.push((0, 15))),
        ("watches that restart after a gap", Check::Covered, |h| {
            h.streams.retain(|stream| stream.id >= 102);
            h.streams.push(stream(105, Start::After(12), None, vec![bookmark(14, false)]));
        }),
        ("initial events that lack an object", Check::Bookmarkable, |h| drop(notices(h, 3).remove(0))),
    ];
    for (description, check, spoil) in table {
        let mut history = valid_history();
        spoil(&mut history);
        let found = violated_checks(&history);
        assert!(found.contains(&check), "{description}: found {found:?}");
    }
}

#[test]
fn responses_after_power_cut_are_not_in_history() {
    let mut history = History::default();
    history.append(valid_history(), Some(at(20)), at(60));
    let kept: Vec<u64> = history.operations.iter().map(|operation| operation.id).collect();
    assert_eq!(kept, [1, 2, 3, 4], "reads after the cut are dropped");
    assert!(history.lists.iter().all(|list| list.pages.is_empty()));
    assert!(history.streams.iter().all(|stream| stream.notices.is_empty()));
    let mut history = History::default();
    history.append(valid_history(), Some(at(4)), at(60));
    let outcomes: Vec<bool> =
        history.operations.iter().map(|operation| operation.outcome == Outcome::Unknown).collect();
    assert_eq!(outcomes, [false, false, true, true], "writes without a response before the cut are open");
    assert!(history.operations[2..].iter().all(|operation| operation.end == at(60)));
}

#[test]
fn linearizability_is_decided_from_values_and_times() {
    let call = |begin, end, effect| {
        let (begin, end) = (at(begin), at(end));
        Call { begin, end, optional: false, effect, name: String::new() }
    };
    let optional_call = |begin, end, effect| Call { optional: true, ..call(begin, end, effect) };
    let create = call(0, 1, Effect::Create(1));
    let read = |begin, end, seen| call(begin, end, Effect::Read(seen));
    let table = [
        ("nothing happened", vec![], true),
        ("a read of nothing", vec![read(0, 1, None)], true),
        ("a read of an unwritten value", vec![read(0, 1, Some(1))], false),
        ("a read after the write", vec![create.clone(), read(2, 3, Some(1))], true),
        ("a read that misses the write", vec![create.clone(), read(2, 3, None)], false),
        ("a read concurrent with the write", vec![call(0, 9, Effect::Create(1)), read(2, 3, None)], true),
        (
            "two reads that go back",
            vec![call(0, 9, Effect::Create(1)), read(1, 2, Some(1)), read(3, 4, None)],
            false,
        ),
        (
            "two conditions on one state",
            vec![
                create.clone(),
                call(2, 9, Effect::Write(Some(1), 2)),
                call(2, 9, Effect::Write(Some(1), 3)),
            ],
            false,
        ),
        (
            "a write over a write",
            vec![
                create.clone(),
                call(2, 9, Effect::Write(None, 2)),
                call(2, 9, Effect::Write(Some(2), 3)),
                read(10, 11, Some(3)),
            ],
            true,
        ),
        (
            "a delete twice",
            vec![create.clone(), call(2, 9, Effect::Delete(None)), call(2, 9, Effect::Delete(None))],
            false,
        ),
        (
            "a delete concurrent with a create",
            vec![
                create.clone(),
                call(2, 9, Effect::Delete(Some(1))),
                call(3, 9, Effect::Create(2)),
                read(10, 11, Some(2)),
            ],
            true,
        ),
        (
            "a write without a response that happened",
            vec![create.clone(), optional_call(2, 5, Effect::Write(None, 2)), read(6, 7, Some(2))],
            true,
        ),
        (
            "a write without a response that did not happen",
            vec![create.clone(), optional_call(2, 5, Effect::Write(None, 2)), read(6, 7, Some(1))],
            true,
        ),
        (
            "a write that happens after its server died",
            vec![
                create.clone(),
                optional_call(2, 5, Effect::Write(None, 2)),
                read(6, 7, Some(1)),
                read(8, 9, Some(2)),
            ],
            false,
        ),
        ("a rejection without a reason", vec![create.clone(), call(2, 3, Effect::Other(1))], false),
        ("an object that did not exist", vec![call(2, 3, Effect::Present)], false),
        (
            "a put of either kind",
            vec![call(0, 1, Effect::Put(7, 1)), call(2, 3, Effect::Put(1, 2)), read(4, 5, Some(2))],
            true,
        ),
    ];
    for (description, calls, expected) in table {
        assert_eq!(is_linearizable(&calls), expected, "{description}");
    }
}
