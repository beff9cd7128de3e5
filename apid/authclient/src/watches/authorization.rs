//! Open watches and their authorization.
//!
//! # Contract
//!
//! [`Auth::guard`] registers an open watch. Before each event, the stream calls [`WatchGuard::admits`], which
//! takes no lock while authd is connected. On false the stream awaits [`WatchGuard::renew`], whose error ends
//! the stream. While the stream waits for events, it also awaits [`WatchGuard::changed`], which returns when
//! the authorization ends or cannot be confirmed, or when re-authentication is due. The stream then awaits
//! `renew`, which re-authenticates the client or returns the reason as an error.
//!
//! # Invariants
//!
//! INVARIANT (fresh watches): no event with a revision above a policy write is delivered on an authorization
//! older than that write. An authorization as of `r` includes every policy write up to `r`. An authorization as
//! of an older revision is equivalent while its dependencies have not advanced. A policy write advances the
//! policy vector before any later event becomes visible. INVARIANT (bounded reuse): a watch reuses a webhook
//! response for its TTL or for [`MIN_WATCH_TTL`], whichever is longer. Then apid sends a new request: one per
//! TTL, not one per event. The response to a request also permits all events from before the request, however
//! short the TTL is.
//!
//! # Concurrency
//!
//! Streams of the same user with the same attributes share one [`SharedAuthorization`]. The re-authorization
//! task refreshes each authorization whose policy changed with its own request. A stream in `renew` wakes the
//! task. Ten thousand watches of a hundred users thus cost a hundred requests. The task does not wait for
//! responses, and an authorization has at most one refresh in progress. A watch with impersonation also needs
//! the authorizations of its impersonation rights.
//!
//! At most [`MAX_REQUESTS`] requests are open at a time for authorizations with a TTL, and as many for all
//! others. This limits the load on a slow authd and leaves room for ordinary requests. Further requests wait in
//! FIFO order. A webhook that hangs for timed authorizations does not delay the end of other watches. When a
//! webhook hangs for more than [`MAX_REQUESTS`] watches of one kind, later watches of this kind end later. The
//! delay is one timeout of a request to authd for each [`MAX_REQUESTS`] watches ahead of them. Until then their
//! events wait, and [`WatchGuard::renew`] fails after [`CONFIRM_TIMEOUT`].

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::attributes::Attributes;
use apimachinery::clock::Clock;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use arc_swap::ArcSwap;
use futures_util::future::{join_all, select_all};
use parking_lot::Mutex;
use storage::Revision;
use tokio::sync::{Notify, Semaphore, watch};

use crate::decisions::cache::CachedDecision;
use crate::decisions::rejection::{Rejection, forbidden};
use crate::transport::authd_api::AuthdError;
use crate::validity::{MIN_WATCH_TTL, Validity};
use crate::watches::reauthentication::Reauthentication;
use crate::{Auth, Authorized};

/// Maximum number of requests to authd that are open at a time for timed authorizations, and for all others.
///
/// This number is well below 10,000, the limit of authd for the waiting requests of a stream, which ordinary
/// requests share.
pub(crate) const MAX_REQUESTS: usize = 1024;
/// The shortest interval between two passes of the re-authorization task, unless a stream waits.
const MIN_PASS_INTERVAL: Duration = Duration::from_millis(20);
/// The delay after a failed request to authd, before the next attempt.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// The sleep of an idle watch between two checks when its identity has neither an expiry nor a TTL.
const NO_DEADLINE: Duration = Duration::from_secs(3600);
/// Number of milliseconds by which the difference between wall clock and monotonic clock must change to count
/// as a step of the wall clock.
const CLOCK_STEP_MS: u64 = 250;
/// Maximum time that a stream waits until its authorization is confirmed.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(10);

