//! Decodes messages of the feed into changes of the mirror.
//!
//! # Invariants
//!
//! INVARIANT (grant nothing by mistake): a subject or selector of an unknown kind grants nothing. A message
//! without a kind ends the feed, because it could be the revocation of a right.

use apimachinery::attributes::{Operator, Requirement};
use apimachinery::names::Names;
use authproto::auth::{self, mirror_key, mirror_object};

use super::graph::GraphChange;
use super::identities::IdentityChange;
use super::{Contents, graph, identities};
use crate::rules::selector::Selector;
use crate::rules::{BindingSpec, Meta, PolicyRule, RoleKind, RoleSpec, Subject, SubjectKind};

/// A malformed message of the feed, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct MalformedUpdate(&'static str);

/// One change of the mirror.
#[derive(Debug)]
pub(super) enum Change {
    PutRole(RoleKind, String, String, RoleSpec),
    DeleteRole(RoleKind, String, String),
    PutBinding(String, String, BindingSpec),
    DeleteBinding(String, String),
    Identity(IdentityChange),
    /// A change of the graph; a pod changes identities too.
    Graph(GraphChange, Option<IdentityChange>),
    /// No change of an object: a new revision only, or an object that the mirror does not keep.
    Nothing,
}

impl Change {
    pub(super) fn is_cluster_role(&self) -> bool {
        matches!(
            self,
            Change::PutRole(RoleKind::ClusterRole, ..) | Change::DeleteRole(RoleKind::ClusterRole, ..)
        )
    }

    /// Whether an object changed that token controllers read.
    pub(super) fn concerns_token_controllers(&self) -> bool {
        use IdentityChange::{Account, ConfigMap, Secret};
        matches!(self, Change::Identity(Account(..) | Secret(..) | ConfigMap(..)))
    }

    pub(super) fn apply(self, contents: &mut Contents) {
        let policy = &mut contents.policy;
        match self {
            Change::Identity(change) => contents.identities.apply(change),
            Change::Graph(change, identity) => {
                contents.graph.apply(change);
                if let Some(identity) = identity {
                    contents.identities.apply(identity);
                }
            }
            Change::PutRole(kind, namespace, name, spec) => policy.put_role(kind, &namespace, &name, spec),
            Change::DeleteRole(kind, namespace, name) => policy.delete_role(kind, &namespace, &name),
            Change::PutBinding(namespace, name, spec) => policy.put_binding(&namespace, &name, spec),
            Change::DeleteBinding(namespace, name) => policy.delete_binding(&namespace, &name),
            Change::Nothing => (),
        }
    }
}

/// Decodes a put.
/// A binding to a role of unknown kind grants nothing, so it becomes a deletion of the binding.
pub(super) fn put(object: Option<auth::MirrorObject>, names: &Names) -> Result<Change, MalformedUpdate> {
    use mirror_object::Kind;
    let mut object = object.ok_or(MalformedUpdate("a put without an object"))?;
    if is_other_config_map(&object, names) {
        return Ok(Change::Nothing);
    }
    if let Some(change) = graph::put(&mut object) {
        return Ok(Change::Graph(change, identities::put(object)));
    }
    let is_policy_object = matches!(
        object.kind,
        Some(Kind::Role(_) | Kind::ClusterRole(_) | Kind::RoleBinding(_) | Kind::ClusterRoleBinding(_))
    );
    if object.kind.is_some() && !is_policy_object {
        return Ok(identities::put(object).map_or(Change::Nothing, Change::Identity));
    }
    let protected =
        object.annotations.get(&names.autoupdate_annotation()).is_some_and(|value| value == "false");
    let meta = Meta { labels: object.labels, protected };
    let (namespace, name) = (object.namespace, object.name);
    let change = match object.kind.ok_or(MalformedUpdate("an object without a kind"))? {
        Kind::ClusterRole(role) => {
            Change::PutRole(RoleKind::ClusterRole, String::new(), name, role_spec(meta, role))
        }
        Kind::Role(role) => {
            let meta = Meta { labels: std::collections::BTreeMap::new(), ..meta };
            Change::PutRole(RoleKind::Role, require_namespace(namespace)?, name, role_spec(meta, role))
        }
        Kind::ClusterRoleBinding(binding) => put_binding(String::new(), name, meta, binding),
        Kind::RoleBinding(binding) => put_binding(require_namespace(namespace)?, name, meta, binding),
        _ => Change::Nothing,
    };
    Ok(change)
}

/// Whether the object is a ConfigMap other than `cluster-info`; the mirror ignores such a ConfigMap.
fn is_other_config_map(object: &auth::MirrorObject, names: &Names) -> bool {
    matches!(object.kind, Some(mirror_object::Kind::ConfigMap(_)))
        && !(object.namespace == names.public_namespace && object.name == "cluster-info")
}

/// Decodes a deletion.
pub(super) fn delete(key: Option<auth::MirrorKey>) -> Result<Change, MalformedUpdate> {
    use mirror_key::Kind;
    let kind = key.and_then(|key| key.kind).ok_or(MalformedUpdate("a deletion without a key"))?;
    let identity = identities::delete(&kind);
    if let Some(change) = graph::delete(&kind) {
        return Ok(Change::Graph(change, identity));
    }
    if let Some(change) = identity {
        return Ok(Change::Identity(change));
    }
    let change = match kind {
        Kind::ClusterRole(key) => Change::DeleteRole(RoleKind::ClusterRole, String::new(), key.name),
        Kind::Role(key) => Change::DeleteRole(RoleKind::Role, require_namespace(key.namespace)?, key.name),
        Kind::ClusterRoleBinding(key) => Change::DeleteBinding(String::new(), key.name),
        Kind::RoleBinding(key) => Change::DeleteBinding(require_namespace(key.namespace)?, key.name),
        _ => Change::Nothing,
    };
    Ok(change)
}

