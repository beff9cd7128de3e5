//! Open watches and their authorization.
//!
//! # Contract
//!
//! [`Auth::guard`] registers an open watch. Before an event the stream calls [`WatchGuard::admits`] (an
//! atomic load). On false it awaits [`WatchGuard::renew`], whose error ends the stream. Beside the events
//! the stream awaits [`WatchGuard::changed`], which returns when the authorization ends or cannot be
//! confirmed. `renew` then returns the reason.
//!
//! # Invariants
//!
//! INVARIANT (fresh watches): no event with a revision above a policy write is delivered on an
//! authorization older than that write. An authorization as of `r` includes every policy write up to `r`.
//! An older authorization is equivalent while its dependencies have not moved, because policy writes
//! advance the vector before the event becomes visible.
//! INVARIANT (no longer than the TTL): a watch relies on a webhook response for its TTL, and for
//! [`WATCHED`](super::decision::WATCHED) at least. Then apid sends a new request: one per TTL, not one per
//! event. An event from before a request may go out on its response, however short the TTL.
//!
//! # Concurrency
//!
//! Streams of the same user with the same attributes share one [`Held`]. The re-authorization task
//! re-authorizes those whose policy moved, in batches. A stream in `renew` wakes the task. Ten thousand
//! watches of a hundred users thus cost a hundred authorizations in one batch. The task does not wait for
//! responses, and an authorization has at most one refresh in progress.
//!
//! An authorization with a TTL gets a request of its own. When a batch has no response within [`PROMPT`],
//! each of its authorizations also gets a request of its own: one may now need a webhook. A webhook that
//! hangs therefore delays the end of other watches by at most [`PROMPT`]. An impersonated watch also holds
//! the impersonation rights.
//!
//! At most [`APART`] such single requests are open at a time. This limits the load on a slow authd and
//! leaves room for ordinary requests. Further single requests wait in FIFO order. When a webhook hangs for
//! more watches than [`APART`], later watches end later: by one timeout of a request to authd for each full
//! [`APART`] ahead of them. Their events wait meanwhile, and [`WatchGuard::renew`] fails after
//! [`PATIENCE`].

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::attributes::{Attributes, ParsedSelector};
use apimachinery::clock::Clock;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use arc_swap::ArcSwap;
use futures_util::future::{Either, join_all, select, select_all};
use parking_lot::Mutex;
use storage::Revision;
use tokio::sync::{Notify, Semaphore, watch};

use super::authority::Undecided;
use super::decision::{Decided, Validity};
use super::identity::Tenure;
use super::refusal::{Refusal, forbidden};
use super::revisions::PolicyRevisions;
use super::vouched::Vouching;
use super::{Auth, Authorized};

/// Limit of the authorizations in one batch.
pub(super) const BATCH: usize = 256;
/// Limit of the size of a batch in bytes.
///
/// It is well below authd's largest message. A single selector, as long as request headers may be, stays
/// below it.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Limit of the open single requests.
///
/// It is well below authd's limit of waiting requests per stream (10,000), which ordinary requests share. A
/// webhook that hangs for some hundred watches does not exhaust it.
pub(super) const APART: usize = 1024;
/// How long a batch waits before the single requests start.
const PROMPT: Duration = Duration::from_millis(500);
/// The shortest interval between two passes of the re-authorization task, unless a stream waits.
const PAUSE: Duration = Duration::from_millis(20);
/// The delay after a failed request.
const RETRY: Duration = Duration::from_millis(200);
/// The wait when no deadline exists.
const LONG: Duration = Duration::from_secs(3600);
/// The least step of the wall clock against the monotonic clock that counts, in milliseconds.
const CLOCK_STEP_MS: u64 = 250;
/// How long a stream waits for its authorization to be confirmed.
const PATIENCE: Duration = Duration::from_secs(10);

/// All open watches.
pub(super) struct Watches {
    held: Mutex<HashMap<Key, Weak<Held>>>,
    /// Wakes the re-authorization task at once: a stream waits in `renew`.
    wake: Notify,
    /// Wakes the re-authorization task for its next pass: policy moved during a refresh.
    passed_over: Notify,
    /// The `identity` component at the last pass.
    identity_seen: AtomicU64,
    /// The era at the last pass.
    era_seen: AtomicU64,
    /// The difference of the two clocks at the last pass, in milliseconds.
    clock_offset_seen: AtomicI64,
    /// One permit for each single request.
    apart: Semaphore,
}

