//! API group `admissionregistration`: admission webhooks and admission policies.

use crate::BuiltInKind;

mod expression_rules;
mod match_rules;
mod mutating_admission_policy;
mod mutating_admission_policy_binding;
mod mutating_webhook_configuration;
mod policy_rules;
mod validating_admission_policy;
mod validating_admission_policy_binding;
mod validating_webhook_configuration;
mod webhooks;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[
    mutating_admission_policy::KIND,
    mutating_admission_policy_binding::KIND,
    mutating_webhook_configuration::KIND,
    validating_admission_policy::KIND,
    validating_admission_policy::V1BETA1,
    validating_admission_policy::V1ALPHA1,
    validating_admission_policy_binding::KIND,
    validating_admission_policy_binding::V1BETA1,
    validating_admission_policy_binding::V1ALPHA1,
    validating_webhook_configuration::KIND,
];
