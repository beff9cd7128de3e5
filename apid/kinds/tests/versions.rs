//! Round trips of kinds that are served in two versions.

use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use kinds::{EnabledVersions, Kind, Registry, Storage};
use serde_json::json;

fn names(preset: Preset) -> Names {
    Names::new(preset, "example.test").unwrap()
}

/// An object of a version in its stored form.
fn conform_object(resource: &Kind, mut value: Value) -> Object {
    value["kind"] = resource.name().into();
    value["apiVersion"] = resource.api_version().into();
    let mut object = Object::from_value(value).unwrap();
    let conformed = resource.conform(&mut object).unwrap();
    assert_eq!(conformed.unknown, [""; 0]);
    object
}

fn to_served_object(resource: &Kind, stored: &Object, names: &Names) -> Object {
    let mut object = stored.clone();
    resource.convert_from_storage(&mut object, names).unwrap();
    assert_eq!(object.api_version(), resource.api_version());
    object
}

fn to_stored_object(resource: &Kind, served: &Object, names: &Names) -> Object {
    let mut object = served.clone();
    resource.to_stored(&mut object, names).unwrap();
    assert_eq!(object.api_version(), resource.stored().api_version());
    object
}

/// A non-storage version of a kind is a resource with the storage keys of the stored kind.
#[test]
fn served_versions_share_storage_keys() {
    let names = names(Preset::Svc);
    let (versions, _) = EnabledVersions::parse(["api/all=true"], &names).unwrap();
    let registry = Registry::with_versions(&names, &versions);
    let mut count = 0;
    for resource in registry.resources().iter().filter(|r| r.is_converted()) {
        let storage_version = resource.stored();
        assert_eq!((storage_version.storage, storage_version.name()), (Storage::Stored, resource.name()));
        assert_eq!(resource.key("team", "x"), storage_version.key("team", "x"));
        assert_ne!(resource.api_version(), storage_version.api_version());
        assert_eq!(
            registry.of_key(&resource.key("team", "x")).unwrap().api_version(),
            storage_version.api_version()
        );
        let found = registry.version_of(storage_version, &resource.api_version()).unwrap();
        assert_eq!(found.api_version(), resource.api_version());
        count += 1;
    }
    assert_eq!(count, 19, "the list of versions changed");
}

const METRICS: &str = r#"[{"type":"Resource","resource":{"name":"memory","targetAverageValue":"1Gi"}},{"type":"Object","object":{"target":{"kind":"Service","name":"s","apiVersion":"v1"},"metricName":"hits","targetValue":"10","selector":{"matchLabels":{"a":"b"}}}},{"type":"Pods","pods":{"metricName":"rps","targetAverageValue":"500m"}},{"type":"ContainerResource","containerResource":{"name":"cpu","targetAverageUtilization":40,"container":"c"}},{"type":"External","external":{"metricName":"q","targetAverageValue":"30"}}]"#;

fn full_autoscaler() -> Value {
    json!({
        "metadata": {"name": "h", "annotations": {"keep": "me"}},
        "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"},
            "minReplicas": 2, "maxReplicas": 5,
            "metrics": [
                {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
                {"type": "Object", "object": {
                    "describedObject": {"kind": "Service", "name": "s", "apiVersion": "v1"},
                    "metric": {"name": "hits", "selector": {"matchLabels": {"a": "b"}}},
                    "target": {"type": "Value", "value": "10"}}},
                {"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "500m"}}},
                {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                    "target": {"type": "Utilization", "averageUtilization": 40}}},
                {"type": "External", "external": {"metric": {"name": "q"}, "target": {"type": "AverageValue", "averageValue": "30"}}},
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 65}}},
            ],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10, "selectPolicy": "Max",
                "policies": [{"type": "Pods", "value": 1, "periodSeconds": 20}]}},
        },
        "status": {
            "currentReplicas": 2, "desiredReplicas": 3,
            "currentMetrics": [
                {"type": "Resource", "resource": {"name": "cpu", "current": {"averageValue": "21m", "averageUtilization": 42}}},
                {"type": "Object", "object": {
                    "describedObject": {"kind": "Service", "name": "s"},
                    "metric": {"name": "hits"}, "current": {"value": "7"}}},
            ],
            "conditions": [{"type": "AbleToScale", "status": "True", "lastTransitionTime": "2024-01-02T03:04:05Z",
                "reason": "Ready", "message": "m"}],
        },
    })
}

