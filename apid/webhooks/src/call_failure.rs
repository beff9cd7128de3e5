//! Failure of a webhook call, with the error texts of the reference (kube-apiserver).

use http::StatusCode;
use serving::client::CallError;

/// Maximum number of characters of a response body that an error message contains; the rest is omitted.
const MAX_BODY_CHARS: usize = 2048;

/// The reason why a call returned no response body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// There is no complete response: the address is not resolvable, the back-off refuses the call, or the
    /// connection failed.
    #[error("Post \"{url}\": {problem}")]
    Transport {
        /// URL of the call.
        url: String,
        /// Description of the problem.
        problem: String,
    },
    /// The call took longer than its timeout.
    #[error("Post \"{url}\": context deadline exceeded")]
    Timeout {
        /// URL of the call.
        url: String,
    },
    /// The status code of the response is not 2xx.
    #[error("{message}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// Error text of the Go client library (client-go) for the status code.
        message: String,
    },
}

impl CallFailure {
    /// A failure without a complete response; `problem` is its description.
    pub(crate) fn transport(url: &str, problem: impl std::fmt::Display) -> Self {
        CallFailure::Transport { url: url.to_owned(), problem: problem.to_string() }
    }

    /// Returns the error text for logs, which contains nothing of the response.
    ///
    /// Users who register a webhook choose an address. The response in a log would show answers of other servers to
    /// readers of the log (CVE-2020-8561).
    pub fn log_text(&self) -> String {
        match self {
            CallFailure::Status { code, .. } => format!("the webhook responded with the status code {code}"),
            CallFailure::Transport { .. } | CallFailure::Timeout { .. } => self.to_string(),
        }
    }

    pub(crate) fn timeout(url: &str) -> Self {
        CallFailure::Timeout { url: url.to_owned() }
    }

    pub(crate) fn from_call_error(url: &str, error: &CallError) -> Self {
        match error {
            CallError::Timeout(_) => CallFailure::timeout(url),
            error => CallFailure::transport(url, error),
        }
    }

    pub(crate) fn status(status: StatusCode, body: &[u8]) -> Self {
        CallFailure::Status { code: status.as_u16(), message: status_message(status, body) }
    }
}

/// Returns the error text of the Go client library (client-go) for a status code.
fn status_message(status: StatusCode, body: &[u8]) -> String {
    let excerpt: String = String::from_utf8_lossy(body).trim().chars().take(MAX_BODY_CHARS).collect();
    let excerpt = if excerpt.is_empty() { "unknown".to_owned() } else { excerpt };
    match status.as_u16() {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => excerpt,
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        409 => "the server reported a conflict".to_owned(),
        422 => "the server rejected our request due to an error in our request".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        503 => "the server is currently unable to handle the request".to_owned(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request"
            .to_owned(),
        500.. => format!("an error on the server ({excerpt:?}) has prevented the request from succeeding"),
        code => format!("the server responded with the status code {code} but did not return more information"),
    }
}
