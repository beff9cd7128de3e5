//! Shares of one user: requests in flight, bytes of request bodies, bytes of answers that wait to be sent.
//!
//! # Contract
//!
//! [`Shares::of`] gives the [`UserShare`] of a user; all requests of the user use the same one. A share is a part of what
//! the server has in all, so that one user leaves room for the others:
//!
//! | what | in all | one user | one connection | beyond it |
//! |---|---|---|---|---|
//! | reads and writes in flight (`--max-requests-inflight`, `--max-mutating-requests-inflight`) | the flags | half | | 429 |
//! | bodies, from the first byte until the request is answered; in all without those up to 64 KiB | 64 MiB | 16 MiB | | the request waits |
//! | bodies above 64 KiB that take longer than a second to arrive | 24 MiB | 6 MiB | | 429 |
//! | answers that are made and not sent | 96 MiB | 32 MiB | 8 MiB, for large answers | 429 |
//!
//! A user above 1 MiB of unsent answers is refused when the answers of all users exceed their bound.
//!
//! # Invariants
//!
//! INVARIANT (given back): every share is held by a guard; dropping the guard gives it back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of bodies that the server holds.
const BODIES: usize = 64 << 20;
/// Bytes of bodies that one user's requests hold.
const BODIES_OF_USER: usize = 16 << 20;
/// Bytes of a body that never waits for the bodies of other users, and may arrive slowly.
pub(super) const SMALL_BODY: usize = 64 << 10;
/// Bytes of bodies that arrive slowly.
const SLOW_BODIES: usize = 24 << 20;
/// Bytes of one user's bodies that arrive slowly.
const SLOW_BODIES_OF_USER: usize = 6 << 20;
/// Bytes of unsent answers.
const ANSWERS: usize = 96 << 20;
/// Bytes of one user's unsent answers.
const ANSWERS_OF_USER: usize = 32 << 20;
/// Bytes of one connection's unsent answers.
const ANSWERS_OF_CONNECTION: usize = 8 << 20;
/// Bytes of unsent answers that a user may hold while the server holds too many.
const ANSWERS_AT_LEAST: usize = 1 << 20;
/// Bytes of one permit: the least that a body is counted as.
const UNIT: usize = 1024;
/// Users from which on those without a request are removed.
const SWEEP_FROM: usize = 1024;

/// The shares of all users.
pub(super) struct Shares {
    users: Mutex<Users>,
    all: Room,
}

#[derive(Default)]
struct Users {
    shares: HashMap<Arc<str>, Arc<UserShare>>,
    /// The number of users at which those without a request are removed; at least [`SWEEP_FROM`].
    sweep_at: usize,
}

/// The share of one user.
pub(super) struct UserShare {
    /// The user's name.
    pub(super) user: Arc<str>,
    /// Requests in flight that read.
    pub(super) reading: AtomicUsize,
    /// Requests in flight that write.
    pub(super) writing: AtomicUsize,
    own: Room,
    /// The room of all users.
    all: Room,
}

/// Room for bodies, and the bytes of unsent answers.
#[derive(Clone)]
struct Room {
    bodies: Arc<Semaphore>,
    slow_bodies: Arc<Semaphore>,
    answers: Arc<AtomicUsize>,
}

impl Room {
    fn new(bodies: usize, slow_bodies: usize) -> Self {
        Room { bodies: semaphore(bodies), slow_bodies: semaphore(slow_bodies), answers: Arc::default() }
    }
}

/// A part of the bytes of bodies.
pub(super) struct BodyReservation {
    of_user: OwnedSemaphorePermit,
    /// None for a small body.
    of_all: Option<OwnedSemaphorePermit>,
}

/// Too many bytes of bodies arrive slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooManySlowBodies;

impl Shares {
    /// Nothing held.
    pub(super) fn new() -> Self {
        Shares { users: Mutex::default(), all: Room::new(BODIES, SLOW_BODIES) }
    }

    /// The share of a user.
    pub(super) fn of(&self, user: &str) -> Arc<UserShare> {
        let mut users = self.users.lock();
        if let Some(share) = users.shares.get(user) {
            return Arc::clone(share);
        }
        if users.shares.len() >= users.sweep_at.max(SWEEP_FROM) {
            users.shares.retain(|_, share| Arc::strong_count(share) > 1);
            // A sweep visits at most two users for each new one.
            users.sweep_at = 2 * users.shares.len();
        }
        let share = Arc::new(UserShare {
            user: Arc::from(user),
            reading: AtomicUsize::new(0),
            writing: AtomicUsize::new(0),
            own: Room::new(BODIES_OF_USER, SLOW_BODIES_OF_USER),
            all: self.all.clone(),
        });
        users.shares.insert(Arc::clone(&share.user), Arc::clone(&share));
        share
    }
}

