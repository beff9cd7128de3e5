//! Condition `Dangling` of flow schemas: whether the referenced priority level exists.

use std::collections::HashSet;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use tokio::sync::Notify;

use super::reconcile_on_changes;
use crate::actor::{Actor, Target, ignore_race};
use crate::condition::{Condition, with_conditions};
use crate::stored;

const FLOW_SCHEMA: (&str, &str) = ("flowcontrol.apiserver", "FlowSchema");
const PRIORITY_LEVEL: (&str, &str) = ("flowcontrol.apiserver", "PriorityLevelConfiguration");

/// Writes the condition after each change of a flow schema or priority level, until the process ends.
///
/// Notifies `wake` of every change, because changed start objects may have to be restored.
pub(super) async fn run(actor: Actor, wake: Arc<Notify>) {
    let (Ok(schemas), Ok(levels)) =
        (stored::of_kind(actor.api_state(), FLOW_SCHEMA), stored::of_kind(actor.api_state(), PRIORITY_LEVEL))
    else {
        return;
    };
    let both = [&schemas.items, &levels.items];
    let notify = || wake.notify_one();
    reconcile_on_changes(both, "the status of flow schemas", notify, || reconcile(&actor)).await;
}

async fn reconcile(actor: &Actor) -> Result<(), Status> {
    let api_state = actor.api_state();
    let schemas = stored::of_kind(api_state, FLOW_SCHEMA)?;
    let levels = stored::of_kind(api_state, PRIORITY_LEVEL)?;
    let level_names: HashSet<String> =
        stored::all(&levels).await?.iter().map(|level| level.name().to_owned()).collect();
    let now = apimachinery::time::time(api_state.clock.now());
    for schema in stored::all(&schemas).await? {
        let Some(next) = with_dangling_condition(&schema, &level_names, &now) else { continue };
        let target =
            Target { collection: &schemas, namespace: "", name: schema.name(), subresource: "status" };
        ignore_race(actor.update(target, next).await)?;
    }
    Ok(())
}

/// Returns the flow schema with the correct condition, or None if its condition is correct already.
fn with_dangling_condition(schema: &Object, level_names: &HashSet<String>, now: &str) -> Option<Object> {
    let level = schema.str_at(&["spec", "priorityLevelConfiguration", "name"]).unwrap_or("");
    let names = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status_is_true, reason, message) = match level_names.contains(level) {
        true => (false, "Found", format!("{names} and it exists")),
        false => (true, "NotFound", format!("{names} but there is no such object")),
    };
    with_conditions(schema, &[Condition { kind: "Dangling", status_is_true, reason, message }], now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dangling_condition_time_changes_only_with_status() {
        let level_names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<HashSet<_>>();
        let schema = |level: &str| {
            let schema = json!({
                "metadata": {"name": "s"}, "spec": {"priorityLevelConfiguration": {"name": level}},
                "status": {"conditions": [{"type": "Other"}]},
            });
            Object::from_value(schema).unwrap()
        };
        let conditions = |object: &Object| object.at(&["status", "conditions"]).unwrap().clone();
        let first = with_dangling_condition(&schema("a"), &level_names(&["a"]), "1").unwrap();
        assert_eq!(
            conditions(&first),
            json!([{"type": "Other"}, {
                "type": "Dangling", "status": "False", "reason": "Found", "lastTransitionTime": "1",
                "message": "This FlowSchema references the PriorityLevelConfiguration object named \"a\" and it exists",
            }])
        );
        assert_eq!(with_dangling_condition(&first, &level_names(&["a"]), "2"), None);
        let gone = with_dangling_condition(&first, &level_names(&[]), "3").unwrap();
        assert_eq!(conditions(&gone)[1]["status"], "True");
        assert_eq!(conditions(&gone)[1]["lastTransitionTime"], "3");
        let mut other = gone;
        other.set("spec", json!({"priorityLevelConfiguration": {"name": "b"}}));
        let other = with_dangling_condition(&other, &level_names(&["a"]), "4").unwrap();
        assert_eq!(conditions(&other)[1]["lastTransitionTime"], "3", "the status did not change");
    }
}
