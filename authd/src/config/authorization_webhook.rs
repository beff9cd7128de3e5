//! The flags of the authorization webhook.

use std::sync::Arc;

use apimachinery::names::Names;
use processflags::AuthorizationWebhookFlags;
use serving::client_config::ClientConfig;

use super::authorization::{AUTHORIZED_TTL, UNAUTHORIZED_TTL};
use crate::authz::entry::{OnFailure, WebhookSettings};
use crate::config_error::ConfigError;
use crate::webhook::{TOTAL_TIMEOUT, Version, server_problem};

/// The flag that names the client configuration file.
const CONFIG_FILE: &str = "--authorization-webhook-config-file";

/// Returns the settings of the webhook.
/// Returns None if no webhook is configured, or an error about the flag of its file was added to `errors`.
/// `is_listed`: `--authorization-mode` lists mode Webhook.
pub(super) fn settings(
    flags: &AuthorizationWebhookFlags,
    is_listed: bool,
    names: &Names,
    errors: &mut Vec<ConfigError>,
) -> Option<WebhookSettings> {
    let version = Version::from_flag(
        flags.authorization_webhook_version.as_deref(),
        "--authorization-webhook-version",
        errors,
    );
    let file = match (&flags.authorization_webhook_config_file, is_listed) {
        (Some(file), true) => file.clone(),
        (Some(_), false) => {
            errors.push(ConfigError::flag(
                CONFIG_FILE,
                "only used by mode Webhook, which --authorization-mode does not list",
            ));
            return None;
        }
        (None, true) => {
            errors.push(ConfigError::flag(CONFIG_FILE, "required by mode Webhook"));
            return None;
        }
        (None, false) => return None,
    };
    if let Ok(target) = ClientConfig::load(&file).and_then(|config| config.target(None, names))
        && let Some(problem) = server_problem(names, &target.cluster.server)
    {
        errors.push(ConfigError::flag_file(CONFIG_FILE, &file, problem));
    }
    Some(WebhookSettings {
        client_config: file,
        version,
        authorized_ttl: flags.authorization_webhook_cache_authorized_ttl.unwrap_or(AUTHORIZED_TTL),
        unauthorized_ttl: flags.authorization_webhook_cache_unauthorized_ttl.unwrap_or(UNAUTHORIZED_TTL),
        timeout: TOTAL_TIMEOUT,
        on_failure: OnFailure::NoOpinion,
        conditions: Arc::default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_flags;
    use crate::config_error::error_texts;
    use apimachinery::names::Preset;

    fn flags(arguments: &[&str]) -> AuthorizationWebhookFlags {
        parse_flags(arguments).unwrap()
    }

    #[test]
    fn authorization_webhook_flags_have_documented_defaults() {
        let mut errors = Vec::new();
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        let webhook = flags(&["--authorization-webhook-config-file=/f"]);
        let webhook = settings(&webhook, true, &kubernetes, &mut errors).unwrap();
        assert_eq!(webhook.version, Version::V1Beta1);
        assert_eq!((webhook.authorized_ttl.as_secs(), webhook.unauthorized_ttl.as_secs()), (300, 30));
        assert_eq!(webhook.on_failure, OnFailure::NoOpinion);
        let changed = flags(&[
            "--authorization-webhook-config-file=/f",
            "--authorization-webhook-cache-authorized-ttl=5s",
            "--authorization-webhook-cache-unauthorized-ttl=0",
            "--authorization-webhook-version=v1",
        ]);
        let webhook = settings(&changed, true, &kubernetes, &mut errors).unwrap();
        assert_eq!((webhook.authorized_ttl.as_secs(), webhook.unauthorized_ttl.as_secs()), (5, 0));
        assert_eq!(webhook.version, Version::V1);
        assert_eq!(errors, []);
    }

    #[test]
    fn authorization_webhook_flag_error_names_the_flag() {
        let dir = tempfile::tempdir().unwrap();
        let config = |name: &str, server: &str| {
            let file = dir.path().join(name);
            std::fs::write(&file, format!("clusters: [{{name: c, cluster: {{server: '{server}'}}}}]"))
                .unwrap();
            format!("--authorization-webhook-config-file={}", file.display())
        };
        let (plain, query) = (config("plain", "http://h/p"), config("query", "https://h/p?a=b"));
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        for (arguments, is_listed, names, expected) in [
            (vec![], true, &svc, "--authorization-webhook-config-file: required by mode Webhook"),
            (
                vec!["--authorization-webhook-config-file=/f"],
                false,
                &svc,
                "--authorization-webhook-config-file: only used by mode Webhook",
            ),
            (
                vec!["--authorization-webhook-version=v2"],
                false,
                &svc,
                "--authorization-webhook-version: unknown version `v2`",
            ),
            (vec![plain.as_str()], true, &svc, "server must begin with https://"),
            (vec![query.as_str()], true, &svc, "server must have no parameters"),
            (vec![plain.as_str()], true, &kubernetes, ""),
            (vec![query.as_str()], true, &kubernetes, ""),
        ] {
            let mut errors = Vec::new();
            let _ = settings(&flags(&arguments), is_listed, names, &mut errors);
            let errors = error_texts(errors);
            assert_eq!(errors.len(), usize::from(!expected.is_empty()), "{errors:?}");
            assert!(errors.iter().all(|error| error.contains(expected)), "{errors:?} for {expected}");
        }
    }
}
