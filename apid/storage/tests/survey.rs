//! A damaged store with many keys is surveyed and rejected with little memory, in one pass.
//!
//! The test starts itself as the measured process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use apimachinery::clock::SystemClock;
use bytes::Bytes;
use storage::engine::fjall::offline::{self, RepairOutcome};
use storage::engine::fjall::{FjallStore, Identity, OpenError, Options};
use storage::{Change, Error, Observer, Op, Store};

const KEYS: usize = 200_000;
const VALUE: usize = 2000;
/// Memory limit of the survey in bytes: less than half of the size of the objects that stay readable.
const MEMORY_LIMIT: u64 = 160 << 20;

struct NullObserver;

impl Observer for NullObserver {
    fn observe(&self, _: &[Change]) {}
}

fn options(dir: &Path) -> Options {
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    Options { reserve_bytes: 0, ..Options::new(dir, identity, Arc::new(SystemClock::new())) }
}

/// Writes all keys once, and closes the store.
fn fill(dir: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Arc::new(FjallStore::open(options(dir), Arc::new(NullObserver)).unwrap());
        let value = Bytes::from(vec![b'v'; VALUE]);
        for begin in (0..KEYS).step_by(2000) {
            let mut writes = tokio::task::JoinSet::new();
            for number in begin..begin + 2000 {
                let (store, value) = (store.clone(), value.clone());
                writes
                    .spawn(async move { store.commit(&format!("key/{number:07}"), Op::Create(value)).await });
            }
            for outcome in writes.join_all().await {
                outcome.unwrap();
            }
        }
        store.close().await;
    });
}

/// Overwrites the first half of every table of objects: rows come first, and metadata last.
fn damage(dir: &Path) -> usize {
    let tables = |keyspace: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(keyspace.join("tables")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let size =
        |tables: &Vec<PathBuf>| tables.iter().map(|table| fs::metadata(table).unwrap().len()).sum::<u64>();
    let keyspaces = fs::read_dir(dir.join("fjall/keyspaces")).unwrap();
    let largest = keyspaces.map(|entry| tables(entry.unwrap().path())).max_by_key(size).unwrap();
    for table in &largest {
        let mut bytes = fs::read(table).unwrap();
        let half = bytes.len() / 2;
        bytes.iter_mut().take(half).for_each(|byte| *byte = 0x55);
        fs::write(table, bytes).unwrap();
    }
    largest.len()
}

/// Peak memory of this process in bytes.
fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
#[ignore = "the measured process of `survey_of_heavily_damaged_store_uses_little_memory`"]
fn survey_in_measured_process() {
    let dir = PathBuf::from(std::env::var_os("STORE_DIR").unwrap());
    let before = peak_bytes();
    let report = offline::check(&dir).unwrap();
    assert!(report.lost.keys.len() > KEYS / 4, "{report}");
    assert!(report.objects > KEYS / 4 && report.objects + report.lost.keys.len() >= KEYS, "{report}");
    assert!(report.to_string().lines().count() < 100, "a report is short");
    let memory_after_check = peak_bytes() - before;
    let Err(OpenError::Store(Error::Corrupt(reason))) =
        FjallStore::open(options(&dir), Arc::new(NullObserver))
    else {
        panic!("the damaged store opened");
    };
    assert!(reason.len() < 10_000 && reason.contains("are missing"), "{reason}");
    let memory_after_open = peak_bytes() - before;
    let RepairOutcome::Rebuilt { objects, .. } = offline::repair(&dir, None, 0).unwrap() else {
        panic!("{report}")
    };
    assert_eq!(objects, report.objects);
    println!(
        "MiB: check {}, start {}, repair {}",
        memory_after_check >> 20,
        memory_after_open >> 20,
        (peak_bytes() - before) >> 20
    );
    assert!(memory_after_open < MEMORY_LIMIT, "{} MiB", memory_after_open >> 20);
}

/// The test also checks the run time: a scan over all lost keys for each lost key would take minutes.
#[test]
fn survey_of_heavily_damaged_store_uses_little_memory() {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let store = dir.path().join("store");
    fill(&store);
    println!("{} tables are damaged", damage(&store));
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "survey::survey_in_measured_process", "--ignored", "--nocapture"])
        .env("STORE_DIR", &store)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}");
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
}
