//! Rules of admission webhooks, which mutating and validating configurations share.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::Value;

use super::{expression_rules, match_rules};
use crate::admission_expressions::{Compiler, ObjectTypes};
use crate::defaults::{fill, map_at, maps_in_list};
use crate::table::cell::PathReader as _;
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, text, webhook_client};
use crate::{Column, Context, Strategy, format, labels};

/// Versions of the AdmissionReview that apid sends.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// Values of `sideEffects` that a new webhook can have.
const SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
/// Minimum number of segments, which are separated by dots, in the name of a webhook.
const NAME_SEGMENTS_MIN: usize = 3;

/// Properties that validation requires. An update may lack a property that the stored object lacks too.
#[derive(Clone, Copy)]
struct RequiredProperties {
    has_known_versions: bool,
    has_unique_names: bool,
    has_no_side_effects: bool,
}

/// Columns of webhook configurations.
pub(super) const COLUMNS: &[Column] =
    &[NAME, Column::integer("Webhooks", "Number of webhooks.").with_source(Source::Length("webhooks")), AGE];

/// Rules of a kind of webhook configurations.
pub(super) struct WebhookConfiguration {
    /// Whether the webhooks may change objects.
    pub(super) is_mutating: bool,
}

impl Strategy for WebhookConfiguration {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        for webhook in maps_in_list(&mut object.0, "webhooks") {
            fill(webhook, "failurePolicy", "Fail");
            match_rules::default_selection(webhook);
            fill(webhook, "timeoutSeconds", 10);
            match_rules::default_rules(webhook, "rules");
            if let Some(service) =
                map_at(webhook, "clientConfig").and_then(|client| map_at(client, "service"))
            {
                fill(service, "port", 443);
            }
            if self.is_mutating {
                fill(webhook, "reinvocationPolicy", "Never");
            }
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        validate(object, None)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        validate(new, Some(old))
    }
}

/// Validates the webhooks of a configuration. `old` is the stored object of an update.
fn validate(object: &Object, old: Option<&Object>) -> FieldErrors {
    let required = RequiredProperties {
        has_known_versions: old.is_none_or(has_known_versions),
        has_unique_names: old.is_none_or(has_unique_names),
        has_no_side_effects: old.is_none_or(has_no_side_effects),
    };
    let webhooks = Field::new(object.get("webhooks"), "webhooks");
    let stored = old.map(condition_expressions).unwrap_or_default();
    let compiler = Compiler::of_new(ObjectTypes::dynamic(false), false, stored);
    let mut errors = FieldErrors::new();
    let mut names = BTreeSet::new();
    for webhook in webhooks.items() {
        validate_webhook(&webhook, required, &compiler, &mut errors);
        validate_review_versions(&webhook.child("admissionReviewVersions"), required, &mut errors);
        let name = webhook.child("name");
        if required.has_unique_names && !name.text().is_empty() && !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
    }
    errors
}

/// The expressions of all match conditions in a configuration.
fn condition_expressions(object: &Object) -> BTreeSet<&str> {
    let conditions =
        object.items("webhooks").iter().filter_map(|webhook| webhook.get("matchConditions")?.as_array());
    conditions.flatten().filter_map(|condition| condition.get("expression")?.as_str()).collect()
}

fn has_known_versions(object: &Object) -> bool {
    object.items("webhooks").iter().all(|webhook| {
        let versions = webhook.get("admissionReviewVersions").and_then(Value::as_array);
        versions.is_some_and(|versions| versions.iter().any(|v| v.as_str().is_some_and(is_known_version)))
    })
}

fn is_known_version(version: &str) -> bool {
    REVIEW_VERSIONS.contains(&version)
}

fn has_unique_names(object: &Object) -> bool {
    let mut names = BTreeSet::new();
    object.items("webhooks").iter().all(|webhook| names.insert(webhook.text("name")))
}

fn has_no_side_effects(object: &Object) -> bool {
    object.items("webhooks").iter().all(|webhook| SIDE_EFFECTS.contains(&webhook.text("sideEffects")))
}

fn validate_webhook(
    webhook: &Field<'_, '_>,
    required: RequiredProperties,
    compiler: &Compiler<'_>,
    errors: &mut FieldErrors,
) {
    validate_name(&webhook.child("name"), errors);
    webhook.child("rules").items().for_each(|rule| match_rules::validate_rule(&rule, errors));
    match_rules::validate_failure_policy(&webhook.child("failurePolicy"), errors);
    match_rules::validate_match_policy(&webhook.child("matchPolicy"), errors);
    validate_side_effects(&webhook.child("sideEffects"), required, errors);
    let timeout = webhook.child("timeoutSeconds");
    if timeout.integer().is_some_and(|seconds| !(1..=30).contains(&seconds)) {
        errors.push(timeout.invalid("the timeout value must be between 1 and 30 seconds"));
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        labels::validate_selector(&webhook.child(selector), errors);
    }
    text::check_supported(&webhook.child("reinvocationPolicy"), &["IfNeeded", "Never"], errors);
    let client = webhook.child("clientConfig");
    let (url, service) = (client.child("url"), client.child("service"));
    match (url.is_present(), service.is_present()) {
        (true, false) => webhook_client::check_url(&url, errors),
        (false, true) => webhook_client::check_service(&service, errors),
        _ => errors.push(client.required("exactly one of url or service is required")),
    }
    expression_rules::validate_conditions(&webhook.child("matchConditions"), compiler, errors);
}

fn validate_name(name: &Field<'_, '_>, errors: &mut FieldErrors) {
    if name.text().is_empty() {
        errors.push(name.required(""));
        return;
    }
    let messages = format::subdomain(name.text());
    if !messages.is_empty() {
        errors.push(name.invalid(&messages.join(",")));
    } else if name.text().split('.').count() < NAME_SEGMENTS_MIN {
        errors.push(name.invalid("should be a domain with at least three segments separated by dots"));
    }
}

fn validate_side_effects(field: &Field<'_, '_>, required: RequiredProperties, errors: &mut FieldErrors) {
    let supported: &[&str] = if required.has_no_side_effects {
        &SIDE_EFFECTS
    } else {
        &["None", "NoneOnDryRun", "Some", "Unknown"]
    };
    if !field.is_present() {
        errors.push(field.required(&format!("must specify one of {}", supported.join(", "))));
    }
    text::check_supported(field, supported, errors);
}

fn validate_review_versions(
    versions: &Field<'_, '_>,
    required: RequiredProperties,
    errors: &mut FieldErrors,
) {
    if versions.list().is_empty() {
        let detail = format!("must specify one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(versions.required(&detail));
        return;
    }
    let mut seen = BTreeSet::new();
    for version in versions.items() {
        if seen.insert(version.text()) {
            text::check_format(&version, format::label_1035, errors);
        } else {
            errors.push(version.invalid("duplicate version"));
        }
    }
    if required.has_known_versions && !seen.iter().any(|version| is_known_version(version)) {
        let detail = format!("must include at least one of {}", REVIEW_VERSIONS.join(", "));
        errors.push(versions.invalid(&detail));
    }
}
