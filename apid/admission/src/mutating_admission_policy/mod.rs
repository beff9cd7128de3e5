//! MutatingAdmissionPolicy: changes written objects by the expressions of stored policies.
//!
//! # Contract
//!
//! [`policy`](crate::policy) selects the policies of a write. The policies apply in the order of their names,
//! bindings and parameters, each to the result of the policy before. Match conditions see that result too;
//! constraints see the object before the first policy. The plugin runs before mutating webhooks and never for
//! a deletion.
//!
//! A failed policy denies the write unless it ignores failures. The denial lists the errors of all policies.
//! A server that does not store policies does not have this plugin.
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

use apimachinery::object::Object;
use apimachinery::status::{Reason, Status};

use self::compiled::CompiledMutatingPolicy;
use self::patch::MutationError;
use crate::expression_inputs::ExpressionInputs;
use crate::match_condition_metrics::ConditionsOwner;
use crate::match_conditions::ConditionsError;
use crate::matching::MatchedResource;
use crate::policy::{
    ConfigurationError, Denial, FixedValues, Invocation, Invocations, Parameter, Policies, Policy,
    PolicySource, PolicyWrite, ReadInvocation,
};
use crate::reinvocation::{PluginCalls, Reinvocation};
use crate::representation::Representation;
use crate::turn::Turn;
use crate::{Attributes, Environment, Interest, ObjectKind, Operation, Plugin, mutation};

const POLICY: ObjectKind = ObjectKind::new("admissionregistration", "MutatingAdmissionPolicy");
const BINDING: ObjectKind = ObjectKind::new("admissionregistration", "MutatingAdmissionPolicyBinding");

/// The plugin.
pub(crate) struct MutatingAdmissionPolicy(PolicySource<CompiledMutatingPolicy>);

impl MutatingAdmissionPolicy {
    /// The plugin; None if the server does not store policies, because reads of such a kind fail.
    pub(crate) fn new(environment: &Environment) -> Option<Self> {
        let group = environment.names.group(POLICY.group);
        environment.registry.get().find_kind(&group, POLICY.kind)?;
        Some(MutatingAdmissionPolicy(PolicySource::new(POLICY, BINDING)))
    }

    /// Applies the policies that match a write, through their bindings.
    async fn apply(
        &self,
        policies: &Policies<CompiledMutatingPolicy>,
        attributes: &Attributes<'_>,
        mut object: Option<&mut Object>,
        reinvocation: &mut Reinvocation,
    ) -> Result<(), Status> {
        let bindings = self.0.bindings(attributes).await?;
        let is_second_round = reinvocation.is_second_round;
        let calls = &mut reinvocation.policies;
        let mut write = WriteMutation::new(attributes, is_second_round);
        let mut selected_policies = Vec::new();
        for (_, policy) in policies.candidates(&attributes.served.group_resource.resource) {
            let bindings = bindings.of_policy(policy.name());
            match write.policies.invocations(policy, bindings, object.as_deref()).await {
                Ok(None) => {}
                Err(error) => write.deny_configuration(policy, &error),
                Ok(Some(Invocations { matched, all })) => {
                    let mut invocations = Vec::with_capacity(all.len());
                    for invocation in all {
                        match invocation {
                            Ok(invocation) => invocations.push(invocation),
                            Err(error) => write.deny_configuration(policy, &error),
                        }
                    }
                    if !invocations.is_empty() {
                        selected_policies.push((policy, matched, invocations));
                    }
                }
            }
        }
        if selected_policies.is_empty() {
            return write.finish();
        }
        if is_second_round {
            calls.begin_second_round(object.as_deref());
        }
        for (policy, matched, invocations) in &selected_policies {
            write.apply(policy, matched, invocations, object.as_deref_mut(), calls).await?;
        }
        if write.has_mutated {
            calls.record_change();
        }
        if !is_second_round {
            calls.end_first_round(object.as_deref());
        }
        write.finish()
    }
}

impl Plugin for MutatingAdmissionPolicy {
    const INTEREST: Interest =
        Interest::ALL_RESOURCES.on(&[Operation::Create, Operation::Update, Operation::Connect]);

    async fn mutate_in_round(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Object>,
        reinvocation: &mut Reinvocation,
    ) -> Result<(), Status> {
        match self.0.policies(attributes).await? {
            // The future of the evaluation is large; most writes have no policy.
            Some(policies) => Box::pin(self.apply(&policies, attributes, object, reinvocation)).await,
            None => Ok(()),
        }
    }
}

