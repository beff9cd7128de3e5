//! Common part of both plugins: which webhooks match, and one call.

use std::sync::Arc;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;
use bytes::Bytes;
use webhooks::{WebhookCall, WebhookUsers};

use super::annotations;
use super::hook::{Hook, Hooks};
use super::metrics::ErrorType;
use super::review::{self, ResponseError, ReviewResponse};
use crate::match_conditions::{ConditionInput, ConditionResult};
use crate::matching::{MatchedResource, Matcher};
use crate::representation::Representation;
use crate::{
    Attributes, CompiledObjects, Environment, MaybeFuture, ObjectKind, Operation, PluginConfiguration,
};

/// Limit in bytes of a response.
const MAX_RESPONSE_BYTES: usize = 3 << 20;

/// Kinds whose writes never reach a webhook.
const EXEMPT_KINDS: [&str; 6] = [
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
];

/// Phase of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Mutating,
    Validating,
}

impl Phase {
    /// Value of the metric label `type`.
    fn metric_type(self) -> &'static str {
        match self {
            Phase::Mutating => "admit",
            Phase::Validating => "validating",
        }
    }

    /// Part of the key of audit annotations.
    fn annotation_part(self) -> &'static str {
        match self {
            Phase::Mutating => "mutation",
            Phase::Validating => "validating",
        }
    }

    fn configuration_kind(self) -> ObjectKind {
        match self {
            Phase::Mutating => ObjectKind::new("admissionregistration", "MutatingWebhookConfiguration"),
            Phase::Validating => ObjectKind::new("admissionregistration", "ValidatingWebhookConfiguration"),
        }
    }
}

/// Finds and calls the webhooks of one phase.
pub(super) struct Dispatcher {
    pub(super) environment: Environment,
    pub(super) phase: Phase,
    matcher: Matcher,
    hooks: CompiledObjects<Hooks>,
    users: Option<WebhookUsers>,
}

/// The objects of a write in the matched version.
pub(super) struct Invocation {
    pub(super) hook: Arc<Hook>,
    /// Position among all webhooks.
    pub(super) index: usize,
    pub(super) matched: MatchedResource,
    pub(super) object: Option<Object>,
    old: Option<Object>,
    uid: String,
    request: Map<String, Value>,
}

/// The reason why a call ends the write.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HookFailure {
    /// The webhook could not be called or its response is unusable; the failure policy applies.
    Calling { reason: String, code: u16 },
    /// The webhook denied the write.
    Denied(Status),
    /// An error of apid, to which the failure policy does not apply.
    Internal(Status),
}

impl HookFailure {
    fn calling(reason: impl Into<String>, code: u16) -> Self {
        HookFailure::Calling { reason: reason.into(), code }
    }
}

impl Dispatcher {
    pub(super) fn new(
        phase: Phase,
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, String> {
        let reader = Arc::clone(&environment.reader);
        Ok(Dispatcher {
            matcher: Matcher::new(environment),
            hooks: CompiledObjects::new(reader, phase.configuration_kind(), Hooks::compile),
            users: configuration.map(|given| users(given, environment)).transpose()?.flatten(),
            environment: environment.clone(),
            phase,
        })
    }

    /// The webhooks to compare with a write; None without any.
    pub(super) fn hooks(
        &self,
        attributes: &Attributes<'_>,
    ) -> MaybeFuture<'_, Result<Option<Arc<Hooks>>, Status>> {
        if is_exempt(attributes) {
            return MaybeFuture::Ready(Ok(None));
        }
        let resource = attributes.served.group_resource.resource.clone();
        match self.hooks.get() {
            MaybeFuture::Ready(hooks) => {
                MaybeFuture::Ready(hooks.map(|hooks| (!hooks.has_none(&resource)).then_some(hooks)))
            }
            pending => {
                pending.map(move |hooks| hooks.map(|hooks| (!hooks.has_none(&resource)).then_some(hooks)))
            }
        }
    }

