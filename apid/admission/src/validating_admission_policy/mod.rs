//! ValidatingAdmissionPolicy: validates writes by the expressions of stored policies.
//!
//! # Contract
//!
//! [`policy`](crate::policy) selects the policies of a write, in the order of their names. A failed
//! validation denies the write, adds a warning or adds an audit annotation, as the binding requires. The
//! first denial is the response.

mod compiled;
mod evaluate;

use std::sync::Arc;

use std::borrow::Cow;
use std::collections::BTreeMap;

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};
use serde_json::json;

use self::compiled::CompiledValidatingPolicy;
use self::evaluate::{Failure, Outcome, evaluate};
use crate::expression_inputs::ExpressionInputs;
use crate::match_condition_metrics::ConditionsOwner;
use crate::policy::{
    Binding, ConfigurationError, Denial, FixedValues, Policies, Policy, PolicySource, PolicyWrite,
    ReadInvocation,
};
use crate::reviewed_objects::ReviewedObjects;
use crate::turn::Turn;
use crate::{Attributes, Interest, ObjectKind, Operation, Phase, Plugin};

const POLICY: ObjectKind = ObjectKind::new("admissionregistration", "ValidatingAdmissionPolicy");
const BINDING: ObjectKind = ObjectKind::new("admissionregistration", "ValidatingAdmissionPolicyBinding");

/// Maximum size of the value of an audit annotation in bytes; longer values are truncated.
const ANNOTATION_MAX: usize = 10 * 1024;

/// The plugin ValidatingAdmissionPolicy.
pub(crate) struct ValidatingAdmissionPolicy(PolicySource<CompiledValidatingPolicy>);

impl Default for ValidatingAdmissionPolicy {
    fn default() -> Self {
        ValidatingAdmissionPolicy(PolicySource::new(POLICY, BINDING))
    }
}

impl ValidatingAdmissionPolicy {
    /// Validates a write by all policies whose rules match.
    async fn validate_write(
        &self,
        policies: &Policies<CompiledValidatingPolicy>,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let bindings = self.0.bindings(attributes).await?;
        let mut write = WriteValidation::new(attributes, object);
        for (_, policy) in policies.candidates(&attributes.served.group_resource.resource) {
            write.apply(policy, bindings.of_policy(policy.name())).await?;
        }
        write.finish()
    }
}

impl Plugin for ValidatingAdmissionPolicy {
    const INTEREST: Interest = Interest::ALL_RESOURCES.on(&Operation::ALL);

    async fn validate(&self, attributes: &Attributes<'_>, object: Option<&Object>) -> Result<(), Status> {
        match self.0.policies(attributes).await? {
            // The future of the evaluation is large; most writes have no policy.
            Some(policies) => Box::pin(self.validate_write(&policies, attributes, object)).await,
            None => Ok(()),
        }
    }
}

/// A write while policies validate it.
struct WriteValidation<'w> {
    policies: PolicyWrite<'w>,
    object: Option<&'w Object>,
    /// The first denial.
    denial: Option<Denial>,
    /// Whether the audit annotation `validation_failure` exists. The annotation describes only the first
    /// failed validation.
    has_failure_annotation: bool,
}

impl<'w> WriteValidation<'w> {
    fn new(attributes: &'w Attributes<'w>, object: Option<&'w Object>) -> Self {
        WriteValidation {
            policies: PolicyWrite::new(attributes),
            object,
            denial: None,
            has_failure_annotation: false,
        }
    }

