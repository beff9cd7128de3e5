//! Limits of users and of the server: request bodies, heavy work, unsent responses, forwarded requests.
//!
//! # Contract
//!
//! Flow control decides who runs; these limits are the hard floor below it, which holds for every user and priority
//! level. [`Shares::share_of`] returns the [`UserShare`] of a user, which all requests of the user share. A share is
//! a part of the limit of the server, so one user leaves room for others:
//!
//! | resource | server | one user | one connection | above the limit |
//! |---|---|---|---|---|
//! | bodies, from the first byte until the response; the server limit excludes bodies up to 64 KiB | 64 MiB | 16 MiB | | the request waits |
//! | bodies above 64 KiB that take longer than a second to arrive | 24 MiB | 6 MiB | | 429 |
//! | memory of the work of heavy requests, as [`crate::request_cost`] estimates it | 128 MiB | 64 MiB | | the request waits |
//! | responses that are made and not sent | 96 MiB | 32 MiB | 8 MiB, for large responses | 429 |
//! | requests that another server answers, until the response or stream ends | | 256 | | 429 |
//!
//! While the unsent responses of all users exceed the server limit, apid rejects requests of users with more than
//! 1 MiB of unsent responses.
//!
//! A response that sends a large object from the watch cache keeps that version of the object in memory, even if an
//! update replaces the object. A watch keeps the objects of its next large event in the same way. Each version and each
//! encoded event counts once for each user ([`UserShare::hold_version`]), so that many readers of one version are not
//! rejected.
//!
//! # Invariants
//!
//! INVARIANT (released): a guard holds every reservation; dropping the guard releases it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Maximum total size of the request bodies above [`MAX_SMALL_BODY`] in memory, in bytes. Further bodies
/// wait.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Maximum total size of one user's request bodies, in bytes. Further bodies wait.
const MAX_BODY_BYTES_OF_USER: usize = 16 << 20;
/// Maximum size of a small body, in bytes. A small body never waits for bodies of other users, and may arrive
/// slowly.
pub(super) const MAX_SMALL_BODY: usize = 64 << 10;
/// Maximum total size of slow bodies, in bytes. Further slow bodies are rejected with 429.
const MAX_SLOW_BODY_BYTES: usize = 24 << 20;
/// Maximum total size of one user's slow bodies, in bytes. Further slow bodies are rejected with 429.
const MAX_SLOW_BODY_BYTES_OF_USER: usize = 6 << 20;
/// Maximum memory of the heavy work of all users, in bytes. Further work waits.
const MAX_WORK_BYTES: usize = 128 << 20;
/// Maximum memory of one user's heavy work, in bytes. Further work waits; the work of one request counts at most this.
const MAX_WORK_BYTES_OF_USER: usize = 64 << 20;
/// Maximum total size of unsent responses, in bytes.
const MAX_UNSENT_BYTES: usize = 96 << 20;
/// Maximum total size of one user's unsent responses, in bytes; above it, apid rejects requests with 429.
const MAX_UNSENT_BYTES_OF_USER: usize = 32 << 20;
/// Maximum total size of one connection's unsent responses, in bytes; above it, apid rejects large requests.
const MAX_UNSENT_BYTES_OF_CONNECTION: usize = 8 << 20;
/// Unsent bytes that a user may hold while all unsent responses exceed [`MAX_UNSENT_BYTES`].
const MIN_UNSENT_BYTES_OF_USER: usize = 1 << 20;
/// Maximum number of one user's requests and streams that kubelets, pods, Services, nodes and aggregated APIs answer;
/// above it, apid rejects such requests with 429. One user leaves connections to these servers for others.
pub(super) const MAX_FORWARDED_OF_USER: usize = 256;
/// Maximum number of watches of one user that read a batch from the engine's history at the same time. Further watches
/// wait.
const MAX_HISTORY_BATCHES_OF_USER: usize = 2;
/// Bytes for which one semaphore permit stands. A body takes at least one permit.
const PERMIT_BYTES: usize = 1024;
/// Minimum number of users at which a sweep removes the users without requests.
const MIN_SWEEP_USERS: usize = 1024;

/// The shares of all users.
pub(super) struct Shares {
    users: Mutex<Users>,
    of_server: ByteLimits,
}

#[derive(Default)]
struct Users {
    shares: HashMap<Arc<str>, Arc<UserShare>>,
    /// A sweep begins when the number of users reaches both this number and [`MIN_SWEEP_USERS`].
    sweep_at: usize,
}

