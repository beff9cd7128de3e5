//! Rules of roles (requirements A-RBAC-20 to 24).

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::{Map, Value};

/// Validates the rules of a role. Rules of a `namespaced` role cannot have non-resource URLs.
pub(super) fn validate(object: &Object, namespaced: bool) -> FieldErrors {
    let rules = object.get("rules").and_then(Value::as_array);
    let rules = rules.into_iter().flatten().filter_map(Value::as_object).enumerate();
    rules.map(|(i, rule)| validate_rule(rule, namespaced, &FieldPath::new("rules").index(i))).collect()
}

fn validate_rule(rule: &Map<String, Value>, namespaced: bool, path: &FieldPath) -> FieldErrors {
    let list = |field: &str| rule.get(field).and_then(Value::as_array).filter(|l| !l.is_empty());
    let mut errors = FieldErrors::new();
    if list("verbs").is_none() {
        errors.push(FieldError::required(&path.child("verbs"), "verbs must contain at least one value"));
    }
    if let Some(urls) = list("nonResourceURLs") {
        let path = path.child("nonResourceURLs");
        let mut refuse = |detail: &str| errors.push(FieldError::invalid(&path, urls.clone(), detail));
        if namespaced {
            refuse("namespaced rules cannot apply to non-resource URLs");
        }
        if ["apiGroups", "resources", "resourceNames"].iter().any(|field| list(field).is_some()) {
            refuse("rules cannot apply to both regular resources and non-resource URLs");
        }
        return errors;
    }
    if list("apiGroups").is_none() {
        errors.push(FieldError::required(
            &path.child("apiGroups"),
            "resource rules must supply at least one api group",
        ));
    }
    if list("resources").is_none() {
        errors.push(FieldError::required(
            &path.child("resources"),
            "resource rules must supply at least one resource",
        ));
    }
    errors
}
