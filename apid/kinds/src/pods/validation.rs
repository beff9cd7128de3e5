//! Validation of pod specs, pod templates and workload selectors.
//!
//! # Reference
//!
//! The errors are in the order of kube-apiserver: first the errors of rules that all container lists share.

use std::collections::{BTreeSet, HashSet};

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::{Object, Value};
use serde_json::json;

use crate::table::cell::PathReader;
use crate::{format, labels};

/// Validates a workload: its selector matches the template labels, and the restart policy is `Always`.
pub(crate) fn workload(object: &Object) -> FieldErrors {
    let (spec, template) = (FieldPath::new("spec"), FieldPath::new("spec.template"));
    let selector = object.find("spec.selector").cloned().unwrap_or_default();
    let path = spec.child("selector");
    let mut errors = FieldErrors::new();
    if selector.is_null() {
        errors.push(FieldError::required(&path, ""));
    } else {
        errors.extend(labels::validate_selector(&selector, &path));
        if labels::selects_all(&selector) {
            let detail = "empty selector is invalid for deployment";
            errors.push(FieldError::invalid(&path, selector.clone(), detail));
        }
    }
    let of_pods = object.find("spec.template.metadata.labels").cloned().unwrap_or_default();
    if selector.is_null() || !labels::matches(&selector, &of_pods) {
        let path = template.child("metadata").child("labels");
        errors.push(FieldError::invalid(
            &path,
            of_pods.clone(),
            "`selector` does not match template `labels`",
        ));
    }
    errors.extend(self::template(object.find("spec.template").unwrap_or(&Value::Null), &template));
    let restart = object.text("spec.template.spec.restartPolicy");
    if restart != "Always" {
        errors.push(FieldError::not_supported(
            &template.child("spec").child("restartPolicy"),
            restart,
            &["Always"],
        ));
    }
    if object.find("spec.template.spec.activeDeadlineSeconds").is_some() {
        let path = template.child("spec").child("activeDeadlineSeconds");
        errors.push(FieldError::forbidden(&path, "activeDeadlineSeconds in ReplicaSet is not Supported"));
    }
    errors
}

/// Validates a pod template.
pub(crate) fn template(template: &Value, path: &FieldPath) -> FieldErrors {
    let mut errors =
        labels::validate(template.pointer("/metadata/labels"), &path.child("metadata").child("labels"));
    errors.extend(spec(template.get("spec").unwrap_or(&Value::Null), &path.child("spec")));
    errors
}

