//! RuntimeClass: copies the overhead and scheduling constraints of a pod's runtime class into the pod.

use std::collections::HashSet;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::{Map, Value};

use crate::quantity::amounts;
use crate::{
    Admission, Attributes, BuildPlugin, Environment, Interest, ObjectKind, Operation, Plugin, Reader,
};

const CLASS: ObjectKind = ObjectKind::new("node", "RuntimeClass");
const OVERHEAD_MISMATCH: &str = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead";

pub(crate) struct RuntimeClass {
    reader: Arc<dyn Reader>,
}

impl BuildPlugin for RuntimeClass {
    fn new(environment: &Environment) -> Self {
        RuntimeClass { reader: Arc::clone(&environment.reader) }
    }
}

impl RuntimeClass {
    async fn class(&self, attributes: &Attributes<'_>, name: &str) -> Result<Arc<Object>, Status> {
        let class = self.reader.get_current(CLASS, "", name).get().await?;
        let not_found = || attributes.forbidden(&format!("pod rejected: RuntimeClass \"{name}\" not found"));
        class.ok_or_else(not_found)
    }
}

/// Runtime class name of a pod.
fn runtime_class_name(pod: &Object) -> Option<String> {
    pod.str_at(&["spec", "runtimeClassName"]).filter(|name| !name.is_empty()).map(str::to_owned)
}

fn overhead(class: &Object) -> Option<&Value> {
    class.at(&["overhead", "podFixed"]).filter(|fixed| !fixed.is_null())
}

impl Plugin for RuntimeClass {
    fn interest(&self) -> Interest {
        Interest::PODS.on(&[Operation::Create])
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: Option<&'a mut Object>) -> Admission<'a> {
        let Some((pod, name)) = object.and_then(|pod| runtime_class_name(pod).map(|name| (pod, name))) else {
            return Admission::Ready(Ok(()));
        };
        Admission::later(async move {
            let class = self.class(attributes, &name).await?;
            let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
            if let Some(fixed) = overhead(&class) {
                let pod_overhead = amounts(spec.get("overhead"));
                if !pod_overhead.is_empty() && pod_overhead != amounts(Some(fixed)) {
                    return Err(attributes.forbidden(OVERHEAD_MISMATCH));
                }
                spec.insert("overhead".to_owned(), fixed.clone());
            }
            merge_scheduling(attributes, &class, spec)
        })
    }

    fn validate<'a>(&'a self, attributes: &'a Attributes<'a>, object: Option<&'a Object>) -> Admission<'a> {
        let Some(pod) = object else { return Admission::Ready(Ok(())) };
        let pod_overhead = amounts(pod.at(&["spec", "overhead"]));
        let Some(name) = runtime_class_name(pod) else {
            return Admission::Ready(check_overhead(attributes, None, &pod_overhead));
        };
        Admission::later(async move {
            let class = self.class(attributes, &name).await?;
            check_overhead(attributes, overhead(&class), &pod_overhead)
        })
    }
}

fn check_overhead(
    attributes: &Attributes<'_>,
    defined: Option<&Value>,
    pod_overhead: &crate::quantity::Amounts,
) -> Result<(), Status> {
    match defined {
        Some(fixed) if *pod_overhead != amounts(Some(fixed)) => Err(attributes.forbidden(OVERHEAD_MISMATCH)),
        None if !pod_overhead.is_empty() => Err(attributes
            .forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")),
        _ => Ok(()),
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
        let plugin = RuntimeClass::new(&fake.environment());
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
                Err(reason) => {
                    assert_eq!(answer.message(), format!("pods \"p\" is forbidden: {reason}"), "{spec}")
                }
            }
        }
    }
}
