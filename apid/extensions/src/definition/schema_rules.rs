//! Rules for one `openAPIV3Schema`.
//!
//! # Contract
//!
//! [`validate_schema`] reports the errors in the order of kube-apiserver: keywords at the root, structure,
//! defaults, parts, then expressions. Defaults are validated only in a structural schema, and expressions
//! only in a schema with valid defaults.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::SchemaExtension;
use apimachinery::object::Value;
use schema::InternalForm;

use super::checks::Environment;
use super::default_values::validate_defaults;
use super::expressions::{OldSchemas, validate_expressions};
use super::properties::validate_properties;
use super::props::Props;
use super::structure::{find_unsupported, validate_structure};
use super::update::Tolerance;

/// Keywords at the root of a schema with the subresource `status`, by their names in kube-apiserver.
const ROOT_FIELDS: &str = "Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations";

/// Keywords before `type` in the order of kube-apiserver, forbidden at the root with `status`.
const FORBIDDEN_BEFORE_TYPE: [&str; 3] = ["id", "$schema", "$ref"];

/// Further keywords that are forbidden at the root with `status`.
const FORBIDDEN_AFTER_TYPE: [&str; 14] = [
    "nullable",
    "default",
    "enum",
    "maxProperties",
    "minProperties",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "additionalProperties",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
];

/// Schema extensions that are forbidden at the root with `status`.
const FORBIDDEN_EXTENSIONS: [SchemaExtension; 5] = [
    SchemaExtension::EmbeddedResource,
    SchemaExtension::IntOrString,
    SchemaExtension::ListMapKeys,
    SchemaExtension::ListType,
    SchemaExtension::MapType,
];

/// Environment of the rules for schemas.
#[derive(Clone, Copy)]
pub(super) struct SchemaRules<'a> {
    pub(super) environment: Environment<'a>,
    pub(super) tolerance: &'a Tolerance,
    pub(super) old: &'a OldSchemas<'a>,
}

/// Validates a schema. `path` is the path of the field that has `openAPIV3Schema`.
pub(super) fn validate_schema(
    schema: Props<'_>,
    has_status: bool,
    rules: SchemaRules<'_>,
    path: &FieldPath,
) -> FieldErrors {
    let SchemaRules { environment, tolerance, old } = rules;
    let names = environment.names;
    let path = path.child("openAPIV3Schema");
    let mut errors = FieldErrors::new();
    if has_status {
        errors.extend(validate_root(schema, &path));
    }
    if schema.flag("nullable") {
        errors.push(FieldError::forbidden(&path.child("nullable"), "nullable cannot be true at the root"));
    }
    let mut unsupported_keyword = None;
    // Expressions need a structural schema with valid defaults.
    let mut validates_expressions = false;
    if tolerance.requires_structure {
        unsupported_keyword = find_unsupported(schema, names);
        if unsupported_keyword.is_none() {
            let mut found = validate_structure(schema, names, &path);
            if found.is_empty() {
                found = validate_defaults(schema, tolerance.requires_pruned_defaults, environment, &path);
                validates_expressions = found.is_empty();
            }
            errors.extend(found);
        }
    }
    let properties = validate_properties(schema, names, tolerance, &path);
    let expressions =
        validates_expressions.then(|| validate_expressions(schema, old, &properties, environment, &path));
    errors.extend(properties);
    errors.extend(expressions.unwrap_or_default());
    if errors.is_empty() {
        errors.extend(unsupported_keyword.map(|message| FieldError::invalid(&path, "", &message)));
    }
    errors
}

/// Validates the keywords at the root of a schema with the subresource `status`.
fn validate_root(schema: Props<'_>, path: &FieldPath) -> Option<FieldError> {
    // A false flag counts as absent, but `additionalProperties: false` is a restriction.
    let is_flag = |keyword: &str| keyword == "nullable" || keyword.starts_with("x-");
    let has = |keyword: &&str| match schema.get(keyword) {
        Some(Value::Bool(is_set)) => *is_set || !is_flag(keyword),
        value => value.is_some(),
    };
    let is_forbidden = |keywords: &[&str]| keywords.iter().any(&has);
    let forbidden = || {
        let detail = format!(
            "only [{ROOT_FIELDS}] fields are allowed at the root of the schema if the status subresource is enabled"
        );
        let value = Value::Object(schema.0.clone());
        let schema = InternalForm::new(Some(&value), "apiextensions/v1.JSONSchemaProps");
        Some(FieldError::invalid_collection(path, &schema, &detail))
    };
    if is_forbidden(&FORBIDDEN_BEFORE_TYPE) {
        return forbidden();
    }
    if !matches!(schema.ty(), "" | "object") {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return Some(FieldError::invalid(&path.child("type"), schema.ty(), detail));
    }
    let has_extension = FORBIDDEN_EXTENSIONS.iter().any(|extension| has(&extension.stored_name()));
    if is_forbidden(&FORBIDDEN_AFTER_TYPE) || has_extension { forbidden() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn root_with_status_has_few_keywords() {
        for (schema, field) in [
            (json!({"type": "object", "properties": {}, "required": ["a"], "title": "t"}), None),
            (json!({"properties": {}}), None),
            (json!({"type": "string", "default": 1}), Some("s.type")),
            (json!({"type": "string", "$ref": ""}), Some("s")),
            (json!({"type": "object", "minProperties": 0}), Some("s")),
            (json!({"type": "object", "x-kubernetes-map-type": "atomic"}), Some("s")),
            (json!({"type": "object", "nullable": false}), None),
            (json!({"type": "object", "additionalProperties": false}), Some("s")),
        ] {
            let error = validate_root(Props::from_value(&schema).unwrap(), &FieldPath::new("s"));
            assert_eq!(error.as_ref().map(|error| error.path.as_str()), field, "{schema}");
        }
    }
}
