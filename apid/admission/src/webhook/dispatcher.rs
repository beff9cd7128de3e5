//! The webhook plugins of both phases: selection of the webhooks for a write, and calls.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use apimachinery::status::{Reason, Status};
use bytes::Bytes;
use kinds::admission_expressions::REQUEST;
use webhooks::{WebhookCall, WebhookUsers};

use super::hook::{self, Hook, Hooks};
use super::metrics::ErrorType;
use super::review::{self, ReviewResponse};
use super::serialized_objects::SerializedObjects;
use crate::admission_request::{condition_request, request_fields};
use crate::authorization::AuthorizationAnswers;
use crate::expression_inputs::ExpressionInputs;
use crate::match_condition_metrics::ConditionsOwner;
use crate::match_conditions::{ConditionsError, MatchConditions};
use crate::matching::MatchedResource;
use crate::plugin_configuration::ConfigurationType;
use crate::reinvocation::Reinvocation;
use crate::representation::Representation;
use crate::reviewed_objects::ReviewedObjects;
use crate::{
    Attributes, CompiledObjects, Environment, Interest, ObjectKind, Operation, Phase, Plugin,
    PluginConfiguration, PluginConfigurationError, mutation,
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

/// MutatingAdmissionWebhook or ValidatingAdmissionWebhook: finds and calls the webhooks of one phase.
pub(crate) struct Webhooks {
    phase: Phase,
    hooks: CompiledObjects<Vec<Arc<Hook>>, Hooks>,
    users: Option<WebhookUsers>,
}

/// The call of a webhook for a write.
pub(super) struct HookCall<'a> {
    pub(super) hook: Arc<Hook>,
    /// Position among all webhooks.
    pub(super) index: usize,
    /// Round of the mutating phase: 0 or 1.
    pub(super) round: u8,
    pub(super) matched: MatchedResource,
    pub(super) objects: Arc<SerializedObjects<'a>>,
}

/// The failure of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HookFailure {
    /// The webhook could not be called or its response is unusable; the failure policy applies.
    Calling {
        /// The reason, for the client.
        reason: String,
        /// The reason without the response of the webhook, for the log.
        logged: String,
        code: u16,
    },
    /// The webhook denied the write.
    Denied(Status),
    /// Another error, to which the failure policy does not apply: an unusable patch, or no support of dry
    /// runs.
    Internal(Status),
}

impl HookCall<'_> {
    /// Key of an audit annotation about the call.
    pub(super) fn annotation_key(&self, names: &Names, group: &str) -> String {
        names.group_sub_key(group, &format!("round_{}_index_{}", self.round, self.index))
    }
}

impl HookFailure {
    pub(super) fn calling(reason: impl Into<String>, code: u16) -> Self {
        let reason = reason.into();
        HookFailure::Calling { logged: reason.clone(), reason, code }
    }
}

impl Plugin for Webhooks {
    const INTEREST: Interest = Interest::ALL_RESOURCES.on(&Operation::ALL);

    async fn mutate_in_round(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Object>,
        reinvocation: &mut Reinvocation,
    ) -> Result<(), Status> {
        match self.hooks(Phase::Mutating, attributes).await? {
            // The future of a call is large; most writes have no webhook.
            Some(hooks) => Box::pin(self.call_mutating(&hooks, attributes, object, reinvocation)).await,
            None => Ok(()),
        }
    }

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        match self.hooks(Phase::Validating, attributes).await? {
            Some(hooks) => Box::pin(self.call_validating(&hooks, attributes, object)).await,
            None => Ok(()),
        }
    }
}

impl Webhooks {
    /// Builds the plugin of a phase.
    ///
    /// # Errors
    ///
    /// The configuration is invalid.
    pub(crate) fn new(
        phase: Phase,
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, PluginConfigurationError> {
        let users = configuration.map(|configuration| load_users(configuration, environment)).transpose()?;
        let hooks = CompiledObjects::new(
            phase.configuration_kind(),
            |object| hook::compile_hooks(object),
            hook::index,
        );
        Ok(Webhooks { phase, hooks, users: users.flatten() })
    }

    /// The webhooks of a phase; None if no webhook can match the write.
    async fn hooks(&self, phase: Phase, attributes: &Attributes<'_>) -> Result<Option<Arc<Hooks>>, Status> {
        if phase != self.phase || is_exempt(attributes) {
            return Ok(None);
        }
        let resource = &attributes.served.group_resource.resource;
        let hooks = self.hooks.get(&attributes.environment.reader).await?;
        Ok(Some(hooks).filter(|hooks| hooks.candidates(resource).next().is_some()))
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
        let representation = Representation::for_match(matched, attributes);
        ReviewedObjects::new(object, &representation, attributes, self.phase).map(SerializedObjects::new)
    }

    /// Prepares the call of a matched webhook. Returns None if the match conditions exclude the write.
    ///
    /// # Errors
    ///
    /// 403: failed match conditions of a webhook that fails closed.
    pub(super) async fn prepare<'a>(
        &self,
        index: usize,
        hook: &Arc<Hook>,
        matched: MatchedResource,
        attributes: &Attributes<'_>,
        objects: Arc<SerializedObjects<'a>>,
    ) -> Result<Option<HookCall<'a>>, Status> {
        let result = match hook.conditions() {
            Some(conditions) => {
                self.evaluate(hook, conditions, &objects.reviewed, &matched, attributes).await
            }
            None => Ok(true),
        };
        match result {
            Ok(true) => Ok(Some(HookCall { hook: Arc::clone(hook), index, round: 0, matched, objects })),
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
        let requested = Representation::for_match(&MatchedResource::Requested, attributes);
        let representation = Representation::for_match(matched, attributes);
        request_fields(attributes, &representation, &requested, self.name(attributes))
    }