    /// Evaluates one policy with its bindings for the write.
    async fn apply(
        &mut self,
        policy: &Policy<CompiledValidatingPolicy>,
        bindings: &[Arc<Binding>],
    ) -> Result<(), Status> {
        let invocations = match self.policies.invocations(policy, bindings, self.object).await {
            Ok(Some(invocations)) => invocations,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.deny_configuration(policy, &error);
                return Ok(());
            }
        };
        let (attributes, environment) = (self.policies.attributes, self.policies.attributes.environment);
        let representation = self.policies.representation(&invocations.matched);
        let mut objects: Option<ReviewedObjects<'_>> = None;
        let mut fixed: Option<FixedValues> = None;
        let mut annotations = Annotations::default();
        let mut turn = Turn::new(&*environment.clock);
        for invocation in invocations.all {
            turn.pause().await;
            let ReadInvocation { binding, param } = match invocation.and_then(|found| found.read()) {
                Ok(invocation) => invocation,
                Err(error) => {
                    self.deny_configuration(policy, &error);
                    continue;
                }
            };
            if objects.is_none() {
                let new = self.object.map(Cow::Borrowed);
                match ReviewedObjects::new(new, &representation, attributes, Phase::Validating) {
                    Ok(reviewed) => objects = Some(reviewed),
                    Err(status) => {
                        let reason = format!("failed to convert object version: {}", status.message);
                        self.deny_configuration(policy, &ConfigurationError::new(Some(binding), &reason));
                        continue;
                    }
                }
            }
            let Some(objects) = &objects else { continue };
            let compiled = policy.compiled();
            let common = &compiled.common;
            let fixed = match &mut fixed {
                Some(fixed) => fixed,
                empty => empty.insert(
                    self.policies.fixed_values(common, &representation, attributes.request_name()).await?,
                ),
            };
            let (new, old) = (objects.new.as_deref(), objects.old.as_deref());
            let data = fixed.with_objects(new, old, param.as_deref());
            let run = |inputs: &ExpressionInputs<'_>| {
                evaluate(compiled, policy.denies_errors, inputs, &*environment.clock)
            };
            let outcome = self.policies.evaluate(common, data, run).await;
            self.record(policy, binding, outcome, &mut annotations);
        }
        for (key, values) in annotations.0 {
            let key = format!("{}/{key}", policy.name());
            attributes.recorder.annotate(key, values.join(", "));
        }
        Ok(())
    }

    /// Records the outcome of one evaluation.
    fn record(
        &mut self,
        policy: &Policy<CompiledValidatingPolicy>,
        binding: &Binding,
        outcome: Outcome,
        annotations: &mut Annotations,
    ) {
        let metrics = &self.policies.attributes.environment.metrics;
        if let Some(conditions) = &outcome.conditions {
            let operation = self.policies.attributes.operation;
            metrics.conditions.observe(ConditionsOwner::policy(policy.name()), operation, conditions);
        }
        let observe = |action: &'static str, failure: &Failure| {
            let (message, took) = (&failure.message, failure.took);
            metrics.policies.observe_validation(policy.name(), &binding.name, action, message, took);
        };
        outcome.ignored.iter().for_each(|ignored| observe("allow", ignored));
        for failure in &outcome.failures {
            for action in &binding.actions {
                match action.as_str() {
                    "Deny" => {
                        self.deny(policy.name(), Some(binding), &failure.message, failure.reason);
                        observe("deny", failure);
                    }
                    "Audit" => {
                        self.annotate_failure(binding, failure);
                        observe("audit", failure);
                    }
                    "Warn" => {
                        self.policies.attributes.recorder.warn(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                            policy.name(),
                            binding.name,
                            failure.message
                        ));
                        observe("warn", failure);
                    }
                    _ => {}
                }
            }
        }
        for (key, value) in outcome.annotations {
            annotations.add(key, value);
        }
        for error in &outcome.annotation_errors {
            self.deny(policy.name(), Some(binding), &error.message, error.reason);
            observe("deny", error);
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
        let names = &self.policies.attributes.environment.names;
        let key = names.group_sub_key("validation.policy.admission", "validation_failure");
        self.policies.attributes.recorder.annotate(key, value.to_string());
    }

    /// Denies the write for a defect of a policy or binding, unless the policy ignores errors.
    fn deny_configuration(
        &mut self,
        policy: &Policy<CompiledValidatingPolicy>,
        error: &ConfigurationError<'_>,
    ) {
        if policy.denies_errors {
            self.deny(policy.name(), error.binding, &error.message, Reason::Invalid);
        }
    }

    fn deny(&mut self, policy: &str, binding: Option<&Binding>, reason: &str, status_reason: Reason) {
        let denial = || {
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

    /// The response to the write. The reason of the denial determines the code.
    fn finish(self) -> Result<(), Status> {
        match Denial::status(self.denial.as_slice(), self.policies.attributes) {
            Some(status) => Err(Status { code: status.reason.code(), ..status }),
            None => Ok(()),
        }
    }
}

/// Audit annotations of a policy: distinct values by key, in order.
#[derive(Default)]
struct Annotations(BTreeMap<String, Vec<String>>);

impl Annotations {
    fn add(&mut self, key: String, mut value: String) {
        value.truncate(value.floor_char_boundary(ANNOTATION_MAX));
        let values = self.0.entry(key).or_default();
        if !values.contains(&value) {
            values.push(value);
        }
    }
}

#[cfg(test)]
mod tests;