/// The share of one user.
pub(super) struct UserShare {
    /// The user name.
    pub(super) user: Arc<str>,
    /// The byte limits of the user.
    of_user: ByteLimits,
    /// The byte limits of the server, which all users share.
    of_server: ByteLimits,
    /// Permits of watches that read a batch of events from the engine's history and have not counted the batch.
    history_batches: Semaphore,
    /// Permits of requests that another server answers.
    forwarded: Arc<Semaphore>,
    /// Number of holders of each version of a large object and of each encoded event, by address and size.
    versions: Mutex<HashMap<(usize, usize), usize>>,
}

/// Permits of bytes, and the count of unsent response bytes.
#[derive(Clone)]
struct ByteLimits {
    bodies: Arc<Semaphore>,
    slow_bodies: Arc<Semaphore>,
    work: Arc<Semaphore>,
    unsent: Arc<AtomicUsize>,
}

impl ByteLimits {
    fn new(bodies: usize, slow_bodies: usize, work: usize) -> Self {
        let [bodies, slow_bodies, work] = [bodies, slow_bodies, work].map(semaphore);
        ByteLimits { bodies, slow_bodies, work, unsent: Arc::default() }
    }
}

/// Bytes that a request body or heavy work holds; they are released when the value is dropped.
pub(super) struct Reservation {
    of_user: OwnedSemaphorePermit,
    /// None for a small body.
    of_server: Option<OwnedSemaphorePermit>,
}

/// A request that another server answers, which counts against the limit of its user until the value is dropped.
pub(super) struct ForwardedRequest {
    _of_user: OwnedSemaphorePermit,
}

/// The limit of slow bodies, of the user or of the server, is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManySlowBodies;

impl Shares {
    /// Creates an empty set of shares.
    pub(super) fn new() -> Self {
        Shares {
            users: Mutex::default(),
            of_server: ByteLimits::new(MAX_BODY_BYTES, MAX_SLOW_BODY_BYTES, MAX_WORK_BYTES),
        }
    }

    /// Returns the share of a user.
    pub(super) fn share_of(&self, user: &str) -> Arc<UserShare> {
        let mut users = self.users.lock();
        if let Some(share) = users.shares.get(user) {
            return Arc::clone(share);
        }
        if users.shares.len() >= users.sweep_at.max(MIN_SWEEP_USERS) {
            users.shares.retain(|_, share| Arc::strong_count(share) > 1);
            // On average, a sweep visits at most two users for each user that is new since the last sweep.
            users.sweep_at = 2 * users.shares.len();
        }
        let share = Arc::new(UserShare {
            user: Arc::from(user),
            of_user: ByteLimits::new(
                MAX_BODY_BYTES_OF_USER,
                MAX_SLOW_BODY_BYTES_OF_USER,
                MAX_WORK_BYTES_OF_USER,
            ),
            of_server: self.of_server.clone(),
            history_batches: Semaphore::new(MAX_HISTORY_BATCHES_OF_USER),
            forwarded: Arc::new(Semaphore::new(MAX_FORWARDED_OF_USER)),
            versions: Mutex::default(),
        });
        users.shares.insert(Arc::clone(&share.user), Arc::clone(&share));
        share
    }
}

impl UserShare {
    /// Reserves bytes for a body; waits until the limits of the user and of the server have room.
    pub(super) async fn reserve_body(&self, bytes: usize) -> Option<Reservation> {
        let of_server = (bytes > MAX_SMALL_BODY).then_some(&self.of_server.bodies);
        reserve(bytes, &self.of_user.bodies, of_server).await
    }

    /// Reserves memory for heavy work; waits until the limits of the user and of the server have room.
    pub(super) async fn reserve_work(&self, bytes: usize) -> Option<Reservation> {
        reserve(bytes.min(MAX_WORK_BYTES_OF_USER), &self.of_user.work, Some(&self.of_server.work)).await
    }

    /// Reserves bytes for a slow body.
    ///
    /// # Errors
    ///
    /// The limit of the user or of the server is reached.
    pub(super) fn reserve_slow_body(&self, bytes: usize) -> Result<Reservation, TooManySlowBodies> {
        let permits = permits(bytes);
        let acquire = |limit: &Arc<Semaphore>| {
            Arc::clone(limit).try_acquire_many_owned(permits).map_err(|_| TooManySlowBodies)
        };
        Ok(Reservation {
            of_user: acquire(&self.of_user.slow_bodies)?,
            of_server: Some(acquire(&self.of_server.slow_bodies)?),
        })
    }

