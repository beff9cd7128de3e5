//! Admission policies on two writes.
//!
//! The first write matches none of 500 policies; the second write matches one policy with three simple
//! expressions.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use kinds::Registry;
use serde_json::json;

use crate::fixed_objects::{FixedObjects, time_of_validation};

/// Number of stored policies.
const POLICIES: usize = 500;

/// Creates policies with their bindings. One policy matches config maps; all others match secrets.
fn policies() -> FixedObjects {
    let (mut policies, mut bindings) = (Vec::new(), Vec::new());
    for i in 0..POLICIES {
        let resource = if i == 0 { "configmaps" } else { "secrets" };
        let rule = json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": [resource],
        });
        let validations = json!([
            {"expression": "object.metadata.name.startsWith('a')"},
            {"expression": "!has(object.metadata.labels) || object.metadata.labels.size() < 10"},
            {"expression": "object.data.all(key, key.size() < 20)"},
        ]);
        let metadata = json!({"name": format!("p{i}"), "uid": format!("u{i}"), "resourceVersion": "1"});
        let match_constraints = json!({"resourceRules": [rule]});
        let spec = json!({"matchConstraints": match_constraints, "validations": validations});
        policies.push(object(json!({"metadata": metadata, "spec": spec})));
        let spec = json!({"policyName": format!("p{i}"), "validationActions": ["Deny"]});
        bindings.push(object(json!({"metadata": {"name": format!("b{i}")}, "spec": spec})));
    }
    FixedObjects(BTreeMap::from([
        ("ValidatingAdmissionPolicy", policies),
        ("ValidatingAdmissionPolicyBinding", bindings),
    ]))
}

fn object(value: Value) -> Arc<Object> {
    Arc::new(Object::from_value(value).unwrap_or_default())
}

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn run() {
    let names = Arc::new(Names::new(Preset::Kubernetes, "").expect("names"));
    let registry = Registry::new(&names);
    let chain = policies().into_chain("ValidatingAdmissionPolicy", &names);
    let config_map = object(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "app", "namespace": "team", "labels": {"app": "a"}},
        "data": {"a": "1", "b": "2", "c": "3"},
    }));
    for (name, matches) in [("serviceaccounts", "no policy"), ("configmaps", "three expressions")] {
        let resource = registry.find("", "v1", name).expect("a resource");
        let (time, is_allowed) = time_of_validation(&chain, resource, &config_map).await;
        assert!(is_allowed, "the policies allow the object");
        println!("{matches}: {time:?} a write");
    }
}
