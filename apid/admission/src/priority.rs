//! Priority: resolves the priority class of a pod to its number and allows only one default class.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use serde_json::Value;

use crate::{Attributes, Interest, ObjectKind, Operation, Plugin, Reader};

const CLASS: ObjectKind = ObjectKind::new("scheduling", "PriorityClass");
/// Default preemption policy.
const PREEMPTS: &str = "PreemptLowerPriority";

pub(crate) struct Priority;

/// The priority class of pods without a class name; of several default classes, the one with the lowest
/// value.
async fn default_class(reader: &dyn Reader) -> Result<Option<Arc<Object>>, Status> {
    let defaults = reader.list(CLASS, "").await?.into_iter().filter(|class| is_default(class));
    Ok(defaults.min_by_key(|class| value(class)))
}

impl Priority {
    async fn resolve(&self, attributes: &Attributes<'_>, pod: &mut Object) -> Result<(), Status> {
        let class_name = pod.str_at(&["spec", "priorityClassName"]).unwrap_or("").to_owned();
        let reader = &*attributes.environment.reader;
        let class = if class_name.is_empty() {
            default_class(reader).await?
        } else {
            let class = reader.get(CLASS, "", &class_name).await?;
            let not_found =
                || attributes.forbidden(&format!("no PriorityClass with name {class_name} was found"));
            Some(class.ok_or_else(not_found)?)
        };
        let priority = class.as_deref().map_or(0, value);
        let policy =
            class.as_deref().and_then(|class| class.str_at(&["preemptionPolicy"])).unwrap_or(PREEMPTS);
        let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else { return Ok(()) };
        if let Some(class) = class.as_deref().filter(|_| class_name.is_empty()) {
            spec.insert("priorityClassName".to_owned(), Value::from(class.name()));
        }
        if let Some(pod_value) =
            spec.get("priority").and_then(Value::as_i64).filter(|pod_value| *pod_value != priority)
        {
            return Err(attributes.forbidden(&format!(
                "the integer value of priority ({pod_value}) must not be provided in pod spec; priority \
                 admission controller computed {priority} from the given PriorityClass name"
            )));
        }
        if let Some(pod_value) =
            spec.get("preemptionPolicy").and_then(Value::as_str).filter(|pod_value| *pod_value != policy)
        {
            return Err(attributes.forbidden(&format!(
                "the string value of PreemptionPolicy ({pod_value}) must not be provided in pod spec; priority \
                 admission controller computed {policy} from the given PriorityClass name"
            )));
        }
        spec.insert("priority".to_owned(), Value::from(priority));
        spec.insert("preemptionPolicy".to_owned(), Value::from(policy));
        Ok(())
    }
}

fn is_default(class: &Object) -> bool {
    class.get("globalDefault").and_then(Value::as_bool) == Some(true)
}

fn value(class: &Object) -> i64 {
    class.get("value").and_then(Value::as_i64).unwrap_or(0)
}

impl Plugin for Priority {
    const INTEREST: Interest = Interest::only(&[(ObjectKind::POD, ""), (CLASS, "")]);