/// Rejects an empty namespace, because a Role or RoleBinding without one would grant in the whole cluster.
fn require_namespace(namespace: String) -> Result<String, MalformedUpdate> {
    if namespace.is_empty() {
        Err(MalformedUpdate("a Role or RoleBinding without a namespace"))
    } else {
        Ok(namespace)
    }
}

fn role_spec(meta: Meta, role: auth::MirrorRole) -> RoleSpec {
    let aggregates = role.aggregates || !role.aggregation.is_empty();
    RoleSpec {
        meta,
        rules: role.rules.iter().map(PolicyRule::from).collect(),
        aggregation: aggregates.then(|| role.aggregation.into_iter().map(decode_selector).collect()),
    }
}

fn put_binding(namespace: String, name: String, meta: Meta, binding: auth::MirrorBinding) -> Change {
    let Some(role_kind) = RoleKind::parse(&binding.role_kind) else {
        return Change::DeleteBinding(namespace, name);
    };
    let subjects = binding.subjects.into_iter().filter_map(|subject| {
        let kind = SubjectKind::parse(&subject.kind)?;
        Some(Subject { kind, name: subject.name.into(), namespace: subject.namespace.into() })
    });
    let spec = BindingSpec { meta, role_kind, role_name: binding.role_name, subjects: subjects.collect() };
    Change::PutBinding(namespace, name, spec)
}

fn decode_selector(selector: auth::LabelSelector) -> Selector {
    let mut decoded = Selector { match_labels: selector.match_labels, ..Selector::default() };
    for expression in selector.match_expressions {
        match Operator::parse(&expression.operator) {
            None => decoded.invalid = true,
            Some(operator) => {
                let requirement = Requirement { key: expression.key, operator, values: expression.values };
                decoded.match_expressions.push(requirement);
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use mirror_object::Kind;

    fn object(namespace: &str, kind: Kind) -> Option<auth::MirrorObject> {
        let annotations =
            [("rbac.authorization.kubernetes.io/autoupdate".to_owned(), "false".to_owned())].into();
        Some(auth::MirrorObject {
            namespace: namespace.into(),
            name: "x".into(),
            annotations,
            kind: Some(kind),
            ..auth::MirrorObject::default()
        })
    }

    fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    #[test]
    fn config_map_other_than_cluster_info_is_ignored() {
        for (namespace, name, is_kept) in
            [("kube-public", "cluster-info", true), ("kube-public", "x", false), ("a", "cluster-info", false)]
        {
            let mut map = object(namespace, Kind::ConfigMap(auth::MirrorConfigMap::default())).unwrap();
            map.name = name.to_owned();
            let change = put(Some(map), &names()).unwrap();
            assert_eq!(matches!(change, Change::Identity(_)), is_kept, "{namespace}/{name}");
            assert_eq!(matches!(change, Change::Nothing), !is_kept, "{namespace}/{name}");
        }
    }

    #[test]
    fn namespaced_object_without_namespace_is_malformed() {
        let role = || Kind::Role(auth::MirrorRole::default());
        let binding =
            || Kind::RoleBinding(auth::MirrorBinding { role_kind: "Role".into(), ..Default::default() });
        for kind in [role, binding] {
            assert!(put(object("", kind()), &names()).is_err());
            assert!(put(object("a", kind()), &names()).is_ok());
        }
        let key = |kind| Some(auth::MirrorKey { kind: Some(kind) });
        let object_name = || auth::Named { namespace: String::new(), name: "x".into() };
        assert!(delete(key(mirror_key::Kind::Role(object_name()))).is_err());
        assert!(delete(key(mirror_key::Kind::RoleBinding(object_name()))).is_err());
        assert!(delete(key(mirror_key::Kind::ClusterRole(object_name()))).is_ok());
    }

    #[test]
    fn unknown_subject_or_role_kind_grants_nothing() {
        let subjects = [("User", "alice"), ("Robot", "alice"), ("Group", "g")];
        let subjects = subjects.map(|(kind, name)| auth::Subject {
            kind: kind.into(),
            name: name.into(),
            ..Default::default()
        });
        let binding = |role_kind: &str| {
            let binding = auth::MirrorBinding {
                role_kind: role_kind.into(),
                role_name: "r".into(),
                subjects: subjects.to_vec(),
            };
            put(object("a", Kind::RoleBinding(binding)), &names()).unwrap()
        };
        match binding("Role") {
            Change::PutBinding(namespace, name, spec) => {
                assert_eq!((namespace.as_str(), name.as_str(), spec.subjects.len()), ("a", "x", 2));
                assert!(spec.meta.protected);
            }
            other => panic!("{other:?}"),
        }
        assert!(
            matches!(binding("Robot"), Change::DeleteBinding(..)),
            "also if it replaces a granting binding"
        );
        let expression =
            auth::SelectorRequirement { key: "k".into(), operator: "Newer".into(), values: Vec::new() };
        let selector = auth::LabelSelector { match_expressions: vec![expression], ..Default::default() };
        let role = auth::MirrorRole { aggregation: vec![selector], ..Default::default() };
        match put(object("", Kind::ClusterRole(role)), &names()).unwrap() {
            Change::PutRole(_, _, _, spec) => assert!(spec.aggregation.unwrap()[0].invalid),
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            put(object("", Kind::Node(auth::MirrorNode {})), &names()),
            Ok(Change::Identity(_))
        ));
    }
}
