//! TaintNodesByCondition: adds the not-ready taint to new nodes, so that no pods are scheduled on them.

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::{Value, json};

use crate::tree::{object_at, text};
use crate::{Attributes, Interest, ObjectKind, Operation, Plugin};

pub(crate) struct TaintNodesByCondition;

impl Plugin for TaintNodesByCondition {
    const INTEREST: Interest = Interest::only(&[(ObjectKind::new("", "Node"), "")]).on(&[Operation::Create]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        if let Some(spec) = object.and_then(|node| object_at(&mut node.0, "spec")) {
            let not_ready = attributes.environment.names.label_sub_key("node", "not-ready");
            let mut taints = spec.get("taints").and_then(Value::as_array).cloned().unwrap_or_default();
            let has_taint = taints
                .iter()
                .any(|taint| text(taint, "key") == not_ready && text(taint, "effect") == "NoSchedule");
            if !has_taint {
                taints.push(json!({"key": not_ready, "effect": "NoSchedule"}));
                spec.insert("taints".to_owned(), Value::Array(taints));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn new_node_gets_not_ready_taint_once() {
        let fake = Fake::new(Preset::Svc);
        let plugin = TaintNodesByCondition;
        let taint = json!({"key": "node.example.test/not-ready", "effect": "NoSchedule"});
        let other = json!({"key": "a", "effect": "NoExecute"});
        for (given, expected) in [
            (json!({}), json!([taint])),
            (json!({"spec": {"taints": [other]}}), json!([other, taint])),
            (json!({"spec": {"taints": [taint]}}), json!([taint])),
        ] {
            let answer = fake
                .run_plugin(&plugin, TestedWrite { kind: ("", "Node"), ..TestedWrite::default() }, given)
                .await;
            assert_eq!(answer.object["spec"]["taints"], expected);
        }
    }
}
