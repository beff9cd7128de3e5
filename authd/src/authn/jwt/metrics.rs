//! Metrics of JWT authenticators and of their issuer keys.

use apimachinery::clock::Clock;
use serving::metrics::{Definition, FloatGauges, Histograms, Metrics, Stability};

/// Labels of [`LATENCY`]: result and hash of the issuer.
type LatencyLabels = [(&'static str, String); 2];
/// Labels of [`JWKS_FETCHED`]: result, hash of the issuer and server id.
type FetchLabels = [(&'static str, String); 3];

const LATENCY: Definition = Definition::new(
    "apiserver_authentication_jwt_authenticator_latency_seconds",
    Stability::Alpha,
    "Duration in seconds of JWT authentication, by result and issuer; cache hits in apid are not counted",
);
const JWKS_FETCHED: Definition = Definition::new(
    "apiserver_authentication_jwt_authenticator_jwks_fetch_last_timestamp_seconds",
    Stability::Alpha,
    "Unix time in seconds of the last JWKS fetch, by result, issuer and server",
);
/// Histogram bucket limits of [`LATENCY`], in seconds.
const LATENCY_BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Metrics of the JWT authenticators.
#[derive(Clone, Debug)]
pub struct JwtMetrics {
    latency: Histograms<LatencyLabels>,
    fetched: FloatGauges<FetchLabels>,
}

impl JwtMetrics {
    /// Registers the metrics.
    pub fn register(registry: &Metrics) -> Self {
        JwtMetrics {
            latency: registry.histogram(&LATENCY, LATENCY_BUCKETS),
            fetched: registry.float_gauge(&JWKS_FETCHED),
        }
    }

    /// Records one authentication with a token of a configured issuer, with its duration in seconds.
    pub fn observe_authentication(&self, issuer_hash: &str, result: &str, seconds: f64) {
        let labels = [("result", result.to_owned()), ("jwt_issuer_hash", issuer_hash.to_owned())];
        self.latency.get_or_create(&labels).observe(seconds);
    }

    /// Sets the metric to the current time, that of the last JWKS fetch with this result.
    pub fn record_fetch(&self, issuer_hash: &str, result: &str, clock: &dyn Clock) {
        let labels = [
            ("result", result.to_owned()),
            ("jwt_issuer_hash", issuer_hash.to_owned()),
            ("apiserver_id_hash", String::new()),
        ];
        self.fetched.get_or_create(&labels).set(clock.now().as_microsecond() as f64 / 1e6);
    }
}
