//! Definitions with many versions, whose validation takes time in proportion to their size.
//!
//! Rules that compare all pairs of versions would take minutes for each of these definitions. A body within
//! the limits can have hundreds of thousands of versions.

use apimachinery::field::{ERRORS_MAX, FieldErrors, FieldPath};
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Map, Object, Value};
use extensions::definition::{self, Environment};
use serde_json::json;

/// Number of versions without schemas.
const COUNT: usize = 200_000;

fn definition(versions: Vec<Value>, stored: Vec<Value>) -> Object {
    let names =
        json!({"plural": "widgets", "kind": "Widget", "singular": "widget", "listKind": "WidgetList"});
    let spec = json!({"group": "example.com", "scope": "Namespaced", "names": names, "versions": versions,
        "conversion": {"strategy": "None"}});
    let status = json!({ "storedVersions": stored });
    Object::from_value(json!({"metadata": {"name": "widgets.example.com"}, "spec": spec, "status": status}))
        .unwrap()
}

/// A version without a schema; the first is the storage version.
fn version(index: usize) -> Value {
    json!({"name": format!("v{index}"), "storage": index == 0})
}

fn validate(new: &Object, old: Option<&Object>) -> FieldErrors {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let no_rules = |_: &Map<String, Value>, _: &FieldPath| FieldErrors::new();
    let environment = Environment { names: &names, metadata: &no_rules };
    match old {
        Some(old) => definition::validate_update(new, old, environment),
        None => definition::validate_create(new, environment),
    }
}

#[test]
fn many_versions_without_schema_each_have_an_error() {
    let errors = validate(&definition((0..COUNT).map(version).collect(), vec!["v0".into()]), None);
    assert_eq!(errors.len(), COUNT);
    assert_eq!(errors[0].to_string(), "spec.versions[0].schema.openAPIV3Schema: Required value");
}

#[test]
fn many_storage_versions_are_compared_with_stored_versions() {
    let count = COUNT / 4;
    let versions = (0..count).map(|index| {
        json!({"name": format!("v{index}"), "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}})
    });
    let stored = (0..count).map(|index| format!("w{index}").into());
    let errors = validate(&definition(versions.collect(), stored.collect()), None);
    // One error for several storage versions, one for each storage version that is not stored, and one for each
    // missing stored version.
    assert_eq!(errors.len(), 1 + count + count);
    assert_eq!(errors.iter().count(), ERRORS_MAX);
    assert!(errors[1].to_string().ends_with(": must have the storage version v0"), "{}", errors[1]);
    assert!(errors[2].to_string().ends_with(": must have the storage version v1"), "{}", errors[2]);
}

#[test]
fn rules_of_many_versions_are_compared_with_old_rules() {
    let definition_with = |limit: usize| -> Object {
        let versions = (0..4_000).map(|index| {
            let rule = format!("self.a < {}", index + limit);
            let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": rule}]});
            let mut version = version(index);
            version["schema"] = json!({ "openAPIV3Schema": schema });
            version
        });
        definition(versions.collect(), vec!["v0".into()])
    };
    let errors = validate(&definition_with(1), Some(&definition_with(0)));
    assert_eq!(errors.len(), 0, "{errors:?}");
}
