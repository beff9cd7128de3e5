//! Metrics of the streams and logs of containers.

use serving::metrics::{Counters, Metrics};

use super::{Labels, alpha};

/// Counters of the streams and logs of containers.
#[derive(Clone)]
pub(crate) struct StreamMetrics {
    translated: Counters<Labels>,
    tunnelled: Counters<Labels>,
    insecure_logs: Counters<Labels>,
    log_tls_failures: Counters<Labels>,
}

impl StreamMetrics {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        StreamMetrics {
            translated: metrics.counter(&alpha(
                "apiserver_stream_translator_requests_total",
                "Number of exec and attach requests over WebSocket that the server translated to SPDY, by code",
            )),
            tunnelled: metrics.counter(&alpha(
                "apiserver_stream_tunnel_requests_total",
                "Number of port-forward requests whose SPDY streams came through WebSocket, by code",
            )),
            insecure_logs: metrics.counter(&alpha(
                "kube_apiserver_pod_logs_insecure_backend_total",
                "Number of requests for logs, by whether the certificate of the node was verified",
            )),
            log_tls_failures: metrics.counter(&alpha(
                "kube_apiserver_pod_logs_backend_tls_failure_total",
                "Number of requests for logs that failed in the TLS handshake with the node",
            )),
        }
    }

    /// Counts a command over WebSocket with the code of its outcome.
    pub(crate) fn count_translated(&self, code: u16) {
        self.translated.get_or_create(&vec![("code", code.to_string())]).inc();
    }

    /// Counts a port-forward over WebSocket with the code of its response.
    pub(crate) fn count_tunnelled(&self, code: u16) {
        self.tunnelled.get_or_create(&vec![("code", code.to_string())]).inc();
    }

    /// Counts a request for a log that failed in the TLS handshake.
    pub(crate) fn count_log_tls_failure(&self) {
        self.log_tls_failures.get_or_create(&Vec::new()).inc();
    }

    /// Counts a request for a log.
    pub(crate) fn count_log(&self, is_unverified: bool) {
        let usage = if is_unverified { "skip_tls_allowed" } else { "enforce_tls" };
        self.insecure_logs.get_or_create(&vec![("usage", usage.to_owned())]).inc();
    }
}
