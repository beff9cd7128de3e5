//! A client certificate in files, read again when the files change.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use serving::client::{Identity, SettingsError};
use serving::reload::Snapshot;

/// Minimum interval between two checks of the files. Only a new connection causes a check.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The client certificate of a certificate file and a key file. `Debug` shows the paths only.
pub struct ClientCredentials {
    certificate: PathBuf,
    key: PathBuf,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

struct State {
    snapshot: Snapshot,
    checked_at: Duration,
    identity: Identity,
    /// Number of changes of the files.
    generation: u64,
}

impl ClientCredentials {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// A file cannot be read or is invalid. The text names the files and contains nothing of the key.
    pub fn read(certificate: PathBuf, key: PathBuf, clock: Arc<dyn Clock>) -> Result<Self, SettingsError> {
        let snapshot = Snapshot::new([certificate.clone(), key.clone()]);
        let identity = read_identity(&certificate, &key)?;
        let state = State { snapshot, checked_at: clock.monotonic(), identity, generation: 0 };
        Ok(ClientCredentials { certificate, key, clock, state: Mutex::new(state) })
    }

    /// Returns the certificate, with a number that grows when the files change. Invalid files leave the previous
    /// certificate in use.
    pub fn current(&self) -> (u64, Identity) {
        let mut state = self.state.lock();
        let now = self.clock.monotonic();
        if now.saturating_sub(state.checked_at) >= FILE_CHECK_INTERVAL {
            state.checked_at = now;
            if state.snapshot.changed() {
                match read_identity(&self.certificate, &self.key) {
                    Ok(identity) => {
                        state.identity = identity;
                        state.generation += 1;
                        tracing::info!(file = %self.certificate.display(), "client certificate reloaded");
                    }
                    Err(error) => {
                        tracing::error!(%error, "client certificate is invalid; using the previous certificate");
                    }
                }
            }
        }
        (state.generation, state.identity.clone())
    }
}

impl std::fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCredentials")
            .field("certificate", &self.certificate)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

fn read_identity(certificate: &PathBuf, key: &PathBuf) -> Result<Identity, SettingsError> {
    let read = |file: &PathBuf| {
        std::fs::read(file).map_err(|error| SettingsError(format!("file `{}`: {error}", file.display())))
    };
    Identity::from_pem(&read(certificate)?, &read(key)?).map_err(|SettingsError(problem)| {
        SettingsError(format!("files `{}` and `{}`: {problem}", certificate.display(), key.display()))
    })
}
