//! The election of the leader through a Lease.
//!
//! # Contract
//!
//! A candidate takes a Lease that nobody holds. It also takes a Lease that has not changed for [`EXPIRY`] since the
//! candidate first saw its content. The leader renews the Lease every [`RETRY_PERIOD`]. Its term ends
//! [`RENEW_DEADLINE`] after the begin of the last successful renewal. A candidate that resigns ends its loops and then
//! releases the Lease, which the other candidates notice at once.
//!
//! # Invariants
//!
//! INVARIANT (one leader): the writes of a leader have ended [`WRITES_END`] after its term, which is before another
//! candidate can take the Lease. A candidate counts from its first sight of a renewal, which is after the begin of that
//! renewal. If a user deletes the Lease, its leader creates the Lease again and continues. Another candidate that knew the
//! Lease creates it after [`RESTORATION`], but leads only when the new Lease has expired: the former leader may be in its
//! term. A candidate that has never seen the Lease, as at the first start of a cluster, leads at once.
//! INVARIANT (compare and swap): a candidate writes only to the revision that it has read, so two candidates cannot take
//! one Lease. A renewal with an unknown result does not extend the term.
//!
//! # Changes by users
//!
//! A leader that sees another holder ends its term at once. If a user deletes the Lease or removes the holder, the leader
//! renews the Lease at once. After a removal of the holder another candidate may be faster; the former leader then ends
//! its term as soon as it sees this. A candidate trusts a duration in the Lease only between [`EXPIRY`] and
//! [`MAX_EXPIRY`].
//!
//! # Reference
//!
//! `tools/leaderelection` of client-go, with its default times in Kubernetes, except that [`EXPIRY`] is shorter than the
//! duration in the Lease. Unlike client-go, candidates follow the changes of the Lease, and the process of a former leader
//! goes on as a candidate.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use apimachinery::time;
use tokio::sync::Notify;

use super::record::Record;
use super::term::{Leadership, Loops, Shared, Term};
use crate::actor::is_race;

/// The duration in the Lease, within which another apid leads after the death of the leader.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Time after which an unchanged Lease counts as expired. The rest of [`LEASE_DURATION`] is for the pauses and the writes
/// of the next leader.
pub(super) const EXPIRY: Duration = Duration::from_secs(14);
/// The longest time for which a candidate waits for an unchanged Lease.
const MAX_EXPIRY: Duration = Duration::from_secs(60);
/// Time after the begin of the last successful renewal at which a term ends.
pub(super) const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Interval of the renewals of a leader, and least interval of the attempts of other candidates.
pub(super) const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Time after the end of a term for writes in progress. Then the tasks of the loops are ended.
const WRITES_END: Duration = Duration::from_secs(2);
/// Pause after a write that another candidate has overtaken.
const RACE_PAUSE: Duration = Duration::from_millis(100);
/// Maximum of the random addition to a pause, so that candidates do not write at the same time.
const JITTER: Duration = Duration::from_millis(200);
/// Time for which other candidates leave the restoration of a deleted Lease to its leader.
const RESTORATION: Duration = Duration::from_secs(4);
/// Time limit of the release of a Lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

const _: () = assert!(RENEW_DEADLINE.as_secs() + WRITES_END.as_secs() < EXPIRY.as_secs());

/// Access to the Lease of an election.
pub(crate) trait Leases: Send + Sync + 'static {
    /// Reads the Lease, with its resourceVersion; None if it does not exist.
    fn read(&self) -> impl Future<Output = Result<Option<Object>, Status>> + Send;

    /// Creates the Lease if `lease` has no resourceVersion. Otherwise replaces the Lease while its resourceVersion is that of
    /// `lease`. Returns the stored object.
    fn write(&self, lease: Object) -> impl Future<Output = Result<Object, Status>> + Send;
}

/// The result of an attempt to take or renew the Lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    /// This candidate leads until this monotonic time.
    Leads { until: Duration },
    /// Another candidate holds the Lease, which does not expire before this monotonic time.
    Follows { holder: String, until: Duration },
    /// Another client wrote the Lease at the same time.
    Raced,
}

/// The last state of the Lease that a candidate has seen.
struct Observed {
    record: Record,
    /// The resourceVersion.
    version: String,
    /// The monotonic time of the first sight.
    since: Duration,
}

/// A candidate of the election.
pub(super) struct Candidate<L> {
    leases: L,
    identity: String,
    clock: Arc<dyn Clock>,
    rng: Arc<dyn Rng>,
    observed: Option<Observed>,
    /// The monotonic time of the first sight of the deletion of the Lease.
    absent_since: Option<Duration>,
    /// The end of the last term of this candidate.
    term_end: Duration,
}

impl<L: Leases> Candidate<L> {
    pub(super) fn new(leases: L, identity: String, clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Candidate {
            leases,
            identity,
            clock,
            rng,
            observed: None,
            absent_since: None,
            term_end: Duration::ZERO,
        }
    }

