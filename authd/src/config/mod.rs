//! The command line.
//! Flags have the names of kube-apiserver where they exist, and all are checked before any socket is bound.
//!
//! # Contract
//!
//! [`Config::check`] reports all errors at once. A flag without effect in this version is accepted with a
//! line in [`Config::warnings`]. An unknown flag and an unsupported mode are errors.

pub mod authentication;
pub mod authentication_source;
pub mod authorization;
pub mod authorization_source;
mod authorization_webhook;
mod certificates;
pub mod document;
pub mod oidc;
mod service_accounts;
mod token_webhook;
mod webhook_version;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use apimachinery::clock::{Clock, SystemClock, SystemRng};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use clap::Parser;
use serving::gates::{FeatureGates, Gate};
use serving::reload::Snapshot;
use serving::{flags, log};

use crate::authn::webhook::TokenWebhook;
use crate::authn::{JwtSettings, Settings, TokenFile};
use crate::authz::webhook::Webhooks;
use crate::authz::{self, Modes};
use crate::config_error::ConfigError;
use crate::controllers::{self, tokens::EnabledControllers};
use crate::webhook::WebhookContext;
use authentication::Context;
use authentication_source::{LoadedConfiguration, Source};
pub use service_accounts::KeyFiles;

/// The flag with the policy file of mode ABAC.
const POLICY_FILE: &str = "--authorization-policy-file";

/// The flags as written.
#[derive(Debug, Parser)]
#[command(name = "authd", version, about = "Identifies and authorizes every request of apid.", after_help = after_help())]
pub struct Flags {
    /// ServerConfiguration whose section `authd` has flags; flags of the command line replace those of the file.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Unix socket for apid; created with mode 0600.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Names preset: `svc` or `kubernetes`.
    #[arg(long, default_value = "svc")]
    pub names: String,
    /// Domain of API groups and labels under the `svc` preset.
    #[arg(long, default_value = DEFAULT_API_DOMAIN)]
    pub api_domain: String,
    /// CSV file of static tokens: token,user,uid and groups. Read once at start.
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Client certificates and authenticating proxies.
    #[command(flatten)]
    pub certificates: certificates::Flags,
    /// Whether requests without credentials are allowed as system:anonymous.
    /// Default: true, and false if the mode is AlwaysAllow.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = flags::boolean)]
    pub anonymous_auth: Option<bool>,
    /// The authorization modes.
    #[command(flatten)]
    pub authorization: authorization_source::Flags,
    /// The policy file of mode ABAC: one JSON object per line. Read at start.
    #[arg(long, value_name = "FILE")]
    pub authorization_policy_file: Option<PathBuf>,
    /// Audiences that a token must be valid for. Default: the issuer.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// OpenID Connect and other JWT authenticators.
    #[command(flatten)]
    pub authentication: authentication_source::Flags,
    /// The token webhook.
    #[command(flatten)]
    pub token_webhook: token_webhook::Flags,
    /// The authorization webhook.
    #[command(flatten)]
    pub authorization_webhook: authorization_webhook::Flags,
    /// Service-account tokens.
    #[command(flatten)]
    pub service_accounts: service_accounts::Flags,
    /// Whether bootstrap tokens are accepted. Default: false.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = flags::boolean)]
    pub enable_bootstrap_token_auth: Option<bool>,
    /// Controllers to run: `*` for those on by default, `name` for one more (`tokencleaner`, `bootstrapsigner`), `-name`
    /// for one less. Default: `*`.
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', allow_hyphen_values = true)]
    pub controllers: Vec<String>,
    /// Feature gates: Gate=true,...
    #[arg(long)]
    pub feature_gates: Vec<String>,
    /// Address of the listener for /metrics and health; loopback only. Default: no listener.
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics_address: Option<String>,
    /// Also show the metrics hidden since this version, which must be the previous one.
    #[arg(long, value_name = "VERSION", default_value = "")]
    pub show_hidden_metrics_for_version: String,
    /// Exit at end of file of standard input, so that the process ends with its parent.
    #[arg(long)]
    pub exit_on_stdin_eof: bool,
    /// Log verbosity.
    #[arg(short = 'v', long = "v", default_value_t = 0)]
    pub verbosity: u8,
    /// Log lines as `text` or `json`.
    #[arg(long, default_value = "text")]
    pub logging_format: log::Format,
}

