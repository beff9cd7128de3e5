//! The decision cache: keys, validity and eviction.
//!
//! # Invariants
//!
//! INVARIANT (one request, one entry): a key is the whole user and the whole attributes, compared field by
//! field. Requests share an entry only when they agree in every field that an authorizer may read. The
//! exception is an entry that authd gave for any name: its comparison ignores the name and the path that
//! contains the name.
//! INVARIANT (fresh policy): an entry is used only while it [is valid](Validity::holds).
//! INVARIANT (TTL from the request): the TTL of a webhook response counts from the moment before the
//! request, however long the response took.
//!
//! # Costs
//!
//! Every request calls [`DecisionCache::find`]. It hashes the request once, looks up the entry, compares,
//! and copies nothing. Keys are hashed with a random per-process key, so that clients cannot force
//! collisions.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::attributes::{Attributes, ParsedSelector};
use apimachinery::clock::Clock;
use apimachinery::decision::{Decision, Verdict};
use apimachinery::user::UserInfo;
use authproto::auth::{AuthorizeResponse, Covers, Verdict as WireVerdict};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{Equivalent, OptionsBuilder, Weighter};

use super::revisions::{Depends, PolicyRevisions};

/// Limit of the size of all entries in bytes: clients choose the lengths of paths and selectors.
const CAPACITY: u64 = 32 << 20;
/// Bytes of an entry without its strings.
const ENTRY: usize = 512;
/// Bytes of a string without its characters.
const TEXT: usize = 40;
/// Shards with a lock of their own, each with its share of [`CAPACITY`].
const SHARDS: usize = 16;
/// The interval of [`DecisionCache::sweep`], which drops entries that no request used in this time.
pub(super) const IDLE: Duration = Duration::from_secs(600);

/// The minimum TTL of a webhook response for an open watch.
///
/// Without this minimum, a webhook with TTL 0 would get a request at every event. A watch must end within
/// the same time after a policy write.
pub(super) const WATCHED: Duration = Duration::from_secs(1);

/// The TTL of a webhook response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expiry {
    /// The monotonic time before the request.
    asked: Duration,
    /// The time to live from then on.
    ttl: Duration,
}

impl Expiry {
    /// Decodes a TTL from the wire: 0 is no limit, and 1 is the shortest, which serves only this request.
    pub(super) fn of_wire(asked: Duration, ttl_ms: u64) -> Option<Self> {
        Some(Expiry { asked, ttl: Duration::from_millis(ttl_ms.checked_sub(1)?) })
    }

    /// The monotonic time at which the response expires.
    pub(super) fn end(&self) -> Duration {
        self.asked.saturating_add(self.ttl)
    }

    fn lasts(&self, now: Duration, least: Duration) -> bool {
        now.saturating_sub(self.asked) < self.ttl.max(least)
    }
}

/// How long a decision is valid.
#[derive(Clone, Debug)]
pub(super) struct Validity {
    /// The revision of the reading before the request.
    pub(super) as_of: u64,
    /// The policy components that the decision depends on.
    pub(super) depends: Depends,
    /// The epoch of the decision. None: the decision serves only the request that caused it.
    pub(super) epoch: Option<u64>,
    /// The TTL of a webhook response.
    pub(super) expiry: Option<Expiry>,
}

impl Validity {
    /// The validity of work of the process itself, which policy neither grants nor ends.
    pub(super) fn internal() -> Self {
        Validity { as_of: u64::MAX, depends: Depends::default(), epoch: None, expiry: None }
    }

    /// Whether this is [`Validity::internal`].
    pub(super) fn is_internal(&self) -> bool {
        self.as_of == u64::MAX
    }

    /// Whether no event has made the decision invalid. Reads `clock` only when a TTL exists.
    pub(super) fn holds(&self, revisions: &PolicyRevisions, epoch: u64, clock: &dyn Clock) -> bool {
        self.lasts(revisions, epoch, clock, Duration::ZERO)
    }

