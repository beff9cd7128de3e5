//! Tests of warnings about pod specs.

use apimachinery::names::Preset;
use serde_json::json;

use super::*;

fn warnings_of(spec: Value) -> Vec<String> {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    pod(&Object::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap(), &names)
}

#[test]
fn duplicate_environment_variable_returns_warning() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let object = |env: Value| {
        Object::from_value(
            json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "env": env}]}}}}),
        )
        .unwrap()
    };
    let twice = object(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]));
    let want = r#"spec.template.spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply"#;
    assert_eq!(template(&twice, None, "spec.template", &names), [want]);
    assert_eq!(template(&twice, Some(&twice), "spec.template", &names), [""; 0]);
    let made_of = object(json!([{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)2"}]));
    assert_eq!(template(&made_of, None, "spec.template", &names), [""; 0]);
}

#[test]
fn conflicting_ports_return_warnings() {
    let ports = json!([
        {"containerPort": 80, "protocol": "TCP"},
        {"containerPort": 80, "protocol": "TCP", "hostPort": 8080},
        {"containerPort": 80, "protocol": "TCP", "hostPort": 8080, "hostIP": "10.0.0.1"},
        {"containerPort": 80, "protocol": "UDP"},
    ]);
    assert_eq!(
        warnings_of(json!({"containers": [{"name": "c", "ports": ports}]})),
        [
            "spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[2]: overlapping port definition with spec.containers[0].ports[0]",
            "spec.containers[0].ports[2]: dangerously ambiguous port definition with spec.containers[0].ports[1]",
        ]
    );
}

#[test]
fn host_address_without_host_port_returns_warning() {
    let ports = json!([
        {"name": "n", "containerPort": 80, "protocol": "TCP", "hostIP": "10.0.0.1"},
        {"containerPort": 81, "protocol": "TCP", "hostIP": "10.0.0.1", "hostPort": 81},
    ]);
    assert_eq!(
        warnings_of(json!({"containers": [{"name": "c", "ports": ports}]})),
        [
            "spec.containers[0].ports[0]: hostIP set without hostPort: {Name:n HostPort:0 ContainerPort:80 Protocol:TCP \
          HostIP:10.0.0.1}"
        ]
    );
}

#[test]
fn variable_that_only_refers_to_itself_returns_warning() {
    let env =
        json!([{"name": "A", "value": "1"}, {"name": "A", "value": "$(A)"}, {"name": "A", "value": "$(A)2"}]);
    assert_eq!(
        warnings_of(json!({"containers": [{"name": "c", "env": env}]})),
        [
            r#"spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply"#
        ]
    );
}

#[test]
fn app_armor_annotation_without_field_returns_warning() {
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let key = |container: &str| format!("container.apparmor.security.beta.kubernetes.io/{container}");
    let (a, b, c, d) = (key("a"), key("b"), key("c"), key("d"));
    let metadata =
        json!({"annotations": {&a: "unconfined", &b: "unconfined", &c: "runtime/default", &d: "x"}});
    let profile = json!({"appArmorProfile": {"type": "Unconfined"}});
    let containers =
        json!([{"name": "a"}, {"name": "b", "securityContext": profile}, {"name": "c"}, {"name": "d"}]);
    let warning = |path: &str, key: &str| {
        format!(
            "{path}metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
        )
    };
    let object = |spec: Value| Object::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
    let pod = object(json!({"containers": containers}));
    assert_eq!(app_armor::warnings(&pod, &names), [&a, &c, &d].map(|key| warning("", key)));
    // An annotation with the profile of the pod stays an annotation, without a warning.
    let pod = object(json!({"containers": containers, "securityContext": profile}));
    assert_eq!(app_armor::warnings(&pod, &names), [&c, &d].map(|key| warning("", key)));
    let pod = object(json!({"containers": containers, "os": {"name": "windows"}}));
    assert_eq!(app_armor::warnings(&pod, &names), [""; 0]);

    let workload = |spec: Value| {
        Object::from_value(json!({"spec": {"template": {"metadata": metadata, "spec": spec}}})).unwrap()
    };
    let new = workload(json!({"containers": containers}));
    assert_eq!(
        template(&new, None, "spec.template", &names),
        [&a, &c, &d].map(|key| warning("spec.template.", key))
    );
    let new = workload(json!({"containers": containers, "securityContext": profile}));
    assert_eq!(template(&new, None, "spec.template", &names), [""; 0]);
}

#[test]
fn fractional_bytes_return_warning() {
    let limits = json!({"memory": "1500m", "ephemeral-storage": "9999999999999999999999", "cpu": "500m"});
    assert_eq!(
        warnings_of(json!({
            "containers": [{"name": "c", "resources": {"limits": limits}}], "overhead": {"memory": "1m"}
        })),
        [
            "spec.overhead[memory]: fractional byte value \"1m\" is invalid, must be an integer",
            "spec.containers[0].resources.limits[ephemeral-storage]: fractional byte value \"9999999999999999999999\" is \
             invalid, must be an integer",
            "spec.containers[0].resources.limits[memory]: fractional byte value \"1500m\" is invalid, must be an integer",
        ]
    );
}

#[test]
fn deprecated_labels_and_sources_return_warnings() {
    assert_eq!(
        warnings_of(json!({
            "nodeSelector": {"beta.kubernetes.io/os": "linux"},
            "topologySpreadConstraints": [{"topologyKey": "failure-domain.beta.kubernetes.io/zone"}],
            "volumes": [
                {"name": "v", "storageos": {}},
                {"name": "w", "configMap": {"name": "m", "items": [{"path": "a/b"}, {"path": "a"}]}},
                {"name": "x", "projected": {"sources": [{}]}},
            ],
        })),
        [
            "spec.nodeSelector[beta.kubernetes.io/os]: deprecated since v1.14; use \"kubernetes.io/os\" instead",
            "spec.topologySpreadConstraints[0].topologyKey: failure-domain.beta.kubernetes.io/zone is deprecated since \
             v1.17; use \"topology.kubernetes.io/zone\" instead",
            "spec.volumes[0].storageOS: deprecated in v1.22, non-functional in v1.25+",
            "spec.topologySpreadConstraints[0].labelSelector: a null labelSelector results in matching no pod",
            "volume \"w\" (ConfigMap \"m\"): overlapping paths: \"a\" with \"a/b\"",
            "volume \"x\" (Projected) has no sources provided",
        ]
    );
}

#[test]
fn files_of_pod_are_compared_up_to_limit() {
    let paths = |paths: &[String]| {
        let items: Vec<Value> = paths.iter().map(|path| json!({"path": path})).collect();
        json!({"name": "v", "configMap": {"name": "m", "items": items}})
    };
    let (overlapping, disjoint) =
        (vec!["a".to_owned(); 2], (0..1_000).map(|i| format!("p{i}")).collect::<Vec<_>>());
    let volumes =
        [&overlapping, &disjoint, &disjoint, &overlapping, &disjoint, &overlapping].map(|v| paths(v));
    // The third list of 1,000 files has more pairs of files than the limit leaves.
    assert_eq!(warnings_of(json!({"volumes": volumes})).len(), 2);
}

#[test]
fn names_in_warnings_about_files_are_quoted_like_go() {
    let long = "a".repeat(250);
    let items = json!([{"path": "a\u{1}"}, {"path": "a\u{1}"}]);
    let volume = json!({"name": "v\u{1}", "configMap": {"name": format!("{long}\u{1}"), "items": items}});
    let want = format!(r#"volume "v\x01" (ConfigMap "{long}\x01"): overlapping paths: "a\x01" with "a\x01""#);
    assert_eq!(warnings_of(json!({"volumes": [volume]})), [want]);
}

#[test]
fn many_overlapping_files_return_limited_warnings() {
    let items = vec![json!({"key": "k", "path": "a"}); 30_000];
    let volume = json!({"name": "v", "configMap": {"name": "m", "items": items}});
    let warnings = warnings_of(json!({"volumes": [volume]}));
    assert_eq!(warnings.len(), 100);
    assert_eq!(warnings[0], "volume \"v\" (ConfigMap \"m\"): overlapping paths: \"a\" with \"a\"");
}
