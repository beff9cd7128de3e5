//! Metrics of encryption at rest, with the names of kube-apiserver.
//!
//! # Reference
//!
//! kube-apiserver counts a transformation under the prefix of the provider and again under the name of the key. Here
//! the prefix of the provider counts. kube-apiserver has `dek_cache_fill_percent` and `cache_misses_total` for KMS v1
//! only.

use std::time::Duration;

use jiff::Timestamp;
use serving::metrics::Stability::Alpha;
use serving::metrics::{Counter, Counters, Definition, FloatGauges, Gauges, Histogram, Histograms, Metrics};

use crate::configuration::hash;

/// Labels as name and value.
type Labels = Vec<(&'static str, String)>;

/// Bounds of the time of a transformation in seconds: 5 µs, doubled 24 times.
const TRANSFORMATION_SECONDS: &[f64] = &[
    5e-6, 1e-5, 2e-5, 4e-5, 8e-5, 1.6e-4, 3.2e-4, 6.4e-4, 1.28e-3, 2.56e-3, 5.12e-3, 1.024e-2, 2.048e-2,
    4.096e-2, 8.192e-2, 0.16384, 0.32768, 0.65536, 1.31072, 2.62144, 5.24288, 10.48576, 20.97152, 41.94304,
    83.88608,
];
/// Bounds of the time of a call to a plugin in seconds.
const CALL_SECONDS: &[f64] = &[
    1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 6.4e-3, 1.28e-2, 2.56e-2, 5.12e-2, 0.1024, 0.2048, 0.4096,
    0.8192, 1.6384, 3.2768, 6.5536, 13.1072, 26.2144, 52.4288,
];

/// All families of encryption at rest.
pub struct EncryptionMetrics {
    server: String,
    operations: Counters<Labels>,
    durations: Histograms<Labels>,
    last_configuration: Gauges<Labels>,
    reloads: Counters<Labels>,
    last_reload: FloatGauges<Labels>,
    dek_count: Gauges<Labels>,
    key_uses: Counters<Labels>,
    last_key_use: FloatGauges<Labels>,
    last_status_key: FloatGauges<Labels>,
    invalid_key_ids: Counters<Labels>,
    calls: Histograms<Labels>,
}

/// The direction of a transformation.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    FromStorage,
    ToStorage,
}

impl Direction {
    fn as_str(self) -> &'static str {
        match self {
            Direction::FromStorage => "from_storage",
            Direction::ToStorage => "to_storage",
        }
    }
}

/// The counters of a resource and a provider in one direction.
pub(crate) struct TransformationMetrics {
    succeeded: Counter,
    failed: Counter,
    duration: Histogram,
}

impl TransformationMetrics {
    /// Counts a transformation.
    pub(crate) fn record(&self, is_success: bool, duration: Duration) {
        if is_success { &self.succeeded } else { &self.failed }.inc();
        self.duration.observe(duration.as_secs_f64());
    }
}

impl EncryptionMetrics {
    /// Declares all families. `server` identifies this server; the labels have the hash.
    pub fn new(metrics: &Metrics, server: &str) -> Self {
        let alpha = |name, help| Definition::new(name, Alpha, help);
        EncryptionMetrics {
            server: hash(server.as_bytes()),
            operations: metrics.counter(&alpha(
                "apiserver_storage_transformation_operations_total",
                "Encryptions and decryptions of stored values, by resource, direction, prefix and result",
            )),
            durations: metrics.histogram(
                &alpha(
                    "apiserver_storage_transformation_duration_seconds",
                    "Duration of an encryption or decryption of a stored value in seconds",
                ),
                TRANSFORMATION_SECONDS,
            ),
            last_configuration: metrics.gauge(&alpha(
                "apiserver_encryption_config_controller_last_config_info",
                "Hash of the file of --encryption-provider-config in use; the value is 1",
            )),
            reloads: metrics.counter(&alpha(
                "apiserver_encryption_config_controller_automatic_reloads_total",
                "Reloads of the file of --encryption-provider-config, by result",
            )),
            last_reload: metrics.float_gauge(&alpha(
                "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds",
                "Time of the last reload of the file of --encryption-provider-config in seconds since 1970, by result",
            )),
            dek_count: metrics.gauge(&alpha(
                "apiserver_envelope_encryption_dek_source_cache_size",
                "Decrypted keys and seeds of a KMS plugin in memory",
            )),
            key_uses: metrics.counter(&alpha(
                "apiserver_envelope_encryption_key_id_hash_total",
                "Uses of a key of a KMS plugin, by direction and hash of its name",
            )),
            last_key_use: metrics.float_gauge(&alpha(
                "apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds",
                "Time of the last encryption with a key of a KMS plugin in seconds since 1970, by hash of its name",
            )),
            last_status_key: metrics.float_gauge(&alpha(
                "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds",
                "Time at which a KMS plugin last named a key in seconds since 1970, by hash of its name",
            )),
            invalid_key_ids: metrics.counter(&alpha(
                "apiserver_envelope_encryption_invalid_key_id_from_status_total",
                "Responses of a KMS plugin with an invalid name of its key, by reason",
            )),
            calls: metrics.histogram(
                &alpha(
                    "apiserver_envelope_encryption_kms_operations_latency_seconds",
                    "Duration of a call to a KMS plugin in seconds, by method and gRPC code",
                ),
                CALL_SECONDS,
            ),
        }
    }

