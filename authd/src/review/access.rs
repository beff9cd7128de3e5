//! The access reviews (requirements A-REV-5 to A-REV-19).
//! The kinds are SelfSubjectAccessReview, SubjectAccessReview and LocalSubjectAccessReview.

use apimachinery::decision::{Decision, Verdict, explain_reason};
use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;

use super::access_spec::{AccessSpec, SpecForm};
use super::configuration_access::can_read_configuration;
use super::{Review, ReviewResult, Reviewer, response_object};
use crate::authz::AuthzRequest;

/// Answers a SelfSubjectAccessReview. The reason is that of the decision, without nearest misses.
pub(super) async fn answer_self(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
    object: Object,
) -> ReviewResult {
    let AccessSpec { attributes, .. } = AccessSpec::read(reviewer.names, &object, SpecForm::OptionalSubject)?;
    let request = AuthzRequest { user: review.user, attributes: &attributes, at_least: review.at_least };
    let mut decision = reviewer.active.authz.authorize(request).await?.decision;
    // The error of an authorization webhook names its URL.
    let has_webhook_error =
        !decision.evaluation_error.is_empty() && reviewer.active.authz.uses_remote_service();
    if has_webhook_error && !can_read_configuration(reviewer, review).await? {
        decision.evaluation_error = "an authorizer failed; the log of the server has the error".to_owned();
    }
    Ok(review_response(&object, "", decision))
}

/// Answers a SubjectAccessReview.
pub(super) async fn answer_subject(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
    object: Object,
) -> ReviewResult {
    answer_for_subject(reviewer, review, &object, SpecForm::RequiredSubject).await
}

/// Answers a LocalSubjectAccessReview.
pub(super) async fn answer_local(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
    object: Object,
) -> ReviewResult {
    if !object.namespace().is_empty() && object.namespace() != review.namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Status::bad_request(message).into());
    }
    answer_for_subject(reviewer, review, &object, SpecForm::Namespaced(review.namespace)).await
}

/// Reviews the access of the subject in the spec. The reason of a denial names the nearest misses: the
/// requesting user may create these reviews and so may learn the rules of other users.
async fn answer_for_subject(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
    object: &Object,
    form: SpecForm<'_>,
) -> ReviewResult {
    let AccessSpec { subject, attributes } = AccessSpec::read(reviewer.names, object, form)?;
    let request = AuthzRequest { user: &subject, attributes: &attributes, at_least: review.at_least };
    let mut decision = reviewer.active.authz.authorize(request).await?.decision;
    if decision.verdict == Verdict::NoOpinion {
        decision.reason = explain_reason(&decision.reason, &reviewer.active.authz.nearest_misses(request)?);
    }
    let namespace = if let SpecForm::Namespaced(namespace) = form { namespace } else { "" };
    Ok(review_response(object, namespace, decision))
}

/// Returns the review with the decision as its status.
fn review_response(object: &Object, namespace: &str, decision: Decision) -> Object {
    let spec = object.get("spec").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    response_object(object, namespace, Some(spec), Value::Object(decision_status(decision)))
}

/// Returns the fields of a decision in the status of a review.
pub(super) fn decision_status(decision: Decision) -> Map<String, Value> {
    let mut status = Map::new();
    status.insert("allowed".to_owned(), decision.allowed().into());
    if decision.verdict == Verdict::Deny {
        status.insert("denied".to_owned(), true.into());
    }
    for (field, text) in [("reason", decision.reason), ("evaluationError", decision.evaluation_error)] {
        if !text.is_empty() {
            status.insert(field.to_owned(), text.into());
        }
    }
    status
}
