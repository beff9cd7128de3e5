//! Keys rotate under load while the process is killed: every acknowledged write survives and is readable.
//!
//! The test starts itself as the writing process. Each process encrypts with a new key and rewrites the values of the
//! earlier ones while clients write. A key leaves the configuration after a complete rewrite. `KILLS=200` sets the number
//! of kills; tests/README.md has the run time.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Rng, SeededRng, SystemClock};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use encryption::{Encryption, rewrite};
use serde_json::{Value, json};
use storage::engine::fjall::{FjallStore, Identity, Options};
use storage::{Error, Observers, Op, Store, unreadable_reason};

use crate::environment::{for_secrets, start};

const WRITERS: u64 = 16;
const KEYS: u64 = 20;
/// One of so many processes lives until all values have its key, so that the earlier keys leave the configuration.
const ROTATION_ROUNDS: u64 = 5;
const PREFIX: &str = "/registry/secrets/";
/// Environment variable with the directory of the store.
const DIR: &str = "ROTATION_DIR";
/// Environment variable with the number of the process, which selects its key.
const GENERATION: &str = "ROTATION_GENERATION";
/// Environment variable with the first key that may still be in use.
const OLDEST: &str = "ROTATION_OLDEST";

/// The provider of a generation: its kind changes too.
fn provider(generation: u64) -> Value {
    let kind = ["aesgcm", "secretbox", "aescbc"][usize::try_from(generation % 3).unwrap()];
    let mut secret = [0; 32];
    secret[..8].copy_from_slice(&generation.to_be_bytes());
    let key = json!({"name": format!("key-{generation}"), "secret": STANDARD.encode(secret)});
    json!({kind: {"keys": [key]}})
}

/// Encryption with the key of a generation and the earlier ones, down to `oldest`.
async fn encryption(generation: u64, oldest: u64) -> Arc<Encryption> {
    let providers: Vec<Value> = (oldest..=generation).rev().map(provider).collect();
    start(&for_secrets(&json!(providers))).await
}

fn open(dir: &Path, encryption: &Arc<Encryption>) -> Arc<dyn Store> {
    let identity = Identity { preset: "kubernetes".to_owned(), api_domain: "svc.internal".to_owned() };
    let options = Options {
        memtable_bytes: 512 << 10,
        reserve_bytes: 0,
        // The time to open the store does not grow with the number of kills.
        history_retention: Duration::from_secs(1),
        ..Options::new(dir, identity, Arc::new(SystemClock::new()))
    };
    let observer = encryption.observer(Arc::new(Observers(Vec::new())));
    Arc::new(FjallStore::open(options, observer).unwrap())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn number(name: &str) -> u64 {
    std::env::var(name).unwrap().parse().unwrap()
}

/// Prints one line in one write: a kill leaves complete lines, or the start of the last one.
fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Output of the writing process: `try KEY` before a write, `now KEY TEXT` after its commit, with `-` for a delete,
/// and `rewritten` when all values have the key of the generation.
#[test]
#[ignore = "the writing process of `acknowledged_writes_survive_key_rotation_and_kills`"]
fn write_and_rotate_until_killed() {
    let dir = std::env::var_os(DIR).unwrap();
    runtime().block_on(async {
        let encryption = encryption(number(GENERATION), number(OLDEST)).await;
        let engine = open(Path::new(&dir), &encryption);
        let store = encryption.store(Arc::clone(&engine));
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            tasks.spawn(write(Arc::clone(&store), writer));
        }
        tasks.spawn(async move {
            let result = rewrite(&encryption, &engine, |_| ()).await.unwrap();
            assert_eq!(result.unreadable, 0, "{:?}", result.unreadable_keys);
            print_line("rewritten");
        });
        tasks.join_all().await;
    });
}

async fn write(store: Arc<dyn Store>, writer: u64) {
    let rng = SeededRng::new(u64::from(std::process::id()) << 32 | writer);
    loop {
        let bits = rng.bits();
        let key = format!("{PREFIX}{writer}/{}", bits % u128::from(KEYS));
        let text = format!("value-{bits:x}");
        print_line(&format!("try {key}"));
        let is_deleted = loop {
            let row = store.get(&key, None).await.unwrap();
            let value = Bytes::from(format!("{text} ").repeat(1 + (bits >> 64) as usize % 50));
            let op = match row {
                None => Op::Create(value),
                Some(row) if bits >> 120 < 40 => Op::Delete(row.revision),
                Some(row) => Op::Update(value, row.revision),
            };
            let is_deleted = matches!(op, Op::Delete(_));
            match store.commit(&key, op).await {
                Ok(_) => break is_deleted,
                // The rewrite has written the value anew.
                Err(Error::Conflict(_)) => {}
                Err(error) => panic!("{error}"),
            }
        };
        print_line(&format!("now {key} {}", if is_deleted { "-" } else { &text }));
    }
}

