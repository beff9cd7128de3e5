//! Tests of pod validation.

use apimachinery::field::FieldError;
use apimachinery::names::Preset;
use serde_json::json;

use super::*;

fn messages(errors: &[FieldError]) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn invalid_containers_return_field_errors() {
    let main =
        json!({"name": "a", "image": "a:1", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"});
    let run = |change: Value| {
        let mut fields = main.clone();
        fields.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let pod = json!({"restartPolicy": "Always", "dnsPolicy": "Default", "containers": [fields],
            "volumes": [{"name": "v", "emptyDir": {}}]});
        let pod = Object::from_value(json!({"spec": pod})).unwrap();
        messages(&super::pod(&pod, &Names::new(Preset::Kubernetes, "").unwrap()))
    };
    assert_eq!(run(json!({})), [""; 0]);
    for (change, expected) in [
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
            json!({"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}]}),
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
        assert_eq!(run(change), [format!("spec.containers[0].{expected}")]);
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
        messages(&update(&pod(spec), &pod(base.clone())))
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
