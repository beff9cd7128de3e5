//! Journals with a damaged beginning, and missing journals.
//!
//! In these stores the rows of `log` are in tables, and those of `versions` only in journals. With the
//! history compacted, only the mark reveals a loss.

use super::super::database::Tables;
use super::super::high_water_mark::HighWaterMark;
use super::super::offline;
use super::super::trim::drop_tables;
use super::journal_damage::FilledStore;
use super::*;

const COUNT: usize = 30;

/// Flushes keyspaces to tables, as a kill leaves them before the mark records the flush.
fn flush(store: &Path, names: &[&str]) {
    let tables = Tables::open(&store.join("fjall"), 1 << 20, None).unwrap();
    for keyspace in tables.keyspaces() {
        if names.contains(&&**keyspace.name()) {
            keyspace.rotate_memtable_and_wait().unwrap();
        }
    }
}

/// A store as the module documentation describes, compacted up to a revision.
async fn filled(compacted: u64) -> FilledStore {
    let mut filled = FilledStore::with_keys(COUNT).await;
    let store = open(&filled.store()).unwrap();
    store.compact(Revision(compacted)).await.unwrap();
    store.close().await;
    flush(&filled.store(), &["log", "meta"]);
    filled.journal = std::fs::read(filled.store().join("fjall/0.jnl")).unwrap();
    let written = filled.journal.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    filled.journal.truncate(written);
    filled
}

/// Checks that a store is rejected and then repaired, with exactly these revisions lost.
async fn check_lost(filled: &FilledStore, lost: (u64, u64), what: &str) {
    let reason = corrupt(open(&filled.store()));
    let expected = format!("revisions {} to {} are missing", lost.0, lost.1);
    assert!(reason.contains(&expected), "{what}: {reason}");
    let (revisions, report) = filled.repair().await;
    assert_eq!(report.lost.revisions, Some(lost), "{what}: {report}");
    let kept: Vec<u64> =
        (1..=COUNT as u64).filter(|revision| !(lost.0..=lost.1).contains(revision)).collect();
    assert_eq!(revisions, kept, "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_first_journal_batch_loses_only_its_change() {
    for compacted in [0, 1, COUNT as u64] {
        let filled = filled(compacted).await;
        let (begin, end) = filled.batches[1];
        // Damages each kind of field, also in a journal without any later batch.
        let places = [begin, begin + 1, begin + 13, begin + 28, begin + 100, end - 13, end - 8, end - 1];
        for at in places {
            let mut damaged = filled.journal.clone();
            damaged[at] ^= 0x10;
            filled.write_journal(&damaged[begin..]);
            let what = format!("byte {} with history after {compacted}", at - begin);
            check_lost(&filled, (1, 1), &what).await;
        }
        let mut alone = filled.journal[filled.batches[COUNT].0..].to_vec();
        alone[100] ^= 1;
        filled.write_journal(&alone);
        let what = format!("the only batch, with history after {compacted}");
        check_lost(&filled, (1, COUNT as u64), &what).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_journal_is_detected() {
    for compacted in [0, COUNT as u64] {
        let filled = filled(compacted).await;
        let cuts = [0, filled.batches[10].1, filled.batches[20].1, filled.journal.len()];
        for (gone, lost) in [
            (&[0][..], (1, 10)),
            (&[1], (11, 20)),
            (&[2], (21, 30)),
            (&[0, 1], (1, 20)),
            (&[1, 2], (11, 30)),
            (&[0, 1, 2], (1, 30)),
        ] {
            for (number, cut) in cuts.windows(2).enumerate() {
                let path = filled.store().join(format!("fjall/{number}.jnl"));
                std::fs::write(&path, &filled.journal[cut[0]..cut[1]]).unwrap();
                if gone.contains(&number) {
                    std::fs::remove_file(path).unwrap();
                }
            }
            check_lost(&filled, lost, &format!("without {gone:?}, with history after {compacted}")).await;
        }
    }
}

/// A kill after a flush and the removal of journals, before the mark records the flush.
///
/// A second kill follows during the next write.
#[tokio::test(flavor = "multi_thread")]
async fn missing_flushed_journal_is_not_reported() {
    let next = FilledStore::with_keys(COUNT + 1).await;
    let (begin, end) = next.batches[COUNT + 1];
    for compacted in [0, COUNT as u64] {
        for length in [0, 1, 20, end - begin - 1, end - begin] {
            let filled = filled(compacted).await;
            flush(&filled.store(), &["versions"]);
            filled.write_journal(&next.journal[begin..begin + length]);
            let mark = HighWaterMark::open(&filled.store().join("mark")).unwrap().unwrap().values();
            assert_eq!((mark.revision, mark.flushed.versions), (COUNT as u64, 0));
            let report = offline::check(&filled.store()).unwrap();
            assert!(report.is_sound(), "{length} bytes: {report}");
            assert_eq!(report.to_string().contains("harmless"), length > 0 && length < end - begin);
            let store = open(&filled.store()).unwrap();
            let whole = usize::from(length == end - begin);
            assert_eq!(rows(&store).await.unwrap().len(), COUNT + whole, "{length} bytes");
            store.close().await;
        }
    }
}

/// As the previous test, with compacted history whose tables are dropped: only rows of `versions` show the
/// flush.
#[tokio::test(flavor = "multi_thread")]
async fn missing_flushed_journal_with_compacted_history_is_not_reported() {
    const LAST: u64 = COUNT as u64 + 1;
    let filled = filled(COUNT as u64).await;
    let store = open(&filled.store()).unwrap();
    store.commit("last", Op::Create(Bytes::from_static(b"v"))).await.unwrap();
    store.close().await;
    flush(&filled.store(), &["log", "versions", "meta"]);
    {
        let tables = Tables::open(&filled.store().join("fjall"), 1 << 20, None).unwrap();
        assert!(drop_tables(&tables, COUNT as u64).unwrap(), "the history has separate tables");
    }
    filled.write_journal(&[]);
    let mark = HighWaterMark::open(&filled.store().join("mark")).unwrap().unwrap().values();
    assert_eq!((mark.revision, mark.flushed.versions), (LAST, 0));
    let report = offline::check(&filled.store()).unwrap();
    assert!(report.is_sound(), "{report}");
    let store = open(&filled.store()).unwrap();
    assert_eq!(rows(&store).await.unwrap().len(), COUNT + 1);
    store.close().await;
}

/// The rows of `log` record the deletion, so the repair does not restore the deleted object, and the report
/// does not count it.
#[tokio::test(flavor = "multi_thread")]
async fn lost_tombstone_does_not_restore_deleted_object() {
    let mut filled = FilledStore::with_keys(COUNT).await;
    let store = open(&filled.store()).unwrap();
    store.commit("key/00004", Op::Delete(Revision(4))).await.unwrap();
    store.close().await;
    flush(&filled.store(), &["log", "meta"]);
    filled.journal = std::fs::read(filled.store().join("fjall/0.jnl")).unwrap();
    let marker = filled.batches[COUNT].1;
    filled.journal[marker + 30] ^= 1;
    filled.write_journal(&filled.journal);
    let (revisions, report) = filled.repair().await;
    assert_eq!(report.lost.revisions, Some((31, 31)), "{report}");
    assert_eq!(revisions, (1..=30).filter(|revision| *revision != 4).collect::<Vec<u64>>());
    assert_eq!(report.objects, COUNT - 1);
}
