//! Random writers and readers: every snapshot and every watch is compared with the store's history.

use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::Row;

const SCOPES: &[&str] = &["/pods/", "/pods/a/", "/pods/b/", "/pods/a/0", "/pods/none/"];
const KEYS: &[&str] = &[
    "/pods/a/0",
    "/pods/a/1",
    "/pods/a/2",
    "/pods/b/0",
    "/pods/b/1",
    "/pods/ab/0",
    "/nodes/0",
    "/nodes/1",
    "/other",
];

/// One change as a watcher saw it: key, values before and after, revision.
type SeenChange = (String, Option<Bytes>, Option<Bytes>, u64);

fn expected(fake: &FakeStore, scope: &str, after: Revision) -> Vec<SeenChange> {
    let of_scope = |key: &str| if scope.ends_with('/') { key.starts_with(scope) } else { key == scope };
    let changes =
        fake.changes().into_iter().filter(|change| change.revision > after && of_scope(&change.key));
    changes
        .map(|change| {
            (change.key.to_string(), change.old.map(|row| row.value), change.new, change.revision.0)
        })
        .collect()
}

fn seen(event: &Event<Text>) -> SeenChange {
    let value = |item: Option<&Arc<Item<Text>>>| item.map(|item| item.value().clone());
    if let Some(item) = event.after() {
        assert_eq!(item.revision(), event.revision());
    }
    (event.key().to_owned(), value(event.before()), value(event.after()), event.revision().0)
}

fn writer(fake: &FakeStore, mut random: SmallRng, batches: usize) {
    for batch in 0..batches {
        let value = format!("{batch}-{}", "x".repeat(random.random_range(0..100)));
        let writes: Vec<_> = (0..random.random_range(1..5))
            .map(|_| {
                let key = KEYS[random.random_range(0..KEYS.len())];
                (key, random.random_bool(0.7).then_some(value.as_str()))
            })
            .collect();
        fake.write(&writes);
        std::thread::yield_now();
    }
}

/// Reads a past state from memory, if available, and compares it with the history.
async fn check_past_snapshot(fake: &FakeStore, pods: &Arc<Resource<Text>>, random: &mut SmallRng) {
    let newest = fake.newest();
    let at = Revision(random.random_range(0..=newest.0));
    let Some(snapshot) = pods.snapshot_at(at).await.unwrap() else { return };
    let mut rows = fake.rows(Some(at));
    rows.retain(|key, _| key.starts_with("/pods/"));
    let found: Vec<Row> = snapshot.scope("/pods/", "").map(|item| item.row().clone()).collect();
    assert_eq!((snapshot.revision(), found), (at, rows.into_values().collect::<Vec<_>>()), "state at {at}");
}

/// Starts at a random point, watches until the writers finish, and resumes after every lag.
async fn reader(
    fake: Arc<FakeStore>,
    pods: Arc<Resource<Text>>,
    mut random: SmallRng,
    mut done: tokio::sync::watch::Receiver<bool>,
) -> usize {
    let scope = SCOPES[random.random_range(0..SCOPES.len())];
    let (start, mut watcher) = match random.random_range(0..3) {
        0 => {
            let start = Revision(random.random_range(0..=pods.snapshot().await.unwrap().revision().0));
            (start, pods.watch(scope, start).await.unwrap())
        }
        choice => {
            let (snapshot, watcher) = match choice {
                1 => pods.snapshot_and_watch(scope).await.unwrap(),
                _ => {
                    let snapshot = pods.snapshot().await.unwrap();
                    tokio::task::yield_now().await;
                    let watcher = pods.watch(scope, snapshot.revision()).await.unwrap();
                    (snapshot, watcher)
                }
            };
            // The observer may be ahead of the revision that the store makes readable.
            while fake.newest() < snapshot.revision() {
                tokio::task::yield_now().await;
            }
            let mut rows = fake.rows(Some(snapshot.revision()));
            rows.retain(|key, _| key.starts_with("/pods/"));
            let listed: Vec<Row> = snapshot.scope("/pods/", "").map(|item| item.row().clone()).collect();
            assert_eq!(listed, rows.into_values().collect::<Vec<_>>(), "snapshot at {}", snapshot.revision());
            (snapshot.revision(), watcher)
        }
    };
    let mut delivered = Vec::new();
    let mut lagged = 0;
    loop {
        let finished = *done.borrow_and_update();
        let last = fake.newest();
        tokio::select! {
            biased;
            events = watcher.next() => match events {
                Ok(events) => {
                    delivered.extend(events.iter().map(|event| seen(event)));
                    let progress = watcher.progress();
                    assert!(progress >= events.last().unwrap().revision());
                }
                Err(WatchError::Lagged { position }) => {
                    lagged += 1;
                    watcher = pods.watch(scope, position).await.unwrap();
                }
                Err(error) => panic!("{error}"),
            },
            _ = done.changed(), if !finished => {}
            () = tokio::task::yield_now(), if finished => {
                if watcher.progress() >= last {
                    break;
                }
            }
        }
        if random.random_bool(0.1) {
            check_past_snapshot(&fake, &pods, &mut random).await;
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(delivered, expected(&fake, scope, start), "scope `{scope}` after {start}");
    lagged
}

/// One run: three writers and twelve readers, started one after the other; the first reader loads the
/// resource.
async fn run(seed: u64) -> usize {
    let mut random = SmallRng::seed_from_u64(seed);
    let limits = Limits {
        ring_bytes: [3_000, 40_000, 1 << 20][random.random_range(0..3)],
        batch_bytes: [1, 2_000, 1 << 20][random.random_range(0..3)],
        ..Limits::default()
    };
    let Setup { fake, pods, cache, .. } = setup(limits);
    let nodes = cache.resource("/nodes/", Text::default());
    fake.readable_first.store(random.random_bool(0.5), Ordering::SeqCst);
    if random.random_bool(0.5) {
        nodes.snapshot().await.unwrap();
    }
    let (finish, done) = tokio::sync::watch::channel(false);
    let writers: Vec<_> = (0..3)
        .map(|_| {
            let (fake, random) = (Arc::clone(&fake), SmallRng::from_rng(&mut random));
            std::thread::spawn(move || writer(&fake, random, 60))
        })
        .collect();
    let mut readers = Vec::new();
    for _ in 0..12 {
        let random = SmallRng::from_rng(&mut random);
        readers.push(tokio::spawn(reader(Arc::clone(&fake), Arc::clone(&pods), random, done.clone())));
        tokio::task::yield_now().await;
    }
    for writer in writers {
        tokio::task::spawn_blocking(move || writer.join()).await.unwrap().unwrap();
    }
    finish.send_replace(true);
    let mut lagged = 0;
    for reader in readers {
        lagged += reader.await.unwrap();
    }
    assert_eq!(pods.snapshot().await.unwrap().revision(), fake.newest());
    lagged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn random_readers_see_each_change_once_in_order() {
    let seeds = match std::env::var("CACHE_SEED") {
        Ok(seed) => seed.parse().map(|seed: u64| seed..=seed).unwrap(),
        Err(_) => {
            let first = rand::random::<u32>().into();
            first..=first + 60
        }
    };
    let mut lagged = 0;
    for seed in seeds {
        println!("CACHE_SEED={seed}");
        lagged += run(seed).await;
    }
    println!("watchers lagged and resumed {lagged} times");
}
