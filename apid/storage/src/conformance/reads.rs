//! Conformance of reads: order, pages, revisions, compaction.

use bytes::Bytes;

use super::{TestStore, row};
use crate::{Error, MAX_KEY, Op, Revision};

/// `-` and `.` sort before `/`, digits after it: the order is by bytes, not by path segments.
pub async fn ranges_are_ordered_by_bytes(subject: TestStore) {
    for key in ["a/x", "a0/x", "a-b/x", "a", "a.b/x", "a/x/y", "a/x-y", "b", "A"] {
        subject.create(key, "x").await;
    }
    let sorted = ["A", "a", "a-b/x", "a.b/x", "a/x", "a/x-y", "a/x/y", "a0/x", "b"];
    assert_eq!(subject.keys("", None).await, sorted);
}

/// A prefix is plain text, not a directory.
pub async fn range_prefix_matches_key_text(subject: TestStore) {
    for key in ["a", "a/", "a/x", "a/y", "a0", "ab", "b"] {
        subject.create(key, "x").await;
    }
    let cases: [(&str, &[&str]); 6] = [
        ("a/", &["a/", "a/x", "a/y"]),
        ("a", &["a", "a/", "a/x", "a/y", "a0", "ab"]),
        ("a/x", &["a/x"]),
        ("c", &[]),
        ("a/xx", &[]),
        ("\u{10ffff}", &[]),
    ];
    for (prefix, expected) in cases {
        assert_eq!(subject.keys(prefix, None).await, expected, "prefix {prefix:?}");
    }
}

/// Checks `limit`, `more` and `start` across pages.
pub async fn pages_cover_range_without_gap_or_overlap(subject: TestStore) {
    for number in 0..10 {
        subject.create(&format!("p/{number}"), "x").await;
    }
    subject.create("q/0", "x").await;
    let all = subject.keys("p/", None).await;
    for limit in [1, 2, 3, 9, 10, 11] {
        let mut found = Vec::new();
        let mut start = String::new();
        loop {
            let page = subject.store.range("p/", &start, limit, None).await.unwrap();
            assert!(page.rows.len() <= limit);
            found.extend(page.rows.iter().map(|row| row.key.to_string()));
            assert_eq!(page.more, found.len() < all.len(), "limit {limit}, {} found", found.len());
            if !page.more {
                break;
            }
            start = format!("{}\0", found.last().unwrap());
        }
        assert_eq!(found, all, "limit {limit}");
    }
    let from = |start: &'static str| subject.store.range("p/", start, 0, None);
    assert_eq!(from("p/7").await.unwrap().rows.len(), 3, "the start is included");
    assert_eq!(from("a").await.unwrap().rows.len(), 10, "a start before the prefix is its beginning");
    assert_eq!(from("q").await.unwrap().rows.len(), 0, "a start after the prefix is its end");
    assert_eq!(from("p/9\0").await.unwrap().rows.len(), 0);
}

/// Checks that each page respects the limit in bytes, and that all pages together contain all rows.
pub async fn rows_within_bytes_cover_all_keys(subject: TestStore) {
    for (key, bytes) in [("a", 10), ("b", 10), ("c", 100), ("d", 1), ("e", 1)] {
        subject.create(key, "x".repeat(bytes)).await;
    }
    let at = subject.store.revision();
    let (mut start, mut pages) = (String::new(), Vec::new());
    loop {
        let page = subject.store.rows_within("", &start, 0, 22, at).await.unwrap();
        let keys: Vec<String> = page.rows.iter().map(|row| row.key.to_string()).collect();
        start = format!("{}\0", keys.last().unwrap());
        pages.push(keys.concat());
        if !page.more {
            break;
        }
    }
    assert_eq!(pages, ["ab", "c", "de"]);
    for (prefix, start, limit, count, more) in
        [("", "f", 0, 0, false), ("a", "", 0, 1, false), ("", "a", 1, 1, true), ("", "d", 2, 2, false)]
    {
        let page = subject.store.rows_within(prefix, start, limit, 22, at).await.unwrap();
        assert_eq!((page.rows.len(), page.more), (count, more), "{prefix} {start} {limit}");
    }
}

