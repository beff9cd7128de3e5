//! Fills a fjall store, closes it, and measures the time to open it again.
//!
//! Opening verifies the checksum of every file. The target is at most 3 s for 1 GB.
//!
//! `reopen [--megabytes 1000] [--value 1000] [--times 5] [--kill 1] [--dir DIR]`. With `--kill 1` the store
//! is not closed: the benchmark opens a copy of its files as a kill leaves them, with full journals. Without
//! `--dir` the store is in a new directory below the system's temporary directory, removed at the end.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use bytes::Bytes;
use storage::engine::fjall::{FjallStore, Identity, Options};
use storage::{Change, Observer, Op, Store};

/// Number of concurrent writers.
const WRITERS: u64 = 64;

struct Settings {
    megabytes: u64,
    value: usize,
    times: u32,
    kill: u32,
    dir: Option<PathBuf>,
}

fn settings() -> Result<Settings, Box<dyn Error>> {
    let mut settings = Settings { megabytes: 1000, value: 1000, times: 5, kill: 0, dir: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("`{name}` needs a value"))?;
        match name.as_str() {
            "--megabytes" => settings.megabytes = value.parse()?,
            "--value" => settings.value = value.parse()?,
            "--times" => settings.times = value.parse()?,
            "--kill" => settings.kill = value.parse()?,
            "--dir" => settings.dir = Some(value.into()),
            _ => return Err(format!("unknown flag `{name}`").into()),
        }
    }
    Ok(settings)
}

struct NullObserver;

impl Observer for NullObserver {
    fn observe(&self, _: &[Change]) {}
}

fn open(dir: &Path, clock: &Arc<SystemClock>) -> Result<FjallStore, Box<dyn Error>> {
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    Ok(FjallStore::open(Options::new(dir, identity, clock.clone()), Arc::new(NullObserver))?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(run(settings()?))
}

async fn run(settings: Settings) -> Result<(), Box<dyn Error>> {
    let clock = Arc::new(SystemClock::new());
    let temporary = std::env::temp_dir().join(format!("reopen-{}", std::process::id()));
    let dir = settings.dir.clone().unwrap_or_else(|| temporary.clone());
    let mut store = Arc::new(open(&dir, &clock)?);
    let began = clock.monotonic();
    let rows = settings.megabytes * 1_000_000 / settings.value.max(1) as u64;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (store, value) = (store.clone(), settings.value);
        writers.spawn(async move {
            let rng = SeededRng::new(writer);
            // Incompressible, so that bytes on disk equal bytes written.
            let noise: Bytes =
                std::iter::repeat_with(|| rng.bits().to_le_bytes()).flatten().take(value + 4096).collect();
            for number in (writer..rows).step_by(WRITERS as usize) {
                let from = (rng.bits() % 4096) as usize;
                match store
                    .commit(&format!("reopen/{number:010}"), Op::Create(noise.slice(from..from + value)))
                    .await
                {
                    Ok(_) | Err(storage::Error::Exists(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    println!("{rows} objects of {} bytes written in {:?}", settings.value, clock.monotonic() - began);
    for _ in 0..settings.times {
        let stats = store.stats();
        let (tables, journals) = (stats.table_bytes >> 20, stats.journals);
        if settings.kill > 0 {
            // The store stays open during the copy: the copy is in the state after a kill, without a close.
            let copy = dir.with_extension("killed");
            let copied = std::process::Command::new("cp").arg("-r").arg(&dir).arg(&copy).status()?;
            if !copied.success() {
                return Err("copying the files failed".into());
            }
            let began = clock.monotonic();
            let killed = open(&copy, &clock)?;
            println!(
                "{tables} MiB of tables, {journals} journals: open after a kill in {:?}",
                clock.monotonic() - began
            );
            killed.close().await;
            std::fs::remove_dir_all(copy)?;
        }
        store.close().await;
        drop(store);
        let began = clock.monotonic();
        store = Arc::new(open(&dir, &clock)?);
        println!("{tables} MiB of tables, {journals} journals: open in {:?}", clock.monotonic() - began);
        let found = store.range("reopen/", "reopen/0000000010", 1, None).await?;
        assert_eq!(found.rows.len(), 1, "an object exists");
    }
    store.close().await;
    if settings.dir.is_none() {
        std::fs::remove_dir_all(temporary)?;
    }
    Ok(())
}