    /// Returns the counters of the user's unsent responses on a connection.
    pub(super) fn on_connection(self: &Arc<Self>, connection: Arc<AtomicUsize>) -> Arc<UnsentCounters> {
        Arc::new(UnsentCounters { share: Arc::clone(self), connection })
    }

    /// Waits until a watch of the user may read a batch of events from the engine's history.
    pub(super) async fn begin_history_batch(&self) -> Option<SemaphorePermit<'_>> {
        self.history_batches.acquire().await.ok()
    }

    /// Counts a request that another server answers until the guard is dropped; None if the user has too many.
    pub(super) fn begin_forwarded(&self) -> Option<ForwardedRequest> {
        let _of_user = Arc::clone(&self.forwarded).try_acquire_owned().ok()?;
        Some(ForwardedRequest { _of_user })
    }

    /// Counts bytes as unsent until the last guard of this user and these bytes is dropped.
    ///
    /// `bytes` are a version of a large object or an encoded event. The guard keeps them in memory, so that no other
    /// bytes get their address.
    pub(super) fn hold_version(self: &Arc<Self>, bytes: Bytes) -> HeldVersion {
        let mut versions = self.versions.lock();
        let holders = versions.entry((bytes.as_ptr().addr(), bytes.len())).or_default();
        *holders += 1;
        if *holders == 1 {
            for limits in [&self.of_user, &self.of_server] {
                limits.unsent.fetch_add(bytes.len(), Ordering::Relaxed);
            }
        }
        drop(versions);
        HeldVersion { share: Arc::clone(self), bytes }
    }

    /// Whether the unsent responses exceed a limit of the user, of the connection, or of the server if this user has
    /// more than [`MIN_UNSENT_BYTES_OF_USER`]. The limit of the connection concerns only large responses: the caller
    /// gives no connection for others.
    pub(super) fn exceeds_unsent_limit(&self, connection: Option<&AtomicUsize>) -> bool {
        let unsent = self.of_user.unsent.load(Ordering::Relaxed);
        unsent > MAX_UNSENT_BYTES_OF_USER
            || connection.is_some_and(|bytes| bytes.load(Ordering::Relaxed) > MAX_UNSENT_BYTES_OF_CONNECTION)
            || (unsent > MIN_UNSENT_BYTES_OF_USER
                && self.of_server.unsent.load(Ordering::Relaxed) > MAX_UNSENT_BYTES)
    }
}

impl Reservation {
    /// Releases the part of the reservation above `bytes`.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let keep = usize::try_from(permits(bytes)).unwrap_or(usize::MAX);
        for permit in [Some(&mut self.of_user), self.of_server.as_mut()].into_iter().flatten() {
            let surplus = permit.num_permits().saturating_sub(keep);
            drop(permit.split(surplus));
        }
    }
}

/// Counters of the unsent responses of a user on a connection.
///
/// Each response has its own value, so that its chunks do not contend for the reference count of a share.
pub(super) struct UnsentCounters {
    /// The share of the user.
    pub(super) share: Arc<UserShare>,
    /// Unsent bytes of the connection.
    pub(super) connection: Arc<AtomicUsize>,
}

impl UnsentCounters {
    /// Counts bytes of a response as unsent.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> UnsentResponse {
        self.counters().for_each(|counter| {
            counter.fetch_add(bytes, Ordering::Relaxed);
        });
        UnsentResponse { counters: Arc::clone(self), bytes }
    }

    /// Returns the bytes of an encoded event, which several watches of the user may share. They count as unsent until
    /// their last copy is dropped: once for the user, and for each connection.
    pub(super) fn track_event(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        self.connection.fetch_add(bytes.len(), Ordering::Relaxed);
        let held = self.share.hold_version(bytes);
        Bytes::from_owner(TrackedEvent { held, counters: Arc::clone(self) })
    }

    fn counters(&self) -> impl Iterator<Item = &AtomicUsize> {
        [&*self.share.of_user.unsent, &*self.share.of_server.unsent, &*self.connection].into_iter()
    }
}

/// A guard for bytes of a response that wait to be sent.
pub(super) struct UnsentResponse {
    counters: Arc<UnsentCounters>,
    bytes: usize,
}

impl UnsentResponse {
    /// Counts further bytes as waiting to be sent.
    pub(super) fn grow(&mut self, bytes: usize) {
        self.resize(self.bytes.saturating_add(bytes));
    }