/// The shared authorizations of all open watches, and the state of the re-authorization task.
pub(crate) struct Watches {
    authorizations: Mutex<HashMap<AuthorizationKey, Weak<SharedAuthorization>>>,
    /// Wakes the re-authorization task at once: a stream waits in `renew`.
    wake: Notify,
    /// Wakes the re-authorization task for its next pass: policy changed during a refresh, which may have
    /// missed the change.
    refresh_missed: Notify,
    /// The revision of the component `identity` at the last pass of the re-authorization task.
    identity_seen: AtomicU64,
    /// The [`crate::decisions::epoch::EpochNumber::identities`] at the last pass of the re-authorization task.
    epoch_seen: AtomicU64,
    /// The difference of wall clock and monotonic clock at the last pass, in milliseconds.
    clock_offset_seen: AtomicI64,
    /// The permits for open requests of timed authorizations.
    timed_requests: Semaphore,
    /// The permits for open requests of all other authorizations.
    requests: Semaphore,
}

impl Default for Watches {
    fn default() -> Self {
        Watches {
            authorizations: Mutex::default(),
            wake: Notify::default(),
            refresh_missed: Notify::default(),
            identity_seen: AtomicU64::default(),
            epoch_seen: AtomicU64::default(),
            clock_offset_seen: AtomicI64::default(),
            timed_requests: Semaphore::new(MAX_REQUESTS),
            requests: Semaphore::new(MAX_REQUESTS),
        }
    }
}

type AuthorizationKey = (Arc<UserInfo>, Arc<Attributes>);

/// The authorization that streams of one user with the same attributes share.
struct SharedAuthorization {
    key: AuthorizationKey,
    state: ArcSwap<AuthorizationState>,
    /// Whether a refresh is in progress.
    is_refreshing: AtomicBool,
    /// Incremented when the open watches must check `state` and their identity again.
    signal: watch::Sender<u64>,
}

enum AuthorizationState {
    Allowed(Validity),
    Denied(Rejection),
}

/// The authorization of one open watch.
pub struct WatchGuard {
    auth: Arc<Auth>,
    /// The authorization of the watch request, and after it the authorizations of the impersonation rights.
    authorizations: Vec<Arc<SharedAuthorization>>,
    /// The validity of the identity of the credentials.
    identity: Arc<Validity>,
    reauthentication: Option<Reauthentication>,
}

impl Auth {
    /// Registers an open watch. The guard of internal work admits every event.
    pub fn guard(self: &Arc<Self>, authorized: &Authorized) -> WatchGuard {
        let share = |authorized: &Authorized| {
            let key: AuthorizationKey = (authorized.user().clone(), authorized.attributes.clone());
            let validity = authorized.cached_decision.validity.clone();
            if validity.is_internal() {
                SharedAuthorization::new(key, validity)
            } else {
                self.watches.share(key, validity)
            }
        };
        let authorizations =
            std::iter::once(authorized).chain(&authorized.identity.impersonation_rights).map(share).collect();
        WatchGuard {
            auth: self.clone(),
            authorizations,
            identity: Arc::clone(&authorized.identity.validity),
            reauthentication: Reauthentication::new(&authorized.identity, self.clock.monotonic()),
        }
    }

    /// Whether an authorization permits events up to a revision.
    ///
    /// The authorization permits them if it is as of this revision or later. It also does if its dependencies have
    /// not advanced and its TTL has not ended.
    fn is_confirmed_at(&self, validity: &Validity, revision: u64) -> bool {
        if validity.is_internal() {
            return true;
        }
        let is_recent = || validity.epoch == Some(self.epochs.number()) && validity.as_of >= revision;
        self.connection.cache_serves() && (is_recent() || self.is_valid_for_watch(validity))
    }

    fn is_valid_for_watch(&self, validity: &Validity) -> bool {
        validity.is_valid(&self.revisions, self.epochs.number(), &*self.clock, MIN_WATCH_TTL)
    }

