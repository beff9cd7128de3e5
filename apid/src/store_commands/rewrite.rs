//! `apid store rewrite`: encrypts all stale objects of a stopped store with the first key of the first provider.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, SystemClock, SystemRng};
use apimachinery::names::{Names, Preset};
use encryption::kms::{KmsEnvironment, PollIntervals};
use encryption::{
    Configuration, Encryption, EncryptionError, EncryptionMetrics, RewriteError, RewriteProgress,
};
use serving::metrics::Metrics;
use storage::engine::fjall::{FjallStore, OpenError, Options, offline};
use storage::{Observers, Store};

use super::DAMAGED;
use crate::console::{fail, print};
use crate::stored_keys::StoredKeys;

/// Time between two lines of progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);

/// The reason why a rewrite does not start or does not end.
#[derive(Debug, thiserror::Error)]
enum RewriteFailure {
    #[error("{0}")]
    Store(#[from] OpenError),
    #[error("{0}")]
    Encryption(#[from] EncryptionError),
    #[error("{0}; start `apid store rewrite` again to continue")]
    Interrupted(#[from] RewriteError),
    #[error("{0}; the rewrite needs the plugin")]
    Kms(String),
    #[error("the names of the store are invalid: {0}")]
    Names(String),
    #[error("the runtime cannot start: {0}")]
    Runtime(#[from] std::io::Error),
}

/// Rewrites a store, and prints progress and result.
pub(super) fn run(store: &Path, file: &Path) -> ExitCode {
    match rewrite(store, file) {
        Ok((result, compacted)) => {
            print(summary(&result));
            match compacted {
                _ if result.unreadable > 0 => ExitCode::from(DAMAGED),
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(RewriteFailure::Store(OpenError::Store(error @ storage::Error::Corrupt(_)))) => {
            fail(error);
            ExitCode::from(DAMAGED)
        }
        Err(error) => fail(error),
    }
}

/// Rewrites a store. Returns the work, and whether the superseded versions were removed from the history.
fn rewrite(dir: &Path, file: &Path) -> Result<(RewriteProgress, Result<(), storage::Error>), RewriteFailure> {
    let identity = offline::identity(dir)?;
    let preset =
        identity.preset.parse::<Preset>().map_err(|error| RewriteFailure::Names(error.to_string()))?;
    let names =
        Names::new(preset, &identity.api_domain).map_err(|error| RewriteFailure::Names(error.to_string()))?;
    let configuration = Configuration::read(file, &names).map_err(EncryptionError::from)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let options = Options::new(PathBuf::from(dir), identity, Arc::clone(&clock));
    runtime.block_on(async {
        let environment = KmsEnvironment {
            clock: Arc::clone(&clock),
            rng: Arc::new(SystemRng),
            intervals: PollIntervals::default(),
            on_recovery: Arc::new(|| ()),
        };
        let metrics = EncryptionMetrics::new(&Metrics::new(), "");
        let encryption =
            Encryption::start(&configuration, environment, metrics, Arc::new(StoredKeys::new(&names))).await?;
        encryption.kms_health().map_err(RewriteFailure::Kms)?;
        let observers = encryption.observer(Arc::new(Observers(Vec::new())));
        let engine = Arc::new(FjallStore::open(options, observers)?);
        let store: Arc<dyn Store> = engine.clone();
        let mut last_report = clock.monotonic();
        let result = encryption::rewrite(&encryption, &store, |progress| {
            if clock.monotonic().saturating_sub(last_report) >= REPORT_INTERVAL {
                last_report = clock.monotonic();
                print(format!("{} objects read, {} rewritten\n", progress.objects, progress.rewritten));
            }
        })
        .await;
        // The superseded versions are no history that a client may read.
        let compacted = async {
            store.compact(store.revision()).await?;
            engine.maintain().await
        }
        .await;
        if let Err(error) = &compacted {
            eprintln!(
                "apid: the history still has earlier versions, because its compaction failed: {error}; start `apid store \
                 rewrite` again"
            );
        }
        store.close().await;
        Ok((result?, compacted))
    })
}

fn summary(result: &RewriteProgress) -> String {
    let mut text = format!(
        "{} objects, {} rewritten, {} unreadable\n",
        result.objects, result.rewritten, result.unreadable
    );
    for (key, reason) in &result.unreadable_keys {
        text.push_str(&format!("unreadable: {key}: {reason}\n"));
    }
    text.push_str(
        "earlier versions stay in the files until the engine replaces them; `apid store backup` and `apid store restore` \
         make a store without them\n",
    );
    text
}
