//! Tests of LimitRanger defaults and rejections.

use apimachinery::names::Preset;
use serde_json::json;

use super::*;
use crate::testing::{Fake, PluginResult, TestedWrite};

fn range(limits: Value) -> Value {
    json!({"metadata": {"name": "lr", "namespace": "team"}, "spec": {"limits": limits}})
}

async fn create(limits: Value, kind: &str, spec: Value) -> PluginResult {
    let fake = Fake::new(Preset::Kubernetes).with_objects("", "LimitRange", &[range(limits)]);
    let plugin = LimitRanger;
    fake.run_plugin(
        &plugin,
        TestedWrite { kind: ("", kind), ..TestedWrite::default() },
        json!({"metadata": {"name": "x"}, "spec": spec}),
    )
    .await
}

fn container(name: &str, resources: Value) -> Value {
    json!({"name": name, "resources": resources})
}

#[tokio::test]
async fn containers_get_default_requests_and_limits() {
    let limits = json!([
        {"type": "Container", "default": {"cpu": "500m", "memory": "128Mi"}, "defaultRequest": {"cpu": "100m", "memory": "128Mi"}},
        {"type": "Pod", "max": {"cpu": "9", "memory": "9Gi"}},
    ]);
    let complete =
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
    let default =
        json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "500m", "memory": "128Mi"}});
    let cpu_only = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}});
    let cpu_with_defaults =
        json!({"requests": {"cpu": "1", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "128Mi"}});
    for (spec, after, text) in [
        (
            json!({"containers": [container("c", json!({}))]}),
            json!({"containers": [container("c", default.clone())]}),
            Some("cpu, memory request for container c; cpu, memory limit for container c"),
        ),
        (
            json!({"containers": [container("c", cpu_only)], "initContainers": [container("i", json!(null))]}),
            json!({"containers": [container("c", cpu_with_defaults)], "initContainers": [container("i", default)]}),
            Some(
                "memory request for container c; memory limit for container c; cpu, memory request for init container i; cpu, memory limit for init container i",
            ),
        ),
        (
            json!({"containers": [container("c", complete.clone())]}),
            json!({"containers": [container("c", complete)]}),
            None,
        ),
    ] {
        let answer = create(limits.clone(), "Pod", spec).await;
        assert_eq!(answer.message(), "");
        assert_eq!(answer.object["spec"], after);
        let annotation = answer.object["metadata"]["annotations"]["kubernetes.io/limit-ranger"].as_str();
        assert_eq!(annotation.map(str::to_owned), text.map(|text| format!("LimitRanger plugin set: {text}")));
    }
}

#[tokio::test]
async fn limit_range_rejection_lists_all_violations() {
    let per_container = json!([{"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "2"}}]);
    let per_pod = json!([{"type": "Pod", "max": {"cpu": "1500m"}, "min": {"memory": "1Gi"}}]);
    let per_claim =
        json!([{"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"}}]);
    let cpu = |request: &str, limit: &str| {
        let amounts = |amount: &str| if amount.is_empty() { json!({}) } else { json!({"cpu": amount}) };
        json!({"containers": [container("c", json!({"requests": amounts(request), "limits": amounts(limit)}))]})
    };
    let two_containers = json!({"containers": [
        container("c", json!({"limits": {"cpu": "1"}, "requests": {"memory": "1Gi"}})), container("d", json!({"limits": {"cpu": "1"}}))]});
    let storage = |amount: &str| json!({"resources": {"requests": {"storage": amount}}});
    for (limits, kind, spec, reason) in [
        (&per_container, "Pod", cpu("500m", "1"), ""),
        (&per_container, "Pod", cpu("1", "2"), "maximum cpu usage per Container is 1, but limit is 2"),
        (
            &per_container,
            "Pod",
            cpu("50m", "90m"),
            "minimum cpu usage per Container is 100m, but request is 50m",
        ),
        (
            &per_container,
            "Pod",
            cpu("200m", "1"),
            "cpu max limit to request ratio per Container is 2, but provided ratio is 5.000000",
        ),
        (
            &per_container,
            "Pod",
            cpu("", ""),
            "[minimum cpu usage per Container is 100m.  No request is specified, maximum cpu usage per Container is 1.  No limit is specified, cpu max limit to request ratio per Container is 2, but no request is specified or request is 0]",
        ),
        (
            &per_container,
            "Pod",
            cpu("1", ""),
            "[maximum cpu usage per Container is 1.  No limit is specified, cpu max limit to request ratio per Container is 2, but no limit is specified or limit is 0]",
        ),
        (&per_container, "Pod", cpu("2", "1"), "maximum cpu usage per Container is 1, but request is 2"),
        (&per_pod, "Pod", two_containers, "maximum cpu usage per Pod is 1500m, but limit is 2"),
        (&per_claim, "PersistentVolumeClaim", storage("2Gi"), ""),
        (
            &per_claim,
            "PersistentVolumeClaim",
            storage("10Gi"),
            "maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 10Gi",
        ),
        (
            &per_claim,
            "PersistentVolumeClaim",
            storage("10Mi"),
            "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 10Mi",
        ),
        (
            &per_claim,
            "PersistentVolumeClaim",
            json!({}),
            "[minimum storage usage per PersistentVolumeClaim is 1Gi.  No request is specified, maximum storage usage per PersistentVolumeClaim is 5Gi.  No request is specified]",
        ),
    ] {
        let answer = create(limits.clone(), kind, spec.clone()).await;
        let resource = if kind == "Pod" { "pods" } else { "persistentvolumeclaims" };
        let expected = if reason.is_empty() {
            String::new()
        } else {
            format!("{resource} \"x\" is forbidden: {reason}")
        };
        assert_eq!(answer.message(), expected, "{spec}");
    }
}

#[tokio::test]
async fn limit_ranger_checks_pod_creation_and_resize_only() {
    let limits = json!([{"type": "Container", "max": {"cpu": "1"}}]);
    let pod = |more: Value| json!({"metadata": more, "spec": {"containers": [container("c", json!({"limits": {"cpu": "2"}}))]}});
    for (operation, subresource, old, refused) in [
        (Operation::Create, "", json!(null), true),
        (Operation::Update, "", pod(json!({"name": "x"})), false),
        (Operation::Update, "resize", pod(json!({"name": "x"})), true),
        (
            Operation::Update,
            "resize",
            pod(json!({"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"})),
            false,
        ),
    ] {
        let fake = Fake::new(Preset::Svc).with_objects("", "LimitRange", &[range(limits.clone())]);
        let plugin = LimitRanger;
        let old = Some(old).filter(|old| !old.is_null());
        let write = TestedWrite { operation, subresource, old, ..TestedWrite::default() };
        let answer = fake.run_plugin(&plugin, write, pod(json!({"name": "x"}))).await;
        assert_eq!(answer.result.is_err(), refused, "{operation:?} {subresource}");
    }
}
