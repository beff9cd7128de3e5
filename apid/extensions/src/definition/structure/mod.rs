//! Rules of structural schemas.
//!
//! # Contract
//!
//! A structural schema describes each field once, outside `allOf`, `anyOf`, `oneOf` and `not`. These junctors
//! only restrict values. [`find_unsupported`] finds keywords that no structural schema can have;
//! [`validate_structure`] reports the violated rules, sorted by their messages as in kube-apiserver.
//!
//! # Invariants
//!
//! INVARIANT (bounded work): each walk visits a part of the schema at most once.

mod completeness;
mod invariants;
mod nested;
mod unsupported;

use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::names::Names;

pub(super) use unsupported::find_unsupported;

use super::props::Props;
use super::schema_path::{SchemaErrors, SchemaPath};

/// Validates the structure of a schema without unsupported keywords.
pub(super) fn validate_structure(schema: Props<'_>, names: &Names, path: &FieldPath) -> FieldErrors {
    let root = SchemaPath::root(path);
    let mut errors = SchemaErrors::new(names);
    invariants::validate(schema, invariants::Level::Root, &root, &mut errors);
    completeness::validate(schema, &root, &mut errors);
    sort(errors.errors)
}

/// Sorts the kept errors by their messages.
fn sort(errors: FieldErrors) -> FieldErrors {
    let mut kept: Vec<_> = errors.iter().map(|error| (error.to_string(), error.clone())).collect();
    kept.sort_by(|(a, _), (b, _)| a.cmp(b));
    let more = errors.len() - kept.len();
    let last = kept.last().map(|(_, error)| error.clone());
    let mut sorted: FieldErrors = kept.into_iter().map(|(_, error)| error).collect();
    sorted.extend(last.into_iter().cycle().take(more));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(schema: Value, expected: &[&str]) {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let errors = validate_structure(Props::from_value(&schema).unwrap(), &names, &FieldPath::new("s"));
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{schema}");
    }

    fn schema_with(property: Value) -> Value {
        json!({"type": "object", "properties": {"x": property}})
    }

    #[test]
    fn every_part_needs_a_type() {
        check(json!({}), &["s.type: Required value: must not be empty at the root"]);
        check(
            json!({"type": "array", "items": {"type": "string"}}),
            &["s.type: Invalid value: \"array\": must be object at the root"],
        );
        check(
            schema_with(json!({})),
            &["s.properties[x].type: Required value: must not be empty for specified object fields"],
        );
        check(
            schema_with(json!({"type": "array"})),
            &["s.properties[x].items: Required value: must be specified"],
        );
        check(
            schema_with(json!({"type": "array", "items": {}})),
            &["s.properties[x].items.type: Required value: must not be empty for specified array items"],
        );
        check(
            schema_with(json!({"type": "object", "additionalProperties": {}})),
            &[
                "s.properties[x].additionalProperties.type: Required value: must not be empty for specified object fields",
            ],
        );
        check(
            json!({"type": "object", "additionalProperties": true}),
            &["s.additionalProperties: Forbidden: must not be used at the root"],
        );
        check(schema_with(json!({"x-kubernetes-preserve-unknown-fields": true})), &[]);
    }

    #[test]
    fn int_or_string_allows_two_patterns_of_types() {
        let types = json!([{"type": "integer"}, {"type": "string"}]);
        check(schema_with(json!({"x-kubernetes-int-or-string": true, "anyOf": types})), &[]);
        check(
            schema_with(
                json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": types}, {"minimum": 1}]}),
            ),
            &[],
        );
        check(
            schema_with(
                json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "string"}, {"type": "integer"}]}),
            ),
            &[
                "s.properties[x].anyOf[0].type: Forbidden: must be empty to be structural",
                "s.properties[x].anyOf[1].type: Forbidden: must be empty to be structural",
            ],
        );
        check(
            schema_with(
                json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true}),
            ),
            &[
                "s.properties[x].x-kubernetes-preserve-unknown-fields: Invalid value: true: must be false if x-kubernetes-int-or-string is true",
            ],
        );
    }

    #[test]
    fn junctors_only_restrict_values() {
        check(
            schema_with(json!({"type": "string", "anyOf": [{
                "type": "string", "title": "t", "description": "d", "default": 1, "nullable": true,
                "additionalProperties": {}, "x-kubernetes-list-type": "set", "x-kubernetes-validations": [{"rule": "true"}],
                "x-kubernetes-list-map-keys": ["a"], "x-kubernetes-map-type": "atomic",
            }]})),
            &[
                "s.properties[x].anyOf[0].additionalProperties: Forbidden: must be undefined to be structural",
                "s.properties[x].anyOf[0].default: Forbidden: must be undefined to be structural",
                "s.properties[x].anyOf[0].description: Forbidden: must be empty to be structural",
                "s.properties[x].anyOf[0].nullable: Forbidden: must be false to be structural",
                "s.properties[x].anyOf[0].title: Forbidden: must be empty to be structural",
                "s.properties[x].anyOf[0].type: Forbidden: must be empty to be structural",
                "s.properties[x].anyOf[0].x-kubernetes-list-map-keys: Forbidden: must be empty to be structural",
                "s.properties[x].anyOf[0].x-kubernetes-list-type: Forbidden: must be undefined to be structural",
                "s.properties[x].anyOf[0].x-kubernetes-map-type: Forbidden: must be undefined to be structural",
                "s.properties[x].anyOf[0].x-kubernetes-validations: Forbidden: must be empty to be structural",
            ],
        );
        check(
            json!({"type": "object", "not": {"properties": {"metadata": {}}}}),
            &[
                "s.not.properties[metadata]: Forbidden: must not be specified in a nested context",
                "s.properties[metadata]: Required value: because it is defined in s.not.properties[metadata]",
            ],
        );
        let nested = json!({"type": "object", "properties": {"a": {"type": "object"}}, "allOf": [{"properties": {"a": {"properties": {"b": {"minLength": 1}}}}}]});
        check(
            nested,
            &[
                "s.properties[a].properties[b]: Required value: because it is defined in s.allOf[0].properties[a].properties[b]",
            ],
        );
    }

    #[test]
    fn metadata_restricts_only_names() {
        let metadata = |metadata: Value| json!({"type": "object", "properties": {"metadata": metadata}});
        let names = json!({"name": {"type": "string", "maxLength": 9}, "generateName": {"type": "string"}});
        check(metadata(json!({"type": "object", "properties": names})), &[]);
        check(
            metadata(json!({"type": "string"})),
            &["s.properties[metadata].type: Invalid value: \"string\": must be object"],
        );
        let other = "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified";
        check(metadata(json!({"type": "object", "properties": {"labels": {"type": "object"}}})), &[other]);
        check(metadata(json!({"type": "object", "description": "d"})), &[other]);
        check(
            json!({"type": "object", "properties": {"kind": {"type": "integer"}}}),
            &["s.properties[kind].type: Invalid value: \"integer\": must be string"],
        );
    }

    #[test]
    fn embedded_resources_are_objects_with_properties() {
        check(
            schema_with(
                json!({"x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            ),
            &[
                "s.properties[x].type: Required value: must be object if x-kubernetes-embedded-resource is true",
            ],
        );
        check(
            schema_with(
                json!({"type": "object", "x-kubernetes-embedded-resource": true, "additionalProperties": true}),
            ),
            &[
                "s.properties[x].additionalProperties: Forbidden: must not be used if x-kubernetes-embedded-resource is set",
                "s.properties[x].properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
            ],
        );
    }

    #[test]
    fn sorted_errors_keep_their_number() {
        let properties: serde_json::Map<String, Value> =
            (0..300).map(|i| (format!("p{i}"), json!({}))).collect();
        let schema = json!({"type": "object", "properties": properties});
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let errors = validate_structure(Props::from_value(&schema).unwrap(), &names, &FieldPath::new("s"));
        assert_eq!((errors.len(), errors.iter().count()), (300, 100));
    }
}
