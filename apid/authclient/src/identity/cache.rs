//! The identity cache: accepted credentials, anonymous access and rejections, with their lifetimes.
//!
//! # Contract
//!
//! The key of an accepted credential is its digest. The entry ends when the credential expires, when the
//! epoch ends, or when an object that the identity depends on changes. New objects of the same kinds do not
//! affect the entry. Each look-up also checks the not-before time of the credential, because the wall clock
//! can be set back. For the same reason, the TTL of an identity from a webhook is measured on the monotonic
//! clock. The entry of such an identity also ends with the TTL.
//!
//! The key of anonymous access and of a rejection is the digest with the path. These entries are short-lived
//! and end when the component `identity` advances, because a new object may make a rejected token valid.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): the cache stores keyed digests, never credentials.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::user::UserInfo;
use jiff::Timestamp;

use crate::Authenticated;
use crate::decisions::cache::Expiry;
use crate::identity::credentials::{Digest, Digests};
use crate::identity::dependencies::IdentityDependency;

/// Maximum number of cached accepted credentials; at the limit the cache evicts entries.
const MAX_ACCEPTED: u64 = 16 * 1024;
/// Maximum number of cached rejections and anonymous paths. They have their own limit, so that requests with
/// random tokens do not evict accepted credentials.
const MAX_SHORT_LIVED: u64 = 4 * 1024;
/// The idle time after which an accepted credential is dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// The TTL of rejections and anonymous paths.
const SHORT_TTL: Duration = Duration::from_secs(10);

/// The lifetime of an established identity.
#[derive(Debug, Default)]
pub(crate) struct IdentityLifetime {
    /// The first moment at which the credential is valid.
    pub(crate) not_before: Option<Timestamp>,
    /// The time at which the credential expires.
    pub(crate) expires: Option<Timestamp>,
    /// The stored objects that the identity depends on.
    pub(crate) identity_dependencies: Vec<Arc<IdentityDependency>>,
    /// The era of the response: see [`crate::decisions::epoch`]. Open watches end with the era.
    ///
    /// None for work of the process itself.
    pub(crate) era: Option<u64>,
}

impl IdentityLifetime {
    /// Whether the identity is valid at this time.
    pub(crate) fn is_valid_at(&self, now: Timestamp) -> bool {
        self.not_before.is_none_or(|start| now >= start)
            && self.expires.is_none_or(|end| now < end)
            && self.identity_dependencies.iter().all(|dependency| dependency.is_unchanged())
    }
}

/// The cached identity of an accepted credential.
#[derive(Clone, Debug)]
pub(crate) struct AcceptedIdentity {
    /// The user.
    pub(crate) user: Arc<UserInfo>,
    /// The lifetime of the identity.
    pub(crate) lifetime: Arc<IdentityLifetime>,
    /// The epoch of the response.
    pub(crate) epoch: u64,
    /// The TTL of a webhook response; apid re-authenticates after the TTL, even within `lifetime`.
    pub(crate) webhook_expiry: Option<Expiry>,
}

/// A cached anonymous access or rejection.
#[derive(Clone, Debug)]
pub(crate) struct ShortLivedEntry {
    /// The anonymous user with the lifetime of the identity, or the reason of a rejection.
    pub(crate) outcome: Result<(Arc<UserInfo>, Arc<IdentityLifetime>), Arc<str>>,
    /// The revision up to which the response includes every policy write, read before the request to authd.
    pub(crate) as_of: u64,
    /// The epoch of the response.
    pub(crate) epoch: u64,
    /// The TTL of a webhook response.
    pub(crate) webhook_expiry: Option<Expiry>,
}

/// A hit in the identity cache.
pub(crate) enum IdentityCacheHit {
    /// The client with an accepted credential, or the anonymous user; with the TTL of a webhook response.
    Accepted(Authenticated, Option<Expiry>),
    /// A cached rejection, with its reason.
    Rejected(Arc<str>),
}

