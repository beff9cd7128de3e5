//! The state that all controllers share.

use std::sync::{Arc, OnceLock};

use aggregation::Aggregation;
use audit::AuditLog;
use flowcontrol::FlowControl;
use serving::metrics::Metrics;

use super::leadership::{self, LeaderStatus, Leadership};
use super::queue_metrics::QueueMetrics;
use super::registration::Registration;
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
    /// The registration of this server in the endpoints of the API.
    pub registration: Registration,
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
            registration: Registration::default(),
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

    /// Returns the metrics of the work queues, which the first queue registers.
    pub(super) fn queue_metrics(&self) -> &QueueMetrics {
        self.queue_metrics.get_or_init(|| QueueMetrics::new(&self.metrics))
    }
}
