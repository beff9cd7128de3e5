//! States of owners that other servers store.
//!
//! # Contract
//!
//! [`RemoteOwners::find`] returns a cached state at once, or starts a request and returns None. Requests run outside of
//! the workers of the collector, so a slow server delays only the objects with owners there. All references to an owner
//! share its cached answer, for [`TTL`], or its cached failure, for [`FAILURE_TTL`].
//!
//! # Invariants
//!
//! INVARIANT (bounded load): an API version has at most [`CONCURRENCY`] requests at a time, [`MAX_PENDING`] pending
//! ones and [`MAX_OWNERS`] cached owners, however many references users write.
//!
//! A cached state may be older than the read of the dependent. An absent UID stays absent, because no server uses a UID
//! again. An outdated state of an owner that exists or waits for its dependents only delays a deletion.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::ownership_data::OwnerState;

/// Lifetime of a cached answer.
const TTL: Duration = Duration::from_secs(30);
/// Lifetime of a cached failure.
const FAILURE_TTL: Duration = Duration::from_secs(5);
/// Maximum time of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent requests of an API version.
const CONCURRENCY: usize = 4;
/// Maximum number of running and queued requests of an API version.
const MAX_PENDING: usize = 1_000;
/// Maximum number of cached owners of an API version.
const MAX_OWNERS: usize = 10_000;

/// The state of an owner at its server, or the text of a failure.
pub(super) type Answer = Result<OwnerState, String>;

/// An owner at another server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RemoteOwner {
    /// The name of the resource.
    pub(super) resource: String,
    /// The namespace of the dependent; `""` for a cluster-scoped one.
    pub(super) namespace: String,
    /// The name.
    pub(super) name: String,
    /// The UID.
    pub(super) uid: String,
}

/// The cached owners, by API version.
pub(super) struct RemoteOwners {
    clock: Arc<dyn Clock>,
    apis: Arc<Mutex<HashMap<String, Api>>>,
    /// The running requests. They end with the collector.
    requests: Mutex<JoinSet<()>>,
}

/// The owners of an API version.
struct Api {
    owners: HashMap<RemoteOwner, Entry>,
    pending: usize,
    permits: Arc<Semaphore>,
}

/// The cache entry of an owner.
enum Entry {
    /// A request is running or queued.
    Pending,
    /// The answer, and the time at which the entry expires.
    Answered { answer: Answer, expires_at: Duration },
}

/// A request. The drop of the request stores an answer, even after a panic or a cancellation.
struct Request {
    apis: Arc<Mutex<HashMap<String, Api>>>,
    clock: Arc<dyn Clock>,
    api: String,
    owner: RemoteOwner,
    answer: Answer,
}

impl RemoteOwners {
    /// Creates an empty cache.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        RemoteOwners { clock, apis: Arc::default(), requests: Mutex::default() }
    }

    /// Returns the cached answer about an owner of an API version. On a cache miss, returns None and starts `request`
    /// if the limits allow another request. The caller retries later.
    pub(super) fn find<F>(
        &self,
        api: &str,
        owner: &RemoteOwner,
        request: impl FnOnce() -> F,
    ) -> Option<Answer>
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let now = self.clock.monotonic();
        let permits = {
            let mut apis = self.apis.lock();
            let known = apis.entry(api.to_owned()).or_default();
            match known.owners.get(owner) {
                Some(Entry::Answered { answer, expires_at }) if now < *expires_at => {
                    return Some(answer.clone());
                }
                Some(Entry::Pending) => return None,
                Some(Entry::Answered { .. }) | None => known.admit(owner)?,
            }
        };
        let (apis, clock) = (Arc::clone(&self.apis), Arc::clone(&self.clock));
        let no_answer = Err("the request for the owner ended without an answer".to_owned());
        let mut running =
            Request { apis, clock, api: api.to_owned(), owner: owner.clone(), answer: no_answer };
        let answer = request();
        let mut requests = self.requests.lock();
        while requests.try_join_next().is_some() {}
        requests.spawn(async move {
            let Ok(_permit) = permits.acquire_owned().await else { return };
            let timeout = |_elapsed| Err("the server did not answer in time".to_owned());
            running.set(tokio::time::timeout(REQUEST_TIMEOUT, answer).await.unwrap_or_else(timeout));
        });
        None
    }
}

impl Default for Api {
    fn default() -> Self {
        Api { owners: HashMap::new(), pending: 0, permits: Arc::new(Semaphore::new(CONCURRENCY)) }
    }
}

impl Api {
    /// Registers a request for an owner. Returns None if too many requests are pending.
    fn admit(&mut self, owner: &RemoteOwner) -> Option<Arc<Semaphore>> {
        if self.pending >= MAX_PENDING {
            return None;
        }
        if self.owners.len() >= MAX_OWNERS {
            self.owners.retain(|_, entry| matches!(entry, Entry::Pending));
        }
        self.owners.insert(owner.clone(), Entry::Pending);
        self.pending += 1;
        Some(Arc::clone(&self.permits))
    }
}

