//! API versions: removed versions, their replacements, and kinds that are served in two versions.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::Server;

/// Removed versions by group stem, with their resources (D-RM132 to D-RM116, appendix (a.4)).
const REMOVED: &[(&str, &str, &[&str])] = &[
    ("flowcontrol.apiserver", "v1beta3", &["flowschemas", "prioritylevelconfigurations"]),
    ("flowcontrol.apiserver", "v1beta2", &["flowschemas", "prioritylevelconfigurations"]),
    ("flowcontrol.apiserver", "v1beta1", &["flowschemas", "prioritylevelconfigurations"]),
    (
        "storage",
        "v1beta1",
        &["csistoragecapacities", "csidrivers", "csinodes", "storageclasses", "volumeattachments"],
    ),
    ("autoscaling", "v2beta2", &["horizontalpodautoscalers"]),
    ("autoscaling", "v2beta1", &["horizontalpodautoscalers"]),
    ("batch", "v1beta1", &["cronjobs"]),
    ("discovery", "v1beta1", &["endpointslices"]),
    ("events", "v1beta1", &["events"]),
    ("policy", "v1beta1", &["poddisruptionbudgets", "podsecuritypolicies"]),
    ("node", "v1beta1", &["runtimeclasses"]),
    (
        "admissionregistration",
        "v1beta1",
        &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
    ),
    ("apiextensions", "v1beta1", &["customresourcedefinitions"]),
    ("apiregistration", "v1beta1", &["apiservices"]),
    ("authentication", "v1beta1", &["tokenreviews"]),
    (
        "authorization",
        "v1beta1",
        &[
            "localsubjectaccessreviews",
            "selfsubjectaccessreviews",
            "subjectaccessreviews",
            "selfsubjectrulesreviews",
        ],
    ),
    ("certificates", "v1beta1", &["certificatesigningrequests"]),
    ("coordination", "v1beta1", &["leases"]),
    (
        "extensions",
        "v1beta1",
        &["ingresses", "networkpolicies", "daemonsets", "deployments", "replicasets", "podsecuritypolicies"],
    ),
    ("networking", "v1beta1", &["ingresses", "ingressclasses"]),
    ("rbac.authorization", "v1beta1", &["roles", "rolebindings", "clusterroles", "clusterrolebindings"]),
    ("scheduling", "v1beta1", &["priorityclasses"]),
    ("apps", "v1beta1", &["deployments", "replicasets", "statefulsets"]),
    ("apps", "v1beta2", &["daemonsets", "deployments", "replicasets", "statefulsets"]),
];

/// The versions that replace those of [`REMOVED`], by group stem, with their resources.
const SERVED: &[(&str, &str, &[&str])] = &[
    ("flowcontrol.apiserver", "v1", &["flowschemas", "prioritylevelconfigurations"]),
    (
        "storage",
        "v1",
        &["csistoragecapacities", "csidrivers", "csinodes", "storageclasses", "volumeattachments"],
    ),
    ("autoscaling", "v2", &["horizontalpodautoscalers"]),
    ("autoscaling", "v1", &["horizontalpodautoscalers"]),
    ("batch", "v1", &["cronjobs"]),
    ("discovery", "v1", &["endpointslices"]),
    ("events", "v1", &["events"]),
    ("policy", "v1", &["poddisruptionbudgets"]),
    ("node", "v1", &["runtimeclasses"]),
    ("admissionregistration", "v1", &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]),
    ("apiextensions", "v1", &["customresourcedefinitions"]),
    ("apiregistration", "v1", &["apiservices"]),
    ("certificates", "v1", &["certificatesigningrequests"]),
    ("coordination", "v1", &["leases"]),
    ("networking", "v1", &["ingresses", "ingressclasses", "networkpolicies"]),
    ("rbac.authorization", "v1", &["roles", "rolebindings", "clusterroles", "clusterrolebindings"]),
    ("scheduling", "v1", &["priorityclasses"]),
    ("apps", "v1", &["daemonsets", "deployments", "replicasets", "statefulsets"]),
];

