//! Tests of stored forms, one table for each subject.

use apimachinery::clock::{Rng, SeededRng};
use apimachinery::object::{Map, Object, Value};
use serde_json::json;

use crate::{ConformReport, Schema, TypeError};

fn conform(type_name: &str, value: Value) -> Result<(Value, ConformReport), TypeError> {
    let mut object = Object::from_value(value).unwrap();
    let conformed = Schema::of(type_name).unwrap().conform(&mut object)?;
    Ok((object.into_value(), conformed))
}

/// Checks that each input conforms to its output, and that conforming the output changes nothing.
#[track_caller]
fn check(type_name: &str, forms: &[(Value, Value)]) {
    for (input, want) in forms {
        let (have, conformed) = conform(type_name, input.clone()).unwrap();
        assert_eq!(&have, want, "{type_name}: {input}");
        assert_eq!(conformed.unknown, [""; 0], "{type_name}: {input}");
        assert_eq!(&conform(type_name, have.clone()).unwrap().0, &have, "{type_name}: conformed twice");
    }
}

#[track_caller]
fn check_errors(type_name: &str, errors: &[(Value, &str, &str)]) {
    for (input, path, message) in errors {
        let error = conform(type_name, input.clone()).unwrap_err();
        assert_eq!(
            (error.path.as_str(), error.to_string().as_str()),
            (*path, *message),
            "{type_name}: {input}"
        );
    }
}

#[test]
fn zero_values_are_written_or_omitted_by_field_rule() {
    check(
        "core/v1.ConfigMap",
        &[
            (json!({}), json!({"metadata": {}})),
            (json!({"data": {}, "binaryData": null, "immutable": null}), json!({"metadata": {}})),
            (json!({"immutable": false}), json!({"immutable": false, "metadata": {}})),
            (
                json!({"binaryData": {"a": [104, 105, null], "b": []}}),
                json!({"binaryData": {"a": "aGkA", "b": ""}, "metadata": {}}),
            ),
            (
                json!({"metadata": {"labels": {}, "name": "", "finalizers": [], "generation": 0, "creationTimestamp": null}}),
                json!({"metadata": {}}),
            ),
        ],
    );
    check(
        "core/v1.Event",
        &[(
            json!({"count": 0}),
            json!({
                "metadata": {}, "involvedObject": {}, "source": {}, "firstTimestamp": null, "lastTimestamp": null,
                "eventTime": null, "reportingComponent": "", "reportingInstance": "",
            }),
        )],
    );
    check(
        "rbac/v1.Role",
        &[
            (json!({"rules": []}), json!({"metadata": {}, "rules": null})),
            (
                json!({"rules": [{"apiGroups": []}, null]}),
                json!({"metadata": {}, "rules": [{"verbs": null}, {"verbs": null}]}),
            ),
        ],
    );
    check(
        "coordination/v1.Lease",
        &[(json!({"spec": {"holderIdentity": ""}}), json!({"metadata": {}, "spec": {"holderIdentity": ""}}))],
    );
}

#[test]
fn null_map_and_list_values_become_zero_values() {
    check(
        "core/v1.ConfigMap",
        &[(
            json!({"metadata": {"annotations": {"a": null}}, "data": {"k": null}, "binaryData": {"b": null}}),
            json!({"metadata": {"annotations": {"a": ""}}, "data": {"k": ""}, "binaryData": {"b": ""}}),
        )],
    );
    check("meta/v1.ObjectMeta", &[(json!({"finalizers": [null]}), json!({"finalizers": [""]}))]);
}

#[test]
fn scalars_conform_to_canonical_form() {
    check(
        "coordination/v1.LeaseSpec",
        &[
            (
                json!({"renewTime": "2024-01-02T05:04:05.123456+02:00"}),
                json!({"renewTime": "2024-01-02T03:04:05.123456Z"}),
            ),
            (json!({"renewTime": "0001-01-01T00:00:00.000000Z"}), json!({})),
        ],
    );
    check(
        "meta/v1.ObjectMeta",
        &[
            (
                json!({"deletionTimestamp": "2024-01-02T03:04:05.999+00:00"}),
                json!({"deletionTimestamp": "2024-01-02T03:04:05Z"}),
            ),
            (
                json!({"deletionTimestamp": "0001-01-01T00:00:00.5Z", "creationTimestamp": "0001-01-01T00:00:00Z"}),
                json!({}),
            ),
        ],
    );
    check(
        "core/v1.ResourceRequirements",
        &[(
            json!({"limits": {"cpu": 2, "memory": "1024Mi", "x": "0.0001", "y": null}}),
            json!({"limits": {"cpu": "2", "memory": "1Gi", "x": "1m", "y": "0"}}),
        )],
    );
    check("core/v1.EmptyDirVolumeSource", &[(json!({"sizeLimit": "0.0001"}), json!({"sizeLimit": "100u"}))]);
    check(
        "core/v1.ServicePort",
        &[
            (json!({"port": 80, "targetPort": "http"}), json!({"port": 80, "targetPort": "http"})),
            (json!({"port": 80}), json!({"port": 80, "targetPort": 0})),
        ],
    );
    check(
        "core/v1.Secret",
        &[(
            json!({"data": {"a": "YWJj\r\n", "b": "YR==", "c": ""}}),
            json!({"data": {"a": "YWJj", "b": "YQ==", "c": ""}, "metadata": {}}),
        )],
    );
    check(
        "apiextensions/v1.JSONSchemaProps",
        &[(json!({"maximum": 5.0, "minimum": 0.5}), json!({"maximum": 5, "minimum": 0.5}))],
    );
}

