//! Reload of the configuration file after a change.
//!
//! # Contract
//!
//! A file that is invalid, or that names a KMS plugin that is not healthy, leaves the previous configuration in use.
//! The reload is repeated until it succeeds or the file changes.
//!
//! # Reference
//!
//! kube-apiserver looks at the file once a minute. Here a file-system event starts the check.

use std::path::PathBuf;
use std::sync::Arc;

use apimachinery::names::Names;
use serving::reload::{Snapshot, Watch};
use tokio::runtime::Handle;

use crate::store::Encryption;

/// The file to watch.
#[derive(Clone, Debug)]
pub struct ReloadOptions {
    /// The path of the file.
    pub file: PathBuf,
    /// The names of the server.
    pub names: Names,
}

/// Watches the file from its creation on, so that no change before the first read is lost.
pub struct Reloader {
    options: ReloadOptions,
    snapshot: Snapshot,
}

impl Reloader {
    /// Records the content of the file. Create the reloader before the configuration is read.
    pub fn new(options: ReloadOptions) -> Self {
        let snapshot = Snapshot::new([options.file.clone()]);
        Reloader { options, snapshot }
    }

    /// Reloads the file after each change, until the watch is dropped.
    pub fn watch(self, encryption: Arc<Encryption>) -> Watch {
        let Reloader { options: ReloadOptions { file, names }, snapshot } = self;
        let runtime = Handle::current();
        let mut last_failure = String::new();
        snapshot.watch(move || match runtime.block_on(encryption.reload(&file, &names)) {
            Ok(()) => {
                last_failure.clear();
                tracing::info!(file = %file.display(), hash = encryption.hash(), "encryption configuration reloaded");
                true
            }
            Err(error) => {
                let text = error.to_string();
                if text != last_failure {
                    tracing::error!(
                        file = %file.display(),
                        error = text,
                        "encryption configuration rejected; the previous one stays in use"
                    );
                    last_failure = text;
                }
                false
            }
        })
    }
}