    /// Takes the Lease, or renews the Lease if this candidate holds it already.
    ///
    /// # Errors
    ///
    /// The Lease cannot be read or written.
    pub(super) async fn attempt(&mut self) -> Result<Attempt, Status> {
        let stored = self.leases.read().await?;
        let now = self.clock.monotonic();
        let is_in_term = now < self.term_end;
        let leads_at_once = stored.is_some() || is_in_term || self.observed.is_none();
        if let Some(lease) = &stored {
            self.observe(lease, now);
            if let Some(held) = self.holder(now) {
                self.term_end = Duration::ZERO;
                return Ok(held);
            }
        }
        if !leads_at_once {
            let until = *self.absent_since.get_or_insert(now) + RESTORATION;
            if now < until {
                return Ok(Attempt::Follows { holder: "nobody: the Lease was deleted".to_owned(), until });
            }
        }
        let mut lease = stored.unwrap_or_default();
        self.next_record(&Record::of(&lease)).write_to(&mut lease);
        match self.leases.write(lease).await {
            Ok(lease) => {
                let written_at = self.clock.monotonic();
                self.observe(&lease, written_at);
                if !leads_at_once {
                    let (holder, until) = (self.identity.clone(), written_at + EXPIRY);
                    return Ok(Attempt::Follows { holder, until });
                }
                // `now` is before the write, so other candidates see the renewal later.
                self.term_end = now + RENEW_DEADLINE;
                Ok(Attempt::Leads { until: self.term_end })
            }
            Err(status) if is_race(&status) || status.reason == Reason::AlreadyExists => Ok(Attempt::Raced),
            Err(status) => Err(status),
        }
    }

    /// Whether another client has changed or deleted the Lease.
    pub(super) async fn is_changed(&self) -> bool {
        let Ok(stored) = self.leases.read().await else { return false };
        let version = stored.as_ref().map(Object::resource_version);
        version != self.observed.as_ref().map(|observed| observed.version.as_str())
    }

    /// Releases the Lease if this candidate holds it.
    ///
    /// # Errors
    ///
    /// The Lease cannot be read or written.
    pub(super) async fn release(&mut self) -> Result<(), Status> {
        let Some(mut lease) = self.leases.read().await? else { return Ok(()) };
        let held = Record::of(&lease);
        if held.holder != self.identity {
            return Ok(());
        }
        let now = time::micro_time(self.clock.now());
        let released = Record {
            holder: String::new(),
            duration_seconds: 1,
            acquired: now.clone(),
            renewed: now,
            transitions: held.transitions,
        };
        released.write_to(&mut lease);
        self.leases.write(lease).await.map(drop)
    }

    fn observe(&mut self, lease: &Object, now: Duration) {
        self.absent_since = None;
        let version = lease.resource_version();
        if self.observed.as_ref().is_none_or(|known| known.version != version) {
            self.observed =
                Some(Observed { record: Record::of(lease), version: version.to_owned(), since: now });
        }
    }

    /// Returns the candidate that holds the Lease at the time `now`, if any, unless this candidate is in its term.
    ///
    /// Outside of its term, this candidate waits for the Lease with its own name as for that of another holder.
    fn holder(&self, now: Duration) -> Option<Attempt> {
        let Observed { record, since, .. } = self.observed.as_ref()?;
        let duration = Duration::from_secs(u64::try_from(record.duration_seconds).unwrap_or_default());
        let expiry = duration.saturating_sub(LEASE_DURATION.saturating_sub(EXPIRY));
        let until = *since + expiry.clamp(EXPIRY, MAX_EXPIRY);
        let is_own = now < self.term_end && record.holder == self.identity;
        let is_held = !record.holder.is_empty() && !is_own && now < until;
        is_held.then(|| Attempt::Follows { holder: record.holder.clone(), until })
    }

    /// Returns the record that this candidate writes over a record.
    fn next_record(&self, before: &Record) -> Record {
        let now = time::micro_time(self.clock.now());
        let is_renewal = before.holder == self.identity;
        let is_first = *before == Record::default();
        Record {
            holder: self.identity.clone(),
            duration_seconds: i64::try_from(LEASE_DURATION.as_secs()).unwrap_or(i64::MAX),
            acquired: if is_renewal { before.acquired.clone() } else { now.clone() },
            renewed: now,
            transitions: match is_renewal || is_first {
                true => before.transitions,
                false => before.transitions.saturating_add(1),
            },
        }
    }

    fn jitter(&self) -> Duration {
        let limit = JITTER.as_millis().max(1);
        Duration::from_millis(u64::try_from(self.rng.bits() % limit).unwrap_or_default())
    }
}

/// The reason of the end of a term.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TermEnd {
    Lost,
    Resigned,
}

