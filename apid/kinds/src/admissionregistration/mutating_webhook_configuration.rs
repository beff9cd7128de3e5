//! MutatingWebhookConfiguration: admission webhooks that may change objects.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::Value;

use super::webhooks;
use crate::defaults::fill;
use crate::{Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "admissionregistration",
    versions: &["v1"],
    kind: "MutatingWebhookConfiguration",
    resource: "mutatingwebhookconfigurations",
    singular: "mutatingwebhookconfiguration",
    short_names: &[],
    categories: &["api-extensions"],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "admissionregistration/v1.MutatingWebhookConfiguration",
    strategy: &MutatingWebhookConfiguration,
};

struct MutatingWebhookConfiguration;

impl Strategy for MutatingWebhookConfiguration {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        webhooks::default(object);
        let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
        for webhook in webhooks.into_iter().flatten().filter_map(Value::as_object_mut) {
            fill(webhook, "reinvocationPolicy", "Never");
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        webhooks::validate(object, None)
    }

    fn revalidates(&self, _subresource: &str) -> bool {
        false
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        webhooks::validate(new, Some(old))
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn restricts_finalizers(&self) -> bool {
        false
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&webhooks::TABLE)
    }
}
