//! The decision cache: keys and eviction.
//!
//! # Invariants
//!
//! INVARIANT (one request, one entry): a key is the whole user and the whole attributes, compared field by
//! field. Requests share an entry only when they agree in every field that an authorizer may read. The
//! exception is an entry that is valid for any name: its comparison ignores the name and the path that contains
//! the name. INVARIANT (fresh policy): an entry is used only while it [is valid](Validity::is_valid).
//!
//! # Costs
//!
//! Nearly every request calls [`DecisionCache::find`]. It hashes the request once, compares the keys of at
//! most two entries with the request, and copies neither the key nor the decision. Keys are hashed with a
//! random per-process key, so clients cannot force collisions. [`DecisionCache::maintain`] records uses and
//! evicts entries in a background task, so a request seldom has to do this work.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apimachinery::attributes::{Attributes, ParsedSelector};
use apimachinery::decision::{Decision, Verdict};
use apimachinery::user::UserInfo;
use authproto::auth::{AuthorizeResponse, Covers, Verdict as WireVerdict};
use moka::Equivalent;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use tokio::sync::Notify;

use crate::validity::Validity;

/// Maximum size of all entries together, in bytes. A maximum number of entries would not limit memory,
/// because clients choose the lengths of paths and selectors.
const CAPACITY: u64 = 32 << 20;
/// Estimated bytes of an entry without its strings.
const ENTRY_OVERHEAD: usize = 512;
/// Estimated bytes of a string without its characters.
const STRING_OVERHEAD: usize = 40;
/// Time without use after which an entry is dropped.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
/// Number of inserts after which the maintenance of the cache runs in the background.
///
/// After 64 inserts, the cache library would run the maintenance on the thread of a request.
const MAINTENANCE_BATCH: usize = 16;
/// The longest time between two background runs of the maintenance.
///
/// After 300 ms, the cache library would run the maintenance on the thread of a request.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(250);

/// A decision with its validity.
#[derive(Debug)]
pub(crate) struct CachedDecision {
    /// The decision.
    pub(crate) decision: Decision,
    /// The conditions under which the decision stays valid.
    pub(crate) validity: Validity,
}

/// Converts the response of authd to a decision.
pub(crate) fn from_wire(response: &AuthorizeResponse) -> Decision {
    let verdict = match response.verdict() {
        WireVerdict::Deny => Verdict::Deny,
        WireVerdict::Allow => Verdict::Allow,
        WireVerdict::NoOpinion => Verdict::NoOpinion,
    };
    Decision { verdict, reason: response.reason.clone(), evaluation_error: response.evaluation_error.clone() }
}

/// A key for look-ups that borrows the request.
struct LookupKey<'r> {
    key_hash: u64,
    user: &'r Arc<UserInfo>,
    attributes: &'r Attributes,
    covers: Covers,
}

impl Hash for LookupKey<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key_hash);
    }
}

impl Equivalent<DecisionKey> for LookupKey<'_> {
    fn equivalent(&self, key: &DecisionKey) -> bool {
        self.covers == key.covers
            && *self.user == key.user
            && match self.covers {
                Covers::This => *self.attributes == *key.attributes,
                Covers::AnyName => all_but_name(self.attributes) == all_but_name(&key.attributes),
            }
    }
}

/// The key of a cached decision.
#[derive(Clone, Debug)]
struct DecisionKey {
    key_hash: u64,
    user: Arc<UserInfo>,
    attributes: Arc<Attributes>,
    /// The object names for which the decision is valid: only that of the request, or any name.
    covers: Covers,
    /// The approximate size of the entry in bytes.
    weight: u32,
}

impl Hash for DecisionKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.key_hash);
    }
}

impl PartialEq for DecisionKey {
    fn eq(&self, other: &Self) -> bool {
        let DecisionKey { key_hash, ref user, ref attributes, covers, weight: _ } = *self;
        LookupKey { key_hash, user, attributes, covers }.equivalent(other)
    }
}

impl Eq for DecisionKey {}

/// The attributes by which an entry for any name is hashed and compared: all except the name and the path.
///
/// The pattern lists every attribute, so the compiler reports a new attribute that is missing here. If an
/// attribute were missing, the entries of requests that differ only in this attribute would share one hash.
fn all_but_name(attributes: &Attributes) -> impl Eq + Hash {
    let Attributes {
        verb,
        resource_request,
        group,
        version,
        resource,
        subresource,
        namespace,
        name: _,
        path: _,
        field_selector,
        label_selector,
    } = attributes;
    (verb, resource_request, group, version, resource, subresource, namespace, field_selector, label_selector)
}

