//! States of owners that other servers store.
//!
//! # Contract
//!
//! [`RemoteOwners::find`] returns a remembered state at once, or starts a request and returns None. Requests run outside of
//! the workers of the collector, so a slow server delays only the objects with owners there. An answer serves all
//! references to the owner for [`MEMORY`]; a failure serves [`FAILURE_MEMORY`].
//!
//! # Invariants
//!
//! INVARIANT (bounded load): an API version has at most [`CONCURRENCY`] requests at a time, [`MAX_PENDING`] waiting ones and
//! [`MAX_OWNERS`] remembered owners, however many references users write.
//!
//! A remembered state may be older than the read of the dependent. An absent UID stays absent, because a UID is never
//! used again. An owner that exists or waits for its dependents only delays the deletion of a dependent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::ownership_data::OwnerState;

/// Time for which an answer is remembered.
const MEMORY: Duration = Duration::from_secs(30);
/// Time for which a failed request is remembered.
const FAILURE_MEMORY: Duration = Duration::from_secs(5);
/// Maximum time of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of concurrent requests of an API version.
const CONCURRENCY: usize = 4;
/// Number of requests of an API version that run or wait.
const MAX_PENDING: usize = 1_000;
/// Number of owners of an API version that are remembered.
const MAX_OWNERS: usize = 10_000;

/// The answer of a server, or why there is none.
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

/// The remembered owners, by API version.
pub(super) struct RemoteOwners {
    clock: Arc<dyn Clock>,
    apis: Arc<Mutex<HashMap<String, Api>>>,
    /// The running requests. They end with the collector.
    requests: Mutex<JoinSet<()>>,
}

/// The owners of an API version.
struct Api {
    owners: HashMap<RemoteOwner, Memory>,
    pending: usize,
    permits: Arc<Semaphore>,
}

/// The knowledge about an owner.
enum Memory {
    /// A request runs or waits.
    Pending,
    /// The answer, and the time at which a new request is due.
    Answered { answer: Answer, expires_at: Duration },
}

/// A request. Its end, for whatever reason, replaces the pending memory by an answer.
struct Request {
    apis: Arc<Mutex<HashMap<String, Api>>>,
    clock: Arc<dyn Clock>,
    api: String,
    owner: RemoteOwner,
    answer: Answer,
}

impl RemoteOwners {
    /// Creates an empty memory.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        RemoteOwners { clock, apis: Arc::default(), requests: Mutex::default() }
    }

    /// Returns the remembered answer about an owner of an API version. Without one, starts `request` if the limits allow
    /// another request, and returns None: the caller asks again later.
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
                Some(Memory::Answered { answer, expires_at }) if now < *expires_at => {
                    return Some(answer.clone());
                }
                Some(Memory::Pending) => return None,
                Some(Memory::Answered { .. }) | None => known.admit(owner)?,
            }
        };
        let (apis, clock) = (Arc::clone(&self.apis), Arc::clone(&self.clock));
        let no_answer = Err("the request for the owner ended without an answer".to_owned());
        let mut entry = Request { apis, clock, api: api.to_owned(), owner: owner.clone(), answer: no_answer };
        let answer = request();
        let mut requests = self.requests.lock();
        while requests.try_join_next().is_some() {}
        requests.spawn(async move {
            let Ok(_permit) = permits.acquire_owned().await else { return };
            let timeout = |_elapsed| Err("the server did not answer in time".to_owned());
            entry.set(tokio::time::timeout(REQUEST_TIMEOUT, answer).await.unwrap_or_else(timeout));
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
    /// Registers a request for an owner; None if too many requests wait.
    fn admit(&mut self, owner: &RemoteOwner) -> Option<Arc<Semaphore>> {
        if self.pending >= MAX_PENDING {
            return None;
        }
        if self.owners.len() >= MAX_OWNERS {
            self.owners.retain(|_, memory| matches!(memory, Memory::Pending));
        }
        self.owners.insert(owner.clone(), Memory::Pending);
        self.pending += 1;
        Some(Arc::clone(&self.permits))
    }
}

impl Request {
    /// Sets the answer, which the end of the request publishes.
    fn set(&mut self, answer: Answer) {
        self.answer = answer;
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let memory = if self.answer.is_ok() { MEMORY } else { FAILURE_MEMORY };
        let expires_at = self.clock.monotonic().saturating_add(memory);
        let answer = std::mem::replace(&mut self.answer, Ok(OwnerState::Remote));
        if let Some(api) = self.apis.lock().get_mut(&self.api) {
            api.pending = api.pending.saturating_sub(1);
            api.owners.insert(self.owner.clone(), Memory::Answered { answer, expires_at });
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

    /// Asks until an answer is there.
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
    async fn server_without_answers_delays_no_other_server() {
        let (owners, _clock) = owners();
        for number in 0..100 {
            let found = owners.find("slow/v1", &owner(&number.to_string()), pending);
            assert_eq!(found, None);
        }
        let exists = Ok(OwnerState::Exists);
        assert_eq!(answer(&owners, "other/v1", &owner("x"), &exists).await, exists);
    }

    #[tokio::test]
    async fn answer_serves_all_references_until_the_memory_ends() {
        let (owners, clock) = owners();
        for (answer, memory) in [(Ok(OwnerState::Gone), 30), (Err("no route".to_owned()), 5)] {
            let name = owner(&format!("{memory}"));
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
            clock.advance(Duration::from_millis(memory * 1_000 - 1));
            for _ in 0..50 {
                assert_eq!(find(), Some(answer.clone()));
            }
            assert_eq!(requests.load(Ordering::SeqCst), 1);
            clock.advance(Duration::from_millis(1));
            assert_eq!(find(), None, "an expired answer is asked for again");
            let other_uid = RemoteOwner { uid: "v".to_owned(), ..name.clone() };
            assert_eq!(owners.find("e/v1", &other_uid, pending), None, "another UID is another owner");
        }
    }

    #[tokio::test]
    async fn requests_and_remembered_owners_are_bounded() {
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
        let remembered = owners.apis.lock()["fast/v1"].owners.len();
        assert!((1..=MAX_OWNERS).contains(&remembered), "{remembered}");
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
