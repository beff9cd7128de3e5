//! API group `admissionregistration`: admission webhooks and admission policies.

use crate::Kind;

mod mutating_webhook_configuration;
mod validating_admission_policy;
mod validating_admission_policy_binding;
mod validating_webhook_configuration;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[
    mutating_webhook_configuration::KIND,
    validating_admission_policy::KIND,
    validating_admission_policy_binding::KIND,
    validating_webhook_configuration::KIND,
];