/// A write while policies change its object.
struct WriteMutation<'w> {
    policies: PolicyWrite<'w>,
    is_second_round: bool,
    /// Denials of policies that do not ignore failures, in order.
    denials: Vec<Denial>,
    /// Whether a mutation was applied, even without a change.
    has_mutated: bool,
}

/// Data of a policy for a write, which does not depend on the new object.
struct PolicyContext<'m> {
    representation: Representation<'m>,
    /// The old object in the matched version.
    old: Option<Cow<'m, Object>>,
    fixed: FixedValues,
}

impl PolicyContext<'_> {
    /// The data of an evaluation.
    fn data<'o>(
        &'o self,
        invocation: &'o ReadInvocation<'_>,
        new: Option<&'o Object>,
    ) -> ExpressionInputs<'o> {
        self.fixed.with_objects(new, self.old.as_deref(), invocation.param.as_deref())
    }
}

impl<'w> WriteMutation<'w> {
    fn new(attributes: &'w Attributes<'w>, is_second_round: bool) -> Self {
        let policies = PolicyWrite::new(attributes);
        WriteMutation { policies, is_second_round, denials: Vec::new(), has_mutated: false }
    }

    /// Applies one policy to the object, once for each invocation.
    ///
    /// # Errors
    ///
    /// The response to the write.
    async fn apply(
        &mut self,
        policy: &Policy<CompiledMutatingPolicy>,
        matched: &MatchedResource,
        invocations: &[Invocation<'_>],
        mut object: Option<&mut Object>,
        calls: &mut PluginCalls,
    ) -> Result<(), Status> {
        let compiled = policy.compiled();
        let has_conditions = !compiled.common.conditions.is_empty();
        let mut context: Option<PolicyContext<'_>> = None;
        let mut turn = Turn::new(&*self.policies.attributes.environment.clock);
        for invocation in invocations {
            turn.pause().await;
            let id = invocation_id(policy, invocation);
            let is_applied = !self.is_second_round || calls.is_pending(&id);
            if !is_applied && !has_conditions {
                continue;
            }
            let invocation = match invocation.read() {
                Ok(invocation) => invocation,
                Err(error) => {
                    self.deny_configuration(policy, &error);
                    continue;
                }
            };
            let context = match &mut context {
                Some(context) => context,
                empty => empty.insert(self.context(policy, matched).await?),
            };
            let visible = object.as_deref().map(|object| self.visible_object(context, object)).transpose()?;
            if has_conditions {
                match self.conditions_match(policy, context, &invocation, visible.as_deref()).await {
                    Ok(true) => {}
                    Ok(false) => continue,
                    Err(error) => {
                        self.deny(policy, &invocation, &error.to_string());
                        continue;
                    }
                }
            }
            if !is_applied {
                continue;
            }
            let changed = match (object.as_deref(), visible) {
                (Some(object), Some(visible)) => {
                    self.mutate(policy, context, &invocation, visible, object).await?
                }
                _ => None,
            };
            if let (Some(object), Some(changed)) = (object.as_deref_mut(), changed) {
                *object = changed;
            }
            if compiled.is_reinvocable {
                calls.record_call(&id);
            }
        }
        Ok(())
    }

    /// The data of a policy that its invocations share.
    async fn context<'m>(
        &self,
        policy: &Policy<CompiledMutatingPolicy>,
        matched: &'m MatchedResource,
    ) -> Result<PolicyContext<'m>, Status>
    where
        'w: 'm,
    {
        let attributes = self.policies.attributes;
        let representation = self.policies.representation(matched);
        let name = mutation::visible_name(attributes);
        let fixed = self.policies.fixed_values(&policy.compiled().common, &representation, name).await?;
        let old = attributes.old.map(|old| representation.convert(Cow::Borrowed(old))).transpose()?;
        Ok(PolicyContext { representation, old, fixed })
    }

