//! Stored objects reduced to what decides: the form in which authd mirrors them.
//!
//! # Contract
//!
//! A [`Reductions`] table says for each storage key whether the object under it decides anything, in which component of
//! the policy vector, and what of it. Two versions of an object with equal reductions decide alike: a write that leaves
//! the reduction as it was is no policy write.
//!
//! # Invariants
//!
//! INVARIANT (unreadable narrows): stored bytes that are not an object of their kind reduce to nothing, as if the object
//! were deleted. Roles and bindings only grant, so that this can only take rights away.

use std::collections::BTreeMap;

use apimachinery::names::Names;
use authproto::auth::{
    LabelSelector, MirrorBinding, MirrorConfigMap, MirrorKey, MirrorNode, MirrorObject, MirrorPod,
    MirrorRole, MirrorSecret, MirrorServiceAccount, Named, PolicyRule, SelectorRequirement, Subject,
    mirror_key, mirror_object,
};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kinds::Registry;
use serde::Deserialize;
use serde_json::Value;

/// What kind of mirrored object a key holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mirrored {
    /// Role
    Role,
    /// ClusterRole
    ClusterRole,
    /// RoleBinding
    RoleBinding,
    /// ClusterRoleBinding
    ClusterRoleBinding,
    /// ServiceAccount
    ServiceAccount,
    /// Secret, with its data when it holds a token
    Secret,
    /// Pod
    Pod,
    /// Node
    Node,
    /// ConfigMap, `cluster-info` alone
    ConfigMap,
}

/// Which component of the policy vector a write of the kind advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Component {
    /// `rbac`, the cluster's part
    RbacCluster,
    /// `rbac`, the part of the object's namespace
    RbacNamespace,
    /// `identity`
    Identity,
}

/// One mirrored kind.
#[derive(Debug)]
pub(super) struct Reduction {
    /// Prefix of its storage keys.
    pub(super) prefix: String,
    /// What it is.
    pub(super) kind: Mirrored,
    /// What a write of it advances.
    pub(super) component: Component,
    /// Full group name, for identities that rest on such an object.
    pub(super) group: String,
    /// Lower-case plural.
    pub(super) resource: &'static str,
    namespaced: bool,
    /// The one key that is mirrored; None: all with the prefix.
    only: Option<String>,
}

/// The mirrored kinds: group stem, resource, what it is, what it advances.
const TABLE: &[(&str, &str, Mirrored, Component)] = &[
    ("rbac.authorization", "clusterroles", Mirrored::ClusterRole, Component::RbacCluster),
    ("rbac.authorization", "clusterrolebindings", Mirrored::ClusterRoleBinding, Component::RbacCluster),
    ("rbac.authorization", "roles", Mirrored::Role, Component::RbacNamespace),
    ("rbac.authorization", "rolebindings", Mirrored::RoleBinding, Component::RbacNamespace),
    ("", "serviceaccounts", Mirrored::ServiceAccount, Component::Identity),
    ("", "secrets", Mirrored::Secret, Component::Identity),
    ("", "pods", Mirrored::Pod, Component::Identity),
    ("", "nodes", Mirrored::Node, Component::Identity),
    ("", "configmaps", Mirrored::ConfigMap, Component::Identity),
];

/// The table of mirrored kinds under a names preset.
#[derive(Debug)]
pub struct Reductions {
    entries: Vec<Reduction>,
    autoupdate: String,
    bootstrapping: String,
    /// The types of Secrets that hold tokens.
    token_types: [String; 2],
    account_name: String,
    account_uid: String,
    legacy_labels: [String; 2],
}

impl Reductions {
    /// The kinds of the registry that decide something.
    pub fn new(registry: &Registry, names: &Names) -> Self {
        let entry = |&(stem, resource, kind, component): &(&str, &'static str, Mirrored, Component)| {
            let group = names.group(stem);
            let found = registry
                .resources()
                .iter()
                .find(|r| r.group_resource.group == group && r.group_resource.resource == resource)?;
            Some(Reduction {
                prefix: found.key_prefix.clone(),
                kind,
                component,
                group,
                resource,
                namespaced: found.kind.namespaced,
                only: (kind == Mirrored::ConfigMap)
                    .then(|| found.key(names.public_namespace, "cluster-info")),
            })
        };
        Reductions::of(TABLE.iter().filter_map(entry).collect(), names)
    }

