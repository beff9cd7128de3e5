//! MutatingAdmissionWebhook: calls webhooks one after the other; each may change the object.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::codec::{DecodeError, Limits, json};
use apimachinery::object::Object;
use apimachinery::status::Status;
use apply::json_patch;

use super::annotations;
use super::dispatcher::{Dispatcher, HookCall, HookFailure};
use super::hook::Hooks;
use crate::representation::Representation;
use crate::turn::Turn;
use crate::{
    Admission, Attributes, ConfigurePlugin, Environment, Interest, Operation, Phase, Plugin,
    PluginConfiguration, PluginConfigurationError, mutation,
};

/// The plugin MutatingAdmissionWebhook.
pub(crate) struct MutatingWebhooks(Dispatcher);

impl ConfigurePlugin for MutatingWebhooks {
    fn new(
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, PluginConfigurationError> {
        Dispatcher::new(Phase::Mutating, environment, configuration).map(MutatingWebhooks)
    }
}

impl MutatingWebhooks {
    async fn dispatch(
        &self,
        hooks: &Hooks,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Object>,
    ) -> Result<(), Status> {
        let notes = attributes.notes;
        if attributes.reinvoked {
            notes.reinvocation().webhooks.begin_second_round(object.as_deref());
        }
        let mut turn = Turn::new(&*self.0.environment.clock);
        for candidate in hooks.candidates(&attributes.served.group_resource.resource) {
            turn.pause().await;
            let constraints = &candidate.1.constraints;
            let matched = self.0.matcher.matches(constraints, attributes, object.as_deref()).await?;
            let Some(matched) = matched else { continue };
            // The review has a copy, because the response of the webhook can change the object.
            let copy = object.as_deref().map(|object| Cow::Owned(object.clone()));
            let objects = Arc::new(self.0.objects(&matched, attributes, copy)?);
            let call = self.0.prepare(candidate, matched, attributes, objects).await?;
            let Some(call) = call else { continue };
            let hook = &call.hook;
            if attributes.reinvoked && !notes.reinvocation().webhooks.is_pending(&hook.id) {
                continue;
            }
            let started = self.0.environment.clock.monotonic();
            let result = self.call(&call, attributes, object.as_deref_mut()).await;
            let mutated = matches!(result, Ok(true));
            let position = (u8::from(attributes.reinvoked), call.index);
            annotations::record_mutation(notes, &self.0.environment.names, hook, position, mutated);
            if mutated {
                notes.reinvocation().webhooks.record_change();
            }
            if hook.is_reinvocable {
                notes.reinvocation().webhooks.record_call(&hook.id);
            }
            if let Some(status) = self.0.conclude(&call, attributes, result.err(), started) {
                return Err(status);
            }
        }
        if !attributes.reinvoked {
            notes.reinvocation().webhooks.end_first_round(object.as_deref());
        }
        Ok(())
    }

    /// Calls a webhook and applies its patch. Returns whether the object changed.
    async fn call(
        &self,
        call: &HookCall<'_>,
        attributes: &Attributes<'_>,
        object: Option<&mut Object>,
    ) -> Result<bool, HookFailure> {
        let response = self.0.call(call, attributes).await?;
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
            return Err(HookFailure::Calling { reason, code: 400 });
        }
        let environment = &self.0.environment;
        let (names, limits) = (&environment.names, environment.limits);
        let patched = mutation::apply_json_patch(&operations, Object::clone(reviewed), names, limits)
            .map_err(internal_failure)?;
        let changed = self.restore(patched, call, attributes, object).map_err(HookFailure::Internal)?;
        if changed == *object {
            return Ok(false);
        }
        *object = changed;
        Ok(true)
    }

    /// Converts a patched object to the stored form, with the fields that the webhook did not see.
    fn restore(
        &self,
        patched: Object,
        call: &HookCall<'_>,
        attributes: &Attributes<'_>,
        before: &Object,
    ) -> Result<Object, Status> {
        let environment = &self.0.environment;
        let registry = environment.registry.get();
        let representation =
            Representation::for_match(&call.matched, attributes, &registry, &environment.names);
        mutation::to_stored(patched, before, &representation, attributes, environment)
            .map(|restored| restored.object)
    }
}

fn internal_failure(error: impl std::fmt::Display) -> HookFailure {
    HookFailure::Internal(Status::internal(error))
}

/// The reason why the patch of a response is unreadable.
#[derive(Debug, thiserror::Error)]
pub(super) enum PatchReadError {
    /// The patch is not JSON.
    #[error(transparent)]
    Json(#[from] DecodeError),
    /// The JSON is not a JSON patch.
    #[error(transparent)]
    Patch(#[from] json_patch::Error),
}

pub(super) fn parse_patch(patch: &[u8]) -> Result<Vec<json_patch::Operation>, PatchReadError> {
    let limits = Limits { bytes: patch.len(), ..Limits::BODY };
    Ok(json_patch::parse(json::decode(patch, limits)?.value)?)
}

impl Plugin for MutatingWebhooks {
    fn interest(&self) -> Interest {
        Interest::ALL_RESOURCES.on(&Operation::ALL)
    }

    fn mutate<'a>(&'a self, attributes: &'a Attributes<'a>, object: Option<&'a mut Object>) -> Admission<'a> {
        let hooks = self.0.hooks(attributes);
        hooks.if_some(move |hooks| async move { self.dispatch(&hooks, attributes, object).await })
    }
}
