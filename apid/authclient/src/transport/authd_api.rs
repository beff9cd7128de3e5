//! The requests from apid to authd, without their transport. Tests replace authd at this interface.

use apimachinery::status::{Reason, Status};
use async_trait::async_trait;
use authproto::auth::{
    CoversRequest, CoversResponse, DecideResponse, Failure, IssueTokenRequest, IssueTokenResponse,
    KeysRequest, KeysResponse, ReviewRequest, ReviewResponse, decide_request::Query,
};

/// The service that authenticates and authorizes: authd at the other end of a stream.
#[async_trait]
pub(crate) trait AuthdApi: Send + Sync + 'static {
    /// Authenticates or authorizes.
    async fn decide(&self, request_id: &str, query: Query) -> Result<DecideResponse, AuthdError>;

    /// Runs the escalation check.
    async fn covers(&self, request: CoversRequest) -> Result<CoversResponse, AuthdError>;

    /// Issues a service-account token.
    async fn issue_token(&self, request: IssueTokenRequest) -> Result<IssueTokenResponse, AuthdError>;

    /// Returns the keys of service-account tokens.
    async fn keys(&self, request: KeysRequest) -> Result<KeysResponse, AuthdError>;

    /// Creates a review.
    async fn review(&self, request: ReviewRequest) -> Result<ReviewResponse, AuthdError>;
}

/// The reason why authd did not respond. The request then fails: apid never treats this error as an allow.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum AuthdError {
    /// No connection to authd exists, or the connection broke before the response.
    #[error("authd cannot be reached: {0}")]
    Unreachable(String),
    /// authd did not respond within the timeout.
    #[error("authd did not respond within the timeout")]
    Timeout,
    /// authd responded that it cannot process the request.
    #[error("authd could not process the request: {}", .0.detail)]
    Failed(Failure),
    /// The response does not match the request.
    #[error("authd sent a response that does not match the request")]
    Malformed,
}

/// The `Retry-After` of a 503 because of authd, in seconds.
const RETRY_AFTER_SECONDS: u32 = 1;

impl From<AuthdError> for Status {
    /// The response to the client: 503, unless authd named another HTTP code.
    fn from(error: AuthdError) -> Self {
        match &error {
            // `AuthdConnection` logs the loss of the connection once, at the level `warn`.
            AuthdError::Unreachable(_) => {
                tracing::debug!(reason = %error, "authd did not respond; the request fails")
            }
            _ => tracing::warn!(reason = %error, "authd did not respond; the request fails"),
        }
        match error {
            AuthdError::Failed(failure) if failure.code >= 400 && failure.code != 503 => {
                from_failure(&failure)
            }
            AuthdError::Failed(_)
            | AuthdError::Unreachable(_)
            | AuthdError::Timeout
            | AuthdError::Malformed => {
                Status::unavailable("the access control service is unavailable", RETRY_AFTER_SECONDS)
            }
        }
    }
}

/// Converts a failure that authd reported to a Status.
pub(crate) fn from_failure(failure: &Failure) -> Status {
    let mut status = Status::failure(reason_of(&failure.reason, failure.code), failure.message.clone());
    status.code = u16::try_from(failure.code).unwrap_or(500);
    status
}

/// Returns the Status reason with the name `word`, or else the reason with the HTTP code `code`, or else
/// InternalError.
fn reason_of(word: &str, code: u32) -> Reason {
    const REASONS: &[Reason] = &[
        Reason::BadRequest,
        Reason::Unauthorized,
        Reason::Forbidden,
        Reason::NotFound,
        Reason::MethodNotAllowed,
        Reason::NotAcceptable,
        Reason::AlreadyExists,
        Reason::Conflict,
        Reason::Gone,
        Reason::Expired,
        Reason::RequestEntityTooLarge,
        Reason::UnsupportedMediaType,
        Reason::Invalid,
        Reason::TooManyRequests,
        Reason::InternalError,
        Reason::ServerTimeout,
        Reason::ServiceUnavailable,
        Reason::Timeout,
    ];
    let by_word = REASONS.iter().find(|reason| reason.as_str() == word);
    let by_code = || REASONS.iter().find(|reason| u32::from(reason.code()) == code);
    by_word.or_else(by_code).copied().unwrap_or(Reason::InternalError)
}

/// Decodes a Status from the JSON that authd sent.
pub(crate) fn from_status_body(body: &[u8]) -> Status {
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(body) else {
        tracing::error!("Status from authd is not JSON; the request fails");
        return AuthdError::Malformed.into();
    };
    let string_field = |value: &serde_json::Value, field: &str| {
        value.get(field).and_then(|v| v.as_str()).unwrap_or("").to_owned()
    };
    let code = value
        .get("code")
        .and_then(serde_json::Value::as_u64)
        .and_then(|c| u32::try_from(c).ok())
        .unwrap_or(500);
    let failure = Failure {
        code,
        reason: string_field(&value, "reason"),
        message: string_field(&value, "message"),
        detail: String::new(),
    };
    let status = from_failure(&failure);
    let Some(details) = value.get("details") else { return status };
    let causes = details.get("causes").and_then(serde_json::Value::as_array).into_iter().flatten();
    status.with_details(apimachinery::status::Details {
        name: string_field(details, "name"),
        group: string_field(details, "group"),
        kind: string_field(details, "kind"),
        uid: string_field(details, "uid"),
        causes: causes
            .map(|cause| apimachinery::status::Cause {
                reason: string_field(cause, "reason"),
                message: string_field(cause, "message"),
                field: string_field(cause, "field"),
            })
            .collect(),
        retry_after_seconds: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::field::{FieldError, FieldPath};
    use apimachinery::gvk::GroupKind;

    #[test]
    fn status_body_round_trips() {
        let kind =
            GroupKind { group: "authorization.svc.internal".into(), kind: "SubjectAccessReview".into() };
        let sent = Status::invalid(
            &kind,
            "",
            &[FieldError::required(&FieldPath::new("spec.user"), "a value is required")],
        );
        assert_eq!(from_status_body(sent.to_value().to_string().as_bytes()), sent);
    }

    #[test]
    fn authd_errors_map_to_503_with_retry_after() {
        for error in [
            AuthdError::Unreachable("connection refused".into()),
            AuthdError::Timeout,
            AuthdError::Malformed,
            AuthdError::Failed(Failure::default()),
            AuthdError::Failed(Failure {
                code: 503,
                detail: "the mirror is behind".into(),
                ..Failure::default()
            }),
        ] {
            let status = Status::from(error);
            assert_eq!((status.code, status.details.unwrap().retry_after_seconds), (503, 1));
            assert!(!status.message.contains("mirror"), "the client must not see internal details");
        }
    }
}
