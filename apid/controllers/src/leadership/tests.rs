//! Elections on a store in memory, with simulated time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use apimachinery::clock::{Clock as _, ManualClock, Rng as _, SeededRng, SystemClock};
use apimachinery::object::Object;
use apimachinery::status::Status;
use parking_lot::Mutex;
use serde_json::json;
use storage::engine::memory::MemoryStore;
use storage::{Error, Observers, Op, Revision, Store};
use tokio::sync::Notify;

use super::election::{Attempt, Candidate, EXPIRY, Election, Leases, RENEW_DEADLINE, RETRY_PERIOD};
use super::term::{Leadership, Loops, Term};

const KEY: &str = "leases/controllers";
const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// A fault of the next accesses of a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    /// Reads and writes fail, and nothing is written.
    Refused,
    /// A write is done, and its response is lost.
    LostResponse,
    /// A write is done after this time. The response never arrives.
    Late(Duration),
}

/// The Lease in a store in memory, as one candidate reaches it.
#[derive(Clone)]
struct StoredLease {
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
    fault: Arc<Mutex<Fault>>,
    /// Late writes with their times.
    late: Arc<Mutex<Vec<(Duration, Op)>>>,
    writes: Arc<AtomicUsize>,
}

impl StoredLease {
    fn new(store: &Arc<MemoryStore>, clock: &Arc<ManualClock>) -> Self {
        StoredLease {
            store: Arc::clone(store),
            clock: Arc::clone(clock),
            fault: Arc::default(),
            late: Arc::default(),
            writes: Arc::default(),
        }
    }

    async fn commit(&self, op: Op) -> Result<Object, Status> {
        let unavailable = || Status::unavailable("no answer", 1);
        let fault = *self.fault.lock();
        match fault {
            Fault::Refused => return Err(unavailable()),
            Fault::Late(delay) => {
                self.late.lock().push((self.clock.monotonic() + delay, op));
                return std::future::pending().await;
            }
            Fault::None | Fault::LostResponse => {}
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        let value = match &op {
            Op::Create(value) | Op::Update(value, _) => value.clone(),
            Op::Delete(_) => panic!("a candidate deletes no Lease"),
        };
        let committed = self.store.commit(KEY, op).await;
        if fault == Fault::LostResponse {
            return Err(unavailable());
        }
        match committed {
            Ok(committed) => Ok(kinds::entry::decode(&value, committed.revision).unwrap()),
            Err(Error::Exists(_)) => Err(Status::already_exists(&resource(), "controllers")),
            Err(Error::Conflict(_) | Error::NotFound(_)) => {
                Err(Status::stale_version(&resource(), "controllers"))
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Does the late writes whose time has come.
    fn write_late(&self) {
        let now = self.clock.monotonic();
        let due: Vec<_> = self.late.lock().extract_if(.., |(at, _)| *at <= now).collect();
        for (_, op) in due {
            // An outdated write fails, as in a real store.
            drop(finish(self.store.commit(KEY, op)));
        }
    }
}

fn resource() -> apimachinery::gvk::GroupResource {
    apimachinery::gvk::GroupResource { group: "coordination".to_owned(), resource: "leases".to_owned() }
}

/// Completes a future that never waits.
fn finish<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future waits"),
    }
}

impl Leases for StoredLease {
    async fn read(&self) -> Result<Option<Object>, Status> {
        if *self.fault.lock() == Fault::Refused {
            return Err(Status::unavailable("no answer", 1));
        }
        let row = self.store.get(KEY, None).await.unwrap();
        Ok(row.map(|row| kinds::entry::decode(&row.value, row.revision).unwrap()))
    }

    async fn write(&self, lease: Object) -> Result<Object, Status> {
        let value = kinds::entry::encode(&lease);
        self.commit(match lease.resource_version() {
            "" => Op::Create(value),
            version => Op::Update(value, Revision(version.parse().unwrap())),
        })
        .await
    }
}

fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap()))
}

fn memory_store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))))
}

/// Candidates of one election with one monotonic clock.
struct Candidates {
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
}

impl Candidates {
    fn new() -> Self {
        Candidates { store: memory_store(), clock: manual_clock() }
    }

