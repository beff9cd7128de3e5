//! The command line.
//! Flags have the names of kube-apiserver where they exist, and all are checked before any socket is bound.
//!
//! # Contract
//!
//! [`processflags`] declares the flags that apid passes on to authd. [`Config::check`] reports errors
//! together, in two groups: those of names, versions, gates and authorization, and then those of the other
//! flags. A flag without effect in this version is accepted with a line in [`Config::warnings`]. An unknown
//! flag and an unsupported mode are errors.

pub mod authentication;
pub mod authentication_source;
pub mod authorization;
pub mod authorization_source;
mod authorization_webhook;
mod certificates;
pub mod file;
pub mod listen;
pub mod oidc;
mod service_accounts;
mod token_webhook;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use apimachinery::clock::Clock;
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use clap::Parser;
use processflags::{AuthdFlags, AuthenticationFlags, SharedFlags};
use serving::compatibility::{CompatibilityVersions, VersionError};
use serving::gates::{FeatureGates, Gate};
use serving::metrics::Metrics;
use serving::reload::Snapshot;

use crate::authn::webhook::TokenWebhook;
use crate::authn::{AuthnSettings, JwtSettings, TokenFile};
use crate::authz::{self, Modes};
use crate::command_list;
use crate::config_error::ConfigError;
use crate::controllers::tokens::EnabledControllers;
use crate::webhook::WebhookContext;
use authentication::Context;
use authentication_source::{AuthenticationSource, LoadedConfiguration};
use certificates::CertificateFlags;
use listen::{ListenFlags, Listeners};
pub use service_accounts::KeyFiles;
use service_accounts::ServiceAccountTokenFlags;

/// The flag that names the policy file of mode ABAC.
const POLICY_FILE: &str = "--authorization-policy-file";

/// The flags as given on the command line or in the file of `--config`.
#[derive(Debug, Parser)]
#[command(name = "authd", version, about = "Identifies and authorizes every request of apid.")]
#[command(override_usage = command_list::usage(), after_help = after_help())]
pub struct Flags {
    /// ServerConfiguration whose section `authd` has flags; flags of the command line replace those of the file
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Exit at end of file of standard input, so that the process ends with its parent
    #[arg(long)]
    pub exit_on_stdin_eof: bool,
    /// File of the generated key for service-account tokens, if no other key is set
    #[arg(long, value_name = "FILE")]
    pub generated_key_file: Option<PathBuf>,
    /// The listeners.
    #[command(flatten)]
    pub listen: ListenFlags,
    /// The flags that apid reads too.
    #[command(flatten)]
    pub shared: SharedFlags,
    /// The flags that apid passes on.
    #[command(flatten)]
    pub authd: AuthdFlags,
}

fn after_help() -> String {
    format!(
        "Authorization modes: {}.\n\nauthd why, why-token, who-can and matrix explain the access control of a running server; each has --help.",
        authz::help()
    )
}

/// The checked command line, with the contents of the files that it names.
#[derive(Debug)]
pub struct Config {
    /// The listeners for apid.
    pub listeners: Listeners,
    /// The names preset.
    pub names: Arc<Names>,
    /// Settings of the authenticators.
    pub authn: AuthnSettings,
    /// The source of the authorizers, a file or flags; a reload decodes a changed file with it.
    pub authorization: authorization_source::AuthorizationSource,
    /// The authorizers at start, in order.
    pub modes: Modes,
    /// The client configurations of the webhooks among the authorizers at start.
    pub authorization_webhooks: Snapshot,
    /// Settings of the authorizers.
    pub authz: authz::Settings,
    /// The source of the authentication configuration; a reload decodes a changed file with it.
    pub authentication: AuthenticationSource,
    /// The certificate and key files, which are reloaded when they change.
    pub reloaded_files: ReloadedFiles,
    /// The token controllers that `--controllers` enables.
    pub controllers: EnabledControllers,
    /// The loopback address of the listener for metrics and health; None means no listener.
    pub metrics_address: Option<SocketAddr>,
    /// The registry of the metrics.
    pub metrics: Arc<Metrics>,
    /// The value of `--exit-on-stdin-eof`.
    pub exit_on_stdin_eof: bool,
    /// Warnings for the log at start.
    pub warnings: Vec<String>,
}

/// Snapshots of the certificate and key files, taken before their first read.
#[derive(Debug)]
pub struct ReloadedFiles {
    /// CA bundles and revocation lists.
    pub certificates: Snapshot,
    /// The key files of service-account tokens.
    pub keys: Snapshot,
    /// The paths of the key files, with their flags.
    pub key_files: KeyFiles,
    /// The client configuration of the token webhook, which is not reloaded.
    pub token_webhook: Snapshot,
}