/// Validates a pod's spec.
pub(crate) fn spec(spec: &Value, path: &FieldPath) -> FieldErrors {
    let (mut errors, volumes) = volumes(list(spec, "volumes"), &path.child("volumes"));
    let main = list(spec, "containers");
    if main.is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
    let mut names = BTreeSet::new();
    for field in ["containers", "initContainers"] {
        for (i, container) in list(spec, field).iter().enumerate() {
            let path = path.child(field).index(i);
            errors.extend(self::container(container, &volumes, &path));
            let name = text(container, "name");
            if !name.is_empty() && !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
    }
    for (field, supported) in [
        ("restartPolicy", &["Always", "OnFailure", "Never"][..]),
        ("dnsPolicy", &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"]),
    ] {
        errors.extend(one_of(spec, field, supported, path));
    }
    if spec.get("activeDeadlineSeconds").and_then(Value::as_i64).is_some_and(|seconds| seconds < 1) {
        let value = spec.get("activeDeadlineSeconds").cloned().unwrap_or_default();
        let path = path.child("activeDeadlineSeconds");
        errors.push(FieldError::invalid(&path, value, "must be between 1 and 2147483647, inclusive"));
    }
    errors
}

fn container(container: &Value, volumes: &BTreeSet<&str>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    match text(container, "name") {
        "" => errors.push(FieldError::required(&path.child("name"), "")),
        name => errors.extend(labels::invalid(&path.child("name"), name, format::label(name))),
    }
    if text(container, "image").is_empty() {
        errors.push(FieldError::required(&path.child("image"), ""));
    }
    errors.extend(one_of(container, "terminationMessagePolicy", &["FallbackToLogsOnError", "File"], path));
    errors.extend(ports(list(container, "ports"), &path.child("ports")));
    errors.extend(environment(list(container, "env"), &path.child("env")));
    errors.extend(mounts(list(container, "volumeMounts"), volumes, &path.child("volumeMounts")));
    errors.extend(one_of(container, "imagePullPolicy", &["Always", "IfNotPresent", "Never"], path));
    errors
}

fn ports(ports: &[Value], path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut names = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let path = path.index(i);
        let name = text(port, "name");
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        let number = |field: &str| port.get(field).and_then(Value::as_i64).unwrap_or(0);
        if number("containerPort") == 0 {
            errors.push(FieldError::required(&path.child("containerPort"), ""));
        }
        for field in ["containerPort", "hostPort"] {
            if !(0..=65_535).contains(&number(field)) {
                let detail = "must be between 1 and 65535, inclusive";
                errors.push(FieldError::invalid(&path.child(field), number(field), detail));
            }
        }
        errors.extend(one_of(port, "protocol", &["SCTP", "TCP", "UDP"], &path));
    }
    errors
}

fn environment(variables: &[Value], path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for (i, variable) in variables.iter().enumerate() {
        let path = path.index(i);
        if text(variable, "name").is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        let Some(Value::Object(source)) = variable.get("valueFrom") else { continue };
        let path = path.child("valueFrom");
        let mut refuse = |detail: &str| errors.push(FieldError::invalid(&path, "", detail));
        if source.is_empty() {
            refuse(
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
            );
        } else if !text(variable, "value").is_empty() {
            refuse("may not be specified when `value` is not empty");
        } else if source.len() > 1 {
            refuse("may not have more than one field specified at a time");
        }
    }
    errors
}

fn mounts(mounts: &[Value], volumes: &BTreeSet<&str>, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut places = BTreeSet::new();
    for (i, mount) in mounts.iter().enumerate() {
        let path = path.index(i);
        match text(mount, "name") {
            "" => errors.push(FieldError::required(&path.child("name"), "")),
            name if !volumes.contains(name) => errors.push(FieldError::not_found(&path.child("name"), name)),
            _ => {}
        }
        match text(mount, "mountPath") {
            "" => errors.push(FieldError::required(&path.child("mountPath"), "")),
            place if !places.insert(place) => {
                errors.push(FieldError::invalid(&path.child("mountPath"), place, "must be unique"));
            }
            _ => {}
        }
    }
    errors
}

/// Validates volumes; returns the errors and the volume names.
fn volumes<'v>(volumes: &'v [Value], path: &FieldPath) -> (FieldErrors, BTreeSet<&'v str>) {
    let mut errors = FieldErrors::new();
    let mut names = BTreeSet::new();
    for (i, volume) in volumes.iter().enumerate() {
        let path = path.index(i);
        let sources = volume.as_object().into_iter().flatten().filter(|(field, _)| *field != "name");
        for (field, _) in sources.skip(1) {
            errors.push(FieldError::forbidden(&path.child(field), "may not specify more than 1 volume type"));
        }
        match text(volume, "name") {
            "" => errors.push(FieldError::required(&path.child("name"), "")),
            name if !names.insert(name) => errors.push(FieldError::duplicate(&path.child("name"), name)),
            name => errors.extend(labels::invalid(&path.child("name"), name, format::label(name))),
        }
    }
    (errors, names)
}

/// Error if a text field is not one of the supported values.
fn one_of(fields: &Value, field: &str, supported: &[&str], path: &FieldPath) -> Option<FieldError> {
    let value = text(fields, field);
    let path = path.child(field);
    match value {
        "" => Some(FieldError::required(&path, "")),
        value if supported.contains(&value) => None,
        value => Some(FieldError::not_supported(&path, value, supported)),
    }
}

/// Error if a whole number is negative.
pub(crate) fn not_negative(object: &Object, path: &str) -> Option<FieldError> {
    let number = object.integer(path);
    let detail = "must be greater than or equal to 0";
    (number < 0).then(|| FieldError::invalid(&FieldPath::new(path), number, detail))
}

/// Validates an update of a pod.
/// It may change images, shorten the deadline and add tolerations.
pub(crate) fn update(new: &Object, old: &Object) -> FieldErrors {
    let path = FieldPath::new("spec");
    let mut errors = FieldErrors::new();
    for (field, what) in [("containers", "containers"), ("initContainers", "init containers")] {
        let full = format!("spec.{field}");
        if new.items(&full).len() != old.items(&full).len() {
            let detail = format!("pod updates may not add or remove {what}");
            errors.push(FieldError::forbidden(&path.child(field), &detail));
        }
    }
    if !errors.is_empty() {
        return errors;
    }
    let deadline = |object: &Object| object.find("spec.activeDeadlineSeconds").and_then(Value::as_i64);
    let at = path.child("activeDeadlineSeconds");
    match (deadline(new), deadline(old)) {
        (Some(new), _) if new < 0 => {
            errors.push(FieldError::invalid(&at, new, "must be between 0 and 2147483647, inclusive"));
            return errors;
        }
        (Some(new), Some(old)) if new > old => {
            errors.push(FieldError::invalid(&at, new, "must be less than or equal to previous value"));
            return errors;
        }
        (None, Some(_)) => {
            errors.push(FieldError::invalid(
                &at,
                Value::Null,
                "must not update from a positive integer to nil value",
            ));
        }
        _ => {}
    }
    let tolerations: HashSet<&Value> = new.items("spec.tolerations").iter().collect();
    if old.items("spec.tolerations").iter().any(|toleration| !tolerations.contains(toleration)) {
        let detail = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(&path.child("tolerations"), detail));
        return errors;
    }
    if rest(new) != rest(old) {
        let detail = "pod updates may not change fields other than `spec.containers[*].image`,\
            `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
            tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";
        errors.push(FieldError::forbidden(&path, detail));
    }
    errors
}

