//! Random and large definitions: no function panics, and errors stay bounded.
//!
//! The random definitions need not conform to the schema of their type.

use apimachinery::field::{ERRORS_MAX, FieldErrors, FieldPath};
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Map, Object, Value};
use extensions::definition::conditions::{self, NamesInUse};
use extensions::definition::{self, Environment, keywords};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::json;

const KEYWORDS: [&str; 34] = [
    "type",
    "properties",
    "items",
    "additionalProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "default",
    "enum",
    "nullable",
    "required",
    "pattern",
    "format",
    "maximum",
    "maxLength",
    "maxItems",
    "title",
    "$ref",
    "id",
    "definitions",
    "dependencies",
    "patternProperties",
    "additionalItems",
    "uniqueItems",
    "x-kubernetes-validations",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-svc-map-type",
    "example",
];

const TEXTS: [&str; 14] = [
    "object",
    "array",
    "string",
    "integer",
    "a",
    "metadata",
    "(",
    "map",
    "set",
    "atomic",
    "self.a == oldSelf.a",
    ".a['b']",
    "\u{1F600}\n",
    "",
];

fn pick<'a>(rng: &mut SmallRng, list: &[&'a str]) -> &'a str {
    list[rng.random_range(0..list.len())]
}

/// A random schema; some values have a wrong type.
fn random_schema(rng: &mut SmallRng, depth: u32) -> Value {
    let mut schema = Map::new();
    for _ in 0..rng.random_range(0..5) {
        let keyword = pick(rng, &KEYWORDS);
        let value = match (keyword, depth) {
            _ if rng.random_range(0..20) == 0 => json!([{"rule": 1}, null, "x"]),
            ("properties" | "definitions" | "dependencies" | "patternProperties", 1..) => {
                let names = [pick(rng, &TEXTS), pick(rng, &TEXTS)];
                names
                    .map(|name| (name.to_owned(), random_schema(rng, depth - 1)))
                    .into_iter()
                    .collect::<Map<_, _>>()
                    .into()
            }
            ("allOf" | "anyOf" | "oneOf", 1..) => vec![random_schema(rng, depth - 1); 2].into(),
            ("items" | "additionalProperties" | "not" | "additionalItems", 1..) => {
                random_schema(rng, depth - 1)
            }
            ("x-kubernetes-validations", _) => {
                let text = |rng: &mut SmallRng| pick(rng, &TEXTS).to_owned();
                json!([{"rule": text(rng), "message": text(rng), "messageExpression": text(rng), "fieldPath": text(rng)}])
            }
            ("x-kubernetes-list-map-keys" | "required" | "enum", _) => {
                json!([pick(rng, &TEXTS), pick(rng, &TEXTS)])
            }
            ("default" | "example", 1..) => random_schema(rng, depth - 1),
            ("maximum" | "maxLength" | "maxItems", _) => rng.random_range(-3..100).into(),
            ("nullable" | "uniqueItems", _) => rng.random_bool(0.5).into(),
            (extension, _) if extension.starts_with("x-") && rng.random_bool(0.5) => {
                rng.random_bool(0.8).into()
            }
            _ => pick(rng, &TEXTS).into(),
        };
        schema.insert(keyword.to_owned(), value);
    }
    if rng.random_bool(0.5) {
        schema.insert("type".to_owned(), "object".into());
    }
    schema.into()
}

