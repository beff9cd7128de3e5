//! Type check of admission policies: writes the warnings about expressions to the status of each policy.
//!
//! # Contract
//!
//! The controller checks a ValidatingAdmissionPolicy whose `status.observedGeneration` differs from its
//! generation, a second after the change. The warnings do not change the effect of the policy.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::admission_expressions::type_check;
use serde_json::{Map, Value, json};

use super::actor::{Actor, Target};
use super::runner::{Reconcile, Requeue, Runner};
use super::stored;
use verbs::{ApiState, Collection};

use crate::ControllerState;

/// The controller; its keys are names of policies.
struct TypeChecks {
    actor: Actor,
    policies: Arc<Collection>,
}

/// Checks new and changed policies until the process ends.
pub(super) async fn run(state: Arc<ControllerState>) {
    let collection =
        stored::of_kind(&state.api_state, ("admissionregistration", "ValidatingAdmissionPolicy"));
    let Ok(policies) = collection else { return };
    let runner = Runner::new(&state, "validatingadmissionpolicy-status")
        // Several edits of a policy cause one check.
        .debounce(Duration::from_secs(1))
        .watch(&policies.items, |event| event.existing_name());
    let actor = state.controller("validatingadmissionpolicy-status-controller");
    runner.run(Arc::new(TypeChecks { actor, policies })).await;
}

impl Reconcile for TypeChecks {
    type Key = String;

    async fn reconcile(&self, name: &String) -> Result<Requeue, Status> {
        check(&self.actor, &self.policies, name).await?;
        Ok(Requeue::No)
    }
}

/// Checks one policy, unless its status already has the result for its generation.
async fn check(actor: &Actor, policies: &Collection, name: &str) -> Result<(), Status> {
    let Some(policy) = stored::get(policies, "", name).await? else { return Ok(()) };
    if policy.at(&["status", "observedGeneration"]).and_then(Value::as_i64) == Some(policy.generation()) {
        return Ok(());
    }
    let status = checked_status(&policy, actor.api_state());
    let mut updated = policy;
    updated.set("status", status);
    let target = Target { collection: policies, namespace: "", name, subresource: "status" };
    actor.update(target, updated).await.map(drop)
}

/// Returns the status of a policy with the warnings of the type check and the checked generation.
fn checked_status(policy: &Object, api_state: &ApiState) -> Value {
    let warnings = type_check(policy, &api_state.kinds.registry());
    let warnings: Vec<Value> = warnings
        .into_iter()
        .map(|warning| json!({"fieldRef": warning.field, "warning": warning.warning}))
        .collect();
    let mut type_checking = Map::new();
    if !warnings.is_empty() {
        type_checking.insert("expressionWarnings".to_owned(), warnings.into());
    }
    let mut status = policy.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    status.insert("observedGeneration".to_owned(), policy.generation().into());
    status.insert("typeChecking".to_owned(), Value::Object(type_checking));
    Value::Object(status)
}