impl Config {
    /// Checks the flags, and reads the files that they name.
    ///
    /// # Errors
    ///
    /// All errors of names, versions, gates and authorization; without such errors all errors of the other
    /// flags.
    pub fn check(flags: Flags, clock: &dyn Clock) -> Result<Self, Vec<ConfigError>> {
        let mut errors = Vec::new();
        let mut warnings = Vec::new();
        let Flags { listen, exit_on_stdin_eof, generated_key_file, shared, authd, config: _ } = flags;
        let names = Names::new(shared.names.names, &shared.names.api_domain)
            .map_err(|error| errors.push(ConfigError::flag("--api-domain", error.to_string())))
            .ok();
        // If the names are invalid, the next checks run with default names, so that all errors are reported.
        let default_names = || Names::new(Preset::Svc, DEFAULT_API_DOMAIN).ok();
        let Some(names) = names.or_else(default_names).map(Arc::new) else { return Err(errors) };
        let (authorization, modes) = authorization_source::AuthorizationSource::open(
            &authd.authorization,
            authd.authorization_webhook.is_any_set(),
            authd.authentication.anonymous_auth.is_none(),
            Arc::clone(&names),
            &mut errors,
        );
        let versions = shared.names.compatibility_versions().unwrap_or_else(|version_errors| {
            let flag_error = |error: VersionError| ConfigError::flag(error.flag, error.problem);
            errors.extend(version_errors.into_iter().map(flag_error));
            CompatibilityVersions::default()
        });
        let gates = match FeatureGates::parse(&shared.names.feature_gates.join(","), versions.emulated) {
            Ok((gates, notes)) => {
                warnings.extend(notes);
                Some(gates)
            }
            Err(gate_errors) => {
                let flag_error = |error: String| ConfigError::flag("--feature-gates", error);
                errors.extend(gate_errors.0.into_iter().map(flag_error));
                None
            }
        };
        // If the gates are invalid, the next checks run as if all gates were enabled.
        let is_enabled = |gate| gates.as_ref().is_none_or(|gates| gates.enabled(gate));
        let nodes_by_selectors = is_enabled(Gate::AuthorizeNodeWithSelectors);
        if nodes_by_selectors && !is_enabled(Gate::AuthorizeWithSelectors) {
            let problem = "AuthorizeNodeWithSelectors needs AuthorizeWithSelectors";
            errors.push(ConfigError::flag("--feature-gates", problem));
        }
        let metrics_address = authd.controllers.metrics_address.as_deref();
        let metrics_address =
            metrics_address.and_then(|text| record(parse_loopback_address(text), &mut errors));
        let listeners = listen::check(listen, &mut errors);
        let modes = modes.map(|modes| match authd.authorization.authorization_config {
            Some(_) => modes,
            None => {
                let is_listed = modes.has("Webhook");
                let flags = &authd.authorization_webhook;
                modes.with_webhook(authorization_webhook::settings(flags, is_listed, &names, &mut errors))
            }
        });
        if let Some(modes) = &modes {
            match (modes.has("ABAC"), &authd.authorization.authorization_policy_file) {
                (true, None) => errors.push(ConfigError::flag(POLICY_FILE, "required by mode ABAC")),
                (false, Some(_)) => errors
                    .push(ConfigError::flag(POLICY_FILE, "only used by mode ABAC, which is not configured")),
                _ => (),
            }
            warnings.extend(modes.warnings.iter().cloned());
        }
        let has_always_allow = modes.as_ref().is_some_and(Modes::has_always_allow);
        let AuthenticationFlags { anonymous_auth, enable_bootstrap_token_auth, .. } = authd.authentication;
        let mut api_audiences = authd.authentication.api_audiences;
        if api_audiences.is_empty() {
            api_audiences = service_accounts::issuers(&authd.service_accounts, &names);
        }
        let token_flags = ServiceAccountTokenFlags {
            service_accounts: authd.service_accounts,
            tls_private_key_file: shared.certificates.tls_private_key_file,
            generated_key_file,
        };
        let (issuer, key_files, keys) =
            service_accounts::check(&token_flags, &api_audiences, &names, &mut errors);
        let certificate_flags = CertificateFlags {
            client_ca_file: shared.certificates.client_ca_file,
            client_crl_file: authd.authentication.client_crl_file,
            proxy: shared.proxy,
        };
        let proxy_uids = is_enabled(Gate::RemoteRequestHeaderUid);
        let (trust, proxy, certificates) =
            certificates::check(certificate_flags, proxy_uids, clock.now(), &mut errors, &mut warnings);
        let token_file = authd.authentication.token_auth_file.as_deref();
        let token_file =
            token_file.and_then(|path| record(TokenFile::read(path, api_audiences.clone()), &mut errors));
        let metrics = Metrics::showing_hidden(&shared.log.show_hidden_metrics_for_version)
            .map_err(|error| ConfigError::flag("--show-hidden-metrics-for-version", error.to_string()));
        let metrics = Arc::new(record(metrics, &mut errors).unwrap_or_default());
        let webhook_context = WebhookContext::new(Arc::clone(&names), Arc::clone(&metrics));
        let token_webhook_config =
            Snapshot::new(authd.token_webhook.authentication_token_webhook_config_file.clone());
        let token_webhook = token_webhook::settings(&authd.token_webhook, &api_audiences, &mut errors);
        let token_webhook = token_webhook
            .and_then(|settings| record(TokenWebhook::open(settings, &webhook_context), &mut errors));
        let context = Context {
            names: Arc::clone(&names),
            disallowed_issuers: service_accounts::issuers(&token_flags.service_accounts, &names),
            anonymous_conditions: is_enabled(Gate::AnonymousAuthConfigurableEndpoints),
        };
        let anonymous = (anonymous_auth, !has_always_allow);
        let file = authd.authentication.authentication_config;
        let (authentication, LoadedConfiguration { authenticators, anonymous }) = AuthenticationSource::open(
            file,
            &authd.oidc,
            is_enabled(Gate::StructuredAuthenticationConfiguration),
            anonymous,
            context,
            &mut errors,
        );
        if anonymous.enabled && has_always_allow {
            warnings.push(
                "--anonymous-auth with mode AlwaysAllow: anonymous requests may do everything".to_owned(),
            );
        }
        let unknown = serving::controller_names::find_unknown(&authd.controllers.controllers);
        errors.extend(unknown.into_iter().map(|error| ConfigError::flag("--controllers", error.to_string())));
        let (Some(modes), true) = (modes, errors.is_empty()) else {
            return Err(errors);
        };
        let authn = AuthnSettings {
            names: Arc::clone(&names),
            trust,
            proxy,
            token_file,
            certificate_uids: is_enabled(Gate::AllowParsingUserUidFromCertAuth),
            anonymous,
            jwt: JwtSettings { authenticators, ..JwtSettings::none() },
            token_webhook,
            api_audiences,
            issuer,
            service_account_lookup: token_flags.service_accounts.service_account_lookup.unwrap_or(true),
            bootstrap_tokens: enable_bootstrap_token_auth.unwrap_or(false),
        };
        let authz = authz::Settings {
            nodes_by_selectors,
            policy_file: authd.authorization.authorization_policy_file,
            ..authz::Settings::new(webhook_context)
        };
        Ok(Config {
            listeners,
            names,
            authz,
            authn,
            authorization,
            authorization_webhooks: Snapshot::new(modes.client_configs()),
            modes,
            authentication,
            reloaded_files: ReloadedFiles {
                certificates,
                keys,
                key_files,
                token_webhook: token_webhook_config,
            },
            controllers: EnabledControllers::parse(&authd.controllers.controllers),
            metrics_address,
            metrics,
            exit_on_stdin_eof,
            warnings,
        })
    }
}

