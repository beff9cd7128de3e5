//! Every failure that leaves the process: for clients of the API as a `Failure`, for apid as a gRPC status.

use apimachinery::status::Reason;
use authproto::auth::Failure;
use tonic::Status;

use crate::authz::escalation::CheckError;
use crate::mirror::{FeedError, NotYet};
use crate::review::ReviewError;

/// The policy is not here in time: the client may try again.
pub(super) fn not_yet(error: NotYet) -> Failure {
    failure(
        Reason::ServiceUnavailable,
        "authorization policy is not up to date, try again",
        error.to_string(),
    )
}

/// A question that apid should not have asked. The client is not told what.
pub(super) fn malformed(what: &str) -> Failure {
    failure(
        Reason::InternalError,
        "the request could not be authorized",
        format!("malformed question: {what}"),
    )
}

/// More questions wait than the process wants to hold.
pub(super) fn too_many_waiting() -> Failure {
    let message = "too many requests wait for authorization policy, try again";
    failure(Reason::ServiceUnavailable, message, "the limit of waiting questions is reached".to_owned())
}

/// More credentials are being verified than the process wants to hold.
pub(super) fn too_many_logins() -> Failure {
    let message = "too many credentials are being verified, try again";
    failure(
        Reason::ServiceUnavailable,
        message,
        "the limit of credentials under verification is reached".to_owned(),
    )
}

/// Methods that could not say now whose the credentials are: the client may try again.
pub(super) fn unidentified(detail: String) -> Failure {
    failure(Reason::ServiceUnavailable, "the credentials cannot be verified now, try again", detail)
}

/// A token that cannot be issued. Keys are the administrator's concern: the log says more.
pub(super) fn not_issued(detail: String) -> Failure {
    failure(Reason::InternalError, "service-account tokens cannot be issued", detail)
}

fn failure(reason: Reason, message: &str, detail: String) -> Failure {
    Failure {
        code: u32::from(reason.code()),
        reason: reason.as_str().to_owned(),
        message: message.to_owned(),
        detail,
    }
}

/// An escalation check that cannot be made.
pub(super) fn check(error: CheckError) -> Status {
    match error {
        CheckError::NotYet(error) => Status::unavailable(error.to_string()),
        CheckError::Malformed(what) => Status::invalid_argument(what),
    }
}

/// A review that cannot be answered.
pub(super) fn review(error: ReviewError) -> Status {
    match error {
        ReviewError::NotYet(error) => Status::unavailable(error.to_string()),
        ReviewError::UnknownResource(resource) => {
            Status::unimplemented(format!("reviews of `{resource}` are not built yet"))
        }
    }
}

/// A unary question without what it needs.
pub(super) fn incomplete(what: &str) -> Status {
    Status::invalid_argument(what.to_owned())
}

/// The mirror is not there for a unary question.
pub(super) fn unavailable(error: NotYet) -> Status {
    Status::unavailable(error.to_string())
}

/// The end of a feed.
pub(super) fn feed(error: FeedError) -> Status {
    match error {
        FeedError::Malformed(error) => Status::invalid_argument(error.to_string()),
        FeedError::Superseded => Status::aborted(FeedError::Superseded.to_string()),
    }
}

/// A feed that must not begin: the two processes speak different names.
pub(super) fn other_names(ours: &str, theirs: &str) -> Status {
    Status::failed_precondition(format!(
        "apid speaks the names `{theirs}`, authd `{ours}`: start both with the same"
    ))
}

/// A health check of a service that is not here.
pub(super) fn unknown_service(name: &str) -> Status {
    Status::not_found(format!("no service `{name}`: ask for `` or `auth.v1.Decide`"))
}