/// The identity cache, shared by all requests; see the module documentation.
pub(crate) struct IdentityCache {
    accepted: moka::sync::Cache<Digest, AcceptedIdentity>,
    short_lived: moka::sync::Cache<Digest, ShortLivedEntry>,
}

impl IdentityCache {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        IdentityCache {
            accepted: moka::sync::Cache::builder()
                .max_capacity(MAX_ACCEPTED)
                .time_to_idle(IDLE_TIMEOUT)
                .build(),
            short_lived: moka::sync::Cache::builder()
                .max_capacity(MAX_SHORT_LIVED)
                .time_to_live(SHORT_TTL)
                .build(),
        }
    }

    /// Looks up a credential; entries of another epoch than `epoch` are not used.
    ///
    /// `identity_unchanged` returns whether the component `identity` has not advanced since a revision.
    pub(crate) fn find(
        &self,
        digests: &Digests<'_>,
        epoch: u64,
        clock: &dyn Clock,
        identity_unchanged: impl Fn(u64) -> bool,
    ) -> Option<IdentityCacheHit> {
        let is_within_ttl = |webhook_expiry: Option<Expiry>| {
            webhook_expiry.is_none_or(|webhook_expiry| clock.monotonic() < webhook_expiry.end())
        };
        if let Some(accepted) = self.accepted.get(digests.credential())
            && accepted.epoch == epoch
            && accepted.lifetime.is_valid_at(clock.now())
            && is_within_ttl(accepted.webhook_expiry)
        {
            return Some(IdentityCacheHit::Accepted(
                Authenticated::without_impersonation(accepted.user, accepted.lifetime),
                accepted.webhook_expiry,
            ));
        }
        let short_lived = self.short_lived.get(&digests.with_path())?;
        let is_valid = short_lived.epoch == epoch
            && is_within_ttl(short_lived.webhook_expiry)
            && identity_unchanged(short_lived.as_of);
        is_valid.then(|| match short_lived.outcome {
            Ok((user, lifetime)) => {
                let client = Authenticated::without_impersonation(user, lifetime);
                IdentityCacheHit::Accepted(client, short_lived.webhook_expiry)
            }
            Err(detail) => IdentityCacheHit::Rejected(detail),
        })
    }

    /// Caches an accepted credential.
    pub(crate) fn insert_accepted(&self, digests: &Digests<'_>, accepted: AcceptedIdentity) {
        self.accepted.insert(*digests.credential(), accepted);
    }

    /// Caches an anonymous access or a rejection.
    pub(crate) fn insert_short_lived(&self, digests: &Digests<'_>, short_lived: ShortLivedEntry) {
        self.short_lived.insert(digests.with_path(), short_lived);
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        self.accepted.invalidate_all();
        self.short_lived.invalidate_all();
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;

    use super::*;
    use crate::identity::credentials::{Credentials, Digester};
    use crate::identity::header_credentials::HeaderCredentials;

    #[test]
    fn hit_of_anonymous_access_has_expiry_of_webhook() {
        let header_credentials = HeaderCredentials::default();
        let digester = Digester::new().unwrap();
        let digests = digester.digest(&Credentials {
            header_credentials: &header_credentials,
            certificate_chain: &[],
            chain_fingerprint: None,
            path: "/version",
            request_id: "",
        });
        let clock = ManualClock::at(Timestamp::UNIX_EPOCH);
        let expiry = Expiry::from_wire(clock.monotonic(), 5_001).unwrap();
        let cache = IdentityCache::new();
        cache.insert_short_lived(
            &digests,
            ShortLivedEntry {
                outcome: Ok((Arc::new(UserInfo::anonymous()), Arc::default())),
                as_of: 1,
                epoch: 1,
                webhook_expiry: Some(expiry),
            },
        );
        let find = || cache.find(&digests, 1, &clock, |_| true);
        let Some(IdentityCacheHit::Accepted(_, Some(found))) = find() else {
            panic!("the hit has no expiry");
        };
        assert_eq!(found.end(), expiry.end());
        clock.advance(Duration::from_secs(5));
        assert!(find().is_none(), "the response of the webhook has expired");
    }
}
