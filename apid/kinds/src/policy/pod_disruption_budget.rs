//! PodDisruptionBudget: limit on simultaneous voluntary disruptions of a set of pods.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use crate::labels;
use crate::pods::validation::{at_most_100_percent, count_or_percent};
use crate::table::{AGE, NAME, Source};
use crate::validation::internal;
use crate::validation::{Field, conditions, number, text};
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["pdb"],
    subresources: &[Subresource::status("PodDisruptionBudget")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::GENERAL,
        generation: Generation::Counted(&[]),
        unconditional_update: false,
        revalidation: Revalidation::MainResource,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Min Available", "Minimum number or percentage of available pods.")
            .with_source(Source::TextOrNumber("spec.minAvailable", "N/A")),
        Column::text("Max Unavailable", "Maximum number or percentage of unavailable pods.")
            .with_source(Source::TextOrNumber("spec.maxUnavailable", "N/A")),
        Column::integer("Allowed Disruptions", "Number of pods that evictions can remove now.")
            .with_source(Source::Number("status.disruptionsAllowed")),
        AGE,
    ],
    strategy: &PodDisruptionBudget,
    ..BuiltInKind::namespaced("policy/v1.PodDisruptionBudget", "poddisruptionbudgets")
};

struct PodDisruptionBudget;

impl Strategy for PodDisruptionBudget {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        validate_spec(&Field::new(object.get("spec"), "spec"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        if ctx.subresource == "status" {
            validate_status(&Field::new(new.get("status"), "status"), &mut errors);
        }
        errors
    }
}

fn validate_spec(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (min, max) = (spec.child("minAvailable"), spec.child("maxUnavailable"));
    if min.is_present() && max.is_present() {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.push(internal::invalid_of_type(spec, "policy/v1.PodDisruptionBudgetSpec", detail));
    }
    for field in [&min, &max] {
        if field.is_present() {
            count_or_percent(field, errors);
            at_most_100_percent(field, errors);
        }
    }
    labels::validate_selector(&spec.child("selector"), errors);
    let policy = spec.child("unhealthyPodEvictionPolicy");
    text::check_supported(&policy, &["AlwaysAllow", "IfHealthyBudget"], errors);
}

fn validate_status(status: &Field<'_, '_>, errors: &mut FieldErrors) {
    conditions::validate(&status.child("conditions"), errors);
    for name in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
        number::check_not_negative(&status.child(name), errors);
    }
}
