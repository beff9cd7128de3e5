//! Metrics of the calls of webhooks and the evaluations of policies.

use serving::metrics::Metrics;

use crate::match_condition_metrics::MatchConditionMetrics;
use crate::policy::PolicyMetrics;
use crate::webhook::WebhookMetrics;

/// The metrics of webhooks, policies and match conditions.
pub struct AdmissionMetrics {
    pub(crate) webhooks: WebhookMetrics,
    pub(crate) policies: PolicyMetrics,
    pub(crate) conditions: MatchConditionMetrics,
}

impl AdmissionMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        AdmissionMetrics {
            webhooks: WebhookMetrics::new(metrics),
            policies: PolicyMetrics::new(metrics),
            conditions: MatchConditionMetrics::new(metrics),
        }
    }
}
