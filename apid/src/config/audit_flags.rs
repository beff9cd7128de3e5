//! The flags of the audit log, their rules, and the audit log that they describe.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::names::Names;
use audit::{AuditLog, BackendOptions, Batching, Format, Mode, Policy, Rotation, Throttle, Webhook};
use clap::Args;
use serving::flags::{boolean, duration};

/// The modes of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ModeName {
    Batch,
    Blocking,
    BlockingStrict,
}

/// The formats of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FormatName {
    Json,
    Legacy,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Log, audit and metrics flags")]
pub(crate) struct AuditFlags {
    /// Audit policy: which requests are audited, and how; default: metadata of all requests; hot reload
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// Audit log, one line for each event; - is standard output
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<String>,
    /// Format of the lines of the audit log: json or legacy
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    audit_log_format: FormatName,
    /// Maximum size of the audit log in megabytes before it is rotated; 0: 100
    #[arg(long, value_name = "MEGABYTES", default_value = "0", hide_default_value = true)]
    audit_log_maxsize: u64,
    /// Maximum age of rotated audit logs in days; 0: no limit
    #[arg(long, value_name = "DAYS", default_value = "0", hide_default_value = true)]
    audit_log_maxage: u64,
    /// Maximum number of rotated audit logs; 0: no limit
    #[arg(long, value_name = "COUNT", default_value = "0", hide_default_value = true)]
    audit_log_maxbackup: usize,
    /// Compress rotated audit logs with gzip
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    audit_log_compress: bool,
    /// Whether requests wait for lines of the audit log: batch (never; events beyond the buffer are lost), blocking, or blocking-strict (a request is rejected if its first event is lost)
    #[arg(long, value_name = "MODE", default_value = "blocking")]
    audit_log_mode: ModeName,
    /// Maximum number of buffered events; only with --audit-log-mode=batch
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    audit_log_batch_buffer_size: usize,
    /// Maximum number of events in a batch; only with --audit-log-mode=batch
    #[arg(long, value_name = "COUNT", default_value = "1")]
    audit_log_batch_max_size: usize,
    /// Maximum time from the first event of a batch to its delivery; only with --audit-log-mode=batch
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    audit_log_batch_max_wait: Duration,
    /// Limit the rate of batches; only with --audit-log-mode=batch
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    audit_log_batch_throttle_enable: bool,
    /// Maximum average number of batches a second; only with --audit-log-batch-throttle-enable
    #[arg(long, value_name = "RATE", default_value = "0")]
    audit_log_batch_throttle_qps: f64,
    /// Maximum number of batches at once; only with --audit-log-batch-throttle-enable
    #[arg(long, value_name = "COUNT", default_value = "0")]
    audit_log_batch_throttle_burst: usize,
    /// Remove the objects of large events
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    audit_log_truncate_enabled: bool,
    /// Maximum size of an event in bytes; only with --audit-log-truncate-enabled
    #[arg(long, value_name = "BYTES", default_value = "102400")]
    audit_log_truncate_max_event_size: usize,
    /// At least --audit-log-truncate-max-event-size; without another effect, as in kube-apiserver
    #[arg(long, value_name = "BYTES", default_value = "10485760")]
    audit_log_truncate_max_batch_size: usize,
    /// API version of the events: v1 of the audit group
    #[arg(long, value_name = "VERSION")]
    audit_log_version: Option<String>,
    /// Kubeconfig of the webhook that receives audit events
    #[arg(long, value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// Pause before the second of five attempts to send events
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    audit_webhook_initial_backoff: Duration,
    /// Whether requests wait for the audit webhook: batch (never; events beyond the buffer are lost), blocking, or blocking-strict (a request is rejected if its first event is lost)
    #[arg(long, value_name = "MODE", default_value = "batch")]
    audit_webhook_mode: ModeName,
    /// Maximum number of buffered events; only with --audit-webhook-mode=batch
    #[arg(long, value_name = "COUNT", default_value = "10000")]
    audit_webhook_batch_buffer_size: usize,
    /// Maximum number of events in a batch; only with --audit-webhook-mode=batch
    #[arg(long, value_name = "COUNT", default_value = "400")]
    audit_webhook_batch_max_size: usize,
    /// Maximum time from the first event of a batch to its delivery; only with --audit-webhook-mode=batch
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    audit_webhook_batch_max_wait: Duration,
    /// Limit the rate of batches; only with --audit-webhook-mode=batch
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "true", value_parser = boolean)]
    audit_webhook_batch_throttle_enable: bool,
    /// Maximum average number of batches a second; only with --audit-webhook-batch-throttle-enable
    #[arg(long, value_name = "RATE", default_value = "10")]
    audit_webhook_batch_throttle_qps: f64,
    /// Maximum number of batches at once; only with --audit-webhook-batch-throttle-enable
    #[arg(long, value_name = "COUNT", default_value = "15")]
    audit_webhook_batch_throttle_burst: usize,
    /// Remove the objects of large events
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", default_value = "false", hide_default_value = true, value_parser = boolean)]
    audit_webhook_truncate_enabled: bool,
    /// Maximum size of an event in bytes; only with --audit-webhook-truncate-enabled
    #[arg(long, value_name = "BYTES", default_value = "102400")]
    audit_webhook_truncate_max_event_size: usize,
    /// At least --audit-webhook-truncate-max-event-size; without another effect, as in kube-apiserver
    #[arg(long, value_name = "BYTES", default_value = "10485760")]
    audit_webhook_truncate_max_batch_size: usize,
    /// API version of the events: v1 of the audit group
    #[arg(long, value_name = "VERSION")]
    audit_webhook_version: Option<String>,
}

