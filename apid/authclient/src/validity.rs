//! The validity of a response of authd: until when, and until which changes, apid uses the response.
//!
//! # Contract
//!
//! Identities, rejections and decisions have one [`Validity`]. apid takes a [`Baseline`] before each request to
//! authd; the baseline and the response determine the validity. The caches use a response while its validity
//! [holds](Validity::is_valid). An open watch reads two parts: the authorization as a whole, and of the
//! identity only the [part that outlives the cache](Validity::holds_at).
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): a response is valid only while the policy components and the objects that it
//! depends on are unchanged since the baseline.
//! INVARIANT (TTL from the request): the TTL of a webhook response counts from the moment before the request,
//! however long the response took. It counts on the monotonic clock, because the wall clock can be set back.

use std::time::Duration;

use apimachinery::clock::Clock;
use jiff::Timestamp;

use crate::decisions::epoch::EpochNumber;
use crate::decisions::revisions::{Baseline, DependencySet, PolicyRevisions};

/// The minimum TTL of a webhook response for an open watch.
///
/// Without this minimum, a webhook with TTL 0 would get a request at every event. The minimum equals the time
/// within which a watch must end after a policy write that forbids it.
pub(crate) const MIN_WATCH_TTL: Duration = Duration::from_secs(1);

/// The conditions under which a response of authd stays valid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Validity {
    /// The revision up to which the response includes every policy write.
    pub(crate) as_of: u64,
    /// The policy components and objects that the response depends on.
    pub(crate) dependencies: DependencySet,
    /// The epoch of the response; None if the response serves only the request that caused it.
    pub(crate) epoch: Option<EpochNumber>,
    /// The monotonic time just before the request, from which the TTL counts.
    pub(crate) requested_at: Duration,
    /// The TTL of a webhook response; None if it has no time limit.
    pub(crate) ttl: Option<Duration>,
    /// The first moment at which the credential is valid.
    pub(crate) not_before: Option<Timestamp>,
    /// The time at which the credential expires.
    pub(crate) expires: Option<Timestamp>,
}

impl Validity {
    /// The validity of a response. `ttl_ms` as on the wire: 0 means no limit, n means n - 1 ms.
    ///
    /// A response with the value 1 therefore serves only the request that caused it.
    pub(crate) fn new(
        baseline: &Baseline,
        epoch: Option<EpochNumber>,
        dependencies: DependencySet,
        ttl_ms: u64,
    ) -> Self {
        Validity {
            as_of: baseline.as_of,
            dependencies,
            epoch,
            requested_at: baseline.time,
            ttl: ttl_ms.checked_sub(1).map(Duration::from_millis),
            ..Validity::default()
        }
    }

    /// The validity of work of the process itself: nothing ends it, and it is not cached.
    pub(crate) fn internal() -> Self {
        Validity { as_of: u64::MAX, ..Validity::default() }
    }

    /// Whether this is [`Validity::internal`].
    pub(crate) fn is_internal(&self) -> bool {
        self.as_of == u64::MAX
    }

    /// Whether no policy write and no new epoch has made the response invalid, whatever its TTL and dates.
    pub(crate) fn is_current(&self, revisions: &PolicyRevisions, epoch: EpochNumber) -> bool {
        self.epoch.is_some_and(|own| own.generation == epoch.generation)
            && revisions.unchanged(&self.dependencies, self.as_of)
    }

    /// Whether the response [is current](Validity::is_current), its credential is valid now, and its TTL, which
    /// is at least `min_ttl`, has not ended.
    ///
    /// Reads `clock` only if a time limits the response.
    pub(crate) fn is_valid(
        &self,
        revisions: &PolicyRevisions,
        epoch: EpochNumber,
        clock: &dyn Clock,
        min_ttl: Duration,
    ) -> bool {
        let is_within_ttl =
            |ttl: Duration| clock.monotonic().saturating_sub(self.requested_at) < ttl.max(min_ttl);
        let has_dates = self.not_before.is_some() || self.expires.is_some();
        self.ttl.is_none_or(is_within_ttl)
            && (!has_dates || self.is_within_dates(clock.now()))
            && self.is_current(revisions, epoch)
    }

    /// Whether the identity of an open watch holds: the credential is valid at this time, and the objects that
    /// the identity depends on are unchanged.
    pub(crate) fn holds_at(&self, now: Timestamp) -> bool {
        self.is_within_dates(now) && self.dependencies.objects_are_unchanged()
    }

    fn is_within_dates(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|start| now >= start) && self.expires.is_none_or(|end| now < end)
    }

    /// The monotonic time at which the TTL ends; None without a TTL.
    pub(crate) fn ttl_end(&self) -> Option<Duration> {
        self.ttl.map(|ttl| self.requested_at.saturating_add(ttl))
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;

    use super::*;
    use crate::reduce::Reductions;

    #[test]
    fn response_is_valid_within_ttl_dates_and_epoch() {
        let revisions = PolicyRevisions::new(Reductions::for_tests());
        let clock = ManualClock::at(Timestamp::from_second(100).unwrap());
        let start = clock.monotonic();
        clock.advance(Duration::from_secs(5));
        let epoch = EpochNumber { generation: 2, identities: 1 };
        let base = Validity { epoch: Some(epoch), requested_at: start, ..Validity::default() };
        let second = |second| Some(Timestamp::from_second(second).unwrap());
        let ttl = |millis| Some(Duration::from_millis(millis));
        for (validity, min_ttl, expected) in [
            (base.clone(), 0, true),
            (Validity { epoch: None, ..base.clone() }, 0, false),
            (Validity { epoch: Some(EpochNumber { generation: 1, ..epoch }), ..base.clone() }, 0, false),
            (Validity { ttl: ttl(5000), ..base.clone() }, 0, false),
            (Validity { ttl: ttl(5001), ..base.clone() }, 0, true),
            (Validity { ttl: ttl(0), ..base.clone() }, 5, false),
            (Validity { ttl: ttl(0), ..base.clone() }, 6, true),
            (Validity { expires: second(105), ..base.clone() }, 0, false),
            (Validity { expires: second(106), ..base.clone() }, 0, true),
            (Validity { not_before: second(106), ..base.clone() }, 0, false),
            (Validity { not_before: second(105), ..base.clone() }, 0, true),
        ] {
            let min_ttl = Duration::from_secs(min_ttl);
            assert_eq!(validity.is_valid(&revisions, epoch, &clock, min_ttl), expected, "{validity:?}");
        }
    }
}