#[test]
fn hpa_v1_keeps_v2_fields_in_annotations() {
    for (preset, domain) in [(Preset::Svc, "example.test"), (Preset::Kubernetes, "kubernetes.io")] {
        let names = names(preset);
        let registry = Registry::new(&names);
        let v1 = registry.find("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
        let v2 = conform_object(v1.stored(), full_autoscaler());
        let old = to_served_object(v1, &v2, &names);
        let annotation = |name: &str| old.annotation(&format!("autoscaling.alpha.{domain}/{name}"));
        assert_eq!(annotation("metrics"), Some(METRICS));
        assert_eq!(
            annotation("current-metrics"),
            Some(
                r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":42,"currentAverageValue":"21m"}},{"type":"Object","object":{"target":{"kind":"Service","name":"s"},"metricName":"hits","currentValue":"7"}}]"#
            )
        );
        assert_eq!(
            annotation("conditions"),
            Some(
                r#"[{"type":"AbleToScale","status":"True","lastTransitionTime":"2024-01-02T03:04:05Z","reason":"Ready","message":"m"}]"#
            )
        );
        assert_eq!(
            annotation("behavior"),
            Some(
                r#"{"ScaleUp":null,"ScaleDown":{"StabilizationWindowSeconds":10,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":1,"PeriodSeconds":20}],"Tolerance":null}}"#
            )
        );
        let target = json!({"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"});
        assert_eq!(
            old.get("spec"),
            Some(
                &json!({"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 5, "targetCPUUtilizationPercentage": 65})
            )
        );
        assert_eq!(
            old.get("status"),
            Some(&json!({"currentReplicas": 2, "desiredReplicas": 3, "currentCPUUtilizationPercentage": 42}))
        );
        assert_eq!(to_stored_object(v1, &old, &names), v2, "back");
    }
}

#[test]
fn hpa_v1_round_trip_through_v2_is_lossless() {
    let names = names(Preset::Kubernetes);
    let registry = Registry::new(&names);
    let v1 = registry.find("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
    let metrics = "autoscaling.alpha.kubernetes.io/metrics";
    let pods = r#"[{"type":"Pods","pods":{"metricName":"rps","targetAverageValue":"10"}}]"#;
    let spec = |percent: Value| json!({"maxReplicas": 5, "scaleTargetRef": {"kind": "X", "name": "x"}, "targetCPUUtilizationPercentage": percent});
    let status = json!({"currentReplicas": 1, "desiredReplicas": 1, "currentCPUUtilizationPercentage": 9});
    for (annotations, percent, kinds) in [
        (json!({}), json!(50), vec!["Resource"]),
        (json!({"keep": "me"}), Value::Null, vec![]),
        (json!({"keep": "me", metrics: pods}), json!(50), vec!["Pods", "Resource"]),
        (json!({metrics: pods}), Value::Null, vec!["Pods"]),
    ] {
        let object = conform_object(
            v1,
            json!({"metadata": {"name": "h", "annotations": annotations}, "spec": spec(percent), "status": status}),
        );
        let v2 = to_stored_object(v1, &object, &names);
        let types = v2.at(&["spec", "metrics"]).and_then(Value::as_array).cloned().unwrap_or_default();
        assert_eq!(types.iter().map(|m| m["type"].as_str().unwrap()).collect::<Vec<_>>(), kinds);
        assert!(v2.annotation(metrics).is_none());
        let mut again = to_served_object(v1, &v2, &names);
        // The annotation keeps the full metric status beside the single number.
        let current_metrics = "autoscaling.alpha.kubernetes.io/current-metrics";
        assert_eq!(
            again.annotation(current_metrics),
            Some(r#"[{"type":"Resource","resource":{"name":"cpu","currentAverageUtilization":9}}]"#)
        );
        again
            .meta_mut()
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
            .unwrap()
            .remove(current_metrics);
        let again = conform_object(v1, again.into_value());
        assert_eq!(again, object);
    }
    // The conversion ignores an annotation without a valid metric list.
    for nonsense in ["not json", "{}", r#"[{"type":"Pods","pods":{"metricName":3}}]"#, "[1]"] {
        let object = conform_object(
            v1,
            json!({"metadata": {"name": "h", "annotations": {metrics: nonsense}}, "spec": spec(Value::Null)}),
        );
        let v2 = to_stored_object(v1, &object, &names);
        assert_eq!((v2.at(&["spec", "metrics"]), v2.annotation(metrics)), (None, None), "{nonsense}");
    }
}

#[test]
fn event_converts_between_core_and_events_groups() {
    let names = names(Preset::Svc);
    let registry = Registry::new(&names);
    let newer = registry.find("events.example.test", "v1", "events").unwrap();
    for event in [
        json!({"metadata": {"name": "e", "namespace": "n"}, "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "A",
            "message": "m", "source": {"component": "c", "host": "h"}, "firstTimestamp": "2024-01-02T03:04:05Z",
            "lastTimestamp": "2024-01-02T03:04:06Z", "count": 2, "type": "Normal"}),
        json!({"metadata": {"name": "e"}, "involvedObject": {}, "eventTime": "2024-05-06T07:08:09.123456Z", "action": "B",
            "reportingComponent": "example.com/ctl", "reportingInstance": "ctl-0", "related": {"kind": "Node", "name": "n"},
            "series": {"count": 2, "lastObservedTime": "2024-05-06T07:08:10.654321Z"}}),
    ] {
        let core = conform_object(newer.stored(), event);
        let other = to_served_object(newer, &core, &names);
        for field in ["involvedObject", "message", "source", "firstTimestamp", "count", "reportingComponent"]
        {
            assert!(other.get(field).is_none(), "{field}");
        }
        assert_eq!(other.get("regarding"), core.get("involvedObject"));
        assert_eq!(other.get("deprecatedSource"), core.get("source"));
        assert_eq!(other.get("deprecatedLastTimestamp"), core.get("lastTimestamp"));
        assert_eq!(to_stored_object(newer, &other, &names), core, "back");
    }
    assert_eq!(newer.stored_field("regarding.name"), Some("involvedObject.name"));
    assert_eq!(newer.stored_field("metadata.name"), Some("metadata.name"));
    assert_eq!(newer.stored_field("involvedObject.name"), None);
    assert_eq!(newer.stored().stored_field("involvedObject.name"), Some("involvedObject.name"));
}
