//! The identity cache: accepted credentials, anonymous access and rejections, with their lifetimes.
//!
//! # Contract
//!
//! The key of an accepted credential is its digest. The entry ends when the credential expires, when the
//! epoch ends, or when an object that the identity depends on changes. New objects of the same kinds do not
//! affect it. The entry serves only after the credential's not-before time, because the wall clock can be
//! set back. An identity from a webhook also ends with its TTL, measured on the monotonic clock for the
//! same reason.
//!
//! The key of anonymous access and of a rejection is the digest with the path. These entries are
//! short-lived and end with any write to `identity`: the new object may make the token valid.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): the cache stores keyed digests, never credentials.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::user::UserInfo;
use jiff::Timestamp;

use super::Authenticated;
use super::credentials::{Digest, Digests};
use super::decision::Expiry;
use super::foundation::Foundation;

/// Limit of cached accepted credentials.
const ACCEPTED: u64 = 16 * 1024;
/// Limit of cached rejections and anonymous paths: random tokens evict only these.
const OTHERS: u64 = 4 * 1024;
/// The idle time after which an accepted credential is dropped.
const IDLE: Duration = Duration::from_secs(600);
/// The TTL of rejections and anonymous paths.
const BRIEFLY: Duration = Duration::from_secs(10);

/// The lifetime of an established identity.
#[derive(Debug, Default)]
pub(super) struct Tenure {
    /// The first moment at which the credential is valid.
    pub(super) not_before: Option<Timestamp>,
    /// When the credential expires.
    pub(super) expires: Option<Timestamp>,
    /// The stored objects that the identity depends on.
    pub(super) foundations: Vec<Arc<Foundation>>,
    /// The era of the response: see [`super::epoch`]. Open watches end with the era. None: work of the
    /// process itself.
    pub(super) era: Option<u64>,
}

impl Tenure {
    /// Whether the identity is valid at this time.
    pub(super) fn lasts(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|start| now >= start)
            && self.expires.is_none_or(|end| now < end)
            && self.foundations.iter().all(|foundation| foundation.holds())
    }
}

/// The cached identity of an accepted credential.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The user.
    pub(super) user: Arc<UserInfo>,
    /// The lifetime.
    pub(super) tenure: Arc<Tenure>,
    /// The epoch of the response.
    pub(super) epoch: u64,
    /// The TTL of a webhook response, after which apid re-authenticates within the lifetime.
    pub(super) until: Option<Expiry>,
}

/// A cached anonymous access or rejection.
#[derive(Clone, Debug)]
pub(super) struct Brief {
    /// The anonymous user, or the failed checks of a rejection.
    pub(super) outcome: Result<(Arc<UserInfo>, Arc<Tenure>), Arc<str>>,
    /// The revision of the reading before the request.
    pub(super) as_of: u64,
    /// The epoch of the response.
    pub(super) epoch: u64,
    /// The TTL of a webhook response.
    pub(super) until: Option<Expiry>,
}

/// A cache hit.
pub(super) enum Recalled {
    /// An accepted credential, with the TTL of a webhook response.
    Caller(Authenticated, Option<Expiry>),
    /// A cached rejection, with its reason.
    Refused(Arc<str>),
}

/// The cache of identities.
pub(super) struct IdentityCache {
    accepted: moka::sync::Cache<Digest, Known>,
    brief: moka::sync::Cache<Digest, Brief>,
}

impl IdentityCache {
    /// An empty cache.
    pub(super) fn new() -> Self {
        IdentityCache {
            accepted: moka::sync::Cache::builder().max_capacity(ACCEPTED).time_to_idle(IDLE).build(),
            brief: moka::sync::Cache::builder().max_capacity(OTHERS).time_to_live(BRIEFLY).build(),
        }
    }

    /// Looks up a credential in an epoch.
    ///
    /// `identity_unchanged` tells whether `identity` has not moved since a reading.
    pub(super) fn find(
        &self,
        digests: &Digests<'_>,
        epoch: u64,
        clock: &dyn Clock,
        identity_unchanged: impl Fn(u64) -> bool,
    ) -> Option<Recalled> {
        let goes_on = |until: Option<Expiry>| until.is_none_or(|until| clock.monotonic() < until.end());
        if let Some(known) = self.accepted.get(digests.credential())
            && known.epoch == epoch
            && known.tenure.lasts(clock.now())
            && goes_on(known.until)
        {
            return Some(Recalled::Caller(Authenticated::caller(known.user, known.tenure), known.until));
        }
        let brief = self.brief.get(&digests.with_path())?;
        let holds = brief.epoch == epoch && goes_on(brief.until) && identity_unchanged(brief.as_of);
        holds.then(|| match brief.outcome {
            Ok((user, tenure)) => Recalled::Caller(Authenticated::caller(user, tenure), None),
            Err(detail) => Recalled::Refused(detail),
        })
    }

    /// Caches an accepted credential.
    pub(super) fn accept(&self, digests: &Digests<'_>, known: Known) {
        self.accepted.insert(*digests.credential(), known);
    }

    /// Caches an anonymous access or a rejection.
    pub(super) fn note(&self, digests: &Digests<'_>, brief: Brief) {
        self.brief.insert(digests.with_path(), brief);
    }

    /// Drops all entries.
    pub(super) fn clear(&self) {
        self.accepted.invalidate_all();
        self.brief.invalidate_all();
    }
}
