//! CustomResourceDefinition: a user-defined kind.
//!
//! # Contract
//!
//! The crate `extensions` implements the rules; the strategy in this file calls them during a write. A stored
//! definition contains the stored names of schema extensions, whatever the names preset of the server is; see
//! [`extensions::definition::keywords`].

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use extensions::definition::{self, Environment, keywords};

use crate::{
    BuiltInKind, Context, Generation, MetadataChecks, Revalidation, Strategy, Subresource, Translation,
    WriteRules, metadata,
};

const STATUS: &str = "status";

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["crd", "crds"],
    categories: &["api-extensions"],
    subresources: &[Subresource::status("CustomResourceDefinition")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        restricts_finalizers: false,
        generation: Generation::Counted(&[]),
        unconditional_update: false,
        // `validate_update` applies all rules, and tolerates violations that the stored definition contains
        // already.
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    strategy: &CustomResourceDefinition,
    ..BuiltInKind::cluster_scoped("apiextensions/v1.CustomResourceDefinition", "customresourcedefinitions")
};

struct CustomResourceDefinition;

impl Strategy for CustomResourceDefinition {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        definition::set_defaults(object);
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        definition::record_stored_version(object);
    }

    fn prepare_update(&self, new: &mut Object, _old: &Object, ctx: &Context<'_>) {
        if ctx.subresource != STATUS {
            definition::record_stored_version(new);
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        definition::validate_create(object, environment(ctx))
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        if ctx.subresource == STATUS {
            return definition::validate_status_update(new);
        }
        definition::validate_update(new, old, environment(ctx))
    }

    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        match ctx.subresource {
            STATUS => Vec::new(),
            _ => definition::warnings(new, old),
        }
    }

    fn translation(&self, names: &Names) -> Option<&dyn Translation> {
        keywords::are_translated(names).then_some(self)
    }

    fn begin_deletion(&self, object: &mut Object) {
        definition::conditions::begin_deletion(object);
    }

    /// Returns the finalizer that keeps a definition until all objects of its kind are deleted.
    fn deletion_finalizer(&self, names: &Names) -> Option<String> {
        Some(definition::conditions::cleanup_finalizer(names))
    }
}

impl Translation for CustomResourceDefinition {
    fn translate_request(&self, object: &mut Object, names: &Names) {
        keywords::to_stored(object, names);
    }

    fn translate_response(&self, object: &mut Object, names: &Names) {
        keywords::to_served(object, names);
    }

    fn translate_message(&self, message: &str, names: &Names) -> String {
        keywords::to_served_text(message, names)
    }
}

/// Names preset and metadata validation, which the checks of schema defaults and expressions need.
fn environment<'a>(ctx: &Context<'a>) -> Environment<'a> {
    Environment { names: ctx.names, metadata: &metadata::validate_embedded }
}
