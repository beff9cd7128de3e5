//! Checks that need a compiled schema.

use apimachinery::field::{FieldErrors, FieldPath, aggregate};
use apimachinery::object::{Map, Object, Value};
use schema::TypeError;

use super::props::Props;
use crate::structural::StoredRules;

/// A part of a schema.
#[derive(Clone, Copy, Debug)]
pub struct SchemaPart<'a> {
    /// The part, with the stored names of schema extensions.
    pub schema: &'a Map<String, Value>,
    /// Whether the part is the root of a schema: it describes an object with `apiVersion`, `kind` and
    /// `metadata`.
    pub is_resource: bool,
}

impl<'a> SchemaPart<'a> {
    /// A part below the root.
    pub(super) fn of_field(schema: Props<'a>) -> Self {
        SchemaPart { schema: schema.0, is_resource: false }
    }
}

/// The error of an object whose type or metadata is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidMetadata {
    /// A metadata field has a wrong type.
    #[error(transparent)]
    Type(#[from] TypeError),
    /// Metadata fields have invalid values.
    #[error("{}", aggregate(.0))]
    Fields(FieldErrors),
}

/// Checks that need a compiled schema. The schema is structural.
pub trait SchemaChecks {
    /// Whether pruning drops a field of a value.
    fn has_unknown_fields(&self, part: SchemaPart<'_>, value: &Value) -> bool;

    /// Validates a value, with the metadata of embedded objects and with validation rules.
    fn validate_value(&self, part: SchemaPart<'_>, value: &Value, path: &FieldPath) -> FieldErrors;

    /// Checks the type and metadata of an object under the schema of an embedded object.
    ///
    /// # Errors
    ///
    /// See [`InvalidMetadata`].
    fn check_metadata(&self, embedded: &Map<String, Value>, object: Object) -> Result<(), InvalidMetadata>;

    /// Collects the expressions of a stored schema.
    fn stored_rules(&self, schema: &Map<String, Value>) -> StoredRules;

    /// Validates the expressions of a schema, with their cost estimates. The `stored` expressions may use
    /// functions of newer releases. The expressions of skipped parts are not validated.
    fn validate_expressions(
        &self,
        schema: &Map<String, Value>,
        stored: &StoredRules,
        path: &FieldPath,
        is_skipped: &dyn Fn(&FieldPath) -> bool,
    ) -> FieldErrors;

    /// Whether validation checks texts of a format.
    fn is_known_format(&self, format: &str) -> bool;
}
