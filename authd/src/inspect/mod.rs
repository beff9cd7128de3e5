//! Commands that explain the access control of a running server: `why`, `why-token`, `who-can`, `matrix` and
//! `audit-roles`.
//!
//! # Contract
//!
//! Each command talks to the API with the credentials of a kubeconfig and needs no access to authd. `why` and
//! `why-token` create explanations, which the server evaluates with all its authorizers or authenticators.
//! `who-can` and `matrix` read roles and bindings and evaluate RBAC alone. `audit-roles` reads audit logs and needs no
//! server.
//! Results go to standard output, errors to standard error.
//! The exit code is 0, or 1 if the command failed, or 64 if the command line is wrong.
//! `why` exits with 2 if a request is denied, `why-token` with 2 if no authenticator accepts the token.
//! Names in the output are free texts of clients: control and bidirectional characters are escaped.

mod access;
mod audit_roles;
mod connection;
mod matrix;
mod policy;
mod resource;
mod subjects;
mod token;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use apimachinery::printable::{escape_json, escape_lines};
use clap::{Args, CommandFactory as _, Parser};
use serde_json::Value;

use crate::command_line::print_parse_result;
use connection::Connection;

/// Exit code for a denied request or a rejected token.
const DENIED: u8 = 2;

/// The reason why a command failed, as the text for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct InspectError(String);

impl InspectError {
    fn new(problem: impl std::fmt::Display) -> Self {
        InspectError(problem.to_string())
    }
}

/// The result of a command: text for standard output, and whether the exit code is [`DENIED`].
#[derive(Debug)]
struct Output {
    text: String,
    is_json: bool,
    is_denial: bool,
}

impl Output {
    fn success(text: String) -> Self {
        Output { text, is_json: false, is_denial: false }
    }

    fn json(value: &Value) -> Self {
        Output { text: format!("{value:#}\n"), is_json: true, is_denial: false }
    }

    /// Joins the outputs of several requests: texts with a separator, JSON documents one after the other.
    fn joined(outputs: Vec<Output>, separator: &str) -> Self {
        let (is_json, is_denial) =
            (outputs.iter().any(|output| output.is_json), outputs.iter().any(|output| output.is_denial));
        let texts: Vec<String> = outputs.into_iter().map(|output| output.text).collect();
        Output { text: texts.join(if is_json { "" } else { separator }), is_json, is_denial }
    }

    /// Formats an explanation as JSON or, unless `format` is `json`, with `describe`. `success_field` names the
    /// boolean in the status; a denial is any value but true.
    fn explanation(
        explanation: &Value,
        success_field: &str,
        format: &str,
        describe: impl FnOnce(&Value) -> String,
    ) -> Self {
        let status = explanation.get("status").unwrap_or(&Value::Null);
        let is_denial = status.get(success_field).and_then(Value::as_bool) != Some(true);
        let output =
            if format == "json" { Output::json(explanation) } else { Output::success(describe(status)) };
        Output { is_denial, ..output }
    }
}

/// Returns a text field of a JSON object; empty if the field is absent or has another type.
fn text<'v>(object: &'v Value, field: &str) -> &'v str {
    object.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the items of a list in a JSON object; none if the list is absent or has another type.
fn items<'v>(object: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// The flags of all commands: the server and the credentials.
#[derive(Debug, Args)]
struct ServerFlags {
    /// Kubeconfig with the server and the credentials. Default: the variable KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; default: the current context.
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
}

/// The flags of one command, after those of all commands.
#[derive(Debug, Args)]
struct CommandArguments<F: Args> {
    #[command(flatten)]
    server: ServerFlags,
    #[command(flatten)]
    flags: F,
}

#[derive(Debug, Parser)]
#[command(name = "authd", disable_help_subcommand = true)]
enum Command {
    /// Explains why a request is allowed or denied.
    #[command(name = "why")]
    Access(CommandArguments<access::AccessArguments>),
    /// Explains which user a token belongs to, or which check fails. Reads the token from standard input.
    #[command(name = "why-token")]
    Token(CommandArguments<token::TokenFlags>),
    /// Lists the subjects that RBAC allows a request, with the binding and the role of each.
    #[command(name = "who-can")]
    Subjects(CommandArguments<subjects::SubjectsFlags>),
    /// Prints subjects, verbs and resources that RBAC allows, as text, CSV, JSON or an HTML page.
    Matrix(CommandArguments<matrix::MatrixFlags>),
    /// Prints the smallest roles and bindings for the requests of a user in audit logs.
    #[command(name = "audit-roles")]
    AuditRoles(audit_roles::AuditRolesFlags),
}

