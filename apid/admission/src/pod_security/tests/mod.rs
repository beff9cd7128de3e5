//! Tests of the Pod Security controls and of requests.

mod labels;
mod requests;
mod standards;

use apimachinery::names::{Names, Preset};
use serde_json::{Value, json};

use super::pod::{Keys, Pod};
use super::policy::Standard;
use super::{Level, format_with_details, violations};
use crate::pod_security::policy::Version;

/// Merges two trees: objects merge, null removes, other values replace.
fn merged(mut base: Value, patch: &Value) -> Value {
    match (&mut base, patch) {
        (Value::Object(map), Value::Object(patch)) => {
            for (field, value) in patch {
                match value {
                    Value::Null => drop(map.remove(field)),
                    value => {
                        let old = map.remove(field).unwrap_or(json!({}));
                        map.insert(field.clone(), merged(old, value));
                    }
                }
            }
            base
        }
        _ => patch.clone(),
    }
}

/// A compliant container with a patched security context.
fn container(name: &str, security: Value) -> Value {
    let good = json!({
        "name": name, "image": "img.example.com/app:1",
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
    });
    merged(good, &json!({ "securityContext": security }))
}

/// A compliant pod with a patch.
fn pod(patch: &Value) -> Value {
    let good = json!({
        "metadata": {"name": "p", "namespace": "team"},
        "spec": {
            "containers": [container("c", json!({}))],
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    });
    merged(good, patch)
}

/// Violations of a standard by a pod, in one line.
fn faults(standard: Standard, pod: &Value) -> String {
    let keys = Keys::new(&Names::new(Preset::Kubernetes, "").unwrap());
    format_with_details(&violations(standard, &Pod::new(&keys, pod.get("metadata"), pod.get("spec"))))
}

fn standard(level: Level, minor: u64) -> Standard {
    Standard { level, version: Version::Minor(minor) }
}