    /// Changes the number of bytes that wait to be sent.
    pub(super) fn resize(&mut self, bytes: usize) {
        if bytes == self.bytes {
            return;
        }
        for counter in self.counters.counters() {
            // Add before subtracting, so that another thread never reads a number below the held bytes.
            counter.fetch_add(bytes, Ordering::Relaxed);
            counter.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Returns bytes that count as unsent until their last copy is dropped.
    pub(super) fn track(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(TrackedBytes { bytes, _unsent: self })
    }
}

impl Drop for UnsentResponse {
    fn drop(&mut self) {
        for counter in self.counters.counters() {
            counter.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

/// A guard for a version of a large object, or for an encoded event, that responses hold.
pub(super) struct HeldVersion {
    share: Arc<UserShare>,
    bytes: Bytes,
}

impl Drop for HeldVersion {
    fn drop(&mut self) {
        let key = (self.bytes.as_ptr().addr(), self.bytes.len());
        let mut versions = self.share.versions.lock();
        let Some(holders) = versions.get_mut(&key) else { return };
        *holders -= 1;
        if *holders == 0 {
            versions.remove(&key);
            for limits in [&self.share.of_user, &self.share.of_server] {
                limits.unsent.fetch_sub(self.bytes.len(), Ordering::Relaxed);
            }
        }
    }
}

/// The bytes of an encoded event on a connection.
struct TrackedEvent {
    held: HeldVersion,
    counters: Arc<UnsentCounters>,
}

impl AsRef<[u8]> for TrackedEvent {
    fn as_ref(&self) -> &[u8] {
        &self.held.bytes
    }
}

impl Drop for TrackedEvent {
    fn drop(&mut self) {
        self.counters.connection.fetch_sub(self.held.bytes.len(), Ordering::Relaxed);
    }
}

struct TrackedBytes {
    bytes: Bytes,
    _unsent: UnsentResponse,
}

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Waits for bytes of the user and then of the server: a user who waits for their own requests holds no permit of the
/// server.
async fn reserve(
    bytes: usize,
    of_user: &Arc<Semaphore>,
    of_server: Option<&Arc<Semaphore>>,
) -> Option<Reservation> {
    let permits = permits(bytes);
    let of_user = Arc::clone(of_user).acquire_many_owned(permits).await.ok()?;
    let of_server = match of_server {
        Some(of_server) => Some(Arc::clone(of_server).acquire_many_owned(permits).await.ok()?),
        None => None,
    };
    Some(Reservation { of_user, of_server })
}

fn semaphore(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes / PERMIT_BYTES))
}

/// Returns the number of permits for a body of this size.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const BODY: usize = 3 << 20;

    #[test]
    fn requests_of_one_user_use_one_share() {
        let shares = Shares::new();
        let (a, b) = (shares.share_of("a"), shares.share_of("b"));
        assert!(Arc::ptr_eq(&a, &shares.share_of("a")) && !Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn shares_of_users_without_requests_are_removed() {
        let shares = Shares::new();
        let kept = shares.share_of("kept");
        for i in 0..4 * MIN_SWEEP_USERS {
            drop(shares.share_of(&i.to_string()));
        }
        assert!(shares.users.lock().shares.len() <= MIN_SWEEP_USERS + 1);
        assert!(Arc::ptr_eq(&kept, &shares.share_of("kept")));
    }

    #[test]
    fn body_limit_of_user_does_not_block_other_users() {
        let shares = Shares::new();
        let (a, b) = (shares.share_of("a"), shares.share_of("b"));
        let mut reserved: Vec<_> = (0..MAX_BODY_BYTES_OF_USER / BODY)
            .map(|_| a.reserve_body(BODY).now_or_never().unwrap())
            .collect();
        assert!(a.reserve_body(BODY).now_or_never().is_none());
        assert!(b.reserve_body(BODY).now_or_never().is_some());
        reserved.pop();
        assert!(a.reserve_body(BODY).now_or_never().is_some());
    }

    #[test]
    fn heavy_work_of_one_user_leaves_memory_to_others() {
        let shares = Shares::new();
        let [a, b, c] = ["a", "b", "c"].map(|user| shares.share_of(user));
        // More than the limit of the user counts as the limit.
        let first = a.reserve_work(10 * MAX_WORK_BYTES_OF_USER).now_or_never().unwrap();
        assert!(a.reserve_work(1).now_or_never().is_none());
        let second = b.reserve_work(MAX_WORK_BYTES_OF_USER).now_or_never().unwrap();
        assert!(c.reserve_work(1).now_or_never().is_none(), "the limit of the server");
        drop(first);
        assert!(c.reserve_work(1).now_or_never().is_some() && a.reserve_work(1).now_or_never().is_some());
        drop(second);
    }

    #[test]
    fn reservation_of_unknown_size_shrinks_to_the_body() {
        let share = Shares::new().share_of("a");
        let reserved: Vec<_> = (0..100)
            .map(|_| {
                let mut reserved = share.reserve_body(BODY).now_or_never().flatten().unwrap();
                reserved.shrink(1);
                reserved
            })
            .collect();
        assert_eq!(
            share.of_user.bodies.available_permits(),
            MAX_BODY_BYTES_OF_USER / PERMIT_BYTES - reserved.len()
        );
        assert_eq!(
            share.of_server.bodies.available_permits(),
            MAX_BODY_BYTES / PERMIT_BYTES - reserved.len()
        );
    }

    #[test]
    fn forwarded_requests_of_one_user_leave_connections_to_others() {
        let shares = Shares::new();
        let share = shares.share_of("a");
        let mut open: Vec<_> = (0..MAX_FORWARDED_OF_USER).map(|_| share.begin_forwarded().unwrap()).collect();
        assert!(share.begin_forwarded().is_none());
        assert!(shares.share_of("b").begin_forwarded().is_some());
        open.pop();
        assert!(share.begin_forwarded().is_some());
    }

    #[test]
    fn slow_bodies_above_user_limit_are_rejected() {
        let shares = Shares::new();
        let share = shares.share_of("a");
        let reserved: Vec<_> = (0..MAX_SLOW_BODY_BYTES_OF_USER / BODY)
            .map(|_| share.reserve_slow_body(BODY).unwrap_or_else(|_| panic!()))
            .collect();
        assert!(share.reserve_slow_body(BODY).is_err());
        assert!(shares.share_of("b").reserve_slow_body(BODY).is_ok());
        drop(reserved);
        assert!(share.reserve_slow_body(BODY).is_ok());
    }

    #[test]
    fn unsent_responses_are_limited_per_connection_user_and_server() {
        let shares = Shares::new();
        let connection = || Arc::new(AtomicUsize::new(0));
        let (a, first, second) = (shares.share_of("a"), connection(), connection());
        let one = a.on_connection(Arc::clone(&first)).hold(MAX_UNSENT_BYTES_OF_CONNECTION + 1);
        assert!(a.exceeds_unsent_limit(Some(&first)) && !a.exceeds_unsent_limit(Some(&second)));
        let mut rest = a.on_connection(Arc::clone(&second)).hold(MAX_UNSENT_BYTES_OF_USER);
        assert!(a.exceeds_unsent_limit(None));
        drop(one);
        rest.resize(1);
        assert!(!a.exceeds_unsent_limit(Some(&first)));

        let others: Vec<_> = (0..4)
            .map(|i| {
                shares.share_of(&i.to_string()).on_connection(connection()).hold(MAX_UNSENT_BYTES_OF_USER - 1)
            })
            .collect();
        assert!(!a.exceeds_unsent_limit(Some(&first)), "a user below 1 MiB is served");
        rest.resize(MIN_UNSENT_BYTES_OF_USER + 1);
        assert!(a.exceeds_unsent_limit(None));
        drop(others);
        assert!(!a.exceeds_unsent_limit(None));
    }

    #[test]
    fn version_of_object_counts_once_for_each_user() {
        let shares = Shares::new();
        let (a, b) = (shares.share_of("a"), shares.share_of("b"));
        let (old, new) = (Bytes::from(vec![1; 100]), Bytes::from(vec![2; 100]));
        let unsent =
            || [&a.of_user, &b.of_user, &a.of_server].map(|limits| limits.unsent.load(Ordering::Relaxed));
        let first = a.hold_version(old.clone());
        let second = a.hold_version(old.clone());
        assert_eq!(unsent(), [100, 0, 100]);
        let others = (a.hold_version(new), b.hold_version(old));
        assert_eq!(unsent(), [200, 100, 300]);
        drop(first);
        assert_eq!(unsent(), [200, 100, 300]);
        drop((second, others));
        assert_eq!(unsent(), [0, 0, 0]);
        assert!(a.versions.lock().is_empty());
    }

    #[test]
    fn tracked_bytes_count_until_the_last_copy_is_dropped() {
        let share = Shares::new().share_of("a");
        let connection = Arc::new(AtomicUsize::new(0));
        let sent = share.on_connection(Arc::clone(&connection)).hold(5).track(Bytes::from_static(b"bytes"));
        let part = sent.slice(1..2);
        drop(sent);
        assert_eq!((connection.load(Ordering::Relaxed), &part[..]), (5, &b"y"[..]));
        drop(part);
        assert_eq!(connection.load(Ordering::Relaxed), 0);
    }
}