    fn candidate(&self, identity: &str) -> (Candidate<StoredLease>, StoredLease) {
        let lease = StoredLease::new(&self.store, &self.clock);
        let rng = Arc::new(SeededRng::new(1));
        (Candidate::new(lease.clone(), identity.to_owned(), self.clock.clone(), rng), lease)
    }

    fn lease(&self) -> Object {
        let row = finish(self.store.get(KEY, None)).unwrap().unwrap();
        kinds::entry::decode(&row.value, row.revision).unwrap()
    }

    /// Changes the Lease as a user does.
    fn edit(&self, field: &str, value: serde_json::Value) {
        let mut lease = self.lease();
        lease.part_mut("spec").insert(field.to_owned(), value);
        let revision = Revision(lease.resource_version().parse().unwrap());
        finish(self.store.commit(KEY, Op::Update(kinds::entry::encode(&lease), revision))).unwrap();
    }

    fn delete(&self) {
        let revision = Revision(self.lease().resource_version().parse().unwrap());
        finish(self.store.commit(KEY, Op::Delete(revision))).unwrap();
    }

    fn now(&self) -> Duration {
        self.clock.monotonic()
    }
}

fn attempt(candidate: &mut Candidate<StoredLease>) -> Attempt {
    finish(candidate.attempt()).unwrap()
}

fn leads(attempt: &Attempt) -> bool {
    matches!(attempt, Attempt::Leads { .. })
}

#[test]
fn lease_has_the_fields_of_client_go() {
    let election = Candidates::new();
    let ((mut one, _), (mut two, _)) = (election.candidate("one"), election.candidate("two"));
    assert_eq!(attempt(&mut one), Attempt::Leads { until: election.now() + RENEW_DEADLINE });
    let spec = |holder: &str, acquired: &str, renewed: &str, transitions: i64| {
        json!({
            "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": transitions,
            "acquireTime": format!("2026-01-01T00:00:{acquired}.000000Z"),
            "renewTime": format!("2026-01-01T00:00:{renewed}.000000Z"),
        })
    };
    assert_eq!(election.lease().get("spec"), Some(&spec("one", "00", "00", 0)));
    election.clock.advance(RETRY_PERIOD);
    assert!(leads(&attempt(&mut one)));
    assert_eq!(election.lease().get("spec"), Some(&spec("one", "00", "02", 0)));
    assert!(!leads(&attempt(&mut two)));
    election.clock.advance(EXPIRY);
    assert!(leads(&attempt(&mut two)));
    assert_eq!(election.lease().get("spec"), Some(&spec("two", "16", "16", 1)));
}

#[test]
fn unchanged_lease_expires_by_the_time_of_its_first_sight() {
    let election = Candidates::new();
    let (mut one, _) = election.candidate("one");
    assert!(leads(&attempt(&mut one)));
    election.clock.advance(9 * SECOND);
    // The wall clock of the machine of the second candidate is a year ahead, that of the third one a year behind.
    let second_clock = Arc::new(ManualClock::at("2027-01-01T00:00:00Z".parse().unwrap()));
    let third_clock = Arc::new(ManualClock::at("2025-01-01T00:00:00Z".parse().unwrap()));
    let other = |clock: &Arc<ManualClock>, identity: &str| {
        let lease = StoredLease::new(&election.store, &election.clock);
        Candidate::new(lease, identity.to_owned(), clock.clone(), Arc::new(SeededRng::new(1)))
    };
    for clock in [second_clock, third_clock] {
        let mut candidate = other(&clock, &format!("from {}", clock.now()));
        assert!(!leads(&attempt(&mut candidate)), "first sight of the Lease");
        clock.advance(EXPIRY - MILLI);
        let before = attempt(&mut candidate);
        assert!(
            matches!(&before, Attempt::Follows { until, .. } if *until == clock.monotonic() + MILLI),
            "{before:?}"
        );
        clock.advance(MILLI);
        assert!(leads(&attempt(&mut candidate)));
    }
}

