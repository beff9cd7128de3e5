//! The flags of the token webhook.

use std::time::Duration;

use processflags::TokenWebhookFlags;

use crate::authn::webhook::TokenWebhookSettings;
use crate::config_error::ConfigError;
use crate::webhook::Version;

/// The default TTL of accepted tokens in the cache.
const DEFAULT_TTL: Duration = Duration::from_secs(120);

/// Returns the settings of the token webhook; None if it is not configured.
pub(super) fn settings(
    flags: &TokenWebhookFlags,
    api_audiences: &[String],
    errors: &mut Vec<ConfigError>,
) -> Option<TokenWebhookSettings> {
    let version = Version::from_flag(
        flags.authentication_token_webhook_version.as_deref(),
        "--authentication-token-webhook-version",
        errors,
    );
    Some(TokenWebhookSettings {
        client_config: flags.authentication_token_webhook_config_file.clone()?,
        version,
        ttl: flags.authentication_token_webhook_cache_ttl.unwrap_or(DEFAULT_TTL),
        api_audiences: api_audiences.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_flags;
    use crate::config_error::error_texts;

    /// Returns the settings of a command line, and the errors.
    fn settings_of(
        arguments: &[&str],
        audiences: &[String],
    ) -> (Option<TokenWebhookSettings>, Vec<ConfigError>) {
        let mut errors = Vec::new();
        let settings = settings(&parse_flags(arguments).unwrap(), audiences, &mut errors);
        (settings, errors)
    }

    #[test]
    fn token_webhook_flags_have_documented_defaults() {
        assert_eq!(settings_of(&[], &[]), (None, Vec::new()));
        let (defaults, errors) =
            settings_of(&["--authentication-token-webhook-config-file=/f"], &["a".into()]);
        let expected = TokenWebhookSettings {
            client_config: "/f".into(),
            version: Version::V1Beta1,
            ttl: Duration::from_secs(120),
            api_audiences: vec!["a".into()],
        };
        assert_eq!((defaults, errors), (Some(expected), Vec::new()));
        let changed = [
            "--authentication-token-webhook-config-file=/t",
            "--authentication-token-webhook-cache-ttl=1m",
            "--authentication-token-webhook-version=v1",
        ];
        let changed = settings_of(&changed, &[]).0.unwrap();
        assert_eq!((changed.ttl.as_secs(), changed.version), (60, Version::V1));
    }

    #[test]
    fn token_webhook_flag_error_names_the_flag() {
        let (_, errors) = settings_of(&["--authentication-token-webhook-version=v3"], &[]);
        assert_eq!(
            error_texts(errors),
            ["--authentication-token-webhook-version: unknown version `v3`: use `v1` or `v1beta1`"]
        );
        assert!(
            parse_flags::<TokenWebhookFlags>(&["--authentication-token-webhook-cache-ttl=soon"]).is_err()
        );
    }
}
