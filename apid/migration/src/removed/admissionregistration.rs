//! Webhook configurations of `admissionregistration/v1beta1`, whose defaults differ from those of `v1`.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::fields::{default, is_zero, items};
use super::{FieldChanges, Notes};

pub(super) const VERSIONS: &[FieldChanges] =
    &[configuration("ValidatingWebhookConfiguration"), configuration("MutatingWebhookConfiguration")];

const fn configuration(kind: &'static str) -> FieldChanges {
    FieldChanges::new(("admissionregistration", "v1beta1", kind), upgrade, |_, _| {})
}

/// Defaults of a webhook in `v1beta1`, each with a text about `v1` for the remark to the user.
fn defaults() -> [(&'static str, Value, &'static str); 5] {
    [
        ("failurePolicy", json!("Ignore"), "v1 has Fail"),
        ("matchPolicy", json!("Exact"), "v1 has Equivalent"),
        ("timeoutSeconds", json!(30), "v1 has 10"),
        ("sideEffects", json!("Unknown"), "v1 requires None or NoneOnDryRun"),
        (
            "admissionReviewVersions",
            json!(["v1beta1"]),
            "v1 requires the list; add v1 when the webhook supports it",
        ),
    ]
}

fn upgrade(object: &mut Object, _names: &Names, notes: &mut Notes) {
    for (field, value, hint) in defaults() {
        let mut is_set = false;
        for webhook in items(&mut object.0, "webhooks") {
            // `v1beta1` sets the default of a list also if the list is empty.
            if value.is_array() && is_zero(webhook, field) {
                webhook.remove(field);
            }
            is_set |= default(webhook, field, value.clone());
        }
        if is_set {
            notes.add(
                &format!("webhooks[*].{field}"),
                &format!("{value} is the default of the old version; {hint}"),
            );
        }
    }
}