    /// As [`Validity::holds`] for an open watch, with [`WATCHED`] as the minimum TTL.
    pub(super) fn stands(&self, revisions: &PolicyRevisions, epoch: u64, clock: &dyn Clock) -> bool {
        self.lasts(revisions, epoch, clock, WATCHED)
    }

    fn lasts(&self, revisions: &PolicyRevisions, epoch: u64, clock: &dyn Clock, least: Duration) -> bool {
        self.epoch == Some(epoch)
            && self.expiry.is_none_or(|expiry| expiry.lasts(clock.monotonic(), least))
            && revisions.unchanged(&self.depends, self.as_of)
    }
}

/// A decision with its validity.
#[derive(Debug)]
pub(super) struct Decided {
    /// The decision.
    pub(super) decision: Decision,
    /// How long the decision is valid.
    pub(super) validity: Validity,
    /// Whether a request used the decision since the last sweep.
    used: AtomicBool,
}

impl Decided {
    /// A new decision.
    pub(super) fn new(decision: Decision, validity: Validity) -> Self {
        Decided { decision, validity, used: AtomicBool::new(true) }
    }
}

/// Converts a decision from the wire.
pub(super) fn from_wire(response: &AuthorizeResponse) -> Decision {
    let verdict = match response.verdict() {
        WireVerdict::Deny => Verdict::Deny,
        WireVerdict::Allow => Verdict::Allow,
        WireVerdict::NoOpinion => Verdict::NoOpinion,
    };
    Decision { verdict, reason: response.reason.clone(), evaluation_error: response.evaluation_error.clone() }
}

/// The names that an entry covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    This,
    Any,
}

/// A key for look-ups that borrows the request.
struct Wanted<'r> {
    place: u64,
    user: &'r Arc<UserInfo>,
    attributes: &'r Attributes,
    names: Names,
}

impl Hash for Wanted<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.place);
    }
}

impl Equivalent<Key> for Wanted<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.names == key.names
            && *self.user == key.user
            && match self.names {
                Names::This => *self.attributes == *key.attributes,
                Names::Any => all_but_name(self.attributes) == all_but_name(&key.attributes),
            }
    }
}

/// The key of a cached decision.
#[derive(Clone, Debug)]
struct Key {
    place: u64,
    user: Arc<UserInfo>,
    attributes: Arc<Attributes>,
    names: Names,
    /// The approximate size of the entry in bytes.
    weight: u64,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.place);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        let Key { place, ref user, ref attributes, names, weight: _ } = *self;
        Wanted { place, user, attributes, names }.equivalent(other)
    }
}

impl Eq for Key {}

/// The fields by which an entry for any name is hashed and compared: all but the name and its path.
///
/// The pattern names every field, so that the compiler reports a new attribute that is missing here. If a
/// field were missing, clients that vary this field would put all entries into one bucket.
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

/// A hasher that passes on a finished hash.
#[derive(Default)]
struct Place(u64);

