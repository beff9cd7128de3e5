//! Writes of a kubelet to its own Node: registration and status, without control over scheduling.

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use super::{KubeletWrite, without_empty_values};
use crate::Operation;

impl KubeletWrite<'_> {
    pub(super) fn check_node(&self) -> Result<(), Status> {
        let (node, name) = (self.node, self.attributes.name);
        if name != node {
            return self.reject_with_node(&format!("is not allowed to modify node {name:?}"));
        }
        match (self.attributes.operation, self.object, self.attributes.old) {
            (Operation::Create, Some(new), _) => self.check_registration(new),
            (Operation::Update, Some(new), Some(old)) => self.check_node_update(new, old),
            _ => Ok(()),
        }
    }

    fn check_registration(&self, new: &Object) -> Result<(), Status> {
        if non_empty_part(new, &["spec", "configSource"]).is_some() {
            return self.reject_with_node("is not allowed to create pods with a non-nil configSource");
        }
        let forbidden: Vec<&str> = self.plugin.labels.forbidden(new, None).into_iter().collect();
        if !forbidden.is_empty() {
            let labels = forbidden.join(", ");
            return self.reject_with_node(&format!("is not allowed to set the following labels: {labels}"));
        }
        Ok(())
    }

    fn check_node_update(&self, new: &Object, old: &Object) -> Result<(), Status> {
        let differs = |path: &[&str]| non_empty_part(new, path) != non_empty_part(old, path);
        let source: &[&str] = &["spec", "configSource"];
        let forbidden_change = if non_empty_part(new, source).is_some() && differs(source) {
            Some("update configSource to a new non-nil configSource")
        } else if differs(&["spec", "taints"]) {
            Some("modify taints")
        } else if differs(&["metadata", "ownerReferences"]) {
            // The garbage collector would delete the node with its owner.
            Some("modify ownerReferences")
        } else {
            None
        };
        if let Some(forbidden_change) = forbidden_change {
            return self.reject_with_node(&format!("is not allowed to {forbidden_change}"));
        }
        let forbidden: Vec<&str> = self.plugin.labels.forbidden(new, Some(old)).into_iter().collect();
        if !forbidden.is_empty() {
            return self.reject(&format!("is not allowed to modify labels: {}", forbidden.join(", ")));
        }
        Ok(())
    }
}

fn non_empty_part(object: &Object, path: &[&str]) -> Option<Value> {
    object.at(path).and_then(without_empty_values)
}