    fn of(entries: Vec<Reduction>, names: &Names) -> Self {
        Reductions {
            entries,
            autoupdate: names.autoupdate_annotation(),
            bootstrapping: names.bootstrapping_label(),
            token_types: [
                names.label_key("service-account-token"),
                names.label_sub_key("bootstrap", "token"),
            ],
            account_name: names.label_key("service-account.name"),
            account_uid: names.label_key("service-account.uid"),
            legacy_labels: [
                names.label_key("legacy-token-last-used"),
                names.label_key("legacy-token-invalid-since"),
            ],
        }
    }

    /// All mirrored kinds, in the order of a snapshot.
    pub(super) fn entries(&self) -> &[Reduction] {
        &self.entries
    }

    /// The mirrored kind of a key. None: the object decides nothing.
    pub(super) fn of_key(&self, key: &str) -> Option<&Reduction> {
        self.entries
            .iter()
            .find(|entry| key.starts_with(&entry.prefix))
            .filter(|entry| entry.only.as_ref().is_none_or(|only| only == key))
    }

    /// Whether changes of such objects are seen.
    pub(super) fn mirrors(&self, group: &str, resource: &str) -> bool {
        self.entries.iter().any(|entry| entry.group == group && entry.resource == resource)
    }

    /// What of the object decides. None when the bytes are not an object of the kind, or it decides nothing.
    pub(super) fn reduce(&self, entry: &Reduction, value: &[u8]) -> Option<MirrorObject> {
        let stored: Stored = serde_json::from_slice(value).ok()?;
        let meta = stored.metadata;
        let labels = match entry.kind {
            Mirrored::ClusterRole => meta.labels.unwrap_or_default(),
            Mirrored::ServiceAccount | Mirrored::Pod | Mirrored::Node | Mirrored::ConfigMap => {
                BTreeMap::new()
            }
            Mirrored::Secret => these(meta.labels, &self.legacy_labels),
            _ => only(meta.labels, &self.bootstrapping),
        };
        let annotations = match entry.kind {
            Mirrored::ServiceAccount | Mirrored::Pod | Mirrored::Node | Mirrored::ConfigMap => {
                BTreeMap::new()
            }
            Mirrored::Secret => these(meta.annotations, [&self.account_name, &self.account_uid]),
            _ => only(meta.annotations, &self.autoupdate),
        };
        let role = |rules: Option<Vec<Rule>>, aggregation: Option<Aggregation>| MirrorRole {
            rules: rules.unwrap_or_default().into_iter().map(Rule::into_wire).collect(),
            aggregates: aggregation.is_some(),
            aggregation: aggregation
                .and_then(|a| a.cluster_role_selectors)
                .unwrap_or_default()
                .into_iter()
                .map(Selector::into_wire)
                .collect(),
        };
        let binding = |role_ref: Option<RoleRef>, subjects: Option<Vec<StoredSubject>>| {
            let role_ref = role_ref.unwrap_or_default();
            MirrorBinding {
                role_kind: role_ref.kind,
                role_name: role_ref.name,
                subjects: subjects.unwrap_or_default().into_iter().map(StoredSubject::into_wire).collect(),
            }
        };
        use mirror_object::Kind;
        let kind = match entry.kind {
            Mirrored::Role => Kind::Role(role(stored.rules, None)),
            Mirrored::ClusterRole => Kind::ClusterRole(role(stored.rules, stored.aggregation_rule)),
            Mirrored::RoleBinding => Kind::RoleBinding(binding(stored.role_ref, stored.subjects)),
            Mirrored::ClusterRoleBinding => {
                Kind::ClusterRoleBinding(binding(stored.role_ref, stored.subjects))
            }
            Mirrored::ServiceAccount => Kind::ServiceAccount(MirrorServiceAccount {}),
            Mirrored::Secret => {
                let kind = stored.kind_of_secret.unwrap_or_default();
                // Tokens may be bound to any Secret: of the others the uid alone matters.
                let holds_a_token = self.token_types.contains(&kind);
                let decoded = |(key, value): (String, Value)| {
                    let bytes = STANDARD.decode(value.as_str()?).ok()?;
                    Some((key, bytes))
                };
                let data = stored.data.filter(|_| holds_a_token).unwrap_or_default();
                let data = data.into_iter().filter_map(decoded).collect();
                Kind::Secret(MirrorSecret { r#type: kind, data })
            }
            Mirrored::Pod => {
                let spec = stored.spec.unwrap_or_default();
                Kind::Pod(MirrorPod { node_name: spec.node_name.unwrap_or_default(), ..MirrorPod::default() })
            }
            Mirrored::Node => Kind::Node(MirrorNode {}),
            Mirrored::ConfigMap => {
                let text = |(key, value): (String, Value)| Some((key, value.as_str()?.to_owned()));
                let data = stored.data.unwrap_or_default().into_iter().filter_map(text).collect();
                Kind::ConfigMap(MirrorConfigMap { data })
            }
        };
        let deleted_at_ms = meta
            .deletion_timestamp
            .as_deref()
            .and_then(|text| text.parse::<jiff::Timestamp>().ok())
            .map_or(0, |at| at.as_millisecond());
        Some(MirrorObject {
            namespace: meta.namespace,
            name: meta.name,
            uid: meta.uid,
            labels,
            annotations,
            terminating: meta.deletion_timestamp.is_some(),
            deleted_at_ms,
            kind: Some(kind),
        })
    }
}

impl Reduction {
    /// Namespace (`""` for cluster-scoped kinds) and name of the object under a key.
    pub(super) fn locate<'k>(&self, key: &'k str) -> (&'k str, &'k str) {
        let rest = key.strip_prefix(self.prefix.as_str()).unwrap_or(key);
        if self.namespaced { rest.split_once('/').unwrap_or(("", rest)) } else { ("", rest) }
    }

    /// The mirror's key of the object under a storage key.
    pub(super) fn mirror_key(&self, key: &str) -> MirrorKey {
        let (namespace, name) = self.locate(key);
        let named = Named { namespace: namespace.to_owned(), name: name.to_owned() };
        let kind = match self.kind {
            Mirrored::Role => mirror_key::Kind::Role(named),
            Mirrored::ClusterRole => mirror_key::Kind::ClusterRole(named),
            Mirrored::RoleBinding => mirror_key::Kind::RoleBinding(named),
            Mirrored::ClusterRoleBinding => mirror_key::Kind::ClusterRoleBinding(named),
            Mirrored::ServiceAccount => mirror_key::Kind::ServiceAccount(named),
            Mirrored::Secret => mirror_key::Kind::Secret(named),
            Mirrored::Pod => mirror_key::Kind::Pod(named),
            Mirrored::Node => mirror_key::Kind::Node(named),
            Mirrored::ConfigMap => mirror_key::Kind::ConfigMap(named),
        };
        MirrorKey { kind: Some(kind) }
    }
}

/// The one entry of a map that decides.
fn only(map: Option<BTreeMap<String, String>>, key: &str) -> BTreeMap<String, String> {
    map.and_then(|mut m| m.remove_entry(key)).into_iter().collect()
}

/// The entries of a map that decide.
fn these<K: AsRef<str>>(
    map: Option<BTreeMap<String, String>>,
    keys: impl IntoIterator<Item = K>,
) -> BTreeMap<String, String> {
    let mut map = map.unwrap_or_default();
    keys.into_iter().filter_map(|key| map.remove_entry(key.as_ref())).collect()
}

/// The fields of all mirrored kinds; what a kind does not have is absent.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    metadata: Meta,
    rules: Option<Vec<Rule>>,
    aggregation_rule: Option<Aggregation>,
    role_ref: Option<RoleRef>,
    subjects: Option<Vec<StoredSubject>>,
    #[serde(rename = "type")]
    kind_of_secret: Option<String>,
    data: Option<BTreeMap<String, Value>>,
    spec: Option<PodSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta {
    #[serde(default)]
    namespace: String,
    name: String,
    #[serde(default)]
    uid: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    deletion_timestamp: Option<String>,
}

/// A policy rule as it is stored; a list may be absent or null.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rule {
    verbs: Option<Vec<String>>,
    api_groups: Option<Vec<String>>,
    resources: Option<Vec<String>>,
    resource_names: Option<Vec<String>>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Option<Vec<String>>,
}

