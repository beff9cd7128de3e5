//! Rules for each part of a schema, as JSONSchemaProps.
//!
//! # Contract
//!
//! [`validate_properties`] visits all parts in the order of kube-apiserver: a part, then its descendants,
//! then the rules for list types, map types and validation rules of the part.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::{Names, SchemaExtension};
use apimachinery::object::Value;

use super::list_types::{validate_list_types, validate_map_list};
use super::props::{AdditionalProperties, Items, Props, TYPES};
use super::schema_path::{SchemaErrors, SchemaPath};
use super::update::Tolerance;
use super::validation_rules::validate_rules;

/// Properties that a part of a schema inherits from the parts above it.
#[derive(Clone, Copy, Debug, Default)]
struct Inherited<'a> {
    /// The reason why defaults are forbidden; None where they are allowed.
    default_ban: Option<DefaultBan<'a>>,
    /// Whether the part describes `apiVersion`, `kind` or `metadata`.
    is_in_metadata: bool,
}

#[derive(Clone, Copy, Debug)]
enum DefaultBan<'a> {
    TopLevel(&'a str),
    MetadataValues,
}

/// Validates a schema and its parts.
pub(super) fn validate_properties(
    schema: Props<'_>,
    names: &Names,
    tolerance: &Tolerance,
    path: &FieldPath,
) -> FieldErrors {
    let mut walk = PropertiesWalk { tolerance, errors: SchemaErrors::new(names) };
    walk.visit(schema, &SchemaPath::root(path), Inherited::default(), true);
    walk.errors.errors
}

struct PropertiesWalk<'a> {
    tolerance: &'a Tolerance,
    errors: SchemaErrors<'a>,
}

