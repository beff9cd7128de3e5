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
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let pod = |spec: Value| Object::from_value(json!({"spec": spec})).unwrap();
    let base = json!({"containers": [{"name": "a", "image": "a:1"}], "activeDeadlineSeconds": 60,
        "tolerations": [{"key": "x"}]});
    let run = |pointer: &str, value: Value| {
        let mut spec = base.clone();
        *spec.pointer_mut(pointer).unwrap() = value;
        messages(&update(&pod(spec), &pod(base.clone()), &names))
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

#[test]
fn ephemeral_containers_are_rejected_at_creation_only() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let container = |name: &str| json!({"name": name, "image": "a:1", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"});
    let spec = json!({"restartPolicy": "Always", "dnsPolicy": "Default", "containers": [container("a")],
        "ephemeralContainers": [container("b")]});
    let object = Object::from_value(json!({ "spec": spec })).unwrap();
    assert_eq!(messages(&super::pod(&object, &names)), [""; 0]);
    assert_eq!(
        messages(&new_pod(&object, &names)),
        ["spec.ephemeralContainers: Forbidden: cannot be set on create"]
    );
}

#[test]
fn profile_contradicting_its_annotation_is_rejected() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let run = |annotations: Value, profile: Value| {
        let container = json!({"name": "a", "image": "a:1", "terminationMessagePolicy": "File",
            "imagePullPolicy": "Always", "securityContext": {"appArmorProfile": profile}});
        let spec = json!({"restartPolicy": "Always", "dnsPolicy": "Default", "containers": [container]});
        let pod = json!({"metadata": {"annotations": annotations}, "spec": spec});
        messages(&new_pod(&Object::from_value(pod).unwrap(), &names))
    };
    let key = "container.apparmor.security.beta.kubernetes.io/a";
    let localhost = json!({"type": "Localhost", "localhostProfile": "p"});
    assert_eq!(run(json!({key: "localhost/p"}), localhost.clone()), [""; 0]);
    let path = "spec.containers[0].securityContext.appArmorProfile";
    assert_eq!(
        run(json!({key: "localhost/q"}), localhost),
        [format!("{path}.localhostProfile: Forbidden: apparmor profile in annotation and field must match")]
    );
    assert_eq!(
        run(json!({key: "unconfined"}), json!({"type": "RuntimeDefault"})),
        [format!("{path}.type: Forbidden: apparmor type in annotation and field must match")]
    );
    let other = "container.apparmor.security.beta.kubernetes.io/b";
    assert_eq!(
        run(json!({other: "unconfined"}), json!({"type": "RuntimeDefault"})),
        [format!("metadata.annotations[{other}]: Invalid value: \"b\": container not found")]
    );
}

#[test]
fn apparmor_annotation_of_unknown_container_is_found_among_many() {
    let key = |name: usize| format!("container.apparmor.security.beta.kubernetes.io/{name}");
    let annotations: serde_json::Map<String, Value> =
        (1..100_000).map(|name| (key(name), json!(""))).collect();
    let containers: Vec<Value> = (0..99_999).map(|name| json!({"name": name.to_string()})).collect();
    let (annotations, spec) = (json!(annotations), json!({"containers": containers}));
    let mut errors = FieldErrors::new();
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let field = Field::new(Some(&annotations), "metadata.annotations");
    super::annotations::check_container_names(&field, &Field::new(Some(&spec), "spec"), &names, &mut errors);
    assert_eq!(
        messages(&errors),
        [format!("metadata.annotations[{}]: Invalid value: \"99999\": container not found", key(99_999))]
    );
}
