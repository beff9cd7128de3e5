//! Conformance of watches: ordered, unique, reliable, resumable.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{TestStore, check_history, row};
use crate::{Change, Error, Op, Revision, Watch};

/// Reads from a watch until `count` changes have arrived.
async fn take(watch: &mut Box<dyn Watch>, count: usize) -> Vec<Change> {
    let mut changes = Vec::new();
    while changes.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(60), watch.next()).await.expect("changes arrive");
        let next = next.unwrap();
        assert!(!next.is_empty(), "every result has at least one change");
        changes.extend(next);
    }
    assert_eq!(changes.len(), count, "{changes:?}");
    changes
}

fn revisions(changes: &[Change]) -> Vec<u64> {
    changes.iter().map(|change| change.revision.0).collect()
}

/// A watch from any revision delivers the past changes first, and then new changes.
pub async fn watch_delivers_history_then_live_changes_without_gap(subject: TestStore) {
    for number in 0..5 {
        subject.create(&format!("{number}"), "x").await;
    }
    let mut watches = Vec::new();
    for after in 0..=5 {
        watches.push((after, subject.store.watch("", Revision(after)).await.unwrap()));
    }
    for number in 5..10 {
        subject.create(&format!("{number}"), "x").await;
    }
    for (after, mut watch) in watches {
        let changes = take(&mut watch, 10 - after as usize).await;
        assert_eq!(revisions(&changes), Vec::from_iter(after + 1..=10));
    }
}

/// Changes of other keys are skipped.
pub async fn watch_delivers_only_its_prefix(subject: TestStore) {
    let mut watch = subject.store.watch("a/", Revision(0)).await.unwrap();
    for key in ["a", "a/1", "a-/1", "b/1", "a/2", "a0"] {
        subject.create(key, "x").await;
    }
    let changes = take(&mut watch, 2).await;
    assert_eq!(revisions(&changes), [2, 5]);
    let last = subject.create("a/3", "x").await;
    assert_eq!(take(&mut watch, 1).await[0].revision, last);
}

/// Consecutive ranges together are the changes of a prefix between any two revisions.
pub async fn history_ranges_are_complete(subject: TestStore) {
    for number in 0..3_000 {
        subject.create(&format!("{}/{number}", if number % 7 == 0 { "a" } else { "b" }), "x").await;
    }
    for (prefix, after, upto) in
        [("", 0, 3_000), ("a/", 0, 3_000), ("b/", 5, 2_999), ("c/", 0, 3_000), ("a/", 9, 9)]
    {
        let (mut position, mut delivered) = (Revision(after), Vec::new());
        while position < Revision(upto) {
            let bytes = [0, 1_000, 1 << 20][delivered.len() % 3];
            let range = subject.store.history(prefix, position, Revision(upto), bytes).await.unwrap();
            let all_but_last = range.changes.iter().rev().skip(1);
            assert!(
                all_but_last.map(Change::bytes).sum::<usize>() <= bytes,
                "a range ends with the change that reaches the byte limit"
            );
            assert!(
                range.through > position && range.through <= Revision(upto),
                "every range makes progress"
            );
            assert!(range.changes.iter().all(|c| c.revision > position && c.revision <= range.through));
            delivered.extend(range.changes.into_iter().map(|change| change.revision));
            position = range.through;
        }
        let observed = subject.observer.changes().into_iter().filter(|change| change.key.starts_with(prefix));
        let expected = observed.map(|change| change.revision).filter(|r| (after + 1..=upto).contains(&r.0));
        assert_eq!(delivered, expected.collect::<Vec<_>>(), "`{prefix}` from {after} to {upto}");
    }
    assert_eq!(subject.store.history("", Revision(9), Revision(9), 1 << 20).await.unwrap().changes, []);
    subject.store.compact(Revision(10)).await.unwrap();
    let error = subject.store.history("", Revision(9), Revision(20), 1 << 20).await.unwrap_err();
    assert!(matches!(error, Error::Compacted { .. }), "{error}");
    let error = subject.store.history("", Revision(20), Revision(3_001), 1 << 20).await.unwrap_err();
    assert!(matches!(error, Error::Future { .. }), "{error}");
}

