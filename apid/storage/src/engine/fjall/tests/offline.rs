//! Stores that no process serves: check, repair, backup, restore.

use std::os::unix::fs::PermissionsExt as _;

use super::super::offline::{self, REVISION_GAP, RepairOutcome};
use super::*;
use crate::{ENCRYPTED_PREFIX, MAX_VALUE};

#[tokio::test(flavor = "multi_thread")]
async fn check_and_repair_leave_intact_store_unchanged() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let store = FjallStore::open(
        Options { memtable_bytes: 16 << 10, ..options(&path) },
        Arc::new(RecordingObserver::default()),
    )
    .unwrap();
    let rows = churn(&store, 1, 300, 400).await;
    assert!(matches!(offline::check(&path), Err(OpenError::Locked(_))), "a process holds the lock");
    assert!(matches!(offline::repair(&path, Some(&identity()), 0), Err(OpenError::Locked(_))));
    assert!(matches!(offline::backup(&path, &dir.path().join("file")), Err(OpenError::Locked(_))));
    store.close().await;
    let report = offline::check(&path).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!((report.revision, report.objects, report.changes), (300, rows.len(), 300));
    assert!(matches!(offline::repair(&path, Some(&identity()), 0).unwrap(), RepairOutcome::Sound(_)));
    let store = open(&path).unwrap();
    assert_eq!(self::rows(&store).await.unwrap(), rows);
    store.compact(Revision(250)).await.unwrap();
    store.maintain().await.unwrap();
    // The copied store is not closed, as after a kill.
    let killed = dir.path().join("killed");
    copy_store(&path, &killed);
    let report = offline::check(&killed).unwrap();
    assert!(report.is_sound(), "{report}");
    assert_eq!(
        (report.revision, report.compacted, report.changes, report.objects),
        (300, 250, 50, rows.len())
    );
    assert!(matches!(offline::check(&dir.path().join("none")), Err(OpenError::NotFound(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_file_of_killed_backup_is_replaced_and_that_of_running_backup_is_kept() {
    let dir = memory_dir();
    let (path, file) = (dir.path().join("store"), dir.path().join("file"));
    let store = open(&path).unwrap();
    churn(&store, 1, 30, 100).await;
    store.close().await;
    let unfinished = dir.path().join("file.new");
    std::fs::write(&unfinished, vec![b'x'; 1 << 20]).unwrap();
    let mut running = offline::ArchiveFile::create(&file).unwrap();
    running.write(b"part").unwrap();
    let mode = std::fs::metadata(&unfinished).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only the owner reads the objects");
    let refused = offline::backup(&path, &file).unwrap_err().to_string();
    assert!(refused.contains("another backup is writing"), "{refused}");
    running.discard();
    assert!(!unfinished.exists());
    std::fs::write(&unfinished, vec![b'x'; 1 << 20]).unwrap();
    let summary = offline::backup(&path, &file).unwrap();
    assert_eq!(summary.bytes, std::fs::metadata(&file).unwrap().len(), "nothing of the old file remains");
    assert!(!unfinished.exists());
    let target = dir.path().join("target");
    std::os::unix::fs::symlink(&target, dir.path().join("other.new")).unwrap();
    assert!(offline::backup(&path, &dir.path().join("other")).is_err(), "a symbolic link is not followed");
    assert!(!target.exists());
    std::fs::write(&target, b"content").unwrap();
    std::fs::hard_link(&target, dir.path().join("linked.new")).unwrap();
    let refused = offline::backup(&path, &dir.path().join("linked")).unwrap_err().to_string();
    assert!(refused.contains("second name"), "{refused}");
    assert_eq!(std::fs::read(&target).unwrap(), b"content");
}

#[tokio::test(flavor = "multi_thread")]
async fn restored_backup_has_same_objects_above_all_old_revisions() {
    let dir = memory_dir();
    let (path, file, restored) =
        (dir.path().join("store"), dir.path().join("file"), dir.path().join("restored"));
    let store = open(&path).unwrap();
    let rows = churn(&store, 2, 300, 3000).await;
    store.close().await;
    let archived = offline::backup(&path, &file).unwrap();
    assert_eq!((archived.revision, archived.objects), (Revision(300), rows.len() as u64));
    assert_eq!(archived.bytes, std::fs::metadata(&file).unwrap().len());
    let refused = offline::backup(&path, &file).unwrap_err().to_string();
    assert_eq!(
        refused,
        format!(
            "the backup file `{}` cannot be created: the file exists; choose another name",
            file.display()
        ),
        "a backup is not overwritten"
    );
    let done = offline::restore(&file, &restored, 0).unwrap();
    assert_eq!((done.revision, &done.archived), (Revision(300 + REVISION_GAP), &archived));
    assert!(
        matches!(offline::restore(&file, &restored, 0), Err(OpenError::Exists(path)) if path == restored)
    );
    let report = offline::check(&restored).unwrap();
    assert!(report.is_sound(), "{report}");
    for round in 0..3 {
        let store = open(&restored).unwrap();
        assert_eq!(store.revision(), Revision(300 + REVISION_GAP + round * 50));
        if round == 0 {
            assert_eq!(self::rows(&store).await.unwrap(), rows);
        }
        let requested = store.range("", "", 0, Some(Revision(300))).await;
        assert!(matches!(requested, Err(Error::Compacted { .. })), "{requested:?}");
        assert!(matches!(store.watch("", Revision(299)).await, Err(Error::Compacted { .. })));
        churn(&store, 3 + round, 50, 100).await;
        let changes = changes_after(&store, Revision(300 + REVISION_GAP)).await.unwrap();
        assert_eq!(changes.len() as u64, (round + 1) * 50);
        store.close().await;
        let report = offline::check(&restored).unwrap();
        assert!(report.is_sound(), "{report}");
    }
    // A restored store supports backup and restore.
    let again = dir.path().join("again");
    let archived = offline::backup(&restored, &dir.path().join("file-2")).unwrap();
    let done = offline::restore(&dir.path().join("file-2"), &again, 0).unwrap();
    assert_eq!(done.revision.0, archived.revision.0 + REVISION_GAP);
    open(&again).unwrap().close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_new_store_and_its_new_ancestors_are_closed_to_other_users() {
    let dir = memory_dir();
    let (path, file) = (dir.path().join("data/store"), dir.path().join("file"));
    let store = open(&path).unwrap();
    churn(&store, 1, 30, 100).await;
    store.close().await;
    offline::backup(&path, &file).unwrap();
    let restored = dir.path().join("restored/store");
    offline::restore(&file, &restored, 0).unwrap();
    // The repair makes a store beside the damaged one.
    std::fs::remove_file(path.join("mark")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(offline::repair(&path, Some(&identity()), 0).unwrap(), RepairOutcome::Rebuilt { .. }));
    for folder in ["data", "data/store", "restored", "restored/store"] {
        let mode = std::fs::metadata(dir.path().join(folder)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{folder}");
    }
}

/// A backup of an empty store can be restored, and the restored store continues at a higher revision.
#[tokio::test(flavor = "multi_thread")]
async fn empty_store_can_be_backed_up_and_restored() {
    let dir = memory_dir();
    let (path, file, restored) =
        (dir.path().join("store"), dir.path().join("file"), dir.path().join("restored"));
    open(&path).unwrap().close().await;
    assert_eq!(offline::backup(&path, &file).unwrap().objects, 0);
    assert_eq!(offline::restore(&file, &restored, 0).unwrap().revision, Revision(REVISION_GAP));
    let store = open(&restored).unwrap();
    let made = store.commit("a", Op::Create(Bytes::new())).await.unwrap();
    assert_eq!(made.revision, Revision(REVISION_GAP + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_or_truncated_backup_is_rejected_and_leaves_no_store() {
    let dir = memory_dir();
    let (path, file, restored) =
        (dir.path().join("store"), dir.path().join("file"), dir.path().join("restored"));
    let store = open(&path).unwrap();
    churn(&store, 2, 12, 30).await;
    store.close().await;
    offline::backup(&path, &file).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let refused = |bytes: &[u8], what: &str| {
        std::fs::write(&file, bytes).unwrap();
        let error = offline::restore(&file, &restored, 0).unwrap_err().to_string();
        let named = format!("the backup file `{}` ", file.display());
        let problems = ["is truncated", "is damaged", "has no supported format"];
        assert!(
            error.starts_with(&named) && problems.iter().any(|text| error.contains(text)),
            "{what}: {error}"
        );
        let left: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "{what}: {left:?}");
    };
    for at in (0..whole.len()).step_by(3) {
        let mut changed = whole.clone();
        changed[at] ^= 4;
        refused(&changed, &format!("byte {at}"));
        refused(&whole[..at], &format!("cut to {at}"));
    }
    refused(&[&whole[..], &[0]].concat(), "one extra byte");
    std::fs::remove_file(&file).unwrap();
    let error = offline::restore(&file, &restored, 0).unwrap_err().to_string();
    assert_eq!(error, format!("the backup file `{}` does not exist", file.display()));
}

#[test]
fn backup_holds_encrypted_values_of_the_largest_objects() {
    let dir = memory_dir();
    let mut file = offline::ArchiveFile::create(&dir.path().join("file")).unwrap();
    let value = [ENCRYPTED_PREFIX, &vec![7; MAX_VALUE]].concat();
    let mut buffer = Vec::new();
    let mut encoder = offline::ArchiveEncoder::begin(&identity(), 1, &mut buffer);
    encoder.add("key", 1, &value, &mut buffer);
    let counts = encoder.finish(&mut buffer);
    file.write(&buffer).unwrap();
    assert_eq!(file.verify().unwrap(), counts.summary(identity(), Revision(1)));
}

/// A repair restores the newest readable versions.
///
/// Keys with a lost version have an earlier state or are missing.
#[tokio::test(flavor = "multi_thread")]
async fn repair_keeps_readable_part_of_truncated_journal() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let store = open(&path).unwrap();
    let mut at_60 = Vec::new();
    for round in 0..2 {
        let rows = churn(&store, round, 60, 200).await;
        if round == 0 {
            at_60 = rows;
        }
    }
    let cut = store.stats().revision;
    store.close().await;
    let journal = path.join("fjall/0.jnl");
    let bytes = std::fs::read(&journal).unwrap();
    let written = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    let mut damaged = bytes.clone();
    damaged[written / 2..].fill(0);
    std::fs::write(&journal, damaged).unwrap();
    let reason = corrupt(open(&path));
    assert!(reason.contains(&format!("to {cut} are missing")), "{reason}");
    let repaired = offline::repair(&path, Some(&identity()), 0).unwrap();
    let RepairOutcome::Rebuilt { report, revision, kept, .. } = repaired else {
        panic!("the survey found no damage")
    };
    assert!(report.to_string().contains(&format!("to {cut}")), "{report}");
    assert_eq!(revision, Revision(cut + REVISION_GAP));
    assert!(kept.ends_with("store.damaged"));
    let store = open(&path).unwrap();
    let rows = rows(&store).await.unwrap();
    let (first, _) = report.lost.revisions.unwrap();
    assert!(rows.iter().all(|row| row.revision.0 < first));
    if first > 60 {
        assert!(at_60.iter().all(|old| rows.iter().any(|row| row.key == old.key) || first > 61));
    }
    churn(&store, 9, 20, 20).await;
}

#[test]
fn backup_restored_twice_yields_disjoint_revisions() {
    let (day, hour) = (1_800_000_000, 3600);
    let first = offline::resume_revision(300, day);
    let written_since = hour * 1_000_000;
    assert!(offline::resume_revision(300, day + hour) > first + written_since);
    assert!(
        offline::resume_revision(first, day - hour) > first,
        "revisions increase even if the clock moves back"
    );
    assert!(offline::resume_revision(300, i32::MAX as u64) < 1 << 53, "the revision fits a double");
}