    async fn mutate(&self, attributes: &Attributes<'_>, object: Option<&mut Object>) -> Result<(), Status> {
        let Some(pod) = object.filter(|_| attributes.is_of(ObjectKind::POD)) else { return Ok(()) };
        let Some(old) = attributes.old else { return self.resolve(attributes, pod).await };
        // An update that omits the resolved fields keeps their values from creation.
        for field in ["priority", "preemptionPolicy"] {
            if let (Some(old_value), Some(spec)) =
                (old.at(&["spec", field]), pod.get_mut("spec").and_then(Value::as_object_mut))
                && spec.get(field).is_none_or(Value::is_null)
            {
                spec.insert(field.to_owned(), old_value.clone());
            }
        }
        Ok(())
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        let Some(class) = object.filter(|object| attributes.is_of(CLASS) && is_default(object)) else {
            return Ok(());
        };
        match default_class(&*attributes.environment.reader).await? {
            Some(other) if attributes.operation == Operation::Create || other.name() != class.name() => {
                Err(attributes.forbidden(&format!(
                    "PriorityClass {} is already marked as default. Only one default can exist",
                    other.name()
                )))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;
    use crate::testing::{Fake, TestedWrite};

    fn class(name: &str, value: i64, default: bool) -> Value {
        json!({"metadata": {"name": name}, "value": value, "globalDefault": default})
    }

    #[tokio::test]
    async fn priority_class_is_resolved_to_number() {
        let mut never = class("never", -10, false);
        never["preemptionPolicy"] = json!("Never");
        let plain = Fake::new(Preset::Svc).with_objects(
            "scheduling",
            "PriorityClass",
            &[class("high", 100, false), never],
        );
        let defaults = Fake::new(Preset::Svc).with_objects(
            "scheduling",
            "PriorityClass",
            &[class("usual", 7, true), class("also", 9, true)],
        );
        let resolved = |priority: i64, policy: &str, name: Option<&str>| {
            (priority, policy.to_owned(), name.map(str::to_owned))
        };
        for (fake, spec, expected) in [
            (&plain, json!({}), Ok(resolved(0, PREEMPTS, None))),
            (&plain, json!({"priority": 0}), Ok(resolved(0, PREEMPTS, None))),
            (&plain, json!({"priorityClassName": "high"}), Ok(resolved(100, PREEMPTS, Some("high")))),
            (&plain, json!({"priorityClassName": "never"}), Ok(resolved(-10, "Never", Some("never")))),
            (&defaults, json!({}), Ok(resolved(7, PREEMPTS, Some("usual")))),
            (
                &plain,
                json!({"priorityClassName": "gone"}),
                Err("pods \"p\" is forbidden: no PriorityClass with name gone was found"),
            ),
            (
                &plain,
                json!({"priority": 5}),
                Err(
                    "pods \"p\" is forbidden: the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name",
                ),
            ),
            (
                &plain,
                json!({"priorityClassName": "never", "preemptionPolicy": PREEMPTS}),
                Err(
                    "pods \"p\" is forbidden: the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name",
                ),
            ),
        ] {
            let plugin = Priority;
            let answer = fake
                .run_plugin(
                    &plugin,
                    TestedWrite::default(),
                    json!({"metadata": {"name": "p"}, "spec": spec.clone()}),
                )
                .await;
            match expected {
                Ok((priority, policy, name)) => {
                    assert_eq!(answer.message(), "", "{spec}");
                    let have = &answer.object["spec"];
                    assert_eq!(have["priority"], json!(priority), "{spec}");
                    assert_eq!(have["preemptionPolicy"], json!(policy), "{spec}");
                    assert_eq!(
                        have.get("priorityClassName").and_then(Value::as_str),
                        name.as_deref(),
                        "{spec}"
                    );
                }
                Err(message) => assert_eq!(answer.message(), message),
            }
        }
    }

    #[tokio::test]
    async fn update_keeps_resolved_priority_and_second_default_is_rejected() {
        let fake =
            Fake::new(Preset::Svc).with_objects("scheduling", "PriorityClass", &[class("usual", 7, true)]);
        let plugin = Priority;
        let old =
            Some(json!({"metadata": {"name": "p"}, "spec": {"priority": 3, "preemptionPolicy": "Never"}}));
        let update = TestedWrite { operation: Operation::Update, old, ..TestedWrite::default() };
        let answer = fake.run_plugin(&plugin, update, json!({"metadata": {"name": "p"}, "spec": {}})).await;
        assert_eq!(answer.object["spec"], json!({"priority": 3, "preemptionPolicy": "Never"}));

        let refusal =
            "is forbidden: PriorityClass usual is already marked as default. Only one default can exist";
        for (operation, object, refused) in [
            (Operation::Create, class("second", 1, true), true),
            (Operation::Create, class("second", 1, false), false),
            (Operation::Update, class("second", 1, true), true),
            (Operation::Update, class("usual", 1, true), false),
        ] {
            let write =
                TestedWrite { operation, kind: ("scheduling", "PriorityClass"), ..TestedWrite::default() };
            let answer = fake.run_plugin(&plugin, write, object.clone()).await;
            assert_eq!(answer.message().ends_with(refusal), refused, "{operation:?} {object}");
        }
    }
}
