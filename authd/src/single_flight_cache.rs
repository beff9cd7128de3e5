//! Single-flight cache for the responses of remote services, with a TTL per response.
//!
//! # Contract
//!
//! [`SingleFlightCache::get`] returns the cached or the newly fetched response and its remaining TTL. A response
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
//! INVARIANT (memory limit): cached entries weigh at most [`MAX_WEIGHT`], and a key that weighs more than
//! [`MAX_KEY_BYTES`] is not cached. A pending fetch is dropped with its last waiter.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;

/// Limit in bytes for all keys together.
const MAX_WEIGHT: u64 = 16 * 1024 * 1024;
/// Limit in bytes for one key: legitimate requests of that size do not repeat.
const MAX_KEY_BYTES: usize = 10_000;
/// Weight of a response besides its key, in bytes.
const RESPONSE_WEIGHT: usize = 256;

/// A response and the moment of the monotonic clock at which it expires.
type ExpiringResponse<V> = (V, Duration);

/// The fetches of one key, one after the other.
struct KeyFetches<V> {
    /// Number of fetches started.
    begun: AtomicU64,
    /// The number of the last completed fetch, with its response. The lock holder runs the fetch.
    last: tokio::sync::Mutex<Option<(u64, ExpiringResponse<V>)>>,
}

/// Pending fetches by key, with the number of their waiters.
type PendingFetches<K, V> = Mutex<HashMap<K, (usize, Arc<KeyFetches<V>>)>>;

/// Responses by key.
pub(crate) struct SingleFlightCache<K, V> {
    kept: moka::sync::Cache<K, ExpiringResponse<V>>,
    asking: PendingFetches<K, V>,
    weigh: fn(&K) -> usize,
    clock: Arc<dyn Clock>,
}

impl<K, V> SingleFlightCache<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates an empty cache. `longest` is the longest TTL; `weigh` returns the bytes of a key.
    pub(crate) fn new(longest: Duration, weigh: fn(&K) -> usize, clock: Arc<dyn Clock>) -> Self {
        let weight = move |key: &K, _: &ExpiringResponse<V>| {
            u32::try_from(weigh(key) + RESPONSE_WEIGHT).unwrap_or(u32::MAX)
        };
        // The clock of the moka cache only frees memory; 100 years is unlimited and fits its range.
        let longest = longest.min(Duration::from_secs(100 * 365 * 24 * 3600));
        let kept =
            moka::sync::Cache::builder().weigher(weight).max_capacity(MAX_WEIGHT).time_to_live(longest);
        SingleFlightCache { kept: kept.build(), asking: Mutex::default(), weigh, clock }
    }

    /// Returns the cached response and its remaining TTL.
    pub(crate) fn known(&self, key: &K) -> Option<(V, Duration)> {
        let now = self.clock.monotonic();
        self.kept.get(key).filter(|(_, end)| now < *end).map(|(answer, end)| (answer, end - now))
    }

    /// Returns the response for a key.
    /// `ask` fetches it with its TTL, which counts from the start of the fetch, because the moment at which
    /// the response was true is unknown.
    pub(crate) async fn get<Fetch>(&self, key: &K, ask: impl FnOnce() -> Fetch) -> (V, Duration)
    where
        Fetch: Future<Output = (V, Duration)>,
    {
        if let Some(known) = self.known(key) {
            return known;
        }
        let here = Waiter::register(&self.asking, key);
        let KeyFetches { begun, last } = &*here.questions;
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
        if !ttl.is_zero() && (self.weigh)(key) <= MAX_KEY_BYTES {
            self.kept.insert(key.clone(), (answer.clone(), end));
        }
        *last = Some((number, (answer.clone(), end)));
        (answer, end.saturating_sub(self.clock.monotonic()))
    }
}

/// A waiter of a key; the last one to drop removes the entry.
struct Waiter<'a, K: Eq + Hash, V> {
    of: &'a PendingFetches<K, V>,
    key: &'a K,
    questions: Arc<KeyFetches<V>>,
}

impl<'a, K: Clone + Eq + Hash, V> Waiter<'a, K, V> {
    fn register(of: &'a PendingFetches<K, V>, key: &'a K) -> Self {
        let none =
            || (0, Arc::new(KeyFetches { begun: AtomicU64::new(0), last: tokio::sync::Mutex::new(None) }));
        let mut all = of.lock();
        let (waiting, questions) = all.entry(key.clone()).or_insert_with(none);
        *waiting += 1;
        Waiter { of, key, questions: Arc::clone(questions) }
    }
}

impl<K: Eq + Hash, V> Drop for Waiter<'_, K, V> {
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
        answers: SingleFlightCache<String, usize>,
    }

    fn bench() -> Bench {
        let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
        let answers = SingleFlightCache::new(
            Duration::from_secs(60),
            String::len,
            Arc::clone(&clock) as Arc<dyn Clock>,
        );
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
    async fn cached_response_expires_after_ttl_and_reports_remaining_ttl() {
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
        let large = "x".repeat(MAX_KEY_BYTES + 1);
        bench.get(&large, 10).await;
        assert_eq!(bench.get(&large, 10).await.0, 6, "too large to be cached");
    }

    #[tokio::test]
    async fn waiters_share_response_within_ttl_or_one_more_fetch() {
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
    async fn waiter_that_arrives_during_second_fetch_starts_another() {
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
    async fn cancelled_waiters_leave_no_entry_and_remaining_waiter_fetches() {
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
