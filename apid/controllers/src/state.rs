//! The state that all controllers share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use aggregation::Aggregation;
use audit::AuditLog;
use flowcontrol::FlowControl;
use serving::metrics::Metrics;

use super::leadership::{self, LeaderStatus, Leadership};
use super::orderly_end::OrderlyEnd;
use super::queue_metrics::QueueMetrics;
use verbs::ApiState;

/// The state of the controllers: the state of the API, the audit log, the metrics, and the kind of identity.
pub struct ControllerState {
    /// The state that the verbs use.
    pub api_state: Arc<ApiState>,
    pub(super) audit: Arc<AuditLog>,
    pub(super) metrics: Arc<Metrics>,
    queue_metrics: OnceLock<QueueMetrics>,
    /// Whether each controller writes as its own service account.
    pub(super) own_accounts: bool,
    /// Receives the APIServices, the results of their checks, and the documents of their servers.
    pub(super) aggregation: Arc<Aggregation>,
    /// Receives the flow schemas and priority levels, if they have an effect.
    pub(super) flow_control: Option<Arc<FlowControl>>,
    /// Whether this apid runs the loops that must run once.
    pub leadership: Arc<Leadership>,
    pub(super) leader_status: LeaderStatus,
    /// The end of the registration of this server in the endpoints of the API.
    pub(super) registration: OrderlyEnd,
}

impl ControllerState {
    /// Creates the state.
    ///
    /// - `audit`: the audit log, which shows the writes of controllers like requests.
    /// - `own_accounts`: whether each controller writes as its own service account.
    /// - `aggregation`: receives the APIServices and the documents of their servers.
    /// - `flow_control`: receives the flow schemas and priority levels.
    /// - `leadership`: whether this apid runs the loops that must run once.
    pub fn new(
        api_state: Arc<ApiState>,
        audit: Arc<AuditLog>,
        metrics: Arc<Metrics>,
        own_accounts: bool,
        aggregation: Arc<Aggregation>,
        flow_control: Option<Arc<FlowControl>>,
        leadership: Leadership,
    ) -> Self {
        ControllerState {
            leader_status: leadership::status_metric(&metrics),
            registration: OrderlyEnd::default(),
            queue_metrics: OnceLock::new(),
            leadership: Arc::new(leadership),
            api_state,
            audit,
            metrics,
            own_accounts,
            aggregation,
            flow_control,
        }
    }

    /// Removes this server from the endpoints of the API. Returns at the latest after `limit`.
    pub async fn end_registration(&self, limit: Duration) {
        if !self.registration.request(limit).await {
            tracing::warn!("this server stays in the endpoints of the API until its key expires");
        }
    }

    /// Returns the metrics of the work queues, which the first queue registers.
    pub(super) fn queue_metrics(&self) -> &QueueMetrics {
        self.queue_metrics.get_or_init(|| QueueMetrics::new(&self.metrics))
    }
}
