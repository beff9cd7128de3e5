//! Decodes messages of the feed into changes of the mirror.
//!
//! # Invariants
//!
//! INVARIANT (grant nothing by mistake): a subject or selector of an unknown kind grants nothing. A message
//! without a kind ends the feed, because it could be the revocation of a right.

use std::collections::BTreeMap;

use apimachinery::attributes::{Operator, Requirement};
use apimachinery::names::Names;
use authproto::auth::{self, mirror_object};

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
    /// The kind, namespace and name of a role, and its contents unless the role is deleted.
    Role(RoleKind, String, String, Option<RoleSpec>),
    /// The namespace and name of a binding, and its contents unless the binding grants nothing.
    Binding(String, String, Option<BindingSpec>),
    Identity(IdentityChange),
    /// A change of the graph; a pod changes identities too.
    Graph(GraphChange, Option<IdentityChange>),
    /// No change of an object: a new revision only, or an object that the mirror does not keep.
    Nothing,
}

impl Change {
    pub(super) fn is_cluster_role(&self) -> bool {
        matches!(self, Change::Role(RoleKind::ClusterRole, ..))
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
            Change::Role(kind, namespace, name, Some(spec)) => policy.put_role(kind, &namespace, &name, spec),
            Change::Role(kind, namespace, name, None) => policy.delete_role(kind, &namespace, &name),
            Change::Binding(namespace, name, Some(spec)) => policy.put_binding(&namespace, &name, spec),
            Change::Binding(namespace, name, None) => policy.delete_binding(&namespace, &name),
            Change::Nothing => (),
        }
    }
}

/// Decodes a put or a deletion at a revision.
/// A binding to a role of unknown kind grants nothing, so its put has the effect of a deletion.
pub(super) fn change(
    object: Option<auth::MirrorObject>,
    revision: u64,
    is_deletion: bool,
    names: &Names,
) -> Result<Change, MalformedUpdate> {
    use mirror_object::Kind;
    let mut object = object.ok_or(MalformedUpdate("an update without an object"))?;
    if is_other_config_map(&object, names) {
        return Ok(Change::Nothing);
    }
    if let Some(change) = graph::change(&mut object, is_deletion) {
        return Ok(Change::Graph(change, identities::change(object, revision, is_deletion)));
    }
    let protected =
        object.annotations.get(&names.autoupdate_annotation()).is_some_and(|value| value == "false");
    let labels = std::mem::take(&mut object.labels);
    let (namespace, name) = (object.namespace.clone(), object.name.clone());
    let role_change = |kind, namespace, labels, role| {
        let spec = (!is_deletion).then(|| role_spec(Meta { labels, protected, revision }, role));
        Change::Role(kind, namespace, name.clone(), spec)
    };
    let binding_change = |namespace, labels, binding| {
        let spec = binding_spec(Meta { labels, protected, revision }, binding).filter(|_| !is_deletion);
        Change::Binding(namespace, name.clone(), spec)
    };
    match object.kind.take().ok_or(MalformedUpdate("an object without a kind"))? {
        Kind::ClusterRole(role) => Ok(role_change(RoleKind::ClusterRole, String::new(), labels, role)),
        Kind::Role(role) => {
            Ok(role_change(RoleKind::Role, require_namespace(namespace)?, BTreeMap::new(), role))
        }
        Kind::ClusterRoleBinding(binding) => Ok(binding_change(String::new(), labels, binding)),
        Kind::RoleBinding(binding) => Ok(binding_change(require_namespace(namespace)?, labels, binding)),
        kind => {
            let object = auth::MirrorObject { labels, kind: Some(kind), ..object };
            Ok(identities::change(object, revision, is_deletion).map_or(Change::Nothing, Change::Identity))
        }
    }
}

/// Whether the object is a ConfigMap other than `cluster-info`; the mirror ignores such a ConfigMap.
fn is_other_config_map(object: &auth::MirrorObject, names: &Names) -> bool {
    matches!(object.kind, Some(mirror_object::Kind::ConfigMap(_)))
        && !(object.namespace == names.public_namespace && object.name == "cluster-info")
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

/// Returns None if the binding refers to a role of unknown kind.
fn binding_spec(meta: Meta, binding: auth::MirrorBinding) -> Option<BindingSpec> {
    let role_kind = RoleKind::parse(&binding.role_kind)?;
    let subjects = binding.subjects.into_iter().filter_map(|subject| {
        let kind = SubjectKind::parse(&subject.kind)?;
        Some(Subject { kind, name: subject.name.into(), namespace: subject.namespace.into() })
    });
    Some(BindingSpec { meta, role_kind, role_name: binding.role_name, subjects: subjects.collect() })
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
            let change = change(Some(map), 1, false, &names()).unwrap();
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
            for is_deletion in [false, true] {
                assert!(change(object("", kind()), 1, is_deletion, &names()).is_err());
                assert!(change(object("a", kind()), 1, is_deletion, &names()).is_ok());
            }
        }
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
            change(object("a", Kind::RoleBinding(binding)), 1, false, &names()).unwrap()
        };
        match binding("Role") {
            Change::Binding(namespace, name, Some(spec)) => {
                assert_eq!((namespace.as_str(), name.as_str(), spec.subjects.len()), ("a", "x", 2));
                assert!(spec.meta.protected);
            }
            other => panic!("{other:?}"),
        }
        assert!(
            matches!(binding("Robot"), Change::Binding(_, _, None)),
            "also if it replaces a granting binding"
        );
        let expression =
            auth::SelectorRequirement { key: "k".into(), operator: "Newer".into(), values: Vec::new() };
        let selector = auth::LabelSelector { match_expressions: vec![expression], ..Default::default() };
        let role = auth::MirrorRole { aggregation: vec![selector], ..Default::default() };
        match change(object("", Kind::ClusterRole(role)), 1, false, &names()).unwrap() {
            Change::Role(_, _, _, Some(spec)) => assert!(spec.aggregation.unwrap()[0].invalid),
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            change(object("", Kind::Node(auth::MirrorNode {})), 1, false, &names()),
            Ok(Change::Identity(_))
        ));
    }
}