    /// Runs the re-authorization task until the process ends.
    ///
    /// The task re-authorizes open watches when policy changes or a TTL ends.
    pub(crate) async fn run_reauthorization_task(self: Arc<Self>) {
        let mut policy_advances = self.revisions.subscribe_to_advances();
        let mut epoch = self.epochs.subscribe();
        let Watches { wake, refresh_missed, .. } = &self.watches;
        loop {
            // The sleep serves changes that cause no notification: the end of a TTL, and the end of the grace
            // period after the loss of authd.
            tokio::select! {
                _ = policy_advances.changed() => {}
                _ = epoch.changed() => self.drop_caches(),
                () = wake.notified() => {}
                () = refresh_missed.notified() => {}
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            policy_advances.mark_unchanged();
            self.refresh_stale_authorizations();
            tokio::select! {
                () = tokio::time::sleep(MIN_PASS_INTERVAL) => {}
                () = wake.notified() => wake.notify_one(),
            }
        }
    }

    /// Signals streams whose identity may have ended, then starts a refresh of each stale authorization.
    ///
    /// Authorizations with a refresh in progress are skipped. Does not wait for responses.
    fn refresh_stale_authorizations(self: &Arc<Self>) {
        let in_use = self.watches.authorizations_in_use();
        // Each call also stores the seen value, so all of them run.
        let identity_advanced = changes(&self.watches.identity_seen, self.revisions.identity());
        let identities_ended = changes(&self.watches.epoch_seen, self.epochs.number().identities);
        let clock_stepped = self.watches.has_clock_stepped(&*self.clock);
        if identity_advanced || identities_ended || clock_stepped || !self.connection.cache_serves() {
            in_use.iter().for_each(|authorization| authorization.signal_change());
        }
        let stale = in_use.into_iter().filter(|authorization| authorization.is_stale(self));
        let leases: Vec<RefreshLease> =
            stale.filter_map(|authorization| RefreshLease::new(self, authorization)).collect();
        if !leases.is_empty() {
            let auth = Arc::clone(self);
            tokio::spawn(async move { auth.refresh(leases).await });
        }
    }

    /// Refreshes authorizations, each with its own request.
    async fn refresh(&self, leases: Vec<RefreshLease>) {
        let refreshes = leases.into_iter().map(async |lease| {
            let Watches { timed_requests, requests, .. } = &self.watches;
            let permits = if lease.authorization.is_timed() { timed_requests } else { requests };
            // Cannot fail: the semaphore is never closed.
            let permit = permits.acquire().await;
            let (user, attributes) = &lease.authorization.key;
            let response = self.decide_by_authd(user, attributes, "").await;
            drop(permit);
            match response {
                Ok(cached_decision) => lease.settle(&cached_decision),
                Err(reason) => {
                    tokio::time::sleep(RETRY_DELAY).await;
                    return Some(reason);
                }
            }
            None
        });
        let errors: Vec<AuthdError> = join_all(refreshes).await.into_iter().flatten().collect();
        if let Some(reason) = errors.first() {
            let authorizations = errors.len();
            tracing::warn!(%reason, authorizations, "re-authorization of open watches failed; retrying");
        }
    }
}

impl Watches {
    /// Returns the authorizations that open streams use, and removes all other authorizations from the map.
    fn authorizations_in_use(&self) -> Vec<Arc<SharedAuthorization>> {
        let mut authorizations = self.authorizations.lock();
        authorizations.retain(|_, authorization| authorization.strong_count() > 0);
        authorizations.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the shared authorization of a key; a new one when none exists or the existing one is denied.
    fn share(&self, key: AuthorizationKey, validity: Validity) -> Arc<SharedAuthorization> {
        let mut authorizations = self.authorizations.lock();
        if let Some(authorization) = authorizations.get(&key).and_then(Weak::upgrade) {
            authorization.update(validity.as_of, || AuthorizationState::Allowed(validity.clone()));
            // Streams on a denied authorization are about to end; this stream was authorized later.
            if !authorization.is_denied() {
                authorization.signal_change();
                return authorization;
            }
        }
        let authorization = SharedAuthorization::new(key.clone(), validity);
        authorizations.insert(key, Arc::downgrade(&authorization));
        authorization
    }

    /// The number of registered authorizations.
    #[cfg(test)]
    pub(crate) fn authorization_count(&self) -> usize {
        self.authorizations.lock().len()
    }

    /// Whether the wall clock was set since the last call, so identities may have ended or may not be
    /// valid yet.
    fn has_clock_stepped(&self, clock: &dyn Clock) -> bool {
        let monotonic = i64::try_from(clock.monotonic().as_millis()).unwrap_or(i64::MAX);
        let offset = clock.now().as_millisecond().saturating_sub(monotonic);
        self.clock_offset_seen.swap(offset, Ordering::SeqCst).abs_diff(offset) > CLOCK_STEP_MS
    }
}

/// Stores a value. Returns whether it differs from the stored one.
fn changes(stored: &AtomicU64, value: u64) -> bool {
    stored.swap(value, Ordering::SeqCst) != value
}

impl SharedAuthorization {
    fn new(key: AuthorizationKey, validity: Validity) -> Arc<Self> {
        let state = ArcSwap::from_pointee(AuthorizationState::Allowed(validity));
        Arc::new(SharedAuthorization {
            key,
            state,
            is_refreshing: AtomicBool::new(false),
            signal: watch::Sender::new(0),
        })
    }

