//! Encryption at rest in the process: its start, reload and effects of its recovery.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::names::Names;
use authclient::PolicyRevisions;
use encryption::kms::{KmsEnvironment, PollIntervals};
use encryption::{Configuration, Encryption, EncryptionMetrics, ReloadOptions, Reloader};
use serving::metrics::Metrics;
use serving::reload::Watch;
use tokio::sync::Notify;
use verbs::Caches;
use verbs::addresses::ServiceAddresses;

use super::error::ProcessError;
use crate::config::Config;
use crate::stored_keys::StoredKeys;

/// Pause before unreadable objects are read again, after a failure of their KMS plugin.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// Encryption at rest, with the watch of its file if `--encryption-provider-config-automatic-reload` is set.
pub(super) struct ProcessEncryption {
    pub(super) encryption: Arc<Encryption>,
    /// Ends the watch when it is dropped.
    pub(super) reload: Option<Watch>,
}

/// Starts encryption with the file of the configuration; None without a file.
pub(super) async fn start(
    config: &Config,
    names: &Names,
    (clock, rng): (&Arc<dyn Clock>, &Arc<dyn Rng>),
    metrics: &Metrics,
    caches: &Caches,
    (revisions, addresses): (&Arc<PolicyRevisions>, &Arc<ServiceAddresses>),
) -> Result<Option<ProcessEncryption>, ProcessError> {
    let flags = &config.flags.storage;
    let Some(file) = flags.encryption_provider_config.clone() else { return Ok(None) };
    let reloads = flags.encryption_provider_config_automatic_reload;
    let options = ReloadOptions { file: file.clone(), names: names.clone() };
    let reloader = reloads.then(|| Reloader::new(options));
    let invalid = |error: &dyn std::fmt::Display| {
        ProcessError::Usage(vec![format!("`--encryption-provider-config`: {error}")])
    };
    let configuration = Configuration::read(&file, names).map_err(|error| invalid(&error))?;
    let recovery = Arc::new(Notify::new());
    let observers = (Arc::clone(revisions), Arc::clone(addresses));
    tokio::spawn(refresh_unreadable(caches.clone(), observers, Arc::clone(&recovery)));
    let environment = KmsEnvironment {
        clock: Arc::clone(clock),
        rng: Arc::clone(rng),
        intervals: PollIntervals::default(),
        on_recovery: Arc::new(move || recovery.notify_one()),
    };
    let server = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let metrics = EncryptionMetrics::new(metrics, &server);
    let etcd = &config.flags.etcd;
    let keys = Arc::new(match etcd.servers().is_empty() {
        true => StoredKeys::new(names),
        false => StoredKeys::below(names, &etcd.etcd_prefix),
    });
    let encryption = Encryption::start(&configuration, environment, metrics, keys).await;
    let encryption = encryption.map_err(|error| invalid(&error))?;
    tracing::info!(file = %file.display(), hash = encryption.hash(), "encryption at rest is configured");
    let reload = reloader.map(|reloader| reloader.watch(Arc::clone(&encryption)));
    Ok(Some(ProcessEncryption { encryption, reload }))
}

/// Reads the unreadable objects of the caches again after each notification, until no read fails. Controllers and clients
/// follow, because the watches of their resources end. The mirror of authd and the index of addresses read their objects
/// themselves.
async fn refresh_unreadable(
    caches: Caches,
    (revisions, addresses): (Arc<PolicyRevisions>, Arc<ServiceAddresses>),
    recovery: Arc<Notify>,
) {
    loop {
        recovery.notified().await;
        revisions.reread_unreadable();
        addresses.reread_unreadable();
        for cache in [Some(caches.main()), caches.separate().map(|(_, cache)| cache)].into_iter().flatten() {
            while !cache.refresh_unreadable().await {
                tokio::time::sleep(REFRESH_INTERVAL).await;
            }
        }
    }
}
