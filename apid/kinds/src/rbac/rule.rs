//! Rules of roles (requirements A-RBAC-20 to 24).

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use crate::validation::Field;

/// Validates the rules of a role. Rules of a `namespaced` role cannot have non-resource URLs.
pub(super) fn validate(object: &Object, namespaced: bool) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for rule in Field::new(object.get("rules"), "rules").items() {
        validate_rule(&rule, namespaced, &mut errors);
    }
    errors
}

fn validate_rule(rule: &Field<'_, '_>, namespaced: bool, errors: &mut FieldErrors) {
    rule.child("verbs").require_items("verbs must contain at least one value", errors);
    let urls = rule.child("nonResourceURLs");
    if urls.list().is_empty() {
        rule.child("apiGroups").require_items("resource rules must supply at least one api group", errors);
        rule.child("resources").require_items("resource rules must supply at least one resource", errors);
        return;
    }
    if namespaced {
        errors.push(urls.invalid("namespaced rules cannot apply to non-resource URLs"));
    }
    let resource_fields = ["apiGroups", "resources", "resourceNames"];
    if resource_fields.iter().any(|field| !rule.child(field).list().is_empty()) {
        errors.push(urls.invalid("rules cannot apply to both regular resources and non-resource URLs"));
    }
}
