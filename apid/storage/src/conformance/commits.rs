//! Conformance of writes: preconditions, results, and concurrent writers.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;

use super::{TestStore, check_history, row};
use crate::{CommitOutcome, Error, Held, MAX_KEY, MAX_VALUE, Op, Revision};

/// A created row is readable, at the returned revision.
pub async fn created_key_is_readable(subject: TestStore) {
    assert_eq!(subject.store.revision(), Revision(0));
    assert_eq!(subject.get("a").await, None);
    let revision = subject.create("a", "one").await;
    assert_eq!(revision, Revision(1));
    assert_eq!(subject.store.revision(), Revision(1));
    assert_eq!(subject.get("a").await, Some(row("a", "one", revision)));
}

/// A create of an existing key returns the existing row and changes nothing.
pub async fn create_of_existing_key_returns_exists_with_row(subject: TestStore) {
    let revision = subject.create("a", "one").await;
    match subject.store.commit("a", Op::Create(Bytes::from_static(b"two"))).await {
        Err(Error::Exists(found)) => assert_eq!(*found, row("a", "one", revision)),
        other => panic!("{other:?}"),
    }
    assert_eq!(subject.get("a").await, Some(row("a", "one", revision)));
}

/// An update is a compare-and-swap on the revision.
pub async fn update_with_wrong_revision_returns_conflict(subject: TestStore) {
    let update = |at| subject.store.commit("a", Op::Update(Bytes::from_static(b"two"), at));
    assert!(matches!(update(Revision(0)).await, Err(Error::NotFound(key)) if &*key == "a"));
    let created = subject.create("a", "one").await;
    for wrong in [Revision(0), Revision(created.0 + 1)] {
        match update(wrong).await {
            Err(Error::Conflict(found)) => assert_eq!(*found, row("a", "one", created)),
            other => panic!("{other:?}"),
        }
    }
    let CommitOutcome { revision } = update(created).await.unwrap();
    assert_eq!(subject.get("a").await, Some(row("a", "two", revision)));
    assert!(matches!(update(created).await, Err(Error::Conflict(found)) if found.revision == revision));
}

/// A delete is a compare-and-delete on the revision.
pub async fn delete_with_wrong_revision_returns_conflict(subject: TestStore) {
    let delete = |at| subject.store.commit("a", Op::Delete(at));
    assert!(matches!(delete(Revision(0)).await, Err(Error::NotFound(key)) if &*key == "a"));
    let created = subject.create("a", "one").await;
    let updated = subject.update("a", "two", created).await;
    match delete(created).await {
        Err(Error::Conflict(found)) => assert_eq!(*found, row("a", "two", updated)),
        other => panic!("{other:?}"),
    }
    let deleted = delete(updated).await.unwrap().revision;
    assert!(deleted > updated);
    assert_eq!(subject.get("a").await, None);
    assert!(matches!(delete(updated).await, Err(Error::NotFound(_))));
}

/// A create after a delete succeeds, and the new row contains nothing of the deleted row.
pub async fn deleted_key_can_be_recreated(subject: TestStore) {
    let first = subject.create("a", "one").await;
    let deleted = subject.delete("a", first).await;
    let second = subject.create("a", "two").await;
    assert!(first < deleted && deleted < second);
    assert_eq!(subject.get("a").await, Some(row("a", "two", second)));
    let changes = subject.observer.changes();
    assert_eq!(changes[2].old, None, "a create has no row before it");
}

/// One counter serves all keys. A rejected commit takes no revision and is not observed.
pub async fn revisions_are_consecutive_and_rejected_commits_take_none(subject: TestStore) {
    for expected in 1..=20 {
        let key = format!("key/{expected}");
        assert_eq!(subject.create(&key, "x").await, Revision(expected));
        assert!(subject.store.commit(&key, Op::Create(Bytes::new())).await.is_err());
        assert!(subject.store.commit(&key, Op::Delete(Revision(999))).await.is_err());
        assert!(subject.store.commit("nobody", Op::Delete(Revision(1))).await.is_err());
        assert_eq!(subject.store.revision(), Revision(expected));
    }
    check_history(&subject.observer.changes());
    assert_eq!(subject.observer.changes().len(), 20);
}

