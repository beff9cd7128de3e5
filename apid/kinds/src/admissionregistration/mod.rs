//! The group `admissionregistration`: who looks at writes before they are stored.

use crate::Kind;

mod mutating_webhook_configuration;
mod validating_admission_policy;
mod validating_admission_policy_binding;
mod validating_webhook_configuration;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[
    mutating_webhook_configuration::KIND,
    validating_admission_policy::KIND,
    validating_admission_policy_binding::KIND,
    validating_webhook_configuration::KIND,
];
