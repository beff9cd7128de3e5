//! Subresource `eviction`: deletes a pod unless a PodDisruptionBudget forbids it.
//!
//! # Contract
//!
//! [`needs_no_budget`] identifies pods whose eviction needs no budget; a pod for which [`is_finished`] is
//! true never needs a budget again. [`selects_pod`] tells whether a budget selects a pod. [`decide`] returns
//! the decision of the budget. If the decision is [`EvictionDecision::Charged`], the caller records the pod
//! in the budget with [`record_eviction`].
//!
//! # Reference
//!
//! Requirements D-TERM-7, D-RM125-30 and -31. A budget that no controller processes allows no disruption.

use apimachinery::object::Object;
use apimachinery::status::{Cause, Details, Reason, Status};
use serde_json::{Value, json};

use crate::table::cell::PathReader;
use crate::{BuiltInKind, Storage, labels};

/// Kind of eviction bodies.
pub(crate) const KIND: BuiltInKind = BuiltInKind {
    // `v1beta1` exists only for evictions; clients still send it.
    older_versions: &["v1beta1"],
    storage: Storage::Eviction,
    verbs: &[],
    ..BuiltInKind::namespaced("policy/v1.Eviction", "eviction")
};

/// Group stem and kind of disruption budgets.
pub const DISRUPTION_BUDGET: (&str, &str) = ("policy", "PodDisruptionBudget");

/// Maximum number of evicted pods in `disruptedPods` of a budget, whose deletion the disruption controller
/// has not confirmed. A budget with more such pods forbids each eviction that needs the budget.
const DISRUPTED_MAX: usize = 2000;

/// Value of `Retry-After`, in seconds, while the disruption controller has not processed a change of the
/// budget.
const RETRY_AFTER_SECONDS: u32 = 10;

/// Decision of a disruption budget that allows the eviction of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionDecision {
    /// The eviction is allowed without a charge to the budget.
    Uncharged,
    /// The eviction is allowed and charged to the budget.
    Charged,
}

/// Whether an eviction needs no budget: the pod is pending, terminating or finished.
pub fn needs_no_budget(pod: &Object) -> bool {
    is_finished(pod) || pod.text("status.phase") == "Pending"
}

/// Whether a pod is terminating or finished. This state is final.
pub fn is_finished(pod: &Object) -> bool {
    pod.is_terminating() || matches!(pod.text("status.phase"), "Failed" | "Succeeded")
}

/// Whether a budget selects a pod of its namespace.
/// A budget without a selector selects no pod; an empty selector selects all pods.
pub fn selects_pod(budget: &Object, pod: &Object) -> bool {
    let labels = pod.meta().and_then(|metadata| metadata.get("labels")).cloned().unwrap_or_else(|| json!({}));
    budget.find("spec.selector").is_some_and(|selector| labels::matches(selector, &labels))
}

/// Decides whether a budget allows the eviction of a pod.
///
/// # Errors
///
/// 429: the budget currently forbids the eviction. 403: `disruptionsAllowed` is negative, or the budget has
/// more than 2,000 disrupted pods.
pub fn decide(budget: &Object, pod: &Object) -> Result<EvictionDecision, Status> {
    let status = |field: &str| budget.integer(&format!("status.{field}"));
    let (healthy, desired) = (status("currentHealthy"), status("desiredHealthy"));
    if !pod.is_condition_true("Ready") {
        let always_allows = budget.text("spec.unhealthyPodEvictionPolicy") == "AlwaysAllow";
        if always_allows || (healthy >= desired && desired > 0) {
            return Ok(EvictionDecision::Uncharged);
        }
    }
    let name = budget.name();
    if status("observedGeneration") < budget.generation() {
        let message = format!("The disruption budget {name} is still being processed by the server.");
        return Err(too_many_requests(message, RETRY_AFTER_SECONDS));
    }
    let forbidden = |message: &str| {
        let text = format!("poddisruptionbudget.policy \"{name}\" is forbidden: {message}");
        Err(Status::failure(Reason::Forbidden, text))
    };
    match status("disruptionsAllowed") {
        ..0 => forbidden("pdb disruptions allowed is negative"),
        _ if budget.entries("status.disruptedPods").len() > DISRUPTED_MAX => {
            forbidden("DisruptedPods map too big - too many evictions not confirmed by PDB controller")
        }
        0 => Err(too_many_requests(
            format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"),
            0,
        )),
        _ => Ok(EvictionDecision::Charged),
    }
}

/// Returns the Status with code 429 and the cause `DisruptionBudget`.
fn too_many_requests(message: String, retry_after_seconds: u32) -> Status {
    let cause = Cause { reason: "DisruptionBudget".to_owned(), message, field: String::new() };
    let details = Details { causes: vec![cause], retry_after_seconds, ..Details::default() };
    let text = "Cannot evict pod as it would violate the pod's disruption budget.";
    Status::failure(Reason::TooManyRequests, text).with_details(details)
}