fn after_help() -> String {
    format!(
        "Authorization modes: {}.\n\nauthd check FILE... checks configuration files without a server.",
        authz::help()
    )
}

/// A checked command line.
#[derive(Debug)]
pub struct Config {
    /// The socket path.
    pub socket: PathBuf,
    /// The names preset.
    pub names: Arc<Names>,
    /// Settings of the authenticators.
    pub authn: Settings,
    /// The source of the authorizers.
    pub authorization: authorization_source::Source,
    /// The configured authorizers.
    pub modes: Modes,
    /// Settings of the authorizers.
    pub authz: authz::Settings,
    /// The source of the authentication configuration.
    pub authentication: Source,
    /// The files that are reloaded when they change.
    pub reloaded_files: ReloadedFiles,
    /// The enabled token controllers.
    pub token_controllers: EnabledControllers,
    /// The address of the listener for metrics and health.
    pub metrics_address: Option<SocketAddr>,
    /// `--show-hidden-metrics-for-version`.
    pub hidden_metrics: String,
    /// `--exit-on-stdin-eof`.
    pub exit_on_stdin_eof: bool,
    /// Warnings for the start-up log.
    pub warnings: Vec<String>,
}

/// Snapshots of the reloaded files, taken before their first read.
#[derive(Debug)]
pub struct ReloadedFiles {
    /// CA bundles and revocation lists.
    pub certificates: Snapshot,
    /// Keys of service-account tokens.
    pub keys: Snapshot,
    /// The key files.
    pub key_files: KeyFiles,
}

impl Config {
    /// Checks the flags.
    ///
    /// # Errors
    ///
    /// All errors, a line each.
    pub fn check(flags: Flags, clock: &dyn Clock) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut warnings = Vec::new();
        let names = flags
            .names
            .parse::<Preset>()
            .map_err(|error| ConfigError::flag("--names", error.to_string()))
            .and_then(|preset| {
                Names::new(preset, &flags.api_domain)
                    .map_err(|error| ConfigError::flag("--api-domain", error.to_string()))
            });
        let names = names.map_err(|error| errors.push(error)).ok();
        // After invalid names the other checks run with default names, so that all errors are reported at
        // once.
        let default_names = || Names::new(Preset::Svc, DEFAULT_API_DOMAIN).ok();
        let Some(names) = names.or_else(default_names).map(Arc::new) else { return Err(errors) };
        let (authorization, modes) = authorization_source::Source::open(
            &flags.authorization,
            flags.authorization_webhook.is_any_set(),
            flags.anonymous_auth.is_none(),
            Arc::clone(&names),
            &mut errors,
        );
        let (mut certificate_uids, mut proxy_uids) = (true, true);
        let (mut structured, mut anonymous_conditions) = (true, true);
        let mut nodes_by_selectors = true;
        match FeatureGates::parse(&flags.feature_gates.join(",")) {
            Ok((gates, notes)) => {
                certificate_uids = gates.enabled(Gate::AllowParsingUserUidFromCertAuth);
                structured = gates.enabled(Gate::StructuredAuthenticationConfiguration);
                anonymous_conditions = gates.enabled(Gate::AnonymousAuthConfigurableEndpoints);
                proxy_uids = gates.enabled(Gate::RemoteRequestHeaderUid);
                nodes_by_selectors = gates.enabled(Gate::AuthorizeNodeWithSelectors);
                if nodes_by_selectors && !gates.enabled(Gate::AuthorizeWithSelectors) {
                    let problem = "AuthorizeNodeWithSelectors needs AuthorizeWithSelectors";
                    errors.push(ConfigError::flag("--feature-gates", problem));
                }
                warnings.extend(notes);
            }
            Err(gate_errors) => errors
                .extend(gate_errors.0.into_iter().map(|error| ConfigError::flag("--feature-gates", error))),
        }
        let hidden_metrics = flags.show_hidden_metrics_for_version;
        if let Err(error) = serving::metrics::Metrics::showing_hidden(&hidden_metrics) {
            errors.push(ConfigError::flag("--show-hidden-metrics-for-version", error));
        }
        let metrics_address = flags.metrics_address.as_deref().map(loopback).transpose();
        let metrics_address = metrics_address.map_err(|error| errors.push(error)).ok().flatten();
        if flags.socket.as_os_str().is_empty() {
            errors.push(ConfigError::flag("--socket", "the path is empty"));
        }
        let modes = modes.map(|modes| match flags.authorization.authorization_config {
            Some(_) => modes,
            None => {
                let used = modes.has("Webhook");
                modes.with_webhook(flags.authorization_webhook.settings(used, &names, &mut errors))
            }
        });
        let (Some(modes), true) = (modes, errors.is_empty()) else {
            return Err(errors);
        };

