//! Ends of claims while the store is unavailable.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;

use super::*;
use crate::engine::memory::MemoryStore;
use crate::{CommitOutcome, Observers};

/// A store whose deletions fail after 50 ms while it is unavailable.
struct UnavailableStore {
    local: MemoryStore,
    is_unavailable: AtomicBool,
    /// The deletions that wait for an answer, and all deletions.
    waiting: AtomicUsize,
    attempts: AtomicUsize,
}

#[async_trait]
impl crate::conformance::StoreDouble for UnavailableStore {
    fn inner(&self) -> &dyn Store {
        &self.local
    }
    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        if matches!(op, Op::Delete(_)) && self.is_unavailable.load(Ordering::SeqCst) {
            self.attempts.fetch_add(1, Ordering::SeqCst);
            self.waiting.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(Error::Unavailable("no answer".to_owned()));
        }
        self.local.commit_holding(key, op, held).await
    }
}

/// A store, and claims in it.
async fn claims(number: usize) -> (Arc<UnavailableStore>, Vec<Claim>) {
    let store = Arc::new(UnavailableStore {
        local: MemoryStore::new(Arc::new(Observers(Vec::new()))),
        is_unavailable: AtomicBool::new(true),
        waiting: AtomicUsize::new(0),
        attempts: AtomicUsize::new(0),
    });
    let shared: Arc<dyn Store> = store.clone();
    let mut claims = Vec::new();
    for number in 0..number {
        claims.push(Claim::create(&shared, &format!("{CLAIMS}{number}"), Bytes::new()).await.unwrap());
    }
    (store, claims)
}

async fn milliseconds(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

#[tokio::test]
async fn ends_of_dropped_claims_load_an_unavailable_store_little() {
    let (store, claims) = claims(100).await;
    drop(claims);
    // After the first attempt of each.
    milliseconds(150).await;
    for _ in 0..100 {
        let waiting = store.waiting.load(Ordering::SeqCst);
        assert!(waiting <= 8, "{waiting} attempts at the same time");
        milliseconds(10).await;
    }
    assert!(store.attempts.load(Ordering::SeqCst) > 100, "failed attempts are repeated");
    store.is_unavailable.store(false, Ordering::SeqCst);
    while !store.range(CLAIMS, "", 0, None).await.unwrap().rows.is_empty() {
        milliseconds(10).await;
    }
}

#[tokio::test]
async fn awaited_end_of_a_claim_is_certain() {
    let (store, mut claims) = claims(1).await;
    let end = tokio::spawn(claims.remove(0).end());
    milliseconds(600).await;
    assert!(!end.is_finished(), "the state of the claim is unknown");
    store.is_unavailable.store(false, Ordering::SeqCst);
    end.await.unwrap();
    assert!(store.range(CLAIMS, "", 0, None).await.unwrap().rows.is_empty());
}

#[tokio::test]
async fn lease_ends_a_claim_that_cannot_be_ended() {
    let (store, claims) = claims(1).await;
    end(&*store, claims[0].held(), Some(Duration::from_millis(400))).await;
    let attempts = store.attempts.load(Ordering::SeqCst);
    assert!((2..4).contains(&attempts), "{attempts} attempts");
}