/// The death of a leader directly after a renewal, and the longest pause of the candidate.
#[test]
fn lease_of_a_dead_leader_is_taken_within_its_duration() {
    let election = Candidates::new();
    let ((mut one, _), (mut two, _)) = (election.candidate("one"), election.candidate("two"));
    assert!(leads(&attempt(&mut one)));
    let death = election.now();
    let Attempt::Follows { until, .. } = attempt(&mut two) else { panic!("the leader is in its term") };
    let duration = election.lease().at(&["spec", "leaseDurationSeconds"]).and_then(|value| value.as_u64());
    let duration = Duration::from_secs(duration.unwrap());
    election.clock.advance(until - election.now() + 200 * MILLI);
    assert!(leads(&attempt(&mut two)));
    let elapsed = election.now() - death;
    assert!(elapsed + SECOND / 2 <= duration, "{elapsed:?} of {duration:?}");
}

#[test]
fn released_lease_is_taken_at_once() {
    let election = Candidates::new();
    let ((mut one, _), (mut two, _)) = (election.candidate("one"), election.candidate("two"));
    assert!(leads(&attempt(&mut one)));
    assert!(!leads(&attempt(&mut two)));
    finish(two.release()).unwrap();
    assert_eq!(election.lease().str_at(&["spec", "holderIdentity"]), Some("one"), "only the holder releases");
    finish(one.release()).unwrap();
    assert_eq!(election.lease().str_at(&["spec", "holderIdentity"]), Some(""));
    assert!(leads(&attempt(&mut two)));
    assert_eq!(election.lease().at(&["spec", "leaseTransitions"]), Some(&json!(1)));
}

/// Each change of a user, with the results of the next attempts of the leader and of the other candidate, which comes
/// first if the last value is true.
#[test]
fn changes_of_the_lease_by_users_lead_to_one_leader() {
    for (case, change, leader_leads, other_leads, other_is_first) in [
        ("deletion", None, true, false, false),
        ("deletion, then the other", None, true, false, true),
        ("another holder", Some(("holderIdentity", json!("somebody"))), false, false, false),
        ("no holder", Some(("holderIdentity", json!(""))), true, false, false),
        ("no holder, then the other", Some(("holderIdentity", json!(""))), false, true, true),
        ("short duration", Some(("leaseDurationSeconds", json!(1))), true, false, true),
        ("no duration", Some(("leaseDurationSeconds", json!(null))), true, false, true),
        ("an old time", Some(("renewTime", json!("2020-01-01T00:00:00.000000Z"))), true, false, true),
    ] {
        let election = Candidates::new();
        let ((mut one, _), (mut two, _)) = (election.candidate("one"), election.candidate("two"));
        assert!(leads(&attempt(&mut one)));
        assert!(!leads(&attempt(&mut two)));
        assert!(!finish(one.is_changed()), "{case}: own write");
        match change {
            None => election.delete(),
            Some((field, value)) => election.edit(field, value),
        }
        assert!(finish(one.is_changed()), "{case}: the leader notices the change");
        election.clock.advance(SECOND + MILLI);
        let mut results = (false, false);
        if other_is_first {
            results.1 = leads(&attempt(&mut two));
        }
        results.0 = leads(&attempt(&mut one));
        if !other_is_first {
            results.1 = leads(&attempt(&mut two));
        }
        assert_eq!(results, (leader_leads, other_leads), "{case}");
    }
}

#[test]
fn deleted_lease_of_a_dead_leader_is_created_first_and_taken_when_it_expires() {
    let election = Candidates::new();
    let ((mut one, _), (mut two, _)) = (election.candidate("one"), election.candidate("two"));
    assert!(leads(&attempt(&mut one)));
    assert!(!leads(&attempt(&mut two)));
    election.delete();
    assert!(!leads(&attempt(&mut two)));
    election.clock.advance(4 * SECOND);
    assert!(!leads(&attempt(&mut two)), "the former leader may be in its term");
    assert_eq!(election.lease().str_at(&["spec", "holderIdentity"]), Some("two"));
    election.clock.advance(EXPIRY - MILLI);
    assert!(!leads(&attempt(&mut two)));
    election.clock.advance(MILLI);
    assert!(leads(&attempt(&mut two)));
}

