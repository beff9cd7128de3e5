//! `authd why-token`: explains the authentication of a token from standard input with a TokenExplanation.

use std::fmt::Write as _;
use std::io::Read;

use clap::Args;
use serde_json::{Value, json};

use super::connection::Connection;
use super::{InspectError, Output, items, text};
use crate::token_input;

/// The flags of `authd why-token`.
#[derive(Debug, Args)]
pub(super) struct TokenFlags {
    /// Audience that the token must have; default: those of the API. Can be repeated.
    #[arg(long, value_name = "AUDIENCE")]
    audience: Vec<String>,
    /// Output: `text`, or `json` for the TokenExplanation.
    #[arg(short, long, default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

pub(super) async fn run(
    connection: &Connection,
    flags: TokenFlags,
    input: &mut impl Read,
) -> Result<Output, InspectError> {
    let token = token_input::read(input).map_err(InspectError::new)?;
    let spec = json!({"token": token, "audiences": flags.audience});
    let explanation = connection.explain("TokenExplanation", spec).await?;
    Ok(Output::explanation(&explanation, "authenticated", &flags.output, describe))
}

fn describe(status: &Value) -> String {
    let mut out = match status.pointer("/user/username").and_then(Value::as_str) {
        Some(user) => format!("the token is valid for the user {user}\n"),
        None => "no authenticator accepts the token\n".to_owned(),
    };
    for group in status.pointer("/user/groups").and_then(Value::as_array).into_iter().flatten() {
        // Writing to a String does not fail.
        let _ = writeln!(out, "  group: {}", group.as_str().unwrap_or_default());
    }
    for opinion in items(status, "authenticators") {
        let check = text(opinion, "check");
        let check = if check.is_empty() { String::new() } else { format!(": {check}") };
        let _ = writeln!(out, "  {}: {}{check}", text(opinion, "name"), text(opinion, "outcome"));
    }
    if let Some(fields) = status.get("unverified").and_then(Value::as_object) {
        let _ = writeln!(out, "  unverified fields of the token:");
        for (field, value) in fields {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let _ = writeln!(out, "    {field}: {value}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_explanation_is_described_with_the_failed_checks() {
        let status = json!({"authenticated": false, "unverified": {"issuer": "https://i"}, "authenticators": [
            {"name": "jwt", "outcome": "Rejected", "check": "the token has expired"},
            {"name": "webhook", "outcome": "NotApplicable"}]});
        assert_eq!(
            describe(&status),
            "no authenticator accepts the token\n  jwt: Rejected: the token has expired\n  webhook: NotApplicable\n  \
             unverified fields of the token:\n    issuer: https://i\n"
        );
        let accepted = json!({"authenticated": true, "user": {"username": "bob", "groups": ["team"]}});
        assert_eq!(describe(&accepted), "the token is valid for the user bob\n  group: team\n");
    }
}
