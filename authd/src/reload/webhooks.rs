//! Notice of changed client configurations of webhooks, which only a new client reads.
//!
//! # Contract
//!
//! authd reads the kubeconfig of the token webhook and of each authorization webhook when it builds the client.
//! After a change of such a file, the log and `/readyz?verbose` say what applies the change: a restart. For
//! authorization webhooks, a reload of the authorization configuration also builds all clients again.

use std::sync::Arc;

use serving::reload::{Snapshot, Watch};

use crate::active_config::SharedConfig;

/// The subject of the note about the client configuration of the token webhook.
pub const TOKEN_WEBHOOK: &str = "client configuration of the token webhook";
/// The subject of the note about client configurations of the webhooks of the active authorization configuration.
pub const AUTHORIZATION_WEBHOOKS: &str = "client configuration of an authorization webhook";

/// The text of the note. `/readyz?verbose` is public, so only the log names the files.
const RESTART_NEEDED: &str = "changed; restart authd to apply the change";

/// The watch of the client configurations that active webhooks have read.
#[derive(Debug)]
pub struct ClientConfigWatch {
    subject: &'static str,
    config: Arc<SharedConfig>,
    watch: Option<Watch>,
}

impl ClientConfigWatch {
    /// Watches the client configurations of webhooks. Needs a tokio runtime.
    /// `subject` is that of the note; `snapshot` was taken before the first read of the files.
    pub fn new(subject: &'static str, snapshot: Snapshot, config: &Arc<SharedConfig>) -> Self {
        let mut client_configs = ClientConfigWatch { subject, config: Arc::clone(config), watch: None };
        client_configs.replace(snapshot);
        client_configs
    }

    /// Watches the files of new webhooks instead of the previous files, and removes the note.
    /// `snapshot` was taken before the new webhooks read the files.
    pub fn replace(&mut self, snapshot: Snapshot) {
        let subject = self.subject;
        self.watch = None;
        self.config.set_note(subject, None);
        if snapshot.is_empty() {
            return;
        }
        let (config, files) = (Arc::clone(&self.config), snapshot.paths());
        self.watch = Some(snapshot.watch(move || {
            tracing::warn!(
                subject,
                ?files,
                "client configuration has changed; authd uses the previous server and credentials until a restart"
            );
            config.set_note(subject, Some(RESTART_NEEDED.to_owned()));
            true
        }));
    }

    /// Returns the watch, if no reload replaces the webhooks; None without a webhook.
    pub fn into_watch(self) -> Option<Watch> {
        self.watch
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::{authn, authz};

    async fn wait_for_notes(config: &SharedConfig, expected: &[String]) {
        let noted = async {
            while config.notes() != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), noted).await.unwrap();
    }

    #[tokio::test]
    async fn changed_client_configuration_of_active_webhook_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let (first, added) = (dir.path().join("first"), dir.path().join("added"));
        let write = |path: &Path, server: &str| std::fs::write(path, server).unwrap();
        write(&first, "server: https://a");
        write(&added, "server: https://b");
        let config = SharedConfig::new(
            "one".into(),
            authn::AuthenticatorUnion::empty(),
            authz::Union::empty(),
            Vec::new(),
        );
        let subject = AUTHORIZATION_WEBHOOKS;
        let mut client_configs = ClientConfigWatch::new(subject, Snapshot::new([first.clone()]), &config);
        let note = [format!("{subject}: {RESTART_NEEDED}")];
        assert_eq!(config.notes(), [] as [String; 0]);
        write(&first, "server: https://c");
        wait_for_notes(&config, &note).await;

        client_configs.replace(Snapshot::new([first, added.clone()]));
        assert_eq!(config.notes(), [] as [String; 0], "the new clients have read the changed file");
        write(&added, "server: https://d");
        wait_for_notes(&config, &note).await;

        client_configs.replace(Snapshot::new([]));
        assert!(client_configs.into_watch().is_none());
    }
}
