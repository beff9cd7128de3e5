//! The identity cache: accepted credentials, anonymous access and rejections.
//!
//! # Contract
//!
//! The key of an accepted credential is its digest. Its entry depends on the objects of the identity, so new
//! objects of the same kinds do not affect the entry.
//!
//! The key of anonymous access and of a rejection is the digest with the path. These entries live at most
//! [`SHORT_TTL`] and depend on the component `identity`, because a new object may make a rejected token valid.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): the cache stores keyed digests, never credentials.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::user::UserInfo;
use moka::sync::Cache;

use crate::identity::credentials::{Digest, Digests};
use crate::validity::Validity;

/// Maximum number of cached accepted credentials; at the limit the cache evicts entries.
const MAX_ACCEPTED: u64 = 16 * 1024;
/// Maximum number of cached rejections and anonymous paths. They have their own limit, so that requests with
/// random tokens do not evict accepted credentials.
const MAX_SHORT_LIVED: u64 = 4 * 1024;
/// The idle time after which an accepted credential is dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// The TTL of rejections and anonymous paths.
const SHORT_TTL: Duration = Duration::from_secs(10);

/// The cached outcome of an authentication.
#[derive(Clone, Debug)]
pub(crate) struct CachedIdentity {
    /// The user, or the reason of a rejection.
    pub(crate) outcome: Result<Arc<UserInfo>, Arc<str>>,
    /// The conditions under which the outcome stays valid.
    pub(crate) validity: Arc<Validity>,
}

/// The identity cache, shared by all requests; see the module documentation.
pub(crate) struct IdentityCache {
    accepted: Cache<Digest, CachedIdentity>,
    short_lived: Cache<Digest, CachedIdentity>,
}

impl IdentityCache {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        IdentityCache {
            accepted: Cache::builder().max_capacity(MAX_ACCEPTED).time_to_idle(IDLE_TIMEOUT).build(),
            short_lived: Cache::builder().max_capacity(MAX_SHORT_LIVED).time_to_live(SHORT_TTL).build(),
        }
    }

    /// Returns the cached outcome for a credential if `is_valid` returns true for its validity.
    pub(crate) fn find(
        &self,
        digests: &Digests<'_>,
        is_valid: impl Fn(&Validity) -> bool,
    ) -> Option<CachedIdentity> {
        let is_usable = |cached: &CachedIdentity| is_valid(&cached.validity);
        self.accepted
            .get(digests.credential())
            .filter(is_usable)
            .or_else(|| self.short_lived.get(&digests.with_path()).filter(is_usable))
    }

    /// Caches an accepted credential.
    pub(crate) fn insert_accepted(&self, digests: &Digests<'_>, identity: CachedIdentity) {
        self.accepted.insert(*digests.credential(), identity);
    }

    /// Caches an anonymous access or a rejection.
    pub(crate) fn insert_short_lived(&self, digests: &Digests<'_>, identity: CachedIdentity) {
        self.short_lived.insert(digests.with_path(), identity);
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        self.accepted.invalidate_all();
        self.short_lived.invalidate_all();
    }
}