    /// The counters of a resource and a provider.
    pub(crate) fn transformations(
        &self,
        resource: &str,
        prefix: &str,
        direction: Direction,
    ) -> TransformationMetrics {
        let direction = ("transformation_type", direction.as_str().to_owned());
        let prefix = ("transformer_prefix", prefix.to_owned());
        let counter = |status: &str| {
            let labels = vec![
                ("resource", resource.to_owned()),
                ("status", status.to_owned()),
                direction.clone(),
                prefix.clone(),
            ];
            self.operations.get_or_create(&labels).clone()
        };
        TransformationMetrics {
            succeeded: counter("OK"),
            failed: counter("Unknown"),
            duration: self.durations.get_or_create(&vec![direction.clone(), prefix.clone()]).clone(),
        }
    }

    fn server(&self) -> (&'static str, String) {
        ("apiserver_id_hash", self.server.clone())
    }

    /// Records the configuration in use.
    pub(crate) fn set_configuration(&self, hash: &str) {
        self.last_configuration.clear();
        self.last_configuration.get_or_create(&vec![self.server(), ("hash", hash.to_owned())]).set(1);
    }

    /// Counts a reload.
    pub(crate) fn record_reload(&self, is_success: bool, now: Timestamp) {
        let status = if is_success { "success" } else { "failure" };
        let labels = vec![self.server(), ("status", status.to_owned())];
        self.reloads.get_or_create(&labels).inc();
        self.last_reload.get_or_create(&labels).set(seconds(now));
    }

    pub(crate) fn set_dek_count(&self, provider: &str, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.dek_count.get_or_create(&vec![("provider_name", provider.to_owned())]).set(count);
    }

    /// Counts a use of a key of a plugin.
    pub(crate) fn count_key_use(&self, provider: &str, key_id: &str, direction: &str) {
        let labels = vec![
            self.server(),
            ("key_id_hash", hash(key_id.as_bytes())),
            ("provider_name", provider.to_owned()),
            ("transformation_type", direction.to_owned()),
        ];
        self.key_uses.get_or_create(&labels).inc();
    }

    /// Records that a new seed of a key encrypts.
    pub(crate) fn record_new_seed(&self, provider: &str, key_id: &str, now: Timestamp) {
        let labels = vec![
            self.server(),
            ("key_id_hash", hash(key_id.as_bytes())),
            ("provider_name", provider.to_owned()),
            ("transformation_type", Direction::ToStorage.as_str().to_owned()),
        ];
        self.last_key_use.get_or_create(&labels).set(seconds(now));
    }

    /// Records the key that a plugin names.
    pub(crate) fn record_status_key(&self, provider: &str, key_id: &str, now: Timestamp) {
        let labels = vec![
            self.server(),
            ("key_id_hash", hash(key_id.as_bytes())),
            ("provider_name", provider.to_owned()),
        ];
        self.last_status_key.get_or_create(&labels).set(seconds(now));
    }

    /// Counts an invalid name of a key.
    pub(crate) fn count_invalid_key_id(&self, provider: &str, key_id: &str) {
        let error = if key_id.is_empty() { "empty" } else { "too_long" };
        let labels = vec![("error", error.to_owned()), ("provider_name", provider.to_owned())];
        self.invalid_key_ids.get_or_create(&labels).inc();
    }

    /// Records a call to a plugin.
    pub(crate) fn record_kms_call(&self, provider: &str, method: &str, code: &str, duration: Duration) {
        let labels = vec![
            ("grpc_status_code", code.to_owned()),
            ("method_name", method.to_owned()),
            ("provider_name", provider.to_owned()),
        ];
        self.calls.get_or_create(&labels).observe(duration.as_secs_f64());
    }
}

fn seconds(time: Timestamp) -> f64 {
    time.as_duration().as_secs_f64()
}
