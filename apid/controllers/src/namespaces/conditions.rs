//! Conditions of a terminating namespace: five, one for each reason that may block its deletion.
//!
//! # Reference
//!
//! Types, reasons, messages and order are those of Kubernetes. `lastTransitionTime` changes only with the
//! status of a condition.

use std::collections::BTreeMap;

use apimachinery::object::Object;

use crate::condition::{Condition, with_conditions};

/// The result of one round of emptying a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RoundOutcome {
    /// `GROUP/VERSION` of the APIs of other servers whose resources are not known.
    pub(super) undiscovered: Vec<String>,
    /// Texts of failed deletions, and of kinds with objects that cannot be decoded.
    pub(super) failures: Vec<String>,
    /// Numbers of remaining objects, by `resource.group`.
    pub(super) remaining: BTreeMap<String, usize>,
    /// Numbers of remaining objects with a finalizer, by finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
}

impl RoundOutcome {
    /// Whether no object remains, no deletion failed, and no other server may have objects.
    pub(super) fn is_empty(&self) -> bool {
        self.undiscovered.is_empty() && self.failures.is_empty() && self.remaining.is_empty()
    }

    /// The condition that names the APIs whose resources are not known.
    fn discovery_condition(&self) -> Condition {
        let (reason, message) = match self.undiscovered.len() {
            0 => ("ResourcesDiscovered", "All resources successfully discovered".to_owned()),
            failing => {
                let stale = |api: &String| format!("{api}: stale GroupVersion discovery: {api}");
                let mut apis: Vec<String> = self.undiscovered.iter().map(stale).collect();
                apis.sort_unstable();
                let message = format!(
                    "Discovery failed for some groups, {failing} failing: unable to retrieve the complete list of \
                     server APIs: {}",
                    apis.join(", ")
                );
                ("DiscoveryFailed", message)
            }
        };
        let status_is_true = !self.undiscovered.is_empty();
        Condition { kind: "NamespaceDeletionDiscoveryFailure", status_is_true, reason, message }
    }

