//! The rules of shared reads, with a store whose answers the test gives.

use std::collections::VecDeque;

use async_trait::async_trait;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::engine::memory::MemoryStore;
use crate::{Observers, Revision};

/// A store with other writers, whose newest revision the test tells, read by read.
struct SharedStore {
    local: MemoryStore,
    /// The reads that have begun, each with the way to end it.
    begun: mpsc::UnboundedSender<oneshot::Sender<Result<Revision>>>,
}

#[async_trait]
impl crate::conformance::StoreDouble for SharedStore {
    fn inner(&self) -> &dyn Store {
        &self.local
    }
    async fn newest_revision(&self) -> Result<Revision> {
        let (end, ended) = oneshot::channel();
        self.begun.send(end).unwrap();
        ended.await.expect("the test panics in place of the store")
    }
}

struct Fixture {
    reads: Arc<NewestReads>,
    begun: mpsc::UnboundedReceiver<oneshot::Sender<Result<Revision>>>,
    ended: Arc<Mutex<VecDeque<NewestRead>>>,
}

impl Fixture {
    fn new(limit: Duration) -> Self {
        let (sender, begun) = mpsc::unbounded_channel();
        let local = MemoryStore::of_several_servers(Arc::new(Observers(Vec::new())));
        let store: Arc<dyn Store> = Arc::new(SharedStore { local, begun: sender });
        let ended = Arc::new(Mutex::new(VecDeque::new()));
        let record = Arc::clone(&ended);
        let on_read = move |read| record.lock().push_back(read);
        Fixture { reads: Arc::new(NewestReads::with_limit(&store, "store", limit, on_read)), begun, ended }
    }

    /// Calls `catch_up`; the call has joined a group when this function returns.
    async fn call(&self) -> tokio::task::JoinHandle<Result<()>> {
        let reads = Arc::clone(&self.reads);
        let (joined, has_joined) = oneshot::channel();
        let call = tokio::spawn(async move {
            let mut call = std::pin::pin!(reads.catch_up());
            assert!(is_pending(call.as_mut()).await, "no read has ended");
            joined.send(()).unwrap();
            call.await
        });
        has_joined.await.unwrap();
        call
    }

    async fn next_read(&mut self) -> oneshot::Sender<Result<Revision>> {
        self.begun.recv().await.unwrap()
    }

    /// Lets all tasks run, and checks that no further read has begun.
    async fn assert_no_read(&mut self) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(self.begun.try_recv().is_err(), "another read has begun");
    }
}

/// Polls a future once; whether it is pending.
async fn is_pending<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|task| std::task::Poll::Ready(future.as_mut().poll(task).is_pending())).await
}

const LONG: Duration = Duration::from_secs(60);

fn unavailable() -> Error {
    Error::Unavailable("no leader".to_owned())
}

#[tokio::test]
async fn calls_during_a_read_share_the_next_read() {
    let mut fixture = Fixture::new(LONG);
    let first = fixture.call().await;
    let running = fixture.next_read().await;
    let (second, third) = (fixture.call().await, fixture.call().await);
    fixture.assert_no_read().await;

    running.send(Ok(Revision(1))).unwrap();
    first.await.unwrap().unwrap();
    let next = fixture.next_read().await;
    assert!(
        !second.is_finished() && !third.is_finished(),
        "the running read was not answered for these calls"
    );
    let fourth = fixture.call().await;
    next.send(Ok(Revision(2))).unwrap();
    second.await.unwrap().unwrap();
    third.await.unwrap().unwrap();
    let last = fixture.next_read().await;
    assert!(!fourth.is_finished());
    last.send(Ok(Revision(2))).unwrap();
    fourth.await.unwrap().unwrap();
    fixture.assert_no_read().await;
    let calls: Vec<u64> = fixture.ended.lock().iter().map(|read| read.calls).collect();
    assert_eq!(calls, [1, 2, 1]);
}

#[tokio::test]
async fn failure_of_a_read_reaches_its_calls_only() {
    let mut fixture = Fixture::new(LONG);
    let first = fixture.call().await;
    let running = fixture.next_read().await;
    let second = fixture.call().await;
    running.send(Err(unavailable())).unwrap();
    assert_eq!(first.await.unwrap(), Err(unavailable()));
    assert_eq!(fixture.reads.age(), None, "nothing is known");
    fixture.next_read().await.send(Ok(Revision(1))).unwrap();
    second.await.unwrap().unwrap();
    assert!(fixture.reads.age().is_some());
    let are_ok: Vec<bool> = fixture.ended.lock().iter().map(|read| read.is_ok).collect();
    assert_eq!(are_ok, [false, true]);
}

#[tokio::test]
async fn read_without_an_answer_fails_within_the_limit() {
    let mut fixture = Fixture::new(Duration::from_millis(300));
    let first = fixture.call().await;
    let running = fixture.next_read().await;
    tokio::time::sleep(Duration::from_millis(150)).await;
    let second = fixture.call().await;
    let error = first.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("within 0.3 s"), "{error}");
    assert!(running.is_closed(), "the read itself ended, too");
    let next = fixture.next_read().await;
    let error = second.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("within 0.3 s"), "{error}");
    assert!(!next.is_closed(), "the call has its own limit, which ends before that of the read");
    let third = fixture.call().await;
    next.send(Ok(Revision(1))).unwrap();
    fixture.next_read().await.send(Ok(Revision(1))).unwrap();
    third.await.unwrap().unwrap();
}

#[tokio::test]
async fn panic_of_a_read_does_not_end_later_reads() {
    let mut fixture = Fixture::new(LONG);
    let first = fixture.call().await;
    drop(fixture.next_read().await);
    first.await.unwrap().unwrap_err();
    let second = fixture.call().await;
    fixture.next_read().await.send(Ok(Revision(1))).unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test]
async fn cancelled_call_does_not_cancel_its_read() {
    let mut fixture = Fixture::new(LONG);
    let first = fixture.call().await;
    let running = fixture.next_read().await;
    let (second, third) = (fixture.call().await, fixture.call().await);
    for cancelled in [first, second] {
        cancelled.abort();
        assert!(cancelled.await.unwrap_err().is_cancelled());
    }
    running.send(Ok(Revision(1))).expect("the read continues");
    fixture.next_read().await.send(Ok(Revision(1))).unwrap();
    third.await.unwrap().unwrap();
}

#[tokio::test]
async fn age_counts_from_the_start_of_the_newest_successful_read() {
    let mut fixture = Fixture::new(LONG);
    let call = fixture.call().await;
    let running = fixture.next_read().await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    running.send(Ok(Revision(1))).unwrap();
    call.await.unwrap().unwrap();
    let age = fixture.reads.age().unwrap();
    assert!(age >= Duration::from_millis(30), "{age:?}");
    let call = fixture.call().await;
    fixture.next_read().await.send(Err(unavailable())).unwrap();
    call.await.unwrap().unwrap_err();
    assert!(fixture.reads.age().unwrap() >= age, "a failure makes nothing newer");
}

#[tokio::test]
async fn store_without_other_writers_needs_no_reads() {
    let local: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))));
    assert!(NewestReads::of(&local, "store", |_| ()).is_none());
    let fixture = Fixture::new(LONG);
    assert!(NewestReads::of(&fixture.reads.store, "store", |_| ()).is_some());
}
