//! MutatingAdmissionPolicy: changes written objects by the expressions of stored policies.
//!
//! # Contract
//!
//! [`policy`](crate::policy) selects the policies of a write. The policies apply in the order of their names,
//! bindings and parameters, each to the result of the policy before. Match conditions see that result too;
//! constraints see the object before the first policy. The plugin runs before mutating webhooks and never for
//! a deletion.
//!
//! A failed policy denies the write unless it ignores failures. The denial lists the errors of all policies. The plugin
//! handles nothing while the API of the policies is disabled.
//!
//! # Invariants
//!
//! INVARIANT (no ownership): a change has no field manager, like a change by a webhook.
//!
//! # Reference
//!
//! The plugin requests the second round of the mutating phase after each applied mutation, even without a
//! change. In the second round a policy with the reinvocation policy `IfNeeded` applies again.

mod compiled;
mod patch;

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::{Cause, Reason, Status};

use self::compiled::CompiledMutatingPolicy;
use self::patch::MutationError;
use crate::match_condition_metrics::ConditionsOwner;
use crate::match_conditions::ConditionsError;
use crate::matching::MatchedResource;
use crate::policy::{
    ConfigurationError, FixedValues, Inputs, Invocation, Policies, Policy, PolicyExpressions as _,
    PolicySource, PolicyWrite, ReviewedObjects,
};
use crate::reinvocation::ReinvocationPlugin;
use crate::{Attributes, Environment, MaybeFuture, ObjectKind, Operation, Plugin, mutation};

const POLICY: ObjectKind = ObjectKind::new("admissionregistration", "MutatingAdmissionPolicy");
const BINDING: ObjectKind = ObjectKind::new("admissionregistration", "MutatingAdmissionPolicyBinding");

/// The plugin MutatingAdmissionPolicy.
pub(crate) struct MutatingAdmissionPolicy {
    source: PolicySource<CompiledMutatingPolicy>,
    /// Whether the server has the kind of the policies.
    is_served: bool,
}

impl MutatingAdmissionPolicy {
    pub(crate) fn new(environment: &Environment) -> Self {
        let group = environment.names.group(POLICY.group);
        let is_served = environment.registry.get().find_kind(&group, POLICY.kind).is_some();
        let source = PolicySource::new(environment, POLICY, BINDING);
        MutatingAdmissionPolicy { source, is_served }
    }

    /// Applies the policies that match a write, through their bindings.
    async fn apply(
        &self,
        policies: &Policies<CompiledMutatingPolicy>,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Object>,
    ) -> Result<(), Status> {
        let bindings = self.source.bindings().await?;
        let mut write = WriteMutation::new(&self.source, attributes);
        let mut selected = Vec::new();
        for policy in policies.candidates(&attributes.served.group_resource.resource) {
            let bindings = bindings.of_policy(policy.name());
            match write.policies.invocations(policy, bindings, object.as_deref()).await {
                Ok(None) => {}
                Err(error) => write.deny_configuration(policy, &error),
                Ok(Some(invocations)) => {
                    let matched = Arc::new(invocations.matched);
                    for invocation in invocations.all {
                        match invocation {
                            Ok(invocation) => selected.push((policy, Arc::clone(&matched), invocation)),
                            Err(error) => write.deny_configuration(policy, &error),
                        }
                    }
                }
            }
        }
        if selected.is_empty() {
            return write.finish();
        }
        let notes = attributes.notes;
        if attributes.reinvoked {
            notes.reinvocation().begin_second_round(ReinvocationPlugin::Policies, object.as_deref());
        }
        for (policy, matched, invocation) in &selected {
            write.invoke(policy, matched, invocation, object.as_deref_mut()).await?;
        }
        if write.has_mutated {
            notes.reinvocation().record_change(ReinvocationPlugin::Policies);
        }
        if !attributes.reinvoked {
            notes.reinvocation().end_first_round(ReinvocationPlugin::Policies, object.as_deref());
        }
        write.finish()
    }
}

impl Plugin for MutatingAdmissionPolicy {
    fn handles(&self, operation: Operation) -> bool {
        self.is_served && operation != Operation::Delete
    }

