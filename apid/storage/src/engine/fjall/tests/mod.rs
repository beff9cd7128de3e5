//! Tests of the fjall engine: files, damage, trimming, disk space, failed writes.

mod damage;
mod failure;
mod journal_damage;
mod missing_journals;
mod offline;
mod reopen;
mod space;
mod trimming;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{ManualClock, Rng, SeededRng};
use bytes::Bytes;

use super::{FjallStore, Identity, OpenError, Options};
use crate::conformance::RecordingObserver;
use crate::{Change, Error, Op, Revision, Row, Store};

fn identity() -> Identity {
    Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() }
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at("2025-05-01T00:00:00Z".parse().unwrap()))
}

/// Options without a disk reserve, because the free space of the test machine is unknown.
fn options(dir: &Path) -> Options {
    Options { reserve_bytes: 0, ..Options::new(dir, identity(), clock()) }
}

fn open(dir: &Path) -> Result<FjallStore, OpenError> {
    FjallStore::open(options(dir), Arc::new(RecordingObserver::default()))
}

/// Returns the error of opening a store, which must be rejected as corrupt.
fn corrupt(opened: Result<FjallStore, OpenError>) -> String {
    match opened {
        Err(OpenError::Store(Error::Corrupt(reason))) => reason,
        Err(other) => panic!("rejected for another reason: {other:?}"),
        Ok(_) => panic!("the damaged store opened"),
    }
}

/// Copies the files of a store, the mark first: after a crash the mark is never newer than the data.
fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::copy(from.join("mark"), to.join("mark")).unwrap();
    copy_dir(&from.join("fjall"), &to.join("fjall"));
}

fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// All files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            found.extend(files(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// All current rows.
async fn rows(store: &dyn Store) -> Result<Vec<Row>, Error> {
    Ok(store.range("", "", 0, None).await?.rows)
}

/// Creates, updates and deletes random keys, and returns the expected rows.
async fn churn(store: &dyn Store, seed: u64, steps: u64, size: usize) -> Vec<Row> {
    let rng = SeededRng::new(seed);
    let mut rows = std::collections::BTreeMap::<String, Row>::new();
    for row in self::rows(store).await.unwrap() {
        rows.insert(row.key.to_string(), row);
    }
    for _ in 0..steps {
        let bits = rng.bits();
        let key = format!("key/{:02}", bits % 40);
        let value: Vec<u8> =
            std::iter::repeat_with(|| rng.bits().to_le_bytes()).flatten().take(size).collect();
        let value = Bytes::from(value);
        let op = match rows.get(&key) {
            None => Op::Create(value.clone()),
            Some(row) if bits >> 120 < 40 => Op::Delete(row.revision),
            Some(row) => Op::Update(value.clone(), row.revision),
        };
        let deleting = matches!(op, Op::Delete(_));
        let revision = store.commit(&key, op).await.unwrap().revision;
        if deleting {
            rows.remove(&key);
        } else {
            rows.insert(key.clone(), Row { key: key.into(), value, revision });
        }
    }
    rows.into_values().collect()
}

/// Waits until a condition holds, and fails after a minute.
async fn until(condition: &str, mut is_met: impl AsyncFnMut() -> bool) {
    let began = tokio::time::Instant::now();
    while !is_met().await {
        assert!(began.elapsed() < Duration::from_secs(60), "{condition}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// All changes after a revision.
async fn changes_after(store: &dyn Store, after: Revision) -> Result<Vec<Change>, Error> {
    let mut watch = store.watch("", after).await?;
    let mut changes: Vec<Change> = Vec::new();
    while changes.last().map_or(after, |change| change.revision) < store.revision() {
        changes.extend(watch.next().await?);
    }
    Ok(changes)
}

/// A directory in memory, where available: the tests sync and copy thousands of times, and do not test the
/// medium.
fn memory_dir() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}
