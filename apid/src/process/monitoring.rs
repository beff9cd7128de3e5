//! Metrics of the listener, SIGHUP, and notifications of the service manager.

use std::sync::Arc;
use std::time::Duration;

use serving::metrics::{Counter, Definition, Stability};
use serving::reload::{hangups, next_hangup};
use serving::service_manager::{ServiceManager, ServiceState};
use serving::tls::ServingTls;

use crate::http;
use crate::server_state::ServerState;

const HANDSHAKE_ERRORS: Definition = Definition::new(
    "apiserver_tls_handshake_errors_total",
    Stability::Alpha,
    "Number of failed TLS handshakes",
);
const CERTIFICATE_EXPIRATION: Definition = Definition::new(
    "apid_serving_certificate_expiration_timestamp_seconds",
    Stability::Alpha,
    "Expiration time of the serving certificate in seconds since 1970",
);

/// Poll interval for the readiness of the process.
const READY_POLL: Duration = Duration::from_millis(50);

/// Registers the metrics of the state and of the listener. Returns the counter of failed handshakes.
pub(super) fn register_metrics(server_state: &Arc<ServerState>, tls: &Arc<ServingTls>) -> Counter {
    http::collect_state(server_state);
    let metrics = &server_state.metrics;
    let expiration = metrics.single_gauge(&CERTIFICATE_EXPIRATION);
    let tls = Arc::clone(tls);
    metrics.collect_with(move || {
        expiration.set(tls.expiration().unwrap_or_default());
    });
    metrics.single_counter(&HANDSHAKE_ERRORS)
}

/// Notifies the service manager when `/readyz` passes for the first time.
pub(super) async fn notify_when_ready(server_state: Arc<ServerState>, service_manager: ServiceManager) {
    if !service_manager.is_present() {
        return;
    }
    while server_state.health.readyz.answer("readyz", None, "", false).status != 200 {
        tokio::time::sleep(READY_POLL).await;
    }
    service_manager.notify(ServiceState::Ready);
}

/// Reopens and reloads files at SIGHUP.
#[derive(Clone)]
pub(super) struct Reloading {
    pub(super) tls: Arc<ServingTls>,
    pub(super) server_state: Arc<ServerState>,
    pub(super) service_manager: ServiceManager,
}

impl Reloading {
    /// Handles signals until the task ends. The watches of files receive the signal on their own.
    pub(super) async fn run(self) {
        let mut hangups = hangups();
        loop {
            next_hangup(&mut hangups).await;
            tracing::info!(signal = "SIGHUP", "reload started");
            self.service_manager.notify(ServiceState::Reloading);
            self.server_state.audit.reopen().await;
            let tls = Arc::clone(&self.tls);
            match tokio::task::spawn_blocking(move || tls.reload()).await {
                Ok(Ok(is_changed)) => tracing::info!(is_changed, "tls files checked"),
                Ok(Err(error)) => tracing::error!(%error, "tls reload failed; using the previous files"),
                Err(error) => tracing::error!(%error, "tls reload failed; using the previous files"),
            }
            self.service_manager.notify(ServiceState::Ready);
        }
    }
}