/// A hasher that returns the hash that it is given: the keys are prehashed.
#[derive(Default)]
struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, key_hash: u64) {
        self.0 = key_hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The two hashes of a request. One is for an entry that is valid for any name, the other for an entry that is valid
/// for the requested name.
struct KeyHashes(DefaultHasher);

impl KeyHashes {
    fn new(hash_state: &RandomState, user: &UserInfo, a: &Attributes) -> Self {
        let mut hasher = hash_state.build_hasher();
        user.hash(&mut hasher);
        all_but_name(a).hash(&mut hasher);
        KeyHashes(hasher)
    }

    fn any_name(&self) -> u64 {
        self.0.finish()
    }

    fn this_name(mut self, a: &Attributes) -> u64 {
        (&a.name, &a.path).hash(&mut self.0);
        self.0.finish()
    }
}

/// The approximate size of an entry in bytes.
fn weight(user: &UserInfo, a: &Attributes, cached_decision: &CachedDecision) -> usize {
    let texts_size = |list: &[String]| list.iter().map(|text| STRING_OVERHEAD + text.len()).sum::<usize>();
    let selector_size = |selector: &ParsedSelector| match selector {
        ParsedSelector::Unparsable(text) => text.len(),
        ParsedSelector::Requirements(requirements) => requirements
            .iter()
            .map(|requirement| 2 * STRING_OVERHEAD + requirement.key.len() + texts_size(&requirement.values))
            .sum(),
    };
    let UserInfo { name, uid, groups, extra } = user;
    let extra_size: usize =
        extra.iter().map(|(key, values)| 2 * STRING_OVERHEAD + key.len() + texts_size(values)).sum();
    let request_texts =
        [&a.verb, &a.group, &a.version, &a.resource, &a.subresource, &a.namespace, &a.name, &a.path];
    ENTRY_OVERHEAD
        + (name.len() + uid.len() + texts_size(groups) + extra_size)
        + request_texts.iter().map(|text| text.len()).sum::<usize>()
        + (selector_size(&a.field_selector) + selector_size(&a.label_selector))
        + (cached_decision.decision.reason.len() + cached_decision.decision.evaluation_error.len())
}

/// The decision cache, shared by all requests; see the module documentation.
pub(crate) struct DecisionCache {
    hash_state: RandomState,
    entries: Cache<DecisionKey, Arc<CachedDecision>, BuildHasherDefault<PassThroughHasher>>,
    /// Number of inserts since an insert last woke the maintenance task.
    inserts: AtomicUsize,
    maintenance: Notify,
}

impl DecisionCache {
    /// An empty cache.
    pub(crate) fn new() -> Self {
        Self::with_idle_timeout(IDLE_TIMEOUT)
    }

    fn with_idle_timeout(idle_timeout: Duration) -> Self {
        let entries = Cache::builder()
            .max_capacity(CAPACITY)
            .weigher(|key: &DecisionKey, _: &Arc<CachedDecision>| key.weight)
            .time_to_idle(idle_timeout)
            // TinyLFU, the default, has a longer p99 latency: see `docs/decisions/0005-decision-cache.md`.
            .eviction_policy(EvictionPolicy::lru())
            .build_with_hasher(BuildHasherDefault::default());
        DecisionCache {
            hash_state: RandomState::new(),
            entries,
            inserts: AtomicUsize::new(0),
            maintenance: Notify::new(),
        }
    }

    /// Returns a cached decision on this request if `is_valid` returns true for its validity.
    pub(crate) fn find(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Attributes,
        is_valid: impl Fn(&Validity) -> bool,
    ) -> Option<Arc<CachedDecision>> {
        let find_valid = |key_hash, covers| {
            let cached_decision = self.entries.get(&LookupKey { key_hash, user, attributes, covers })?;
            is_valid(&cached_decision.validity).then_some(cached_decision)
        };
        let key_hashes = KeyHashes::new(&self.hash_state, user, attributes);
        // The first look-up is for any name, because most decisions are valid for any name.
        if attributes.resource_request
            && let Some(cached_decision) = find_valid(key_hashes.any_name(), Covers::AnyName)
        {
            return Some(cached_decision);
        }
        find_valid(key_hashes.this_name(attributes), Covers::This)
    }

    /// Inserts a decision for the object names that `covers` states. Skips a decision without an epoch.
    pub(crate) fn insert(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        covers: Covers,
        cached_decision: &Arc<CachedDecision>,
    ) {
        if cached_decision.validity.epoch.is_none() {
            return;
        }
        let key_hashes = KeyHashes::new(&self.hash_state, user, attributes);
        let (covers, key_hash) = match covers {
            Covers::AnyName if attributes.resource_request => (covers, key_hashes.any_name()),
            Covers::AnyName | Covers::This => (Covers::This, key_hashes.this_name(attributes)),
        };
        let weight = u32::try_from(weight(user, attributes, cached_decision)).unwrap_or(u32::MAX);
        let (user, attributes) = (user.clone(), attributes.clone());
        self.entries
            .insert(DecisionKey { key_hash, user, attributes, covers, weight }, cached_decision.clone());
        if self.inserts.fetch_add(1, Ordering::Relaxed) + 1 >= MAINTENANCE_BATCH {
            self.inserts.store(0, Ordering::Relaxed);
            self.maintenance.notify_one();
        }
    }

    /// Maintains the cache until the process ends.
    pub(crate) async fn maintain(&self) {
        loop {
            // The maintenance is due after a notification and after the timeout.
            let _ = tokio::time::timeout(MAINTENANCE_INTERVAL, self.maintenance.notified()).await;
            self.run_maintenance();
        }
    }

    /// Records uses, evicts entries above the capacity and drops those that no request used lately.
    fn run_maintenance(&self) {
        self.entries.run_pending_tasks();
    }

    /// The number of entries and their approximate size in bytes.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.entries.entry_count(), self.entries.weighted_size())
    }

    /// Drops all entries.
    pub(crate) fn clear(&self) {
        self.entries.invalidate_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::epoch::EpochNumber;
    use apimachinery::attributes::{Operator, Requirement};

    fn cached_decision() -> Arc<CachedDecision> {
        let validity = Validity { epoch: Some(EpochNumber::default()), ..Validity::default() };
        let decision = Decision { verdict: Verdict::Allow, ..Decision::default() };
        Arc::new(CachedDecision { decision, validity })
    }

    fn pods() -> Attributes {
        Attributes {
            verb: "get".into(),
            resource_request: true,
            version: "v1".into(),
            resource: "pods".into(),
            namespace: "a".into(),
            name: "x".into(),
            path: "/api/v1/namespaces/a/pods/x".into(),
            ..Attributes::default()
        }
    }

    fn user() -> UserInfo {
        UserInfo { name: "u".into(), groups: vec!["g".into(), "h".into()], ..UserInfo::default() }
    }

    /// Requests that differ from `pods()` of `user()` in one field each, with the name of the field.
    fn requests_with_one_difference() -> Vec<(&'static str, UserInfo, Attributes)> {
        let selector = |key: &str| {
            ParsedSelector::Requirements(vec![Requirement {
                key: key.into(),
                operator: Operator::Exists,
                values: vec![],
            }])
        };
        let mut list: Vec<(&'static str, UserInfo, Attributes)> = Vec::new();
        macro_rules! attribute {
            ($field:ident, $value:expr) => {
                list.push((stringify!($field), user(), Attributes { $field: $value, ..pods() }))
            };
        }
        attribute!(verb, "list".into());
        attribute!(resource_request, false);
        attribute!(group, "apps".into());
        attribute!(version, "v2".into());
        attribute!(resource, "secrets".into());
        attribute!(subresource, "log".into());
        attribute!(namespace, "b".into());
        attribute!(field_selector, selector("x"));
        attribute!(label_selector, selector("x"));
        attribute!(label_selector, ParsedSelector::Unparsable("x".into()));
        macro_rules! identity {
            ($field:ident, $value:expr) => {
                list.push((stringify!($field), UserInfo { $field: $value, ..user() }, pods()))
            };
        }
        identity!(name, "v".into());
        identity!(uid, "1".into());
        identity!(groups, vec!["g".into()]);
        identity!(groups, vec!["gh".into()]);
        identity!(groups, vec!["h".into(), "g".into()]);
        identity!(extra, [("k".to_owned(), vec!["v".to_owned()])].into());
        list
    }

    #[test]
    fn request_with_any_different_field_misses_the_cache() {
        for covers in [Covers::This, Covers::AnyName] {
            let cache = DecisionCache::new();
            cache.insert(&Arc::new(user()), &Arc::new(pods()), covers, &cached_decision());
            assert!(cache.find(&Arc::new(user()), &Arc::new(pods()), |_| true).is_some());
            for (field, other_user, attributes) in requests_with_one_difference() {
                let found = cache.find(&Arc::new(other_user), &Arc::new(attributes), |_| true);
                assert!(found.is_none(), "{covers:?}: differs in {field}");
            }
        }
    }

    #[test]
    fn only_any_name_entry_serves_other_names() {
        let other_pod =
            Arc::new(Attributes { name: "y".into(), path: "/api/v1/namespaces/a/pods/y".into(), ..pods() });
        for (covers, expected) in [(Covers::This, false), (Covers::AnyName, true)] {
            let cache = DecisionCache::new();
            cache.insert(&Arc::new(user()), &Arc::new(pods()), covers, &cached_decision());
            assert_eq!(cache.find(&Arc::new(user()), &other_pod, |_| true).is_some(), expected);
        }
    }

    #[test]
    fn non_resource_path_entry_covers_only_its_path() {
        let health = |path: &str| {
            Arc::new(Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() })
        };
        let cache = DecisionCache::new();
        cache.insert(&Arc::new(user()), &health("/livez"), Covers::AnyName, &cached_decision());
        assert!(cache.find(&Arc::new(user()), &health("/livez"), |_| true).is_some());
        assert!(cache.find(&Arc::new(user()), &health("/metrics"), |_| true).is_none());
    }

    #[test]
    fn decision_cache_with_largest_requests_stays_within_capacity() {
        let cache = DecisionCache::new();
        let user = Arc::new(user());
        let long_path = "x".repeat(60_000);
        for i in 0..2_000 {
            let key = |j: usize| Requirement {
                key: format!("{i}-{j}"),
                operator: Operator::Exists,
                values: vec!["v".into()],
            };
            let label_selector = match i % 2 {
                0 => ParsedSelector::Unparsable(format!("{i}{long_path}")),
                _ => ParsedSelector::Requirements((0..1_000).map(key).collect()),
            };
            let attributes = Attributes { path: long_path.clone(), label_selector, ..pods() };
            cache.insert(&user, &Arc::new(attributes), Covers::AnyName, &cached_decision());
        }
        cache.run_maintenance();
        assert!(cache.entries.weighted_size() <= CAPACITY);
        let kept = cache.entries.entry_count();
        assert!((1..1_000).contains(&kept), "{kept} entries of about 100 kB each");
    }

    #[test]
    fn different_requests_have_different_key_hashes() {
        let hash_state = RandomState::new();
        let key_hashes = |user: &UserInfo, a: &Attributes| KeyHashes::new(&hash_state, user, a);
        let any_name = |user: &UserInfo, a: &Attributes| key_hashes(user, a).any_name();
        for (field, other_user, attributes) in requests_with_one_difference() {
            assert_ne!(any_name(&user(), &pods()), any_name(&other_user, &attributes), "{field}");
        }
        let named = Attributes { name: "y".into(), ..pods() };
        assert_eq!(any_name(&user(), &pods()), any_name(&user(), &named));
        assert_ne!(
            key_hashes(&user(), &pods()).this_name(&pods()),
            key_hashes(&user(), &named).this_name(&named)
        );
    }

    #[test]
    fn maintenance_drops_decisions_unused_for_the_idle_timeout() {
        let cache = DecisionCache::with_idle_timeout(Duration::from_millis(1));
        cache.insert(&Arc::new(user()), &Arc::new(pods()), Covers::AnyName, &cached_decision());
        let is_empty = (0..5_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            cache.run_maintenance();
            cache.entries.entry_count() == 0 && cache.entries.weighted_size() == 0
        });
        assert!(is_empty, "{} entries remain", cache.entries.entry_count());
    }

    #[test]
    fn cleared_cache_finds_nothing_and_frees_its_entries() {
        let cache = DecisionCache::new();
        cache.insert(&Arc::new(user()), &Arc::new(pods()), Covers::AnyName, &cached_decision());
        cache.clear();
        assert!(cache.find(&Arc::new(user()), &Arc::new(pods()), |_| true).is_none());
        cache.run_maintenance();
        assert_eq!(cache.entries.entry_count(), 0);
    }

    #[test]
    fn invalid_decision_is_a_cache_miss() {
        let cache = DecisionCache::new();
        cache.insert(&Arc::new(user()), &Arc::new(pods()), Covers::AnyName, &cached_decision());
        assert!(cache.find(&Arc::new(user()), &Arc::new(pods()), |_| false).is_none());
    }
}
