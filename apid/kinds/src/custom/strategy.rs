//! Rules of custom kinds, which follow from the schema of the version.

use std::sync::Arc;

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use extensions::structural::Validation;

use super::CustomSchema;
use crate::{Context, Strategy};

/// Rules of a custom kind in one version.
pub struct CustomStrategy {
    schema: Arc<CustomSchema>,
}

impl CustomStrategy {
    /// The rules of a schema.
    pub fn new(schema: Arc<CustomSchema>) -> Self {
        CustomStrategy { schema }
    }
}

impl Strategy for CustomStrategy {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        self.schema.default(object);
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        self.schema.validate(object, None).errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let Validation { mut errors, warnings } = self.schema.validate(new, Some(old));
        warnings.into_iter().for_each(|text| errors.tolerate(text));
        errors
    }
}
