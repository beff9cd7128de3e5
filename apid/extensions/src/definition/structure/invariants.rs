//! Rules for the parts of a schema outside junctors (`allOf`, `anyOf`, `oneOf`, `not`).

use apimachinery::field::FieldError;
use apimachinery::names::SchemaExtension;

use super::nested;
use crate::definition::props::{AdditionalProperties, Props};
use crate::definition::schema_path::{SchemaErrors, SchemaPath};

/// Position of a part: the root of the schema, the items of a list, or a field of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Root,
    Item,
    Field,
}

/// Validates a part and the parts below it.
pub(super) fn validate(
    schema: Props<'_>,
    level: Level,
    path: &SchemaPath<'_>,
    errors: &mut SchemaErrors<'_>,
) {
    if schema.ty() == "array" && schema.item_schema().is_none() {
        errors.require(&path.field("items"), "must be specified");
    }
    if let Some(items) = schema.item_schema() {
        validate(items, Level::Item, &path.field("items"), errors);
    }
    let properties = path.field("properties");
    for (name, property) in schema.schemas("properties") {
        validate(property, Level::Field, &properties.key(name), errors);
    }
    let additional_path = path.field("additionalProperties");
    let additional = schema.additional();
    if !matches!(additional, AdditionalProperties::Absent) && level == Level::Root {
        errors.forbid(&additional_path, "must not be used at the root");
    }
    if let AdditionalProperties::Schema(values) = additional {
        validate(values, Level::Field, &additional_path, errors);
    }
    validate_int_or_string(schema, path, errors);
    nested::validate_value_rules(schema, nested::skipped_any_of(schema), path, errors);
    validate_type(schema, level, path, errors);
    validate_object_metadata(schema, level, path, errors);
    let is_embedded = schema.has_extension(SchemaExtension::EmbeddedResource);
    let embedded = errors.extension(SchemaExtension::EmbeddedResource);
    if is_embedded && !matches!(additional, AdditionalProperties::Absent) {
        errors.forbid(&additional_path, &format!("must not be used if {embedded} is set"));
    }
    let preserves = schema.has_extension(SchemaExtension::PreserveUnknownFields);
    if is_embedded && !preserves && !schema.has_properties() {
        let preserve = errors.extension(SchemaExtension::PreserveUnknownFields);
        errors.require(&properties, &format!("must not be empty if {embedded} is true without {preserve}"));
    }
}

fn validate_int_or_string(schema: Props<'_>, path: &SchemaPath<'_>, errors: &mut SchemaErrors<'_>) {
    if !schema.has_extension(SchemaExtension::IntOrString) {
        return;
    }
    let detail = format!("must be false if {} is true", errors.extension(SchemaExtension::IntOrString));
    for other in [SchemaExtension::PreserveUnknownFields, SchemaExtension::EmbeddedResource] {
        if schema.has_extension(other) {
            let path = path.field(errors.extension(other));
            errors.add(&path, |path| FieldError::invalid(path, true, &detail));
        }
    }
}

fn validate_type(schema: Props<'_>, level: Level, path: &SchemaPath<'_>, errors: &mut SchemaErrors<'_>) {
    let path = path.field("type");
    let ty = schema.ty();
    let has_no_type = [SchemaExtension::IntOrString, SchemaExtension::PreserveUnknownFields];
    if schema.has_extension(SchemaExtension::EmbeddedResource) && ty != "object" {
        let embedded = errors.extension(SchemaExtension::EmbeddedResource);
        errors.require_text(&path, ty, &format!("must be object if {embedded} is true"));
    } else if ty.is_empty() && !has_no_type.iter().any(|extension| schema.has_extension(*extension)) {
        let detail = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        errors.require(&path, detail);
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        errors.add(&path, |path| FieldError::invalid(path, ty, "must be object at the root"));
    }
}

/// Validates the properties `kind`, `apiVersion` and `metadata` of the root and of embedded resources.
fn validate_object_metadata(
    schema: Props<'_>,
    level: Level,
    path: &SchemaPath<'_>,
    errors: &mut SchemaErrors<'_>,
) {
    let has_metadata = level == Level::Root || schema.has_extension(SchemaExtension::EmbeddedResource);
    let properties = path.field("properties");
    for (field, ty, detail) in [
        ("kind", "string", "must be string"),
        ("apiVersion", "string", "must be string"),
        ("metadata", "object", "must be object"),
    ] {
        if let Some(property) = schema.property(field).filter(|property| has_metadata && property.ty() != ty)
        {
            let path = properties.key(field);
            errors.add(&path.field("type"), |path| FieldError::invalid(path, property.ty(), detail));
        }
    }
    if level == Level::Root
        && let Some(metadata) = schema.property("metadata")
        && !restricts_only_names(metadata)
    {
        let detail = "must not specify anything other than name and generateName, but metadata is implicitly specified";
        errors.forbid(&properties.key("metadata"), detail);
    }
}

/// Whether a schema of `metadata` has no restriction except on `name` and `generateName`.
fn restricts_only_names(metadata: Props<'_>) -> bool {
    let is_free = |keyword: &str| matches!(keyword, "type" | "default" | "externalDocs" | "example");
    metadata.0.iter().all(|(keyword, value)| match keyword.as_str() {
        _ if value.is_null() => true,
        "properties" => {
            metadata.schemas("properties").all(|(name, _)| matches!(name, "name" | "generateName"))
        }
        keyword => is_free(keyword),
    })
}