impl UserShare {
    /// Reserves bytes for a body; waits until the user's other requests and those of all users leave room.
    pub(super) async fn reserve_body(&self, bytes: usize) -> Option<BodyReservation> {
        let units = units(bytes);
        // The user's own first: a user who waits for themselves takes nothing from others.
        let of_user = Arc::clone(&self.own.bodies).acquire_many_owned(units).await.ok()?;
        if bytes <= SMALL_BODY {
            return Some(BodyReservation { of_user, of_all: None });
        }
        let of_all = Arc::clone(&self.all.bodies).acquire_many_owned(units).await.ok()?;
        Some(BodyReservation { of_user, of_all: Some(of_all) })
    }

    /// Reserves bytes for a body that arrives slowly.
    ///
    /// # Errors
    ///
    /// There is no room for another one.
    pub(super) fn reserve_slow_body(&self, bytes: usize) -> Result<BodyReservation, TooManySlowBodies> {
        let units = units(bytes);
        let take = |from: &Arc<Semaphore>| {
            Arc::clone(from).try_acquire_many_owned(units).map_err(|_| TooManySlowBodies)
        };
        Ok(BodyReservation {
            of_user: take(&self.own.slow_bodies)?,
            of_all: Some(take(&self.all.slow_bodies)?),
        })
    }

    /// The counters of the user's unsent answers on a connection.
    pub(super) fn on_connection(self: &Arc<Self>, connection: Arc<AtomicUsize>) -> Arc<AnswerCounters> {
        Arc::new(AnswerCounters { share: Arc::clone(self), connection })
    }

    /// Whether the user, or the connection of a large answer, holds so many unsent answers that no other one is made.
    pub(super) fn has_too_many_unsent_answers(&self, connection: Option<&AtomicUsize>) -> bool {
        let held = self.own.answers.load(Ordering::Relaxed);
        held > ANSWERS_OF_USER
            || connection.is_some_and(|bytes| bytes.load(Ordering::Relaxed) > ANSWERS_OF_CONNECTION)
            || (held > ANSWERS_AT_LEAST && self.all.answers.load(Ordering::Relaxed) > ANSWERS)
    }
}

impl BodyReservation {
    /// Gives back all but `bytes`.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let keep = usize::try_from(units(bytes)).unwrap_or(usize::MAX);
        for permit in [Some(&mut self.of_user), self.of_all.as_mut()].into_iter().flatten() {
            let surplus = permit.num_permits().saturating_sub(keep);
            drop(permit.split(surplus));
        }
    }
}

/// Counts the unsent answers of a user on a connection. Each response has its own, so that its chunks do not contend for
/// the reference count of a share.
pub(super) struct AnswerCounters {
    /// The share of the user.
    pub(super) share: Arc<UserShare>,
    /// Unsent bytes of the connection.
    pub(super) connection: Arc<AtomicUsize>,
}

impl AnswerCounters {
    /// Counts bytes of an answer as unsent.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> UnsentAnswer {
        self.all().for_each(|counter| {
            counter.fetch_add(bytes, Ordering::Relaxed);
        });
        UnsentAnswer { counters: Arc::clone(self), bytes }
    }

    fn all(&self) -> impl Iterator<Item = &AtomicUsize> {
        [&*self.share.own.answers, &*self.share.all.answers, &*self.connection].into_iter()
    }
}

/// Bytes of an answer that wait to be sent.
pub(super) struct UnsentAnswer {
    counters: Arc<AnswerCounters>,
    bytes: usize,
}