/// Writes between two pages are invisible in the second page.
pub async fn pages_at_one_revision_form_a_snapshot(subject: TestStore) {
    let mut revisions = Vec::new();
    for number in 0..6 {
        revisions.push(subject.create(&format!("p/{number}"), "old").await);
    }
    let first = subject.store.range("p/", "", 3, None).await.unwrap();
    assert_eq!((first.rows.len(), first.more, first.revision), (3, true, Revision(6)));
    subject.create("p/35", "new").await;
    subject.update("p/4", "new", revisions[4]).await;
    subject.delete("p/5", revisions[5]).await;
    let start = format!("{}\0", first.rows[2].key);
    let second = subject.store.range("p/", &start, 3, Some(first.revision)).await.unwrap();
    let expected: Vec<_> =
        (3..6).map(|number| row(&format!("p/{number}"), "old", revisions[number])).collect();
    assert_eq!((second.rows, second.more, second.revision), (expected, false, first.revision));
    assert_eq!(subject.keys("p/", None).await, ["p/0", "p/1", "p/2", "p/3", "p/35", "p/4"]);
}

/// Every past state is readable at its revision.
pub async fn reads_at_old_revisions_return_old_state(subject: TestStore) {
    let one = subject.create("a", "one").await;
    let two = subject.update("a", "two", one).await;
    subject.create("b", "x").await;
    let deleted = subject.delete("a", two).await;
    let again = subject.create("a", "three").await;
    let cases = [
        (Revision(0), None),
        (one, Some(row("a", "one", one))),
        (two, Some(row("a", "two", two))),
        (Revision(3), Some(row("a", "two", two))),
        (deleted, None),
        (again, Some(row("a", "three", again))),
    ];
    for (at, expected) in cases {
        assert_eq!(subject.store.get("a", Some(at)).await.unwrap(), expected, "get at {at}");
        let page = subject.store.range("a", "", 0, Some(at)).await.unwrap();
        assert_eq!(page.rows, Vec::from_iter(expected), "range at {at}");
        assert_eq!(page.revision, at);
    }
}

/// An observer may hand out the revisions that it receives.
pub async fn observed_revision_is_readable_before_its_publication(subject: TestStore) {
    let first = subject.create("p/1", "x").await;
    let release = subject.observer.block_next_batch();
    let store = subject.store.clone();
    let commit = tokio::spawn(async move { store.commit("p/2", Op::Create(Bytes::from_static(b"y"))).await });
    while subject.observer.changes().len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    let second = Revision(first.0 + 1);
    assert_eq!(subject.store.revision(), first, "the observer has not returned");
    assert_eq!(subject.store.get("p/2", Some(second)).await.unwrap(), Some(row("p/2", "y", second)));
    assert_eq!(subject.keys("p/", Some(second)).await, ["p/1", "p/2"]);
    let part = subject.store.history("p/", first, second, usize::MAX).await.unwrap();
    let keys: Vec<&str> = part.changes.iter().map(|change| &*change.key).collect();
    assert_eq!((keys, part.through), (vec!["p/2"], second));
    assert_eq!(subject.get("p/2").await, None, "a read without a revision uses the published one");
    drop(release);
    assert_eq!(commit.await.unwrap().unwrap().revision, second);
}

/// A range finds the right version of each key among many newer and older ones.
pub async fn range_skips_many_versions_of_a_key(subject: TestStore) {
    let keys = ["a", "b", "c"];
    let mut newest = Vec::new();
    for key in keys {
        newest.push(subject.create(key, Bytes::from("0")).await);
    }
    let mut states = vec![(subject.store.revision(), ["0"; 3].map(str::to_owned))];
    let mut values = ["0"; 3].map(str::to_owned);
    for round in 1..60 {
        let index = (round * 7 + round / 5) % 3;
        values[index] = round.to_string();
        newest[index] = subject.update(keys[index], Bytes::from(round.to_string()), newest[index]).await;
        states.push((newest[index], values.clone()));
    }
    for (at, values) in states {
        let page = subject.store.range("", "", 0, Some(at)).await.unwrap();
        let found: Vec<_> = page.rows.iter().map(|row| row.value.clone()).collect();
        assert_eq!(found, values, "at {at}");
        let page = subject.store.range("", "b", 1, Some(at)).await.unwrap();
        assert_eq!((&page.rows[0].value[..], page.more), (values[1].as_bytes(), true), "at {at}");
    }
}

