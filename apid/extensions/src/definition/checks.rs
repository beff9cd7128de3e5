//! Compilation of schemas, for the rules about defaults and expressions.

use apimachinery::names::Names;
use apimachinery::object::Value;

use super::props::Props;
use crate::structural::{MetadataRules, Schema};

/// Environment of the validation.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    /// Names of the preset.
    pub names: &'a Names,
    /// Rules for the metadata of embedded objects.
    pub metadata: MetadataRules<'a>,
}

/// Compiles a part of a structural schema, or a schema that describes an object with `apiVersion`, `kind` and
/// `metadata`. None if the schema is too deep.
pub(super) fn compile(schema: Props<'_>, is_resource: bool) -> Option<Schema> {
    let value = Value::Object(schema.0.clone());
    let compile = if is_resource { Schema::compile } else { Schema::part };
    compile(&value).ok()
}

/// Whether pruning drops a field of a value.
pub(super) fn has_unknown_fields(schema: &Schema, value: &Value) -> bool {
    let mut pruned = value.clone();
    schema.prune_value(&mut pruned);
    pruned != *value
}
