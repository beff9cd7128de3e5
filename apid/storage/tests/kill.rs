//! A writing process is killed repeatedly: every acknowledged write survives, and every start succeeds.
//!
//! The test starts itself as the writing process. `KILLS=200` sets the number of kills.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Rng, SeededRng, SystemClock};
use bytes::Bytes;
use storage::engine::fjall::{FjallStore, Identity, Options};
use storage::{Change, Observer, Op, Row, Store};

const WRITERS: u64 = 32;
const KEYS: u64 = 20;

struct NullObserver;

impl Observer for NullObserver {
    fn observe(&self, _: &[Change]) {}
}

/// Opens a store with little memory and short history.
///
/// So kills also hit flushes, LSM compactions and trimming.
fn open(dir: &Path) -> FjallStore {
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    let options = Options {
        memtable_bytes: 512 << 10,
        history_retention: Duration::from_millis(300),
        reserve_bytes: 0,
        ..Options::new(dir, identity, Arc::new(SystemClock::new()))
    };
    FjallStore::open(options, Arc::new(NullObserver)).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Output of the writing process: `try KEY` before a write, and `now KEY REVISION` after its commit. The
/// REVISION of a delete is 0.
#[test]
#[ignore = "the writing process of `acknowledged_writes_survive_repeated_kills`"]
fn write_until_killed() {
    let dir = std::env::var_os("STORE_DIR").unwrap();
    let store = Arc::new(open(Path::new(&dir)));
    runtime().block_on(async {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                let rng = SeededRng::new(u64::from(std::process::id()) << 32 | writer);
                loop {
                    let bits = rng.bits();
                    let key = format!("{writer}/{}", bits % u128::from(KEYS));
                    let row = store.get(&key, None).await.unwrap();
                    print_line(&format!("try {key}"));
                    let value = Bytes::from(key.repeat(1 + (bits >> 64) as usize % 500));
                    let op = match row {
                        None => Op::Create(value),
                        Some(row) if bits >> 120 < 40 => Op::Delete(row.revision),
                        Some(row) => Op::Update(value, row.revision),
                    };
                    let deleted = matches!(op, Op::Delete(_));
                    let revision = store.commit(&key, op).await.unwrap().revision.0;
                    print_line(&format!("now {key} {}", if deleted { 0 } else { revision }));
                }
            });
        }
        writers.join_all().await;
    });
}

/// Prints one line in one write: a kill leaves complete lines, or the start of the last one.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// The expected state of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ExpectedState {
    /// The key is at this revision; None for an absent key.
    At(Option<u64>),
    /// A write without a result: its outcome is unknown.
    Unknown,
}

/// Starts the process, kills it after some lines, and records the states from all its lines.
fn write_and_kill(dir: &Path, lines: usize, known: &mut HashMap<String, ExpectedState>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::write_until_killed", "--ignored", "--nocapture"])
        .env("STORE_DIR", dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines_read = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).split(b'\n') {
        let line = String::from_utf8(line.unwrap()).unwrap();
        match Vec::from_iter(line.split(' '))[..] {
            ["try", key] => known.insert(key.to_owned(), ExpectedState::Unknown),
            ["now", key, revision] => {
                let revision: u64 = revision.parse().unwrap();
                known.insert(key.to_owned(), ExpectedState::At((revision > 0).then_some(revision)))
            }
            _ => continue,
        };
        lines_read += 1;
        if lines_read == lines {
            child.kill().unwrap();
        }
    }
    assert!(lines_read >= lines, "the process ended before the kill");
    child.wait().unwrap();
}

#[test]
fn acknowledged_writes_survive_repeated_kills() {
    let kills = std::env::var("KILLS").map_or(12, |kills| kills.parse().unwrap());
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let dir = dir.path().join("store");
    let mut known: HashMap<String, ExpectedState> = HashMap::new();
    let rng = SeededRng::new(7);
    for kill in 0..kills {
        let lines = 200 + (rng.bits() % 8000) as usize;
        write_and_kill(&dir, lines, &mut known);
        let store = open(&dir);
        let rows = runtime().block_on(async { store.range("", "", 0, None).await.unwrap().rows });
        let rows: HashMap<&str, &Row> = rows.iter().map(|row| (&*row.key, row)).collect();
        for (key, known) in &mut known {
            let row = rows.get(key.as_str());
            let found = ExpectedState::At(row.map(|row| row.revision.0));
            if *known == ExpectedState::Unknown {
                *known = found;
            }
            assert_eq!(found, *known, "kill {kill}, key {key}");
            if let Some(row) = row {
                assert_eq!(row.value.len() % key.len(), 0, "kill {kill}, key {key}");
                assert!(row.value.chunks(key.len()).all(|part| part == key.as_bytes()));
            }
        }
        assert!(rows.keys().all(|key| known.contains_key(*key)), "kill {kill}: a key without a write");
    }
}