        match (modes.has("ABAC"), &flags.authorization_policy_file) {
            (true, None) => errors.push(ConfigError::flag(POLICY_FILE, "required by mode ABAC")),
            (false, Some(_)) => {
                errors.push(ConfigError::flag(POLICY_FILE, "only used by mode ABAC, which is not configured"))
            }
            _ => (),
        }
        warnings.extend(modes.warnings.iter().cloned());
        let mut api_audiences = flags.api_audiences;
        if api_audiences.is_empty() {
            api_audiences = service_accounts::issuers(&flags.service_accounts, &names);
        }
        let (issuer, key_files, keys) =
            service_accounts::check(&flags.service_accounts, &api_audiences, &names, &mut errors);
        let (trust, proxy, certificates) =
            certificates::check(flags.certificates, proxy_uids, clock.now(), &mut errors, &mut warnings);
        let token_file =
            flags.token_auth_file.as_deref().map(|path| TokenFile::read(path, api_audiences.clone()));
        let token_file = token_file.transpose().unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        let webhook_context = WebhookContext {
            names: Arc::clone(&names),
            clock: Arc::new(SystemClock::new()),
            rng: Arc::new(SystemRng),
        };
        let token_webhook = flags.token_webhook.settings(&api_audiences, &mut errors);
        let token_webhook =
            token_webhook.map(|settings| TokenWebhook::open(settings, &webhook_context)).transpose();
        let token_webhook = token_webhook.unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        let context = Context {
            names: Arc::clone(&names),
            disallowed_issuers: service_accounts::issuers(&flags.service_accounts, &names),
            anonymous_conditions,
        };
        let anonymous = (flags.anonymous_auth, !modes.has_always_allow());
        let (authentication, LoadedConfiguration { authenticators, anonymous }) =
            Source::open(flags.authentication, structured, anonymous, context, &mut errors);
        if anonymous.enabled && modes.has_always_allow() {
            warnings.push("--anonymous-auth: anonymous requests are allowed everything".to_owned());
        }
        errors.extend(controllers::names::check_names(&flags.controllers));
        if !errors.is_empty() {
            return Err(errors);
        }
        let authn = Settings {
            names: Arc::clone(&names),
            trust,
            proxy,
            token_file,
            certificate_uids,
            anonymous,
            jwt: JwtSettings { authenticators, ..JwtSettings::none() },
            token_webhook,
            api_audiences,
            issuer,
            lookup: flags.service_accounts.service_account_lookup.unwrap_or(true),
            bootstrap_tokens: flags.enable_bootstrap_token_auth.unwrap_or(false),
        };
        let authz = authz::Settings {
            names: Arc::clone(&names),
            nodes_by_selectors,
            policy_file: flags.authorization_policy_file,
            webhooks: Webhooks::new(webhook_context),
        };
        Ok(Config {
            socket: flags.socket,
            names,
            authz,
            authn,
            authorization,
            modes,
            authentication,
            reloaded_files: ReloadedFiles { certificates, keys, key_files },
            token_controllers: EnabledControllers::parse(&flags.controllers),
            metrics_address,
            hidden_metrics,
            exit_on_stdin_eof: flags.exit_on_stdin_eof,
            warnings,
        })
    }
}

