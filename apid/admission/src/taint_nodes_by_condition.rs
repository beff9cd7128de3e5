//! TaintNodesByCondition: adds the not-ready taint to new nodes, so that no pods are scheduled on them.

use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::tree::{object_at, text};
use crate::{Admission, Attributes, BuildPlugin, Environment, Interest, ObjectKind, Operation, Plugin};

pub(crate) struct TaintNodesByCondition {
    taint: String,
}

impl BuildPlugin for TaintNodesByCondition {
    fn new(environment: &Environment) -> Self {
        TaintNodesByCondition { taint: environment.names.label_sub_key("node", "not-ready") }
    }
}

impl Plugin for TaintNodesByCondition {
    fn interest(&self) -> Interest {
        Interest::only(const { &[(ObjectKind::new("", "Node"), "")] }).on(&[Operation::Create])
    }

    fn mutate<'a>(&'a self, _: &'a Attributes<'a>, object: Option<&'a mut Object>) -> Admission<'a> {
        if let Some(spec) = object.and_then(|node| object_at(&mut node.0, "spec")) {
            let mut taints = spec.get("taints").and_then(Value::as_array).cloned().unwrap_or_default();
            let has_taint = taints
                .iter()
                .any(|taint| text(taint, "key") == self.taint && text(taint, "effect") == "NoSchedule");
            if !has_taint {
                taints.push(json!({"key": self.taint, "effect": "NoSchedule"}));
                spec.insert("taints".to_owned(), Value::Array(taints));
            }
        }
        Admission::Ready(Ok(()))
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
        let plugin = TaintNodesByCondition::new(&fake.environment());
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