/// The flags of one backend.
struct BackendFlags<'a> {
    /// `log` or `webhook`, as in the names of the flags.
    name: &'static str,
    mode: ModeName,
    buffer_size: usize,
    max_size: usize,
    max_wait: Duration,
    is_throttled: bool,
    qps: f64,
    burst: usize,
    is_truncated: bool,
    max_event_bytes: usize,
    max_batch_bytes: usize,
    version: Option<&'a str>,
}

impl AuditFlags {
    fn log(&self) -> BackendFlags<'_> {
        BackendFlags {
            name: "log",
            mode: self.audit_log_mode,
            buffer_size: self.audit_log_batch_buffer_size,
            max_size: self.audit_log_batch_max_size,
            max_wait: self.audit_log_batch_max_wait,
            is_throttled: self.audit_log_batch_throttle_enable,
            qps: self.audit_log_batch_throttle_qps,
            burst: self.audit_log_batch_throttle_burst,
            is_truncated: self.audit_log_truncate_enabled,
            max_event_bytes: self.audit_log_truncate_max_event_size,
            max_batch_bytes: self.audit_log_truncate_max_batch_size,
            version: self.audit_log_version.as_deref(),
        }
    }

    fn webhook(&self) -> BackendFlags<'_> {
        BackendFlags {
            name: "webhook",
            mode: self.audit_webhook_mode,
            buffer_size: self.audit_webhook_batch_buffer_size,
            max_size: self.audit_webhook_batch_max_size,
            max_wait: self.audit_webhook_batch_max_wait,
            is_throttled: self.audit_webhook_batch_throttle_enable,
            qps: self.audit_webhook_batch_throttle_qps,
            burst: self.audit_webhook_batch_throttle_burst,
            is_truncated: self.audit_webhook_truncate_enabled,
            max_event_bytes: self.audit_webhook_truncate_max_event_size,
            max_batch_bytes: self.audit_webhook_truncate_max_batch_size,
            version: self.audit_webhook_version.as_deref(),
        }
    }

    /// Returns the errors in the flags and in the policy file, one text each.
    pub(crate) fn errors(&self, names: &Names) -> Vec<String> {
        let mut errors = Vec::new();
        if self.audit_log_path.is_some() {
            self.log().check(names, &mut errors);
        }
        if self.audit_webhook_config_file.is_some() {
            self.webhook().check(names, &mut errors);
        }
        if let Some(file) = &self.audit_webhook_config_file
            && let Err(error) = Webhook::check(file, names)
        {
            errors.push(format!("`--audit-webhook-config-file`: {error}"));
        }
        if let Some(file) = &self.audit_policy_file
            && let Err(error) = Policy::load(file, names)
        {
            errors.push(format!("`--audit-policy-file`: {error}"));
        }
        errors
    }

    /// Returns warnings about flags without an effect.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let has_backend = self.audit_log_path.is_some() || self.audit_webhook_config_file.is_some();
        match &self.audit_policy_file {
            Some(_) if !has_backend => vec![
                "`--audit-policy-file` has no effect without `--audit-log-path` or `--audit-webhook-config-file`"
                    .to_owned(),
            ],
            _ => Vec::new(),
        }
    }

    /// Opens the audit log. Batches need a runtime, in which the caller is.
    ///
    /// # Errors
    ///
    /// A file cannot be opened, or is invalid. The text names the file.
    pub(crate) fn open(
        &self,
        names: &Names,
        clock: &Arc<dyn Clock>,
        rng: &Arc<dyn Rng>,
    ) -> Result<AuditLog, String> {
        if self.audit_log_path.is_none() && self.audit_webhook_config_file.is_none() {
            return Ok(AuditLog::off());
        }
        let mut audit = AuditLog::new(names, Arc::clone(clock));
        if let Some(file) = &self.audit_policy_file {
            audit = audit.with_policy_file(file, names).map_err(|error| error.to_string())?;
        }
        if let Some(path) = &self.audit_log_path {
            let format = match self.audit_log_format {
                FormatName::Json => Format::Json,
                FormatName::Legacy => Format::Legacy,
            };
            audit = audit
                .with_log(path, self.rotation(), format, self.log().options())
                .map_err(|error| format!("audit log `{path}`: {error}"))?;
        }
        if let Some(file) = &self.audit_webhook_config_file {
            let backoff = self.audit_webhook_initial_backoff;
            let webhook = Webhook::load(file, backoff, names, Arc::clone(clock), Arc::clone(rng))
                .map_err(|error| error.to_string())?;
            audit = audit.with_webhook(webhook, self.webhook().options());
        }
        Ok(audit)
    }

    fn rotation(&self) -> Rotation {
        Rotation {
            max_megabytes: self.audit_log_maxsize,
            max_days: self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            is_compressed: self.audit_log_compress,
        }
    }
}

