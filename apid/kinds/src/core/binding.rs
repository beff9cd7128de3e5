//! Binding: assigns a pod to a node. apid never stores it.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use apimachinery::time;
use serde_json::{Map, Value, json};

use crate::table::cell::PathReader;
use crate::{AssignmentError, BindingAction, BuiltInKind, Context, REVIEW_VERBS, Storage};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    storage: Storage::BindingLike,
    verbs: REVIEW_VERBS,
    binding_action: Some(&Binding),
    ..BuiltInKind::namespaced("core/v1.Binding", "bindings")
};

/// Type of the pod condition that records the assignment to a node.
const SCHEDULED: &str = "PodScheduled";

struct Binding;

impl BindingAction for Binding {
    fn validate(&self, binding: &Object) -> FieldErrors {
        let target = FieldPath::new("target");
        let mut errors = FieldErrors::new();
        match binding.text("target.kind") {
            "" | "Node" => {}
            other => {
                errors.push(FieldError::not_supported(&target.child("kind"), other, &["Node", "<empty>"]))
            }
        }
        if binding.text("target.name").is_empty() {
            errors.push(FieldError::required(&target.child("name"), ""));
        }
        errors
    }

    /// Assigns the pod to the node.
    /// The pod must not be terminating and must have neither a node nor a scheduling gate. Copies the
    /// annotations of the binding to the pod.
    fn apply_to_target(
        &self,
        binding: &Object,
        pod: &mut Object,
        ctx: &Context<'_>,
    ) -> Result<(), AssignmentError> {
        let name = || pod.name().to_owned();
        if pod.is_terminating() {
            return Err(AssignmentError::Terminating { pod: name() });
        }
        let node = pod.text("spec.nodeName");
        if !node.is_empty() {
            return Err(AssignmentError::Assigned { pod: name(), node: node.to_owned() });
        }
        if !pod.items("spec.schedulingGates").is_empty() {
            return Err(AssignmentError::Gated { pod: name() });
        }
        pod.part_mut("spec").insert("nodeName".to_owned(), binding.text("target.name").into());
        let binding_annotations: Map<String, Value> =
            binding.annotations().map(|(key, value)| (key.to_owned(), value.into())).collect();
        if !binding_annotations.is_empty() {
            let pod_annotations = pod.meta_mut().entry("annotations").or_insert_with(|| json!({}));
            if let Value::Object(pod_annotations) = pod_annotations {
                pod_annotations.extend(binding_annotations);
            }
        }
        let mut conditions = pod.items("status.conditions").to_vec();
        let condition = conditions.iter_mut().find(|condition| condition.text("type") == SCHEDULED);
        let now = time::time(ctx.clock.now());
        match condition {
            Some(condition) if condition.text("status") == "True" => {}
            Some(Value::Object(condition)) => {
                condition.insert("status".to_owned(), "True".into());
                condition.insert("lastTransitionTime".to_owned(), now.into());
            }
            _ => conditions.push(json!({"type": SCHEDULED, "status": "True", "lastTransitionTime": now})),
        }
        pod.part_mut("status").insert("conditions".to_owned(), conditions.into());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::{ManualClock, SeededRng};
    use apimachinery::names::{Names, Preset};

    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    #[test]
    fn binding_assigns_unbound_pod_only() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let clock = ManualClock::at(time::parse("2024-01-02T03:04:05Z").unwrap());
        let rng = SeededRng::new(1);
        let ctx = Context { names: &names, clock: &clock, rng: &rng, subresource: "binding" };
        let binding = object(
            json!({"metadata": {"name": "p", "labels": {"l": "1"}, "annotations": {"a": "new", "b": "1"}},
            "target": {"kind": "Node", "name": "n"}}),
        );
        let mut pod = object(json!({"metadata": {"name": "p", "annotations": {"a": "old"}}, "spec": {},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}}));
        Binding.apply_to_target(&binding, &mut pod, &ctx).unwrap();
        assert_eq!(
            pod.clone().into_value(),
            json!({"metadata": {"name": "p", "annotations": {"a": "new", "b": "1"}}, "spec": {"nodeName": "n"},
                "status": {"conditions": [{"type": "PodScheduled", "status": "True", "reason": "Unschedulable",
                    "lastTransitionTime": "2024-01-02T03:04:05Z"}]}})
        );
        let gated_pod =
            object(json!({"metadata": {"name": "p"}, "spec": {"schedulingGates": [{"name": "g"}]}}));
        let terminating_pod =
            object(json!({"metadata": {"name": "p", "deletionTimestamp": "2024-01-02T03:04:05Z"}}));
        for (mut pod, expected) in
            [(pod, "already assigned"), (gated_pod, "schedulingGates"), (terminating_pod, "being deleted")]
        {
            let reason = Binding.apply_to_target(&binding, &mut pod, &ctx).unwrap_err().to_string();
            assert!(reason.contains(expected), "{reason}");
        }
    }

    #[test]
    fn binding_target_must_be_node() {
        for (target, fields) in [
            (json!({"name": "n"}), vec![]),
            (json!({"kind": "Node", "name": "n"}), vec![]),
            (json!({"kind": "Pod", "name": "n"}), vec!["target.kind"]),
            (json!({}), vec!["target.name"]),
        ] {
            let errors = BindingAction::validate(&Binding, &object(json!({"target": target})));
            assert_eq!(errors.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), fields, "{target}");
        }
    }
}
