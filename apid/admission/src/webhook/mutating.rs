//! MutatingAdmissionWebhook: calls webhooks one after the other; each may change the object.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::codec::{self, DecodeError, Limits};
use apimachinery::object::Object;
use apimachinery::status::Status;
use apply::json_patch;
use serde_json::json;

use super::dispatcher::{HookCall, HookFailure, Webhooks};
use super::hook::Hooks;
use crate::matching::WriteNamespace;
use crate::reinvocation::Reinvocation;
use crate::representation::Representation;
use crate::turn::Turn;
use crate::{Attributes, mutation};

impl Webhooks {
    /// Calls the mutating webhooks that match a write.
    pub(super) async fn call_mutating(
        &self,
        hooks: &Hooks,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Object>,
        reinvocation: &mut Reinvocation,
    ) -> Result<(), Status> {
        let environment = attributes.environment;
        let is_second_round = reinvocation.is_second_round;
        let calls = &mut reinvocation.webhooks;
        if is_second_round {
            calls.begin_second_round(object.as_deref());
        }
        let namespace = WriteNamespace::default();
        let mut turn = Turn::new(&*environment.clock);
        for (index, hook) in hooks.candidates(&attributes.served.group_resource.resource) {
            turn.pause().await;
            let matched = hook.constraints.matches(attributes, object.as_deref(), &namespace).await?;
            let Some(matched) = matched else { continue };
            // The review has a copy, because the response of the webhook can change the object.
            let copy = object.as_deref().map(|object| Cow::Owned(object.clone()));
            let objects = Arc::new(self.objects(&matched, attributes, copy)?);
            let call = self.prepare(index, hook, matched, attributes, objects).await?;
            let Some(call) = call else { continue };
            let call = HookCall { round: u8::from(is_second_round), ..call };
            let hook = &call.hook;
            if is_second_round && !calls.is_pending(&hook.id) {
                continue;
            }
            let started = environment.clock.monotonic();
            let result = self.call_and_patch(&call, attributes, object.as_deref_mut()).await;
            let mutated = matches!(result, Ok(true));
            let key = call.annotation_key(&environment.names, "mutation.webhook.admission");
            let value =
                json!({"configuration": hook.configuration, "webhook": hook.name, "mutated": mutated});
            attributes.recorder.annotate(key, value.to_string());
            if mutated {
                calls.record_change();
            }
            if hook.is_reinvocable {
                calls.record_call(&hook.id);
            }
            if let Some(status) = self.conclude(&call, attributes, result.err(), started) {
                return Err(status);
            }
        }
        if !is_second_round {
            calls.end_first_round(object.as_deref());
        }
        Ok(())
    }

    /// Calls a webhook and applies its patch. Returns whether the object changed.
    async fn call_and_patch(
        &self,
        call: &HookCall<'_>,
        attributes: &Attributes<'_>,
        object: Option<&mut Object>,
    ) -> Result<bool, HookFailure> {
        let response = self.call(call, attributes).await?;
        let Some(patch) = &response.patch else { return Ok(false) };
        let operations = parse_patch(patch).map_err(internal_failure)?;
        if operations.is_empty() {
            return Ok(false);
        }
        let (Some(object), Some(reviewed)) = (object, &call.objects.reviewed.new) else {
            return Err(internal_failure(format!(
                "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                call.hook.name
            )));
        };
        if response.patch_type != "JSONPatch" {
            let reason = format!("unsupported patch type {:?}", response.patch_type);
            return Err(HookFailure::calling(reason, 400));
        }
        let environment = attributes.environment;
        let (names, limits) = (&environment.names, environment.limits);
        let patched = mutation::apply_json_patch(&operations, Object::clone(reviewed), names, limits)
            .map_err(internal_failure)?;
        let representation = Representation::for_match(&call.matched, attributes);
        let restored = mutation::to_stored(patched, object, &representation, attributes)
            .map_err(HookFailure::Internal)?;
        if attributes.recorder.records_request_object() {
            // Only audit events with the object of the request contain patches.
            let key = call.annotation_key(names, "patch.webhook.admission");
            let value = json!({
                "configuration": call.hook.configuration,
                "webhook": call.hook.name,
                "patch": serde_json::from_slice::<serde_json::Value>(patch).unwrap_or_default(),
                "patchType": response.patch_type,
            });
            attributes.recorder.annotate(key, value.to_string());
        }
        if restored.object == *object {
            return Ok(false);
        }
        *object = restored.object;
        Ok(true)
    }
}

fn internal_failure(error: impl std::fmt::Display) -> HookFailure {
    HookFailure::Internal(Status::internal(error))
}

/// The reason why the patch of a response is unreadable.
#[derive(Debug, thiserror::Error)]
pub(super) enum PatchReadError {
    #[error(transparent)]
    Json(#[from] DecodeError),
    #[error(transparent)]
    Patch(#[from] json_patch::Error),
}

pub(super) fn parse_patch(patch: &[u8]) -> Result<Vec<json_patch::Operation>, PatchReadError> {
    let limits = Limits { bytes: patch.len(), ..Limits::BODY };
    Ok(json_patch::parse(codec::json::decode(patch, limits)?.value)?)
}
