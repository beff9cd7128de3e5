//! A rule: operations, groups, versions, resources and scope of matching writes.

use serde_json::Value;

use crate::{Attributes, Operation};

/// Wildcard in the lists of operations, groups, versions and resources of a rule.
const ALL: &str = "*";

/// A rule of a webhook or a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    operations: Vec<String>,
    groups: Vec<String>,
    versions: Vec<String>,
    /// Pairs of resource and subresource (`""` for none): `pods`, `pods/status`, `pods/*`, `*/scale`.
    resources: Vec<(String, String)>,
    scope: RuleScope,
    /// Names of matching objects; empty: all names.
    names: Vec<String>,
}

/// Scope of matching resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RuleScope {
    #[default]
    All,
    Namespaced,
    Cluster,
}

/// The facts of a write with which rules are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleTarget<'a> {
    /// Operation of the write.
    pub(crate) operation: Operation,
    /// Full group name.
    pub(crate) group: &'a str,
    /// Version of the resource with which rules are compared.
    pub(crate) version: &'a str,
    /// Lower-case plural name of the resource.
    pub(crate) resource: &'a str,
    /// Subresource, or `""`.
    pub(crate) subresource: &'a str,
    /// Namespace; the name of the object itself for Namespaces; `""` for other cluster-scoped objects.
    pub(crate) namespace: &'a str,
    /// Object name; `""` before name generation.
    pub(crate) name: &'a str,
}

impl<'a> RuleTarget<'a> {
    /// The facts of a write in the version of its URL.
    pub(crate) fn new(attributes: &Attributes<'a>) -> Self {
        let resource = &attributes.served.group_resource;
        RuleTarget {
            operation: attributes.operation,
            group: &resource.group,
            version: attributes.version,
            resource: &resource.resource,
            subresource: attributes.subresource,
            namespace: attributes.request_namespace(),
            name: attributes.name,
        }
    }

    fn is_namespace_object(&self) -> bool {
        self.group.is_empty() && self.resource == "namespaces"
    }
}

impl Rule {
    /// Reads a `RuleWithOperations` or a `NamedRuleWithOperations`.
    pub(crate) fn read(rule: &Value) -> Self {
        let texts = |field: &str| -> Vec<String> {
            let items = rule.get(field).and_then(Value::as_array);
            items.into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
        };
        let split = |text: String| match text.split_once('/') {
            Some((resource, subresource)) => (resource.to_owned(), subresource.to_owned()),
            None => (text, String::new()),
        };
        Rule {
            operations: texts("operations"),
            groups: texts("apiGroups"),
            versions: texts("apiVersions"),
            resources: texts("resources").into_iter().map(split).collect(),
            scope: match rule.get("scope").and_then(Value::as_str) {
                Some("Namespaced") => RuleScope::Namespaced,
                Some("Cluster") => RuleScope::Cluster,
                _ => RuleScope::All,
            },
            names: texts("resourceNames"),
        }
    }

    /// Whether the rule matches a write in one version of its resource.
    pub(crate) fn matches(&self, target: &RuleTarget<'_>) -> bool {
        let resource_matches = |(resource, subresource): &(String, String)| {
            is_or_all(resource, target.resource) && is_or_all(subresource, target.subresource)
        };
        self.resources.iter().any(resource_matches)
            && has_or_all(&self.operations, target.operation.as_str())
            && has_or_all(&self.groups, target.group)
            && has_or_all(&self.versions, target.version)
            && self.scope_matches(target)
            && (self.names.is_empty() || self.names.iter().any(|name| name == target.name))
    }

    /// Whether the scope matches. A Namespace is cluster-scoped, although the target has its name as
    /// namespace.
    fn scope_matches(&self, target: &RuleTarget<'_>) -> bool {
        let is_cluster = target.namespace.is_empty() || target.is_namespace_object();
        match self.scope {
            RuleScope::All => true,
            RuleScope::Namespaced => !is_cluster,
            RuleScope::Cluster => is_cluster,
        }
    }

    /// Plural names of the resources in the rule; None if the rule matches all resources.
    pub(super) fn named_resources(&self) -> Option<impl Iterator<Item = &str>> {
        let matches_all = self.resources.iter().any(|(resource, _)| resource == ALL);
        (!matches_all).then(|| self.resources.iter().map(|(resource, _)| resource.as_str()))
    }
}

fn is_or_all(item: &str, requested: &str) -> bool {
    item == ALL || item == requested
}

fn has_or_all(items: &[String], requested: &str) -> bool {
    items.iter().any(|item| is_or_all(item, requested))
}
