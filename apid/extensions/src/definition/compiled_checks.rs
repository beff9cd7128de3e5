//! Checks of defaults and expressions with compiled schemas.

use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};

use super::checks::{InvalidMetadata, SchemaChecks, SchemaPart};
use crate::structural::{MetadataRules, Schema, StoredRules, is_supported_format};

/// The checks of a CRD that need its compiled schemas.
#[derive(Clone, Copy)]
pub struct CompiledChecks<'a> {
    /// Names of the preset.
    pub names: &'a Names,
    /// Rules for the metadata of embedded objects.
    pub metadata: MetadataRules<'a>,
}

impl CompiledChecks<'_> {
    fn compile(&self, part: SchemaPart<'_>) -> Option<Schema> {
        let value = Value::Object(part.schema.clone());
        let compile = if part.is_resource { Schema::compile } else { Schema::part };
        compile(&value).ok()
    }
}

impl SchemaChecks for CompiledChecks<'_> {
    fn has_unknown_fields(&self, part: SchemaPart<'_>, value: &Value) -> bool {
        let mut pruned = value.clone();
        self.compile(part).is_some_and(|schema| {
            schema.prune_value(&mut pruned);
            pruned != *value
        })
    }

    fn validate_value(&self, part: SchemaPart<'_>, value: &Value, path: &FieldPath) -> FieldErrors {
        self.compile(part)
            .map(|schema| schema.validate_value(value, path, self.metadata).errors)
            .unwrap_or_default()
    }

    fn check_metadata(&self, embedded: &Map<String, Value>, object: Object) -> Result<(), InvalidMetadata> {
        let part = SchemaPart { schema: embedded, is_resource: true };
        let Some(schema) = self.compile(part) else { return Ok(()) };
        let mut object = object;
        schema.conform(&mut object)?;
        let Some(metadata) = object.meta() else { return Ok(()) };
        let errors = (self.metadata)(metadata, &FieldPath::new("metadata"));
        if errors.is_empty() { Ok(()) } else { Err(InvalidMetadata::Fields(errors)) }
    }

    fn stored_rules(&self, schema: &Map<String, Value>) -> StoredRules {
        let compiled = self.compile(SchemaPart { schema, is_resource: true });
        compiled.map(|schema| schema.stored_rules()).unwrap_or_default()
    }

    fn validate_expressions(
        &self,
        schema: &Map<String, Value>,
        stored: &StoredRules,
        path: &FieldPath,
        is_skipped: &dyn Fn(&FieldPath) -> bool,
    ) -> FieldErrors {
        let compiled = self.compile(SchemaPart { schema, is_resource: true });
        compiled.map(|schema| schema.check_rules(path, stored, self.names, is_skipped)).unwrap_or_default()
    }

    fn is_known_format(&self, format: &str) -> bool {
        is_supported_format(format)
    }
}
