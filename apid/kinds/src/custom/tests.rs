//! Tests of the resources of a definition.

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::names::{Names, Preset};
use apimachinery::time;
use serde_json::json;

use super::*;
use crate::{Context, Registry, Storage, scale};

fn kubernetes() -> Arc<Names> {
    Arc::new(Names::new(Preset::Kubernetes, "").unwrap())
}

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

/// A definition whose versions declare `spec.size` with the default 1 and the maximum 9, unless they have
/// their own schema.
fn definition(versions: &Value) -> Object {
    let mut versions = versions.clone();
    for version in versions.as_array_mut().unwrap() {
        if version.get("schema").is_none() {
            version["schema"] = json!({"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "default": {}, "properties": {
                    "size": {"type": "integer", "default": 1, "maximum": 9}}},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }}});
        }
    }
    object(json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"kind": "Widget"}, "versions": versions},
        "status": {"acceptedNames": {"plural": "widgets", "singular": "widget", "kind": "Widget",
            "listKind": "WidgetList", "shortNames": ["wd"], "categories": ["all"]}},
    }))
}

fn with_context<R>(subresource: &str, run: impl FnOnce(&Context<'_>) -> R) -> R {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let (clock, rng) = (ManualClock::at(time::parse("2024-01-02T00:00:00Z").unwrap()), SeededRng::new(1));
    run(&Context { names: &names, clock: &clock, rng: &rng, subresource })
}

#[test]
fn definition_gives_resource_for_each_served_and_the_storage_version() {
    let versions = json!([
        {"name": "v1beta1", "served": true, "deprecated": true},
        {"name": "v1", "served": false, "storage": true, "subresources": {"status": {}, "scale": {
            "specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}}},
        {"name": "v1alpha1", "served": false},
        {"name": "v2", "served": true, "selectableFields": [{"jsonPath": ".spec.size"}]},
    ]);
    let resources = resources(&definition(&versions), &kubernetes()).unwrap();
    let versions_in_order: Vec<_> = resources.iter().map(|r| (r.version(), r.is_other_version())).collect();
    assert_eq!(versions_in_order, [("v2", true), ("v1", false), ("v1beta1", true)]);
    let [newest, stored, beta] = &resources[..] else { panic!("{resources:?}") };
    assert!(resources.iter().all(|r| r.key("team", "a") == "custom/example.com/widgets/team/a"));
    assert!(std::ptr::eq(newest.stored(), &**stored));
    assert_eq!((stored.storage, stored.names.list.clone()), (Storage::Stored, "WidgetList".to_owned()));
    let subresources: Vec<_> = stored.subresources.iter().map(|s| s.name).collect();
    assert_eq!(subresources, ["status", "scale"]);
    let status = stored.subresource("status").unwrap();
    assert!(stored.is_part(status) && stored.body_kind(status) == "Widget");
    assert_eq!(newest.stored_field("spec.size"), Some("spec.size"));
    assert_eq!(beta.stored_field("spec.size"), None);
    let warning = beta.deprecation.as_ref().map(|deprecation| &*deprecation.warning);
    assert_eq!(warning, Some("example.com/v1beta1 Widget is deprecated; use example.com/v2 Widget"));

    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let registry = Registry::new(&names).with_custom(resources.iter().cloned());
    assert!(registry.find("example.com", "v1", "widgets").is_none(), "an unserved version has no path");
    assert!(Arc::ptr_eq(registry.find("example.com", "v2", "widgets").unwrap(), newest));
    assert!(Arc::ptr_eq(registry.of_key("custom/example.com/widgets/team/a").unwrap(), stored));
    assert!(Arc::ptr_eq(registry.version_of(newest, "example.com/v1").unwrap(), stored));
    assert_eq!(registry.custom().len(), 2);
    assert!(registry.with_custom([]).of_key("custom/example.com/widgets/team/a").is_none());
}

#[test]
fn object_keeps_its_served_version_in_conform() {
    let versions = json!([{"name": "v1", "served": true, "storage": true}, {"name": "v2", "served": true}]);
    let resources = resources(&definition(&versions), &kubernetes()).unwrap();
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let mut widget =
        object(json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "a",
        "labels": null, "nothing": 1}, "spec": {"size": 3, "free": [1, null]}, "extra": 1}));
    let report = resources[0].conform(&mut widget).unwrap();
    assert_eq!(report.unknown, ["metadata.nothing", "extra"]);
    let conformed = json!({"apiVersion": "example.com/v2", "kind": "Widget",
        "metadata": {"name": "a"}, "spec": {"size": 3, "free": [1, null]}});
    resources[0].to_stored(&mut widget, &names).unwrap();
    assert_eq!(widget.clone().into_value(), conformed);
    resources[0].convert_from_storage(&mut widget, &names).unwrap();
    assert_eq!(widget.api_version(), "example.com/v2");
    let mut wrong = object(json!({"metadata": {"labels": {"a": 1}}}));
    assert!(resources[0].conform(&mut wrong).is_err());
}

#[test]
fn generation_counts_status_only_without_its_subresource() {
    for (subresources, generation) in [(json!({}), 5), (json!({"status": {}}), 4)] {
        let versions = json!([{"name": "v1", "served": true, "storage": true, "subresources": subresources}]);
        let resource = resources(&definition(&versions), &kubernetes()).unwrap().remove(0);
        let old = object(json!({"metadata": {"generation": 4}, "spec": {"size": 1}, "status": {"a": 1}}));
        let mut new = old.clone();
        new.set("status", json!({"a": 2}));
        with_context("", |ctx| resource.prepare_update(&mut new, &old, ctx));
        assert_eq!(new.generation(), generation);
        let mut new = old.clone();
        new.set("spec", json!({"size": 2}));
        with_context("", |ctx| resource.prepare_update(&mut new, &old, ctx));
        assert_eq!(new.generation(), 5);
    }
}

#[test]
fn update_keeps_invalid_value_of_stored_object() {
    let versions = json!([{"name": "v1", "served": true, "storage": true}]);
    let resource = resources(&definition(&versions), &kubernetes()).unwrap().remove(0);
    let metadata = json!({"name": "a", "namespace": "team", "uid": "u"});
    let old = object(json!({"metadata": metadata, "spec": {"size": 20}}));
    with_context("", |ctx| {
        assert_eq!(resource.validate_create(&old, ctx).len(), 1);
        assert!(resource.validate_update(&old, &old, ctx).is_empty());
        let new = object(json!({"metadata": metadata, "spec": {"size": 21}}));
        assert_eq!(resource.validate_update(&new, &old, ctx).len(), 1);
    });
}

#[test]
fn printer_columns_have_cells_of_their_type() {
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    let columns = json!([
        column("A", "string", ".a"),
        column("N", "integer", ".n"),
        column("F", "number", ".f"),
        column("B", "boolean", ".b"),
        column("D", "date", ".d"),
    ]);
    let versions =
        json!([{"name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns}]);
    let resource = resources(&definition(&versions), &kubernetes()).unwrap().remove(0);
    let table = resource;
    let described: Vec<_> = table.columns().into_iter().map(|c| (c.name, c.kind, c.description)).collect();
    assert_eq!(described[0].0, "Name");
    assert_eq!(described[1].2, "Custom resource definition column (in JSONPath format): .a");
    let clock = ManualClock::at(time::parse("2024-01-02T00:00:00Z").unwrap());
    // The columns select fields that the schema does not declare.
    for (fields, cells) in [
        (
            json!({"a": "x", "n": 3.7, "f": 1.5, "b": true, "d": "2024-01-01T23:59:00Z"}),
            json!(["o", "x", 3, 1.5, true, "60s"]),
        ),
        (
            json!({"a": [1], "n": "3", "f": null, "b": 1, "d": "soon"}),
            json!(["o", "[1]", null, null, null, "<invalid>"]),
        ),
        (json!({"d": "2999-01-01T00:00:00Z"}), json!(["o", null, null, null, null, "<invalid>"])),
    ] {
        let mut row = object(fields);
        row.set_meta("name", "o");
        assert_eq!(Value::from(table.cells(&row, &clock, &kubernetes())), cells);
    }
    let plain = resources(&definition(&json!([{"name": "v1", "storage": true}])), &kubernetes()).unwrap();
    let names: Vec<_> = plain[0].columns().into_iter().map(|c| (c.name, c.kind)).collect();
    assert_eq!(names, [("Name".to_owned(), "string".to_owned()), ("Age".to_owned(), "date".to_owned())]);
}

#[test]
fn scale_follows_paths_of_definition() {
    let versions = json!([{"name": "v1", "served": true, "storage": true, "subresources": {"scale": {
        "specReplicasPath": ".spec.pool.size", "statusReplicasPath": ".status.size",
        "labelSelectorPath": ".status.selector"}}}]);
    let kind = resources(&definition(&versions), &kubernetes()).unwrap()[0].clone();
    let mut widget = object(json!({"metadata": {"name": "a"}, "spec": {"pool": {"size": 2}},
        "status": {"size": 1, "selector": "app=x"}}));
    let scale_object = scale::of(&kind, &widget);
    assert_eq!(scale_object.get("spec"), Some(&json!({"replicas": 2})));
    assert_eq!(scale_object.get("status"), Some(&json!({"replicas": 1, "selector": "app=x"})));
    scale::apply(&kind, &mut widget, &object(json!({"spec": {"replicas": 7}})));
    assert_eq!(PathReader::find(&widget, "spec.pool.size"), Some(&json!(7)));
    let empty = object(json!({"metadata": {"name": "a"}}));
    assert_eq!(scale::check(&kind, &widget), Ok(()));
    let error = scale::check(&kind, &empty).unwrap_err();
    assert_eq!(error.to_string(), "the spec replicas field \".spec.pool.size\" does not exist");
}

#[test]
fn values_for_scale_and_status_follow_the_written_part() {
    let versions = json!([{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}, "scale": {
        "specReplicasPath": ".spec.pool.size", "statusReplicasPath": ".status.size"}}}]);
    let resource = Arc::clone(&resources(&definition(&versions), &kubernetes()).unwrap()[0]);
    let widget = |spec: Value, status: Value| {
        object(json!({"apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {"name": "a", "namespace": "team", "finalizers": ["hold"]}, "spec": spec, "status": status}))
    };
    let causes = |errors: apimachinery::field::FieldErrors| {
        errors.iter().map(|e| e.path.as_str().to_owned()).collect::<Vec<_>>()
    };
    let valid = widget(json!({"pool": {"size": 1}}), json!({}));
    let invalid = widget(json!({"pool": {"size": -1}, "size": 10}), json!({"size": "x"}));
    with_context("", |ctx| {
        assert_eq!(causes(resource.validate_create(&valid, ctx)), [""; 0], "finalizers need no domain");
        let expected = ["spec.size", ".spec.pool.size", ".status.size"];
        assert_eq!(causes(resource.validate_create(&invalid, ctx)), expected);
        assert_eq!(causes(resource.validate_update(&invalid, &valid, ctx)), expected);
        let warnings = resource.warnings(&valid, None, ctx);
        assert_eq!(
            warnings,
            [
                "metadata.finalizers: \"hold\": prefer a domain-qualified finalizer name including a path (/) to avoid \
              accidental conflicts with other finalizer writers"
            ]
        );
        assert_eq!(resource.warnings(&valid, Some(&valid), ctx), [""; 0]);
    });
    with_context("status", |ctx| {
        assert_eq!(causes(resource.validate_update(&invalid, &valid, ctx)), [".status.size"]);
    });
}

#[test]
fn versions_have_priorities() {
    let mut versions = ["foo1", "v1alpha1", "v10", "v2beta1", "v1", "v11alpha2", "foo10", "v3beta1", "v01"];
    versions.sort_by(|a, b| compare_versions(b, a));
    assert_eq!(
        versions,
        ["v10", "v1", "v3beta1", "v2beta1", "v11alpha2", "v1alpha1", "foo1", "foo10", "v01"]
    );
    assert!(matches!(definition(&json!([])).items("spec.versions"), []));
    assert!(resources(&definition(&json!([])), &kubernetes()).is_err());
}

#[test]
fn many_deprecated_versions_name_newest_version() {
    let version = |i: usize| {
        let schema = json!({"type": "object", "description": i.to_string()});
        json!({"name": format!("v{i}"), "served": true, "storage": i == 1, "deprecated": i < 40_000,
            "schema": {"openAPIV3Schema": schema}})
    };
    let versions: Value = (1..=40_000).map(version).collect();
    let all = resources(&definition(&versions), &kubernetes()).unwrap();
    let [newest, .., oldest] = all.as_slice() else { panic!("versions") };
    assert_eq!(newest.deprecation, None);
    let text = &oldest.deprecation.as_ref().unwrap().warning;
    assert!(text.contains("/v1 ") && text.contains("; use ") && text.contains("/v40000 "), "{text}");
}

#[test]
fn kind_of_definition_has_no_stem_even_in_a_group_with_the_name_of_one() {
    let mut definition = definition(&json!([{"name": "v1", "served": true, "storage": true}]));
    if let Some(Value::Object(spec)) = definition.get_mut("spec") {
        spec.insert("group".to_owned(), "rbac.authorization".into());
    }
    let kinds = resources(&definition, &kubernetes()).unwrap();
    assert_eq!((kinds[0].stem(), &*kinds[0].group_kind.group), (None, "rbac.authorization"));
}
