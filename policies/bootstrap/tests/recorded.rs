//! Compares the default policy with recorded responses of kube-apiserver.
//! The recordings are the `default-*` cases of `rbac.json` in `CONFORMANCE_DIR`, by default next to the
//! checkout. `CONFORMANCE_DIR=none` skips the test.

use std::collections::BTreeMap;
use std::path::PathBuf;

use apimachinery::names::{DEFAULT_API_DOMAIN, Names, Preset};
use apimachinery::object::{Object, Value};
use bootstrap::{DefaultPolicy, default_policy};

/// Metadata fields that kube-apiserver adds to a stored object.
const SERVER_FIELDS: [&str; 4] = ["uid", "resourceVersion", "creationTimestamp", "managedFields"];

fn recorded_file() -> Option<PathBuf> {
    prerequisites::recordings().map(|folder| folder.join("cases/rbac.json"))
}

fn find<'p>(policy: &'p DefaultPolicy, path: &str) -> Option<&'p Object> {
    let path = path.split_once("/v1/")?.1;
    let (namespace, resource, name) = match path.split('/').collect::<Vec<_>>().as_slice() {
        ["namespaces", namespace, resource, name] => (*namespace, *resource, *name),
        [resource, name] => ("", *resource, *name),
        _ => return None,
    };
    policy.objects().find(|object| {
        object.name() == name
            && object.namespace() == namespace
            && format!("{}s", object.kind().to_lowercase()) == resource
    })
}

/// Returns the object as served: an aggregated role has the rules of the roles that it selects, in name
/// order.
fn as_served(policy: &DefaultPolicy, object: &Object) -> Object {
    let mut served = object.clone();
    if let Some(selector) = object.at(&["aggregationRule", "clusterRoleSelectors"]) {
        let label = selector[0]["matchLabels"].as_object().unwrap().keys().next().unwrap();
        let mut selected: Vec<Object> = policy
            .cluster_roles
            .iter()
            .filter(|role| role.label(label) == Some("true"))
            .map(|role| as_served(policy, role))
            .collect();
        selected.sort_by(|a, b| a.name().cmp(b.name()));
        let rules: Vec<Value> =
            selected.iter().flat_map(|role| role.get("rules").unwrap().as_array().unwrap().clone()).collect();
        served.set("rules", rules);
    }
    served
}

/// Selects a value by a path such as `metadata.labels` or `rules[0]`.
fn select(object: &Value, path: &str) -> Value {
    path.split('.').fold(object.clone(), |value, step| match step.split_once('[') {
        None => value[step].clone(),
        Some((field, index)) => value[field][index.trim_end_matches(']').parse::<usize>().unwrap()].clone(),
    })
}

fn remove_field(value: &mut Value, path: &[&str]) {
    let Some((first, rest)) = path.split_first() else { return };
    let slot = match value {
        Value::Object(map) if rest.is_empty() => {
            map.remove(*first);
            return;
        }
        Value::Object(map) => map.get_mut(*first),
        Value::Array(items) => first.parse::<usize>().ok().and_then(|index| items.get_mut(index)),
        _ => None,
    };
    if let Some(slot) = slot {
        remove_field(slot, rest);
    }
}

#[test]
fn default_policy_matches_recorded_objects() {
    let Some(file) = recorded_file() else { return };
    let policy = default_policy(&Names::new(Preset::Kubernetes, DEFAULT_API_DOMAIN).unwrap());
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let cases = recorded["cases"].as_array().unwrap();
    let mut compared = BTreeMap::new();
    for case in cases.iter().filter(|case| case["name"].as_str().unwrap().starts_with("rbac/default-")) {
        for step in case["steps"].as_array().unwrap() {
            let path = step["path"].as_str().unwrap();
            assert_eq!(step["answer"]["status"], 200, "{path}");
            let object = find(&policy, path).unwrap_or_else(|| panic!("no default object {path}"));
            let mut our_object = as_served(&policy, object).into_value();
            let mut recorded_object = step["answer"]["body"].clone();
            if step["select"].is_array() {
                for (selected, value) in recorded_object.as_object().unwrap() {
                    assert_eq!(&select(&our_object, selected), value, "{selected} of {path}");
                }
            } else {
                let ignored = step["ignore"].as_array().into_iter().flatten().filter_map(Value::as_str);
                for path in ignored.map(|path| path.split('.').collect::<Vec<_>>()) {
                    remove_field(&mut our_object, &path);
                    remove_field(&mut recorded_object, &path);
                }
                for field in SERVER_FIELDS {
                    remove_field(&mut recorded_object, &["metadata", field]);
                }
                assert_eq!(our_object, recorded_object, "{path}");
            }
            *compared.entry(object.kind().to_owned()).or_insert(0) += 1;
        }
    }
    eprintln!("equal to the recordings: {compared:?}");
    assert!(
        compared.values().sum::<i32>() >= 30,
        "the recorded cases are not what this test expects: {compared:?}"
    );
}
