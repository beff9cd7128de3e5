//! The mirrored objects of identities.
//! These are service accounts, token Secrets, pods, nodes, and `cluster-info`.
//!
//! # Contract
//!
//! The uid identifies an account, pod or node, so that one recreated under the same name is another object. A
//! terminating object stays valid until one minute after its deletion timestamp, as in Kubernetes: a pod may
//! use its token while it terminates.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use authproto::auth::{self, mirror_key, mirror_object};
use jiff::{SignedDuration, Timestamp};

/// How long an object stays valid after its deletion timestamp.
const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// An object that tokens may be bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityObject {
    /// Its uid.
    pub uid: Box<str>,
    /// The end of validity of a terminating object.
    pub until: Option<Timestamp>,
}

impl IdentityObject {
    /// Whether the object is valid now and has this uid.
    pub fn holds(&self, uid: &str, now: Timestamp) -> bool {
        *self.uid == *uid && self.until.is_none_or(|until| now < until)
    }
}

/// A token Secret. Contains secrets: `Debug` shows the type only.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret {
    /// The uid, and the end of validity.
    pub anchor: IdentityObject,
    /// The Secret is being deleted.
    pub terminating: bool,
    /// Its type.
    pub kind: String,
    /// Its data, decoded.
    pub data: BTreeMap<String, Vec<u8>>,
    /// The relevant labels and annotations.
    pub annotations: BTreeMap<String, String>,
}

