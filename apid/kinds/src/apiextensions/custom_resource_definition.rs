//! CustomResourceDefinition: a user-defined kind.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use extensions::definition;

use crate::{
    Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, StatusWrites, Storage, Strategy, Subresource,
};

pub(super) const KIND: Kind = Kind {
    group: "apiextensions",
    versions: &["v1"],
    kind: "CustomResourceDefinition",
    resource: "customresourcedefinitions",
    singular: "customresourcedefinition",
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("CustomResourceDefinition")],
    schema: "apiextensions/v1.CustomResourceDefinition",
    strategy: &CustomResourceDefinition,
};

struct CustomResourceDefinition;

impl Strategy for CustomResourceDefinition {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn status_writes(&self) -> StatusWrites {
        StatusWrites::StatusOnly
    }

    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        definition::set_defaults(object);
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        definition::record_stored_version(object);
    }

    fn prepare_update(&self, new: &mut Object, _old: &Object, ctx: &Context<'_>) {
        if ctx.subresource != "status" {
            definition::record_stored_version(new);
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        definition::validate_create(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => definition::validate_status_update(new),
            _ => definition::validate_update(new, old, ctx.names),
        }
    }

    fn revalidates(&self, _subresource: &str) -> bool {
        false
    }

    /// All objects of the kind are deleted before their definition.
    fn deletion_finalizer(&self, names: &Names) -> Option<String> {
        Some(definition::conditions::cleanup_finalizer(names))
    }
}