impl Request {
    /// Sets the answer that the drop stores.
    fn set(&mut self, answer: Answer) {
        self.answer = answer;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let ttl = if self.answer.is_ok() { TTL } else { FAILURE_TTL };
        let expires_at = self.clock.monotonic().saturating_add(ttl);
        let answer = self.answer.clone();
        if let Some(api) = self.apis.lock().get_mut(&self.api) {
            api.pending = api.pending.saturating_sub(1);
            api.owners.insert(self.owner.clone(), Entry::Answered { answer, expires_at });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use apimachinery::clock::ManualClock;
    use jiff::Timestamp;

    use super::*;

    fn owners() -> (RemoteOwners, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
        (RemoteOwners::new(Arc::clone(&clock) as Arc<dyn Clock>), clock)
    }

    fn owner(name: &str) -> RemoteOwner {
        let text = str::to_owned;
        RemoteOwner { resource: text("flavors"), namespace: text("a"), name: text(name), uid: text("u") }
    }

    /// Polls until the cache has an answer.
    async fn answer(owners: &RemoteOwners, api: &str, owner: &RemoteOwner, state: &Answer) -> Answer {
        for _ in 0..1_000 {
            if let Some(answer) = owners.find(api, owner, || ready(state.clone())) {
                return answer;
            }
            tokio::task::yield_now().await;
        }
        panic!("no answer about {owner:?}");
    }

    #[tokio::test]
    async fn hanging_server_delays_no_other_server() {
        let (owners, _clock) = owners();
        for number in 0..100 {
            let found = owners.find("slow/v1", &owner(&number.to_string()), pending);
            assert_eq!(found, None);
        }
        let exists = Ok(OwnerState::Exists);
        assert_eq!(answer(&owners, "other/v1", &owner("x"), &exists).await, exists);
    }

    #[tokio::test]
    async fn references_to_one_owner_share_cached_answer_until_expiry() {
        let (owners, clock) = owners();
        for (answer, ttl_seconds) in [(Ok(OwnerState::Gone), 30), (Err("no route".to_owned()), 5)] {
            let name = owner(&format!("{ttl_seconds}"));
            let requests = Arc::new(AtomicUsize::new(0));
            let find = || {
                let (requests, answer) = (Arc::clone(&requests), answer.clone());
                owners.find("e/v1", &name, || async move {
                    requests.fetch_add(1, Ordering::SeqCst);
                    answer
                })
            };
            let mut found = None;
            while found.is_none() {
                found = find();
                tokio::task::yield_now().await;
            }
            clock.advance(Duration::from_millis(ttl_seconds * 1_000 - 1));
            for _ in 0..50 {
                assert_eq!(find(), Some(answer.clone()));
            }
            assert_eq!(requests.load(Ordering::SeqCst), 1);
            clock.advance(Duration::from_millis(1));
            assert_eq!(find(), None, "an expired answer is a cache miss");
            let other_uid = RemoteOwner { uid: "v".to_owned(), ..name.clone() };
            assert_eq!(owners.find("e/v1", &other_uid, pending), None, "another UID is another owner");
        }
    }

    #[tokio::test]
    async fn requests_and_cached_owners_are_bounded() {
        let (owners, _clock) = owners();
        let started = Arc::new(AtomicUsize::new(0));
        for number in 0..MAX_PENDING + 50 {
            let started = Arc::clone(&started);
            let request = || async move {
                started.fetch_add(1, Ordering::SeqCst);
                pending().await
            };
            assert_eq!(owners.find("slow/v1", &owner(&number.to_string()), request), None);
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(started.load(Ordering::SeqCst), CONCURRENCY);
        assert_eq!(owners.apis.lock()["slow/v1"].pending, MAX_PENDING);
        assert_eq!(owners.requests.lock().len(), MAX_PENDING);

        for number in 0..MAX_OWNERS + 50 {
            let gone = Ok(OwnerState::Gone);
            answer(&owners, "fast/v1", &owner(&number.to_string()), &gone).await.unwrap();
        }
        let cached = owners.apis.lock()["fast/v1"].owners.len();
        assert!((1..=MAX_OWNERS).contains(&cached), "{cached}");
    }

    #[tokio::test]
    async fn request_that_panics_is_a_failure() {
        let (owners, _clock) = owners();
        let panics = || async { panic!("a test") };
        let mut found = None;
        while found.is_none() {
            found = owners.find("e/v1", &owner("a"), panics);
            tokio::task::yield_now().await;
        }
        assert!(found.unwrap().is_err());
        assert_eq!(owners.apis.lock()["e/v1"].pending, 0);
    }
}
