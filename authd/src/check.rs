//! `authd check FILE…`: validates configuration files without a server and without network access.
//!
//! # Contract
//!
//! The `kind` of a file selects its check; [`KINDS`] lists the known kinds. Each error is a line `FILE:LINE:
//! FIELD: REASON` on standard error; a valid file is a line on standard output. The exit code is 0 if all
//! files are valid, 1 if one is not, and 64 if the command line is wrong. The check builds authorizers as the
//! server does, with the files they need. The check does not contact issuers and
//! webhooks.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use apimachinery::clock::{SystemClock, SystemRng};
use apimachinery::document::{Document, DocumentError};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use clap::Parser;

use crate::authz::webhook::Webhooks;
use crate::authz::{self, Union};
use crate::command_line::{USAGE, print_parse_result};
use crate::config::{authentication, authorization, file};
use crate::config_error::ConfigError;
use crate::metrics::AuthdMetrics;
use crate::mirror::Mirror;
use crate::webhook::WebhookContext;

/// The command line after `authd check`.
#[derive(Debug, Parser)]
#[command(name = "authd check", about = "Checks configuration files without a server.")]
struct Flags {
    /// Files of kind AuthenticationConfiguration or AuthorizationConfiguration.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Names preset: `svc` or `kubernetes`.
    #[arg(long, default_value = "svc")]
    names: String,
    /// Domain of API groups and labels under the `svc` preset.
    #[arg(long, default_value = DEFAULT_API_DOMAIN)]
    api_domain: String,
    /// Issuers of service-account tokens, which no JWT authenticator may have.
    #[arg(long, value_name = "ISSUER")]
    service_account_issuer: Vec<String>,
    /// Policies of mode ABAC, for files of kind AuthorizationConfiguration that have it.
    #[arg(long, value_name = "FILE")]
    authorization_policy_file: Option<PathBuf>,
}

/// Settings of the server that will read the files, from the command line.
struct CheckContext {
    authentication: authentication::Context,
    policy_file: Option<PathBuf>,
}

/// Checks a file and returns a summary of its contents.
type Check = fn(&Document, &CheckContext) -> Result<String, Vec<DocumentError>>;

/// The known checks by `kind`.
const KINDS: &[(&str, Check)] = &[
    (authentication::KIND, |document, context| {
        let configuration = authentication::check(document, &context.authentication)?;
        Ok(format!("{} JWT authenticators", configuration.jwt.len()))
    }),
    (authorization::KIND, |document, context| {
        let modes = authorization::read(document, &context.authentication.names)?;
        build_authorizers(&modes, context).map(|()| "authorizers can be built".to_owned())
    }),
];

/// Builds the authorizers as the server would, over an empty mirror.
fn build_authorizers(modes: &authz::Modes, context: &CheckContext) -> Result<(), Vec<DocumentError>> {
    let names = Arc::clone(&context.authentication.names);
    let webhook_context = WebhookContext {
        names: Arc::clone(&names),
        clock: Arc::new(SystemClock::new()),
        rng: Arc::new(SystemRng),
    };
    let settings = authz::Settings {
        names: Arc::clone(&names),
        nodes_by_selectors: true,
        policy_file: context.policy_file.clone(),
        webhooks: Webhooks::new(webhook_context),
    };
    let mirror = Mirror::new(names);
    let result = Union::build(modes, &settings, &mirror, &AuthdMetrics::new([]));
    let without_line = |error: &ConfigError| DocumentError { line: None, text: error.to_string() };
    result.map(drop).map_err(|errors| errors.iter().map(without_line).collect())
}

/// Checks the files that the arguments after `authd check` name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = match Flags::try_parse_from(std::iter::once("authd check".into()).chain(arguments)) {
        Ok(flags) => flags,
        Err(error) => return print_parse_result(&error),
    };
    let names = flags.names.parse::<Preset>().and_then(|preset| Names::new(preset, &flags.api_domain));
    let names = match names {
        Ok(names) => Arc::new(names),
        Err(error) => {
            eprintln!("authd check: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let authentication = authentication::Context {
        disallowed_issuers: flags.service_account_issuer,
        anonymous_conditions: true,
        names,
    };
    let context = CheckContext { authentication, policy_file: flags.authorization_policy_file };
    let mut is_valid = true;
    for path in &flags.files {
        let result = file::read(path)
            .map_err(|error| vec![error.to_string()])
            .and_then(|content| check_file(&content, &context).map_err(|errors| file_errors(path, errors)));
        let file = path.display();
        match result {
            Ok(summary) => drop(writeln!(std::io::stdout(), "{file}: good: {summary}")),
            Err(errors) => {
                is_valid = false;
                for error in errors {
                    eprintln!("{error}");
                }
            }
        }
    }
    if is_valid { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Formats the errors of a file as `FILE:LINE: TEXT`.
fn file_errors(path: &Path, errors: Vec<DocumentError>) -> Vec<String> {
    let file = path.display();
    let format_error = |DocumentError { line, text }: DocumentError| match line {
        Some(line) => format!("{file}:{line}: {text}"),
        None => format!("{file}: {text}"),
    };
    errors.into_iter().map(format_error).collect()
}

/// Checks one file and returns a summary of its contents.
fn check_file(content: &[u8], context: &CheckContext) -> Result<String, Vec<DocumentError>> {
    let document = Document::read(content).map_err(|error| vec![error])?;
    let kind = document.kind();
    match KINDS.iter().find(|(known, _)| *known == kind) {
        Some((_, check)) => check(&document, context).map(|summary| format!("{kind}: {summary}")),
        None => {
            let known: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
            let text = format!("kind: Unsupported value: \"{kind}\": supported values: {}", known.join(", "));
            Err(vec![DocumentError { line: document.line("kind"), text }])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_selects_configuration_by_kind() {
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        let authentication =
            authentication::Context { names, disallowed_issuers: Vec::new(), anonymous_conditions: true };
        let context = CheckContext { authentication, policy_file: None };
        let check = |text: &str| {
            check_file(text.as_bytes(), &context)
                .map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(
            check("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n"),
            Ok("AuthenticationConfiguration: 0 JWT authenticators".to_owned())
        );
        let authorization = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";
        assert!(
            check(authorization).unwrap_err()[0].contains("at least one authorization mode must be defined")
        );
        let abac =
            format!("{authorization}authorizers: [{{type: ABAC, name: a}}, {{type: RBAC, name: r}}]\n");
        assert_eq!(check(&abac).unwrap_err(), ["mode ABAC needs --authorization-policy-file"]);
        let known = "supported values: AuthenticationConfiguration, AuthorizationConfiguration";
        assert_eq!(
            check("apiVersion: v1\nkind: ConfigMap\n").unwrap_err(),
            [format!("line 2: kind: Unsupported value: \"ConfigMap\": {known}")]
        );
        assert_eq!(check("").unwrap_err(), [format!("kind: Unsupported value: \"\": {known}")]);
    }
}
