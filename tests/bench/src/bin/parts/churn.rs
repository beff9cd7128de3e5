//! Load generator for a fjall store, at full speed or at a fixed rate.
//!
//! Prints commits per second, tail latencies, flushes, journals, memory and disk usage. A correct store shows
//! three properties: flushes never stop, the number of journals stays limited, and memory and disk usage stop
//! growing once history is trimmed. At the end the program prints the maximum memory and disk usage in the
//! second quarter of the run and in the last quarter.
//!
//! Every writer creates, updates and sometimes deletes its own keys.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::clock::{Clock, Rng, SeededRng, SystemClock};
use bench::client::Error;
use bench::process::disk_mib;
use bytes::Bytes;
use serving::metrics::resident_bytes;
use storage::Stats;
use storage::engine::fjall::{FjallStore, Identity, Options};
use storage::{Change, Observer, Op, Revision, Store};

/// Flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Writers
    #[arg(long, default_value_t = 32)]
    writers: u64,
    /// Duration
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Writes per second of all writers; 0: full speed
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Seconds between two lines of output
    #[arg(long, default_value_t = 5)]
    every: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1000)]
    value: usize,
    /// Keys of all writers
    #[arg(long, default_value_t = 20_000)]
    keys: u64,
    /// History retention in seconds
    #[arg(long, default_value_t = 10)]
    retention: u64,
    /// Cache of the store in MiB
    #[arg(long, default_value_t = 4)]
    cache: u64,
    /// Folder of the store, which stays; default: a temporary folder
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// An observer that counts changes.
#[derive(Default)]
struct CountingObserver(AtomicU64);

impl Observer for CountingObserver {
    fn observe(&self, changes: &[Change]) {
        self.0.fetch_add(changes.len() as u64, Ordering::Relaxed);
    }
}

/// A latency histogram whose bucket limits grow by a factor of 2^(1/8).
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

    /// The upper limit of the bucket in which the cumulative count reaches `thousandths` of all records.
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
fn resident_mib() -> u64 {
    resident_bytes().unwrap_or_default() >> 20
}

/// The maximum in the second quarter of the samples, and in the last quarter.
fn quarter_maxima(samples: &[u64]) -> (u64, u64) {
    let quarter = samples.len() / 4;
    let maximum_from =
        |from: usize| samples.iter().skip(from).take(quarter.max(1)).copied().max().unwrap_or_default();
    (maximum_from(quarter), maximum_from(samples.len().saturating_sub(quarter.max(1))))
}

#[tokio::main]
pub(crate) async fn run(settings: Settings) -> Result<(), Error> {
    let clock = Arc::new(SystemClock::new());
    let temporary = std::env::temp_dir().join(format!("churn-{}", std::process::id()));
    let dir = settings.dir.clone().unwrap_or_else(|| temporary.clone());
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    let mut options = Options::new(&dir, identity, clock.clone());
    options.history_retention = Duration::from_secs(settings.retention);
    options.cache_bytes = settings.cache << 20;
    println!("resident {} MiB before the store is opened", resident_mib());
    let began = clock.monotonic();
    let count = Arc::new(CountingObserver::default());
    let store = Arc::new(FjallStore::open(options.clone(), count.clone())?);
    println!("opened in {:?}, resident {} MiB", clock.monotonic() - began, resident_mib());

    let latencies = Arc::new(Latencies::new());
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..settings.writers {
        let (store, latencies, stop, clock) = (store.clone(), latencies.clone(), stop.clone(), clock.clone());
        let (value, keys) = (settings.value, settings.keys / settings.writers.max(1));
        let pause =
            (settings.rate > 0).then(|| Duration::from_secs(settings.writers).div_f64(settings.rate as f64));
        let pace = Pace { pause, keys: keys.max(1), value };
        writers.spawn(async move { write(&store, writer, pace, &latencies, &stop, &*clock).await });
    }
    let began = clock.monotonic();
    let mut last = 0;
    let (mut memory, mut disk) = (Vec::new(), Vec::new());
    let step = settings.every.clamp(1, settings.seconds.max(1));
    for second in (step..=settings.seconds).step_by(step as usize) {
        tokio::time::sleep((began + Duration::from_secs(second)).saturating_sub(clock.monotonic())).await;
        let observed = count.0.load(Ordering::Relaxed);
        memory.push(resident_mib());
        disk.push(disk_mib(&dir)? as u64);
        let disk = disk.last().copied().unwrap_or_default();
        println!(
            "{second:4} s {:7}/s {} disk {disk} MiB",
            (observed - last) / step,
            format_stats(store.stats())
        );
        last = observed;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let elapsed = clock.monotonic() - began;
    let observed = count.0.load(Ordering::Relaxed);
    println!("{observed} commits, {:.0}/s", observed as f64 / elapsed.as_secs_f64());
    for (name, samples) in [("resident", &memory), ("disk", &disk)] {
        let (second, last) = quarter_maxima(samples);
        println!("{name}: at most {second} MiB in the second quarter, {last} MiB in the last");
    }
    for (name, thousandths) in [("half", 500), ("99 %", 990), ("99.9 %", 999)] {
        println!("{name} of commits within {:?}", latencies.quantile(thousandths));
    }
    let began = clock.monotonic();
    store.close().await;
    println!("closed in {:?}, resident {} MiB", clock.monotonic() - began, resident_mib());
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

fn format_stats(stats: Stats) -> String {
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
        resident_mib(),
    )
}

/// The write rate, the number of keys and the value size in bytes of one writer.
#[derive(Clone, Copy)]
struct Pace {
    /// Interval between writes; None for full speed.
    pause: Option<Duration>,
    keys: u64,
    value: usize,
}

async fn write(
    store: &FjallStore,
    writer: u64,
    Pace { pause, keys, value }: Pace,
    latencies: &Latencies,
    stop: &AtomicBool,
    clock: &dyn Clock,
) -> storage::Result<()> {
    let rng = SeededRng::new(writer);
    let mut revisions: Vec<Option<Revision>> = vec![None; keys as usize];
    // Incompressible, so that bytes on disk equal bytes written.
    let noise: Bytes =
        std::iter::repeat_with(|| rng.bits().to_le_bytes()).flatten().take(value + 4096).collect();
    let mut next = clock.monotonic();
    while !stop.load(Ordering::Relaxed) {
        if let Some(pause) = pause {
            next += pause;
            tokio::time::sleep(next.saturating_sub(clock.monotonic())).await;
        }
        let bits = rng.bits();
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
            // The row is from an earlier run in the same directory.
            Err(storage::Error::Exists(row)) => *revision = Some(row.revision),
            Err(error) => return Err(error),
        }
        latencies.record(clock.monotonic() - began);
    }
    Ok(())
}