/// Sets the condition `DisruptionTarget` of an evicted pod. Returns whether the pod changed.
pub fn record_disruption(pod: &mut Object, now: &str) -> bool {
    let status = pod.0.entry("status").or_insert_with(|| json!({}));
    let Value::Object(status) = status else { return false };
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    if conditions.is_null() {
        *conditions = json!([]);
    }
    let Value::Array(conditions) = conditions else { return false };
    let mut condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": now,
    });
    let is_target = |condition: &&mut Value| condition.get("type").is_some_and(|ty| ty == "DisruptionTarget");
    match conditions.iter_mut().find(is_target) {
        None => conditions.push(condition),
        Some(existing) => {
            if existing.get("status").is_some_and(|status| status == "True") {
                let since = existing.get("lastTransitionTime").cloned().unwrap_or_default();
                if let Some(time) = condition.get_mut("lastTransitionTime") {
                    *time = since;
                }
            }
            if *existing == condition {
                return false;
            }
            *existing = condition;
        }
    }
    true
}

/// Records an evicted pod in a budget and decrements `disruptionsAllowed`.
pub fn record_eviction(budget: &mut Object, pod: &str, now: &str) {
    let remaining = budget.integer("status.disruptionsAllowed") - 1;
    let Some(Value::Object(status)) = budget.get_mut("status") else { return };
    status.insert("disruptionsAllowed".to_owned(), remaining.into());
    let disrupted = status.entry("disruptedPods").or_insert_with(|| json!({}));
    if let Value::Object(disrupted) = disrupted {
        disrupted.insert(pod.to_owned(), now.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn eviction_of_pending_or_finished_pod_needs_no_budget() {
        let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
        for (metadata, phase, needs_none, finished) in [
            (json!({}), "Pending", true, false),
            (json!({}), "Running", false, false),
            (json!({}), "Unknown", false, false),
            (json!({}), "Failed", true, true),
            (json!({}), "Succeeded", true, true),
            (deleted, "Running", true, true),
        ] {
            let pod = object(json!({"metadata": metadata, "status": {"phase": phase}}));
            assert_eq!(
                (needs_no_budget(&pod), is_finished(&pod)),
                (needs_none, finished),
                "{phase} {metadata}"
            );
        }
    }

    #[test]
    fn disruption_budget_selector_matches_pods() {
        let pod = object(json!({"metadata": {"labels": {"app": "w"}}}));
        let bare = object(json!({"metadata": {}}));
        for (spec, labelled, unlabelled) in [
            (json!({}), false, false),
            (json!({"selector": {}}), true, true),
            (json!({"selector": {"matchLabels": {"app": "w"}}}), true, false),
            (json!({"selector": {"matchLabels": {"app": "x"}}}), false, false),
        ] {
            let budget = object(json!({"spec": spec}));
            assert_eq!(
                (selects_pod(&budget, &pod), selects_pod(&budget, &bare)),
                (labelled, unlabelled),
                "{budget:?}"
            );
        }
    }

    #[test]
    fn disruption_budget_allows_or_rejects_eviction() {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let budget = |policy: &str, status: Value| {
            object(
                json!({"metadata": {"name": "b", "generation": 1}, "spec": {"unhealthyPodEvictionPolicy": policy}, "status": status}),
            )
        };
        for (policy, status, conditions, want) in [
            (
                "",
                json!({"disruptionsAllowed": 1, "observedGeneration": 1}),
                &ready,
                Ok(EvictionDecision::Charged),
            ),
            ("", json!({"disruptionsAllowed": 0, "observedGeneration": 1}), &ready, Err((429, 0))),
            ("", json!({"disruptionsAllowed": 1}), &ready, Err((429, 10))),
            ("", json!({"disruptionsAllowed": -1, "observedGeneration": 1}), &ready, Err((403, 0))),
            (
                "",
                json!({"currentHealthy": 1, "desiredHealthy": 1}),
                &json!([]),
                Ok(EvictionDecision::Uncharged),
            ),
            (
                "",
                json!({"currentHealthy": 0, "desiredHealthy": 1, "observedGeneration": 1}),
                &json!([]),
                Err((429, 0)),
            ),
            ("AlwaysAllow", json!({}), &json!([]), Ok(EvictionDecision::Uncharged)),
            ("AlwaysAllow", json!({}), &ready, Err((429, 10))),
        ] {
            let pod = object(json!({"metadata": {"name": "p"}, "status": {"conditions": conditions}}));
            let found = decide(&budget(policy, status.clone()), &pod);
            let found =
                found.map_err(|s| (s.code, s.details.map_or(0, |details| details.retry_after_seconds)));
            assert_eq!(found, want, "{policy} {status}");
        }
        let mut charged = budget("", json!({"disruptionsAllowed": 2}));
        record_eviction(&mut charged, "p", "2024-01-02T03:04:05Z");
        assert_eq!(
            charged.get("status"),
            Some(&json!({"disruptionsAllowed": 1, "disruptedPods": {"p": "2024-01-02T03:04:05Z"}}))
        );
        for (phase, free) in
            [("Pending", true), ("Running", false), ("Failed", true), ("Succeeded", true), ("", false)]
        {
            assert_eq!(
                needs_no_budget(&object(json!({"metadata": {}, "status": {"phase": phase}}))),
                free,
                "{phase}"
            );
        }
    }
}
