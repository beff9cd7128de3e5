//! ValidatingAdmissionPolicy: judges writes by the expressions of stored policies.
//!
//! # Contract
//!
//! A policy judges a write if its constraints, those of a binding, and its match conditions match. Each parameter of
//! the binding leads to one evaluation. A failed validation denies the write, adds a warning or an audit annotation,
//! as the binding says. The first denial is the response. Policies are in the order of their names.
//!
//! # Invariants
//!
//! INVARIANT (fresh policy objects): a write is judged by the policies, bindings and parameters that were acknowledged
//! before its arrival.
//! INVARIANT (fast path): a write whose resource no policy names costs one lookup, without a task switch.
//! INVARIANT (no lock-out): policies do not judge writes of policies, bindings and webhook configurations, nor reviews.

mod compiled;
mod evaluate;
mod parameters;
mod policies;
mod variables;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::{Cause, Reason, Status};
use kinds::admission_expressions::REQUEST;
use kinds::{Registry, Resource};
use serde_json::json;

use self::compiled::CompiledPolicy;
use self::evaluate::{Failure, FailurePolicy, Outcome, evaluate};
use self::policies::{Binding, Bindings, Policies, Policy};
use crate::admission_request::{condition_request, request_fields};
use crate::authorization::AuthorizationAnswers;
use crate::compiled_objects::CompiledObjects;
use crate::expression_inputs::{ExpressionInputs, authorizer_variables};
use crate::matching::{MatchedResource, Matcher};
use crate::representation::Representation;
use crate::{Attributes, Environment, MaybeFuture, ObjectKind, Operation, Plugin};

const POLICY: ObjectKind = ObjectKind::new("admissionregistration", "ValidatingAdmissionPolicy");
const BINDING: ObjectKind = ObjectKind::new("admissionregistration", "ValidatingAdmissionPolicyBinding");

/// Maximum size of the value of an audit annotation in bytes.
const ANNOTATION_MAX: usize = 10 * 1024;

/// Duration of an evaluation after which other tasks of the thread run first.
const LONG_EVALUATION: Duration = Duration::from_millis(1);

/// The plugin.
pub(crate) struct ValidatingAdmissionPolicy {
    environment: Environment,
    matcher: Matcher,
    policies: CompiledObjects<Policies>,
    bindings: CompiledObjects<Bindings>,
}

impl ValidatingAdmissionPolicy {
    pub(crate) fn new(environment: &Environment) -> Self {
        let reader = &environment.reader;
        ValidatingAdmissionPolicy {
            matcher: Matcher::new(environment),
            policies: CompiledObjects::new(Arc::clone(reader), POLICY, Policies::new),
            bindings: CompiledObjects::new(Arc::clone(reader), BINDING, |objects, _| Bindings::new(objects)),
            environment: environment.clone(),
        }
    }

    /// Judges a write by all policies whose rules match.
    async fn judge(
        &self,
        policies: &Policies,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let bindings = self.bindings.get().get().await?;
        let mut write = Write::new(self, attributes, object);
        for policy in policies.candidates(&attributes.served.group_resource.resource) {
            write.apply(policy, bindings.of(policy)).await?;
        }
        write.finish()
    }
}

impl Plugin for ValidatingAdmissionPolicy {
    fn handles(&self, _operation: Operation) -> bool {
        true
    }

    fn validate<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a Object>,
    ) -> MaybeFuture<'a, Result<(), Status>> {
        if is_exempt(attributes.resource) {
            return MaybeFuture::Ready(Ok(()));
        }
        match self.policies.get() {
            MaybeFuture::Ready(Err(status)) => MaybeFuture::Ready(Err(status)),
            MaybeFuture::Ready(Ok(policies)) => {
                let is_concerned = policies
                    .candidates(&attributes.served.group_resource.resource)
                    .any(|policy| self.matcher.rules_match(&policy.constraints, attributes).is_some());
                if !is_concerned {
                    return MaybeFuture::Ready(Ok(()));
                }
                MaybeFuture::later(async move { self.judge(&policies, attributes, object).await })
            }
            MaybeFuture::Pending(policies) => {
                MaybeFuture::later(async move { self.judge(&*policies.await?, attributes, object).await })
            }
        }
    }
}

/// Whether no policy judges writes to a resource.
fn is_exempt(resource: &Resource) -> bool {
    !resource.is_custom()
        && matches!(resource.kind.group(), "admissionregistration" | "authentication" | "authorization")
}

/// Name of the namespace of a write; `""` for cluster-scoped objects and for Namespaces.
fn namespace_of<'a>(attributes: &Attributes<'a>) -> &'a str {
    if attributes.is_of(ObjectKind::NAMESPACE) { "" } else { attributes.namespace }
}

/// The objects of a write in one version.
struct ReviewedObjects<'a> {
    new: Option<Cow<'a, Object>>,
    old: Option<Cow<'a, Object>>,
}

/// A write while policies judge it.
struct Write<'w> {
    plugin: &'w ValidatingAdmissionPolicy,
    attributes: &'w Attributes<'w>,
    object: Option<&'w Object>,
    registry: Arc<Registry>,
    answers: Arc<AuthorizationAnswers>,
    /// The first denial.
    denial: Option<Denial>,
    /// Whether an audit annotation shows a failed validation. The first one stays.
    has_failure_annotation: bool,
}

