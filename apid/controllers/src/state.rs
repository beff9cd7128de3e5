//! The state that all controllers share, and the identities with which they write.

use std::sync::Arc;

use apimachinery::user::{APISERVER, AUTHENTICATED, MASTERS, UserInfo};
use audit::AuditLog;
use serving::metrics::Metrics;

use super::actor::Actor;
use verbs::ApiState;

/// Shared identity of controllers without their own service accounts (requirements A-DEF-54, -55).
const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

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

impl ControllerState {
    /// Returns an actor that writes as `system:apiserver`.
    pub(super) fn apiserver(self: &Arc<Self>) -> Actor {
        let user =
            UserInfo { name: APISERVER.to_owned(), groups: vec![MASTERS.to_owned()], ..UserInfo::default() };
        Actor::new(self, user, "apiserver")
    }

    /// Returns the actor of a controller. It writes as the service account `name` of the system namespace if
    /// controllers have own accounts, else as [`CONTROLLER_MANAGER`].
    pub(super) fn controller(self: &Arc<Self>, name: &str) -> Actor {
        if self.own_accounts {
            return self.service_account(name);
        }
        let user = UserInfo {
            name: CONTROLLER_MANAGER.to_owned(),
            groups: vec![AUTHENTICATED.to_owned()],
            ..UserInfo::default()
        };
        Actor::new(self, user, name)
    }

    /// Returns an actor that writes as the service account `name` of the system namespace.
    pub(super) fn service_account(self: &Arc<Self>, name: &str) -> Actor {
        let namespace = self.api_state.names.system_namespace;
        let user = UserInfo {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                AUTHENTICATED.to_owned(),
            ],
            ..UserInfo::default()
        };
        Actor::new(self, user, name)
    }
}
