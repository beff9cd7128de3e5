//! The reductions of roles and bindings: all rules, selectors and subjects.

use authproto::auth::{
    LabelSelector, MirrorBinding, MirrorObject, MirrorRole, PolicyRule, SelectorRequirement, Subject,
    mirror_object::Kind,
};
use serde::Deserialize;

use super::PolicyNames;
use super::meta::{Meta, StringMap, select_entries};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Role<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    rules: Option<Vec<Rule>>,
    aggregation_rule: Option<Aggregation>,
}

/// Reduces a ClusterRole. The reduction contains all labels, because any aggregation selector may match them.
pub(super) fn cluster_role(bytes: &[u8], policy_names: &PolicyNames) -> Option<MirrorObject> {
    let Role { metadata, rules, aggregation_rule } = serde_json::from_slice(bytes).ok()?;
    let role = MirrorRole {
        rules: rules.unwrap_or_default().into_iter().map(Rule::into_wire).collect(),
        aggregates: aggregation_rule.is_some(),
        aggregation: aggregation_rule
            .and_then(|rule| rule.cluster_role_selectors)
            .unwrap_or_default()
            .into_iter()
            .map(Selector::into_wire)
            .collect(),
    };
    let labels = metadata.labels()?;
    let annotations = select_entries(metadata.annotations()?, [&policy_names.autoupdate]);
    Some(metadata.object(labels, annotations, Kind::ClusterRole(role)))
}

/// Reduces a Role.
pub(super) fn role(bytes: &[u8], policy_names: &PolicyNames) -> Option<MirrorObject> {
    let Role { metadata, rules, .. } = serde_json::from_slice(bytes).ok()?;
    let rules = rules.unwrap_or_default().into_iter().map(Rule::into_wire).collect();
    policy_object(metadata, Kind::Role(MirrorRole { rules, ..MirrorRole::default() }), policy_names)
}

/// Builds the reduction of an object with the label and the annotation of default policy.
fn policy_object(metadata: Meta<'_>, kind: Kind, policy_names: &PolicyNames) -> Option<MirrorObject> {
    let labels = select_entries(metadata.labels()?, [&policy_names.bootstrapping]);
    let annotations = select_entries(metadata.annotations()?, [&policy_names.autoupdate]);
    Some(metadata.object(labels, annotations, kind))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Binding<'a> {
    #[serde(borrow)]
    metadata: Meta<'a>,
    role_ref: Option<RoleRef>,
    subjects: Option<Vec<StoredSubject>>,
}

/// Reduces a ClusterRoleBinding.
pub(super) fn cluster_role_binding(bytes: &[u8], policy_names: &PolicyNames) -> Option<MirrorObject> {
    binding(bytes, Kind::ClusterRoleBinding, policy_names)
}

/// Reduces a RoleBinding.
pub(super) fn role_binding(bytes: &[u8], policy_names: &PolicyNames) -> Option<MirrorObject> {
    binding(bytes, Kind::RoleBinding, policy_names)
}

fn binding(
    bytes: &[u8],
    kind: fn(MirrorBinding) -> Kind,
    policy_names: &PolicyNames,
) -> Option<MirrorObject> {
    let Binding { metadata, role_ref, subjects } = serde_json::from_slice(bytes).ok()?;
    let role_ref = role_ref.unwrap_or_default();
    let binding = MirrorBinding {
        role_kind: role_ref.kind,
        role_name: role_ref.name,
        subjects: subjects.unwrap_or_default().into_iter().map(StoredSubject::into_wire).collect(),
    };
    policy_object(metadata, kind(binding), policy_names)
}

/// A stored policy rule; a list may be absent or null.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rule {
    verbs: Option<Vec<String>>,
    api_groups: Option<Vec<String>>,
    resources: Option<Vec<String>>,
    resource_names: Option<Vec<String>>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Option<Vec<String>>,
}

impl Rule {
    /// Converts the rule to its message on the wire.
    pub(crate) fn into_wire(self) -> PolicyRule {
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
    match_labels: Option<StringMap>,
    match_expressions: Option<Vec<Expression>>,
}

impl Selector {
    fn into_wire(self) -> LabelSelector {
        let requirement = |e: Expression| SelectorRequirement {
            key: e.key,
            operator: e.operator,
            values: e.values.unwrap_or_default(),
        };
        LabelSelector {
            match_labels: self.match_labels.unwrap_or_default(),
            match_expressions: self
                .match_expressions
                .unwrap_or_default()
                .into_iter()
                .map(requirement)
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
