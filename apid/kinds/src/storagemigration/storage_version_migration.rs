//! StorageVersionMigration: a request to rewrite all objects of a resource in its storage version.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::format;
use crate::table::NAME;
use crate::table::cell::PathReader;
use crate::validation::{Field, conditions, immutable_fields, text};
use crate::{
    BuiltInKind, Column, Context, MetadataChecks, Revalidation, StatusWrites, Strategy, Subresource,
    WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    subresources: &[Subresource::status("StorageVersionMigration")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        unconditional_update: false,
        status_writes: StatusWrites::StatusOnly,
        // The resource cannot change.
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, Column::text("Resource", "Resource whose objects are rewritten.")],
    cells: |object, _| {
        let part = |name: &str| object.text(&format!("spec.resource.{name}")).to_owned();
        let parts = [part("resource"), part("version"), part("group")];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        vec![json!(parts.join("."))]
    },
    strategy: &StorageVersionMigration,
    ..BuiltInKind::cluster_scoped(
        "storagemigration/v1alpha1.StorageVersionMigration",
        "storageversionmigrations",
    )
};

struct StorageVersionMigration;

impl Strategy for StorageVersionMigration {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let resource = Field::new(object.find("spec.resource"), "spec.resource");
        text::check_nonempty_format(&resource.child("group"), format::subdomain, &mut errors);
        for name in ["version", "resource"] {
            text::require_format(&resource.child(name), format::label_1035, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => validate_status(new, old),
            _ => immutable_fields(new, old, &["spec.resource"]),
        }
    }
}

/// Validates a new status: `Succeeded` and `Failed` are final and exclude each other and `Running`, and
/// `resourceVersion` does not change after it has been set.
fn validate_status(new: &Object, old: &Object) -> FieldErrors {
    let mut errors = conditions::validate_condition_types(new);
    let status = Field::new(new.get("status"), "status");
    let list = status.child("conditions");
    let is_true = |conditions: &[Value], kind: &str| {
        conditions.iter().any(|c| c.text("type") == kind && c.text("status") == "True")
    };
    let ended: BTreeSet<&str> =
        ["Succeeded", "Failed"].into_iter().filter(|kind| is_true(list.list(), kind)).collect();
    if ended.len() > 1 {
        errors.push(list.invalid("Both success and failed conditions cannot be true at the same time"));
    }
    if !ended.is_empty() && is_true(list.list(), "Running") {
        errors.push(
            list.invalid("Running condition cannot be true when success or failed conditions are true"),
        );
    }
    for kind in ["Succeeded", "Failed"] {
        if is_true(old.items("status.conditions"), kind) && !ended.contains(kind) {
            let detail = format!("{kind} condition cannot be set to false once it is true");
            errors.push(list.invalid(&detail));
        }
    }
    let revision = status.child("resourceVersion");
    let old_revision = old.text("status.resourceVersion");
    if !old_revision.is_empty() && revision.text() != old_revision {
        errors.push(revision.invalid("field is immutable"));
    }
    if !revision.text().is_empty() && revision.text().parse::<u64>().is_err() {
        errors.push(revision.invalid("must be a resource version"));
    }
    errors
}
