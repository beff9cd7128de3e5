//! The outcome of a command: the Status that a client reads on its error channel.

use apimachinery::field::quote;
use apimachinery::status::Status;
use serde_json::{Value, json};

/// Reason of the Status of a command with another exit code than 0.
const NON_ZERO_EXIT_CODE: &str = "NonZeroExitCode";
/// Reason of the cause with the exit code.
const EXIT_CODE: &str = "ExitCode";

/// The encoding of the error stream of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorEncoding {
    /// A text, from version 2 and 3 of the channel protocol.
    Text,
    /// A Status, from version 4 and 5.
    Status,
}

/// The outcome of a command as a Status.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome(Value);

impl Outcome {
    /// The command ended with exit code 0.
    pub fn success() -> Self {
        Outcome(json!({"metadata": {}, "status": "Success"}))
    }

    /// A failure of the connection between this server and the command.
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Outcome(Status::internal(message).to_value())
    }

    /// The Status of a node that refuses the streams; an internal error if `body` is another text.
    pub fn refused(body: &[u8]) -> Self {
        let is_status = |value: &Value| value.get("kind").and_then(Value::as_str) == Some("Status");
        match serde_json::from_slice::<Value>(body).ok().filter(is_status) {
            Some(status) => Outcome(status),
            None => {
                let text = String::from_utf8_lossy(body);
                Outcome::internal(format!("unable to upgrade connection: {}", text.trim()))
            }
        }
    }

    /// Reads the whole error stream of a node.
    pub(super) fn from_error_stream(encoding: ErrorEncoding, message: &[u8]) -> Self {
        if message.is_empty() {
            return Outcome::success();
        }
        let text = String::from_utf8_lossy(message);
        if encoding == ErrorEncoding::Text {
            return Outcome::internal(format!("error executing remote command: {text}"));
        }
        let protocol_error =
            |error: String| Outcome::internal(format!("error stream protocol error: {error}"));
        let status: Value = match serde_json::from_slice(message) {
            Ok(status) => status,
            Err(error) => return protocol_error(format!("{error} in {}", quote(&text))),
        };
        let field = |name: &str| status.get(name).and_then(Value::as_str).unwrap_or_default();
        match (field("status"), field("reason")) {
            ("Success", _) => Outcome::success(),
            ("Failure", NON_ZERO_EXIT_CODE) => match exit_code(&status) {
                Ok(code) => Outcome::exit_code(code),
                Err(error) => protocol_error(error),
            },
            ("Failure", _) => Outcome::internal(field("message")),
            _ => protocol_error("unknown error".to_owned()),
        }
    }

    /// The command ended with another exit code than 0.
    fn exit_code(code: u8) -> Self {
        let message =
            format!("command terminated with non-zero exit code: command terminated with exit code {code}");
        Outcome(json!({
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": NON_ZERO_EXIT_CODE,
            "details": {"causes": [{"reason": EXIT_CODE, "message": code.to_string()}]},
        }))
    }

    /// The Status in JSON.
    pub fn to_json(&self) -> Vec<u8> {
        self.0.to_string().into_bytes()
    }

    /// The HTTP code of the Status; 200 for a command that ended, with any exit code.
    pub fn code(&self) -> u16 {
        let code = self.0.get("code").and_then(Value::as_u64);
        code.and_then(|code| u16::try_from(code).ok()).unwrap_or(200)
    }
}

/// Reads the exit code out of the causes of a Status.
fn exit_code(status: &Value) -> Result<u8, String> {
    let details = status.get("details").filter(|details| !details.is_null());
    let causes = details.ok_or("details must be set")?.get("causes").and_then(Value::as_array);
    let is_exit_code = |cause: &&Value| cause.get("reason").and_then(Value::as_str) == Some(EXIT_CODE);
    let cause = causes.and_then(|causes| causes.iter().find(is_exit_code));
    let message = cause.ok_or(format!("no {EXIT_CODE} cause given"))?.get("message");
    let text = message.and_then(Value::as_str).unwrap_or_default();
    text.parse().map_err(|_| format!("invalid exit code value {}", quote(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_stream_becomes_outcome() {
        let internal = |message: &str| format!("Internal error occurred: {message}");
        for (message, code, expected) in [
            ("", 200, String::new()),
            (r#"{"metadata":{},"status":"Success"}"#, 200, String::new()),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#,
                200,
                "command terminated with non-zero exit code: command terminated with exit code 3".to_owned(),
            ),
            (r#"{"status":"Failure","message":"no such file"}"#, 500, internal("no such file")),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode"}"#,
                500,
                internal("error stream protocol error: details must be set"),
            ),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode","details":{}}"#,
                500,
                internal("error stream protocol error: no ExitCode cause given"),
            ),
            (
                r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"256"}]}}"#,
                500,
                internal("error stream protocol error: invalid exit code value \"256\""),
            ),
            ("{}", 500, internal("error stream protocol error: unknown error")),
        ] {
            let outcome = Outcome::from_error_stream(ErrorEncoding::Status, message.as_bytes());
            let text = outcome.0.get("message").and_then(Value::as_str).unwrap_or_default();
            assert_eq!((outcome.code(), text), (code, expected.as_str()), "{message}");
        }
        let outcome = Outcome::from_error_stream(ErrorEncoding::Text, b"exit status 1");
        assert_eq!(outcome, Outcome::internal("error executing remote command: exit status 1"));
        let outcome = Outcome::from_error_stream(ErrorEncoding::Status, b"\xff");
        assert_eq!(outcome.code(), 500);
    }

    #[test]
    fn refusal_keeps_status_of_node() {
        let status = json!({"kind": "Status", "code": 404, "message": "pod not found"});
        assert_eq!(Outcome::refused(status.to_string().as_bytes()), Outcome(status));
        let text = Outcome::refused(b" container not found (\"c\")\n");
        assert_eq!(text, Outcome::internal("unable to upgrade connection: container not found (\"c\")"));
    }
}