#[tokio::test]
async fn removed_api_versions_return_404() {
    let server = Server::start().await;
    let openapi = server.get("/openapi/v3").await.json();
    let aggregated = "application/json;g=apidiscovery.example.test;v=v2;as=APIGroupDiscoveryList";
    let aggregated = server.send("GET", "/apis", &[("accept", aggregated)], "").await.json();
    for (stem, version, resources) in REMOVED {
        let group = server.api_state.names.group(stem);
        let root = format!("/apis/{group}/{version}");
        assert_eq!(server.get(&root).await.code, 404, "{root}");
        for resource in *resources {
            for path in [
                format!("{root}/{resource}"),
                format!("{root}/{resource}/x"),
                format!("{root}/namespaces/a/{resource}"),
                format!("{root}/namespaces/a/{resource}/x"),
            ] {
                assert_eq!(server.get(&path).await.code, 404, "GET {path}");
                assert_eq!(
                    server.post(&path, json!({"metadata": {"name": "x"}})).await.code,
                    404,
                    "POST {path}"
                );
                assert_eq!(server.delete(&path, Value::Null).await.code, 404, "DELETE {path}");
            }
        }
        let listed = server.get(&format!("/apis/{group}")).await.json();
        let versions = listed["versions"].as_array().cloned().unwrap_or_default();
        assert!(versions.iter().all(|v| v["version"] != *version), "{root}");
        let group_in_all =
            aggregated["items"].as_array().unwrap().iter().find(|g| g["metadata"]["name"] == group);
        let versions = group_in_all.map_or(vec![], |g| g["versions"].as_array().unwrap().clone());
        assert!(versions.iter().all(|v| v["version"] != *version), "{root} in aggregated discovery");
        assert!(openapi["paths"].get(&root[1..]).is_none(), "{root} in OpenAPI");
    }
}

#[tokio::test]
async fn replacements_of_removed_versions_are_served() {
    let server = Server::start().await;
    let openapi = server.get("/openapi/v3").await.json();
    for (stem, version, resources) in SERVED {
        let group = server.api_state.names.group(stem);
        let root = format!("/apis/{group}/{version}");
        let listed = server.get(&root).await.json();
        assert_eq!(listed["kind"], "APIResourceList", "{root}");
        assert!(openapi["paths"].get(&root[1..]).is_some(), "{root} in OpenAPI");
        for resource in *resources {
            let list = server.get(&format!("{root}/{resource}")).await;
            assert_eq!(list.code, 200, "{root}/{resource}");
            assert_eq!(list.json()["apiVersion"], format!("{group}/{version}"));
        }
    }
}

/// Removed fields are unknown; their replacements are stored.
#[tokio::test]
async fn removed_fields_are_rejected_as_unknown() {
    let server = Server::start().await;
    let group = |stem: &str| server.api_state.names.group(stem);
    let ingresses = format!("/apis/{}/v1/namespaces/a/ingresses", group("networking"));
    let levels = format!("/apis/{}/v1/prioritylevelconfigurations", group("flowcontrol.apiserver"));
    let definitions = format!("/apis/{}/v1/customresourcedefinitions", group("apiextensions"));
    let reviews = format!("/apis/{}/v1/subjectaccessreviews", group("authorization"));
    let workloads = |kind: &str| format!("/apis/apps/v1/namespaces/a/{kind}");
    let backend = |backend: Value| json!({"rules": [{"http": {"paths": [{"path": "/", "pathType": "Exact", "backend": backend}]}}]});
    for (url, spec, field) in [
        (
            &levels,
            json!({"type": "Limited", "limited": {"assuredConcurrencyShares": 3}}),
            "spec.limited.assuredConcurrencyShares",
        ),
        (&definitions, json!({"version": "v1"}), "spec.version"),
        (&definitions, json!({"validation": {}}), "spec.validation"),
        (&definitions, json!({"subresources": {}}), "spec.subresources"),
        (&definitions, json!({"additionalPrinterColumns": []}), "spec.additionalPrinterColumns"),
        (
            &definitions,
            json!({"versions": [{"name": "v1", "additionalPrinterColumns": [{"name": "a", "type": "string", "JSONPath": ".a"}]}]}),
            "spec.versions[0].additionalPrinterColumns[0].JSONPath",
        ),
        (&reviews, json!({"group": ["g"]}), "spec.group"),
        (&ingresses, json!({"backend": {"service": {"name": "s"}}}), "spec.backend"),
        (&ingresses, backend(json!({"serviceName": "s"})), "spec.rules[0].http.paths[0].backend.serviceName"),
        (&ingresses, backend(json!({"servicePort": 80})), "spec.rules[0].http.paths[0].backend.servicePort"),
        (&workloads("daemonsets"), json!({"templateGeneration": 1}), "spec.templateGeneration"),
        (&workloads("deployments"), json!({"rollbackTo": {"revision": 1}}), "spec.rollbackTo"),
    ] {
        let body = json!({"metadata": {"name": "x"}, "spec": spec});
        let reply = server.post(&format!("{url}?fieldValidation=Strict"), body).await;
        let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(reply.code, 400, "{field}: {message}");
        assert!(message.contains(&format!("unknown field \"{field}\"")), "{field}: {message}");
    }
    let service = |port: Value| json!({"service": {"name": "s", "port": port}});
    for (name, spec) in [
        ("default", json!({"defaultBackend": service(json!({"number": 80}))})),
        ("number", backend(service(json!({"number": 80})))),
        ("name", backend(service(json!({"name": "http"})))),
    ] {
        let body = json!({"metadata": {"name": name}, "spec": spec});
        let reply = server.post(&format!("{ingresses}?fieldValidation=Strict"), body).await;
        assert_eq!(reply.code, 201, "{:?}", reply.json());
        assert_eq!(server.get(&format!("{ingresses}/{name}")).await.json()["spec"], spec);
    }
    let slices = format!("/apis/{}/v1/namespaces/a/endpointslices", group("discovery"));
    let endpoint = json!({"addresses": ["10.0.0.1"], "conditions": {}, "nodeName": "n", "zone": "z"});
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [endpoint]});
    assert_eq!(server.post(&format!("{slices}?fieldValidation=Strict"), slice).await.code, 201);
    assert_eq!(server.get(&format!("{slices}/s")).await.json()["endpoints"][0], endpoint);
}

