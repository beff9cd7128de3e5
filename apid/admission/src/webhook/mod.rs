//! MutatingAdmissionWebhook and ValidatingAdmissionWebhook: calls of the webhooks in stored configurations.
//!
//! # Contract
//!
//! Configurations are ordered by name, webhooks by position in their configuration. Mutating webhooks are
//! called in this order, each with the result of the webhook before. Validating webhooks are called in
//! parallel. Writes of webhook configurations and of admission policies never reach a webhook.
//!
//! The response of a webhook is an AdmissionReview. A webhook that cannot be called, or that sends another response,
//! fails the write with 500, or is skipped if its failure policy is `Ignore`. A denial has the Status of the
//! response.
//!
//! # Invariants
//!
//! INVARIANT (fresh): see [`CompiledObjects`](crate::CompiledObjects).
//! INVARIANT (no side effects in a dry run): a dry run calls only webhooks that declare no side effects for
//! it. A match of any other webhook rejects the dry run.
//! INVARIANT (fast path): a write costs one comparison and one lookup if no rule contains its resource.

mod dispatcher;
mod failure_log;
mod hook;
mod metrics;
mod mutating;
mod review;
mod serialized_objects;
mod services;
mod validating;

pub use services::ReaderServices;

pub(crate) use dispatcher::Webhooks;
pub(crate) use metrics::WebhookMetrics;

#[cfg(test)]
mod tests;