impl Rule {
    /// The rule as the wire carries it.
    pub(super) fn into_wire(self) -> PolicyRule {
        PolicyRule {
            verbs: self.verbs.unwrap_or_default(),
            api_groups: self.api_groups.unwrap_or_default(),
            resources: self.resources.unwrap_or_default(),
            resource_names: self.resource_names.unwrap_or_default(),
            non_resource_urls: self.non_resource_urls.unwrap_or_default(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Aggregation {
    cluster_role_selectors: Option<Vec<Selector>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Selector {
    match_labels: Option<BTreeMap<String, String>>,
    match_expressions: Option<Vec<Expression>>,
}

impl Selector {
    fn into_wire(self) -> LabelSelector {
        LabelSelector {
            match_labels: self.match_labels.unwrap_or_default(),
            match_expressions: self
                .match_expressions
                .unwrap_or_default()
                .into_iter()
                .map(|e| SelectorRequirement {
                    key: e.key,
                    operator: e.operator,
                    values: e.values.unwrap_or_default(),
                })
                .collect(),
        }
    }
}

#[derive(Deserialize)]
struct Expression {
    #[serde(default)]
    key: String,
    #[serde(default)]
    operator: String,
    values: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
struct RoleRef {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSubject {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_group: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: String,
}

impl StoredSubject {
    fn into_wire(self) -> Subject {
        Subject { kind: self.kind, api_group: self.api_group, name: self.name, namespace: self.namespace }
    }
}

#[cfg(test)]
impl Reductions {
    /// The table with fixed prefixes, for tests that need no registry.
    pub(super) fn for_tests() -> Self {
        let names =
            Names::new(apimachinery::names::Preset::Svc, apimachinery::names::DEFAULT_API_DOMAIN).unwrap();
        let entries = TABLE
            .iter()
            .map(|&(stem, resource, kind, component)| Reduction {
                prefix: format!("{resource}/"),
                kind,
                component,
                group: names.group(stem),
                resource,
                namespaced: !resource.starts_with("cluster") && resource != "nodes",
                only: (kind == Mirrored::ConfigMap).then(|| "configmaps/svc-public/cluster-info".to_owned()),
            })
            .collect();
        Reductions::of(entries, &names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reduce(key: &str, value: &serde_json::Value) -> Option<MirrorObject> {
        let table = Reductions::for_tests();
        let entry = table.of_key(key).unwrap();
        table.reduce(entry, value.to_string().as_bytes())
    }

    #[test]
    fn what_decides_changes_the_reduction_and_nothing_else_does() {
        let base = json!({"metadata": {"name": "r", "namespace": "a", "uid": "1"}, "rules": [{"verbs": ["get"], "apiGroups": [""]}]});
        let reduced = reduce("roles/a/r", &base).unwrap();
        let changed = |pointer: &str, value: serde_json::Value| {
            let mut other = base.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            other.pointer_mut(parent).unwrap()[field] = value;
            reduce("roles/a/r", &other).unwrap()
        };
        for (pointer, value) in [
            ("/rules", json!([])),
            ("/rules/0/verbs", json!(["list"])),
            ("/rules/0/resourceNames", json!(["x"])),
            ("/rules/0/nonResourceURLs", json!(["/x"])),
            ("/metadata/uid", json!("2")),
            ("/metadata/deletionTimestamp", json!("2026-01-01T00:00:00Z")),
            ("/metadata/annotations", json!({"rbac.authorization.svc.internal/autoupdate": "false"})),
        ] {
            assert_ne!(changed(pointer, value), reduced, "{pointer} decides");
        }
        for (pointer, value) in [
            ("/metadata/labels", json!({"team": "x"})),
            ("/metadata/annotations", json!({"note": "x"})),
            ("/metadata/managedFields", json!([{"manager": "m"}])),
            ("/rules/0/resourceNames", json!(null)),
        ] {
            assert_eq!(changed(pointer, value), reduced, "{pointer} does not decide");
        }
    }

    #[test]
    fn labels_of_cluster_roles_decide_because_any_selector_may_aggregate_them() {
        let plain = json!({"metadata": {"name": "r"}, "rules": null});
        let labelled = json!({"metadata": {"name": "r", "labels": {"team": "x"}}, "rules": []});
        assert_ne!(reduce("clusterroles/r", &plain), reduce("clusterroles/r", &labelled));
    }

    #[test]
    fn an_empty_aggregation_rule_is_not_an_absent_one() {
        let with =
            reduce("clusterroles/r", &json!({"metadata": {"name": "r"}, "aggregationRule": {}})).unwrap();
        let without = reduce("clusterroles/r", &json!({"metadata": {"name": "r"}})).unwrap();
        assert_ne!(with, without);
    }

    #[test]
    fn bytes_of_another_shape_reduce_to_nothing() {
        for bad in [
            json!([]),
            json!({}),
            json!({"metadata": {"name": 5}}),
            json!({"metadata": {"name": "r"}, "rules": {}}),
        ] {
            assert_eq!(reduce("roles/a/r", &bad), None, "{bad}");
        }
        assert!(Reductions::for_tests().of_key("configmaps/a/x").is_none());
    }

    #[test]
    fn keys_name_their_object() {
        let table = Reductions::for_tests();
        for (key, expected) in [("roles/a/r:1", ("a", "r:1")), ("clusterroles/system:x", ("", "system:x"))] {
            assert_eq!(table.of_key(key).unwrap().locate(key), expected);
        }
    }

    #[test]
    fn of_secrets_that_hold_no_token_only_the_uid_is_mirrored() {
        use mirror_object::Kind;
        let secret = |kind: &str| {
            json!({
                "metadata": {"namespace": "a", "name": "s", "uid": "u", "labels": {"x": "y"},
                    "annotations": {"svc.internal/service-account.name": "robot", "other": "z"}},
                "type": kind, "data": {"token": "aGlkZGVu", "bad": "!"},
            })
        };
        for kind in ["Opaque", "svc.internal/dockerconfigjson", ""] {
            let reduced = reduce("secrets/a/s", &secret(kind)).unwrap();
            assert_eq!(reduced.uid, "u");
            assert!(matches!(reduced.kind, Some(Kind::Secret(secret)) if secret.data.is_empty()), "{kind}");
        }
        for kind in ["svc.internal/service-account-token", "bootstrap.svc.internal/token"] {
            let reduced = reduce("secrets/a/s", &secret(kind)).unwrap();
            assert_eq!(reduced.annotations.keys().collect::<Vec<_>>(), ["svc.internal/service-account.name"]);
            assert!(reduced.labels.is_empty());
            let Some(Kind::Secret(secret)) = reduced.kind else { panic!("no Secret") };
            assert_eq!(
                secret.data.into_iter().collect::<Vec<_>>(),
                [("token".to_owned(), b"hidden".to_vec())]
            );
        }
    }

    #[test]
    fn a_pod_is_its_uid_its_node_and_when_it_ends() {
        let pod = |phase: &str, deleted: Option<&str>| {
            json!({
                "metadata": {"namespace": "a", "name": "p", "uid": "u", "deletionTimestamp": deleted},
                "spec": {"nodeName": "n", "containers": [{"name": "c"}]}, "status": {"phase": phase},
            })
        };
        let running = reduce("pods/a/p", &pod("Running", None)).unwrap();
        assert_eq!(
            Some(&running),
            reduce("pods/a/p", &pod("Pending", None)).as_ref(),
            "a status write is none of policy"
        );
        let ending = reduce("pods/a/p", &pod("Running", Some("1970-01-01T00:00:10Z"))).unwrap();
        assert_eq!((ending.terminating, ending.deleted_at_ms), (true, 10_000));
        assert_eq!((running.terminating, running.deleted_at_ms), (false, 0));
        assert!(matches!(running.kind, Some(mirror_object::Kind::Pod(pod)) if pod.node_name == "n"));
    }

    #[test]
    fn of_the_config_maps_the_one_that_is_signed_is_mirrored() {
        let table = Reductions::for_tests();
        assert!(table.of_key("configmaps/svc-public/cluster-info").is_some());
        for key in [
            "configmaps/svc-public/other",
            "configmaps/a/cluster-info",
            "configmaps/svc-public/cluster-info2",
        ] {
            assert!(table.of_key(key).is_none(), "{key}");
        }
    }
}
