//! Size limits of review objects and TokenRequests, which apid and authd check before any other work.
//!
//! # Contract
//!
//! [`check_sizes`] counts list items and bytes of the fields that determine the work of authd. Its time is
//! linear in the number of list items, and it reports at most one error per field. A review within the limits
//! costs authd a limited amount of work. apid applies the limits before it calls authd; authd applies them
//! again, because it limits its own inputs.
//!
//! # Reference
//!
//! Kubernetes has no such limits. They are far above real use: a user has tens of groups, a selector tens of
//! requirements.

use crate::field::{FieldError, FieldPath};
use crate::gvk::GroupKind;
use crate::names::Names;
use crate::object::{Map, Object, Value};
use crate::status::Status;

/// Maximum number of requirements in one selector of an access review.
pub const MAX_REQUIREMENTS: usize = 1_000;
/// Maximum number of values in all requirements of one selector together.
pub const MAX_SELECTOR_VALUES: usize = 10_000;
/// Maximum size of a `rawSelector` in bytes: as much as fits into the headers of a request.
pub const MAX_RAW_SELECTOR_BYTES: usize = 128 * 1024;
/// Maximum number of groups in `spec.groups`.
pub const MAX_GROUPS: usize = 10_000;
/// Maximum number of keys in `spec.extra`.
pub const MAX_EXTRA_KEYS: usize = 1_000;
/// Maximum number of values of all keys in `spec.extra` together.
pub const MAX_EXTRA_VALUES: usize = 10_000;
/// Maximum number of audiences of a TokenReview or TokenRequest.
pub const MAX_AUDIENCES: usize = 1_000;
/// Maximum size in bytes of all audiences together: a token with more does not fit into a request.
pub const MAX_AUDIENCES_BYTES: usize = 128 * 1024;

/// Rejects a review whose fields exceed the limits.
///
/// # Errors
///
/// A 422 Status with one cause for each field that is too large.
pub fn check_sizes(names: &Names, object: &Object) -> Result<(), Box<Status>> {
    let errors = size_errors(object);
    if errors.is_empty() {
        return Ok(());
    }
    let group = object.api_version().split_once('/').map_or("", |(group, _)| group);
    // Kubernetes omits the kind of access reviews in the 422.
    let kind = if group == names.group("authorization") { "" } else { object.kind() };
    let kind = GroupKind { group: group.to_owned(), kind: kind.to_owned() };
    Err(Box::new(Status::invalid(&kind, "", &errors)))
}

fn size_errors(object: &Object) -> Vec<FieldError> {
    let Some(spec) = object.get("spec").and_then(Value::as_object) else { return Vec::new() };
    let path = FieldPath::new("spec");
    let mut errors = Vec::new();
    if let Some(resource) = spec.get("resourceAttributes").and_then(Value::as_object) {
        for field in ["fieldSelector", "labelSelector"] {
            if let Some(selector) = resource.get(field).and_then(Value::as_object) {
                check_selector(selector, &path.child("resourceAttributes").child(field), &mut errors);
            }
        }
    }
    check_count(MAX_GROUPS, count_items(spec.get("groups")), &path.child("groups"), &mut errors);
    let audiences = spec.get("audiences").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    check_count(MAX_AUDIENCES, audiences.len(), &path.child("audiences"), &mut errors);
    let bytes: usize = audiences.iter().filter_map(Value::as_str).map(str::len).sum();
    if bytes > MAX_AUDIENCES_BYTES {
        errors.push(FieldError::too_long(&path.child("audiences"), MAX_AUDIENCES_BYTES));
    }
    if let Some(extra) = spec.get("extra").and_then(Value::as_object) {
        let path = path.child("extra");
        check_count(MAX_EXTRA_KEYS, extra.len(), &path, &mut errors);
        let values = extra.values().map(|values| count_items(Some(values))).sum();
        check_count(MAX_EXTRA_VALUES, values, &path, &mut errors);
    }
    errors
}