    /// Decides whether a webhook is called for a write.
    ///
    /// # Errors
    ///
    /// The namespace is missing or unreadable; failed match conditions of a webhook that fails closed.
    pub(super) async fn invocation(
        &self,
        (index, hook): (usize, &Arc<Hook>),
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<Option<Invocation>, Status> {
        let matched = self.matcher.matches(&hook.constraints, attributes, object).await?;
        let Some(matched) = matched else { return Ok(None) };
        let invocation = self.represent((index, hook), matched, attributes, object)?;
        let Some(conditions) = hook.conditions() else { return Ok(Some(invocation)) };
        let input = ConditionInput {
            object: invocation.object.as_ref(),
            old: invocation.old.as_ref(),
            request: &invocation.request,
        };
        match conditions.evaluate(&input, attributes, &*self.environment.authorizer).await {
            ConditionResult::Matches => Ok(Some(invocation)),
            ConditionResult::Excluded => Ok(None),
            ConditionResult::Failed(_) if hook.ignores_failures => Ok(None),
            ConditionResult::Failed(reason) => {
                let name = self.name(attributes);
                Err(Status::forbidden(&attributes.served.group_resource, name, &reason))
            }
        }
    }

    /// The object name in reviews: a generated name is unknown before validation.
    fn name<'a>(&self, attributes: &Attributes<'a>) -> &'a str {
        let is_unknown = attributes.has_generated_name && self.phase == Phase::Mutating;
        if is_unknown { "" } else { attributes.name }
    }

    fn represent(
        &self,
        (index, hook): (usize, &Arc<Hook>),
        matched: MatchedResource,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<Invocation, Status> {
        let names = &self.environment.names;
        let registry = self.environment.registry.get();
        let requested = Representation::matched(&MatchedResource::Requested, attributes, &registry, names);
        let shown = Representation::matched(&matched, attributes, &registry, names);
        let mut new = object.map(|object| shown.show(object, attributes, names)).transpose()?;
        if let Some(new) = &mut new
            && self.phase == Phase::Mutating
            && attributes.operation == Operation::Create
            && attributes.subresource.is_empty()
        {
            hide_generated_fields(new, attributes);
        }
        let old = attributes.old.map(|old| shown.show(old, attributes, names)).transpose()?;
        let uid = self.environment.rng.uuid();
        let request = review::request_fields(&uid, attributes, &shown, &requested, self.name(attributes));
        Ok(Invocation { hook: Arc::clone(hook), index, object: new, old, uid, request, matched })
    }

    /// Calls a webhook. A denial is a failure. Warnings and audit annotations are recorded.
    pub(super) async fn call(
        &self,
        invocation: &Invocation,
        attributes: &Attributes<'_>,
    ) -> Result<ReviewResponse, HookFailure> {
        let hook = &invocation.hook;
        if attributes.dry_run && !hook.supports_dry_run {
            let text = format!("admission webhook {:?} does not support dry run", hook.name);
            return Err(HookFailure::Internal(Status::bad_request(text)));
        }
        let version = hook.review_version.ok_or_else(|| {
            let text = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            HookFailure::calling(text, 400)
        })?;
        let client = hook.client.as_ref();
        let client = client
            .map_err(|error| HookFailure::calling(format!("could not get REST client: {error}"), 400))?;
        let Invocation { object, old, request, uid, .. } = invocation;
        let names = &self.environment.names;
        let call = WebhookCall {
            body: Bytes::from(review::body(names, version, request.clone(), object.as_ref(), old.as_ref())),
            timeout: hook.timeout,
            response_bytes: MAX_RESPONSE_BYTES,
            sends_timeout: true,
        };
        let sent = self.environment.webhooks.post(client, self.users.as_ref(), call).await;
        let bytes = sent.map_err(|failure| {
            let code = match &failure {
                webhooks::CallFailure::Status { code, .. } => *code,
                _ => 503,
            };
            HookFailure::calling(format!("failed to call webhook: {failure}"), code)
        })?;
        let is_mutating = self.phase == Phase::Mutating;
        let response =
            review::read_response(&bytes, uid, names, version, is_mutating).map_err(|error| match error {
                ResponseError::Undecodable(error) => {
                    HookFailure::calling(format!("failed to call webhook: {error}"), 503)
                }
                ResponseError::Invalid(error) => {
                    HookFailure::calling(format!("received invalid webhook response: {error}"), 503)
                }
            })?;
        for (key, value) in &response.annotations {
            annotations::add(attributes.notes, hook, key, value.clone());
        }
        for warning in &response.warnings {
            attributes.notes.warn(warning.clone());
        }
        if response.is_allowed {
            Ok(response)
        } else {
            Err(HookFailure::Denied(review::denial(&hook.name, response.status.as_ref())))
        }
    }

    /// Counts a call and applies the failure policy. Returns the Status that ends the write.
    pub(super) fn conclude(
        &self,
        invocation: &Invocation,
        attributes: &Attributes<'_>,
        failure: Option<HookFailure>,
        started: std::time::Duration,
    ) -> Option<Status> {
        let (hook, metrics) = (&*invocation.hook, &self.environment.webhook_metrics);
        let (kind, operation) = (self.phase.metric_type(), attributes.operation);
        let took = self.environment.clock.monotonic().saturating_sub(started);
        let (error_type, code, status) = match failure {
            None => {
                metrics.call(hook, kind, operation, (200, false), took);
                return None;
            }
            Some(HookFailure::Calling { reason, code }) if hook.ignores_failures => {
                metrics.call(hook, kind, operation, (code, false), took);
                metrics.fail_open(hook, kind);
                tracing::warn!(
                    webhook = hook.name,
                    error = reason,
                    "admission webhook failed; the write continues"
                );
                let position = (u8::from(attributes.reinvoked), invocation.index);
                let (notes, names) = (attributes.notes, &self.environment.names);
                annotations::record_fail_open(notes, names, hook, self.phase.annotation_part(), position);
                return None;
            }
            Some(HookFailure::Calling { reason, code }) => {
                tracing::warn!(
                    webhook = hook.name,
                    error = reason,
                    "admission webhook failed; the write is rejected"
                );
                let error = format!("failed calling webhook {:?}: {reason}", hook.name);
                (ErrorType::CallingWebhook, code, Status::internal(error))
            }
            Some(HookFailure::Denied(status)) => (ErrorType::None, status.code, status),
            Some(HookFailure::Internal(status)) => (ErrorType::Internal, 0, status),
        };
        metrics.rejection(hook, kind, operation, error_type, code);
        metrics.call(hook, kind, operation, (code, true), took);
        Some(status)
    }
}

