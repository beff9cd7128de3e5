//! Namespace: a scope of object names. Its deletion deletes the objects in it.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::{AGE, NAME};
use crate::{
    BuiltInKind, Column, Context, MetadataChecks, NameRule, Revalidation, Strategy, Subresource, Verb,
    WriteRules, metadata, status,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["ns"],
    verbs: &[Verb::Create, Verb::Delete, Verb::Get, Verb::List, Verb::Patch, Verb::Update, Verb::Watch],
    subresources: &[
        Subresource::new("finalize", &[Verb::Update], "Namespace"),
        Subresource::status("Namespace"),
    ],
    rules: WriteRules {
        metadata_checks: MetadataChecks::full(Revalidation::MainResource),
        name_rule: NameRule::Label,
        revalidation: Revalidation::MainResource,
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["status.phase"],
    columns: &[
        NAME,
        Column::text("Status", "Phase of the namespace: Active or Terminating.").text_at("status.phase"),
        AGE,
    ],
    strategy: &Namespace,
    ..BuiltInKind::cluster_scoped("core/v1.Namespace", "namespaces")
};

const ACTIVE: &str = "Active";
const TERMINATING: &str = "Terminating";

struct Namespace;

impl Strategy for Namespace {
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        label_with_name(object, ctx);
        let status = object.part_mut("status");
        if status.get("phase").and_then(Value::as_str).unwrap_or("").is_empty() {
            status.insert("phase".to_owned(), ACTIVE.into());
        }
    }

    fn prepare_create(&self, object: &mut Object, ctx: &Context<'_>) {
        object.set("status", json!({ "phase": ACTIVE }));
        let spec = object.part_mut("spec");
        let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
        if let Value::Array(finalizers) = finalizers
            && !finalizers.iter().any(|f| f == ctx.names.api_service)
        {
            finalizers.push(ctx.names.api_service.into());
        }
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        let restored_fields: &[&str] = match ctx.subresource {
            "status" => &["spec"],
            "finalize" => &["status"],
            _ => &["spec", "status"],
        };
        for field in restored_fields {
            status::restore_field(new, old, field);
        }
    }

    fn canonicalize(&self, object: &mut Object, ctx: &Context<'_>) {
        label_with_name(object, ctx);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let path = FieldPath::new("spec.finalizers");
        validate_finalizers(object, |_| path.clone(), ctx)
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        let path = FieldPath::new("spec.finalizers");
        match ctx.subresource {
            "status" => validate_phase(new).into_iter().collect(),
            "finalize" => validate_finalizers(new, |i| path.index(i), ctx),
            _ => FieldErrors::new(),
        }
    }

    fn has_pending_finalizers(&self, object: &Object) -> bool {
        finalizers(object).next().is_some()
    }

    fn begin_deletion(&self, object: &mut Object) {
        object.remove_meta("deletionGracePeriodSeconds");
        object.part_mut("status").insert("phase".to_owned(), TERMINATING.into());
    }
}

fn finalizers(object: &Object) -> impl Iterator<Item = &str> {
    let list = object.at(&["spec", "finalizers"]).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// Sets the label with the namespace name, which selectors use.
/// A namespace with `generateName` gets the label later, when its name is known.
fn label_with_name(object: &mut Object, ctx: &Context<'_>) {
    let name = object.name().to_owned();
    if name.is_empty() {
        return;
    }
    let labels = object.meta_mut().entry("labels").or_insert_with(|| json!({}));
    if let Value::Object(labels) = labels {
        labels.insert(ctx.names.metadata_name_label(), name.into());
    }
}

fn validate_finalizers(object: &Object, path: impl Fn(usize) -> FieldPath, ctx: &Context<'_>) -> FieldErrors {
    let standard = metadata::standard_finalizers(ctx.names);
    let check = |(i, name)| metadata::validate_finalizer_name(name, &path(i), standard);
    finalizers(object).enumerate().map(check).collect()
}

/// Validates that the phase matches the deletion timestamp.
fn validate_phase(object: &Object) -> Option<FieldError> {
    let phase = object.str_at(&["status", "phase"]).unwrap_or("");
    let (expected, detail) = if object.is_terminating() {
        (TERMINATING, "may only be 'Terminating' if `deletionTimestamp` is not empty")
    } else {
        (ACTIVE, "may only be 'Active' if `deletionTimestamp` is empty")
    };
    (phase != expected).then(|| FieldError::invalid(&FieldPath::new("status.Phase"), phase, detail))
}
