//! SelfSubjectRulesReview (requirements A-REV-14, A-REV-20).
//! Lists the rules of the requesting user in a namespace.

use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use serde_json::json;

use super::{Review, ReviewResult, Reviewer, response_object};
use crate::rules::reconcile::rule_json;

pub(super) fn answer(reviewer: &Reviewer<'_>, review: &Review<'_>, object: &Object) -> ReviewResult {
    let namespace = object.str_at(&["spec", "namespace"]).unwrap_or_default();
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request").into());
    }
    let user_rules = reviewer.active.authz.rules(review.user, namespace, review.at_least)?;
    let resources = user_rules.rules.iter().filter(|rule| !rule.resources.is_empty()).map(|rule| {
        let mut rule = rule_json(rule);
        if let Some(fields) = rule.as_object_mut() {
            fields.remove("nonResourceURLs");
        }
        rule
    });
    let resources: Vec<Value> = resources.collect();
    let paths = user_rules.rules.iter().filter(|rule| !rule.non_resource_urls.is_empty());
    let paths: Vec<Value> =
        paths.map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls})).collect();
    let mut status =
        json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": user_rules.incomplete});
    let problem = match user_rules.problems.as_slice() {
        [] => None,
        [problem] => Some(problem.clone()),
        problems => Some(format!("[{}]", problems.join(", "))),
    };
    if let (Some(problem), Some(fields)) = (problem, status.as_object_mut()) {
        fields.insert("evaluationError".to_owned(), problem.into());
    }
    // As in Kubernetes, the response has an empty spec.
    Ok(response_object(object, "", Some(json!({})), status))
}
