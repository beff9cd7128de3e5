//! Single-flight cache for the responses of remote services, with a TTL per response.
//!
//! # Contract
//!
//! [`SingleFlightCache::get`] returns the cached or the newly fetched response and its remaining TTL. A
//! response without a TTL is not cached. Fetches of one key run one after the other. A waiter is a call of
//! `get` without a cached response. A waiter that arrives during a fetch takes the response of this fetch if
//! its TTL has not expired when the fetch ends. Otherwise one more fetch runs for all waiters that arrived
//! during the first one, and they share its response even without a TTL. So a waiter waits for at most two
//! fetches, and the service has at most one fetch of a key at a time.
//!
//! # Invariants
//!
//! INVARIANT (never past its TTL): a response serves waiters that arrived before its fetch began, and other
//! calls only within its TTL. The TTL counts from the start of the fetch. So a fetch before the removal of a
//! right does not allow a request after the removal, except within the TTL.
//! INVARIANT (no separators): a key is one value, compared field by field; its parts are never joined into
//! one string.
//! INVARIANT (memory limit): cached entries weigh at most [`MAX_WEIGHT`] bytes, and the response for a key of
//! more than [`MAX_KEY_BYTES`] is not cached. A pending fetch is dropped with its last waiter.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;

/// Limit in bytes of all cached keys and responses together; beyond it the cache drops responses.
const MAX_WEIGHT: u64 = 16 * 1024 * 1024;
/// Limit in bytes of a cached key. The response for a longer key is not cached, because legitimate requests
/// of that size do not repeat.
const MAX_KEY_BYTES: usize = 10_000;
/// The assumed size of each response without its key, in bytes.
const RESPONSE_WEIGHT: usize = 256;

/// A response and the monotonic time at which it expires.
type ExpiringResponse<V> = (V, Duration);

/// The fetches of one key, one after the other.
struct KeyFetches<V> {
    /// Number of fetches started.
    started: AtomicU64,
    /// The number of the last completed fetch, and its response. The task that holds the lock fetches.
    last_response: tokio::sync::Mutex<Option<(u64, ExpiringResponse<V>)>>,
}

/// Pending fetches by key, with the number of their waiters.
type PendingFetches<K, V> = Mutex<HashMap<K, (usize, Arc<KeyFetches<V>>)>>;

/// The cached responses by key, and the pending fetches.
pub(crate) struct SingleFlightCache<K, V> {
    cache: moka::sync::Cache<K, ExpiringResponse<V>>,
    pending: PendingFetches<K, V>,
    weigh: fn(&K) -> usize,
    clock: Arc<dyn Clock>,
}

impl<K, V> SingleFlightCache<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Creates an empty cache for TTLs up to `longest_ttl`. `weigh` returns the size of a key in bytes.
    pub(crate) fn new(longest_ttl: Duration, weigh: fn(&K) -> usize, clock: Arc<dyn Clock>) -> Self {
        let weight = move |key: &K, _: &ExpiringResponse<V>| {
            u32::try_from(weigh(key) + RESPONSE_WEIGHT).unwrap_or(u32::MAX)
        };
        // The TTL of moka only frees memory; `get_cached` compares the expiry with the clock of this cache.
        // moka rejects a TTL of more than about 1,000 years, so 100 years are the maximum.
        let longest_ttl = longest_ttl.min(Duration::from_secs(100 * 365 * 24 * 3600));
        let cache =
            moka::sync::Cache::builder().weigher(weight).max_capacity(MAX_WEIGHT).time_to_live(longest_ttl);
        SingleFlightCache { cache: cache.build(), pending: Mutex::default(), weigh, clock }
    }

    /// Returns the cached response and its remaining TTL; None if there is none or it has expired.
    pub(crate) fn get_cached(&self, key: &K) -> Option<(V, Duration)> {
        let now = self.clock.monotonic();
        self.cache.get(key).filter(|(_, end)| now < *end).map(|(response, end)| (response, end - now))
    }

    /// Returns the response for a key and its remaining TTL.
    /// `fetch` returns the response and its TTL, which counts from the start of the fetch, because the
    /// service decides at an unknown moment after the start.
    pub(crate) async fn get<Fetch>(&self, key: &K, fetch: impl FnOnce() -> Fetch) -> (V, Duration)
    where
        Fetch: Future<Output = (V, Duration)>,
    {
        if let Some(cached) = self.get_cached(key) {
            return cached;
        }
        let waiter = Waiter::register(&self.pending, key);
        let KeyFetches { started, last_response } = &*waiter.fetches;
        let fetches_before = started.load(Ordering::SeqCst);
        let mut last_response = last_response.lock().await;
        let now = self.clock.monotonic();
        if let Some((number, (response, end))) = &*last_response
            && (*number > fetches_before || now < *end)
        {
            return (response.clone(), end.saturating_sub(now));
        }
        let number = started.fetch_add(1, Ordering::SeqCst) + 1;
        let (response, ttl) = fetch().await;
        let end = now.saturating_add(ttl);
        if !ttl.is_zero() && (self.weigh)(key) <= MAX_KEY_BYTES {
            self.cache.insert(key.clone(), (response.clone(), end));
        }
        *last_response = Some((number, (response.clone(), end)));
        (response, end.saturating_sub(self.clock.monotonic()))
    }
}

/// A waiter of a key. The last waiter removes the pending entry of the key when it is dropped.
struct Waiter<'a, K: Eq + Hash, V> {
    pending: &'a PendingFetches<K, V>,
    key: &'a K,
    fetches: Arc<KeyFetches<V>>,
}