    fn mutate<'a>(
        &'a self,
        attributes: &'a Attributes<'a>,
        object: Option<&'a mut Object>,
    ) -> MaybeFuture<'a, Result<(), Status>> {
        let policies = self.source.policies(attributes);
        policies.if_some(move |policies| async move { self.apply(&policies, attributes, object).await })
    }
}

/// A write while policies change its object.
struct WriteMutation<'w> {
    policies: PolicyWrite<'w, CompiledMutatingPolicy>,
    /// Denials of policies that do not ignore failures, in order.
    denials: Vec<MutationDenial>,
    /// Whether a mutation was applied, also without a change.
    has_mutated: bool,
}

/// A denial of a write by one policy.
struct MutationDenial {
    message: String,
    /// Reason of the Status.
    reason: Reason,
}

impl<'w> WriteMutation<'w> {
    fn new(source: &'w PolicySource<CompiledMutatingPolicy>, attributes: &'w Attributes<'w>) -> Self {
        let policies = PolicyWrite::new(source, attributes);
        WriteMutation { policies, denials: Vec::new(), has_mutated: false }
    }

    /// Applies one policy with one parameter to the object, or records its denial.
    ///
    /// # Errors
    ///
    /// An error that ends the write regardless of the failure policy.
    async fn invoke(
        &mut self,
        policy: &Policy<CompiledMutatingPolicy>,
        matched: &MatchedResource,
        invocation: &Invocation<'_>,
        object: Option<&mut Object>,
    ) -> Result<(), Status> {
        let attributes = self.policies.attributes;
        let compiled = policy.compiled();
        let id = invocation_id(policy, invocation);
        let reinvocation = || attributes.notes.reinvocation();
        let is_applied =
            !attributes.reinvoked || reinvocation().is_pending(ReinvocationPlugin::Policies, &id);
        if !is_applied && compiled.common.conditions.is_empty() {
            return Ok(());
        }
        let name = mutation::visible_name(attributes);
        let fixed = self.policies.fixed_values(compiled.common(), matched, name).await?;
        if !compiled.common.conditions.is_empty() {
            match self.conditions_match(policy, matched, invocation, &fixed, object.as_deref()).await? {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => {
                    self.deny(policy, invocation, &error.to_string());
                    return Ok(());
                }
            }
        }
        if !is_applied {
            return Ok(());
        }
        if let Some(object) = object {
            self.mutate(policy, matched, invocation, &fixed, object).await?;
        }
        if compiled.is_reinvocable {
            reinvocation().record_call(ReinvocationPlugin::Policies, &id);
        }
        Ok(())
    }

    /// Evaluates the match conditions of a policy. The outer error ends the write; the inner error is that of
    /// the conditions, to which the failure policy applies.
    async fn conditions_match(
        &self,
        policy: &Policy<CompiledMutatingPolicy>,
        matched: &MatchedResource,
        invocation: &Invocation<'_>,
        fixed: &FixedValues,
        object: Option<&Object>,
    ) -> Result<Result<bool, ConditionsError>, Status> {
        let common = policy.compiled().common();
        let environment = &self.policies.source.environment;
        let objects = self.objects(matched, object)?;
        let clock = &*environment.clock;
        let run = |inputs: &Inputs<'_>| common.conditions.evaluate(&inputs.conditions, clock);
        let param = invocation.param.as_deref();
        let outcome = self.policies.evaluate(common, &objects, param, fixed, run).await;
        let (owner, operation) = (ConditionsOwner::policy(policy.name()), self.policies.attributes.operation);
        environment.metrics.conditions.observe(owner, operation, &outcome);
        Ok(outcome.result)
    }