/// Each change carries the previous row and the new bytes, for creates, updates, deletes and recreates, both
/// live and from history.
pub async fn watch_changes_carry_old_and_new_values(subject: TestStore) {
    let mut live = subject.store.watch("", Revision(0)).await.unwrap();
    let one = subject.create("a", "one").await;
    let two = subject.update("a", "two", one).await;
    let deleted = subject.delete("a", two).await;
    let back = subject.create("a", "three").await;
    let change = |old, new: Option<&'static str>, revision| Change {
        key: "a".into(),
        old,
        new: new.map(|value| Bytes::from_static(value.as_bytes())),
        revision,
    };
    let expected = [
        change(None, Some("one"), one),
        change(Some(row("a", "one", one)), Some("two"), two),
        change(Some(row("a", "two", two)), None, deleted),
        change(None, Some("three"), back),
    ];
    let mut past = subject.store.watch("", Revision(0)).await.unwrap();
    assert_eq!(take(&mut live, 4).await, expected);
    assert_eq!(take(&mut past, 4).await, expected);
    assert_eq!(subject.observer.changes(), expected);
}

/// A watch from compacted history is rejected; a watch from the compacted revision is complete.
pub async fn watch_from_compacted_revision_returns_compacted(subject: TestStore) {
    for number in 0..5 {
        subject.create(&format!("{number}"), "x").await;
    }
    subject.store.compact(Revision(3)).await.unwrap();
    for after in 0..3 {
        let requested = Revision(after);
        let refused = subject.store.watch("", requested).await.err();
        assert!(
            matches!(refused, Some(Error::Compacted { requested: a, .. }) if a == requested),
            "{refused:?}"
        );
    }
    let mut watch = subject.store.watch("", Revision(3)).await.unwrap();
    assert_eq!(revisions(&take(&mut watch, 2).await), [4, 5]);
}

/// A watch from a future revision is rejected.
pub async fn watch_from_future_revision_returns_future(subject: TestStore) {
    subject.create("a", "x").await;
    let refused = subject.store.watch("", Revision(2)).await.err();
    assert!(
        matches!(refused, Some(Error::Future { requested: Revision(2), current: Revision(1) })),
        "{refused:?}"
    );
}

/// The backlog of the watch exceeds the size of every buffer of the engine.
pub async fn slow_watch_loses_no_change(subject: TestStore) {
    let mut watch = subject.store.watch("", Revision(0)).await.unwrap();
    let mut newest = HashMap::new();
    for number in 0..200_u32 {
        let key = format!("key/{}", number % 5);
        let value = Bytes::from(vec![number as u8; 64 << 10]);
        let op = match newest.get(&key) {
            None => Op::Create(value),
            Some(at) => Op::Update(value, *at),
        };
        let revision = subject.store.commit(&key, op).await.unwrap().revision;
        newest.insert(key, revision);
    }
    let changes = take(&mut watch, 200).await;
    check_history(&changes);
    assert_eq!(changes, subject.observer.changes());
}

/// A watch that falls behind a compaction returns `Compacted`, and returns it again on the next call.
pub async fn watch_behind_compaction_returns_compacted(subject: TestStore) {
    let mut watch = subject.store.watch("", Revision(0)).await.unwrap();
    let mut at = subject.create("a", Bytes::from(vec![0; 1 << 20])).await;
    for number in 1..8 {
        at = subject.update("a", Bytes::from(vec![number; 1 << 20]), at).await;
    }
    subject.store.compact(Revision(7)).await.unwrap();
    for _ in 0..2 {
        let error = watch.next().await.unwrap_err();
        assert!(
            matches!(error, Error::Compacted { requested: Revision(0), compacted: Revision(7) }),
            "{error:?}"
        );
    }
}

