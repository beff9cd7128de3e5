//! The part that both webhook plugins share: selection of the webhooks for a write, and calls.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::{Reason, Status};
use bytes::Bytes;
use kinds::admission_expressions::REQUEST;
use webhooks::{WebhookCall, WebhookUsers};

use super::annotations;
use super::hook::{self, Hook, Hooks};
use super::metrics::ErrorType;
use super::review::{self, ReviewResponse};
use super::serialized_objects::SerializedObjects;
use crate::admission_request::{condition_request, request_fields};
use crate::authorization::AuthorizationAnswers;
use crate::expression_inputs::{ExpressionInputs, authorizer_variables};
use crate::match_condition_metrics::ConditionsOwner;
use crate::match_conditions::{ConditionsError, MatchConditions};
use crate::matching::{MatchedResource, Matcher};
use crate::representation::Representation;
use crate::reviewed_objects::ReviewedObjects;
use crate::{
    Attributes, CompiledObjects, Environment, MaybeFuture, ObjectKind, Phase, PluginConfiguration,
    PluginConfigurationError, mutation,
};

/// Maximum size of a webhook response in bytes; with a larger response the call fails.
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

impl Phase {
    /// Value of the label `type` in the metrics of webhooks.
    fn webhook_type(self) -> &'static str {
        match self {
            Phase::Mutating => "admit",
            Phase::Validating => "validating",
        }
    }

    /// Part of the key of audit annotations about webhooks.
    fn annotation_part(self) -> &'static str {
        match self {
            Phase::Mutating => "mutation",
            Phase::Validating => "validating",
        }
    }

    /// Kind of the configurations of webhooks.
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
    pub(super) matcher: Matcher,
    hooks: CompiledObjects<Hooks>,
    users: Option<WebhookUsers>,
}

/// The call of a webhook for a write.
pub(super) struct HookCall<'a> {
    pub(super) hook: Arc<Hook>,
    /// Position among all webhooks.
    pub(super) index: usize,
    pub(super) matched: MatchedResource,
    pub(super) objects: Arc<SerializedObjects<'a>>,
}

