//! Rules for the keywords that only restrict values: junctors (`allOf`, `anyOf`, `oneOf`, `not`) and
//! `pattern`.

use apimachinery::field::FieldError;
use apimachinery::names::SchemaExtension;
use apimachinery::object::Value;

use crate::definition::props::Props;
use crate::definition::schema_path::{SchemaErrors, SchemaPath};

/// The `anyOf` of an integer-or-string schema. It may name types, so the rules for junctors skip it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SkippedAnyOf {
    None,
    /// `anyOf` of the schema itself.
    Own,
    /// `anyOf` of the first schema in `allOf`.
    InFirstAllOf,
}

/// The `anyOf` of a schema that the rules skip.
pub(super) fn skipped_any_of(schema: Props<'_>) -> SkippedAnyOf {
    if selects_integer_or_string(schema) {
        SkippedAnyOf::Own
    } else if schema.branches("allOf").next().is_some_and(selects_integer_or_string) {
        SkippedAnyOf::InFirstAllOf
    } else {
        SkippedAnyOf::None
    }
}

/// Whether `anyOf` is exactly the type integer and the type string.
fn selects_integer_or_string(schema: Props<'_>) -> bool {
    let is_only_type = |value: &Value, ty: &str| {
        Props::from_value(value).is_some_and(|branch| {
            branch.ty() == ty
                && branch
                    .0
                    .keys()
                    .all(|keyword| matches!(keyword.as_str(), "type" | "externalDocs" | "example"))
        })
    };
    matches!(schema.list("anyOf"), [integer, string]
        if is_only_type(integer, "integer") && is_only_type(string, "string"))
}

/// Validates the junctors and the pattern of a schema.
pub(super) fn validate_value_rules(
    schema: Props<'_>,
    skipped: SkippedAnyOf,
    path: &SchemaPath<'_>,
    errors: &mut SchemaErrors<'_>,
) {
    for junctor in ["anyOf", "allOf", "oneOf"] {
        if junctor == "anyOf" && skipped == SkippedAnyOf::Own {
            continue;
        }
        let junctor_path = path.field(junctor);
        for (index, branch) in schema.branches(junctor).enumerate() {
            let is_skipped = junctor == "allOf" && index == 0 && skipped == SkippedAnyOf::InFirstAllOf;
            let skipped = if is_skipped { SkippedAnyOf::Own } else { SkippedAnyOf::None };
            validate_branch(branch, skipped, &junctor_path.index(index), errors);
        }
    }
    if let Some(not) = schema.schema("not") {
        validate_branch(not, SkippedAnyOf::None, &path.field("not"), errors);
    }
    let text = schema.text("pattern");
    if !text.is_empty()
        && let Err(reason) = expressions::check_pattern(text)
    {
        let detail = format!("must be a valid regular expression, but isn't: {reason}");
        errors.add(&path.field("pattern"), |path| FieldError::invalid(path, text, &detail));
    }
}

/// Validates a schema inside a junctor.
fn validate_branch(
    schema: Props<'_>,
    skipped: SkippedAnyOf,
    path: &SchemaPath<'_>,
    errors: &mut SchemaErrors<'_>,
) {
    const EMPTY: &str = "must be empty to be structural";
    const UNDEFINED: &str = "must be undefined to be structural";
    const FALSE: &str = "must be false to be structural";

    validate_value_rules(schema, skipped, path, errors);
    if let Some(items) = schema.item_schema() {
        validate_branch(items, SkippedAnyOf::None, &path.field("items"), errors);
    }
    let properties = path.field("properties");
    for (name, property) in schema.schemas("properties") {
        validate_branch(property, SkippedAnyOf::None, &properties.key(name), errors);
    }
    let names = errors.names;
    let mut forbid = |keyword: &str, detail: &str| errors.forbid(&path.field(keyword), detail);
    for keyword in ["type", "title", "description"] {
        if !schema.text(keyword).is_empty() {
            forbid(keyword, EMPTY);
        }
    }
    for keyword in ["additionalProperties", "default"] {
        if schema.get(keyword).is_some() {
            forbid(keyword, UNDEFINED);
        }
    }
    if schema.flag("nullable") {
        forbid("nullable", FALSE);
    }
    for extension in [
        SchemaExtension::PreserveUnknownFields,
        SchemaExtension::EmbeddedResource,
        SchemaExtension::IntOrString,
    ] {
        if schema.has_extension(extension) {
            forbid(names.schema_extension(extension), FALSE);
        }
    }
    for extension in [SchemaExtension::ListType, SchemaExtension::MapType] {
        if schema.extension(extension).is_some() {
            forbid(names.schema_extension(extension), UNDEFINED);
        }
    }
    for extension in [SchemaExtension::ListMapKeys, SchemaExtension::Validations] {
        if !schema.extension_list(extension).is_empty() {
            forbid(names.schema_extension(extension), EMPTY);
        }
    }
    if schema.property("metadata").is_some() {
        errors.forbid(&properties.key("metadata"), "must not be specified in a nested context");
    }
}