impl Command {
    /// Rejects arguments that exclude each other.
    fn check(self) -> Result<Self, clap::Error> {
        if let Command::Access(access) = &self {
            access.flags.check()?;
        }
        Ok(self)
    }
}

/// The command lines of the commands, as subcommands.
pub(crate) fn command() -> clap::Command {
    Command::command()
}

/// Runs a command. `arguments` begin with the name of the command.
pub(crate) fn run(arguments: Vec<OsString>) -> ExitCode {
    let arguments = std::iter::once("authd".into()).chain(arguments);
    let command = match Command::try_parse_from(arguments).and_then(Command::check) {
        Ok(command) => command,
        Err(error) => return print_parse_result(&error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report_error(&InspectError::new(format!("cannot start the runtime: {error}"))),
    };
    let result = runtime.block_on(async {
        match command {
            Command::Access(CommandArguments { server, flags }) => {
                access::run(&Connection::open(&server)?, flags).await
            }
            Command::Token(CommandArguments { server, flags }) => {
                token::run(&Connection::open(&server)?, flags, &mut std::io::stdin().lock()).await
            }
            Command::Subjects(CommandArguments { server, flags }) => {
                subjects::run(&Connection::open(&server)?, flags).await
            }
            Command::Matrix(CommandArguments { server, flags }) => {
                matrix::run(&Connection::open(&server)?, flags).await
            }
            Command::AuditRoles(flags) => audit_roles::run(flags).await,
        }
    });
    match result {
        Ok(output) => {
            // A closed pipe, for example by `head`, is not an error of the command.
            let text = if output.is_json { escape_json(output.text) } else { escape_lines(&output.text) };
            let _ = std::io::stdout().write_all(text.as_bytes());
            if output.is_denial { ExitCode::from(DENIED) } else { ExitCode::SUCCESS }
        }
        Err(error) => report_error(&error),
    }
}

fn report_error(error: &InspectError) -> ExitCode {
    eprintln!("authd: {error}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_of_the_caller_is_a_usage_error() {
        let parse = |user: &str, more: &[&str]| {
            let words = [&["authd", "why", user, "get", "pods"], more].concat();
            Command::try_parse_from(words).and_then(Command::check).map(drop)
        };
        assert!(parse("me", &[]).is_ok() && parse("jane", &["--as-group=dev"]).is_ok());
        let error = parse("me", &["--as-group=dev"]).unwrap_err().to_string();
        assert!(error.contains("write the name of the user instead of `me`"), "{error}");
    }

    #[test]
    fn why_takes_several_verbs_and_denies_if_one_is_denied() {
        let too_many = ["get"; 21].join(",");
        for (verbs, expected) in [
            ("get", Some(1)),
            ("get,list,watch", Some(3)),
            ("get,,list", None),
            ("", None),
            (&too_many[4..], Some(20)),
            (&too_many, None),
        ] {
            let command =
                Command::try_parse_from(["authd", "why", "me", verbs, "pods"]).and_then(Command::check);
            let count = command.ok().map(|command| match command {
                Command::Access(access) => access.flags.verb_count(),
                other => panic!("{other:?}"),
            });
            assert_eq!(count, expected, "{verbs}");
        }
        let explanation = |allowed: bool| serde_json::json!({"status": {"allowed": allowed}});
        let output = |format: &str, verdicts: &[bool]| {
            let describe = |status: &Value| format!("{}\n", status["allowed"]);
            let outputs = verdicts
                .iter()
                .map(|allowed| Output::explanation(&explanation(*allowed), "allowed", format, describe));
            Output::joined(outputs.collect(), "---\n")
        };
        let text = output("text", &[true, false]);
        assert_eq!((text.text.as_str(), text.is_denial), ("true\n---\nfalse\n", true));
        assert!(!output("text", &[true, true]).is_denial);
        let json = output("json", &[true, false]);
        let documents = serde_json::Deserializer::from_str(&json.text).into_iter::<Value>();
        assert_eq!((documents.filter(Result::is_ok).count(), json.is_json), (2, true));
    }
}
