//! ReplicaSet: a fixed number of replicas of a pod template.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::defaults::{fill, part};
use crate::pods;
use crate::pods::validation::{self, WorkloadTerms, replicated_status};
use crate::table::cell::selector;
use crate::table::workload::{REPLICA_COLUMNS, replica_cells};
use crate::validation::{Field, number};
use crate::{
    BuiltInKind, Context, Generation, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["rs"],
    categories: &["all"],
    subresources: &[Subresource::scale(), Subresource::status("ReplicaSet")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: REPLICA_COLUMNS,
    cells: |object, _| replica_cells(object, selector(object, "spec.selector")),
    strategy: &ReplicaSet,
    ..BuiltInKind::namespaced("apps/v1.ReplicaSet", "replicasets")
};

struct ReplicaSet;

impl Strategy for ReplicaSet {
    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let mut warnings: Vec<String> = pods::warnings::workload_name(new, old).into_iter().collect();
        warnings.extend(pods::warnings::template(new, old, "spec.template", ctx.names));
        warnings
    }

    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            fill(spec, "replicas", 1);
        }
        pods::defaults::template(object, "spec.template", ctx.names);
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, _ctx: &Context<'_>) {
        pods::drop_terminating_replicas(new, old);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        validate_spec(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        validation::workload_update(new, old, ctx, validate_spec, replicated_status)
    }
}

/// Terms of kube-apiserver, which calls a replica set a deployment in the message about a selector.
const TERMS: WorkloadTerms = WorkloadTerms { selector: "deployment", deadline: "ReplicaSet" };

fn validate_spec(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    number::check_not_negative(&spec.child("replicas"), &mut errors);
    number::check_not_negative(&spec.child("minReadySeconds"), &mut errors);
    validation::workload(&spec, TERMS, names, &mut errors);
    errors
}
