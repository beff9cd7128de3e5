//! `authd check FILE…`: validates configuration files without a server and without network access.
//!
//! # Contract
//!
//! The `kind` of a file selects its check; [`KINDS`] lists the known kinds. A file of ABAC policies is checked
//! too. With `--token` the check also authenticates a token from standard input by the authentication files.
//! Each error is a line `FILE:LINE: FIELD: REASON` on standard error; each valid file is a line on standard
//! output. The exit code is 0 if all files are valid and the token, if any, is accepted. It is 64 if the
//! command line is wrong, and otherwise 1. The check builds authorizers as the server does, and reads the files
//! that they name. Without `--token` the check contacts no issuer and no webhook.

mod token;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use apimachinery::document::{Document, DocumentError};
use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use clap::{CommandFactory as _, Parser};

use crate::authz::{self, Union, abac};
use crate::command_line::{USAGE, print_parse_result};
use crate::config::{authentication, authorization, file};
use crate::config_error::ConfigError;
use crate::token_input;
use crate::webhook::WebhookContext;

/// The command line after `authd check`.
#[derive(Debug, Parser)]
#[command(name = "authd check", about = "Checks configuration files without a server.")]
struct CheckFlags {
    /// Files of kind AuthenticationConfiguration or AuthorizationConfiguration, or of ABAC policies.
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
    /// Reads a token from standard input and tells which user it is under the authentication files. Fetches the
    /// keys of the issuers.
    #[arg(long)]
    token: bool,
}

/// The settings of the server that the files are for, from the command line.
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

/// Builds the authorizers as the server does.
fn build_authorizers(modes: &authz::Modes, context: &CheckContext) -> Result<(), Vec<DocumentError>> {
    let names = Arc::clone(&context.authentication.names);
    let settings = authz::Settings {
        policy_file: context.policy_file.clone(),
        ..authz::Settings::new(WebhookContext::new(Arc::clone(&names), Arc::default()))
    };
    let result = Union::build(modes, &settings);
    let without_line = |error: &ConfigError| DocumentError { line: None, text: error.to_string() };
    result.map(drop).map_err(|errors| errors.iter().map(without_line).collect())
}

/// The command line after `authd`.
pub(crate) fn command() -> clap::Command {
    CheckFlags::command()
}