fn loopback(text: &str) -> Result<SocketAddr, ConfigError> {
    let error = |problem: String| ConfigError::flag("--metrics-address", problem);
    let address: SocketAddr =
        text.parse().map_err(|_| error(format!("`{text}` is not of the form address:port")))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(error(format!("`{text}` is not a loopback address, and the listener has no authentication")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_error::error_texts;

    fn check(flags: &[&str]) -> Result<Config, Vec<String>> {
        let words = ["authd", "--socket=/tmp/s"].iter().chain(flags);
        let flags = Flags::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
        Config::check(flags, &apimachinery::clock::ManualClock::at(jiff::Timestamp::UNIX_EPOCH))
            .map_err(error_texts)
    }

    #[test]
    fn unknown_controller_in_flag_is_rejected() {
        assert!(check(&["--controllers=*,tokencleaner,-ttl-controller"]).is_ok());
        assert_eq!(
            check(&["--controllers=*,tokencleaners"]).unwrap_err(),
            ["--controllers: `tokencleaners` is not in the list of known controllers"]
        );
    }

    #[test]
    fn anonymous_auth_defaults_to_off_with_always_allow() {
        for (flags, expected) in [
            (vec![], false),
            (vec!["--authorization-mode=RBAC"], true),
            (vec!["--authorization-mode=AlwaysDeny"], true),
            (vec!["--authorization-mode=RBAC,AlwaysAllow"], false),
            (vec!["--authorization-mode=RBAC", "--anonymous-auth=false"], false),
            (vec!["--anonymous-auth"], true),
            (vec!["--anonymous-auth=true"], true),
        ] {
            assert_eq!(check(&flags).unwrap().authn.anonymous.enabled, expected, "{flags:?}");
        }
    }

    #[test]
    fn all_flag_errors_are_reported_together() {
        let flags = [
            "--names=k8s",
            "--authorization-mode=Webhook,Foo",
            "--feature-gates=NoSuchGate=true",
            "--metrics-address=0.0.0.0:0",
        ];
        let errors = check(&flags).unwrap_err();
        assert_eq!(errors.len(), 4, "{errors:#?}");
        for bad in [
            &["--names=svc", "--api-domain=x"][..],
            &["--metrics-address=nonsense"],
            &["--authorization-mode=RBAC,ABAC"],
            &["--authorization-mode=RBAC", "--authorization-policy-file=/x"],
            &["--feature-gates=AuthorizeWithSelectors=false"],
        ] {
            assert_eq!(check(bad).unwrap_err().len(), 1, "{bad:?}");
        }
    }

    #[test]
    fn flag_values_are_accepted_or_rejected() {
        let config = check(&[
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://x.test",
            "--enable-bootstrap-token-auth",
            "-v=5",
        ]);
        let config = config.unwrap();
        assert!(config.warnings.is_empty(), "{:?}", config.warnings);
        assert_eq!(config.authn.api_audiences, ["https://x.test"]);
        for (flag, good) in [
            ("--show-hidden-metrics-for-version=1.32", true),
            ("--show-hidden-metrics-for-version=1.20", false),
        ] {
            assert_eq!(check(&[flag]).is_ok(), good, "{flag}");
        }
        assert!(Flags::try_parse_from(["authd", "--socket=/tmp/s", "--nonsense=x"]).is_err());
    }
}
