//! Hot reload of the authorization configuration.

use std::sync::Arc;

use serving::reload::{Snapshot, Watch};

use super::metrics::ReloadMetrics;
use super::webhooks::{AUTHORIZATION_WEBHOOKS, ClientConfigWatch};
use super::{Context, WatchedFile, watch_file};
use crate::authz::{Modes, Settings, Union};
use crate::config::authorization_source::AuthorizationSource;

/// The subject of the note about the file.
const SUBJECT: &str = "authorization configuration";

/// Watches the file and the client configurations of its webhooks until the returned value is dropped.
/// Without a file, watches the client configuration of the webhook of the flags; None without both.
/// Needs a tokio runtime. `initial` are the authorizers at start; `client_configs` was taken before their
/// webhooks read the files.
pub fn watch(
    mut source: AuthorizationSource,
    initial: &Modes,
    settings: &Settings,
    client_configs: Snapshot,
    context: &Context,
) -> Option<Watch> {
    let Context { config, metrics, .. } = context;
    let mut client_configs = ClientConfigWatch::new(AUTHORIZATION_WEBHOOKS, client_configs, config);
    let Some((path, snapshot)) = source.take_file() else { return client_configs.into_watch() };
    let metrics = ReloadMetrics::for_authorization(metrics);
    let file = WatchedFile { subject: SUBJECT, path: path.clone(), metrics };
    let (initial, settings) = (initial.clone(), settings.clone());
    let shared_config = Arc::clone(config);
    Some(watch_file(file, snapshot, context, move |content| {
        let modes = source.decode_reload(&path, content, &initial)?;
        let snapshot = Snapshot::new(modes.client_configs());
        shared_config.replace_authz(Union::build(&modes, &settings)?);
        client_configs.replace(snapshot);
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use apimachinery::clock::SystemClock;
    use apimachinery::names::{Names, Preset};
    use processflags::AuthorizationFlags;

    use super::*;
    use crate::active_config::SharedConfig;
    use crate::authn::AuthenticatorUnion;
    use crate::webhook::WebhookContext;

    fn write_client_config(path: &Path, server: &str) {
        let text = format!(
            "clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n\
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\ncurrent-context: x\n"
        );
        std::fs::write(path, text).unwrap();
    }

    /// The text of a configuration with RBAC and one webhook for each file.
    fn configuration(client_configs: &[&Path]) -> String {
        let webhook = |(index, path): (usize, &&Path)| {
            format!(
                "- type: Webhook\n  name: hook-{index}\n  webhook:\n    timeout: 3s\n    failurePolicy: NoOpinion\n    \
                 subjectAccessReviewVersion: v1\n    connectionInfo: {{type: KubeConfigFile, kubeConfigFile: '{}'}}\n",
                path.display()
            )
        };
        let webhooks: String = client_configs.iter().enumerate().map(webhook).collect();
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n\
             - {{type: RBAC, name: rbac}}\n{webhooks}"
        )
    }

    #[tokio::test]
    async fn client_configuration_of_webhook_that_reload_adds_is_watched() {
        let dir = tempfile::tempdir().unwrap();
        let (path, client) = (dir.path().join("authorization"), dir.path().join("client"));
        std::fs::write(&path, configuration(&[])).unwrap();
        write_client_config(&client, "https://a.test");
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        let flags =
            AuthorizationFlags { authorization_config: Some(path.clone()), ..AuthorizationFlags::default() };
        let mut errors = Vec::new();
        let (source, modes) =
            AuthorizationSource::open(&flags, false, false, Arc::clone(&names), &mut errors);
        assert_eq!(errors, []);
        let settings = Settings::new(WebhookContext::new(Arc::clone(&names), Arc::default()));
        let (authn, authz) = (AuthenticatorUnion::empty(), Union::empty());
        let config = SharedConfig::new("one".into(), authn, authz, Vec::new());
        let context = Context {
            config: Arc::clone(&config),
            metrics: Arc::default(),
            clock: Arc::new(SystemClock::new()),
        };
        let _watch = watch(source, &modes.unwrap(), &settings, Snapshot::new([]), &context);
        let generation = |config: &SharedConfig| config.current().epoch.generation;
        let wait_for = async |condition: &dyn Fn() -> bool| {
            let waiting = async {
                while !condition() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap();
        };
        std::fs::write(&path, configuration(&[&client])).unwrap();
        wait_for(&|| generation(&config) == 2).await;
        write_client_config(&client, "https://b.test");
        wait_for(&|| config.notes().iter().any(|note| note.contains("authorization webhook"))).await;
        std::fs::write(&path, configuration(&[])).unwrap();
        wait_for(&|| config.notes().is_empty()).await;
    }
}
