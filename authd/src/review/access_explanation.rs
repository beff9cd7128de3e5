//! AccessExplanation: the opinion of each authorizer on a request, with its explanation, and the smallest
//! grant.
//!
//! # Contract
//!
//! If the spec has no subject, or only the name of the requesting user, the explanation is about this user.
//! A user may explain their own requests; an explanation of requests of other users needs the permission to
//! create AccessExplanations. The error of an authorization webhook names its URL: only users who may read
//! the configuration, which is the path `/configz`, see the error.
//! Authorizers run in order until one decides, as for a request; webhooks are called.

use apimachinery::attributes::Attributes;
use apimachinery::decision::{Verdict, explain_reason};
use apimachinery::gvk::GroupResource;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use serde_json::json;

use super::access::decision_status;
use super::access_spec::{AccessSpec, SpecForm};
use super::configuration_access::can_read_configuration;
use super::{Review, ReviewResult, Reviewer, response_object};
use crate::authz::AuthzRequest;
use crate::authz::opinion::Opinion;
use crate::mirror::MirrorNotReady;
use crate::rules::reconcile::rule_json;
use crate::rules::suggestion::SuggestedGrant;

/// The group, without its domain, and the resource of AccessExplanations.
const GROUP: &str = "explain";
pub(super) const RESOURCE: &str = "accessexplanations";

pub(super) async fn answer(reviewer: &Reviewer<'_>, review: &Review<'_>, object: Object) -> ReviewResult {
    let AccessSpec { subject, attributes } =
        AccessSpec::read(reviewer.names, &object, SpecForm::OptionalSubject)?;
    let user = if is_requesting_user(&subject, review.user) { review.user } else { &subject };
    if user != review.user && !can_explain_others(reviewer, review).await? {
        let resource = GroupResource { group: reviewer.names.group(GROUP), resource: RESOURCE.to_owned() };
        let reason = "a user may explain only their own requests: leave out user, groups, uid and extra";
        return Err(Status::forbidden(&resource, "", reason).into());
    }
    let request = AuthzRequest { user, attributes: &attributes, at_least: review.at_least };
    let mut opinions = reviewer.active.authz.opinions(request).await?;
    if !can_read_configuration(reviewer, review).await? {
        opinions.hide_webhook_errors();
    }
    let mut decision = opinions.decision().clone();
    let is_undecided = decision.verdict == Verdict::NoOpinion;
    if is_undecided {
        let misses: Vec<String> =
            opinions.list.iter().flat_map(|opinion| opinion.explanation.nearest_lines()).collect();
        decision.reason = explain_reason(&decision.reason, &misses);
    }
    let mut status = decision_status(decision);
    status.insert("authorizers".to_owned(), opinions.list.iter().map(opinion_json).collect());
    if is_undecided
        && opinions.has_rbac()
        && let Some(grant) = SuggestedGrant::for_request(user, &attributes)
    {
        status.insert("manifest".to_owned(), grant.manifest(reviewer.names).into());
    }
    let spec = object.get("spec").cloned();
    Ok(response_object(&object, "", spec, Value::Object(status)))
}

/// Whether `subject` means the requesting user: it is empty, or has only the name of this user.
fn is_requesting_user(subject: &UserInfo, user: &UserInfo) -> bool {
    let has_only_name = subject.groups.is_empty() && subject.uid.is_empty() && subject.extra.is_empty();
    has_only_name && (subject.name.is_empty() || subject.name == user.name)
}

async fn can_explain_others(reviewer: &Reviewer<'_>, review: &Review<'_>) -> Result<bool, MirrorNotReady> {
    let attributes = Attributes {
        verb: "create".to_owned(),
        resource_request: true,
        group: reviewer.names.group(GROUP),
        version: "v1alpha1".to_owned(),
        resource: RESOURCE.to_owned(),
        ..Attributes::default()
    };
    let request = AuthzRequest { user: review.user, attributes: &attributes, at_least: review.at_least };
    Ok(reviewer.active.authz.authorize(request).await?.decision.allowed())
}

fn opinion_json(opinion: &Opinion) -> Value {
    let mut json = json!({
        "name": opinion.name, "type": opinion.kind, "verdict": opinion.verdict_word(),
        "latencyMicroseconds": u64::try_from(opinion.latency.as_micros()).unwrap_or(u64::MAX),
    });
    let Some(fields) = json.as_object_mut() else { return json };
    let decision = opinion.decision.clone().unwrap_or_default();
    for (field, text) in [("reason", decision.reason), ("evaluationError", decision.evaluation_error)] {
        if !text.is_empty() {
            fields.insert(field.to_owned(), text.into());
        }
    }
    if let Some(grant) = &opinion.explanation.grant {
        fields.insert("grant".to_owned(), grant.path.as_str().into());
        fields.insert("rule".to_owned(), rule_json(&grant.rule));
    }
    if !opinion.explanation.nearest.is_empty() {
        fields.insert("nearestMisses".to_owned(), json!(opinion.explanation.nearest));
    }
    if opinion.explanation.more > 0 {
        fields.insert("moreNearestMisses".to_owned(), opinion.explanation.more.into());
    }
    json
}