/// Removes the fields that the server sets after the mutating phase.
fn hide_generated_fields(object: &mut Object, attributes: &Attributes<'_>) {
    for field in GENERATED_FIELDS {
        object.remove_meta(field);
    }
    object.set_meta("creationTimestamp", Value::Null);
    if attributes.has_generated_name {
        object.remove_meta("name");
    }
}

/// Metadata that the server sets at a creation.
pub(super) const GENERATED_FIELDS: [&str; 3] = ["uid", "generation", "creationTimestamp"];

fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let kind = &attributes.resource.kind;
    !attributes.resource.is_custom()
        && kind.group() == "admissionregistration"
        && EXEMPT_KINDS.contains(&kind.kind())
}

/// Reads the file of the plugin configuration `WebhookAdmissionConfiguration`.
fn users(
    configuration: &PluginConfiguration,
    environment: &Environment,
) -> Result<Option<WebhookUsers>, String> {
    let group = ("apiserver.config", ["v1", "v1alpha1"].as_slice());
    configuration.decode(&environment.names, group, "WebhookAdmissionConfiguration", |fields| {
        let file = fields.text("kubeConfigFile");
        if file.is_empty() {
            return None;
        }
        let path = fields.path().child("kubeConfigFile");
        if !std::path::Path::new(&file).is_absolute() {
            fields.errors().add_text(&path, "must be an absolute path");
            return None;
        }
        WebhookUsers::load(file.as_ref())
            .map_err(|error| fields.errors().add_text(&path, &error.to_string()))
            .ok()
    })
}