/// A dropped `next` future loses no change.
pub async fn cancelled_watch_next_loses_no_change(subject: TestStore) {
    let mut watch = subject.store.watch("", Revision(0)).await.unwrap();
    let store = subject.store.clone();
    let writer = tokio::spawn(async move {
        for number in 0..300 {
            store.commit(&format!("{number}"), Op::Create(Bytes::from_static(b"x"))).await.unwrap();
        }
    });
    let mut changes = Vec::new();
    let mut turn = 0_u64;
    while changes.len() < 300 {
        turn += 1;
        let timeout = Duration::from_micros(turn % 200);
        if let Ok(next) = tokio::time::timeout(timeout, watch.next()).await {
            changes.extend(next.unwrap());
        }
    }
    writer.await.unwrap();
    assert_eq!(changes, subject.observer.changes());
}

/// Closing the store ends waiting watches.
pub async fn closing_store_ends_watches(subject: TestStore) {
    let revision = subject.create("a", "x").await;
    let mut watch = subject.store.watch("", revision).await.unwrap();
    let waiting = tokio::spawn(async move { watch.next().await });
    tokio::task::yield_now().await;
    subject.store.close().await;
    assert!(matches!(waiting.await.unwrap(), Err(Error::Unavailable(_))));
}

/// 8 writers and 8 watches that end and resume: every watch delivers the changes that the observer saw.
pub async fn concurrent_writers_and_watchers_agree(subject: TestStore) {
    const WRITERS: usize = 8;
    const WRITES: usize = 60;
    let mut watchers = tokio::task::JoinSet::new();
    for watcher in 0..8_u64 {
        let store = subject.store.clone();
        watchers.spawn(async move {
            let mut changes: Vec<Change> = Vec::new();
            while changes.len() < WRITERS * WRITES {
                // Each round opens a new watch after the last received change.
                let after = changes.last().map_or(Revision(0), |change| change.revision);
                let mut watch = store.watch("", after).await.unwrap();
                for _ in 0..=watcher {
                    if changes.len() < WRITERS * WRITES {
                        changes.extend(watch.next().await.unwrap());
                    }
                }
                tokio::task::yield_now().await;
            }
            changes
        });
    }
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = subject.store.clone();
        writers.spawn(async move {
            let mut newest = None;
            for round in 0..WRITES {
                let value = Bytes::from(vec![b'x'; 1 + (round * 997) % 8192]);
                let op = match newest {
                    None => Op::Create(value),
                    Some(at) if round % 5 == 4 => Op::Delete(at),
                    Some(at) => Op::Update(value, at),
                };
                let deleted = matches!(op, Op::Delete(_));
                let revision = store.commit(&format!("writer/{writer}"), op).await.unwrap().revision;
                newest = (!deleted).then_some(revision);
            }
        });
    }
    writers.join_all().await;
    let expected = subject.observer.changes();
    check_history(&expected);
    for changes in watchers.join_all().await {
        assert_eq!(changes, expected);
    }
}

/// A watch never delivers a change before the observer has seen it.
pub async fn watch_never_delivers_unobserved_change(subject: TestStore) {
    let mut watch = subject.store.watch("", Revision(0)).await.unwrap();
    let observer = Arc::clone(&subject.observer);
    let watcher = tokio::spawn(async move {
        let mut count = 0;
        while count < 400 {
            let changes = watch.next().await.unwrap();
            count += changes.len();
            let observed = observer.changes();
            assert!(observed.len() >= count, "{count} delivered, {} observed", observed.len());
        }
    });
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let store = subject.store.clone();
        writers.spawn(async move {
            for round in 0..50 {
                let key = format!("{writer}/{round}");
                store.commit(&key, Op::Create(Bytes::from_static(b"x"))).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    watcher.await.unwrap();
}
