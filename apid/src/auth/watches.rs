//! Open watches and the authorization they live on.
//!
//! # Contract
//!
//! [`Auth::guard`] registers an open watch. Before an event goes out the stream asks [`WatchGuard::admits`] (a load); when
//! that says no it awaits [`WatchGuard::renew`], whose error ends the stream. Beside the events the stream awaits
//! [`WatchGuard::changed`], which returns when the authorization ended or can no longer be confirmed; `renew` then gives
//! the reason.
//!
//! # Invariants
//!
//! INVARIANT (fresh watches): no event with a revision above a policy write is delivered on an authorization older than
//! that write. An authorization as of `r` includes every policy write up to `r`; one whose dependencies have not moved
//! since is as good as new, because policy writes advance the vector before the event can be seen.
//! INVARIANT (no longer than it was told): where another service decides or says who somebody is, a watch lives on its
//! answer for the time that this is kept and [`WATCHED`](super::decision::WATCHED) at least, then it is asked again: once
//! in that time, not at every event. What happened before a question may go out on its answer, however short that lives.
//!
//! # Concurrency
//!
//! Streams of the same user with the same attributes share one [`Held`]. A task, the warden, has those authorized anew whose
//! policy moved, in batches; streams that wait in `renew` wake it. So ten thousand watches of a hundred users cost a hundred
//! questions in one batch. It waits for no answer, and what is being asked about is not asked about twice at a time. Those
//! that live on another service's answer are asked about each by itself, and so are beside it those of a batch that is not
//! answered within [`PROMPT`], since one of it may need such a service now: a service that hangs delays the end of no other
//! watch by more than that. A watch made as somebody else holds, beside its own, the rights to be them.
//!
//! At most [`APART`] questions that are about one each are open at a time, so that a slow authd gets no more of them than
//! that however many watches there are, and ordinary requests find room at it. The others have their turn in the order in
//! which they came: while a service hangs for more watches than that, the end of another that came after them is delayed,
//! besides, by the time that questions are given up after (the timeout of a question to authd) for each full [`APART`] of
//! them. Its events wait meanwhile, and [`WatchGuard::renew`] fails when they waited too long.

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

/// Questions in one batch.
pub(super) const BATCH: usize = 256;
/// Bytes of the questions in one batch: well below the largest message that authd takes, which one selector alone, as
/// long as the headers of a request may be, does not reach.
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Questions about one each that are open at a time: well below what authd lets wait
/// of one stream (10,000), where ordinary requests wait too, and many enough that a service that hangs for some hundred
/// watches delays no other.
pub(super) const APART: usize = 1024;
/// How long a batch waits for its answer alone.
const PROMPT: Duration = Duration::from_millis(500);
/// Policy that moves all the time is looked at so often, unless a stream waits.
const PAUSE: Duration = Duration::from_millis(20);
/// After a failed question.
const RETRY: Duration = Duration::from_millis(200);
/// What has no end is looked at so often.
const LONG: Duration = Duration::from_secs(3600);
/// Milliseconds by which the wall clock must differ from the monotonic clock to count as set.
const CLOCK_STEP_MS: u64 = 250;
/// How long a stream waits for its authorization to be confirmed.
const PATIENCE: Duration = Duration::from_secs(10);

/// All open watches.
pub(super) struct Watches {
    held: Mutex<HashMap<Key, Weak<Held>>>,
    /// A stream waits in `renew`: for the warden, at once.
    wake: Notify,
    /// Policy moved while an authorization was asked about: for the warden, in its time.
    passed_over: Notify,
    /// The `identity` component when the warden last looked.
    identity_seen: AtomicU64,
    /// The era when it last looked.
    era_seen: AtomicU64,
    /// Milliseconds between the two clocks when it last looked.
    clock_offset_seen: AtomicI64,
    /// A permit for each question about one.
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

/// The authorization that streams of one user with one purpose share.
struct Held {
    key: Key,
    standing: ArcSwap<Standing>,
    /// It is being asked about.
    claimed: AtomicBool,
    /// Counts the reasons to look at it again.
    signal: watch::Sender<u64>,
}

enum Standing {
    Allowed(Validity),
    Refused(Refusal),
}

/// One open watch's hold on its authorization.
pub struct WatchGuard {
    auth: Arc<Auth>,
    /// The watch's own, then the rights by which somebody else is its user.
    held: Vec<Arc<Held>>,
    tenure: Arc<Tenure>,
    vouching: Option<Vouching>,
}

impl Auth {
    /// Registers an open watch. Work of the process itself needs no policy: its guard admits everything.
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

    /// Whether an authorization covers events up to a revision: it was asked after the policy writes below, or none that
    /// matters came since.
    fn confirms(&self, validity: &Validity, revision: u64) -> bool {
        if validity.is_internal() {
            return true;
        }
        let epoch = self.epochs.count();
        let covered = || validity.epoch == Some(epoch) && validity.as_of >= revision;
        self.link.cache_serves() && (covered() || validity.stands(&self.revisions, epoch, &*self.clock))
    }

