//! Validation of flow schemas.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::format;
use crate::validation::{Field, internal, text};

/// Maximum value of `matchingPrecedence`.
const PRECEDENCE_MAX: i64 = 10_000;
/// Verbs that a rule can list besides `*`.
const VERBS: [&str; 9] =
    ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

/// Validates the spec.
pub(super) fn validate(object: &Object) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    let precedence = spec.child("matchingPrecedence");
    let number = precedence.integer().unwrap_or(0);
    if number <= 0 {
        errors.push(precedence.invalid_value(number, "must be a positive value"));
    }
    if number > PRECEDENCE_MAX {
        errors.push(precedence.invalid(&format!("must not be greater than {PRECEDENCE_MAX}")));
    }
    if number == 1 && object.name() != "exempt" {
        errors.push(precedence.invalid("only the schema named 'exempt' may have matchingPrecedence 1"));
    }
    let method = spec.child("distinguisherMethod");
    let kind = method.child("type");
    if method.is_present() && !matches!(kind.text(), "ByNamespace" | "ByUser") {
        // The error in kube-apiserver shows the whole method.
        let method_text = internal::text_of_type(method.value(), "flowcontrol/v1.FlowDistinguisherMethod");
        errors.push(internal::not_supported(&kind, &method_text, "\"ByNamespace\", \"ByUser\""));
    }
    let level = spec.child("priorityLevelConfiguration");
    let level_name = level.child("name");
    let detail = "must reference a priority level";
    text::require_described_format(&level_name, detail, format::subdomain, &mut errors);
    spec.child("rules").items().for_each(|item| validate_rule(&item, &mut errors));
    if let Some(fixed) = fixed_spec(object.name())
        && spec.value() != Some(&fixed)
    {
        let detail = format!("spec of '{}' must equal the fixed value", object.name());
        errors.push(internal::invalid_of_type(&spec, "flowcontrol/v1.FlowSchemaSpec", &detail));
    }
    errors
}

/// The fixed spec of a mandatory flow schema; None for other names.
fn fixed_spec(name: &str) -> Option<Value> {
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let rule = |subjects: Vec<Value>| {
        json!([{
            "subjects": subjects,
            "resourceRules": [{
                "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
            }],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        }])
    };
    match name {
        "exempt" => Some(json!({
            "priorityLevelConfiguration": {"name": "exempt"},
            "matchingPrecedence": 1,
            "rules": rule(vec![group("system:masters")]),
        })),
        "catch-all" => Some(json!({
            "priorityLevelConfiguration": {"name": "catch-all"},
            "matchingPrecedence": PRECEDENCE_MAX,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": rule(vec![group("system:unauthenticated"), group("system:authenticated")]),
        })),
        _ => None,
    }
}

fn validate_rule(rule: &Field<'_, '_>, errors: &mut FieldErrors) {
    let subjects = rule.child("subjects");
    subjects.require_items("subjects must contain at least one value", errors);
    subjects.items().for_each(|item| validate_subject(&item, errors));
    let (resources, paths) = (rule.child("resourceRules"), rule.child("nonResourceRules"));
    if resources.list().is_empty() && paths.list().is_empty() {
        errors.push(rule.required("at least one of resourceRules and nonResourceRules has to be non-empty"));
    }
    resources.items().for_each(|item| validate_resource_rule(&item, errors));
    paths.items().for_each(|item| validate_path_rule(&item, errors));
}

fn validate_subject(subject: &Field<'_, '_>, errors: &mut FieldErrors) {
    const KINDS: [(&str, &str); 3] =
        [("Group", "group"), ("ServiceAccount", "serviceAccount"), ("User", "user")];
    let kind = subject.child("kind");
    if !KINDS.iter().any(|(name, _)| *name == kind.text()) {
        errors.push(kind.with_value(Some(&kind.text().into())).not_supported(&KINDS.map(|(name, _)| name)));
        return;
    }
    for (name, field) in KINDS {
        let member = subject.child(field);
        match (name == kind.text(), member.is_present()) {
            (true, false) => {
                errors.push(member.required(&format!("{field} is required when subject kind is '{name}'")));
            }
            (false, true) => {
                errors.push(
                    member.forbidden(&format!("{field} is forbidden when subject kind is not '{name}'")),
                );
            }
            (true, true) if name == "ServiceAccount" => validate_service_account(&member, errors),
            (true, true) => text::require(&member.child("name"), errors),
            (false, false) => {}
        }
    }
}

fn validate_service_account(account: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (name, namespace) = (account.child("name"), account.child("namespace"));
    if name.text() != "*" {
        text::require_format(&name, format::subdomain, errors);
    }
    let detail = "must specify namespace for service account";
    text::require_described_format(&namespace, detail, format::label, errors);
}

/// Reports an empty list, or a list with `*` and further items. Returns whether the list has `*`.
fn check_wildcard(list: &Field<'_, '_>, missing: &str, items: &str, errors: &mut FieldErrors) -> bool {
    let has_wildcard = list.list().iter().any(|item| item.as_str() == Some("*"));
    if list.list().is_empty() {
        errors.push(list.required(missing));
    } else if has_wildcard && list.list().len() > 1 {
        errors.push(list.invalid(&format!("if '*' is present, must not specify other {items}")));
    }
    has_wildcard
}

fn validate_verbs(verbs: &Field<'_, '_>, errors: &mut FieldErrors) {
    let has_wildcard = check_wildcard(verbs, "verbs must contain at least one value", "verbs", errors);
    let is_known = |verb: &Value| verb.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if !has_wildcard && !verbs.list().iter().all(is_known) {
        errors.push(verbs.not_supported(&VERBS));
    }
}

fn validate_resource_rule(rule: &Field<'_, '_>, errors: &mut FieldErrors) {
    validate_verbs(&rule.child("verbs"), errors);
    let missing = "resource rules must supply at least one api group";
    check_wildcard(&rule.child("apiGroups"), missing, "api groups", errors);
    let missing = "resource rules must supply at least one resource";
    check_wildcard(&rule.child("resources"), missing, "resources", errors);
    let namespaces = rule.child("namespaces");
    if namespaces.list().is_empty() && rule.child("clusterScope").flag() {
        return;
    }
    let missing = "resource rules that are not cluster scoped must supply at least one namespace";
    if !check_wildcard(&namespaces, missing, "namespaces", errors) {
        namespaces.items().for_each(|namespace| text::check_format(&namespace, namespace_details, errors));
    }
}

/// Texts of the violations of a namespace in a list that may also contain `*`.
fn namespace_details(namespace: &str) -> Vec<String> {
    let describe = |detail| format!("each member of this list must be '*' or a DNS-1123 label; {detail}");
    format::label(namespace).into_iter().map(describe).collect()
}

fn validate_path_rule(rule: &Field<'_, '_>, errors: &mut FieldErrors) {
    validate_verbs(&rule.child("verbs"), errors);
    let paths = rule.child("nonResourceURLs");
    let missing = "nonResourceURLs must contain at least one value";
    if check_wildcard(&paths, missing, "non-resource URLs", errors) {
        return;
    }
    for path in paths.items() {
        if let Some(detail) = invalid_path(path.text()) {
            errors.push(path.invalid_value(path.text(), detail));
        }
    }
}

fn invalid_path(path: &str) -> Option<&'static str> {
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ => {
            let wildcards = path.matches('*').count();
            let is_valid = wildcards == 0 || (wildcards == 1 && path.ends_with("/*"));
            (!is_valid).then_some("wildcard can only do suffix matching")
        }
    }
}
