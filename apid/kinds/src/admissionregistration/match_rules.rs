//! Rules that select requests: operations, API groups, versions, resources and scope.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use serde_json::{Value, json};

use crate::defaults::{Fields, fill, map_or_insert, maps_in_list};
use crate::validation::{Field, text};
use crate::{format, labels};

/// Sets the default scope of the rules in a list.
pub(super) fn default_rules(owner: &mut Fields, list: &str) {
    for rule in maps_in_list(owner, list) {
        fill(rule, "scope", "*");
    }
}

/// Sets the defaults that webhooks and policies share: the match policy, and selectors that select everything.
pub(super) fn default_selection(owner: &mut Fields) {
    fill(owner, "matchPolicy", "Equivalent");
    fill(owner, "namespaceSelector", json!({}));
    fill(owner, "objectSelector", json!({}));
}

/// Sets the defaults of the match resources of a policy or binding.
pub(super) fn default_resources(resources: &mut Fields) {
    default_selection(resources);
    default_rules(resources, "resourceRules");
    default_rules(resources, "excludeResourceRules");
}

/// Sets the defaults of a named map of match resources, if present.
pub(super) fn default_resources_at(owner: &mut Fields, name: &str) {
    if owner.get(name).is_some_and(Value::is_object)
        && let Some(resources) = map_or_insert(owner, name)
    {
        default_resources(resources);
    }
}

/// Validates the match policy.
pub(super) fn validate_match_policy(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_supported(field, &["Equivalent", "Exact"], errors);
}

/// Validates the failure policy.
pub(super) fn validate_failure_policy(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_supported(field, &["Fail", "Ignore"], errors);
}

/// Validates the match resources of a policy or binding.
pub(super) fn validate_match_resources(resources: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !resources.is_present() {
        return;
    }
    validate_match_policy(&resources.child("matchPolicy"), errors);
    labels::validate_selector(&resources.child("namespaceSelector"), errors);
    labels::validate_selector(&resources.child("objectSelector"), errors);
    for list in ["resourceRules", "excludeResourceRules"] {
        for item in resources.child(list).items() {
            validate_rule(&item, errors);
            validate_resource_names(&item.child("resourceNames"), errors);
        }
    }
}

/// Reports operations that a rule of a mutating policy cannot contain, such as `DELETE`: the policy never
/// runs for deletions. As in kube-apiserver, the path of the error lacks the index of the rule.
pub(super) fn check_mutating_operations(resources: &Field<'_, '_>, errors: &mut FieldErrors) {
    let rules = resources.child("resourceRules");
    for rule in rules.items() {
        for operation in rule.child("operations").items() {
            if !matches!(operation.text(), "*" | "CREATE" | "UPDATE" | "CONNECT") {
                let operations = rules.child("operations").with_value(operation.value());
                errors.push(operations.not_supported(&["*", "CONNECT", "CREATE", "UPDATE"]));
            }
        }
    }
}

fn validate_resource_names(names: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for name in names.items() {
        text::check_format(&name, |name| format::path_segment(name, false), errors);
        if !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
    }
}

/// Validates a rule with operations.
pub(super) fn validate_rule(rule: &Field<'_, '_>, errors: &mut FieldErrors) {
    let operations = rule.child("operations");
    check_wildcard(&operations, "operations", errors);
    for operation in operations.items() {
        if !matches!(operation.text(), "*" | "CREATE" | "UPDATE" | "DELETE" | "CONNECT") {
            errors.push(operation.not_supported(&["*", "CONNECT", "CREATE", "DELETE", "UPDATE"]));
        }
    }
    check_wildcard(&rule.child("apiGroups"), "API groups", errors);
    let versions = rule.child("apiVersions");
    check_wildcard(&versions, "API versions", errors);
    versions.items().for_each(|version| text::require(&version, errors));
    validate_resource_list(&rule.child("resources"), errors);
    text::check_supported(&rule.child("scope"), &["*", "Cluster", "Namespaced"], errors);
}

/// Reports an empty list, or a list with `*` and further items.
fn check_wildcard(list: &Field<'_, '_>, items: &str, errors: &mut FieldErrors) {
    let has_wildcard = list.list().iter().any(|item| item.as_str() == Some("*"));
    match list.list().len() {
        0 => errors.push(list.required("")),
        1 => {}
        _ if has_wildcard => {
            errors.push(list.invalid(&format!("if '*' is present, must not specify other {items}")));
        }
        _ => {}
    }
}

/// Validates a list of resources and subresources: `pods`, `pods/log`, `*/scale`, `*/*`.
fn validate_resource_list(list: &Field<'_, '_>, errors: &mut FieldErrors) {
    list.require_items("", errors);
    let (mut whole_resources, mut wildcard_subresources) = (BTreeSet::new(), BTreeSet::new());
    let (mut has_all, mut has_all_resources, mut has_resource) = (false, false, false);
    for item in list.items() {
        has_all |= item.text() == "*/*";
        has_all_resources |= item.text() == "*";
        let Some((resource, subresource)) = item.text().split_once('/') else {
            if item.text().is_empty() {
                errors.push(item.required(""));
            } else {
                // As in kube-apiserver, the last item without a subresource overrides the value of earlier
                // items.
                has_resource = item.text() != "*";
            }
            continue;
        };
        let name = item.text();
        if whole_resources.contains(resource) {
            let detail = format!("if '{resource}/*' is present, must not specify {name}");
            errors.push(item.invalid(&detail));
        }
        if wildcard_subresources.contains(subresource) {
            let detail = format!("if '*/{subresource}' is present, must not specify {name}");
            errors.push(item.invalid(&detail));
        }
        if subresource == "*" {
            whole_resources.insert(resource);
        }
        if resource == "*" {
            wildcard_subresources.insert(subresource);
        }
    }
    if has_all && list.list().len() > 1 {
        errors.push(list.invalid("if '*/*' is present, must not specify other resources"));
    }
    if has_all_resources && has_resource {
        errors.push(list.invalid("if '*' is present, must not specify other resources without subresources"));
    }
}