impl UnsentAnswer {
    /// Changes the number of bytes.
    pub(super) fn resize(&mut self, bytes: usize) {
        if bytes == self.bytes {
            return;
        }
        for counter in self.counters.all() {
            // Added before it is subtracted: another reader never sees less than what is held.
            counter.fetch_add(bytes, Ordering::Relaxed);
            counter.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Bytes that count as unsent until their last copy is dropped.
    pub(super) fn track(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(TrackedBytes { bytes, _unsent: self })
    }
}

impl Drop for UnsentAnswer {
    fn drop(&mut self) {
        for counter in self.counters.all() {
            counter.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

struct TrackedBytes {
    bytes: Bytes,
    _unsent: UnsentAnswer,
}

impl AsRef<[u8]> for TrackedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn semaphore(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes / UNIT))
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT).max(1)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const BODY: usize = 3 << 20;

    #[test]
    fn requests_of_one_user_use_one_share() {
        let shares = Shares::new();
        let (a, b) = (shares.of("a"), shares.of("b"));
        assert!(Arc::ptr_eq(&a, &shares.of("a")) && !Arc::ptr_eq(&a, &b));
    }

    #[test]
    fn shares_of_users_without_requests_are_removed() {
        let shares = Shares::new();
        let kept = shares.of("kept");
        for i in 0..4 * SWEEP_FROM {
            drop(shares.of(&i.to_string()));
        }
        assert!(shares.users.lock().shares.len() <= SWEEP_FROM + 1);
        assert!(Arc::ptr_eq(&kept, &shares.of("kept")));
    }

    #[test]
    fn bodies_of_one_user_wait_for_each_other_and_not_for_those_of_others() {
        let shares = Shares::new();
        let (a, b) = (shares.of("a"), shares.of("b"));
        let mut held: Vec<_> =
            (0..BODIES_OF_USER / BODY).map(|_| a.reserve_body(BODY).now_or_never().unwrap()).collect();
        assert!(a.reserve_body(BODY).now_or_never().is_none());
        assert!(b.reserve_body(BODY).now_or_never().is_some());
        held.pop();
        assert!(a.reserve_body(BODY).now_or_never().is_some());
    }

    #[test]
    fn reservation_of_unknown_size_shrinks_to_the_body() {
        let share = Shares::new().of("a");
        let held: Vec<_> = (0..100)
            .map(|_| {
                let mut held = share.reserve_body(BODY).now_or_never().flatten().unwrap();
                held.shrink(1);
                held
            })
            .collect();
        assert_eq!(share.own.bodies.available_permits(), BODIES_OF_USER / UNIT - held.len());
        assert_eq!(share.all.bodies.available_permits(), BODIES / UNIT - held.len());
    }

    #[test]
    fn slow_bodies_of_one_user_are_bounded() {
        let shares = Shares::new();
        let share = shares.of("a");
        let held: Vec<_> = (0..SLOW_BODIES_OF_USER / BODY)
            .map(|_| share.reserve_slow_body(BODY).unwrap_or_else(|_| panic!()))
            .collect();
        assert!(share.reserve_slow_body(BODY).is_err());
        assert!(shares.of("b").reserve_slow_body(BODY).is_ok());
        drop(held);
        assert!(share.reserve_slow_body(BODY).is_ok());
    }

    #[test]
    fn unsent_answers_are_bounded_for_connection_user_and_all() {
        let shares = Shares::new();
        let connection = || Arc::new(AtomicUsize::new(0));
        let (a, first, second) = (shares.of("a"), connection(), connection());
        let one = a.on_connection(Arc::clone(&first)).hold(ANSWERS_OF_CONNECTION + 1);
        assert!(a.has_too_many_unsent_answers(Some(&first)) && !a.has_too_many_unsent_answers(Some(&second)));
        let mut rest = a.on_connection(Arc::clone(&second)).hold(ANSWERS_OF_USER);
        assert!(a.has_too_many_unsent_answers(None));
        drop(one);
        rest.resize(1);
        assert!(!a.has_too_many_unsent_answers(Some(&first)));

        let others: Vec<_> = (0..4)
            .map(|i| shares.of(&i.to_string()).on_connection(connection()).hold(ANSWERS_OF_USER - 1))
            .collect();
        assert!(!a.has_too_many_unsent_answers(Some(&first)), "a user with little is served");
        rest.resize(ANSWERS_AT_LEAST + 1);
        assert!(a.has_too_many_unsent_answers(None));
        drop(others);
        assert!(!a.has_too_many_unsent_answers(None));
    }

    #[test]
    fn tracked_bytes_count_until_the_last_copy_is_dropped() {
        let share = Shares::new().of("a");
        let connection = Arc::new(AtomicUsize::new(0));
        let sent = share.on_connection(Arc::clone(&connection)).hold(5).track(Bytes::from_static(b"bytes"));
        let part = sent.slice(1..2);
        drop(sent);
        assert_eq!((connection.load(Ordering::Relaxed), &part[..]), (5, &b"y"[..]));
        drop(part);
        assert_eq!(connection.load(Ordering::Relaxed), 0);
    }
}