#[test]
fn lease_with_a_long_duration_expires_after_a_minute() {
    let election = Candidates::new();
    let ((mut one, _), (mut two, _)) = (election.candidate("one"), election.candidate("two"));
    assert!(leads(&attempt(&mut one)));
    election.edit("leaseDurationSeconds", json!(86_400));
    assert!(!leads(&attempt(&mut two)));
    election.clock.advance(60 * SECOND - MILLI);
    assert!(!leads(&attempt(&mut two)));
    election.clock.advance(MILLI);
    assert!(leads(&attempt(&mut two)));
}

/// An attempt in progress.
type RunningAttempt = Pin<Box<dyn Future<Output = Result<Attempt, Status>>>>;

/// A candidate in the simulation, with the steps of [`Election`] without its timers.
struct Simulated {
    candidate: Arc<tokio::sync::Mutex<Candidate<StoredLease>>>,
    lease: StoredLease,
    running: Option<RunningAttempt>,
    /// The end of the term of a leader.
    until: Option<Duration>,
    next: Duration,
    /// The begin of the attempt that runs.
    began: Duration,
    has_seen: bool,
    is_dead: bool,
}

impl Simulated {
    /// Does one step at the present time. `pause` follows an attempt.
    fn step(&mut self, now: Duration, pause: Duration) {
        if self.until.is_some_and(|until| now >= until) {
            // The timeout of the renewal ends at the end of the term.
            (self.until, self.running) = (None, None);
        }
        if self.running.is_some() && now >= self.began + RENEW_DEADLINE {
            // The store answers each call within its own time limit.
            self.running = None;
        }
        if self.running.is_none() && now >= self.next {
            self.began = now;
            let candidate = Arc::clone(&self.candidate);
            self.running = Some(Box::pin(async move { candidate.lock().await.attempt().await }));
        }
        let Some(running) = &mut self.running else { return };
        let Poll::Ready(result) = running.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            return;
        };
        self.running = None;
        self.next = now + pause;
        self.has_seen |= result.is_ok();
        match result {
            Ok(Attempt::Leads { until }) => self.until = Some(until),
            Ok(Attempt::Follows { .. }) => self.until = None,
            Ok(Attempt::Raced) | Err(_) => {}
        }
    }

    fn leads(&self, now: Duration) -> bool {
        !self.is_dead && self.until.is_some_and(|until| now < until)
    }
}

/// Random faults, deaths and changes by users. A user never removes the holder of the Lease: that hands over the Lease.
#[test]
fn two_candidates_never_lead_at_the_same_time() {
    let terms = AtomicUsize::new(0);
    for seed in 0..60 {
        let rng = SeededRng::new(seed);
        let random = |limit: u64| u64::try_from(rng.bits() % u128::from(limit)).unwrap();
        let election = Candidates::new();
        let mut candidates: Vec<Simulated> = Vec::new();
        let mut leader: Option<usize> = None;
        for tick in 0..3000_u64 {
            let now = election.now();
            let exists = finish(election.store.get(KEY, None)).unwrap().is_some();
            // A candidate that has never seen the Lease takes a deleted Lease at once.
            if tick < 3 || (exists && tick % 500 == 0) {
                let (candidate, lease) = election.candidate(&format!("candidate {}", candidates.len()));
                let candidate = Arc::new(tokio::sync::Mutex::new(candidate));
                candidates.push(Simulated {
                    candidate,
                    lease,
                    running: None,
                    until: None,
                    next: now,
                    began: now,
                    has_seen: false,
                    is_dead: false,
                });
            }
            for candidate in &mut candidates {
                candidate.lease.write_late();
                if candidate.has_seen && random(200) == 0 {
                    *candidate.lease.fault.lock() = match random(6) {
                        0 => Fault::Refused,
                        1 => Fault::LostResponse,
                        2 => Fault::Late(Duration::from_millis(random(20_000))),
                        _ => Fault::None,
                    };
                }
                if random(2000) == 0 {
                    candidate.is_dead = true;
                    candidate.running = None;
                }
                if !candidate.is_dead {
                    candidate.step(now, RETRY_PERIOD + Duration::from_millis(random(200)));
                }
            }
            let exists = finish(election.store.get(KEY, None)).unwrap().is_some();
            match random(1000) {
                0 if exists && tick > 3 && candidates.iter().all(|one| one.is_dead || one.has_seen) => {
                    election.delete()
                }
                1 if exists => election.edit("leaseDurationSeconds", json!(random(3))),
                2 if exists => election.edit("holderIdentity", json!("somebody")),
                _ => {}
            }
            let leading: Vec<usize> =
                (0..candidates.len()).filter(|one| candidates[*one].leads(now)).collect();
            assert!(leading.len() <= 1, "seed {seed}, tick {tick}: {leading:?}");
            if let Some(one) = leading.first().copied().filter(|one| leader != Some(*one)) {
                leader = Some(one);
                terms.fetch_add(1, Ordering::SeqCst);
            }
            election.clock.advance(50 * MILLI);
        }
    }
    let terms = terms.into_inner();
    assert!(terms > 100, "only {terms} terms: the simulation shows nothing");
}

