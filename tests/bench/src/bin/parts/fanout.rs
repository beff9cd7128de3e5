//! The watch cache: update, snapshot, iteration, fan-out to watchers, and memory of idle watchers.
//!
//! The benchmark passes changes directly to the cache, as the writer thread of an engine does. So the numbers
//! are of the cache alone.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock};
use bench::client::Error;
use bytes::Bytes;
use serving::metrics::resident_bytes;
use storage::cache::{Cache, Decode, DecodeError, Limits, Watcher};
use storage::engine::memory::MemoryStore;
use storage::{Change, Observer, Revision, Row, Store};

/// Flags of the benchmark.
#[derive(clap::Args)]
pub(crate) struct Settings {
    /// Items of 1 kB
    #[arg(long, default_value_t = 150_000)]
    items: usize,
    /// Watchers
    #[arg(long, default_value_t = 200)]
    watchers: usize,
}

/// A decoder whose entry is the length of the value, so that decoding takes no time.
struct Length;

impl Decode for Length {
    type Entry = usize;

    fn decode(&self, _key: &str, value: &Bytes) -> Result<usize, DecodeError> {
        Ok(value.len())
    }
}

/// A source of changes that updates keys in turn.
struct Feed {
    rows: Vec<Option<Row>>,
    revision: u64,
}

impl Feed {
    fn next(&mut self) -> Option<Change> {
        let number = usize::try_from(self.revision).ok()? % self.rows.len();
        self.revision += 1;
        let revision = Revision(self.revision);
        let slot = self.rows.get_mut(number)?;
        let key = slot.as_ref().map_or_else(
            || format!("/pods/namespace-{:03}/pod-{number:06}", number % 100).into(),
            |row| Arc::clone(&row.key),
        );
        let value = Bytes::from(vec![b'x'; 1000]);
        let old = slot.replace(Row { key: Arc::clone(&key), value: value.clone(), revision });
        Some(Change { key, old, new: Some(value), revision })
    }
}

/// The average duration of one repetition in microseconds, if `times` repetitions took `took` in total.
fn micros_each(took: Duration, times: usize) -> f64 {
    took.as_secs_f64() * 1e6 / times as f64
}

async fn count_events(mut watcher: Watcher<Length>, events: usize) -> usize {
    let mut seen = 0;
    while seen < events {
        match watcher.next().await {
            Ok(some) => seen += some.len(),
            Err(_) => break,
        }
    }
    seen
}

#[tokio::main]
pub(crate) async fn run(Settings { items, watchers }: Settings) -> Result<(), Error> {
    let clock = SystemClock::new();

    let cache = Arc::new(Cache::new(Limits::default()));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(cache.clone()));
    cache.attach(&store);
    let pods = cache.resource("/pods/", Length);
    pods.snapshot().await?;
    let mut feed = Feed { rows: vec![None; items], revision: 0 };
    for _ in 0..items {
        cache.observe(&[feed.next().ok_or("no change")?]);
    }

    let changes: Vec<Change> = (0..items.min(20_000)).filter_map(|_| feed.next()).collect();
    let begun = clock.monotonic();
    for change in &changes {
        cache.observe(std::slice::from_ref(change));
    }
    println!("an update without watchers: {:.2} µs", micros_each(clock.monotonic() - begun, changes.len()));

    let changes: Vec<Change> = (0..items.min(2_000)).filter_map(|_| feed.next()).collect();
    let (mut taking, mut updating) = (Duration::ZERO, Duration::ZERO);
    for change in &changes {
        let begun = clock.monotonic();
        let snapshot = pods.snapshot().await?;
        let taken = clock.monotonic();
        cache.observe(std::slice::from_ref(change));
        updating += clock.monotonic() - taken;
        taking += taken - begun;
        drop(snapshot);
    }
    println!("a snapshot: {:.2} µs", micros_each(taking, changes.len()));
    println!("an update while a snapshot is held: {:.2} µs", micros_each(updating, changes.len()));

    let snapshot = pods.snapshot().await?;
    let begun = clock.monotonic();
    let bytes: usize = snapshot.scope("/pods/", "").map(|item| item.value().len()).sum();
    let took = clock.monotonic() - begun;
    println!("a walk over {} items, {bytes} bytes: {:.2} ms", snapshot.len(), took.as_secs_f64() * 1e3);
    drop(snapshot);

    for burst in [1, 1000] {
        let rounds = 1000 / burst;
        let (mut observing, mut delivering) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..rounds {
            let mut readers = Vec::new();
            for _ in 0..watchers {
                let (_, watcher) = pods.snapshot_and_watch("/pods/").await?;
                readers.push(tokio::spawn(count_events(watcher, burst)));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
            let changes: Vec<Change> = (0..burst).filter_map(|_| feed.next()).collect();
            let begun = clock.monotonic();
            for change in &changes {
                cache.observe(std::slice::from_ref(change));
            }
            observing += clock.monotonic() - begun;
            for reader in readers {
                if reader.await? < burst {
                    return Err("a watcher lagged".into());
                }
            }
            delivering += clock.monotonic() - begun;
        }
        let events = burst * rounds;
        println!(
            "{burst} events delivered to {watchers} watchers: {:.1} µs an event to observe, {:.1} µs until all have it, \
             {:.2} µs a watcher and event",
            micros_each(observing, events),
            micros_each(delivering, events),
            micros_each(delivering, events * watchers)
        );
    }

    let before = resident_bytes().ok_or("no memory")?;
    let mut waiting = Vec::new();
    for number in 0..10_000 {
        let (_, watcher) = pods.snapshot_and_watch(&format!("/pods/namespace-{:03}/", number % 100)).await?;
        waiting.push(watcher);
    }
    println!(
        "a waiting watcher: {} bytes",
        resident_bytes().ok_or("no memory")?.saturating_sub(before) / 10_000
    );
    let change = feed.next().ok_or("no change")?;
    let begun = clock.monotonic();
    cache.observe(&[change]);
    println!(
        "an update among 10,000 watchers of 100 namespaces: {:.2} µs",
        micros_each(clock.monotonic() - begun, 1)
    );
    drop(waiting);
    Ok(())
}