/// The spec without the mutable fields.
fn rest(pod: &Object) -> Value {
    let mut spec = pod.get("spec").cloned().unwrap_or_default();
    if let Value::Object(fields) = &mut spec {
        fields.remove("activeDeadlineSeconds");
        fields.remove("tolerations");
        if fields
            .get("terminationGracePeriodSeconds")
            .and_then(Value::as_i64)
            .is_some_and(|seconds| seconds < 0)
        {
            fields.insert("terminationGracePeriodSeconds".to_owned(), json!(1));
        }
        for list in ["containers", "initContainers"] {
            crate::defaults::each(fields, list).for_each(|container| drop(container.remove("image")));
        }
    }
    spec
}

fn list<'v>(fields: &'v Value, name: &str) -> &'v [Value] {
    fields.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text<'v>(fields: &'v Value, name: &str) -> &'v str {
    fields.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn invalid_containers_return_field_errors() {
        let main = json!({"name": "a", "image": "a:1", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"});
        let run = |change: Value| {
            let mut fields = main.clone();
            fields.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            let pod = json!({"restartPolicy": "Always", "dnsPolicy": "Default", "containers": [fields],
                "volumes": [{"name": "v", "emptyDir": {}}]});
            shown(&spec(&pod, &FieldPath::new("spec")))
        };
        assert_eq!(run(json!({})), [""; 0]);
        for (change, want) in [
            (json!({"name": ""}), "name: Required value"),
            (json!({"image": ""}), "image: Required value"),
            (
                json!({"imagePullPolicy": "Soon"}),
                r#"imagePullPolicy: Unsupported value: "Soon": supported values: "Always", "IfNotPresent", "Never""#,
            ),
            (json!({"ports": [{"protocol": "TCP"}]}), "ports[0].containerPort: Required value"),
            (
                json!({"ports": [{"containerPort": 70_000, "protocol": "TCP"}]}),
                "ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ),
            (
                json!({"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {}}}]}),
                r#"env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty"#,
            ),
            (
                json!({"volumeMounts": [{"name": "x", "mountPath": "/x"}]}),
                r#"volumeMounts[0].name: Not found: "x""#,
            ),
            (
                json!({"volumeMounts": [{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}]}),
                r#"volumeMounts[1].mountPath: Invalid value: "/x": must be unique"#,
            ),
        ] {
            assert_eq!(run(change), [format!("spec.containers[0].{want}")]);
        }
    }

    #[test]
    fn pod_update_of_immutable_field_is_rejected() {
        let pod = |spec: Value| Object::from_value(json!({"spec": spec})).unwrap();
        let base = json!({"containers": [{"name": "a", "image": "a:1"}], "activeDeadlineSeconds": 60,
            "tolerations": [{"key": "x"}]});
        let run = |pointer: &str, value: Value| {
            let mut spec = base.clone();
            *spec.pointer_mut(pointer).unwrap() = value;
            shown(&update(&pod(spec), &pod(base.clone())))
                .iter()
                .map(|e| e.split(':').next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(run("/containers/0/image", json!("a:2")), [""; 0]);
        assert_eq!(run("/activeDeadlineSeconds", json!(30)), [""; 0]);
        assert_eq!(run("/tolerations", json!([{"key": "y"}, {"key": "x"}])), [""; 0]);
        assert_eq!(run("/activeDeadlineSeconds", json!(90)), ["spec.activeDeadlineSeconds"]);
        assert_eq!(run("/tolerations", json!([])), ["spec.tolerations"]);
        assert_eq!(run("/containers/0/name", json!("b")), ["spec"]);
        assert_eq!(run("/containers", json!([])), ["spec.containers"]);
    }
}
