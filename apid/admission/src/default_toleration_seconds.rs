//! DefaultTolerationSeconds: pods tolerate not-ready and unreachable nodes for 300 s by default.

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::{Value, json};

use crate::tree::text;
use crate::{Attributes, Interest, Plugin, tolerations};

/// Default toleration time in seconds.
const SECONDS: i64 = 300;

pub(crate) struct DefaultTolerationSeconds;

/// Keys of the taints of not-ready and of unreachable nodes.
fn taints(names: &Names) -> [String; 2] {
    ["not-ready", "unreachable"].map(|name| names.label_sub_key("node", name))
}

impl Plugin for DefaultTolerationSeconds {
    const INTEREST: Interest = Interest::PODS;

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        if let Some(pod) = object {
            let current = tolerations::pod_tolerations(pod);
            let taints = taints(&attributes.environment.names);
            let missing_taints = taints.iter().filter(|taint| !current.iter().any(|t| tolerates(t, taint)));
            let new_tolerations: Vec<Value> = missing_taints.map(|taint| toleration(taint)).collect();
            if !new_tolerations.is_empty() {
                let all_tolerations = [current, &new_tolerations].concat();
                tolerations::set(pod, all_tolerations);
            }
        }
        Ok(())
    }
}

/// Whether the key and the effect of a toleration match the taint with the effect `NoExecute`. The operator
/// has no influence, as in kube-apiserver.
fn tolerates(toleration: &Value, taint: &str) -> bool {
    [taint, ""].contains(&text(toleration, "key")) && ["NoExecute", ""].contains(&text(toleration, "effect"))
}

fn toleration(taint: &str) -> Value {
    json!({"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS})
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn pod_gets_default_not_ready_and_unreachable_tolerations() {
        let fake = Fake::new(Preset::Kubernetes);
        let plugin = DefaultTolerationSeconds;
        let [not_ready, unreachable] = taints(&fake.names).map(|taint| toleration(&taint));
        let five = json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        let no_schedule = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"});
        for (given, expected) in [
            (json!(null), json!([not_ready, unreachable])),
            (json!([five]), json!([five, unreachable])),
            (json!([no_schedule]), json!([no_schedule, not_ready, unreachable])),
            (json!([{"operator": "Exists"}]), json!([{"operator": "Exists"}])),
        ] {
            let answer = fake
                .run_plugin(&plugin, TestedWrite::default(), json!({"spec": {"tolerations": given}}))
                .await;
            assert_eq!(answer.object["spec"]["tolerations"], expected);
        }
    }
}