/// A key and a value of exactly the maximum size are accepted.
pub async fn values_and_keys_above_limit_are_rejected(subject: TestStore) {
    let (key, value) = ("k".repeat(MAX_KEY), Bytes::from(vec![7; MAX_VALUE]));
    let revision = subject.create(&key, value.clone()).await;
    assert_eq!(subject.get(&key).await.unwrap().value, value);
    let longer = Bytes::from(vec![7; MAX_VALUE + 1]);
    for op in [Op::Create(longer.clone()), Op::Update(longer, revision)] {
        let refused = subject.store.commit("a", op).await;
        assert!(matches!(refused, Err(Error::TooLarge(size)) if size == MAX_VALUE + 1));
    }
    let longer = "k".repeat(MAX_KEY + 1);
    let refused = subject.store.commit(&longer, Op::Create(Bytes::new())).await;
    assert!(matches!(refused, Err(Error::TooLarge(size)) if size == MAX_KEY + 1));
    assert_eq!(subject.store.revision(), revision);
}

/// Keys may be any text, and values any bytes.
pub async fn arbitrary_keys_and_values_round_trip(subject: TestStore) {
    let keys = ["", "\0", "\0\u{1}", "a", "a\0", "a\0\0b", "a/b", "é/ü", "\u{10ffff}", "a\u{7f}"];
    for key in keys {
        subject.create(key, Bytes::from(format!("\0{key}\u{ff}"))).await;
    }
    for key in keys {
        assert_eq!(subject.get(key).await.unwrap().value, format!("\0{key}\u{ff}"), "{key:?}");
    }
    let mut sorted = keys.map(str::to_owned);
    sorted.sort();
    assert_eq!(subject.keys("", None).await, sorted);
    subject.create("empty", Bytes::new()).await;
    assert_eq!(subject.get("empty").await.unwrap().value, Bytes::new());
}

/// 32 clients increment a counter, each until 20 successes: no increment is lost or repeated.
pub async fn concurrent_updates_of_one_key_lose_no_increment(subject: TestStore) {
    const CLIENTS: u64 = 32;
    const UPDATES: u64 = 20;
    let first = subject.create("counter", "0").await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let store = subject.store.clone();
        clients.spawn(async move {
            let mut current = store.get("counter", None).await.unwrap().unwrap();
            let mut revisions = Vec::new();
            while revisions.len() < UPDATES as usize {
                let count: u64 = std::str::from_utf8(&current.value).unwrap().parse().unwrap();
                let value = Bytes::from((count + 1).to_string());
                match store.commit("counter", Op::Update(value.clone(), current.revision)).await {
                    Ok(CommitOutcome { revision }) => {
                        revisions.push(revision);
                        current.value = value;
                        current.revision = revision;
                    }
                    Err(Error::Conflict(row)) => {
                        assert!(row.revision > current.revision, "a conflict carries a newer row");
                        current = *row;
                    }
                    other => panic!("{other:?}"),
                }
            }
            revisions
        });
    }
    let revisions: HashSet<Revision> = clients.join_all().await.into_iter().flatten().collect();
    assert_eq!(revisions.len() as u64, CLIENTS * UPDATES, "every successful update has its own revision");
    let last = subject.get("counter").await.unwrap();
    assert_eq!(last.value, (CLIENTS * UPDATES).to_string());
    assert_eq!(last.revision, Revision(first.0 + CLIENTS * UPDATES), "a conflict takes no revision");
    check_history(&subject.observer.changes());
}