/// A denial of a write.
struct Denial {
    message: String,
    reason: Reason,
}

impl<'w> Write<'w> {
    fn new(
        plugin: &'w ValidatingAdmissionPolicy,
        attributes: &'w Attributes<'w>,
        object: Option<&'w Object>,
    ) -> Self {
        Write {
            plugin,
            attributes,
            object,
            registry: plugin.environment.registry.get(),
            answers: Arc::default(),
            denial: None,
            has_failure_annotation: false,
        }
    }

    /// Judges the write by one policy and its bindings.
    async fn apply(&mut self, policy: &Policy, bindings: &[Binding]) -> Result<(), Status> {
        if bindings.is_empty() {
            return Ok(());
        }
        let (matcher, attributes) = (&self.plugin.matcher, self.attributes);
        let matched = match matcher.matches(&policy.constraints, attributes, self.object).await {
            Ok(Some(matched)) => matched,
            Ok(None) => return Ok(()),
            Err(status) => {
                self.deny_configuration(policy, None, &status.message);
                return Ok(());
            }
        };
        let registry = Arc::clone(&self.registry);
        let param_resource = match policy.param_kind.as_ref().map(|kind| kind.resource(&registry)).transpose()
        {
            Ok(resource) => resource,
            Err(reason) => {
                self.deny_configuration(policy, None, &reason);
                return Ok(());
            }
        };
        let mut objects: Option<ReviewedObjects<'_>> = None;
        let mut annotations = Annotations::default();
        for binding in bindings {
            match matcher.matches(&binding.constraints, attributes, self.object).await {
                Ok(Some(_)) => {}
                Ok(None) => continue,
                Err(status) => {
                    self.deny_configuration(policy, Some(binding), &status.message);
                    continue;
                }
            }
            let environment = &self.plugin.environment;
            let namespace = attributes.request_namespace();
            let reference = binding.param_ref.as_ref();
            let params = match parameters::collect(param_resource, reference, namespace, environment).await {
                Ok(params) => params,
                Err(reason) => {
                    self.deny_configuration(policy, Some(binding), &reason);
                    continue;
                }
            };
            if objects.is_none() && !params.is_empty() {
                match self.objects(&matched) {
                    Ok(reviewed) => objects = Some(reviewed),
                    Err(status) => {
                        let reason = format!("failed to convert object version: {}", status.message);
                        self.deny_configuration(policy, Some(binding), &reason);
                        continue;
                    }
                }
            }
            let Some(objects) = &objects else { continue };
            for param in params {
                let outcome = self.evaluate(policy, &matched, objects, param.as_deref()).await?;
                self.record(policy, binding, outcome, &mut annotations);
            }
        }
        for (key, values) in annotations.0 {
            self.attributes.notes.annotate(format!("{}/{key}", policy.name()), values.join(", "));
        }
        Ok(())
    }