impl BackendFlags<'_> {
    fn check(&self, names: &Names, errors: &mut Vec<String>) {
        let mut check = |is_valid: bool, flag: &str, text: &str| {
            if !is_valid {
                errors.push(format!("`--audit-{}-{flag}`: {text}", self.name));
            }
        };
        if self.mode == ModeName::Batch {
            check(self.buffer_size > 0, "batch-buffer-size", "must be a positive number");
            check(self.max_size > 0, "batch-max-size", "must be a positive number");
            if self.is_throttled {
                let is_rate = self.qps > 0.0 && self.qps.is_finite();
                check(is_rate, "batch-throttle-qps", "must be a positive number");
                check(self.burst > 0, "batch-throttle-burst", "must be a positive number");
            }
        }
        if self.is_truncated {
            check(self.max_event_bytes > 0, "truncate-max-event-size", "must be a positive number");
            let is_valid = self.max_batch_bytes >= self.max_event_bytes;
            check(is_valid, "truncate-max-batch-size", "must not be below the maximum size of an event");
        }
        let expected = format!("{}/v1", names.group("audit"));
        let is_valid = self.version.is_none_or(|version| version == expected);
        check(is_valid, "version", &format!("the only version is {expected}"));
    }

    fn options(&self) -> BackendOptions {
        let throttle = self.is_throttled.then_some(Throttle { qps: self.qps, burst: self.burst });
        let mode = match self.mode {
            ModeName::Batch => Mode::Batch(Batching {
                buffer_size: self.buffer_size,
                max_size: self.max_size,
                max_wait: self.max_wait,
                throttle,
            }),
            ModeName::Blocking => Mode::Blocking,
            ModeName::BlockingStrict => Mode::BlockingStrict,
        };
        BackendOptions { mode, max_event_bytes: self.is_truncated.then_some(self.max_event_bytes) }
    }
}
