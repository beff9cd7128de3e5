//! The flags of the token webhook.

use std::path::PathBuf;
use std::time::Duration;

use serving::flags::duration;

use super::webhook_version;
use crate::authn::webhook::Settings;
use crate::config_error::ConfigError;

/// Default TTL of accepted tokens.
const DEFAULT_TTL: Duration = Duration::from_secs(120);

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
}

impl Flags {
    /// Returns the settings of the token webhook; None if it is not configured.
    pub fn settings(&self, api_audiences: &[String], errors: &mut Vec<ConfigError>) -> Option<Settings> {
        let version = webhook_version::parse(
            self.authentication_token_webhook_version.as_deref(),
            "--authentication-token-webhook-version",
            errors,
        );
        Some(Settings {
            client_config: self.authentication_token_webhook_config_file.clone()?,
            version,
            ttl: self.authentication_token_webhook_cache_ttl.unwrap_or(DEFAULT_TTL),
            api_audiences: api_audiences.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_error::error_texts;
    use crate::webhook::Version;
    use clap::Parser;

    #[derive(Parser)]
    struct CommandLine {
        #[command(flatten)]
        flags: Flags,
    }

    fn flags(arguments: &[&str]) -> Flags {
        CommandLine::try_parse_from(["x"].iter().chain(arguments)).unwrap_or_else(|e| panic!("{e}")).flags
    }

    #[test]
    fn token_webhook_flags_have_documented_defaults() {
        let mut errors = Vec::new();
        assert_eq!(flags(&[]).settings(&[], &mut errors), None);
        let defaults =
            flags(&["--authentication-token-webhook-config-file=/f"]).settings(&["a".into()], &mut errors);
        let expected = Settings {
            client_config: "/f".into(),
            version: Version::V1Beta1,
            ttl: Duration::from_secs(120),
            api_audiences: vec!["a".into()],
        };
        assert_eq!(defaults, Some(expected));
        let changed = flags(&[
            "--authentication-token-webhook-config-file=/t",
            "--authentication-token-webhook-cache-ttl=1m",
            "--authentication-token-webhook-version=v1",
        ]);
        let changed = changed.settings(&[], &mut errors).unwrap();
        assert_eq!((changed.ttl.as_secs(), changed.version), (60, Version::V1));
        assert_eq!(errors, []);
    }

    #[test]
    fn token_webhook_flag_error_names_the_flag() {
        let mut errors = Vec::new();
        let _ = flags(&["--authentication-token-webhook-version=v3"]).settings(&[], &mut errors);
        assert_eq!(
            error_texts(errors),
            ["--authentication-token-webhook-version: unknown version `v3`: use `v1` or `v1beta1`"]
        );
        assert!(CommandLine::try_parse_from(["x", "--authentication-token-webhook-cache-ttl=soon"]).is_err());
    }
}