impl Default for Watches {
    fn default() -> Self {
        Watches {
            held: Mutex::default(),
            wake: Notify::default(),
            passed_over: Notify::default(),
            identity_seen: AtomicU64::default(),
            era_seen: AtomicU64::default(),
            clock_offset_seen: AtomicI64::default(),
            apart: Semaphore::new(APART),
        }
    }
}

type Key = (Arc<UserInfo>, Arc<Attributes>);

/// The authorization that streams of one user with the same attributes share.
struct Held {
    key: Key,
    standing: ArcSwap<Standing>,
    /// Whether a refresh is in progress.
    claimed: AtomicBool,
    /// Counts the reasons to check the state again.
    signal: watch::Sender<u64>,
}

enum Standing {
    Allowed(Validity),
    Refused(Refusal),
}

/// The authorization of one open watch.
pub struct WatchGuard {
    auth: Arc<Auth>,
    /// The watch's own authorization first, then the impersonation rights.
    held: Vec<Arc<Held>>,
    tenure: Arc<Tenure>,
    vouching: Option<Vouching>,
}

impl Auth {
    /// Registers an open watch. The guard of internal work admits every event.
    pub fn guard(self: &Arc<Self>, authorized: &Authorized) -> WatchGuard {
        let hold = |authorized: &Authorized| {
            let key: Key = (authorized.user.clone(), authorized.attributes.clone());
            let validity = authorized.decided.validity.clone();
            if validity.is_internal() { Held::new(key, validity) } else { self.watches.share(key, validity) }
        };
        let held = std::iter::once(authorized).chain(&authorized.by_right).map(hold).collect();
        let vouching =
            authorized.vouched.clone().map(|vouched| Vouching::new(vouched, self.clock.monotonic()));
        WatchGuard { auth: self.clone(), held, tenure: authorized.tenure.clone(), vouching }
    }

    /// Whether an authorization covers events up to a revision.
    ///
    /// The authorization is as of this revision or later, or its dependencies have not moved since.
    fn confirms(&self, validity: &Validity, revision: u64) -> bool {
        if validity.is_internal() {
            return true;
        }
        let epoch = self.epochs.count();
        let covered = || validity.epoch == Some(epoch) && validity.as_of >= revision;
        self.link.cache_serves() && (covered() || validity.stands(&self.revisions, epoch, &*self.clock))
    }

    /// Runs the re-authorization task until the process ends.
    ///
    /// The task re-authorizes open watches when policy moves or a TTL ends.
    pub(super) async fn keep_watches(self: Arc<Self>) {
        let mut moved = self.revisions.moved();
        let mut epoch = self.epochs.changed();
        let Watches { wake, passed_over, .. } = &self.watches;
        loop {
            // The tick covers changes without an event: expiry, and the end of the grace period after the
            // loss of authd.
            tokio::select! {
                _ = moved.changed() => {}
                _ = epoch.changed() => self.drop_caches(),
                () = wake.notified() => {}
                () = passed_over.notified() => {}
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
            moved.mark_unchanged();
            self.look_at_watches();
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = wake.notified() => wake.notify_one(),
            }
        }
    }

    /// Signals streams whose identity may have ended, then starts a refresh of each stale authorization.
    ///
    /// Authorizations with a refresh in progress are skipped. Does not wait for responses.
    fn look_at_watches(self: &Arc<Self>) {
        let open = self.watches.all();
        let (moved, ended) =
            (self.watches.identity_moved(&self.revisions), self.watches.era_ended(self.epochs.era()));
        let stepped = self.watches.clock_stepped(&*self.clock);
        if moved || ended || stepped || !self.link.cache_serves() {
            open.iter().for_each(|held| held.look_again());
        }
        let stale = open.into_iter().filter(|held| held.is_stale(self));
        let claims = stale.filter_map(|held| Claim::new(self, held));
        let (apart, together): (Vec<Claim>, Vec<Claim>) = claims.partition(|claim| claim.held.is_timed());
        for batch in batches(together) {
            tokio::spawn(Arc::clone(self).renew_together(batch));
        }
        if !apart.is_empty() {
            let auth = Arc::clone(self);
            tokio::spawn(async move { auth.renew_apart(&apart).await });
        }
    }

