//! The standards control by control, and what becomes of requests.

mod labels;
mod requests;
mod standards;

use apimachinery::names::{Names, Preset};
use serde_json::{Value, json};

use super::pod::{Keys, Pod};
use super::policy::Standard;
use super::{Level, in_detail, violations};
use crate::pod_security::policy::Version;

/// Lays one tree over another: objects are joined, null removes, everything else replaces.
fn over(mut base: Value, patch: &Value) -> Value {
    match (&mut base, patch) {
        (Value::Object(map), Value::Object(patch)) => {
            for (field, value) in patch {
                match value {
                    Value::Null => drop(map.remove(field)),
                    value => {
                        let old = map.remove(field).unwrap_or(json!({}));
                        map.insert(field.clone(), over(old, value));
                    }
                }
            }
            base
        }
        _ => patch.clone(),
    }
}

/// A container that nothing is wrong with, with this laid over its security context.
fn container(name: &str, security: Value) -> Value {
    let good = json!({
        "name": name, "image": "img.example.com/app:1",
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    over(good, &json!({ "securityContext": security }))
}

/// A pod that nothing is wrong with, with this laid over it.
fn pod(patch: &Value) -> Value {
    let good = json!({
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {
            "containers": [container("c", json!({}))],
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    });
    over(good, patch)
}

/// What a standard finds wrong with a pod, in one line.
fn faults(standard: Standard, pod: &Value) -> String {
    let keys = Keys::new(&Names::new(Preset::Kubernetes, "").unwrap());
    in_detail(&violations(standard, &Pod::new(&keys, pod.get("metadata"), pod.get("spec"))))
}

fn standard(level: Level, minor: u64) -> Standard {
    Standard { level, version: Version::Minor(minor) }
}
