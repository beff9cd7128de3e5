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
use tokio::sync::watch;
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
    let recovery = watch::Sender::new(());
    refresh_unreadable(caches, (revisions, addresses), &recovery);
    let environment = KmsEnvironment {
        clock: Arc::clone(clock),
        rng: Arc::clone(rng),
        intervals: PollIntervals::default(),
        on_recovery: Arc::new(move || {
            recovery.send_replace(());
        }),
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

/// Reads the unreadable objects of the caches again after each recovery. Controllers and clients follow, because the watches of
/// their resources end. The mirror of authd and the index of addresses read their objects themselves.
///
/// Each cache has a task of its own: a store that does not answer does not delay the others.
fn refresh_unreadable(
    caches: &Caches,
    (revisions, addresses): (&Arc<PolicyRevisions>, &Arc<ServiceAddresses>),
    recovery: &watch::Sender<()>,
) {
    let (revisions, addresses) = (Arc::clone(revisions), Arc::clone(addresses));
    tokio::spawn(repeat_after(recovery.subscribe(), REFRESH_INTERVAL, async move || {
        revisions.reread_unreadable();
        addresses.reread_unreadable();
        true
    }));
    for cache in [Some(caches.main()), caches.separate().map(|(_, cache)| cache)].into_iter().flatten() {
        let cache = Arc::clone(cache);
        tokio::spawn(repeat_after(recovery.subscribe(), REFRESH_INTERVAL, async move || {
            cache.refresh_unreadable().await
        }));
    }
}

/// Reads objects again after each recovery, with pauses until `read` returns true. Ends with the sender of the recoveries.
async fn repeat_after(mut recovery: watch::Receiver<()>, pause: Duration, read: impl AsyncFn() -> bool) {
    while recovery.changed().await.is_ok() {
        while !read().await {
            tokio::time::sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const PAUSE: Duration = Duration::from_millis(10);

    #[tokio::test]
    async fn store_that_does_not_answer_delays_no_other_rereads() {
        let recovery = watch::Sender::new(());
        let (failed, read) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let (failures, reads) = (Arc::clone(&failed), Arc::clone(&read));
        tokio::spawn(repeat_after(recovery.subscribe(), PAUSE, async move || {
            failures.fetch_add(1, Ordering::Relaxed);
            false
        }));
        tokio::spawn(repeat_after(recovery.subscribe(), PAUSE, async move || {
            reads.fetch_add(1, Ordering::Relaxed);
            true
        }));
        for recoveries in 1..=3 {
            recovery.send_replace(());
            tokio::time::sleep(PAUSE * 10).await;
            assert_eq!(read.load(Ordering::Relaxed), recoveries);
        }
        assert!(failed.load(Ordering::Relaxed) > 3, "the failing read goes on");
    }
}
