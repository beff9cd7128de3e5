//! Rules of custom kinds, which follow from the schema of the version.

use std::collections::BTreeSet;
use std::sync::Arc;

use apimachinery::field::{FieldErrors, quote};
use apimachinery::object::Object;
use extensions::structural::Validation;

use super::{CustomSchema, ScalePaths};
use crate::{Context, Strategy, format, metadata};

/// Rules of a custom kind in one version.
pub struct CustomStrategy {
    schema: Arc<CustomSchema>,
    /// Paths of the subresource `scale`, if the version has it.
    scale: Option<ScalePaths>,
}

impl CustomStrategy {
    /// The rules of a schema, and of the values at the paths of the subresource `scale`.
    pub fn new(schema: Arc<CustomSchema>, scale: Option<ScalePaths>) -> Self {
        CustomStrategy { schema, scale }
    }

    /// The errors of the values for the subresource `scale`. A write to the status changes only those of the status.
    fn validate_scale(&self, object: &Object, subresource: &str) -> FieldErrors {
        let mut errors = FieldErrors::new();
        if let Some(scale) = &self.scale {
            if subresource != "status" {
                errors.extend(scale.validate_spec(object));
            }
            errors.extend(scale.validate_status(object));
        }
        errors
    }
}

impl Strategy for CustomStrategy {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        self.schema.default(object);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        self.schema.validate(object, None, self.validate_scale(object, ctx.subresource)).errors
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        let of_scale = self.validate_scale(new, ctx.subresource);
        let Validation { mut errors, warnings } = match ctx.subresource {
            "status" => self.schema.validate_status(new, old, of_scale),
            _ => self.schema.validate(new, Some(old), of_scale),
        };
        warnings.into_iter().for_each(|text| errors.tolerate(text));
        errors
    }

    /// Warns about new finalizers without a domain and a path.
    fn warnings(&self, new: &Object, old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let known: BTreeSet<&str> = old.into_iter().flat_map(Object::finalizers).collect();
        let added: BTreeSet<&str> = new.finalizers().filter(|name| !known.contains(name)).collect();
        let standard = metadata::standard_finalizers(ctx.names);
        let mut warnings = Vec::new();
        for name in added {
            let quoted = quote(name);
            let reasons = format::qualified_name(name);
            warnings.extend(reasons.iter().map(|reason| format!("metadata.finalizers: {quoted}: {reason}")));
            if !name.contains('/') && !standard.contains(&name) {
                warnings.push(format!(
                    "metadata.finalizers: {quoted}: prefer a domain-qualified finalizer name including a path (/) to \
                     avoid accidental conflicts with other finalizer writers"
                ));
            }
        }
        warnings
    }
}