#[test]
fn raw_json_and_union_values_are_kept_unchanged() {
    check(
        "apiextensions/v1.JSONSchemaProps",
        &[(
            json!({
                "default": {"a": null, "b": []}, "enum": [1, null, "x"], "items": [{"type": "string"}, {}],
                "additionalProperties": false, "dependencies": {"a": ["b"], "c": {"type": "x"}}, "required": [],
            }),
            json!({
                "default": {"a": null, "b": []}, "enum": [1, null, "x"], "items": [{"type": "string"}, {}],
                "additionalProperties": false, "dependencies": {"a": ["b"], "c": {"type": "x"}},
            }),
        )],
    );
    check(
        "apps/v1.ControllerRevision",
        &[(json!({"revision": 1}), json!({"metadata": {}, "data": null, "revision": 1}))],
    );
}

#[test]
fn unknown_fields_are_dropped_and_reported() {
    let body = json!({
        "metadata": {"Name": "x", "labels": {"any": "thing"}, "ownerReferences": [{"uid": "u", "bar": 1}]},
        "Data": {}, "data": {"Foo": "x"},
    });
    let (object, conformed) = conform("core/v1.ConfigMap", body).unwrap();
    assert_eq!(conformed.unknown, ["Data", "metadata.Name", "metadata.ownerReferences[0].bar"]);
    let owner = json!({"uid": "u", "apiVersion": "", "kind": "", "name": ""});
    assert_eq!(
        object,
        json!({"metadata": {"labels": {"any": "thing"}, "ownerReferences": [owner]}, "data": {"Foo": "x"}})
    );
}

#[test]
fn type_mismatch_names_path_and_types() {
    check_errors(
        "core/v1.ConfigMap",
        &[
            (
                json!({"data": {"a": 1}}),
                "data.a",
                "json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
            ),
            (
                json!({"data": ["a"]}),
                "data",
                "json: cannot unmarshal array into Go struct field ConfigMap.data of type map[string]string",
            ),
            (
                json!({"metadata": "t"}),
                "metadata",
                "json: cannot unmarshal string into Go struct field ConfigMap.metadata of type v1.ObjectMeta",
            ),
            (
                json!({"metadata": {"labels": {"a": true}}}),
                "metadata.labels.a",
                "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (json!({"binaryData": {"a": "no!"}}), "binaryData.a", "illegal base64 data at input byte 2"),
            (json!({"binaryData": {"a": "YWJjYQ"}}), "binaryData.a", "illegal base64 data at input byte 4"),
            (
                json!({"binaryData": {"a": [1, 256]}}),
                "binaryData.a[1]",
                "json: cannot unmarshal number 256 into Go struct field ConfigMap.binaryData of type uint8",
            ),
            (
                json!({"binaryData": {"a": ["x"]}}),
                "binaryData.a[0]",
                "json: cannot unmarshal string into Go struct field ConfigMap.binaryData of type uint8",
            ),
        ],
    );
    check_errors(
        "apps/v1.Deployment",
        &[
            (
                json!({"spec": {"replicas": "3"}}),
                "spec.replicas",
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"replicas": 1.5}}),
                "spec.replicas",
                "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"replicas": 4_294_967_296_i64}}),
                "spec.replicas",
                "json: cannot unmarshal number 4294967296 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": {"name": "c"}}}}}),
                "spec.template.spec.containers",
                "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [{"ports": [{"containerPort": "80"}]}]}}}}),
                "spec.template.spec.containers[0].ports[0].containerPort",
                "json: cannot unmarshal string into Go struct field ContainerPort.spec.template.spec.containers.ports.containerPort of type int32",
            ),
        ],
    );
    check_errors(
        "core/v1.PodSpec",
        &[
            (
                json!({"volumes": [{"secret": {"secretName": 7}}]}),
                "volumes[0].secret.secretName",
                "json: cannot unmarshal number into Go struct field SecretVolumeSource.volumes.VolumeSource.secret.secretName of type string",
            ),
            (
                json!({"overhead": {"cpu": true}}),
                "overhead.cpu",
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
            (
                json!({"activeDeadlineSeconds": 9.223_372_036_854_776e18}),
                "activeDeadlineSeconds",
                "json: cannot unmarshal number 9223372036854775808 into Go struct field PodSpec.activeDeadlineSeconds of type int64",
            ),
        ],
    );
    check_errors(
        "coordination/v1.LeaseSpec",
        &[
            (
                json!({"renewTime": "2024-01-02T03:04:05Z"}),
                "renewTime",
                "parsing time \"2024-01-02T03:04:05Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \".000000\"",
            ),
            (
                json!({"renewTime": 5}),
                "renewTime",
                "json: cannot unmarshal number into Go struct field LeaseSpec.renewTime of type string",
            ),
        ],
    );
    for wrong in [json!(2.0), json!(1e30), json!("2"), json!(true), json!([])] {
        assert!(conform("core/v1.PodSpec", json!({"activeDeadlineSeconds": wrong})).is_err(), "{wrong}");
    }
    assert!(conform("core/v1.PodSpec", json!({"activeDeadlineSeconds": 3_000_000_000_000_i64})).is_ok());
    for wrong in [json!(true), json!("1K"), json!(["1"])] {
        assert!(
            conform("core/v1.ResourceRequirements", json!({"limits": {"cpu": wrong}})).is_err(),
            "{wrong}"
        );
    }
}

