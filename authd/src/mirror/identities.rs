//! The mirrored objects on which identities depend, and those that token controllers read.
//! The objects are service accounts, Secrets, pods, nodes, and the ConfigMap `cluster-info`.
//!
//! # Contract
//!
//! The uid identifies an account, pod or node, so an object recreated under the same name is a new object. A
//! terminating object stays valid until one minute after its deletion timestamp, as in Kubernetes: a pod may
//! use its token while it terminates.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use authproto::auth::{self, mirror_object};
use jiff::{SignedDuration, Timestamp};

/// The time for which an object stays valid after its deletion timestamp.
const GRACE: SignedDuration = SignedDuration::from_secs(60);

/// A mirrored object that a token may name: its uid and validity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityObject {
    /// The uid of the object.
    pub uid: Box<str>,
    /// The end of validity of a terminating object; None if the object is not terminating.
    pub valid_until: Option<Timestamp>,
}

impl IdentityObject {
    /// Whether the object is valid now and has this uid.
    pub fn is_valid(&self, uid: &str, now: Timestamp) -> bool {
        *self.uid == *uid && self.valid_until.is_none_or(|valid_until| now < valid_until)
    }
}

/// A mirrored Secret; apid sends data of token Secrets only. Contains secrets: `Debug` shows the type only.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret {
    /// The uid, and the end of validity if terminating.
    pub identity: IdentityObject,
    /// The revision of the Secret, which is its resourceVersion.
    pub revision: u64,
    /// Whether the Secret has a deletion timestamp.
    pub terminating: bool,
    /// The type of the Secret.
    pub kind: String,
    /// The mirrored data, decoded from base64.
    pub data: BTreeMap<String, Vec<u8>>,
    /// The mirrored labels and annotations in one map.
    pub annotations: BTreeMap<String, String>,
}

