//! ValidatingWebhookConfiguration: admission webhooks that may reject objects.

use super::webhooks::{self, WebhookConfiguration};
use crate::{BuiltInKind, Generation, MetadataChecks, Revalidation, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    categories: &["api-extensions"],
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        restricts_finalizers: false,
        generation: Generation::Counted(&[]),
        unconditional_update: false,
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: webhooks::COLUMNS,
    strategy: &WebhookConfiguration { is_mutating: false },
    ..BuiltInKind::cluster_scoped(
        "admissionregistration/v1.ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
    )
};
