//! RuntimeClass: copies the overhead and scheduling constraints of a pod's runtime class into the pod.

use std::collections::HashSet;
use std::sync::Arc;

use apimachinery::field::quote;
use apimachinery::format::path_segment;
use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use serde_json::{Map, Value};

use crate::quantity::amounts;
use crate::{Attributes, Interest, ObjectKind, Operation, Plugin};

const CLASS: ObjectKind = ObjectKind::new("node", "RuntimeClass");
const OVERHEAD_MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub(crate) struct RuntimeClass;

/// The runtime class of a pod; None if the pod names none.
///
/// # Errors
///
/// 403: the class does not exist. 500: the name is invalid.
async fn class_of(attributes: &Attributes<'_>, pod: &Object) -> Result<Option<Arc<Object>>, Status> {
    let Some(name) = pod.str_at(&["spec", "runtimeClassName"]) else { return Ok(None) };
    // kube-apiserver reads the class through its own client, which refuses these names.
    if name.is_empty() {
        return Err(Status::failure(Reason::Unknown, "resource name may not be empty"));
    }
    let violations = path_segment(name, false);
    if !violations.is_empty() {
        let message = format!("invalid resource name {}: [{}]", quote(name), violations.join(" "));
        return Err(Status::failure(Reason::Unknown, message));
    }
    let class = attributes.environment.reader.get_current(CLASS, "", name).await?;
    let not_found = || attributes.forbidden(&format!("pod rejected: RuntimeClass \"{name}\" not found"));
    class.map(Some).ok_or_else(not_found)
}

fn overhead(class: &Object) -> Option<&Value> {
    class.at(&["overhead", "podFixed"]).filter(|fixed| !fixed.is_null())
}

impl Plugin for RuntimeClass {
    const INTEREST: Interest = Interest::PODS.on(&[Operation::Create]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        let Some(class) = class_of(attributes, pod).await? else { return Ok(()) };
        let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
        if let Some(fixed) = overhead(&class) {
            let pod_overhead = amounts(spec.get("overhead"));
            if !pod_overhead.is_empty() && pod_overhead != amounts(Some(fixed)) {
                return Err(attributes.forbidden(OVERHEAD_MISMATCH));
            }
            spec.insert("overhead".to_owned(), fixed.clone());
        }
        merge_scheduling(attributes, &class, spec)
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(pod) = object else { return Ok(()) };
        let class = class_of(attributes, pod).await?;
        let pod_overhead = amounts(pod.at(&["spec", "overhead"]));
        match class.as_deref().and_then(overhead) {
            Some(fixed) if pod_overhead != amounts(Some(fixed)) => {
                Err(attributes.forbidden(OVERHEAD_MISMATCH))
            }
            None if !pod_overhead.is_empty() => Err(attributes.forbidden(
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            )),
            _ => Ok(()),
        }
    }
}

/// Merges the node selector and the tolerations of the class into the pod spec; 403 if the selectors
/// conflict.
fn merge_scheduling(
    attributes: &Attributes<'_>,
    class: &Object,
    spec: &mut Map<String, Value>,
) -> Result<(), Status> {
    let required = class.at(&["scheduling", "nodeSelector"]).and_then(Value::as_object);
    if let Some(required) = required.filter(|required| !required.is_empty()) {
        let mut selector = spec.get("nodeSelector").and_then(Value::as_object).cloned().unwrap_or_default();
        for (key, value) in required {
            let text = value.as_str().unwrap_or("");
            match selector.get(key).and_then(Value::as_str) {
                Some(other) if other != text => {
                    return Err(attributes.forbidden(&format!(
                        "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {text}; \
                         pod.spec.nodeSelector[{key}] = {other}"
                    )));
                }
                _ => selector.insert(key.clone(), value.clone()),
            };
        }
        spec.insert("nodeSelector".to_owned(), Value::Object(selector));
    }
    let required = class.at(&["scheduling", "tolerations"]).and_then(Value::as_array);
    if let Some(required) = required.filter(|required| !required.is_empty()) {
        let mut tolerations = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut current: HashSet<&Value> = tolerations.iter().collect();
        let missing_tolerations: Vec<Value> =
            required.iter().filter(|toleration| current.insert(toleration)).cloned().collect();
        tolerations.extend(missing_tolerations);
        spec.insert("tolerations".to_owned(), Value::Array(tolerations));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    #[tokio::test]
    async fn runtime_class_overhead_and_scheduling_are_merged_into_pod() {
        let zone = json!({"key": "zone", "operator": "Exists"});
        let classes = [
            json!({
                "metadata": {"name": "full"}, "overhead": {"podFixed": {"cpu": "10m"}},
                "scheduling": {"nodeSelector": {"rt": "full"}, "tolerations": [zone]},
            }),
            json!({"metadata": {"name": "bare"}}),
        ];
        let fake = Fake::new(Preset::Svc).with_objects("node", "RuntimeClass", &classes);
        let plugin = RuntimeClass;
        let full = |more: Value| {
            let mut spec = json!({"runtimeClassName": "full", "overhead": {"cpu": "10m"}, "nodeSelector": {"rt": "full"}, "tolerations": [zone]});
            for (key, value) in more.as_object().unwrap() {
                spec[key] = value.clone();
            }
            spec
        };
        for (spec, expected) in [
            (json!({}), Ok(json!({}))),
            (json!({"runtimeClassName": "bare"}), Ok(json!({"runtimeClassName": "bare"}))),
            (json!({"runtimeClassName": "full"}), Ok(full(json!({})))),
            (json!({"runtimeClassName": "full", "overhead": {"cpu": "0.01"}}), Ok(full(json!({})))),
            (
                json!({"runtimeClassName": "full", "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}]}),
                Ok(full(
                    json!({"nodeSelector": {"a": "b", "rt": "full"}, "tolerations": [{"key": "k"}, zone]}),
                )),
            ),
            (json!({"runtimeClassName": "gone"}), Err("pod rejected: RuntimeClass \"gone\" not found")),
            (json!({"runtimeClassName": ""}), Err("resource name may not be empty")),
            (json!({"runtimeClassName": "a/b"}), Err("invalid resource name \"a/b\": [may not contain '/']")),
            (json!({"runtimeClassName": "full", "overhead": {"cpu": "1"}}), Err(OVERHEAD_MISMATCH)),
            (
                json!({"runtimeClassName": "bare", "overhead": {"cpu": "1"}}),
                Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"),
            ),
            (
                json!({"overhead": {"cpu": "1"}}),
                Err("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"),
            ),
            (
                json!({"runtimeClassName": "full", "nodeSelector": {"rt": "x"}}),
                Err(
                    "conflict: runtimeClass.scheduling.nodeSelector[rt] = full; pod.spec.nodeSelector[rt] = x",
                ),
            ),
        ] {
            let answer = fake
                .run_plugin(
                    &plugin,
                    TestedWrite::default(),
                    json!({"metadata": {"name": "p"}, "spec": spec.clone()}),
                )
                .await;
            match expected {
                Ok(expected) => {
                    assert_eq!(answer.message(), "", "{spec}");
                    assert_eq!(answer.object["spec"], expected, "{spec}");
                }
                Err(reason) if reason.contains("resource name") => assert_eq!(answer.message(), reason),
                Err(reason) => {
                    assert_eq!(answer.message(), format!("pods \"p\" is forbidden: {reason}"), "{spec}")
                }
            }
        }
    }
}