    /// Applies the mutations of a policy to the object in order; errors as in [`WriteMutation::invoke`].
    async fn mutate(
        &mut self,
        policy: &Policy<CompiledMutatingPolicy>,
        matched: &MatchedResource,
        invocation: &Invocation<'_>,
        fixed: &FixedValues,
        object: &mut Object,
    ) -> Result<(), Status> {
        let (attributes, environment) = (self.policies.attributes, &self.policies.source.environment);
        let compiled = policy.compiled();
        for mutation in &compiled.mutations {
            let started = environment.clock.monotonic();
            let objects = self.objects(matched, Some(&*object))?;
            let run = |inputs: &Inputs<'_>| mutation.evaluate(&compiled.common, inputs);
            let param = invocation.param.as_deref();
            let change = self.policies.evaluate(&compiled.common, &objects, param, fixed, run).await;
            let Some(visible) = objects.new else { continue };
            let representation = self.policies.representation(matched);
            let change = change.map_err(|failure| MutationError::Policy(failure.to_string()));
            let result = change.and_then(|change| {
                patch::apply(change, visible, object, &representation, attributes, environment)
            });
            let took = environment.clock.monotonic().saturating_sub(started);
            let names = (policy.name(), invocation.binding.name.as_str());
            let observe =
                |error: Option<&str>| environment.metrics.policies.observe_mutation(names, error, took);
            match result {
                Ok(changed) => {
                    observe(None);
                    self.has_mutated = true;
                    *object = changed;
                }
                Err(MutationError::Policy(message)) => {
                    observe(Some(&message));
                    self.deny(policy, invocation, &message);
                }
                Err(MutationError::Status(status)) => {
                    observe(Some(&status.message));
                    return Err(status);
                }
            }
        }
        Ok(())
    }

    /// The objects of the write as a policy sees them.
    fn objects<'o>(
        &self,
        matched: &MatchedResource,
        object: Option<&'o Object>,
    ) -> Result<ReviewedObjects<'o>, Status>
    where
        'w: 'o,
    {
        let (attributes, environment) = (self.policies.attributes, &self.policies.source.environment);
        let representation = self.policies.representation(matched);
        let new = object
            .map(|object| mutation::visible(Cow::Borrowed(object), &representation, attributes, environment));
        let old = attributes.old.map(|old| representation.convert(Cow::Borrowed(old), &environment.names));
        Ok(ReviewedObjects { new: new.transpose()?, old: old.transpose()? })
    }

    fn deny_configuration(
        &mut self,
        policy: &Policy<CompiledMutatingPolicy>,
        error: &ConfigurationError<'_>,
    ) {
        if policy.failure_policy.denies() {
            let message = match error.binding {
                Some(binding) => denial_text(policy.name(), &binding.name, &error.message),
                None => format!("policy {:?} denied request: {}", policy.name(), error.message),
            };
            self.denials.push(MutationDenial { message, reason: Reason::Forbidden });
        }
    }

    fn deny(&mut self, policy: &Policy<CompiledMutatingPolicy>, invocation: &Invocation<'_>, reason: &str) {
        if policy.failure_policy.denies() {
            let message = denial_text(policy.name(), &invocation.binding.name, reason);
            self.denials.push(MutationDenial { message, reason: Reason::Invalid });
        }
    }

    /// Returns the response to the write. The first denial gives message and reason; the code is 403, as in
    /// kube-apiserver.
    fn finish(self) -> Result<(), Status> {
        let Some(first) = self.denials.first() else { return Ok(()) };
        let attributes = self.policies.attributes;
        let mut status = Status::forbidden(&attributes.served.group_resource, attributes.name, "");
        status.message.clone_from(&first.message);
        status.reason = first.reason;
        if let Some(details) = &mut status.details {
            let causes = self.denials.into_iter().map(|denial| denial.message);
            details.causes.extend(causes.map(|message| Cause { message, ..Cause::default() }));
        }
        Err(status)
    }
}

fn denial_text(policy: &str, binding: &str, reason: &str) -> String {
    format!("policy '{policy}' with binding '{binding}' denied request: {reason}")
}

/// Identity of an invocation among those of all policies.
fn invocation_id(policy: &Policy<CompiledMutatingPolicy>, invocation: &Invocation<'_>) -> String {
    let (namespace, param) =
        invocation.param.as_deref().map_or(("", ""), |param| (param.namespace(), param.name()));
    format!("{}/{}/{namespace}/{param}", policy.name(), invocation.binding.name)
}

#[cfg(test)]
mod tests;
