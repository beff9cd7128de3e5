//! MutatingWebhookConfiguration: admission webhooks that may change objects.

use super::webhooks::{self, WebhookConfiguration};
use crate::{Generation, Kind, MetadataChecks, Revalidation};

pub(super) const KIND: Kind = Kind {
    categories: &["api-extensions"],
    metadata_checks: MetadataChecks::ALL,
    restricts_finalizers: false,
    generation: Generation::Counted(&[]),
    unconditional_update: false,
    revalidation: Revalidation::Never,
    columns: webhooks::COLUMNS,
    strategy: &WebhookConfiguration { is_mutating: true },
    ..Kind::cluster_scoped(
        "admissionregistration/v1.MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
    )
};