/// Version names are `v` and a number, and for alpha and beta a suffix with another number.
///
/// By default apid serves only stable versions.
#[tokio::test]
async fn only_stable_api_versions_are_served_by_default() {
    let server = Server::start().await;
    let groups = server.get("/apis").await.json();
    let mut seen = BTreeSet::new();
    for group in groups["groups"].as_array().unwrap() {
        let versions = group["versions"].as_array().unwrap();
        assert_eq!(group["preferredVersion"], versions[0], "{group}");
        for version in versions {
            let name = version["version"].as_str().unwrap();
            assert!(name.strip_prefix('v').is_some_and(|n| n.parse::<u32>().is_ok()), "{name}");
            let path = format!("/apis/{}", version["groupVersion"].as_str().unwrap());
            let list = server.get(&path).await.json();
            assert_eq!(list["kind"], "APIResourceList", "{path}");
            assert_eq!(list["groupVersion"], version["groupVersion"]);
            seen.insert(version["groupVersion"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(server.get("/api/v1").await.json()["kind"], "APIResourceList");
    let names = &server.api_state.names;
    let stems = [
        "admissionregistration",
        "apiextensions",
        "apiregistration",
        "apps",
        "authentication",
        "authorization",
        "batch",
        "certificates",
        "coordination",
        "discovery",
        "events",
        "flowcontrol.apiserver",
        "networking",
        "node",
        "policy",
        "rbac.authorization",
        "scheduling",
        "storage",
    ];
    let mut want: BTreeSet<String> = stems.iter().map(|stem| format!("{}/v1", names.group(stem))).collect();
    want.extend(["autoscaling/v1".to_owned(), "autoscaling/v2".to_owned()]);
    assert_eq!(seen, want);
    assert_eq!(server.get("/apis/autoscaling").await.json()["preferredVersion"]["version"], "v2");
    assert_eq!(server.get("/version").await.json()["minor"], "33");
}

fn event(name: &str) -> Value {
    json!({
        "metadata": {"name": name}, "regarding": {"kind": "Pod", "namespace": "a", "name": "p"}, "type": "Normal",
        "reason": "Started", "action": "Starting", "note": "began", "eventTime": "2024-05-06T07:08:09.123456Z",
        "reportingController": "example.com/ctl", "reportingInstance": "ctl-0",
        "series": {"count": 2, "lastObservedTime": "2024-05-06T07:08:10.654321Z"},
    })
}

#[tokio::test]
async fn event_converts_between_core_and_events_group() {
    let server = Server::start().await;
    let core = "/api/v1/namespaces/a/events";
    let newer = format!("/apis/{}/v1/namespaces/a/events", server.api_state.names.group("events"));
    let created = server.post(&newer, event("e")).await;
    assert_eq!(created.code, 201, "{:?}", created.json());
    let (created, converted) = (created.json(), server.get(&format!("{core}/e")).await.json());
    assert_eq!(converted["metadata"]["uid"], created["metadata"]["uid"]);
    for (field, stored) in [
        ("regarding", "involvedObject"),
        ("note", "message"),
        ("reportingController", "reportingComponent"),
        ("reportingInstance", "reportingInstance"),
        ("series", "series"),
        ("eventTime", "eventTime"),
    ] {
        assert_eq!(
            (&created[field], converted.get(stored)),
            (&event("e")[field], Some(&event("e")[field])),
            "{field}"
        );
    }
    let old = json!({"metadata": {"name": "old"}, "involvedObject": {"namespace": "a", "name": "q"}, "count": 3,
        "source": {"component": "c", "host": "h"}, "firstTimestamp": "2024-01-02T03:04:05Z", "lastTimestamp": "2024-01-02T03:04:06Z"});
    assert_eq!(server.post(core, old.clone()).await.code, 201);
    let converted = server.get(&format!("{newer}/old")).await.json();
    for (field, stored) in [
        ("deprecatedCount", "count"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
    ] {
        assert_eq!(converted[field], old[stored], "{field}");
    }

    let selection_url = |field: &str| format!("{newer}?fieldSelector={field}");
    let names = |list: Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(server.get(&selection_url("regarding.name=p")).await.json()), ["e"]);
    assert_eq!(names(server.get(&selection_url("metadata.name=old")).await.json()), ["old"]);
    assert_eq!(server.get(&selection_url("involvedObject.name=p")).await.code, 400);
    assert_eq!(server.get(&format!("{core}?fieldSelector=regarding.name=p")).await.code, 400);
    assert_eq!(names(server.get(&format!("{core}?fieldSelector=involvedObject.name=p")).await.json()), ["e"]);

    let changed = server.merge(&format!("{newer}/e"), json!({"note": "again"})).await.json();
    assert_eq!(changed["details"]["causes"][0]["field"], "message");
    let series = json!({"series": {"count": 5, "lastObservedTime": "2024-05-06T07:09:10.000001Z"}});
    assert_eq!(server.merge(&format!("{newer}/e"), series).await.json()["series"]["count"], 5);
    assert_eq!(server.merge(&format!("{core}/e"), json!({"message": "again"})).await.code, 200);
    assert_eq!(server.delete(&newer, Value::Null).await.code, 200);
    assert_eq!(server.get(core).await.json()["items"], json!([]));
}

/// Field requirements of events.k8s.io.
#[tokio::test]
async fn events_v1_validation_requires_more_fields() {
    let server = Server::start().await;
    let url = format!("/apis/{}/v1/namespaces/a/events", server.api_state.names.group("events"));
    for (field, value, cause) in [
        ("type", json!("Foo"), "type"),
        ("action", Value::Null, "action"),
        ("reason", Value::Null, "reason"),
        ("reportingController", Value::Null, "reportingController"),
        ("reportingInstance", Value::Null, "reportingInstance"),
        ("eventTime", Value::Null, "eventTime"),
        ("series", json!({"count": 1, "lastObservedTime": "2024-05-06T07:08:10.000000Z"}), "series.count"),
        ("deprecatedCount", json!(1), "count"),
        ("deprecatedSource", json!({"component": "c"}), "source"),
        ("deprecatedFirstTimestamp", json!("2024-05-06T07:08:10Z"), "firstTimestamp"),
        ("deprecatedLastTimestamp", json!("2024-05-06T07:08:10Z"), "lastTimestamp"),
    ] {
        let mut body = event("e");
        body[field] = value;
        let reply = server.post(&url, body).await;
        let causes: Vec<Value> = reply.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
        assert_eq!(reply.code, 422, "{field}");
        assert!(causes.iter().any(|c| c["field"] == cause), "{field}: {causes:?}");
    }
    assert_eq!(server.post(&url, event("e")).await.code, 201);
}
