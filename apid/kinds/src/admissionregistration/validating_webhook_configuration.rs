//! ValidatingWebhookConfiguration: admission webhooks that may reject objects.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::webhooks;
use crate::{Context, Generation, Kind, MetadataChecks, Revalidation, Strategy};

pub(super) const KIND: Kind = Kind {
    categories: &["api-extensions"],
    metadata_checks: MetadataChecks::ALL,
    restricts_finalizers: false,
    generation: Generation::Counted(&[]),
    unconditional_update: false,
    revalidation: Revalidation::Never,
    columns: webhooks::COLUMNS,
    strategy: &ValidatingWebhookConfiguration,
    ..Kind::cluster_scoped(
        "admissionregistration/v1.ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    )
};

struct ValidatingWebhookConfiguration;

impl Strategy for ValidatingWebhookConfiguration {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        webhooks::default(object);
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        webhooks::validate(object, None)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        webhooks::validate(new, Some(old))
    }
}