    /// The warden: has open watches authorized anew when policy moves or their time is over, until the process ends.
    pub(super) async fn keep_watches(self: Arc<Self>) {
        let mut moved = self.revisions.moved();
        let mut epoch = self.epochs.changed();
        let Watches { wake, passed_over, .. } = &self.watches;
        loop {
            // The tick notices what has no event of its own: expiry by time, and the end of the grace after authd was lost.
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

    /// Tells the streams that their identities may have ended, then has every shared authorization that no longer holds,
    /// and is not being asked about, asked about anew. Waits for nothing.
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

    /// With one question; where its answer is not there at once, with one for each beside it, and what comes first counts.
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

    /// With a question for each: one that waits for another service keeps no other waiting, while fewer than [`APART`] do.
    async fn renew_apart(&self, claims: &[Claim]) {
        let each = claims.iter().map(async |claim| {
            // Never closed.
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

/// Groups claims into batches of at most [`BATCH`] questions and about [`BATCH_BYTES`].
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

/// The size of a question on the wire, estimated upwards.
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
    tracing::warn!(%reason, watches, "open watches could not be authorized anew");
}

impl Watches {
    /// Those that streams hold.
    fn all(&self) -> Vec<Arc<Held>> {
        let mut all = self.held.lock();
        all.retain(|_, held| held.strong_count() > 0);
        all.values().filter_map(Weak::upgrade).collect()
    }

    /// The hold that all streams of a key share.
    fn share(&self, key: Key, validity: Validity) -> Arc<Held> {
        let mut all = self.held.lock();
        if let Some(held) = all.get(&key).and_then(Weak::upgrade) {
            held.take(validity.as_of, || Standing::Allowed(validity.clone()));
            // Streams on a refused one are about to end; this one was authorized since.
            if !held.is_refused() {
                held.look_again();
                return held;
            }
        }
        let held = Held::new(key.clone(), validity);
        all.insert(key, Arc::downgrade(&held));
        held
    }

    /// How many authorizations are held.
    #[cfg(test)]
    pub(super) fn open(&self) -> usize {
        self.held.lock().len()
    }

    /// Whether an identity may have ended since this was last asked.
    fn identity_moved(&self, revisions: &PolicyRevisions) -> bool {
        let now = revisions.identity();
        self.identity_seen.swap(now, Ordering::SeqCst) != now
    }

    /// Whether the wall clock was set since the last call: identities may have ended, or not be valid yet.
    fn clock_stepped(&self, clock: &dyn Clock) -> bool {
        let monotonic = i64::try_from(clock.monotonic().as_millis()).unwrap_or(i64::MAX);
        let offset = clock.now().as_millisecond().saturating_sub(monotonic);
        self.clock_offset_seen.swap(offset, Ordering::SeqCst).abs_diff(offset) > CLOCK_STEP_MS
    }

    /// Whether the era is another than when this was last asked.
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

    /// Whether another service's time bounds it, too.
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

    /// Whether it stands on policy that has moved.
    fn is_behind(&self, auth: &Auth) -> bool {
        match &**self.standing.load() {
            Standing::Allowed(validity) => {
                validity.epoch != Some(auth.epochs.count())
                    || !auth.revisions.unchanged(&validity.depends, validity.as_of)
            }
            Standing::Refused(_) => false,
        }
    }

    /// Changes the standing, unless it is as of a later reading: a decision that was long on its way does not undo what
    /// was decided since. A refusal stays.
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

/// A shared authorization that is being asked about: by nobody else until it is released.
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

    /// Takes the decision, if it is the first, and releases it.
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
        // First: a stream that is not content with the decision wakes the warden, which then must find it free.
        self.release();
        self.held.look_again();
    }

    /// Others may ask.
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
    /// Whether an event of this revision may go out on the authorization held.
    pub fn admits(&self, revision: Revision) -> bool {
        self.tenure.lasts(self.auth.clock.now())
            && self.vouching.as_ref().is_none_or(|vouching| !vouching.left(self.auth.clock.monotonic()).is_zero())
            && !self.is_outdated()
            && self.held.iter().all(|held| {
                matches!(&**held.standing.load(), Standing::Allowed(validity) if self.auth.confirms(validity, revision.0))
            })
    }

    /// Whether what identifies callers has changed since the watch was opened. Its end says nothing of its user, who may
    /// come again and go on where it ended.
    pub fn is_outdated(&self) -> bool {
        self.tenure.era.is_some_and(|era| era != self.auth.epochs.era())
    }

    /// Waits until the authorization is confirmed at policy no older than `upto`.
    ///
    /// # Errors
    ///
    /// 401 when the identity ended or [`WatchGuard::is_outdated`], 403 when the user may no longer, 503 when authd cannot say: the stream ends.
    pub async fn renew(&self, upto: Revision) -> Result<(), Status> {
        let confirmed = async {
            while let Some(vouching) = &self.vouching
                && vouching.left(self.auth.clock.monotonic()).is_zero()
            {
                match vouching.again(&self.auth).await {
                    // Who it is cannot be said now.
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
            // Never an error: the sender lives in `held`, which this guard holds.
            let _ = signal.changed().await;
        }
    }

    /// Waits until the authorization has ended or is in doubt, or who the user is must be asked again.
    pub async fn changed(&self) {
        // Almost always one: without a box for it.
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