/// The failure of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HookFailure {
    /// The webhook could not be called or its response is unusable; the failure policy applies.
    Calling { reason: String, code: u16 },
    /// The webhook denied the write.
    Denied(Status),
    /// Another error, to which the failure policy does not apply: an unusable patch, or no support of dry
    /// runs.
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
    ) -> Result<Self, PluginConfigurationError> {
        let reader = Arc::clone(&environment.reader);
        Ok(Dispatcher {
            matcher: Matcher::new(environment),
            hooks: CompiledObjects::new(reader, phase.configuration_kind(), hook::compile),
            users: configuration
                .map(|configuration| load_users(configuration, environment))
                .transpose()?
                .flatten(),
            environment: environment.clone(),
            phase,
        })
    }

    /// The webhooks of this phase; None if no webhook can match the write.
    pub(super) fn hooks<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
    ) -> MaybeFuture<'a, Result<Option<Arc<Hooks>>, Status>> {
        if is_exempt(attributes) {
            return MaybeFuture::Ready(Ok(None));
        }
        let resource = &attributes.served.group_resource.resource;
        self.hooks
            .get()
            .map(move |hooks| Ok(Some(hooks?).filter(|hooks| hooks.candidates(resource).next().is_some())))
    }

    /// The objects of a write in a matched version.
    ///
    /// # Errors
    ///
    /// 500: the version cannot represent an object.
    pub(super) fn objects<'a>(
        &self,
        matched: &MatchedResource,
        attributes: &Attributes<'a>,
        object: Option<Cow<'a, Object>>,
    ) -> Result<SerializedObjects<'a>, Status> {
        let environment = &self.environment;
        let registry = environment.registry.get();
        let representation = Representation::for_match(matched, attributes, &registry, &environment.names);
        ReviewedObjects::new(object, &representation, attributes, environment, self.phase)
            .map(SerializedObjects::new)
    }

    /// Prepares the call of a matched webhook. Returns None if the match conditions exclude the write.
    ///
    /// # Errors
    ///
    /// 403: failed match conditions of a webhook that fails closed.
    pub(super) async fn prepare<'a>(
        &self,
        (index, hook): (usize, &Arc<Hook>),
        matched: MatchedResource,
        attributes: &Attributes<'_>,
        objects: Arc<SerializedObjects<'a>>,
    ) -> Result<Option<HookCall<'a>>, Status> {
        let result = match hook.conditions() {
            Some(conditions) => {
                self.evaluate((hook, conditions), &objects.reviewed, &matched, attributes).await
            }
            None => Ok(true),
        };
        match result {
            Ok(true) => Ok(Some(HookCall { hook: Arc::clone(hook), index, matched, objects })),
            Ok(false) => Ok(None),
            Err(_) if hook.ignores_failures => Ok(None),
            Err(error) => {
                let name = self.name(attributes);
                Err(Status::forbidden(&attributes.served.group_resource, name, &error.to_string()))
            }
        }
    }

    /// The fields of the request in a review.
    fn request(&self, matched: &MatchedResource, attributes: &Attributes<'_>) -> Map<String, Value> {
        let names = &self.environment.names;
        let registry = self.environment.registry.get();
        let requested = Representation::for_match(&MatchedResource::Requested, attributes, &registry, names);
        let representation = Representation::for_match(matched, attributes, &registry, names);
        request_fields(attributes, &representation, &requested, self.name(attributes))
    }

    /// Evaluates match conditions and observes their outcome.
    async fn evaluate(
        &self,
        (hook, conditions): (&Hook, &MatchConditions),
        objects: &ReviewedObjects<'_>,
        matched: &MatchedResource,
        attributes: &Attributes<'_>,
    ) -> Result<bool, ConditionsError> {
        let answers = Arc::<AuthorizationAnswers>::default();
        let request = match conditions.uses(REQUEST) {
            true => Value::Object(condition_request(self.request(matched, attributes))),
            false => Value::Null,
        };
        let run = || {
            let inputs = ExpressionInputs {
                object: objects.new.as_deref(),
                old: objects.old.as_deref(),
                param: None,
                request: &request,
                namespace: None,
            };
            let mut variables = inputs.variables();
            variables.extend(authorizer_variables(&answers, attributes));
            conditions.evaluate(&variables, &*self.environment.clock)
        };
        let outcome = answers.evaluate(attributes.user, &self.environment, run).await;
        let phase = self.phase.webhook_type();
        let owner = ConditionsOwner { name: &hook.name, kind: "webhook", phase };
        self.environment.metrics.conditions.observe(owner, attributes.operation, &outcome);
        outcome.result
    }

    /// The object name in reviews; `""` for a generated name in the mutating phase.
    fn name<'a>(&self, attributes: &Attributes<'a>) -> &'a str {
        match self.phase {
            Phase::Mutating => mutation::visible_name(attributes),
            Phase::Validating => attributes.request_name(),
        }
    }

    /// Calls a webhook and records the warnings and audit annotations of its response. A denial is an error.
    pub(super) async fn call(
        &self,
        call: &HookCall<'_>,
        attributes: &Attributes<'_>,
    ) -> Result<ReviewResponse, HookFailure> {
        let hook = &call.hook;
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
        let names = &self.environment.names;
        let now = self.environment.clock.monotonic();
        let left = attributes.deadline.map_or(hook.timeout, |deadline| deadline.saturating_sub(now));
        let (objects, uid) = (&call.objects, self.environment.rng.uuid());
        let request = self.request(&call.matched, attributes);
        let webhook_call = WebhookCall {
            body: Bytes::from(review::body(names, version, &uid, &request, objects.texts())),
            timeout: hook.timeout.min(left),
            response_bytes: MAX_RESPONSE_BYTES,
            sends_timeout: true,
        };
        let result = self.environment.webhooks.post(client, self.users.as_ref(), webhook_call).await;
        let is_cut = left < hook.timeout;
        if is_cut && matches!(&result, Err(webhooks::CallFailure::Timeout { .. })) {
            // The request has no time left, so the failure policy of the webhook does not apply.
            let text = "Timeout: request did not complete within the allotted timeout";
            return Err(HookFailure::Internal(Status::failure(Reason::Timeout, text)));
        }
        let bytes = result.map_err(|failure| {
            let code = match &failure {
                webhooks::CallFailure::Status { code, .. } => *code,
                _ => 503,
            };
            HookFailure::calling(format!("failed to call webhook: {failure}"), code)
        })?;
        let is_mutating = self.phase == Phase::Mutating;
        let response = review::read_response(&bytes, &uid, names, version, is_mutating)
            .map_err(|error| HookFailure::calling(error.to_string(), 503))?;
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

    /// Observes a call in the metrics and applies the failure policy. Returns the Status that ends the write,
    /// or None if the write continues.
    pub(super) fn conclude(
        &self,
        call: &HookCall<'_>,
        attributes: &Attributes<'_>,
        failure: Option<HookFailure>,
        started: std::time::Duration,
    ) -> Option<Status> {
        let (hook, metrics) = (&*call.hook, &self.environment.metrics.webhooks);
        let (kind, operation) = (self.phase.webhook_type(), attributes.operation);
        let took = self.environment.clock.monotonic().saturating_sub(started);
        let (error_type, code, status) = match failure {
            None => {
                metrics.observe_call(hook, kind, operation, (200, false), took);
                return None;
            }
            Some(HookFailure::Calling { reason, code }) if hook.ignores_failures => {
                metrics.observe_call(hook, kind, operation, (code, false), took);
                metrics.count_fail_open(hook, kind);
                if let Some(failures) = hook.failure_log.count(self.environment.clock.monotonic()) {
                    tracing::warn!(
                        webhook = hook.name,
                        failures,
                        error = reason,
                        "admission webhook failed; the write continues"
                    );
                }
                let position = (u8::from(attributes.reinvoked), call.index);
                let (notes, names) = (attributes.notes, &self.environment.names);
                annotations::record_fail_open(notes, names, hook, self.phase.annotation_part(), position);
                return None;
            }
            Some(HookFailure::Calling { reason, code }) => {
                if let Some(failures) = hook.failure_log.count(self.environment.clock.monotonic()) {
                    tracing::warn!(
                        webhook = hook.name,
                        failures,
                        error = reason,
                        "admission webhook failed; the write is rejected"
                    );
                }
                let error = format!("failed calling webhook {:?}: {reason}", hook.name);
                (ErrorType::CallingWebhook, code, Status::internal(error))
            }
            Some(HookFailure::Denied(status)) => (ErrorType::None, status.code, status),
            Some(HookFailure::Internal(status)) => (ErrorType::Internal, 0, status),
        };
        metrics.count_rejection(hook, kind, operation, error_type, code);
        metrics.observe_call(hook, kind, operation, (code, true), took);
        Some(status)
    }
}

fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let kind = &attributes.resource.kind;
    !attributes.resource.is_custom()
        && kind.group() == "admissionregistration"
        && EXEMPT_KINDS.contains(&kind.kind())
}

/// Loads the kubeconfig file of `WebhookAdmissionConfiguration`; None if the configuration has no file.
fn load_users(
    configuration: &PluginConfiguration,
    environment: &Environment,
) -> Result<Option<WebhookUsers>, PluginConfigurationError> {
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
