//! Identities that are kept: accepted credentials, anonymous access and refusals, each with its own end.
//!
//! # Contract
//!
//! An accepted credential is kept under its digest and ends with its expiry, the epoch, or an object it rests on; new
//! objects of the kinds that identities rest on do not touch it. It serves only from its first valid moment on: the wall
//! clock may be set back. What another service said ends besides with the time it
//! gave, which the monotonic clock measures: the wall clock may be set back. Anonymous access and refusals are kept under the digest
//! with the path, for a short while, and end with any write to `identity`: the object that makes a token good may come.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): no credential is kept, only keyed digests.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::user::UserInfo;
use jiff::Timestamp;

use super::Authenticated;
use super::credentials::{Digest, Digests};
use super::decision::Expiry;
use super::foundation::Foundation;

/// Accepted credentials kept at most.
const ACCEPTED: u64 = 16 * 1024;
/// Refusals and anonymous paths kept at most: whoever sends random tokens displaces only these.
const OTHERS: u64 = 4 * 1024;
/// A credential that nobody used for so long is asked about again.
const IDLE: Duration = Duration::from_secs(600);
/// How long a refusal or an anonymous path is kept.
const BRIEFLY: Duration = Duration::from_secs(10);

/// How long an established identity lasts.
#[derive(Debug, Default)]
pub(super) struct Tenure {
    /// The first moment at which the credential is valid.
    pub(super) not_before: Option<Timestamp>,
    /// When the credential expires.
    pub(super) expires: Option<Timestamp>,
    /// The objects it rests on.
    pub(super) foundations: Vec<Arc<Foundation>>,
    /// The era that said so: see [`super::epoch`]. What is open ends with it. None: work of the process itself.
    pub(super) era: Option<u64>,
}

impl Tenure {
    /// Whether it lasts at a time.
    pub(super) fn lasts(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|start| now >= start)
            && self.expires.is_none_or(|end| now < end)
            && self.foundations.iter().all(|foundation| foundation.holds())
    }
}

/// The caller that a credential stands for.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Who.
    pub(super) user: Arc<UserInfo>,
    /// For how long.
    pub(super) tenure: Arc<Tenure>,
    /// The epoch that said so.
    pub(super) epoch: u64,
    /// The time after which it must be asked about again, though it may still last.
    pub(super) until: Option<Expiry>,
}

/// Anonymous access to a path, or a refusal.
#[derive(Clone, Debug)]
pub(super) struct Brief {
    /// The anonymous user; or refused: which checks failed.
    pub(super) outcome: Result<(Arc<UserInfo>, Arc<Tenure>), Arc<str>>,
    /// The reading it was asked at.
    pub(super) as_of: u64,
    /// The epoch that said so.
    pub(super) epoch: u64,
    /// The time after which it must be asked about again.
    pub(super) until: Option<Expiry>,
}

/// What the cache knows of a credential.
pub(super) enum Recalled {
    /// It is this caller's; until when, where another service said so.
    Caller(Authenticated, Option<Expiry>),
    /// It was refused a moment ago, for this.
    Refused(Arc<str>),
}

/// The identities kept.
pub(super) struct IdentityCache {
    accepted: moka::sync::Cache<Digest, Known>,
    brief: moka::sync::Cache<Digest, Brief>,
}

impl IdentityCache {
    /// Empty.
    pub(super) fn new() -> Self {
        IdentityCache {
            accepted: moka::sync::Cache::builder().max_capacity(ACCEPTED).time_to_idle(IDLE).build(),
            brief: moka::sync::Cache::builder().max_capacity(OTHERS).time_to_live(BRIEFLY).build(),
        }
    }

    /// What is known of a credential in an epoch; `identity_unchanged` tells whether `identity` stood still since a reading.
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

    /// Keeps an accepted credential.
    pub(super) fn accept(&self, digests: &Digests<'_>, known: Known) {
        self.accepted.insert(*digests.credential(), known);
    }

    /// Keeps an anonymous path or a refusal.
    pub(super) fn note(&self, digests: &Digests<'_>, brief: Brief) {
        self.brief.insert(digests.with_path(), brief);
    }

    /// Drops everything.
    pub(super) fn clear(&self) {
        self.accepted.invalidate_all();
        self.brief.invalidate_all();
    }
}