impl TokenSecret {
    /// Returns a value of the data as text; `""` if absent or not UTF-8.
    pub fn text(&self, key: &str) -> &str {
        self.data.get(key).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl std::fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenSecret").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// One change of a mirrored object: its key, and its new state; None if the object is deleted.
#[derive(Debug)]
pub(super) enum IdentityChange {
    Account(String, Option<IdentityObject>),
    Secret(String, Option<Arc<TokenSecret>>),
    Pod(String, Option<IdentityObject>),
    Node(String, Option<IdentityObject>),
    ConfigMap(String, Option<BTreeMap<String, String>>),
}

/// The mirrored objects, by kind and key. See the module.
#[derive(Debug, Default)]
pub struct Identities {
    accounts: HashMap<Box<str>, IdentityObject>,
    secrets: HashMap<Box<str>, Arc<TokenSecret>>,
    /// The few Secrets with mirrored data, labels or annotations: token Secrets, which the token controllers
    /// read.
    token_secrets: BTreeMap<Box<str>, Arc<TokenSecret>>,
    pods: HashMap<Box<str>, IdentityObject>,
    nodes: HashMap<Box<str>, IdentityObject>,
    config_maps: BTreeMap<Box<str>, BTreeMap<String, String>>,
}

/// Returns the map key `namespace/name`, which is unique: names and namespaces contain no slash.
fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

impl Identities {
    /// Returns a service account, which may be terminating.
    pub fn account(&self, namespace: &str, name: &str) -> Option<&IdentityObject> {
        self.accounts.get(key(namespace, name).as_str())
    }

    /// Returns a Secret; one that is not a token Secret has no mirrored data.
    pub fn secret(&self, namespace: &str, name: &str) -> Option<&Arc<TokenSecret>> {
        self.secrets.get(key(namespace, name).as_str())
    }

    /// Iterates over the token Secrets, as (namespace, name, Secret).
    pub fn secrets(&self) -> impl Iterator<Item = (&str, &str, &Arc<TokenSecret>)> {
        self.token_secrets.iter().filter_map(|(key, secret)| {
            let (namespace, name) = key.split_once('/')?;
            Some((namespace, name, secret))
        })
    }

    /// Returns a pod, which may be terminating.
    pub fn pod(&self, namespace: &str, name: &str) -> Option<&IdentityObject> {
        self.pods.get(key(namespace, name).as_str())
    }

    /// Returns a node, which may be terminating.
    pub fn node(&self, name: &str) -> Option<&IdentityObject> {
        self.nodes.get(key("", name).as_str())
    }

    /// Returns the data of a mirrored ConfigMap.
    pub fn config_map(&self, namespace: &str, name: &str) -> Option<&BTreeMap<String, String>> {
        self.config_maps.get(key(namespace, name).as_str())
    }

    pub(super) fn apply(&mut self, change: IdentityChange) {
        fn put(map: &mut HashMap<Box<str>, IdentityObject>, key: String, identity: Option<IdentityObject>) {
            match identity {
                Some(identity) => map.insert(key.into(), identity),
                None => map.remove(key.as_str()),
            };
        }
        match change {
            IdentityChange::Account(key, identity) => put(&mut self.accounts, key, identity),
            IdentityChange::Pod(key, identity) => put(&mut self.pods, key, identity),
            IdentityChange::Node(key, identity) => put(&mut self.nodes, key, identity),
            IdentityChange::Secret(key, Some(secret)) => {
                if secret.data.is_empty() && secret.annotations.is_empty() {
                    self.token_secrets.remove(key.as_str());
                } else {
                    self.token_secrets.insert(key.as_str().into(), Arc::clone(&secret));
                }
                self.secrets.insert(key.into(), secret);
            }
            IdentityChange::Secret(key, None) => {
                self.token_secrets.remove(key.as_str());
                self.secrets.remove(key.as_str());
            }
            IdentityChange::ConfigMap(key, Some(data)) => drop(self.config_maps.insert(key.into(), data)),
            IdentityChange::ConfigMap(key, None) => drop(self.config_maps.remove(key.as_str())),
        }
    }
}

/// Decodes a put or a deletion, at a revision, of an object that [`Identities`] keeps, or None for another kind.
pub(super) fn change(object: auth::MirrorObject, revision: u64, is_deletion: bool) -> Option<IdentityChange> {
    use mirror_object::Kind;
    let valid_until = match object.deleted_at_ms {
        // A terminating object without a deletion timestamp is invalid at once.
        0 => object.terminating.then_some(Timestamp::MIN),
        deleted_at => Timestamp::from_millisecond(deleted_at)
            .ok()
            .and_then(|deleted_at| deleted_at.checked_add(GRACE).ok())
            .or(Some(Timestamp::MIN)),
    };
    let key = key(&object.namespace, &object.name);
    let identity = IdentityObject { uid: object.uid.into(), valid_until };
    match object.kind? {
        Kind::ServiceAccount(_) => Some(IdentityChange::Account(key, (!is_deletion).then_some(identity))),
        Kind::Pod(_) => Some(IdentityChange::Pod(key, (!is_deletion).then_some(identity))),
        Kind::Node(_) => Some(IdentityChange::Node(key, (!is_deletion).then_some(identity))),
        Kind::Secret(secret) => {
            let token_secret = TokenSecret {
                identity,
                revision,
                terminating: object.terminating,
                kind: secret.r#type,
                data: secret.data,
                annotations: object.labels.into_iter().chain(object.annotations).collect(),
            };
            Some(IdentityChange::Secret(key, (!is_deletion).then(|| Arc::new(token_secret))))
        }
        Kind::ConfigMap(map) => Some(IdentityChange::ConfigMap(key, (!is_deletion).then_some(map.data))),
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
        let is_valid = |identities: &Identities, uid: &str, now| {
            identities.account("team", "robot").is_some_and(|identity| identity.is_valid(uid, at(now)))
        };
        assert!(!is_valid(&identities, "a", 0));
        identities.apply(change(account("a", 0), 1, false).unwrap());
        assert!(is_valid(&identities, "a", i64::from(u32::MAX)));
        assert!(!is_valid(&identities, "b", 0), "recreated with a new uid");
        identities.apply(change(account("a", 10_000), 1, false).unwrap());
        assert!(is_valid(&identities, "a", 69));
        assert!(!is_valid(&identities, "a", 70));
        identities.apply(change(account("a", 10_000), 1, true).unwrap());
        assert!(!is_valid(&identities, "a", 0));
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
        identities.apply(change(object, 1, false).unwrap());
        assert_eq!(identities.secret("team", "s").unwrap().text("token"), "hidden");
        assert_eq!(
            identities.secrets().map(|(namespace, name, _)| (namespace, name)).collect::<Vec<_>>(),
            [("team", "s")]
        );
        assert!(!format!("{identities:?}").contains("hidden"));
    }
}