    /// An object of the write as a policy sees it.
    fn visible_object<'o>(
        &self,
        context: &PolicyContext<'_>,
        object: &'o Object,
    ) -> Result<Cow<'o, Object>, Status> {
        mutation::visible_object(Cow::Borrowed(object), &context.representation, self.policies.attributes)
    }

    /// Evaluates the match conditions of a policy.
    async fn conditions_match(
        &self,
        policy: &Policy<CompiledMutatingPolicy>,
        context: &PolicyContext<'_>,
        invocation: &ReadInvocation<'_>,
        visible: Option<&Object>,
    ) -> Result<bool, ConditionsError> {
        let common = &policy.compiled().common;
        let environment = self.policies.attributes.environment;
        let clock = &*environment.clock;
        let data = context.data(invocation, visible);
        let run =
            |inputs: &ExpressionInputs<'_>| common.conditions.evaluate(&inputs.condition_variables(), clock);
        let outcome = self.policies.evaluate(common, data, run).await;
        let (owner, operation) = (ConditionsOwner::policy(policy.name()), self.policies.attributes.operation);
        environment.metrics.conditions.observe(owner, operation, &outcome);
        outcome.result
    }

    /// Applies the mutations of a policy to an object; `visible` is the object as the policy sees it. Returns
    /// the object after the last change; None without a change.
    async fn mutate<'o>(
        &mut self,
        policy: &Policy<CompiledMutatingPolicy>,
        context: &PolicyContext<'_>,
        invocation: &ReadInvocation<'_>,
        visible: Cow<'o, Object>,
        object: &'o Object,
    ) -> Result<Option<Object>, Status> {
        let (attributes, environment) = (self.policies.attributes, self.policies.attributes.environment);
        let compiled = policy.compiled();
        let mut first_visible = Some(visible);
        let mut last: Option<Object> = None;
        let mut turn = Turn::new(&*environment.clock);
        for mutation in &compiled.mutations {
            turn.pause().await;
            let started = environment.clock.monotonic();
            let before = last.as_ref().unwrap_or(object);
            let visible = match first_visible.take() {
                Some(visible) => visible,
                None => self.visible_object(context, before)?,
            };
            let run = |inputs: &ExpressionInputs<'_>| mutation.evaluate(&compiled.common, inputs);
            let data = context.data(invocation, Some(&*visible));
            let patch = self.policies.evaluate(&compiled.common, data, run).await;
            let patch = patch.map_err(|failure| MutationError::Policy(failure.to_string()));
            let result = patch.and_then(|patch| {
                patch::apply(mutation.patch_type, patch, visible, before, &context.representation, attributes)
            });
            let took = environment.clock.monotonic().saturating_sub(started);
            let observe = |error: Option<&str>| {
                environment.metrics.policies.observe_mutation(
                    policy.name(),
                    &invocation.binding.name,
                    error,
                    took,
                )
            };
            match result {
                Ok(changed) => {
                    observe(None);
                    self.has_mutated = true;
                    last = changed.or(last);
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
        Ok(last)
    }

    fn deny_configuration(
        &mut self,
        policy: &Policy<CompiledMutatingPolicy>,
        error: &ConfigurationError<'_>,
    ) {
        if policy.denies_errors {
            let message = match error.binding {
                Some(binding) => denial_text(policy.name(), &binding.name, &error.message),
                None => format!("policy {:?} denied request: {}", policy.name(), error.message),
            };
            self.denials.push(Denial { message, reason: Reason::Forbidden });
        }
    }

    fn deny(
        &mut self,
        policy: &Policy<CompiledMutatingPolicy>,
        invocation: &ReadInvocation<'_>,
        reason: &str,
    ) {
        if policy.denies_errors {
            let message = denial_text(policy.name(), &invocation.binding.name, reason);
            self.denials.push(Denial { message, reason: Reason::Invalid });
        }
    }

    /// The response to the write. As in kube-apiserver, its message is that of the first denial, without the
    /// name of the object, and its code is 403.
    fn finish(self) -> Result<(), Status> {
        let status = Denial::status(&self.denials, self.policies.attributes);
        match status.zip(self.denials.into_iter().next()) {
            Some((status, first)) => Err(Status { message: first.message, ..status }),
            None => Ok(()),
        }
    }
}

fn denial_text(policy: &str, binding: &str, reason: &str) -> String {
    format!("policy '{policy}' with binding '{binding}' denied request: {reason}")
}

/// Identity of an invocation among the invocations of all policies.
fn invocation_id(policy: &Policy<CompiledMutatingPolicy>, invocation: &Invocation<'_>) -> String {
    let (namespace, param) = invocation.param.as_ref().map_or(("", ""), Parameter::key);
    format!("{}/{}/{namespace}/{param}", policy.name(), invocation.binding.name)
}

#[cfg(test)]
mod tests;
