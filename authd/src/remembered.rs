//! Answers of other services: each kept for as long as it may be, and asked for once by all who wait for it.
//!
//! # Contract
//!
//! [`Remembered::get`] gives what is kept, or what is asked for now, and how much longer it may be kept. Whoever comes
//! while a question is under way shares its answer, also when it is a failure; what has no time to live is not kept.
//!
//! # Invariants
//!
//! INVARIANT (no separators): keys are whole values and compared whole; nothing is joined into a text first.
//! INVARIANT (bounded): what is kept weighs no more than [`MOST`], and a key that weighs more than [`LARGEST`] is not
//! kept at all.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// Bytes that all keys together may have.
const MOST: u64 = 16 * 1024 * 1024;
/// Bytes of one key: nobody honest asks such questions twice.
const LARGEST: usize = 10_000;
/// What an answer weighs besides its key.
const ANSWER: usize = 256;

/// An answer, and the moment of the monotonic clock at which it ends.
type Ending<V> = (V, Duration);
/// A question under way.
type Asking<V> = Arc<OnceCell<Ending<V>>>;

/// Answers by question.
pub(crate) struct Remembered<K, V> {
    kept: moka::sync::Cache<K, Ending<V>>,
    asking: Mutex<HashMap<K, Asking<V>>>,
    weigh: fn(&K) -> usize,
    clock: Arc<dyn Clock>,
}

impl<K, V> Remembered<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Nothing. `longest` is the longest time to live; `weigh` tells the bytes of a key.
    pub(crate) fn new(longest: Duration, weigh: fn(&K) -> usize, clock: Arc<dyn Clock>) -> Self {
        let weight = move |key: &K, _: &Ending<V>| u32::try_from(weigh(key) + ANSWER).unwrap_or(u32::MAX);
        // The cache's own clock only frees memory; a century is for ever, and as much as it can hold.
        let longest = longest.min(Duration::from_secs(100 * 365 * 24 * 3600));
        let kept = moka::sync::Cache::builder().weigher(weight).max_capacity(MOST).time_to_live(longest);
        Remembered { kept: kept.build(), asking: Mutex::default(), weigh, clock }
    }

    /// What is kept, and how much longer it may be.
    pub(crate) fn known(&self, key: &K) -> Option<(V, Duration)> {
        let now = self.clock.monotonic();
        self.kept.get(key).filter(|(_, end)| now < *end).map(|(answer, end)| (answer, end - now))
    }

    /// The answer to a question. `ask` gives it with its time to live, which counts from when it is called: nobody can
    /// tell when on its way the answer was true.
    pub(crate) async fn get<Asked>(&self, key: &K, ask: impl FnOnce() -> Asked) -> (V, Duration)
    where
        Asked: Future<Output = (V, Duration)>,
    {
        if let Some(known) = self.known(key) {
            return known;
        }
        let asking = Arc::clone(self.asking.lock().entry(key.clone()).or_default());
        let here = Here { of: &self.asking, key, asking: &asking };
        let (answer, end) = asking
            .get_or_init(|| async {
                let begun = self.clock.monotonic();
                let (answer, ttl) = ask().await;
                let end = begun.saturating_add(ttl);
                if !ttl.is_zero() && (self.weigh)(key) <= LARGEST {
                    self.kept.insert(key.clone(), (answer.clone(), end));
                }
                // Whoever comes from now on finds it there, or asks anew.
                here.leave();
                (answer, end)
            })
            .await
            .clone();
        (answer, end.saturating_sub(self.clock.monotonic()))
    }
}

/// Somebody who waits; when the last one goes, the question goes.
struct Here<'a, K: Eq + Hash, V> {
    of: &'a Mutex<HashMap<K, Asking<V>>>,
    key: &'a K,
    asking: &'a Asking<V>,
}

impl<K: Eq + Hash, V> Here<'_, K, V> {
    fn leave(&self) {
        let mut all = self.of.lock();
        if all.get(self.key).is_some_and(|asking| Arc::ptr_eq(asking, self.asking)) {
            all.remove(self.key);
        }
    }
}

impl<K: Eq + Hash, V> Drop for Here<'_, K, V> {
    fn drop(&mut self) {
        // The map's and this one's own.
        if Arc::strong_count(self.asking) <= 2 {
            self.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::ManualClock;
    use futures_util::FutureExt as _;
    use jiff::Timestamp;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Bench {
        clock: Arc<ManualClock>,
        asked: AtomicUsize,
        answers: Remembered<String, usize>,
    }

    fn bench() -> Bench {
        let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
        let answers =
            Remembered::new(Duration::from_secs(60), String::len, Arc::clone(&clock) as Arc<dyn Clock>);
        Bench { clock, asked: AtomicUsize::new(0), answers }
    }

    impl Bench {
        async fn get(&self, key: &str, ttl: u64) -> (usize, Duration) {
            let ask = || async {
                tokio::task::yield_now().await;
                (self.asked.fetch_add(1, Ordering::SeqCst), Duration::from_secs(ttl))
            };
            self.answers.get(&key.to_owned(), ask).await
        }
    }

    #[tokio::test]
    async fn an_answer_is_kept_for_its_time_and_tells_what_is_left() {
        let bench = bench();
        for (passed, want) in [(0, (0, 10)), (9, (0, 1)), (1, (1, 10)), (5, (1, 5))] {
            bench.clock.advance(Duration::from_secs(passed));
            let (answer, left) = bench.get("k", 10).await;
            assert_eq!((answer, left.as_secs()), want);
        }
        assert_eq!(bench.get("other", 10).await.0, 2);
        assert_eq!(bench.get("never", 0).await, (3, Duration::ZERO));
        assert_eq!(bench.get("never", 0).await, (4, Duration::ZERO));
        let slow = || async {
            bench.clock.advance(Duration::from_secs(4));
            (9, Duration::from_secs(10))
        };
        let key = "slow".to_owned();
        assert_eq!(bench.answers.get(&key, slow).await, (9, Duration::from_secs(6)), "from the question on");
        let large = "x".repeat(LARGEST + 1);
        bench.get(&large, 10).await;
        assert_eq!(bench.get(&large, 10).await.0, 6, "too large to be kept");
    }

    #[tokio::test]
    async fn those_who_wait_share_one_question() {
        let bench = bench();
        let all = futures_util::future::join_all((0..50).map(|_| bench.get("k", 0))).await;
        assert!(all.iter().all(|(answer, _)| *answer == 0), "{all:?}");
        assert_eq!(bench.get("k", 0).await.0, 1, "who comes later asks anew");
        assert!(bench.answers.asking.lock().is_empty());
    }

    #[tokio::test]
    async fn a_question_whose_askers_went_away_leaves_nothing_and_one_who_stays_asks() {
        let bench = bench();
        let key = "k".to_owned();
        let mut gone = Box::pin(bench.answers.get(&key, std::future::pending));
        let mut stays = Box::pin(bench.get("k", 0));
        assert!((&mut gone).now_or_never().is_none());
        assert!((&mut stays).now_or_never().is_none());
        drop(gone);
        assert_eq!(stays.await.0, 0);
        let mut alone = Box::pin(bench.answers.get(&key, std::future::pending));
        assert!((&mut alone).now_or_never().is_none());
        drop(alone);
        assert!(bench.answers.asking.lock().is_empty());
    }
}