/// Checks the files that the arguments after `authd check` name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let flags = match CheckFlags::try_parse_from(std::iter::once("authd check".into()).chain(arguments)) {
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
    let token = if flags.token { Some(token_input::read(&mut std::io::stdin().lock())) } else { None };
    let token = match token.transpose() {
        Ok(token) => token,
        Err(problem) => {
            eprintln!("authd check: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let mut is_valid = true;
    for path in &flags.files {
        let result = file::read(path)
            .map_err(|error| vec![error.to_string()])
            .and_then(|content| check_file(&content, &context).map_err(|errors| file_errors(path, errors)));
        let file = path.display();
        match result {
            Ok(summary) => {
                drop(writeln!(std::io::stdout(), "{file}: good: {summary}"));
                if let Some(token) = &token
                    && let Some(result) = token::explain(path, token, &context.authentication)
                {
                    is_valid &= result.is_ok();
                    let text = result.unwrap_or_else(|error| error.to_string());
                    drop(writeln!(std::io::stdout(), "{file}: token: {text}"));
                }
            }
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
    let names = &context.authentication.names;
    if let Ok(text) = std::str::from_utf8(content)
        && let Some(api_version) = abac::policy_api_version(text)
    {
        let with_hint = |errors| with_names_hint(errors, names, "abac.authorization", &api_version);
        return abac::check(text, names).map(|count| format!("{count} ABAC policies")).map_err(|errors| {
            let error = |(line, text)| DocumentError { line: Some(line), text };
            with_hint(errors.into_iter().map(error).collect())
        });
    }
    let document = Document::read(content).map_err(|error| vec![error])?;
    let api_version = document.api_version().to_owned();
    check_document(&document, context)
        .map_err(|errors| with_names_hint(errors, names, "apiserver.config", &api_version))
}

/// Adds a hint if `api_version` has the group of another names preset; `stem` is the group without its
/// domain.
fn with_names_hint(
    mut errors: Vec<DocumentError>,
    names: &Names,
    stem: &str,
    api_version: &str,
) -> Vec<DocumentError> {
    let group = api_version.split('/').next().unwrap_or_default();
    if let Some(flags) = names.flags_of_other_preset(stem, group) {
        let text = format!("the API group is that of another names preset: use `authd check {flags}`");
        errors.push(DocumentError { line: None, text });
    }
    errors
}

/// Checks a document by its kind.
fn check_document(document: &Document, context: &CheckContext) -> Result<String, Vec<DocumentError>> {
    let kind = document.kind();
    match KINDS.iter().find(|(known, _)| *known == kind) {
        Some((_, check)) => check(document, context).map(|summary| format!("{kind}: {summary}")),
        None => {
            let known: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
            let problem = match kind {
                "" => "Required value: token files and other files without `kind` are not checked".to_owned(),
                kind => format!("Unsupported value: \"{kind}\""),
            };
            let text = format!("kind: {problem}: supported values: {}", known.join(", "));
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
            format!("{authorization}authorizers: [{{type: ABAC, name: abac}}, {{type: RBAC, name: rbac}}]\n");
        assert_eq!(check(&abac).unwrap_err(), ["mode ABAC needs --authorization-policy-file"]);
        let known = "supported values: AuthenticationConfiguration, AuthorizationConfiguration";
        assert_eq!(
            check("apiVersion: v1\nkind: ConfigMap\n").unwrap_err(),
            [format!("line 2: kind: Unsupported value: \"ConfigMap\": {known}")]
        );
        let without_kind = "kind: Required value: token files and other files without `kind` are not checked";
        for text in ["", "token,alice,1,\"team\"\n", "a: b\n"] {
            assert_eq!(check(text).unwrap_err(), [format!("{without_kind}: {known}")], "{text}");
        }
    }

    fn context(preset: Preset) -> CheckContext {
        let names = Arc::new(Names::new(preset, DEFAULT_API_DOMAIN).unwrap());
        let authentication =
            authentication::Context { names, disallowed_issuers: Vec::new(), anonymous_conditions: true };
        CheckContext { authentication, policy_file: None }
    }

    /// The files of `tests/golden/RELEASE/config` have each field of each version that the release reads.
    #[test]
    fn configuration_files_of_each_release_are_accepted() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
        let mut count = 0;
        for release in std::fs::read_dir(golden).unwrap() {
            let folder = release.unwrap().path().join("config");
            for file in std::fs::read_dir(&folder).into_iter().flatten() {
                let path = file.unwrap().path();
                if path.extension().is_some_and(|extension| extension == "kubeconfig") {
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.replace("FOLDER", folder.to_str().unwrap());
                let checked = check_file(text.as_bytes(), &context(Preset::Kubernetes));
                let errors = checked.map_err(|errors| file_errors(&path, errors));
                assert!(errors.is_ok(), "{errors:?}");
                count += 1;
            }
        }
        assert!(count >= 6, "{count} files");
    }

    #[test]
    fn abac_policies_are_checked_alone() {
        let check = |text: &str| {
            check_file(text.as_bytes(), &context(Preset::Kubernetes))
                .map_err(|errors| file_errors(Path::new("f"), errors))
        };
        let policy = |spec: &str| {
            format!(
                "{{\"apiVersion\":\"abac.authorization.kubernetes.io/v1beta1\",\"kind\":\"Policy\",\"spec\":{spec}}}\n"
            )
        };
        let good = policy(r#"{"user":"alice","namespace":"*","resource":"*","apiGroup":"*"}"#);
        assert_eq!(check(&format!("# comment\n\n{good}{good}")), Ok("2 ABAC policies".to_owned()));
        let errors = check(&format!("{good}{}", policy(r#"{"usr":"alice"}"#))).unwrap_err();
        assert!(errors.len() == 1 && errors[0].starts_with("f:2: unknown field `usr`"), "{errors:?}");
    }

    #[test]
    fn file_of_other_preset_hints_at_the_names_flag() {
        for (preset, text, hint) in [
            (
                Preset::Svc,
                "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n",
                "--names kubernetes",
            ),
            (
                Preset::Kubernetes,
                "apiVersion: apiserver.config.example.test/v1\nkind: AuthorizationConfiguration\n",
                "--names svc --api-domain example.test",
            ),
            (
                Preset::Kubernetes,
                r#"{"apiVersion":"abac.authorization.svc.internal/v1beta1","kind":"Policy","spec":{"user":"a"}}"#,
                "--names svc",
            ),
        ] {
            let errors = check_file(text.as_bytes(), &context(preset)).unwrap_err();
            let last = errors.last().unwrap().to_string();
            assert!(last.contains(&format!("`authd check {hint}`")), "{text}: {last}");
        }
    }
}