impl Hasher for Place {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, place: u64) {
        self.0 = place;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The hashes of a request.
struct Places(DefaultHasher);

impl Places {
    fn new(keyed: &RandomState, user: &UserInfo, a: &Attributes) -> Self {
        let mut hasher = keyed.build_hasher();
        user.hash(&mut hasher);
        all_but_name(a).hash(&mut hasher);
        Places(hasher)
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
fn weight(user: &UserInfo, a: &Attributes, decided: &Decided) -> usize {
    let texts = |list: &[String]| list.iter().map(|text| TEXT + text.len()).sum::<usize>();
    let selector = |selector: &ParsedSelector| match selector {
        ParsedSelector::Unparsable(text) => text.len(),
        ParsedSelector::Requirements(all) => {
            all.iter().map(|one| 2 * TEXT + one.key.len() + texts(&one.values)).sum()
        }
    };
    let UserInfo { name, uid, groups, extra } = user;
    let extra: usize = extra.iter().map(|(key, values)| 2 * TEXT + key.len() + texts(values)).sum();
    let request =
        [&a.verb, &a.group, &a.version, &a.resource, &a.subresource, &a.namespace, &a.name, &a.path];
    ENTRY
        + (name.len() + uid.len() + texts(groups) + extra)
        + request.iter().map(|text| text.len()).sum::<usize>()
        + (selector(&a.field_selector) + selector(&a.label_selector))
        + (decided.decision.reason.len() + decided.decision.evaluation_error.len())
}

/// Reads the weight that the key stores.
#[derive(Clone)]
struct Weighed;

impl Weighter<Key, Arc<Decided>> for Weighed {
    fn weight(&self, key: &Key, _: &Arc<Decided>) -> u64 {
        key.weight
    }
}

/// The cache of decisions.
pub(super) struct DecisionCache {
    keyed: RandomState,
    entries: Cache<Key, Arc<Decided>, Weighed, BuildHasherDefault<Place>>,
}

impl DecisionCache {
    /// An empty cache.
    pub(super) fn new() -> Self {
        let options = OptionsBuilder::new()
            .shards(SHARDS)
            .estimated_items_capacity(usize::try_from(CAPACITY).unwrap_or(usize::MAX) / (2 * ENTRY))
            .weight_capacity(CAPACITY)
            .build();
        #[expect(clippy::expect_used, reason = "it fails where a capacity is not set")]
        let options = options.expect("both capacities are set");
        DecisionCache {
            keyed: RandomState::new(),
            entries: Cache::with_options(
                options,
                Weighed,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            ),
        }
    }

    /// Returns a cached decision on this request that is still valid.
    pub(super) fn find(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Attributes,
        holds: impl Fn(&Validity) -> bool,
    ) -> Option<Arc<Decided>> {
        let live = |place, names| {
            let decided = self.entries.get(&Wanted { place, user, attributes, names })?;
            holds(&decided.validity).then(|| {
                // At most one store per sweep, so that the cache line stays shared between processors.
                if !decided.used.load(Ordering::Relaxed) {
                    decided.used.store(true, Ordering::Relaxed);
                }
                decided
            })
        };
        let places = Places::new(&self.keyed, user, attributes);
        // Most allowed requests are allowed for any name.
        if attributes.resource_request
            && let Some(decided) = live(places.any_name(), Names::Any)
        {
            return Some(decided);
        }
        live(places.this_name(attributes), Names::This)
    }

    /// Inserts a decision for the names that it covers.
    pub(super) fn keep(
        &self,
        user: &Arc<UserInfo>,
        attributes: &Arc<Attributes>,
        covers: Covers,
        decided: &Arc<Decided>,
    ) {
        if decided.validity.epoch.is_none() {
            return;
        }
        let places = Places::new(&self.keyed, user, attributes);
        let (names, place) = match covers {
            Covers::AnyName if attributes.resource_request => (Names::Any, places.any_name()),
            Covers::AnyName | Covers::This => (Names::This, places.this_name(attributes)),
        };
        let weight = weight(user, attributes, decided) as u64;
        let (user, attributes) = (user.clone(), attributes.clone());
        self.entries.insert(Key { place, user, attributes, names, weight }, decided.clone());
    }

    /// Drops the decisions that no request used since the last sweep.
    pub(super) fn sweep(&self) {
        self.entries.retain(|_, decided| decided.used.swap(false, Ordering::Relaxed));
    }

    /// Drops all decisions.
    pub(super) fn clear(&self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::attributes::{Operator, Requirement};

    fn decided() -> Arc<Decided> {
        let validity = Validity { as_of: 0, depends: Depends::default(), epoch: Some(1), expiry: None };
        Arc::new(Decided::new(Decision { verdict: Verdict::Allow, ..Decision::default() }, validity))
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

    /// Every way in which a request can differ from `pods()` of `user()`.
    fn others() -> Vec<(&'static str, UserInfo, Attributes)> {
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
    fn no_other_request_finds_the_entry() {
        for covers in [Covers::This, Covers::AnyName] {
            let cache = DecisionCache::new();
            cache.keep(&Arc::new(user()), &Arc::new(pods()), covers, &decided());
            assert!(cache.find(&Arc::new(user()), &Arc::new(pods()), |_| true).is_some());
            for (what, other, attributes) in others() {
                let found = cache.find(&Arc::new(other), &Arc::new(attributes), |_| true);
                assert!(found.is_none(), "{covers:?}: differs in {what}");
            }
        }
    }

    #[test]
    fn only_an_entry_for_any_name_serves_another_name() {
        let other =
            Arc::new(Attributes { name: "y".into(), path: "/api/v1/namespaces/a/pods/y".into(), ..pods() });
        for (covers, expected) in [(Covers::This, false), (Covers::AnyName, true)] {
            let cache = DecisionCache::new();
            cache.keep(&Arc::new(user()), &Arc::new(pods()), covers, &decided());
            assert_eq!(cache.find(&Arc::new(user()), &other, |_| true).is_some(), expected);
        }
    }

    #[test]
    fn a_path_outside_the_api_is_never_any_name() {
        let health = |path: &str| {
            Arc::new(Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() })
        };
        let cache = DecisionCache::new();
        cache.keep(&Arc::new(user()), &health("/livez"), Covers::AnyName, &decided());
        assert!(cache.find(&Arc::new(user()), &health("/livez"), |_| true).is_some());
        assert!(cache.find(&Arc::new(user()), &health("/metrics"), |_| true).is_none());
    }

    #[test]
    fn requests_as_long_as_they_may_be_do_not_fill_the_memory() {
        let cache = DecisionCache::new();
        let user = Arc::new(user());
        let long = "x".repeat(60_000);
        for i in 0..2_000 {
            let key = |j: usize| Requirement {
                key: format!("{i}-{j}"),
                operator: Operator::Exists,
                values: vec!["v".into()],
            };
            let label_selector = match i % 2 {
                0 => ParsedSelector::Unparsable(format!("{i}{long}")),
                _ => ParsedSelector::Requirements((0..1_000).map(key).collect()),
            };
            let attributes = Attributes { path: long.clone(), label_selector, ..pods() };
            cache.keep(&user, &Arc::new(attributes), Covers::AnyName, &decided());
        }
        assert!(cache.entries.weight() <= CAPACITY);
        let kept = cache.entries.len();
        assert!((1..1_000).contains(&kept), "{kept} entries of about 100 kB each");
    }

    #[test]
    fn whatever_differs_has_a_place_of_its_own() {
        let keyed = RandomState::new();
        let places = |user: &UserInfo, a: &Attributes| Places::new(&keyed, user, a);
        let any = |user: &UserInfo, a: &Attributes| places(user, a).any_name();
        for (what, other, attributes) in others() {
            assert_ne!(any(&user(), &pods()), any(&other, &attributes), "{what}");
        }
        let named = Attributes { name: "y".into(), ..pods() };
        assert_eq!(any(&user(), &pods()), any(&user(), &named));
        assert_ne!(places(&user(), &pods()).this_name(&pods()), places(&user(), &named).this_name(&named));
    }

    #[test]
    fn a_sweep_drops_what_nobody_used_since_the_last() {
        let cache = DecisionCache::new();
        let [used, unused] = ["a", "b"].map(|verb| Arc::new(Attributes { verb: verb.into(), ..pods() }));
        let user = Arc::new(user());
        for attributes in [&used, &unused] {
            cache.keep(&user, attributes, Covers::AnyName, &decided());
        }
        cache.sweep();
        assert_eq!(cache.entries.len(), 2, "both are new");
        assert!(cache.find(&user, &used, |_| true).is_some());
        assert!(cache.find(&user, &unused, |_| false).is_none(), "an invalid entry does not count as used");
        cache.sweep();
        assert!(cache.find(&user, &used, |_| true).is_some());
        assert!(cache.find(&user, &unused, |_| true).is_none());
    }

    #[test]
    fn an_entry_that_no_longer_holds_is_not_found() {
        let cache = DecisionCache::new();
        cache.keep(&Arc::new(user()), &Arc::new(pods()), Covers::AnyName, &decided());
        assert!(cache.find(&Arc::new(user()), &Arc::new(pods()), |_| false).is_none());
    }
}