impl PropertiesWalk<'_> {
    fn visit(&mut self, schema: Props<'_>, path: &SchemaPath<'_>, inherited: Inherited<'_>, is_root: bool) {
        self.validate_keywords(schema, path, inherited);
        self.visit_additional(schema, path, inherited);
        self.visit_properties(schema, path, inherited, is_root);
        if let Some(not) = schema.schema("not") {
            self.visit(not, &path.field("not"), inherited, false);
        }
        for junctor in super::props::JUNCTORS {
            let junctor_path = path.field(junctor);
            for (index, branch) in schema.branches(junctor).enumerate() {
                self.visit(branch, &junctor_path.index(index), inherited, false);
            }
        }
        self.visit_map(schema, "definitions", path, inherited);
        let items_path = path.field("items");
        match schema.items() {
            Items::Absent => {}
            Items::One(items) => self.visit(items, &items_path, inherited, false),
            Items::Many(list) => {
                for (index, items) in list.iter().enumerate() {
                    if let Some(items) = Props::from_value(items) {
                        self.visit(items, &items_path.index(index), inherited, false);
                    }
                }
            }
        }
        self.visit_map(schema, "dependencies", path, inherited);
        validate_list_types(schema, path, self.tolerance.requires_atomic_set_items, &mut self.errors);
        if self.tolerance.requires_map_keys {
            validate_map_list(schema, path, &mut self.errors);
        }
        validate_rules(schema, path, &mut self.errors);
    }

    fn visit_map(
        &mut self,
        schema: Props<'_>,
        keyword: &str,
        path: &SchemaPath<'_>,
        inherited: Inherited<'_>,
    ) {
        let map_path = path.field(keyword);
        for (name, part) in schema.schemas(keyword) {
            self.visit(part, &map_path.key(name), inherited, false);
        }
    }

    fn visit_additional(&mut self, schema: Props<'_>, path: &SchemaPath<'_>, inherited: Inherited<'_>) {
        let path = path.field("additionalProperties");
        let additional = schema.additional();
        if schema.has_properties()
            && matches!(additional, AdditionalProperties::Allowed(false) | AdditionalProperties::Schema(_))
        {
            self.errors.forbid(&path, "additionalProperties and properties are mutual exclusive");
        }
        let AdditionalProperties::Schema(values) = additional else { return };
        let default_ban =
            if inherited.is_in_metadata { Some(DefaultBan::MetadataValues) } else { inherited.default_ban };
        self.visit(values, &path, Inherited { default_ban, ..inherited }, false);
    }

    fn visit_properties(
        &mut self,
        schema: Props<'_>,
        path: &SchemaPath<'_>,
        inherited: Inherited<'_>,
        is_root: bool,
    ) {
        let path = path.field("properties");
        let has_metadata = is_root || schema.has_extension(SchemaExtension::EmbeddedResource);
        for (name, property) in schema.schemas("properties") {
            let mut inherited = inherited;
            if has_metadata && matches!(name, "metadata" | "kind" | "apiVersion") {
                inherited.is_in_metadata = true;
                if is_root {
                    inherited.default_ban = Some(DefaultBan::TopLevel(name));
                }
            }
            self.visit(property, &path.key(name), inherited, false);
        }
    }

    /// Validates the keywords of one part.
    fn validate_keywords(&mut self, schema: Props<'_>, path: &SchemaPath<'_>, inherited: Inherited<'_>) {
        let errors = &mut self.errors;
        let ty = schema.ty();
        if self.tolerance.requires_known_types && !ty.is_empty() && !TYPES.contains(&ty) {
            errors.add(&path.field("type"), |path| FieldError::not_supported(path, ty, &TYPES));
        }
        if let Some(ban) = inherited.default_ban.filter(|_| schema.get("default").is_some()) {
            let detail = match ban {
                DefaultBan::TopLevel(field) => format!("must not be set in top-level {field}"),
                DefaultBan::MetadataValues => {
                    "must not be set inside additionalProperties applying to object metadata".to_owned()
                }
            };
            errors.forbid(&path.field("default"), &detail);
        }
        let has_entries =
            |keyword: &str| schema.get(keyword).and_then(Value::as_object).is_some_and(|map| !map.is_empty());
        for (keyword, is_set) in [
            ("id", !schema.text("id").is_empty()),
            ("additionalItems", schema.get("additionalItems").is_some()),
            ("patternProperties", has_entries("patternProperties")),
            ("definitions", has_entries("definitions")),
            ("dependencies", schema.get("dependencies").is_some()),
            ("$ref", schema.get("$ref").is_some()),
        ] {
            if is_set {
                errors.forbid(&path.field(keyword), &format!("{keyword} is not supported"));
            }
        }
        if ty == "null" {
            errors.forbid(&path.field("type"), "type cannot be set to null, use nullable as an alternative");
        }
        if matches!(schema.items(), Items::Many(list) if !list.is_empty()) {
            errors.forbid(&path.field("items"), "items must be a schema object and not an array");
        }
        if inherited.is_in_metadata && schema.has_extension(SchemaExtension::EmbeddedResource) {
            let path = path.field(errors.extension(SchemaExtension::EmbeddedResource));
            errors.forbid(&path, "must not be used inside of resource meta");
        }
        if schema.flag("uniqueItems") {
            let detail = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
            errors.forbid(&path.field("uniqueItems"), detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use serde_json::json;

    #[track_caller]
    fn check(schema: Value, expected: &[&str]) {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let (props, path) = (Props::from_value(&schema).unwrap(), FieldPath::new("s"));
        let errors = validate_properties(props, &names, &Tolerance::CREATE, &path);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{schema}");
    }

    #[test]
    fn unsupported_keywords_are_forbidden_at_any_depth() {
        check(
            json!({"properties": {"a": {"items": {"$ref": "", "dependencies": {"b": ["c"]}}}}}),
            &[
                "s.properties[a].items.dependencies: Forbidden: dependencies is not supported",
                "s.properties[a].items.$ref: Forbidden: $ref is not supported",
            ],
        );
        check(
            json!({"allOf": [{"id": "x"}], "not": {"type": "null"}, "items": [{"uniqueItems": true}]}),
            &[
                "s.items: Forbidden: items must be a schema object and not an array",
                "s.not.type: Unsupported value: \"null\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
                "s.not.type: Forbidden: type cannot be set to null, use nullable as an alternative",
                "s.allOf[0].id: Forbidden: id is not supported",
                "s.items[0].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ],
        );
    }

    #[test]
    fn properties_exclude_additional_properties() {
        let schema = |additional: Value| json!({"properties": {"a": {}}, "additionalProperties": additional});
        check(schema(json!(true)), &[]);
        let error =
            "s.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive";
        check(schema(json!(false)), &[error]);
        check(schema(json!({})), &[error]);
    }

    #[test]
    fn defaults_in_metadata_are_forbidden() {
        let metadata = json!({"properties": {"name": {"default": "x"}}});
        check(
            json!({"properties": {"metadata": metadata}}),
            &[
                "s.properties[metadata].properties[name].default: Forbidden: must not be set in top-level metadata",
            ],
        );
        let labels = json!({"properties": {"labels": {"additionalProperties": {"default": "x"}}}});
        check(
            json!({"properties": {"e": {"x-kubernetes-embedded-resource": true, "properties": {"metadata": labels}}}}),
            &[
                "s.properties[e].properties[metadata].properties[labels].additionalProperties.default: Forbidden: must not be set inside additionalProperties applying to object metadata",
            ],
        );
        let nested = json!({"x-kubernetes-embedded-resource": true});
        check(
            json!({"properties": {"metadata": nested}}),
            &[
                "s.properties[metadata].x-kubernetes-embedded-resource: Forbidden: must not be used inside of resource meta",
            ],
        );
    }
}
