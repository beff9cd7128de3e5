//! Metrics of admission.

use serving::metrics::Metrics;

use crate::match_condition_metrics::MatchConditionMetrics;
use crate::policy::PolicyMetrics;
use crate::timing::DurationMetrics;
use crate::webhook::WebhookMetrics;

/// The metrics of plugins, webhooks, policies and match conditions.
pub struct AdmissionMetrics {
    pub(crate) durations: DurationMetrics,
    pub(crate) webhooks: WebhookMetrics,
    pub(crate) policies: PolicyMetrics,
    pub(crate) conditions: MatchConditionMetrics,
}

impl AdmissionMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        AdmissionMetrics {
            durations: DurationMetrics::new(metrics),
            webhooks: WebhookMetrics::new(metrics),
            policies: PolicyMetrics::new(metrics),
            conditions: MatchConditionMetrics::new(metrics),
        }
    }
}