fn check_selector(selector: &Map<String, Value>, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let raw = selector.get("rawSelector").and_then(Value::as_str).unwrap_or_default();
    if raw.len() > MAX_RAW_SELECTOR_BYTES {
        errors.push(FieldError::too_long(&path.child("rawSelector"), MAX_RAW_SELECTOR_BYTES));
    }
    let path = path.child("requirements");
    let requirements = selector.get("requirements").and_then(Value::as_array);
    let requirements = requirements.map(Vec::as_slice).unwrap_or_default();
    check_count(MAX_REQUIREMENTS, requirements.len(), &path, errors);
    let values = requirements.iter().map(|requirement| count_items(requirement.get("values"))).sum();
    check_count(MAX_SELECTOR_VALUES, values, &path.child("values"), errors);
}

fn count_items(list: Option<&Value>) -> usize {
    list.and_then(Value::as_array).map_or(0, Vec::len)
}

fn check_count(max: usize, actual: usize, path: &FieldPath, errors: &mut Vec<FieldError>) {
    if actual > max {
        errors.push(FieldError::too_many(path, actual, max));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::names::Preset;

    fn causes(spec: Value) -> Vec<(String, String)> {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let group = names.group("authorization");
        let object =
            json!({"apiVersion": format!("{group}/v1"), "kind": "SubjectAccessReview", "spec": spec});
        let Err(status) = check_sizes(&names, &Object::from_value(object).unwrap()) else {
            return Vec::new();
        };
        assert_eq!(status.code, 422);
        status.details.unwrap().causes.into_iter().map(|cause| (cause.field, cause.message)).collect()
    }

    #[test]
    fn review_beyond_a_limit_returns_one_cause_for_each_field() {
        let selector = |requirements: Value| json!({"resourceAttributes": {"labelSelector": {"requirements": requirements}}});
        let values = |count: usize| json!({"key": "k", "operator": "In", "values": vec![""; count]});
        let path = "spec.resourceAttributes.labelSelector";
        for (within, beyond, field, message) in [
            (
                selector(json!(vec![json!({}); 1_000])),
                selector(json!(vec![json!({}); 1_001])),
                format!("{path}.requirements"),
                "Too many: 1001: must have at most 1000 items",
            ),
            (
                selector(json!([values(5_000), values(5_000)])),
                selector(json!([values(5_000), values(5_001)])),
                format!("{path}.requirements.values"),
                "Too many: 10001: must have at most 10000 items",
            ),
            (
                json!({"resourceAttributes": {"labelSelector": {"rawSelector": "a".repeat(128 * 1024)}}}),
                json!({"resourceAttributes": {"labelSelector": {"rawSelector": "a".repeat(128 * 1024 + 1)}}}),
                format!("{path}.rawSelector"),
                "Too long: may not be more than 131072 bytes",
            ),
            (
                json!({"groups": vec!["g"; 10_000]}),
                json!({"groups": vec!["g"; 10_001]}),
                "spec.groups".to_owned(),
                "Too many: 10001: must have at most 10000 items",
            ),
            (
                json!({"extra": {"a": vec!["v"; 4_000], "b": vec!["v"; 6_000]}}),
                json!({"extra": {"a": vec!["v"; 4_000], "b": vec!["v"; 6_001]}}),
                "spec.extra".to_owned(),
                "Too many: 10001: must have at most 10000 items",
            ),
            (
                json!({"audiences": vec![""; 1_000]}),
                json!({"audiences": vec![""; 1_001]}),
                "spec.audiences".to_owned(),
                "Too many: 1001: must have at most 1000 items",
            ),
            (
                json!({"audiences": ["a".repeat(128 * 1024)]}),
                json!({"audiences": ["a".repeat(128 * 1024), "b"]}),
                "spec.audiences".to_owned(),
                "Too long: may not be more than 131072 bytes",
            ),
        ] {
            assert_eq!(causes(within), [], "{field}");
            assert_eq!(causes(beyond), [(field, message.to_owned())]);
        }
    }
}
