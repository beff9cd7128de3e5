//! Single-flight cache for the responses of remote services, with a TTL per response.
//!
//! # Contract
//!
//! [`Remembered::get`] returns the cached or the newly fetched response and its remaining TTL. A response
//! without a TTL is not cached. Fetches of one key run one after the other. A waiter that arrives during a
//! fetch takes its response if the TTL has not expired on arrival. Otherwise one more fetch runs for all
//! waiters that arrived meanwhile, and they also share a failure. So a waiter waits for at most two fetches,
//! and the service has at most one fetch per key at a time.
//!
//! # Invariants
//!
//! INVARIANT (never past its TTL): a response serves waiters that arrived before its fetch began, and others
//! only within its TTL. The TTL counts from the start of the fetch. So a request made after the removal of a
//! right is not allowed by an earlier fetch, except within the TTL.
//! INVARIANT (no separators): keys are whole values and compared whole; they are never joined into one
//! string.
//! INVARIANT (memory limit): cached entries weigh at most [`MOST`], and a key that weighs more than
//! [`LARGEST`] is not cached. A pending fetch is dropped with its last waiter.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;

/// Limit in bytes for all keys together.
const MOST: u64 = 16 * 1024 * 1024;
/// Limit in bytes for one key: legitimate requests of that size do not repeat.
const LARGEST: usize = 10_000;
/// Weight of a response besides its key, in bytes.
const ANSWER: usize = 256;

/// A response and the moment of the monotonic clock at which it expires.
type Ending<V> = (V, Duration);

/// The fetches of one key, one after the other.
struct Questions<V> {
    /// Number of fetches started.
    begun: AtomicU64,
    /// The number of the last completed fetch, with its response. The lock holder runs the fetch.
    last: tokio::sync::Mutex<Option<(u64, Ending<V>)>>,
}

/// Pending fetches by key, with the number of their waiters.
type Asking<K, V> = Mutex<HashMap<K, (usize, Arc<Questions<V>>)>>;

/// Responses by key.
pub(crate) struct Remembered<K, V> {
    kept: moka::sync::Cache<K, Ending<V>>,
    asking: Asking<K, V>,
    weigh: fn(&K) -> usize,
    clock: Arc<dyn Clock>,
}

impl<K, V> Remembered<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates an empty cache. `longest` is the longest TTL; `weigh` returns the bytes of a key.
    pub(crate) fn new(longest: Duration, weigh: fn(&K) -> usize, clock: Arc<dyn Clock>) -> Self {
        let weight = move |key: &K, _: &Ending<V>| u32::try_from(weigh(key) + ANSWER).unwrap_or(u32::MAX);
        // The clock of the moka cache only frees memory; 100 years is unlimited and fits its range.
        let longest = longest.min(Duration::from_secs(100 * 365 * 24 * 3600));
        let kept = moka::sync::Cache::builder().weigher(weight).max_capacity(MOST).time_to_live(longest);
        Remembered { kept: kept.build(), asking: Mutex::default(), weigh, clock }
    }

    /// Returns the cached response and its remaining TTL.
    pub(crate) fn known(&self, key: &K) -> Option<(V, Duration)> {
        let now = self.clock.monotonic();
        self.kept.get(key).filter(|(_, end)| now < *end).map(|(answer, end)| (answer, end - now))
    }

    /// Returns the response for a key.
    /// `ask` fetches it with its TTL, which counts from the start of the fetch, because the moment at which
    /// the response was true is unknown.
    pub(crate) async fn get<Asked>(&self, key: &K, ask: impl FnOnce() -> Asked) -> (V, Duration)
    where
        Asked: Future<Output = (V, Duration)>,
    {
        if let Some(known) = self.known(key) {
            return known;
        }
        let here = Here::come(&self.asking, key);
        let Questions { begun, last } = &*here.questions;
        let came_after = begun.load(Ordering::SeqCst);
        let mut last = last.lock().await;
        let now = self.clock.monotonic();
        if let Some((number, (answer, end))) = &*last
            && (*number > came_after || now < *end)
        {
            return (answer.clone(), end.saturating_sub(now));
        }
        let number = begun.fetch_add(1, Ordering::SeqCst) + 1;
        let (answer, ttl) = ask().await;
        let end = now.saturating_add(ttl);
        if !ttl.is_zero() && (self.weigh)(key) <= LARGEST {
            self.kept.insert(key.clone(), (answer.clone(), end));
        }
        *last = Some((number, (answer.clone(), end)));
        (answer, end.saturating_sub(self.clock.monotonic()))
    }
}

/// A waiter of a key; the last one to drop removes the entry.
struct Here<'a, K: Eq + Hash, V> {
    of: &'a Asking<K, V>,
    key: &'a K,
    questions: Arc<Questions<V>>,
}

impl<'a, K: Clone + Eq + Hash, V> Here<'a, K, V> {
    fn come(of: &'a Asking<K, V>, key: &'a K) -> Self {
        let none =
            || (0, Arc::new(Questions { begun: AtomicU64::new(0), last: tokio::sync::Mutex::new(None) }));
        let mut all = of.lock();
        let (waiting, questions) = all.entry(key.clone()).or_insert_with(none);
        *waiting += 1;
        Here { of, key, questions: Arc::clone(questions) }
    }
}

impl<K: Eq + Hash, V> Drop for Here<'_, K, V> {
    fn drop(&mut self) {
        let mut all = self.of.lock();
        if let Some((waiting, _)) = all.get_mut(self.key) {
            *waiting -= 1;
            if *waiting == 0 {
                all.remove(self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::ManualClock;
    use futures_util::FutureExt as _;
    use jiff::Timestamp;
    use std::sync::atomic::AtomicUsize;

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
        assert_eq!(
            bench.answers.get(&key, slow).await,
            (9, Duration::from_secs(6)),
            "the TTL counts from the start of the fetch"
        );
        let large = "x".repeat(LARGEST + 1);
        bench.get(&large, 10).await;
        assert_eq!(bench.get(&large, 10).await.0, 6, "too large to be cached");
    }

    #[tokio::test]
    async fn those_who_wait_share_the_answer_while_it_lives_and_else_one_more_question() {
        // TTL and fetch duration in seconds; then the response number of the first and of the other waiters.
        for (ttl, on_the_way, others) in [(10, 0, 0), (10, 9, 0), (10, 10, 1), (0, 0, 1), (0, 9, 1)] {
            let bench = bench();
            let key = "k".to_owned();
            let slow = || async {
                let number = bench.asked.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                bench.clock.advance(Duration::from_secs(on_the_way));
                (number, Duration::from_secs(ttl))
            };
            let all = futures_util::future::join_all((0..50).map(|_| bench.answers.get(&key, slow))).await;
            let answers: Vec<usize> = all.into_iter().map(|(answer, _)| answer).collect();
            let mut want = vec![others; 50];
            want[0] = 0;
            assert_eq!(answers, want, "TTL {ttl} s, fetch {on_the_way} s");
            assert!(bench.answers.asking.lock().is_empty());
        }
    }

    #[tokio::test]
    async fn who_comes_while_the_second_question_is_under_way_is_not_served_by_it() {
        let bench = bench();
        let mut first = Box::pin(bench.get("k", 0));
        let mut second = Box::pin(bench.get("k", 0));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert_eq!(first.await.0, 0);
        assert!((&mut second).now_or_never().is_none(), "the second waiter fetches");
        let mut third = Box::pin(bench.get("k", 0));
        assert!((&mut third).now_or_never().is_none());
        assert_eq!((second.await.0, third.await.0), (1, 2));
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
