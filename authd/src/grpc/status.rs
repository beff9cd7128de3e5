//! Errors that leave the process: a `Failure` for API clients, a gRPC status for apid.

use apimachinery::status::Reason;
use authproto::auth::Failure;
use tonic::Status;

use crate::mirror::{FeedError, MirrorNotReady};
use crate::review::ReviewError;

/// Returns the failure when the mirror did not reach the required revision in time; the client may retry.
pub(super) fn mirror_not_ready(error: MirrorNotReady) -> Failure {
    let message = "authorization policy is not up to date, try again";
    failure(Reason::ServiceUnavailable, message, error.to_string())
}

/// Returns the failure when apid sent a malformed request or a verification panicked. The client does not see
/// the details.
pub(super) fn malformed_request(problem: &str) -> Failure {
    let detail = format!("malformed request: {problem}");
    failure(Reason::InternalError, "the request could not be authorized", detail)
}

/// Returns the failure when too many requests of a decision stream wait; the client may retry.
pub(super) fn too_many_waiting() -> Failure {
    let message = "too many requests wait for authorization policy, try again";
    failure(Reason::ServiceUnavailable, message, "the limit of waiting requests of the stream is reached")
}

/// Returns the failure when too many credentials are under verification; the client may retry.
pub(super) fn too_many_verifications() -> Failure {
    let message = "too many credentials are being verified, try again";
    failure(Reason::ServiceUnavailable, message, "the limit of credentials under verification is reached")
}

/// Returns the failure when authenticators could not decide; the client may retry.
pub(super) fn credentials_undecided(detail: String) -> Failure {
    failure(Reason::ServiceUnavailable, "the credentials cannot be verified now, try again", detail)
}

/// Returns the failure when a token cannot be issued. The details are for the log of apid, because clients
/// cannot fix the keys.
pub(super) fn token_not_issued(detail: String) -> Failure {
    failure(Reason::InternalError, "service-account tokens cannot be issued", detail)
}

fn failure(reason: Reason, message: &str, detail: impl Into<String>) -> Failure {
    Failure {
        code: u32::from(reason.code()),
        reason: reason.as_str().to_owned(),
        message: message.to_owned(),
        detail: detail.into(),
    }
}

/// Returns the status when the resource of a review is unknown.
pub(super) fn unknown_review(error: &ReviewError) -> Status {
    Status::unimplemented(error.to_string())
}

/// Returns the status when a message of apid lacks a required field or has an invalid one.
pub(super) fn incomplete_request(problem: &str) -> Status {
    Status::invalid_argument(problem.to_owned())
}

/// Returns the status when the mirror did not reach the required revision of a unary request in time.
pub(super) fn mirror_unavailable(error: MirrorNotReady) -> Status {
    Status::unavailable(error.to_string())
}

/// Returns the status with which a mirror stream ends because its feed cannot continue.
pub(super) fn feed_ended(error: FeedError) -> Status {
    match error {
        FeedError::MalformedUpdate(error) => Status::invalid_argument(error.to_string()),
        FeedError::Superseded => Status::aborted(FeedError::Superseded.to_string()),
    }
}

/// Returns the status that rejects a mirror stream because the two processes use different names presets or
/// API domains.
pub(super) fn names_mismatch(authd_names: &str, apid_names: &str) -> Status {
    Status::failed_precondition(format!(
        "apid has --names `{apid_names}`, authd `{authd_names}`: start both with the same"
    ))
}
