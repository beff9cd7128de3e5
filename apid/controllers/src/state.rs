//! The state that all controllers share.

use std::sync::Arc;

use audit::AuditLog;
use serving::metrics::Metrics;

use verbs::ApiState;

/// The state of the controllers: the state of the API, the audit log, the metrics, and the kind of identity.
pub struct ControllerState {
    /// The state that the verbs use.
    pub api_state: Arc<ApiState>,
    /// The audit log, which shows the writes of controllers like requests.
    pub audit: Arc<AuditLog>,
    /// The metrics of the process.
    pub metrics: Arc<Metrics>,
    /// Whether each controller writes as its own service account.
    pub own_accounts: bool,
}
