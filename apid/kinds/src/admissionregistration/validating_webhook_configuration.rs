//! ValidatingWebhookConfiguration: admission webhooks that may reject objects.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::webhooks;
use crate::{Context, Generation, Kind, MetadataChecks, Revalidation, Strategy};

pub(super) const KIND: Kind = Kind {
    group: "admissionregistration",
    kind: "ValidatingWebhookConfiguration",
    resource: "validatingwebhookconfigurations",
    singular: "validatingwebhookconfiguration",
    categories: &["api-extensions"],
    schema: "admissionregistration/v1.ValidatingWebhookConfiguration",
    metadata_checks: MetadataChecks::ALL,
    restricts_finalizers: false,
    generation: Generation::Counted(&[]),
    unconditional_update: false,
    revalidation: Revalidation::Never,
    table: &webhooks::TABLE,
    strategy: &ValidatingWebhookConfiguration,
    ..Kind::CLUSTER_SCOPED
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
