//! Notice of changed client configurations of webhooks, which only a restart applies.
//!
//! # Contract
//!
//! authd reads the kubeconfig of the token webhook and of each authorization webhook when it builds the client.
//! After a change of such a file, the log and `/readyz?verbose` say that a restart is needed.

use std::path::PathBuf;
use std::sync::Arc;

use serving::reload::{Snapshot, Watch};

use crate::active_config::SharedConfig;

/// The subject of the note about changed files.
const SUBJECT: &str = "client configuration of a webhook";
/// The text of the note. `/readyz?verbose` is public, so only the log names the files.
const RESTART_NEEDED: &str = "changed; restart authd to apply the change";

/// Watches the client configurations until the returned watch is dropped; None without a webhook.
/// `snapshot` was taken before the first read of the files.
pub fn watch(paths: Vec<PathBuf>, snapshot: Snapshot, config: &Arc<SharedConfig>) -> Option<Watch> {
    if paths.is_empty() {
        return None;
    }
    let config = Arc::clone(config);
    Some(snapshot.watch(move || {
        tracing::warn!(
            files = ?paths,
            "the client configuration of a webhook has changed; authd uses the previous server and credentials \
             until a restart"
        );
        config.set_note(SUBJECT, Some(RESTART_NEEDED.to_owned()));
        true
    }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{authn, authz};

    #[tokio::test]
    async fn changed_client_configuration_of_webhook_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, "server: https://a").unwrap();
        let config = SharedConfig::new(
            "one".into(),
            authn::AuthenticatorUnion::empty(),
            authz::Union::empty(),
            Vec::new(),
        );
        let _watch = watch(vec![path.clone()], Snapshot::new([path.clone()]), &config).unwrap();
        assert_eq!(config.notes(), [] as [String; 0]);
        std::fs::write(&path, "server: https://b").unwrap();
        let noted = async {
            while config.notes() != [format!("{SUBJECT}: {RESTART_NEEDED}")] {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), noted).await.unwrap();
        assert!(watch(Vec::new(), Snapshot::new([]), &config).is_none());
    }
}