fn definition(versions: Value) -> Object {
    let names = json!({"plural": "widgets", "kind": "Widget"});
    let spec = json!({"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions});
    let metadata = json!({"name": "widgets.example.com"});
    let mut object = Object::from_value(json!({"metadata": metadata, "spec": spec, "status": {}})).unwrap();
    definition::set_defaults(&mut object);
    definition::record_stored_version(&mut object);
    object
}

/// A version; only a version with properties has selectable fields.
fn version(name: &str, schema: Value) -> Value {
    let fields = json!([{"jsonPath": ".a"}, {"jsonPath": ".a.b"}]);
    let fields = if schema.get("properties").is_some() { fields } else { Value::Null };
    json!({
        "name": name, "served": true, "storage": name == "v1", "schema": {"openAPIV3Schema": schema},
        "selectableFields": fields, "subresources": {"status": {}},
    })
}

fn no_rules(_: &Map<String, Value>, _: &FieldPath) -> FieldErrors {
    FieldErrors::new()
}

#[test]
fn random_definitions_are_validated_without_panic() {
    let names =
        [Names::new(Preset::Kubernetes, "").unwrap(), Names::new(Preset::Svc, "example.test").unwrap()];
    let mut rng = SmallRng::seed_from_u64(18);
    let mut old = definition(json!([]));
    let mut valid = 0;
    for _ in 0..3_000 {
        let first = random_schema(&mut rng, 4);
        let second = if rng.random_bool(0.5) { first.clone() } else { random_schema(&mut rng, 3) };
        let mut new = definition(json!([version("v1", first), version("v2", second)]));
        for names in &names {
            let environment = Environment { names, metadata: &no_rules };
            let errors = definition::validate_create(&new, environment);
            valid += usize::from(errors.is_empty());
            definition::validate_update(&new, &old, environment);
            definition::warnings(&new, Some(&old));
            conditions::non_structural_schema(&new, names);
            conditions::accept_names(&new, &NamesInUse::default());
        }
        keywords::to_served(&mut new, &names[1]);
        keywords::to_stored(&mut new, &names[1]);
        old = new;
    }
    println!("{valid} valid definitions");
    assert!(valid > 10, "{valid} valid definitions");
}

#[test]
fn invalid_rule_hides_expression_errors_of_its_part() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let environment = Environment { names: &names, metadata: &no_rules };
    let errors = |rules: Value| -> Vec<String> {
        let other = json!({"type": "string", "x-kubernetes-validations": [{"rule": "self.missing"}]});
        let part = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "x-kubernetes-validations": rules});
        let schema = json!({"type": "object", "properties": {"a": part, "b": other}});
        let version =
            json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
        let errors = definition::validate_create(&definition(json!([version])), environment);
        let rule =
            |error: &str| Some(error.split_once("properties[a].x-kubernetes-validations")?.1.to_owned());
        assert!(
            errors.iter().any(|error| error.path.as_str().contains("properties[b].x-kubernetes-validations"))
        );
        errors.iter().filter_map(|error| rule(&error.to_string())).collect()
    };
    assert_eq!(errors(json!([{"rule": "self.missing"}])).len(), 1);
    assert_eq!(
        errors(json!([
            {"rule": " "},
            {"rule": "true", "message": "two\nlines"},
            {"rule": "true ||\ntrue"},
            {"rule": "true", "reason": "Bogus"},
            {"rule": "true", "fieldPath": ".none"},
            {"rule": "self.missing"},
        ])),
        [
            "[0].rule: Required value: rule is not specified",
            "[1].message: Invalid value: \"two\\nlines\": must not contain line breaks",
            "[2].message: Required value: message must be specified if rule contains line breaks",
            "[3].reason: Unsupported value: \"Bogus\": supported values: \"FieldValueDuplicate\", \
             \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
            "[4].fieldPath: Invalid value: \".none\": must be a valid path",
        ]
    );
}

#[test]
fn large_schemas_return_bounded_errors() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let environment = Environment { names: &names, metadata: &no_rules };
    let wide = |part: Value, count: usize| -> Value {
        (0..count).map(|index| (format!("p{index}"), part.clone())).collect::<Map<_, _>>().into()
    };
    let long = "x".repeat(500);
    let mut deep = json!({"properties": wide(json!({}), 20_000)});
    for _ in 0..60 {
        deep = json!({"properties": {(long.clone()): deep}});
    }
    let branch = json!({"type": "string", "properties": wide(json!({"minLength": 1}), 100)});
    for schema in [
        json!({"type": "object", "properties": wide(json!({}), 150_000)}),
        json!({"type": "object", "properties": wide(json!({"type": "string", "pattern": "("}), 50_000)}),
        json!({"type": "object", "allOf": vec![branch; 500]}),
        deep,
    ] {
        let object = definition(json!([version("v1", schema)]));
        let errors = definition::validate_create(&object, environment);
        assert!(errors.len() > ERRORS_MAX && errors.iter().count() <= ERRORS_MAX, "{}", errors.len());
    }
}
