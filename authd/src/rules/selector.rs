//! Label selectors of aggregation rules.

use std::collections::BTreeMap;

use apimachinery::attributes::{Operator, Requirement};

/// A label selector of an aggregation rule. The empty selector matches every ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Labels that must all be present with these values.
    pub match_labels: BTreeMap<String, String>,
    /// Requirements that must all match.
    pub match_expressions: Vec<Requirement>,
    /// Whether an operator is unknown; the selector then matches nothing.
    pub invalid: bool,
}

impl Selector {
    /// Whether the selector matches a set of labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.invalid
            && self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| {
                let value = labels.get(&requirement.key);
                match requirement.operator {
                    Operator::In => value.is_some_and(|value| requirement.values.contains(value)),
                    Operator::NotIn => !value.is_some_and(|value| requirement.values.contains(value)),
                    Operator::Exists => value.is_some(),
                    Operator::DoesNotExist => value.is_none(),
                }
            })
    }
}
