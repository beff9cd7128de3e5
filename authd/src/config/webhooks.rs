//! The flags of the token webhook and of the authorization webhook.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::names::Names;
use serving::client_config::ClientConfig;
use serving::flags::duration;

use super::authorization::{AUTHORIZED_TTL, UNAUTHORIZED_TTL};
use crate::authn::webhook::Settings;
use crate::authz::entry::{OnFailure, Webhook};
use crate::webhook::TOTAL_TIMEOUT;
use crate::webhook::{Version, server_problem};

/// Default TTL of accepted tokens.
const TOKEN_TTL: Duration = Duration::from_secs(120);

/// The flags as written.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Client configuration file of the token review webhook.
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// TTL of cached acceptances; 0 disables the cache. Default: 2m0s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub authentication_token_webhook_cache_ttl: Option<Duration>,
    /// Version of the TokenReview, `v1` or `v1beta1`. Default: `v1beta1`.
    #[arg(long, value_name = "VERSION")]
    pub authentication_token_webhook_version: Option<String>,
    /// Client configuration file of the authorization webhook.
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// TTL of cached allows; 0 disables the cache. Default: 5m0s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub authorization_webhook_cache_authorized_ttl: Option<Duration>,
    /// TTL of other cached responses; 0 disables the cache. Default: 30s.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Option<Duration>,
    /// Version of the SubjectAccessReview, `v1` or `v1beta1`. Default: `v1beta1`.
    #[arg(long, value_name = "VERSION")]
    pub authorization_webhook_version: Option<String>,
}

impl Flags {
    /// Whether flags configure mode Webhook: they exclude a configuration file.
    pub fn any_of_authorization(&self) -> bool {
        self.authorization_webhook_config_file.is_some()
            || self.authorization_webhook_cache_authorized_ttl.is_some()
            || self.authorization_webhook_cache_unauthorized_ttl.is_some()
            || self.authorization_webhook_version.is_some()
    }

    /// Settings of the token webhook; None if it is not configured.
    pub fn tokens(&self, api_audiences: &[String], mistakes: &mut Vec<String>) -> Option<Settings> {
        let version = version(
            self.authentication_token_webhook_version.as_deref(),
            "--authentication-token-webhook-version",
            mistakes,
        );
        Some(Settings {
            client_config: self.authentication_token_webhook_config_file.clone()?,
            version,
            ttl: self.authentication_token_webhook_cache_ttl.unwrap_or(TOKEN_TTL),
            api_audiences: api_audiences.to_vec(),
        })
    }

    /// Settings of the authorization webhook. `used`: whether the flag lists mode Webhook.
    pub fn authorization(&self, used: bool, names: &Names, mistakes: &mut Vec<String>) -> Option<Webhook> {
        const FILE: &str = "--authorization-webhook-config-file";
        let version = version(
            self.authorization_webhook_version.as_deref(),
            "--authorization-webhook-version",
            mistakes,
        );
        let file = match (&self.authorization_webhook_config_file, used) {
            (Some(file), true) => file.clone(),
            (Some(_), false) => {
                mistakes.push(format!(
                    "{FILE}: only used by mode Webhook, which --authorization-mode does not list"
                ));
                return None;
            }
            (None, true) => {
                mistakes.push(format!("{FILE}: required by mode Webhook"));
                return None;
            }
            (None, false) => return None,
        };
        if let Ok(target) = ClientConfig::load(&file).and_then(|config| config.target(None, names))
            && let Some(wrong) = server_problem(names, &target.cluster.server)
        {
            mistakes.push(format!("{FILE}: {}: {wrong}", file.display()));
        }
        Some(Webhook {
            client_config: file,
            version,
            authorized_ttl: self.authorization_webhook_cache_authorized_ttl.unwrap_or(AUTHORIZED_TTL),
            unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl.unwrap_or(UNAUTHORIZED_TTL),
            timeout: TOTAL_TIMEOUT,
            on_failure: OnFailure::NoOpinion,
            conditions: Arc::default(),
        })
    }
}

fn version(written: Option<&str>, flag: &str, mistakes: &mut Vec<String>) -> Version {
    let Some(written) = written else { return Version::V1Beta1 };
    Version::parse(written).unwrap_or_else(|| {
        mistakes.push(format!("{flag}: unknown version `{written}`: use `v1` or `v1beta1`"));
        Version::V1Beta1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(words: &[&str]) -> Flags {
        Line::try_parse_from(["x"].iter().chain(words)).unwrap_or_else(|e| panic!("{e}")).flags
    }

    #[test]
    fn webhook_flags_have_documented_defaults() {
        let mut mistakes = Vec::new();
        let none = flags(&[]);
        assert_eq!(none.tokens(&[], &mut mistakes), None);
        let tokens =
            flags(&["--authentication-token-webhook-config-file=/f"]).tokens(&["a".into()], &mut mistakes);
        let want = Settings {
            client_config: "/f".into(),
            version: Version::V1Beta1,
            ttl: Duration::from_secs(120),
            api_audiences: vec!["a".into()],
        };
        assert_eq!(tokens, Some(want));
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        let webhook = flags(&["--authorization-webhook-config-file=/f"]);
        let webhook = webhook.authorization(true, &kubernetes, &mut mistakes).unwrap();
        assert_eq!(webhook.version, Version::V1Beta1);
        assert_eq!((webhook.authorized_ttl.as_secs(), webhook.unauthorized_ttl.as_secs()), (300, 30));
        assert_eq!(webhook.on_failure, OnFailure::NoOpinion);
        let set = flags(&[
            "--authorization-webhook-config-file=/f",
            "--authorization-webhook-cache-authorized-ttl=5s",
            "--authorization-webhook-cache-unauthorized-ttl=0",
            "--authorization-webhook-version=v1",
            "--authentication-token-webhook-config-file=/t",
            "--authentication-token-webhook-cache-ttl=1m",
            "--authentication-token-webhook-version=v1",
        ]);
        let webhook = set.authorization(true, &kubernetes, &mut mistakes).unwrap();
        assert_eq!((webhook.authorized_ttl.as_secs(), webhook.unauthorized_ttl.as_secs()), (5, 0));
        assert_eq!(webhook.version, Version::V1);
        let tokens = set.tokens(&[], &mut mistakes).unwrap();
        assert_eq!((tokens.ttl.as_secs(), tokens.version), (60, Version::V1));
        assert_eq!(mistakes, [""; 0]);
    }

    #[test]
    fn webhook_flag_error_names_the_flag() {
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
        for (words, used, names, want) in [
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
            let mut mistakes = Vec::new();
            let _ = flags(&words).authorization(used, names, &mut mistakes);
            assert_eq!(mistakes.len(), usize::from(!want.is_empty()), "{mistakes:?}");
            assert!(mistakes.iter().all(|mistake| mistake.contains(want)), "{mistakes:?} for {want}");
        }
        let mut mistakes = Vec::new();
        let _ = flags(&["--authentication-token-webhook-version=v3"]).tokens(&[], &mut mistakes);
        assert_eq!(
            mistakes,
            ["--authentication-token-webhook-version: unknown version `v3`: use `v1` or `v1beta1`"]
        );
        assert!(Line::try_parse_from(["x", "--authentication-token-webhook-cache-ttl=soon"]).is_err());
    }
}
