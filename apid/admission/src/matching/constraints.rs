//! Constraints of a webhook or a policy on the writes that it handles.

use kinds::labels;
use serde_json::Value;

use super::Rule;

/// Constraints on writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Constraints {
    /// A write must match one of these rules. None means every resource matches.
    pub(crate) rules: Option<Vec<Rule>>,
    /// A write must match none of these rules.
    pub(crate) excluded: Vec<Rule>,
    /// Whether rules are also compared with other versions of the resource.
    pub(crate) policy: MatchPolicy,
    /// Label selector on the namespace; null selects all namespaces.
    pub(crate) namespace_selector: Value,
    /// Label selector on the new or the old object; null selects all objects.
    pub(crate) object_selector: Value,
}

/// The field `matchPolicy`: the versions of the requested resource with which rules are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MatchPolicy {
    /// Only the group and version of the request.
    Exact,
    /// Every served group and version of the resource.
    #[default]
    Equivalent,
}

impl MatchPolicy {
    /// Reads the field `matchPolicy`.
    pub(crate) fn read(policy: Option<&Value>) -> Self {
        match policy.and_then(Value::as_str) {
            Some("Exact") => MatchPolicy::Exact,
            _ => MatchPolicy::Equivalent,
        }
    }
}

impl Constraints {
    /// Reads the selectors and the match policy of an object with the fields `matchPolicy`,
    /// `namespaceSelector` and `objectSelector`; the caller sets the rules.
    pub(crate) fn read(source: &Value) -> Self {
        let selector = |field: &str| {
            let selector = source.get(field).filter(|selector| !labels::selects_all(selector));
            selector.cloned().unwrap_or(Value::Null)
        };
        Constraints {
            rules: None,
            excluded: Vec::new(),
            policy: MatchPolicy::read(source.get("matchPolicy")),
            namespace_selector: selector("namespaceSelector"),
            object_selector: selector("objectSelector"),
        }
    }

    /// Reads a list of rules; an absent list is empty.
    pub(crate) fn read_rules(rules: Option<&Value>) -> Vec<Rule> {
        rules.and_then(Value::as_array).into_iter().flatten().map(Rule::read).collect()
    }

    /// Plural names of the resources in the rules; None if the rules may match all resources.
    pub(super) fn named_resources(&self) -> Option<Vec<&str>> {
        let mut named = Vec::new();
        for rule in self.rules.as_ref()? {
            named.extend(rule.named_resources()?);
        }
        Some(named)
    }
}