impl<'a, K: Clone + Eq + Hash, V> Waiter<'a, K, V> {
    fn register(pending: &'a PendingFetches<K, V>, key: &'a K) -> Self {
        let new_fetches = || {
            (
                0,
                Arc::new(KeyFetches {
                    started: AtomicU64::new(0),
                    last_response: tokio::sync::Mutex::new(None),
                }),
            )
        };
        let mut pending_fetches = pending.lock();
        let (waiter_count, fetches) = pending_fetches.entry(key.clone()).or_insert_with(new_fetches);
        *waiter_count += 1;
        Waiter { pending, key, fetches: Arc::clone(fetches) }
    }
}

impl<K: Eq + Hash, V> Drop for Waiter<'_, K, V> {
    fn drop(&mut self) {
        let mut pending_fetches = self.pending.lock();
        if let Some((waiter_count, _)) = pending_fetches.get_mut(self.key) {
            *waiter_count -= 1;
            if *waiter_count == 0 {
                pending_fetches.remove(self.key);
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

    struct TestCache {
        clock: Arc<ManualClock>,
        fetch_count: AtomicUsize,
        cache: SingleFlightCache<String, usize>,
    }

    fn test_cache() -> TestCache {
        let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
        let cache = SingleFlightCache::new(
            Duration::from_secs(60),
            String::len,
            Arc::clone(&clock) as Arc<dyn Clock>,
        );
        TestCache { clock, fetch_count: AtomicUsize::new(0), cache }
    }

    impl TestCache {
        async fn get(&self, key: &str, ttl: u64) -> (usize, Duration) {
            let fetch = || async {
                tokio::task::yield_now().await;
                (self.fetch_count.fetch_add(1, Ordering::SeqCst), Duration::from_secs(ttl))
            };
            self.cache.get(&key.to_owned(), fetch).await
        }
    }

    #[tokio::test]
    async fn cached_response_expires_after_ttl_and_reports_remaining_ttl() {
        let test_cache = test_cache();
        for (elapsed, expected) in [(0, (0, 10)), (9, (0, 1)), (1, (1, 10)), (5, (1, 5))] {
            test_cache.clock.advance(Duration::from_secs(elapsed));
            let (response, remaining_ttl) = test_cache.get("k", 10).await;
            assert_eq!((response, remaining_ttl.as_secs()), expected);
        }
        assert_eq!(test_cache.get("other", 10).await.0, 2);
        assert_eq!(test_cache.get("never", 0).await, (3, Duration::ZERO));
        assert_eq!(test_cache.get("never", 0).await, (4, Duration::ZERO));
        let slow = || async {
            test_cache.clock.advance(Duration::from_secs(4));
            (9, Duration::from_secs(10))
        };
        let key = "slow".to_owned();
        assert_eq!(
            test_cache.cache.get(&key, slow).await,
            (9, Duration::from_secs(6)),
            "the TTL counts from the start of the fetch"
        );
        let large = "x".repeat(MAX_KEY_BYTES + 1);
        test_cache.get(&large, 10).await;
        assert_eq!(test_cache.get(&large, 10).await.0, 6, "too large to be cached");
    }

    #[tokio::test]
    async fn waiters_share_response_within_ttl_or_one_more_fetch() {
        // TTL and fetch duration in seconds, and the number of the response that the waiters after the first
        // get.
        for (ttl, fetch_seconds, later_response) in
            [(10, 0, 0), (10, 9, 0), (10, 10, 1), (0, 0, 1), (0, 9, 1)]
        {
            let test_cache = test_cache();
            let key = "k".to_owned();
            let slow = || async {
                let number = test_cache.fetch_count.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                test_cache.clock.advance(Duration::from_secs(fetch_seconds));
                (number, Duration::from_secs(ttl))
            };
            let all = futures_util::future::join_all((0..50).map(|_| test_cache.cache.get(&key, slow))).await;
            let answers: Vec<usize> = all.into_iter().map(|(response, _)| response).collect();
            let mut expected = vec![later_response; 50];
            expected[0] = 0;
            assert_eq!(answers, expected, "TTL {ttl} s, fetch {fetch_seconds} s");
            assert!(test_cache.cache.pending.lock().is_empty());
        }
    }

    #[tokio::test]
    async fn waiter_during_second_fetch_starts_third_fetch() {
        let test_cache = test_cache();
        let mut first = Box::pin(test_cache.get("k", 0));
        let mut second = Box::pin(test_cache.get("k", 0));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        assert_eq!(first.await.0, 0);
        assert!((&mut second).now_or_never().is_none(), "the second waiter fetches");
        let mut third = Box::pin(test_cache.get("k", 0));
        assert!((&mut third).now_or_never().is_none());
        assert_eq!((second.await.0, third.await.0), (1, 2));
        assert!(test_cache.cache.pending.lock().is_empty());
    }

    #[tokio::test]
    async fn cancelled_waiters_leave_no_entry_and_remaining_waiter_fetches() {
        let test_cache = test_cache();
        let key = "k".to_owned();
        let mut cancelled = Box::pin(test_cache.cache.get(&key, std::future::pending));
        let mut remaining = Box::pin(test_cache.get("k", 0));
        assert!((&mut cancelled).now_or_never().is_none());
        assert!((&mut remaining).now_or_never().is_none());
        drop(cancelled);
        assert_eq!(remaining.await.0, 0);
        let mut alone = Box::pin(test_cache.cache.get(&key, std::future::pending));
        assert!((&mut alone).now_or_never().is_none());
        drop(alone);
        assert!(test_cache.cache.pending.lock().is_empty());
    }
}
