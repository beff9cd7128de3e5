//! Fills a fjall store, closes it, and measures the time to open it again.
//!
//! Opening verifies the checksum of every file. The target is at most 3 s for 1 GB.
//!
//! With `--kill` the store is not closed: the benchmark opens a copy of its files as a kill leaves them, with
//! full journals.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use bench::client::Error;
use bytes::Bytes;
use storage::engine::fjall::{FjallStore, Identity, Options};
use storage::{Change, Observer, Op, Store};

/// Number of concurrent writers.
const WRITERS: u64 = 64;

/// Flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Size of the data
    #[arg(long, default_value_t = 1000)]
    megabytes: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1000)]
    value: usize,
    /// Number of measurements
    #[arg(long, default_value_t = 5)]
    times: u32,
    /// Open a copy of the store that is not closed
    #[arg(long)]
    kill: bool,
    /// Folder of the store, which stays; default: a temporary folder
    #[arg(long)]
    dir: Option<PathBuf>,
}

struct NullObserver;

impl Observer for NullObserver {
    fn observe(&self, _: &[Change]) {}
}

fn open(dir: &Path, clock: &Arc<SystemClock>) -> Result<FjallStore, Error> {
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    Ok(FjallStore::open(Options::new(dir, identity, clock.clone()), Arc::new(NullObserver))?)
}

#[tokio::main]
pub(crate) async fn run(settings: Settings) -> Result<(), Error> {
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
        if settings.kill {
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