    /// Evaluates match conditions and observes their outcome.
    async fn evaluate(
        &self,
        hook: &Hook,
        conditions: &MatchConditions,
        objects: &ReviewedObjects<'_>,
        matched: &MatchedResource,
        attributes: &Attributes<'_>,
    ) -> Result<bool, ConditionsError> {
        let answers = Arc::<AuthorizationAnswers>::default();
        let environment = attributes.environment;
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
                condition_request: &request,
                namespace: None,
                authorizer: Some((&answers, attributes)),
            };
            conditions.evaluate(&inputs.condition_variables(), &*environment.clock)
        };
        let outcome = answers.evaluate(attributes, run).await;
        let phase = self.phase.webhook_type();
        let owner = ConditionsOwner { name: &hook.name, kind: "webhook", phase };
        environment.metrics.conditions.observe(owner, attributes.operation, &outcome);
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
        let environment = attributes.environment;
        let names = &environment.names;
        let now = environment.clock.monotonic();
        let left = attributes.deadline.map_or(hook.timeout, |deadline| deadline.saturating_sub(now));
        let uid = environment.rng.uuid();
        let request = self.request(&call.matched, attributes);
        let (object, old) = call.objects.texts();
        let webhook_call = WebhookCall {
            body: Bytes::from(review::body(names, version, &uid, &request, object, old)),
            timeout: hook.timeout.min(left),
            response_bytes: MAX_RESPONSE_BYTES,
            sends_timeout: true,
        };
        let result = environment.webhooks.post(client, self.users.as_ref(), webhook_call).await;
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
            let text = |reason: String| format!("failed to call webhook: {reason}");
            HookFailure::Calling { reason: text(failure.to_string()), logged: text(failure.log_text()), code }
        })?;
        let is_mutating = self.phase == Phase::Mutating;
        let response = review::read_response(&bytes, &uid, names, version, is_mutating)
            .map_err(|error| HookFailure::calling(error.to_string(), 503))?;
        for (key, value) in &response.annotations {
            // An annotation with an invalid or prefixed key is dropped.
            if kinds::format::qualified_name(key).is_empty() && !key.contains('/') {
                attributes.recorder.annotate(format!("{}/{key}", hook.name), value.clone());
            }
        }
        for warning in &response.warnings {
            attributes.recorder.warn(warning.clone());
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
        let (hook, environment) = (&*call.hook, attributes.environment);
        let (metrics, now) = (&environment.metrics.webhooks, environment.clock.monotonic());
        let (kind, operation, took) =
            (self.phase.webhook_type(), attributes.operation, now.saturating_sub(started));
        let log = |error: &str, consequence: &'static str| {
            if let Some(failures) = hook.failure_log.count(now) {
                tracing::warn!(
                    webhook = hook.name,
                    failures,
                    error,
                    "admission webhook failed; {consequence}"
                );
            }
        };
        let (error_type, code, status) = match failure {
            None => {
                metrics.observe_call(hook, kind, operation, 200, false, took);
                return None;
            }
            Some(HookFailure::Calling { logged, code, .. }) if hook.ignores_failures => {
                metrics.observe_call(hook, kind, operation, code, false, took);
                metrics.count_fail_open(hook, kind);
                log(&logged, "the write continues");
                let group = format!("failed-open.{}.webhook.admission", self.phase.annotation_part());
                attributes
                    .recorder
                    .annotate(call.annotation_key(&environment.names, &group), hook.name.clone());
                return None;
            }
            Some(HookFailure::Calling { reason, logged, code }) => {
                log(&logged, "the write is rejected");
                let error = format!("failed calling webhook {:?}: {reason}", hook.name);
                (ErrorType::CallingWebhook, code, Status::internal(error))
            }
            Some(HookFailure::Denied(status)) => (ErrorType::None, status.code, status),
            Some(HookFailure::Internal(status)) => (ErrorType::Internal, 0, status),
        };
        metrics.count_rejection(hook, kind, operation, error_type, code);
        metrics.observe_call(hook, kind, operation, code, true, took);
        Some(status)
    }
}

fn is_exempt(attributes: &Attributes<'_>) -> bool {
    let kind = attributes.resource;
    kind.stem() == Some("admissionregistration") && EXEMPT_KINDS.contains(&kind.name())
}

/// Loads the kubeconfig file of `WebhookAdmissionConfiguration`; None if the configuration has no file.
fn load_users(
    configuration: &PluginConfiguration,
    environment: &Environment,
) -> Result<Option<WebhookUsers>, PluginConfigurationError> {
    let expected = ConfigurationType {
        group: "apiserver.config",
        versions: &["v1", "v1alpha1"],
        kind: "WebhookAdmissionConfiguration",
    };
    configuration.decode(&environment.names, expected, |fields| {
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