/// The life of a candidate, with its loops.
pub(super) struct Election<L> {
    candidate: Candidate<L>,
    leadership: Arc<Leadership>,
    /// Notifies of changes of the Lease.
    changed: Arc<Notify>,
}

impl<L: Leases> Election<L> {
    pub(super) fn new(candidate: Candidate<L>, leadership: Arc<Leadership>, changed: Arc<Notify>) -> Self {
        Election { candidate, leadership, changed }
    }

    /// Takes part in the election until this apid resigns. `start` starts the loops of a term.
    pub(super) async fn run(mut self, start: impl Fn() -> Loops + Send + Sync) {
        let leadership = Arc::clone(&self.leadership);
        let Some(shared) = &leadership.shared else { return };
        shared.election.begin();
        loop {
            let until = tokio::select! {
                biased;
                () = shared.election.requested() => break,
                until = self.acquire() => until,
            };
            tracing::info!(identity = self.candidate.identity, "this apid leads: its controllers start");
            leadership.begin_term(until);
            let loops = start();
            let end = self.hold(shared, until).await;
            leadership.end_term(loops).await;
            if end == TermEnd::Resigned {
                break;
            }
            tracing::warn!("this apid does not lead any more: its controllers have ended");
        }
        match tokio::time::timeout(RELEASE_TIMEOUT, self.candidate.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => {
                tracing::warn!(reason = %status, "releasing the Lease of the controllers failed")
            }
            Err(_) => tracing::warn!("releasing the Lease of the controllers failed: no answer of the store"),
        }
        shared.election.finish();
    }

    /// Returns the end of the term when this candidate has taken the Lease.
    async fn acquire(&mut self) -> Duration {
        let mut reported = String::new();
        let mut report = |text: String, log: fn(&str)| {
            if text != reported {
                log(&text);
                reported = text;
            }
        };
        loop {
            let attempt = self.candidate.attempt().await;
            let now = self.candidate.clock.monotonic();
            let pause = match attempt {
                Ok(Attempt::Leads { until }) if now < until => return until,
                Ok(Attempt::Leads { .. } | Attempt::Raced) => RACE_PAUSE,
                Ok(Attempt::Follows { holder, until }) => {
                    report(holder, |holder| tracing::info!(holder, "another apid runs the controllers"));
                    until.saturating_sub(now).min(RETRY_PERIOD)
                }
                Err(status) => {
                    report(status.to_string(), |reason| {
                        tracing::warn!(reason, "the Lease of the controllers cannot be taken; retrying");
                    });
                    RETRY_PERIOD
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause + self.candidate.jitter()) => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// Renews the Lease until the term ends.
    async fn hold(&mut self, shared: &Shared, mut until: Duration) -> TermEnd {
        let clock = Arc::clone(&self.candidate.clock);
        let mut next = clock.monotonic() + RETRY_PERIOD;
        loop {
            tokio::select! {
                biased;
                () = shared.election.requested() => return TermEnd::Resigned,
                () = tokio::time::sleep(next.min(until).saturating_sub(clock.monotonic())) => {}
                () = self.changed.notified() => {
                    if !self.candidate.is_changed().await {
                        continue;
                    }
                }
            }
            let now = clock.monotonic();
            let renewal = tokio::time::timeout(until.saturating_sub(now), self.candidate.attempt());
            next = now + RETRY_PERIOD;
            match renewal.await {
                _ if clock.monotonic() >= until => {
                    tracing::warn!("the Lease of the controllers was not renewed in time");
                    return TermEnd::Lost;
                }
                Ok(Ok(Attempt::Leads { until: end })) => {
                    until = end;
                    *shared.term_end.lock() = end;
                }
                Ok(Ok(Attempt::Follows { holder, .. })) => {
                    tracing::warn!(holder, "another client has taken the Lease of the controllers");
                    return TermEnd::Lost;
                }
                Ok(Ok(Attempt::Raced)) => next = now + RACE_PAUSE,
                Ok(Err(status)) => {
                    tracing::warn!(reason = %status, "renewing the Lease of the controllers failed; retrying");
                }
                // The term has ended, or the timer is early.
                Err(_) => {}
            }
        }
    }
}

impl Leadership {
    pub(super) fn begin_term(&self, until: Duration) {
        if let Some(shared) = &self.shared {
            *shared.term_end.lock() = until;
            self.terms.send_modify(|term| *term = Term { number: term.number + 1, leads: true });
        }
    }

    /// Ends the term: refuses further writes, waits for those in progress, and ends the tasks of the loops.
    pub(super) async fn end_term(&self, loops: Loops) {
        self.terms.send_modify(|term| term.leads = false);
        if let Some(shared) = &self.shared {
            let mut writes = shared.writes.subscribe();
            let _ = tokio::time::timeout(WRITES_END, writes.wait_for(|writes| *writes == 0)).await;
        }
        loops.end().await;
    }
}
