//! Type check of admission policies: writes the warnings about expressions to the status of each policy.
//!
//! # Contract
//!
//! The controller checks a ValidatingAdmissionPolicy whose `status.observedGeneration` differs from its
//! generation, [`DEBOUNCE`] after its last change. The warnings do not change the effect of the policy.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::admission_expressions::type_check;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::actor::{Actor, Target, is_race};
use super::reflector::follow_names;
use super::stored;
use verbs::{ApiState, Collection};

use crate::ControllerState;

/// Pause between the last change of a policy and its check, so several edits of a policy cause one check.
const DEBOUNCE: Duration = Duration::from_secs(1);

/// Checks new and changed policies until the process ends.
pub(super) async fn run(state: Arc<ControllerState>) {
    let collection =
        stored::of_kind(&state.api_state, ("admissionregistration", "ValidatingAdmissionPolicy"));
    let Ok(policies) = collection else { return };
    let (observe, changed_names) = follow_names(&policies.items);
    let actor = state.controller("validatingadmissionpolicy-status-controller");
    tokio::join!(observe, check_changed(&actor, &policies, changed_names));
}

/// Checks each changed policy as soon as it has not changed for [`DEBOUNCE`].
async fn check_changed(
    actor: &Actor,
    policies: &Collection,
    mut changed_names: mpsc::UnboundedReceiver<String>,
) {
    let mut due: HashMap<String, Instant> = HashMap::new();
    loop {
        let next = due.values().min().copied();
        let next_check = next.unwrap_or_else(|| Instant::now() + DEBOUNCE);
        tokio::select! {
            name = changed_names.recv() => {
                let Some(name) = name else { return };
                due.insert(name, Instant::now() + DEBOUNCE);
            }
            () = tokio::time::sleep_until(next_check), if next.is_some() => {
                let now = Instant::now();
                let names: Vec<String> =
                    due.iter().filter(|(_, due_at)| **due_at <= now).map(|(name, _)| name.clone()).collect();
                for name in names {
                    due.remove(&name);
                    let Err(status) = check(actor, policies, &name).await else { continue };
                    // After a race, the notification about the concurrent change causes the next check.
                    if !is_race(&status) {
                        tracing::warn!(policy = name, reason = %status, "type check of an admission policy failed; retrying");
                        due.insert(name, Instant::now() + DEBOUNCE);
                    }
                }
            }
        }
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