/// Future revisions are rejected.
pub async fn read_at_future_revision_returns_future(subject: TestStore) {
    let current = subject.create("a", "one").await;
    let requested = Revision(current.0 + 1);
    let is_future_error = |error: Error| error == Error::Future { requested, current };
    assert!(is_future_error(subject.store.get("a", Some(requested)).await.unwrap_err()));
    assert!(is_future_error(subject.store.range("", "", 0, Some(requested)).await.unwrap_err()));
    assert!(is_future_error(subject.store.compact(requested).await.unwrap_err()));
    assert_eq!(subject.store.compacted(), Revision(0));
}

/// Revisions below the compacted one are rejected, even if still on disk.
///
/// The compacted revision and later ones are readable.
pub async fn compacted_revision_is_rejected_and_newest_rows_stay(subject: TestStore) {
    let one = subject.create("a", "one").await;
    let two = subject.update("a", "two", one).await;
    let b = subject.create("b", "x").await;
    let deleted = subject.delete("b", b).await;
    let three = subject.update("a", "three", two).await;
    subject.create("unchanged", "old").await;
    let compacted = deleted;
    subject.store.compact(compacted).await.unwrap();
    assert_eq!(subject.store.compacted(), compacted);
    for requested in 0..compacted.0 {
        let requested = Revision(requested);
        let is_compacted_error = |error: Error| error == Error::Compacted { requested, compacted };
        assert!(
            is_compacted_error(subject.store.get("a", Some(requested)).await.unwrap_err()),
            "get at {requested}"
        );
        assert!(
            is_compacted_error(subject.store.range("", "", 0, Some(requested)).await.unwrap_err()),
            "range at {requested}"
        );
    }
    let get = |key: &'static str, at| subject.store.get(key, at);
    assert_eq!(get("a", Some(compacted)).await.unwrap(), Some(row("a", "two", two)));
    assert_eq!(get("b", Some(compacted)).await.unwrap(), None);
    assert_eq!(get("a", Some(three)).await.unwrap(), Some(row("a", "three", three)));
    subject.store.compact(subject.store.revision()).await.unwrap();
    assert_eq!(subject.keys("", None).await, ["a", "unchanged"]);
    assert_eq!(get("a", None).await.unwrap(), Some(row("a", "three", three)));
    let again = subject.create("b", "back").await;
    assert_eq!(get("b", None).await.unwrap(), Some(row("b", "back", again)));
}

/// Compaction at an older revision changes nothing.
pub async fn compaction_never_moves_back(subject: TestStore) {
    for number in 0..5 {
        subject.create(&format!("{number}"), "x").await;
    }
    subject.store.compact(Revision(4)).await.unwrap();
    for older in [0, 1, 4] {
        subject.store.compact(Revision(older)).await.unwrap();
        assert_eq!(subject.store.compacted(), Revision(4));
    }
}

/// Reads of keys above the length limit find nothing.
pub async fn reads_of_oversized_keys_find_nothing(subject: TestStore) {
    subject.create("a", "x").await;
    subject.create(&"b".repeat(MAX_KEY), "x").await;
    for length in [MAX_KEY + 1, 70_000, 1 << 20] {
        for letter in ["a", "b", "é", "\0"] {
            let long = letter.repeat(length);
            assert_eq!(subject.get(&long).await, None);
            assert!(subject.keys(&long, None).await.is_empty());
            let after = subject.store.range("", &long, 0, None).await.unwrap();
            let expected = match letter {
                "a" => 1,
                "\0" => 2,
                _ => 0,
            };
            assert_eq!(after.rows.len(), expected, "{length} times {letter:?}");
        }
    }
}

/// A writer updates keys in turn; a concurrent range always shows the state of one revision.
pub async fn range_under_concurrent_writes_is_a_snapshot(subject: TestStore) {
    for key in 0..8 {
        subject.create(&format!("key/{key}"), "0").await;
    }
    let store = subject.store.clone();
    let writer = tokio::spawn(async move {
        for round in 0..150 {
            let key = format!("key/{}", (round * 5) % 8);
            let current = store.get(&key, None).await.unwrap().unwrap();
            let value = Bytes::from(round.to_string());
            store.commit(&key, Op::Update(value, current.revision)).await.unwrap();
        }
    });
    while !writer.is_finished() {
        let page = subject.store.range("key/", "", 0, None).await.unwrap();
        assert_eq!(page.rows.len(), 8);
        let newest = page.rows.iter().map(|row| row.revision).max().unwrap();
        assert_eq!(newest, page.revision, "the newest row has the revision of the page");
        let again = subject.store.range("key/", "", 0, Some(page.revision)).await.unwrap();
        assert_eq!(page, again);
    }
    writer.await.unwrap();
}