/// Generates a tree with known field names and random values.
fn random_value(rng: &SeededRng, depth: usize) -> Value {
    const NAMES: [&str; 14] = [
        "metadata",
        "spec",
        "status",
        "template",
        "containers",
        "name",
        "labels",
        "annotations",
        "resources",
        "limits",
        "ports",
        "rules",
        "creationTimestamp",
        "items",
    ];
    let pick = |n: u128| usize::try_from(rng.bits() % n).unwrap();
    match pick(if depth == 0 { 7 } else { 11 }) {
        0 => Value::Null,
        1 => json!(pick(2) == 0),
        2 => json!(pick(3)),
        3 => json!(""),
        4 => json!("1024Mi"),
        5 => json!("2024-01-02T03:04:05Z"),
        6 => json!(1.5),
        7 => (0..pick(3)).map(|_| random_value(rng, depth - 1)).collect(),
        _ => {
            let field = |_| (NAMES[pick(14)].to_owned(), random_value(rng, depth - 1));
            Value::Object((0..pick(5)).map(field).collect::<Map<_, _>>())
        }
    }
}

#[test]
fn conforming_twice_changes_nothing() {
    let seed = 20_250_521;
    println!("seed {seed}");
    let rng = SeededRng::new(seed);
    let mut conformed = 0;
    for _ in 0..20_000 {
        for type_name in ["apps/v1.Deployment", "core/v1.Pod", "rbac/v1.Role", "core/v1.LimitRange"] {
            let Value::Object(map) = random_value(&rng, 6) else { continue };
            let schema = Schema::of(type_name).unwrap();
            let mut once = Object(map);
            if schema.conform(&mut once).is_ok() {
                conformed += 1;
                let mut twice = once.clone();
                assert_eq!(schema.conform(&mut twice), Ok(ConformReport::default()), "{once:?}");
                assert_eq!(once, twice);
            }
        }
    }
    assert!(conformed > 1000, "{conformed}");
}

#[test]
fn unknown_fields_below_long_key_have_bounded_messages() {
    let long = "k".repeat(200_000);
    let unknown: Map<String, Value> = (0..20_000).map(|i| (format!("unknown{i}"), json!(1))).collect();
    let mut object = Object::from_value(json!({"properties": {long: unknown}})).unwrap();
    // 20,000 paths with the full key would take 4 GB.
    let conformed = Schema::of("apiextensions/v1.JSONSchemaProps").unwrap().conform(&mut object).unwrap();
    assert_eq!(conformed.unknown.len(), 100);
    assert!(conformed.unknown.iter().map(String::len).sum::<usize>() < 100_000);
}

#[test]
fn list_that_was_sent_empty_stays_where_it_replaces_default() {
    for (rules, expected) in [
        (json!({"policies": [], "selectPolicy": "Max"}), json!({"policies": [], "selectPolicy": "Max"})),
        (json!({"policies": null}), json!({})),
        (json!({}), json!({})),
    ] {
        let mut object = Object::from_value(rules).unwrap();
        Schema::of("autoscaling/v2.HPAScalingRules").unwrap().conform(&mut object).unwrap();
        assert_eq!(object.into_value(), expected);
    }
}
