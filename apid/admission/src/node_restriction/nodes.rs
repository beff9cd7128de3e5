//! Writes of a kubelet to its own Node: registration and status, without control over scheduling.

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;

use super::{KubeletWrite, significant};
use crate::Operation;

impl KubeletWrite<'_> {
    pub(super) fn node(&self) -> Result<(), Status> {
        let (node, name) = (self.node, self.attributes.name);
        if name != node {
            return self.reject(&format!("node {node:?} is not allowed to modify node {name:?}"));
        }
        match (self.attributes.operation, self.object, self.attributes.old) {
            (Operation::Create, Some(new), _) => self.register(new),
            (Operation::Update, Some(new), Some(old)) => self.update_node(new, old),
            _ => Ok(()),
        }
    }

    fn register(&self, new: &Object) -> Result<(), Status> {
        if part(new, &["spec", "configSource"]).is_some() {
            let reason = "is not allowed to create pods with a non-nil configSource";
            return self.reject(&format!("node {:?} {reason}", self.node));
        }
        let forbidden: Vec<&str> = self.plugin.preset_names.labels.forbidden(new, None).into_iter().collect();
        if !forbidden.is_empty() {
            let labels = forbidden.join(", ");
            return self.reject(&format!(
                "node {:?} is not allowed to set the following labels: {labels}",
                self.node
            ));
        }
        Ok(())
    }

    fn update_node(&self, new: &Object, old: &Object) -> Result<(), Status> {
        let changed = |path: &[&str]| part(new, path) != part(old, path);
        let source: &[&str] = &["spec", "configSource"];
        let forbidden_change = if part(new, source).is_some() && changed(source) {
            Some("update configSource to a new non-nil configSource")
        } else if changed(&["spec", "taints"]) {
            Some("modify taints")
        } else if changed(&["metadata", "ownerReferences"]) {
            // The garbage collector would delete the node with its owner.
            Some("modify ownerReferences")
        } else {
            None
        };
        if let Some(forbidden_change) = forbidden_change {
            return self.reject(&format!("node {:?} is not allowed to {forbidden_change}", self.node));
        }
        let forbidden: Vec<&str> =
            self.plugin.preset_names.labels.forbidden(new, Some(old)).into_iter().collect();
        if !forbidden.is_empty() {
            return self.reject(&format!("is not allowed to modify labels: {}", forbidden.join(", ")));
        }
        Ok(())
    }
}

fn part(object: &Object, path: &[&str]) -> Option<Value> {
    object.at(path).and_then(significant)
}