    fn is_denied(&self) -> bool {
        matches!(&**self.state.load(), AuthorizationState::Denied(_))
    }

    /// Whether a TTL limits the authorization.
    fn is_timed(&self) -> bool {
        matches!(&**self.state.load(), AuthorizationState::Allowed(validity) if validity.ttl.is_some())
    }

    fn is_stale(&self, auth: &Auth) -> bool {
        match &**self.state.load() {
            AuthorizationState::Allowed(validity) => {
                !validity.is_internal() && !auth.is_valid_for_watch(validity)
            }
            AuthorizationState::Denied(_) => false,
        }
    }

    /// Whether the epoch or the policy on which the authorization depends has changed.
    fn is_behind(&self, auth: &Auth) -> bool {
        match &**self.state.load() {
            AuthorizationState::Allowed(validity) => {
                !validity.is_current(&auth.revisions, auth.epochs.number())
            }
            AuthorizationState::Denied(_) => false,
        }
    }

    /// Replaces the state, unless the state is a denial or includes policy writes after the revision `as_of`.
    ///
    /// A slow decision thus does not overwrite a newer decision. A denial is final.
    fn update(&self, as_of: u64, state: impl Fn() -> AuthorizationState) {
        self.state.rcu(|now| match &**now {
            AuthorizationState::Allowed(validity) if validity.as_of <= as_of => Arc::new(state()),
            AuthorizationState::Allowed(_) | AuthorizationState::Denied(_) => Arc::clone(now),
        });
    }