/// The expected state of a key.
#[derive(Clone, Debug, PartialEq)]
enum ExpectedState {
    /// The key has this text; None for an absent key.
    Text(Option<String>),
    /// A write without a result: its outcome is unknown.
    Unknown,
}

/// Starts the process and kills it after some lines, and after the rewrite of all values if `waits_for_rewrite`. Returns
/// whether it has rewritten all values.
fn write_and_kill(
    (dir, generation, oldest): (&Path, u64, u64),
    (lines, waits_for_rewrite): (usize, bool),
    known: &mut HashMap<String, ExpectedState>,
) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::write_and_rotate_until_killed", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(GENERATION, generation.to_string())
        .env(OLDEST, oldest.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut lines_read, mut is_rewritten, mut is_killed) = (0, false, false);
    for line in BufReader::new(child.stdout.take().unwrap()).split(b'\n') {
        let line = String::from_utf8(line.unwrap()).unwrap();
        match Vec::from_iter(line.split(' '))[..] {
            ["try", key] => {
                known.insert(key.to_owned(), ExpectedState::Unknown);
                lines_read += 1;
            }
            ["now", key, text] => {
                let text = (text != "-").then(|| text.to_owned());
                known.insert(key.to_owned(), ExpectedState::Text(text));
                lines_read += 1;
            }
            ["rewritten"] => is_rewritten = true,
            _ => continue,
        }
        if !is_killed && lines_read >= lines && (is_rewritten || !waits_for_rewrite) {
            child.kill().unwrap();
            is_killed = true;
        }
    }
    assert!(lines_read >= lines, "the process ended before the kill");
    child.wait().unwrap();
    is_rewritten
}

#[test]
fn acknowledged_writes_survive_key_rotation_and_kills() {
    let kills: u64 = std::env::var("KILLS").map_or(6, |kills| kills.parse().unwrap());
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let dir = dir.path().join("store");
    let mut known: HashMap<String, ExpectedState> = HashMap::new();
    let (rng, mut oldest, mut rotations) = (SeededRng::new(11), 0, 0);
    for generation in 0..kills {
        let lines = 200 + (rng.bits() % 1500) as usize;
        // The rewrite takes longer than most rounds on a busy machine.
        let waits_for_rewrite = generation % ROTATION_ROUNDS == ROTATION_ROUNDS - 1;
        if write_and_kill((&dir, generation, oldest), (lines, waits_for_rewrite), &mut known) {
            oldest = generation;
            rotations += 1;
        }
        let rows = runtime().block_on(async {
            let encryption = encryption(generation, oldest).await;
            let store = encryption.store(open(&dir, &encryption));
            let rows = store.range(PREFIX, "", 0, None).await.unwrap().rows;
            store.close().await;
            rows
        });
        let mut texts: HashMap<&str, String> = HashMap::new();
        for row in &rows {
            assert_eq!(unreadable_reason(&row.value), None, "kill {generation}, key {}", row.key);
            let text = String::from_utf8(row.value.to_vec()).unwrap();
            let first = text.split(' ').next().unwrap().to_owned();
            assert!(text.split_terminator(' ').all(|part| part == first), "kill {generation}: {text}");
            texts.insert(&row.key, first);
        }
        for (key, known) in &mut known {
            let found = ExpectedState::Text(texts.get(key.as_str()).cloned());
            if *known == ExpectedState::Unknown {
                *known = found.clone();
            }
            assert_eq!(found, *known, "kill {generation}, key {key}");
        }
        assert!(texts.keys().all(|key| known.contains_key(*key)), "kill {generation}: a key without a write");
    }
    println!("{kills} kills, {rotations} complete rotations, {} keys", known.len());
    assert!(rotations >= kills / ROTATION_ROUNDS, "{rotations} complete rotations");
}