    fn conditions(&self) -> [Condition; 5] {
        let condition =
            |kind, status_is_true, reason, message| Condition { kind, status_is_true, reason, message };
        let healthy = |kind, reason, text: &str| condition(kind, false, reason, text.to_owned());
        let join = |parts: Vec<String>| parts.join(", ");
        [
            self.discovery_condition(),
            // The group and version of each APIService are checked at its write, so that all can be parsed.
            healthy(
                "NamespaceDeletionGroupVersionParsingFailure",
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            match &self.failures[..] {
                [] => healthy(
                    "NamespaceDeletionContentFailure",
                    "ContentDeleted",
                    "All content successfully deleted, may be waiting on finalization",
                ),
                failures => {
                    let mut failures = failures.to_vec();
                    failures.sort_unstable();
                    let text = format!(
                        "Failed to delete all resource types, {} remaining: {}",
                        failures.len(),
                        join(failures)
                    );
                    condition("NamespaceDeletionContentFailure", true, "ContentDeletionFailed", text)
                }
            },
            match self.remaining.is_empty() {
                true => {
                    healthy("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed")
                }
                false => {
                    let remaining = self
                        .remaining
                        .iter()
                        .map(|(resource, n)| format!("{resource} has {n} resource instances"));
                    let text = format!("Some resources are remaining: {}", join(remaining.collect()));
                    condition("NamespaceContentRemaining", true, "SomeResourcesRemain", text)
                }
            },
            match self.finalizers.is_empty() {
                true => healthy(
                    "NamespaceFinalizersRemaining",
                    "ContentHasNoFinalizers",
                    "All content-preserving finalizers finished",
                ),
                false => {
                    let remaining =
                        self.finalizers.iter().map(|(f, n)| format!("{f} in {n} resource instances"));
                    let text = format!(
                        "Some content in the namespace has finalizers remaining: {}",
                        join(remaining.collect())
                    );
                    condition("NamespaceFinalizersRemaining", true, "SomeFinalizersRemain", text)
                }
            },
        ]
    }

    /// Returns the namespace with the conditions of this outcome; None if the namespace has them already.
    ///
    /// `now` is the current time as RFC 3339 text, as in `creationTimestamp`.
    pub(super) fn apply_conditions(&self, namespace: &Object, now: &str) -> Option<Object> {
        with_conditions(namespace, &self.conditions(), now)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn condition_texts(namespace: &Object) -> Vec<String> {
        let conditions = namespace.at(&["status", "conditions"]).and_then(Value::as_array).unwrap();
        let text = |condition: &Value| {
            let field = |name: &str| condition[name].as_str().unwrap().to_owned();
            [field("type"), field("status"), field("reason"), field("lastTransitionTime"), field("message")]
                .join("|")
        };
        conditions.iter().map(text).collect()
    }

    #[test]
    fn terminating_namespace_reports_remaining_content_in_conditions() {
        let namespace =
            Object::from_value(json!({"metadata": {"name": "x"}, "status": {"phase": "Terminating"}}));
        let namespace = namespace.unwrap();
        let outcome = RoundOutcome {
            undiscovered: Vec::new(),
            failures: Vec::new(),
            remaining: BTreeMap::from([("pods.".to_owned(), 2), ("configmaps.".to_owned(), 1)]),
            finalizers: BTreeMap::from([("example.com/hold".to_owned(), 1)]),
        };
        let updated = outcome.apply_conditions(&namespace, "T1").unwrap();
        assert_eq!(updated.str_at(&["status", "phase"]), Some("Terminating"));
        assert_eq!(
            condition_texts(&updated),
            [
                "NamespaceDeletionDiscoveryFailure|False|ResourcesDiscovered|T1|All resources successfully discovered",
                "NamespaceDeletionGroupVersionParsingFailure|False|ParsedGroupVersions|T1|All legacy kube types \
                 successfully parsed",
                "NamespaceDeletionContentFailure|False|ContentDeleted|T1|All content successfully deleted, may be \
                 waiting on finalization",
                "NamespaceContentRemaining|True|SomeResourcesRemain|T1|Some resources are remaining: configmaps. has 1 \
                 resource instances, pods. has 2 resource instances",
                "NamespaceFinalizersRemaining|True|SomeFinalizersRemain|T1|Some content in the namespace has finalizers \
                 remaining: example.com/hold in 1 resource instances",
            ]
        );
        assert_eq!(outcome.apply_conditions(&updated, "T2"), None, "unchanged conditions are not written");

        let failed = RoundOutcome { failures: vec!["b".to_owned(), "a".to_owned()], ..outcome };
        let later = failed.apply_conditions(&updated, "T2").unwrap();
        assert_eq!(
            condition_texts(&later)[2],
            "NamespaceDeletionContentFailure|True|ContentDeletionFailed|T2|Failed to delete all resource types, 2 \
             remaining: a, b"
        );
        assert!(
            condition_texts(&later)[3].contains("|T1|"),
            "the transition time changes only with the status"
        );
        let apis = vec!["metrics.k8s.io/v1beta1".to_owned(), "a.com/v1".to_owned()];
        let unknown = RoundOutcome { undiscovered: apis, ..RoundOutcome::default() };
        assert_eq!(
            condition_texts(&unknown.apply_conditions(&later, "T3").unwrap())[0],
            "NamespaceDeletionDiscoveryFailure|True|DiscoveryFailed|T3|Discovery failed for some groups, 2 failing: \
             unable to retrieve the complete list of server APIs: a.com/v1: stale GroupVersion discovery: a.com/v1, \
             metrics.k8s.io/v1beta1: stale GroupVersion discovery: metrics.k8s.io/v1beta1"
        );
        assert!(!unknown.is_empty(), "a server whose resources are not known may have objects");
        let emptied = RoundOutcome::default().apply_conditions(&later, "T3").unwrap();
        assert!(condition_texts(&emptied).iter().all(|condition| condition.contains("|False|")));
        assert!(RoundOutcome::default().is_empty() && !failed.is_empty());
    }
}