    fn signal_change(&self) {
        self.signal.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// The exclusive right to refresh a shared authorization, until it is dropped.
struct RefreshLease {
    auth: Arc<Auth>,
    authorization: Arc<SharedAuthorization>,
}

impl RefreshLease {
    /// Takes the lease. Returns None if another refresh of the authorization is in progress.
    fn new(auth: &Arc<Auth>, authorization: Arc<SharedAuthorization>) -> Option<Self> {
        let is_free = !authorization.is_refreshing.swap(true, Ordering::SeqCst);
        is_free.then(|| RefreshLease { auth: Arc::clone(auth), authorization })
    }

    /// Stores a decision in the shared authorization and ends the refresh.
    fn settle(self, cached_decision: &CachedDecision) {
        let authorization = Arc::clone(&self.authorization);
        let (user, attributes) = &authorization.key;
        authorization.update(cached_decision.validity.as_of, || {
            if cached_decision.decision.allowed() {
                AuthorizationState::Allowed(cached_decision.validity.clone())
            } else {
                AuthorizationState::Denied(forbidden(user, attributes, &cached_decision.decision))
            }
        });
        // The refresh ends first: a stream that needs a newer decision wakes the task, which must find no
        // refresh in progress.
        drop(self);
        authorization.signal_change();
    }
}

impl Drop for RefreshLease {
    /// Ends the refresh, so that another one can begin. Wakes the task if policy changed during the refresh.
    fn drop(&mut self) {
        self.authorization.is_refreshing.store(false, Ordering::SeqCst);
        if self.authorization.is_behind(&self.auth) {
            self.auth.watches.refresh_missed.notify_one();
        }
    }
}

fn unconfirmed_status() -> Status {
    Status::unavailable("the authorization of this watch could not be confirmed", 1)
}

impl WatchGuard {
    /// Whether the event of this revision may be sent to the client on the current authorization.
    pub fn admits(&self, revision: Revision) -> bool {
        self.has_identity()
            && self.reauthentication.as_ref().is_none_or(|reauthentication| !reauthentication.time_left(self.auth.clock.monotonic()).is_zero())
            && self.authorizations.iter().all(|authorization| {
                matches!(&**authorization.state.load(), AuthorizationState::Allowed(validity) if self.auth.is_confirmed_at(validity, revision.0))
            })
    }

    /// Whether the credentials may belong to another user since a new authd process or a changed authentication
    /// configuration.
    ///
    /// The credentials may still be valid: the client can open a new watch with them.
    pub fn is_outdated(&self) -> bool {
        let identities = self.identity.epoch.map(|epoch| epoch.identities);
        !self.identity.is_internal() && identities != Some(self.auth.epochs.number().identities)
    }

    /// Whether the identity of the watch holds.
    fn has_identity(&self) -> bool {
        !self.is_outdated() && self.identity.holds_at(self.auth.clock.now())
    }

    /// Waits until the authorization is confirmed at policy no older than `min_revision`.
    ///
    /// # Errors
    ///
    /// 401 when the identity has ended, 403 when no authorizer allows the watch, 503 when authd does not
    /// decide.
    pub async fn renew(&self, min_revision: Revision) -> Result<(), Status> {
        let confirmation = async {
            while let Some(reauthentication) = &self.reauthentication
                && reauthentication.time_left(self.auth.clock.monotonic()).is_zero()
            {
                match reauthentication.reauthenticate(&self.auth).await {
                    // authd does not respond now; try again.
                    Err(status) if status.code == 503 && self.auth.connection.cache_serves() => {
                        tokio::time::sleep(RETRY_DELAY).await;
                    }
                    result => result?,
                }
            }
            for authorization in &self.authorizations {
                self.wait_until_confirmed(authorization, min_revision).await?;
            }
            Ok(())
        };
        tokio::time::timeout(CONFIRM_TIMEOUT, confirmation)
            .await
            .unwrap_or_else(|_| Err(unconfirmed_status()))
    }

    async fn wait_until_confirmed(
        &self,
        authorization: &SharedAuthorization,
        min_revision: Revision,
    ) -> Result<(), Status> {
        let mut signal = authorization.signal.subscribe();
        loop {
            if !self.has_identity() {
                return Err(Status::unauthorized());
            }
            match &**authorization.state.load() {
                AuthorizationState::Denied(rejection) => return Err((*rejection.status).clone()),
                AuthorizationState::Allowed(validity)
                    if self.auth.is_confirmed_at(validity, min_revision.0) =>
                {
                    return Ok(());
                }
                AuthorizationState::Allowed(_) if !self.auth.connection.cache_serves() => {
                    return Err(unconfirmed_status());
                }
                AuthorizationState::Allowed(_) => {}
            }
            self.auth.watches.wake.notify_one();
            // Cannot fail: `authorization` owns the sender, and this guard owns `authorization`.
            let _ = signal.changed().await;
        }
    }

    /// Waits until the identity or the authorization has ended or cannot be confirmed, or re-authentication
    /// is due.
    pub async fn changed(&self) {
        // The common case of one authorization needs no allocation.
        if let [authorization] = self.authorizations.as_slice() {
            return self.wait_for_end(authorization).await;
        }
        select_all(
            self.authorizations.iter().map(|authorization| Box::pin(self.wait_for_end(authorization))),
        )
        .await;
    }

    async fn wait_for_end(&self, authorization: &SharedAuthorization) {
        let mut signal = authorization.signal.subscribe();
        loop {
            let is_denied = match &**authorization.state.load() {
                AuthorizationState::Denied(_) => true,
                AuthorizationState::Allowed(validity) => {
                    !validity.is_internal() && !self.auth.connection.cache_serves()
                }
            };
            let ttl_left = self.reauthentication.as_ref().map_or(NO_DEADLINE, |reauthentication| {
                reauthentication.time_left(self.auth.clock.monotonic())
            });
            if is_denied || !self.has_identity() || ttl_left.is_zero() {
                return;
            }
            let now = self.auth.clock.now();
            let until_expiry = self
                .identity
                .expires
                .map_or(NO_DEADLINE, |end| Duration::try_from(end.duration_since(now)).unwrap_or_default());
            let remaining = until_expiry.min(ttl_left);
            tokio::select! {
                _ = signal.changed() => {}
                () = tokio::time::sleep(remaining) => {}
            }
        }
    }
}