/// 32 clients create each of 10 keys: one create of each key succeeds, and the other creates return its row.
pub async fn concurrent_creates_of_one_key_have_one_winner(subject: TestStore) {
    for round in 0..10 {
        let key: Arc<str> = format!("key/{round}").into();
        let mut clients = tokio::task::JoinSet::new();
        for client in 0..32 {
            let (store, key) = (subject.store.clone(), key.clone());
            clients.spawn(async move {
                let value = Bytes::from(format!("client {client}"));
                (value.clone(), store.commit(&key, Op::Create(value)).await)
            });
        }
        let outcomes = clients.join_all().await;
        let row = subject.get(&key).await.unwrap();
        let winners: Vec<_> = outcomes.iter().filter(|(_, outcome)| outcome.is_ok()).collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(winners[0].0, row.value);
        for (value, outcome) in &outcomes {
            match outcome {
                Ok(CommitOutcome { revision }) => assert_eq!((value, *revision), (&row.value, row.revision)),
                Err(Error::Exists(found)) => assert_eq!(**found, row),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A completed commit is visible in the observed history, which is complete and ordered.
pub async fn observer_sees_change_before_commit_returns(subject: TestStore) {
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..16 {
        let (store, observer) = (subject.store.clone(), subject.observer.clone());
        clients.spawn(async move {
            let key = format!("client/{client}");
            let mut revision = None;
            for round in 0..30 {
                let value = Bytes::from(format!("{round}"));
                let op = match revision {
                    None => Op::Create(value),
                    Some(at) if round % 7 == 6 => Op::Delete(at),
                    Some(at) => Op::Update(value, at),
                };
                let deleting = matches!(op, Op::Delete(_));
                let committed = store.commit(&key, op).await.unwrap();
                let observed = observer.changes();
                let found = observed.iter().find(|change| change.revision == committed.revision).unwrap();
                assert_eq!((&*found.key, found.new.is_none()), (&*key, deleting));
                assert!(store.revision() >= committed.revision);
                revision = (!deleting).then_some(committed.revision);
            }
        });
    }
    clients.join_all().await;
    let changes = subject.observer.changes();
    assert_eq!(changes.len(), 16 * 30);
    check_history(&changes);
}

/// A write that holds a key is rejected after a change of this key, and changes nothing then.
pub async fn write_is_applied_only_while_its_keys_are_held(subject: TestStore) {
    let hold = |key: &str, revision| Held { key: key.into(), revision };
    let value = || Bytes::from_static(b"x");
    let first = hold("claim/1", subject.create("claim/1", "").await);
    let second = hold("claim/2", subject.create("claim/2", "").await);
    let both = [first.clone(), second.clone()];
    let created = subject.store.commit_holding("a", Op::Create(value()), &both).await.unwrap().revision;
    let exists = subject.store.commit_holding("a", Op::Create(value()), &both).await;
    assert!(matches!(exists, Err(Error::Exists(found)) if found.revision == created));
    subject.update("claim/2", "y", second.revision).await;
    for (key, op) in
        [("b", Op::Create(value())), ("a", Op::Update(value(), created)), ("a", Op::Delete(created))]
    {
        let lost = subject.store.commit_holding(key, op, &both).await;
        assert!(matches!(&lost, Err(Error::Lost(_))), "{lost:?}");
    }
    assert_eq!((subject.get("a").await, subject.get("b").await), (Some(row("a", "x", created)), None));
    subject.store.commit_holding("a", Op::Delete(created), std::slice::from_ref(&first)).await.unwrap();
    subject.delete("claim/1", first.revision).await;
    let lost = subject.store.commit_holding("a", Op::Create(value()), &[first]).await;
    assert!(matches!(lost, Err(Error::Lost(key)) if &*key == "claim/1"));
}

/// Reads, commits, watches, compactions and health checks of a closed store return `Unavailable`.
pub async fn closed_store_returns_unavailable(subject: TestStore) {
    let revision = subject.create("a", "one").await;
    assert!(subject.store.health().is_ok());
    subject.store.close().await;
    let store = &subject.store;
    assert!(matches!(store.health(), Err(Error::Unavailable(_))));
    assert!(matches!(store.get("a", None).await, Err(Error::Unavailable(_))));
    assert!(matches!(store.range("", "", 0, None).await, Err(Error::Unavailable(_))));
    assert!(matches!(store.commit("a", Op::Delete(revision)).await, Err(Error::Unavailable(_))));
    assert!(matches!(store.watch("", revision).await, Err(Error::Unavailable(_))));
    assert!(matches!(store.compact(revision).await, Err(Error::Unavailable(_))));
    store.close().await;
}