    /// Refreshes authorizations with one batch request. After [`PROMPT`], single requests run beside it;
    /// the first response counts.
    async fn renew_together(self: Arc<Self>, claims: Vec<Claim>) {
        let keys: Vec<Key> = claims.iter().map(|claim| claim.held.key.clone()).collect();
        let mut together = pin!(self.ask_batch(&keys));
        let answer = match tokio::time::timeout(PROMPT, &mut together).await {
            Ok(answer) => answer,
            Err(_) => match select(together, pin!(self.renew_apart(&claims))).await {
                Either::Left((Err(_), apart)) => return apart.await,
                Either::Left((answered, _)) => answered,
                Either::Right(((), _)) => return,
            },
        };
        match answer {
            Ok(decisions) => {
                std::iter::zip(&claims, decisions).for_each(|(claim, decided)| claim.settle(&decided));
            }
            Err(reason) => {
                tell_undecided(claims.len(), &reason);
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Refreshes each authorization with a single request, at most [`APART`] at a time.
    async fn renew_apart(&self, claims: &[Claim]) {
        let each = claims.iter().map(async |claim| {
            // Cannot fail: the semaphore is never closed.
            let turn = self.watches.apart.acquire().await;
            let answer = self.ask_batch(std::slice::from_ref(&claim.held.key)).await;
            drop(turn);
            match answer {
                Ok(decisions) => {
                    decisions.iter().for_each(|decided| claim.settle(decided));
                    None
                }
                Err(reason) => {
                    tokio::time::sleep(RETRY).await;
                    claim.release();
                    Some(reason)
                }
            }
        });
        let undecided: Vec<Undecided> = join_all(each).await.into_iter().flatten().collect();
        if let Some(reason) = undecided.first() {
            tell_undecided(undecided.len(), reason);
        }
    }
}

/// Groups refreshes into batches of at most [`BATCH`] requests and about [`BATCH_BYTES`].
fn batches(claims: Vec<Claim>) -> Vec<Vec<Claim>> {
    let mut batches: Vec<Vec<Claim>> = Vec::new();
    let mut bytes = 0;
    for claim in claims {
        let size = question_bytes(&claim.held.key);
        match batches.last_mut() {
            Some(batch) if batch.len() < BATCH && bytes + size <= BATCH_BYTES => {
                bytes += size;
                batch.push(claim);
            }
            Some(_) | None => {
                bytes = size;
                batches.push(vec![claim]);
            }
        }
    }
    batches
}

/// An upper estimate of the size of a request on the wire.
fn question_bytes((user, attributes): &Key) -> usize {
    /// Tag and length of a field, twice.
    const FIELD: usize = 16;
    let texts = |list: &[String]| list.iter().map(|text| text.len() + FIELD).sum::<usize>();
    let selector = |selector: &ParsedSelector| match selector {
        ParsedSelector::Unparsable(text) => text.len() + FIELD,
        ParsedSelector::Requirements(all) => {
            all.iter().map(|one| one.key.len() + 2 * FIELD + texts(&one.values) + FIELD).sum()
        }
    };
    let extra = user.extra.iter().map(|(key, values)| key.len() + 2 * FIELD + texts(values)).sum::<usize>();
    let Attributes { verb, group, version, resource, subresource, namespace, name, path, .. } = &**attributes;
    let texts_of_request = [verb, group, version, resource, subresource, namespace, name, path];
    let request: usize = texts_of_request.iter().map(|text| text.len() + FIELD).sum();
    user.name.len()
        + user.uid.len()
        + texts(&user.groups)
        + extra
        + request
        + selector(&attributes.field_selector)
        + selector(&attributes.label_selector)
        + 8 * FIELD
}

fn tell_undecided(watches: usize, reason: &Undecided) {
    tracing::warn!(%reason, watches, "re-authorization of open watches failed; retrying");
}

impl Watches {
    /// The authorizations that streams hold.
    fn all(&self) -> Vec<Arc<Held>> {
        let mut all = self.held.lock();
        all.retain(|_, held| held.strong_count() > 0);
        all.values().filter_map(Weak::upgrade).collect()
    }

    /// The authorization that all streams of a key share.
    fn share(&self, key: Key, validity: Validity) -> Arc<Held> {
        let mut all = self.held.lock();
        if let Some(held) = all.get(&key).and_then(Weak::upgrade) {
            held.take(validity.as_of, || Standing::Allowed(validity.clone()));
            // Streams on a rejected authorization are about to end; this stream was authorized later.
            if !held.is_refused() {
                held.look_again();
                return held;
            }
        }
        let held = Held::new(key.clone(), validity);
        all.insert(key, Arc::downgrade(&held));
        held
    }

    /// The number of registered authorizations.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.held.lock().len()
    }

    /// Whether the `identity` component moved since the last call.
    fn identity_moved(&self, revisions: &PolicyRevisions) -> bool {
        let now = revisions.identity();
        self.identity_seen.swap(now, Ordering::SeqCst) != now
    }

    /// Whether the wall clock was set since the last call, so that identities may have ended or may not be
    /// valid yet.
    fn clock_stepped(&self, clock: &dyn Clock) -> bool {
        let monotonic = i64::try_from(clock.monotonic().as_millis()).unwrap_or(i64::MAX);
        let offset = clock.now().as_millisecond().saturating_sub(monotonic);
        self.clock_offset_seen.swap(offset, Ordering::SeqCst).abs_diff(offset) > CLOCK_STEP_MS
    }

    /// Whether the era changed since the last call.
    fn era_ended(&self, now: u64) -> bool {
        self.era_seen.swap(now, Ordering::SeqCst) != now
    }
}

impl Held {
    fn new(key: Key, validity: Validity) -> Arc<Self> {
        let standing = ArcSwap::from_pointee(Standing::Allowed(validity));
        Arc::new(Held { key, standing, claimed: AtomicBool::new(false), signal: watch::Sender::new(0) })
    }

    fn is_refused(&self) -> bool {
        matches!(&**self.standing.load(), Standing::Refused(_))
    }

    /// Whether a TTL limits the authorization.
    fn is_timed(&self) -> bool {
        matches!(&**self.standing.load(), Standing::Allowed(validity) if validity.expiry.is_some())
    }

    fn is_stale(&self, auth: &Auth) -> bool {
        match &**self.standing.load() {
            Standing::Allowed(validity) => {
                let epoch = auth.epochs.count();
                !validity.is_internal() && !validity.stands(&auth.revisions, epoch, &*auth.clock)
            }
            Standing::Refused(_) => false,
        }
    }

    /// Whether the policy of the authorization has moved.
    fn is_behind(&self, auth: &Auth) -> bool {
        match &**self.standing.load() {
            Standing::Allowed(validity) => {
                validity.epoch != Some(auth.epochs.count())
                    || !auth.revisions.unchanged(&validity.depends, validity.as_of)
            }
            Standing::Refused(_) => false,
        }
    }

    /// Changes the state, unless it is as of a later reading.
    ///
    /// A slow decision thus does not overwrite a newer one. A rejection is final.
    fn take(&self, as_of: u64, standing: impl Fn() -> Standing) {
        self.standing.rcu(|now| match &**now {
            Standing::Allowed(validity) if validity.as_of <= as_of => Arc::new(standing()),
            Standing::Allowed(_) | Standing::Refused(_) => Arc::clone(now),
        });
    }

    fn look_again(&self) {
        self.signal.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// An exclusive refresh of a shared authorization, until its release.
struct Claim {
    auth: Arc<Auth>,
    held: Arc<Held>,
    released: AtomicBool,
}

impl Claim {
    fn new(auth: &Arc<Auth>, held: Arc<Held>) -> Option<Self> {
        let free = !held.claimed.swap(true, Ordering::SeqCst);
        free.then(|| Claim { auth: Arc::clone(auth), held, released: AtomicBool::new(false) })
    }

    /// Stores the first decision and releases the refresh.
    fn settle(&self, decided: &Decided) {
        if self.released.load(Ordering::SeqCst) {
            return;
        }
        let (user, attributes) = &self.held.key;
        self.held.take(decided.validity.as_of, || {
            if decided.decision.allowed() {
                Standing::Allowed(decided.validity.clone())
            } else {
                Standing::Refused(forbidden(user, attributes, &decided.decision.reason))
            }
        });
        // The release comes first: a stream that needs a newer decision wakes the task, which must find no
        // refresh in progress.
        self.release();
        self.held.look_again();
    }

    /// Allows other refreshes.
    fn release(&self) {
        if self.released.swap(true, Ordering::SeqCst) {
            return;
        }
        self.held.claimed.store(false, Ordering::SeqCst);
        if self.held.is_behind(&self.auth) {
            self.auth.watches.passed_over.notify_one();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}

fn unconfirmed() -> Status {
    Status::unavailable("the authorization of this watch could not be confirmed", 1)
}

impl WatchGuard {
    /// Whether an event of this revision may go out on the current authorization.
    pub fn admits(&self, revision: Revision) -> bool {
        self.tenure.lasts(self.auth.clock.now())
            && self.vouching.as_ref().is_none_or(|vouching| !vouching.left(self.auth.clock.monotonic()).is_zero())
            && !self.is_outdated()
            && self.held.iter().all(|held| {
                matches!(&**held.standing.load(), Standing::Allowed(validity) if self.auth.confirms(validity, revision.0))
            })
    }

    /// Whether the era of the identity has ended.
    ///
    /// The end says nothing about the user, who may open a new watch and continue.
    pub fn is_outdated(&self) -> bool {
        self.tenure.era.is_some_and(|era| era != self.auth.epochs.era())
    }

    /// Waits until the authorization is confirmed at policy no older than `upto`.
    ///
    /// # Errors
    ///
    /// The stream ends with 401 when the identity ended or [`WatchGuard::is_outdated`], 403 when the
    /// authorizer rejects, 503 when authd gives no decision.
    pub async fn renew(&self, upto: Revision) -> Result<(), Status> {
        let confirmed = async {
            while let Some(vouching) = &self.vouching
                && vouching.left(self.auth.clock.monotonic()).is_zero()
            {
                match vouching.again(&self.auth).await {
                    // authd gives no response now; try again.
                    Err(status) if status.code == 503 && self.auth.link.cache_serves() => {
                        tokio::time::sleep(RETRY).await;
                    }
                    said => said?,
                }
            }
            for held in &self.held {
                self.confirmed(held, upto).await?;
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, confirmed).await.unwrap_or_else(|_| Err(unconfirmed()))
    }

    async fn confirmed(&self, held: &Held, upto: Revision) -> Result<(), Status> {
        let mut signal = held.signal.subscribe();
        loop {
            if self.is_outdated() || !self.tenure.lasts(self.auth.clock.now()) {
                return Err(Status::unauthorized());
            }
            match &**held.standing.load() {
                Standing::Refused(refusal) => return Err((*refusal.status).clone()),
                Standing::Allowed(validity) if self.auth.confirms(validity, upto.0) => return Ok(()),
                Standing::Allowed(_) if !self.auth.link.cache_serves() => return Err(unconfirmed()),
                Standing::Allowed(_) => {}
            }
            self.auth.watches.wake.notify_one();
            // Cannot fail: `held` owns the sender, and this guard owns `held`.
            let _ = signal.changed().await;
        }
    }

    /// Waits until the authorization has ended or is in doubt, or re-authentication is due.
    pub async fn changed(&self) {
        // The common case of one authorization needs no allocation.
        if let [held] = self.held.as_slice() {
            return self.ended(held).await;
        }
        select_all(self.held.iter().map(|held| Box::pin(self.ended(held)))).await;
    }

    async fn ended(&self, held: &Held) {
        let mut signal = held.signal.subscribe();
        loop {
            let now = self.auth.clock.now();
            let refused = match &**held.standing.load() {
                Standing::Refused(_) => true,
                Standing::Allowed(validity) => !validity.is_internal() && !self.auth.link.cache_serves(),
            };
            let vouched =
                self.vouching.as_ref().map_or(LONG, |vouching| vouching.left(self.auth.clock.monotonic()));
            if refused || self.is_outdated() || !self.tenure.lasts(now) || vouched.is_zero() {
                return;
            }
            let left = self
                .tenure
                .expires
                .map_or(LONG, |end| Duration::try_from(end.duration_since(now)).unwrap_or_default());
            let left = left.min(vouched);
            tokio::select! {
                _ = signal.changed() => {}
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}
