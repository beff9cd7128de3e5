//! Puts flow schemas and priority levels into force, and writes the condition `Dangling` of flow schemas: whether the
//! referenced priority level exists.

use std::collections::HashSet;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use flowcontrol::{Configuration, FlowControl};

use crate::ControllerState;
use crate::actor::{Actor, Target, ignore_race};
use crate::condition::{Condition, with_conditions};
use crate::runner::{Reconcile, Requeue, Runner};
use crate::stored;
use verbs::Collection;

pub(super) const FLOW_SCHEMA: (&str, &str) = ("flowcontrol.apiserver", "FlowSchema");
pub(super) const PRIORITY_LEVEL: (&str, &str) = ("flowcontrol.apiserver", "PriorityLevelConfiguration");

/// The controller, with one key for all objects.
struct FlowObjects {
    actor: Actor,
    schemas: Arc<Collection>,
    levels: Arc<Collection>,
    flow_control: Option<Arc<FlowControl>>,
}

/// Acts after each change of a flow schema or priority level, until the process ends. Each apid puts the objects into
/// force; `actor` writes the conditions while its apid leads.
pub(super) async fn run(state: &ControllerState, actor: Actor) {
    let kind = |kind| stored::of_kind(&state.api_state, kind);
    let (Ok(schemas), Ok(levels)) = (kind(FLOW_SCHEMA), kind(PRIORITY_LEVEL)) else { return };
    let runner = Runner::new(state, "priority_and_fairness_config_queue")
        .watch(&schemas.items, |_| Some(()))
        .watch(&levels.items, |_| Some(()))
        .watch_terms(state, || Some(()));
    let flow_control = state.flow_control.clone();
    runner.run(Arc::new(FlowObjects { actor, schemas, levels, flow_control })).await;
}

impl Reconcile for FlowObjects {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        let levels = stored::all(&self.levels).await?;
        let schemas = stored::all(&self.schemas).await?;
        if let Some(flow_control) = &self.flow_control {
            flow_control.configure(&Configuration::from_objects(&schemas, &levels));
        }
        if !self.actor.may_write() {
            return Ok(Requeue::No);
        }
        let level_names: HashSet<String> = levels.iter().map(|level| level.name().to_owned()).collect();
        let now = apimachinery::time::time(self.actor.api_state().clock.now());
        for schema in schemas {
            let Some(next) = with_dangling_condition(&schema, &level_names, &now) else { continue };
            let (collection, name) = (&*self.schemas, schema.name());
            let target = Target { collection, namespace: "", name, subresource: "status" };
            ignore_race(self.actor.update(target, next).await)?;
        }
        Ok(Requeue::No)
    }
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
