//! MutatingWebhookConfiguration: admission webhooks that may change objects.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::webhooks;
use crate::defaults::{fill, maps_in_list};
use crate::{Context, Generation, Kind, MetadataChecks, Revalidation, Strategy};

pub(super) const KIND: Kind = Kind {
    categories: &["api-extensions"],
    metadata_checks: MetadataChecks::ALL,
    restricts_finalizers: false,
    generation: Generation::Counted(&[]),
    unconditional_update: false,
    revalidation: Revalidation::Never,
    columns: webhooks::COLUMNS,
    strategy: &MutatingWebhookConfiguration,
    ..Kind::cluster_scoped(
        "admissionregistration/v1.MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    )
};

struct MutatingWebhookConfiguration;

impl Strategy for MutatingWebhookConfiguration {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        webhooks::default(object);
        for webhook in maps_in_list(&mut object.0, "webhooks") {
            fill(webhook, "reinvocationPolicy", "Never");
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        webhooks::validate(object, None)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        webhooks::validate(new, Some(old))
    }
}