impl TokenSecret {
    /// A value of the data as text; `""` if absent or not UTF-8.
    pub fn text(&self, key: &str) -> &str {
        self.data.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl std::fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSecret").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// One change.
#[derive(Debug)]
pub(super) enum Change {
    Account(String, Option<IdentityObject>),
    Secret(String, Option<Arc<TokenSecret>>),
    Pod(String, Option<IdentityObject>),
    Node(String, Option<IdentityObject>),
    ConfigMap(String, Option<BTreeMap<String, String>>),
}

/// The objects of identities.
#[derive(Debug, Default)]
pub struct Identities {
    accounts: HashMap<Box<str>, IdentityObject>,
    secrets: HashMap<Box<str>, Arc<TokenSecret>>,
    /// The Secrets that contain a token and so may concern a controller, a small subset.
    tokens: BTreeMap<Box<str>, Arc<TokenSecret>>,
    pods: HashMap<Box<str>, IdentityObject>,
    nodes: HashMap<Box<str>, IdentityObject>,
    config_maps: BTreeMap<Box<str>, BTreeMap<String, String>>,
}

/// Names and namespaces contain no slash.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

impl Identities {
    /// Returns a service account.
    pub fn account(&self, namespace: &str, name: &str) -> Option<&IdentityObject> {
        self.accounts.get(key(namespace, name).as_str())
    }

    /// Returns a Secret; one without a token has no data here.
    pub fn secret(&self, namespace: &str, name: &str) -> Option<&Arc<TokenSecret>> {
        self.secrets.get(key(namespace, name).as_str())
    }

    /// Iterates over the Secrets with a token, as (namespace, name, Secret).
    pub fn secrets(&self) -> impl Iterator<Item = (&str, &str, &Arc<TokenSecret>)> {
        self.tokens.iter().filter_map(|(key, secret)| {
            let (namespace, name) = key.split_once('/')?;
            Some((namespace, name, secret))
        })
    }

    /// Returns a pod.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&IdentityObject> {
        self.pods.get(key(namespace, name).as_str())
    }

    /// Returns a node.
    pub fn node(&self, name: &str) -> Option<&IdentityObject> {
        self.nodes.get(key("", name).as_str())
    }

    /// Returns the data of a mirrored ConfigMap.
    pub fn config_map(&self, namespace: &str, name: &str) -> Option<&BTreeMap<String, String>> {
        self.config_maps.get(key(namespace, name).as_str())
    }

    pub(super) fn apply(&mut self, change: Change) {
        fn put(map: &mut HashMap<Box<str>, IdentityObject>, key: String, anchor: Option<IdentityObject>) {
            match anchor {
                Some(anchor) => map.insert(key.into(), anchor),
                None => map.remove(key.as_str()),
            };
        }
        match change {
            Change::Account(key, anchor) => put(&mut self.accounts, key, anchor),
            Change::Pod(key, anchor) => put(&mut self.pods, key, anchor),
            Change::Node(key, anchor) => put(&mut self.nodes, key, anchor),
            Change::Secret(key, Some(secret)) => {
                if secret.data.is_empty() && secret.annotations.is_empty() {
                    self.tokens.remove(key.as_str());
                } else {
                    self.tokens.insert(key.as_str().into(), Arc::clone(&secret));
                }
                self.secrets.insert(key.into(), secret);
            }
            Change::Secret(key, None) => {
                self.tokens.remove(key.as_str());
                self.secrets.remove(key.as_str());
            }
            Change::ConfigMap(key, Some(data)) => drop(self.config_maps.insert(key.into(), data)),
            Change::ConfigMap(key, None) => drop(self.config_maps.remove(key.as_str())),
        }
    }
}

/// Decodes a put of these kinds. None: another kind.
pub(super) fn put(object: auth::MirrorObject) -> Option<Change> {
    use mirror_object::Kind;
    let until = match object.deleted_at_ms {
        // Terminating without a timestamp: invalid at once.
        0 => object.terminating.then_some(Timestamp::MIN),
        at => Timestamp::from_millisecond(at)
            .ok()
            .and_then(|at| at.checked_add(GRACE).ok())
            .or(Some(Timestamp::MIN)),
    };
    let key = key(&object.namespace, &object.name);
    let anchor = IdentityObject { uid: object.uid.into(), until };
    match object.kind? {
        Kind::ServiceAccount(_) => Some(Change::Account(key, Some(anchor))),
        Kind::Pod(_) => Some(Change::Pod(key, Some(anchor))),
        Kind::Node(_) => Some(Change::Node(key, Some(anchor))),
        Kind::Secret(secret) => Some(Change::Secret(
            key,
            Some(Arc::new(TokenSecret {
                anchor,
                terminating: object.terminating,
                kind: secret.r#type,
                data: secret.data.into_iter().map(|(key, value)| (key, value.to_vec())).collect(),
                annotations: object.labels.into_iter().chain(object.annotations).collect(),
            })),
        )),
        Kind::ConfigMap(map) => Some(Change::ConfigMap(key, Some(map.data.into_iter().collect()))),
        Kind::Role(_)
        | Kind::ClusterRole(_)
        | Kind::RoleBinding(_)
        | Kind::ClusterRoleBinding(_)
        | Kind::Volume(_)
        | Kind::VolumeAttachment(_)
        | Kind::ResourceSlice(_) => None,
    }
}

/// Decodes a deletion of these kinds. None: another kind.
pub(super) fn delete(kind: &mirror_key::Kind) -> Option<Change> {
    use mirror_key::Kind;
    let of = |named: &auth::Named| key(&named.namespace, &named.name);
    match kind {
        Kind::ServiceAccount(named) => Some(Change::Account(of(named), None)),
        Kind::Secret(named) => Some(Change::Secret(of(named), None)),
        Kind::Node(named) => Some(Change::Node(of(named), None)),
        Kind::Pod(named) => Some(Change::Pod(of(named), None)),
        Kind::ConfigMap(named) => Some(Change::ConfigMap(of(named), None)),
        Kind::Role(_)
        | Kind::ClusterRole(_)
        | Kind::RoleBinding(_)
        | Kind::ClusterRoleBinding(_)
        | Kind::Volume(_)
        | Kind::VolumeAttachment(_)
        | Kind::ResourceSlice(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(uid: &str, deleted_at_ms: i64) -> auth::MirrorObject {
        auth::MirrorObject {
            namespace: "team".into(),
            name: "robot".into(),
            uid: uid.into(),
            terminating: deleted_at_ms != 0,
            deleted_at_ms,
            kind: Some(mirror_object::Kind::ServiceAccount(auth::MirrorServiceAccount {})),
            ..auth::MirrorObject::default()
        }
    }

    #[test]
    fn deleted_account_stays_valid_for_one_minute() {
        let mut identities = Identities::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let holds = |identities: &Identities, uid: &str, now| {
            identities.account("team", "robot").is_some_and(|anchor| anchor.holds(uid, at(now)))
        };
        assert!(!holds(&identities, "a", 0));
        identities.apply(put(account("a", 0)).unwrap());
        assert!(holds(&identities, "a", i64::from(u32::MAX)));
        assert!(!holds(&identities, "b", 0), "recreated with another uid");
        identities.apply(put(account("a", 10_000)).unwrap());
        assert!(holds(&identities, "a", 69));
        assert!(!holds(&identities, "a", 70));
        let named = auth::Named { namespace: "team".into(), name: "robot".into() };
        identities.apply(delete(&mirror_key::Kind::ServiceAccount(named)).unwrap());
        assert!(!holds(&identities, "a", 0));
    }

    #[test]
    fn token_secret_debug_hides_data() {
        let secret = auth::MirrorSecret {
            r#type: "t".into(),
            data: [("token".to_owned(), b"hidden".to_vec())].into(),
        };
        let object = auth::MirrorObject {
            namespace: "team".into(),
            name: "s".into(),
            kind: Some(mirror_object::Kind::Secret(secret)),
            ..auth::MirrorObject::default()
        };
        let mut identities = Identities::default();
        identities.apply(put(object).unwrap());
        assert_eq!(identities.secret("team", "s").unwrap().text("token"), "hidden");
        assert_eq!(
            identities.secrets().map(|(namespace, name, _)| (namespace, name)).collect::<Vec<_>>(),
            [("team", "s")]
        );
        assert!(!format!("{identities:?}").contains("hidden"));
    }
}