/// Returns the value of a result; an error is added to `errors`.
fn record<T>(result: Result<T, ConfigError>, errors: &mut Vec<ConfigError>) -> Option<T> {
    result.map_err(|error| errors.push(error)).ok()
}

fn parse_loopback_address(text: &str) -> Result<SocketAddr, ConfigError> {
    let error = |problem: String| ConfigError::flag("--metrics-address", problem);
    let address: SocketAddr =
        text.parse().map_err(|_| error(format!("`{text}` is not of the form address:port")))?;
    if address.ip().is_loopback() {
        Ok(address)
    } else {
        Err(error(format!("`{text}` is not a loopback address, and the listener has no authentication")))
    }
}

/// Parses the flags of one struct, for tests.
#[cfg(test)]
fn parse_flags<F: clap::Args>(arguments: &[&str]) -> Result<F, clap::Error> {
    let command = F::augment_args(clap::Command::new("authd").no_binary_name(true));
    F::from_arg_matches(&command.try_get_matches_from(arguments)?)
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
            [
                "--controllers: `tokencleaners` is not in the list of known controllers; a similar controller is `tokencleaner`"
            ]
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
            "--api-domain=x",
            "--authorization-mode=Webhook,Foo",
            "--feature-gates=NoSuchGate=true",
            "--metrics-address=0.0.0.0:0",
            "--client-ca-file=/missing",
            "--token-auth-file=/missing",
            "--controllers=none",
        ];
        let errors = check(&flags).unwrap_err();
        assert_eq!(errors.len(), 7, "{errors:#?}");
        for bad in [
            &["--metrics-address=nonsense"][..],
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
        let errors = check(&["--emulated-version=1.30"]).unwrap_err();
        let text = errors.iter().map(ToString::to_string).collect::<String>();
        assert!(text.contains("is not between [1.31, 1.33.0]"), "{text}");
        for (flag, is_accepted) in [
            ("--show-hidden-metrics-for-version=1.32", true),
            ("--show-hidden-metrics-for-version=1.20", false),
            ("--names=k8s", false),
            ("--nonsense=x", false),
        ] {
            assert_eq!(
                Flags::try_parse_from(["authd", "--socket=/tmp/s", flag]).is_ok(),
                is_accepted,
                "{flag}"
            );
        }
    }
}