/// An election with loops that count.
struct Running {
    leadership: Arc<Leadership>,
    lease: StoredLease,
    changed: Arc<Notify>,
    started: Arc<AtomicUsize>,
    live: Arc<AtomicUsize>,
}

/// Counts down when the task of a loop ends.
struct Live(Arc<AtomicUsize>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Running {
    /// Starts an election with the time of the system.
    fn start(store: &Arc<MemoryStore>, identity: &str) -> Self {
        let clock = Arc::new(SystemClock::new());
        let lease = StoredLease::new(store, &manual_clock());
        let candidate =
            Candidate::new(lease.clone(), identity.to_owned(), clock.clone(), Arc::new(SeededRng::new(1)));
        let leadership = Arc::new(Leadership::of_one_of_several_servers(clock));
        let (changed, started, live) = <(Arc<Notify>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let election = Election::new(candidate, Arc::clone(&leadership), Arc::clone(&changed));
        let (count, tasks) = (Arc::clone(&started), Arc::clone(&live));
        tokio::spawn(election.run(move || {
            count.fetch_add(1, Ordering::SeqCst);
            tasks.fetch_add(1, Ordering::SeqCst);
            let live = Live(Arc::clone(&tasks));
            let mut loops = Loops::default();
            loops.spawn(async move {
                let _live = live;
                std::future::pending().await
            });
            loops
        }));
        Running { leadership, lease, changed, started, live }
    }

    async fn wait_until(&self, leads: bool) {
        let mut terms = self.leadership.terms();
        tokio::time::timeout(10 * SECOND, terms.wait_for(|term| term.leads == leads)).await.unwrap().unwrap();
    }

    async fn wait_for_no_loop(&self) {
        while self.live.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(MILLI).await;
        }
    }
}

#[tokio::test]
async fn resigning_leader_ends_its_loops_and_the_next_one_starts_within_three_seconds() {
    let store = memory_store();
    let one = Running::start(&store, "one");
    one.wait_until(true).await;
    let two = Running::start(&store, "two");
    tokio::time::sleep(50 * MILLI).await;
    assert!(!two.leadership.leads() && two.leadership.begin_write().is_err());
    let write = one.leadership.begin_write().unwrap();
    let begin = tokio::time::Instant::now();
    let resign = async {
        one.leadership.resign(10 * SECOND).await;
        two.changed.notify_one();
    };
    let end_of_write = async {
        tokio::time::sleep(100 * MILLI).await;
        assert_eq!(one.live.load(Ordering::SeqCst), 1, "the write in progress ends before its loop");
        assert!(one.leadership.begin_write().is_err(), "no further write begins");
        let holder = one.lease.read().await.unwrap().unwrap();
        assert_eq!(holder.str_at(&["spec", "holderIdentity"]), Some("one"), "the Lease is released last");
        drop(write);
    };
    tokio::join!(resign, end_of_write);
    assert_eq!(one.live.load(Ordering::SeqCst), 0);
    two.wait_until(true).await;
    assert!(begin.elapsed() < 3 * SECOND, "{:?}", begin.elapsed());
    assert_eq!(two.started.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn leader_ends_its_loops_when_another_client_takes_the_lease() {
    let store = memory_store();
    let one = Running::start(&store, "one");
    one.wait_until(true).await;
    let mut lease = one.lease.read().await.unwrap().unwrap();
    lease.part_mut("spec").insert("holderIdentity".to_owned(), "user".into());
    let other = StoredLease::new(&store, &manual_clock());
    other.write(lease).await.unwrap();
    one.changed.notify_one();
    one.wait_until(false).await;
    one.wait_for_no_loop().await;
    // A deleted Lease of another holder counts as held.
    let row = store.get(KEY, None).await.unwrap().unwrap();
    store.commit(KEY, Op::Delete(row.revision)).await.unwrap();
    one.changed.notify_one();
    tokio::time::sleep(50 * MILLI).await;
    assert!(!one.leadership.leads());
}

#[tokio::test]
async fn apid_with_an_embedded_store_always_leads_and_writes_no_lease() {
    let leadership = Leadership::of_single_server();
    assert!(leadership.leads() && !leadership.is_elected() && leadership.term() == Some(1));
    assert!(leadership.begin_write().unwrap().is_none());
    leadership.resign(SECOND).await;
    assert!(leadership.leads(), "its loops run until the end of the process");
}

#[tokio::test]
async fn process_that_was_stopped_in_its_term_writes_nothing_afterwards() {
    let clock = manual_clock();
    let leadership = Leadership::of_one_of_several_servers(clock.clone());
    assert!(leadership.begin_write().is_err());
    leadership.begin_term(clock.monotonic() + RENEW_DEADLINE);
    assert!(leadership.begin_write().unwrap().is_some());
    clock.advance(RENEW_DEADLINE);
    assert!(leadership.begin_write().is_err() && !leadership.leads());
}

#[tokio::test]
async fn begin_of_each_term_is_noticed_even_if_the_end_before_is_missed() {
    let clock = manual_clock();
    let leadership = Leadership::of_one_of_several_servers(clock.clone());
    let mut terms = leadership.terms();
    assert_eq!((leadership.term(), *terms.borrow_and_update()), (None, Term::default()));
    for number in 1..4 {
        leadership.begin_term(clock.monotonic() + RENEW_DEADLINE);
        assert_eq!(leadership.term(), Some(number));
        // The returned guard blocks the next change, so the test does not keep the guard.
        let seen = finish(terms.wait_for(|term| term.leads)).map(|term| term.number);
        assert_eq!(seen.unwrap(), number);
        clock.advance(RENEW_DEADLINE);
        assert_eq!(leadership.term(), None, "the term has ended by the clock");
        leadership.end_term(Loops::default()).await;
    }
}

/// The failure of all renewals ends the term before another candidate can take the Lease.
#[tokio::test]
async fn leader_without_renewals_ends_its_loops_before_the_lease_expires() {
    let store = memory_store();
    let one = Running::start(&store, "one");
    one.wait_until(true).await;
    let begin = tokio::time::Instant::now();
    *one.lease.fault.lock() = Fault::Late(3600 * SECOND);
    let mut terms = one.leadership.terms();
    tokio::time::timeout(EXPIRY, terms.wait_for(|term| !term.leads)).await.unwrap().unwrap();
    one.wait_for_no_loop().await;
    let elapsed = begin.elapsed();
    assert!(elapsed > RENEW_DEADLINE - SECOND && elapsed < EXPIRY - SECOND, "{elapsed:?}");
    assert!(one.leadership.begin_write().is_err());
    one.leadership.resign(SECOND).await;
}

#[tokio::test]
async fn unchanged_lease_is_read_and_not_written_by_other_candidates() {
    let store = memory_store();
    let one = Running::start(&store, "one");
    one.wait_until(true).await;
    let two = Running::start(&store, "two");
    for _ in 0..20 {
        two.changed.notify_one();
        one.changed.notify_one();
        tokio::time::sleep(5 * MILLI).await;
    }
    assert_eq!(two.lease.writes.load(Ordering::SeqCst), 0);
    assert_eq!(one.lease.writes.load(Ordering::SeqCst), 1, "a notification alone causes no renewal");
}
