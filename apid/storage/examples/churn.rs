//! Writes to a fjall store at full speed and prints how it bears it: commits a second, the slowest of a hundred,
//! flushes, journals, memory. Shows that flushing never stops and journals stay bounded.
//!
//! `churn [--writers 32] [--seconds 60] [--value 1000] [--keys 20000] [--retention 10] [--cache 4] [--dir DIR]`
//!
//! Every writer creates, updates and now and then deletes its own keys. Without `--dir` the store is in a new directory
//! below the system's temporary one and is removed at the end.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::clock::{Chance, Clock, SeededChance, SystemClock};
use bytes::Bytes;
use storage::engine::fjall::{FjallStore, Identity, Options, Stats};
use storage::{Change, Observer, Op, Revision, Store};

struct Settings {
    writers: u64,
    seconds: u64,
    value: usize,
    keys: u64,
    retention: u64,
    cache: u64,
    dir: Option<PathBuf>,
}

fn settings() -> Result<Settings, Box<dyn Error>> {
    let mut settings =
        Settings { writers: 32, seconds: 60, value: 1000, keys: 20_000, retention: 10, cache: 4, dir: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("`{name}` needs a value"))?;
        match name.as_str() {
            "--writers" => settings.writers = value.parse()?,
            "--seconds" => settings.seconds = value.parse()?,
            "--value" => settings.value = value.parse()?,
            "--keys" => settings.keys = value.parse()?,
            "--retention" => settings.retention = value.parse()?,
            "--cache" => settings.cache = value.parse()?,
            "--dir" => settings.dir = Some(value.into()),
            _ => return Err(format!("`{name}` is not known").into()),
        }
    }
    Ok(settings)
}

/// Counts what it sees.
#[derive(Default)]
struct Count(AtomicU64);

impl Observer for Count {
    fn observe(&self, changes: &[Change]) {
        self.0.fetch_add(changes.len() as u64, Ordering::Relaxed);
    }
}

/// Latencies in buckets that grow by 2 to the power of 1/8.
struct Latencies(Vec<AtomicU64>);

impl Latencies {
    const BUCKETS: usize = 256;

    fn new() -> Self {
        Latencies((0..Self::BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    fn record(&self, latency: Duration) {
        let micros = latency.as_micros().max(1) as f64;
        let bucket = ((micros.log2() * 8.0) as usize).min(Self::BUCKETS - 1);
        if let Some(bucket) = self.0.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The latency that a part of all, in thousandths, is not above.
    fn quantile(&self, thousandths: u64) -> Duration {
        let total: u64 = self.0.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        let mut below = 0;
        for (index, bucket) in self.0.iter().enumerate() {
            below += bucket.load(Ordering::Relaxed);
            if below * 1000 >= total * thousandths {
                return Duration::from_micros(((index + 1) as f64 / 8.0).exp2() as u64);
            }
        }
        Duration::ZERO
    }
}

/// Resident memory in MiB.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    (pages * 4096) >> 20
}

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(churn(settings()?))
}

async fn churn(settings: Settings) -> Result<(), Box<dyn Error>> {
    let clock = Arc::new(SystemClock::new());
    let temporary = std::env::temp_dir().join(format!("churn-{}", std::process::id()));
    let dir = settings.dir.clone().unwrap_or_else(|| temporary.clone());
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    let mut options = Options::new(&dir, identity, clock.clone());
    options.history_retention = Duration::from_secs(settings.retention);
    options.cache_bytes = settings.cache << 20;
    println!("resident {} MiB before the store is opened", resident());
    let began = clock.monotonic();
    let count = Arc::new(Count::default());
    let store = Arc::new(FjallStore::open(options.clone(), count.clone())?);
    println!("opened in {:?}, resident {} MiB", clock.monotonic() - began, resident());

    let latencies = Arc::new(Latencies::new());
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..settings.writers {
        let (store, latencies, stop, clock) = (store.clone(), latencies.clone(), stop.clone(), clock.clone());
        let (value, keys) = (settings.value, settings.keys / settings.writers.max(1));
        writers.spawn(
            async move { write(&store, writer, value, keys.max(1), &latencies, &stop, &*clock).await },
        );
    }
    let began = clock.monotonic();
    let mut last = 0;
    let step = 5.min(settings.seconds.max(1));
    for second in (step..=settings.seconds).step_by(step as usize) {
        tokio::time::sleep((began + Duration::from_secs(second)).saturating_sub(clock.monotonic())).await;
        let observed = count.0.load(Ordering::Relaxed);
        println!("{second:4} s {:7}/s {}", (observed - last) / step, line(store.stats()));
        last = observed;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let elapsed = clock.monotonic() - began;
    let observed = count.0.load(Ordering::Relaxed);
    println!("{observed} commits, {:.0}/s", observed as f64 / elapsed.as_secs_f64());
    for (name, thousandths) in [("half", 500), ("99 %", 990), ("99.9 %", 999)] {
        println!("{name} of commits within {:?}", latencies.quantile(thousandths));
    }
    let began = clock.monotonic();
    store.close().await;
    println!("closed in {:?}, resident {} MiB", clock.monotonic() - began, resident());
    drop(store);
    let began = clock.monotonic();
    let store = FjallStore::open(options, count)?;
    println!("opened again in {:?} at revision {}", clock.monotonic() - began, store.revision());
    store.close().await;
    if settings.dir.is_none() {
        std::fs::remove_dir_all(temporary)?;
    }
    Ok(())
}

fn line(stats: Stats) -> String {
    format!(
        "revision {} compacted {} trimmed {} sealed {} of {} memtables {} MiB journals {} {} MiB tables {} {} MiB resident {} MiB",
        stats.revision,
        stats.compacted,
        stats.trimmed,
        stats.sealed_memtables,
        stats.rotations,
        stats.memtable_bytes >> 20,
        stats.journals,
        stats.journal_bytes >> 20,
        stats.tables,
        stats.table_bytes >> 20,
        resident(),
    )
}

async fn write(
    store: &FjallStore,
    writer: u64,
    value: usize,
    keys: u64,
    latencies: &Latencies,
    stop: &AtomicBool,
    clock: &dyn Clock,
) -> storage::Result<()> {
    let chance = SeededChance::new(writer);
    let mut revisions: Vec<Option<Revision>> = vec![None; keys as usize];
    // Not compressible, so that bytes on disk are bytes written.
    let noise: Bytes =
        std::iter::repeat_with(|| chance.bits().to_le_bytes()).flatten().take(value + 4096).collect();
    while !stop.load(Ordering::Relaxed) {
        let bits = chance.bits();
        let number = (bits % u128::from(keys)) as usize;
        let from = ((bits >> 64) % 4096) as usize;
        let value = noise.slice(from..from + value);
        let Some(revision) = revisions.get_mut(number) else { continue };
        let op = match *revision {
            None => Op::Create(value),
            Some(at) if bits >> 120 < 16 => Op::Delete(at),
            Some(at) => Op::Update(value, at),
        };
        let deleting = matches!(op, Op::Delete(_));
        let began = clock.monotonic();
        match store.commit(&format!("churn/{writer:04}/{number:08}"), op).await {
            Ok(committed) => *revision = (!deleting).then_some(committed.revision),
            // Of an earlier run in the same directory.
            Err(storage::Error::Exists(row)) => *revision = Some(row.revision),
            Err(error) => return Err(error),
        }
        latencies.record(clock.monotonic() - began);
    }
    Ok(())
}