    /// The objects of the write in a matched version.
    fn objects(&self, matched: &MatchedResource) -> Result<ReviewedObjects<'w>, Status> {
        let (attributes, names) = (self.attributes, &self.plugin.environment.names);
        let representation = Representation::matched(matched, attributes, &self.registry, names);
        let convert = |object: &'w Object| representation.convert(Cow::Borrowed(object), names);
        Ok(ReviewedObjects {
            new: self.object.map(convert).transpose()?,
            old: attributes.old.map(convert).transpose()?,
        })
    }

    /// The value of the variable `request`.
    fn request(&self, matched: &MatchedResource) -> Map<String, Value> {
        let (attributes, names) = (self.attributes, &self.plugin.environment.names);
        let registry = &self.registry;
        let requested = MatchedResource::Requested;
        let requested = Representation::matched(&requested, attributes, registry, names);
        let matched = Representation::matched(matched, attributes, registry, names);
        request_fields(attributes, &matched, &requested, attributes.name)
    }

    /// Evaluates a policy with one parameter, until all authorization checks have answers.
    async fn evaluate(
        &self,
        policy: &Policy,
        matched: &MatchedResource,
        objects: &ReviewedObjects<'_>,
        param: Option<&Object>,
    ) -> Result<Outcome, Status> {
        let (attributes, environment) = (self.attributes, &self.plugin.environment);
        let compiled = policy.compiled();
        let request = match compiled.uses_request {
            true => Value::Object(self.request(matched)),
            false => Value::Null,
        };
        let condition_request = match &request {
            Value::Object(fields) if compiled.conditions.uses(REQUEST) => {
                Value::Object(condition_request(fields.clone()))
            }
            _ => Value::Null,
        };
        let namespace = match namespace_of(attributes) {
            name if compiled.uses_namespace && !name.is_empty() => {
                let namespace = environment.reader.namespace(name).get().await?;
                Some(self.represent_namespace(namespace)?)
            }
            _ => None,
        };
        loop {
            let started = environment.clock.monotonic();
            let outcome = {
                let inputs = ExpressionInputs {
                    object: objects.new.as_deref(),
                    old: objects.old.as_deref(),
                    param,
                    request: &request,
                    namespace: namespace.as_deref(),
                };
                self.evaluate_once(compiled, policy.failure_policy, &inputs, &condition_request)
            };
            if environment.clock.monotonic().saturating_sub(started) > LONG_EVALUATION {
                tokio::task::yield_now().await;
            }
            let Some(check) = self.answers.take_missing() else { return Ok(outcome) };
            self.answers.decide(check, attributes.user, &*environment.authorizer).await;
        }
    }

    fn evaluate_once(
        &self,
        compiled: &CompiledPolicy,
        failure_policy: FailurePolicy,
        inputs: &ExpressionInputs<'_>,
        condition_request: &Value,
    ) -> Outcome {
        let authorizer = || match compiled.uses_authorizer {
            true => Some(authorizer_variables(&self.answers, self.attributes)),
            false => None,
        };
        let mut variables = inputs.variables();
        variables.extend(authorizer().into_iter().flatten());
        if compiled.conditions.is_empty() {
            return evaluate(compiled, failure_policy, &[], &variables);
        }
        let of_conditions = ExpressionInputs { namespace: None, request: condition_request, ..*inputs };
        let mut conditions = of_conditions.variables();
        conditions.extend(authorizer().into_iter().flatten());
        evaluate(compiled, failure_policy, &conditions, &variables)
    }

    fn represent_namespace(&self, namespace: Arc<Object>) -> Result<Arc<Object>, Status> {
        let names = &self.plugin.environment.names;
        match self.registry.find_kind("", "Namespace") {
            Some(resource) if !resource.is_sent_as_stored(names) => {
                let mut namespace = Arc::unwrap_or_clone(namespace);
                resource.represent(&mut namespace, names).map_err(Status::internal)?;
                Ok(Arc::new(namespace))
            }
            _ => Ok(namespace),
        }
    }

    /// Records the outcome of one evaluation.
    fn record(
        &mut self,
        policy: &Policy,
        binding: &Binding,
        outcome: Outcome,
        annotations: &mut Annotations,
    ) {
        for failure in &outcome.failures {
            for action in &binding.actions {
                match action.as_str() {
                    "Deny" => self.deny(policy, Some(binding), &failure.message, failure.reason),
                    "Audit" => self.annotate_failure(binding, failure),
                    "Warn" => self.attributes.notes.warn(format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        policy.name(),
                        binding.name,
                        failure.message
                    )),
                    _ => {}
                }
            }
        }
        for (key, value) in outcome.annotations {
            annotations.add(key, value);
        }
        for error in &outcome.annotation_errors {
            self.deny(policy, Some(binding), error, Reason::Invalid);
        }
    }

    fn annotate_failure(&mut self, binding: &Binding, failure: &Failure) {
        if std::mem::replace(&mut self.has_failure_annotation, true) {
            return;
        }
        let value = json!([{
            "message": failure.message,
            "policy": binding.policy,
            "binding": binding.name,
            "expressionIndex": failure.index,
            "validationActions": binding.actions,
        }]);
        let names = &self.plugin.environment.names;
        let key = names.group_sub_key("validation.policy.admission", "validation_failure");
        self.attributes.notes.annotate(key, value.to_string());
    }

    /// Denies the write for a defect of a policy or binding, unless the policy ignores errors.
    fn deny_configuration(&mut self, policy: &Policy, binding: Option<&Binding>, reason: &str) {
        if policy.failure_policy == FailurePolicy::Fail {
            let part = if binding.is_some() { "binding" } else { "policy" };
            self.deny(policy, binding, &format!("failed to configure {part}: {reason}"), Reason::Invalid);
        }
    }

    fn deny(&mut self, policy: &Policy, binding: Option<&Binding>, reason: &str, status_reason: Reason) {
        let denial = || {
            let policy = policy.name();
            let message = match binding {
                Some(binding) => format!(
                    "ValidatingAdmissionPolicy '{policy}' with binding '{}' denied request: {reason}",
                    binding.name
                ),
                None => format!("ValidatingAdmissionPolicy '{policy}' denied request: {reason}"),
            };
            Denial { message, reason: status_reason }
        };
        self.denial.get_or_insert_with(denial);
    }

    /// The response to the write.
    fn finish(self) -> Result<(), Status> {
        let Some(Denial { message, reason }) = self.denial else { return Ok(()) };
        let resource = &self.attributes.served.group_resource;
        let mut status = Status::forbidden(resource, self.attributes.name, &message);
        status.reason = reason;
        status.code = reason.code();
        if let Some(details) = &mut status.details {
            details.causes.push(Cause { message, ..Cause::default() });
        }
        Err(status)
    }
}

/// Audit annotations of a policy: distinct values by key, in order.
#[derive(Default)]
struct Annotations(BTreeMap<String, Vec<String>>);

impl Annotations {
    fn add(&mut self, key: String, mut value: String) {
        let mut end = value.len().min(ANNOTATION_MAX);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        value.truncate(end);
        let values = self.0.entry(key).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }
}

#[cfg(test)]
mod tests;
