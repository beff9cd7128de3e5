//! Subresources: scale, binding, eviction, pod subresources, and subresources that are not implemented.

use serde_json::{Value, json};

use super::{Reply, Server};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/a/deployments";
const PODS: &str = "/api/v1/namespaces/a/pods";

fn workload(name: &str) -> Value {
    let template =
        json!({"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({"metadata": {"name": name}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "w"}}, "template": template}})
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

async fn create(server: &Server, url: &str, body: Value) -> Value {
    let reply = server.post(url, body).await;
    assert_eq!(reply.code, 201, "{url}: {:?}", reply.json());
    reply.json()
}

/// Every scalable kind serves the same Scale.
#[tokio::test]
async fn scale_subresource_of_every_workload_kind() {
    let server = Server::start().await;
    let controller = json!({"metadata": {"name": "x"}, "spec": {"replicas": 1, "selector": {"app": "w"},
        "template": workload("x")["spec"]["template"]}});
    for (url, body) in [
        (DEPLOYMENTS, workload("x")),
        ("/apis/apps/v1/namespaces/a/replicasets", workload("x")),
        ("/apis/apps/v1/namespaces/a/statefulsets", workload("x")),
        ("/api/v1/namespaces/a/replicationcontrollers", controller),
    ] {
        let object = create(&server, url, body).await;
        let scale = server.get(&format!("{url}/x/scale")).await.json();
        assert_eq!(
            (&scale["kind"], &scale["apiVersion"]),
            (&json!("Scale"), &json!("autoscaling/v1")),
            "{url}"
        );
        assert_eq!(
            (&scale["spec"], &scale["status"]),
            (&json!({"replicas": 1}), &json!({"replicas": 0, "selector": "app=w"}))
        );
        for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
            assert_eq!(scale["metadata"][field], object["metadata"][field], "{url} {field}");
        }
        let mut wanted = scale.clone();
        wanted["spec"]["replicas"] = json!(3);
        let reply = server.put(&format!("{url}/x/scale"), wanted).await;
        assert_eq!((reply.code, &reply.json()["spec"]), (200, &json!({"replicas": 3})), "{url}");
        let object = server.get(&format!("{url}/x")).await.json();
        assert_eq!(
            (&object["spec"]["replicas"], &object["metadata"]["generation"]),
            (&json!(3), &json!(2)),
            "{url}"
        );
        assert_eq!(server.post(&format!("{url}/x/scale"), json!({})).await.code, 405);
        assert_eq!(server.delete(&format!("{url}/x/scale"), Value::Null).await.code, 405);
        assert_eq!(server.get(&format!("{url}/gone/scale")).await.json()["details"]["name"], "gone");
    }
    assert_eq!(server.get("/apis/apps/v1/namespaces/a/daemonsets/x/scale").await.code, 404);
}

/// Preconditions and validation of writes to a scale.
#[tokio::test]
async fn scale_update_checks_preconditions_and_validation() {
    let server = Server::start().await;
    let object = create(&server, DEPLOYMENTS, workload("d")).await;
    let url = format!("{DEPLOYMENTS}/d/scale");
    let metadata =
        |field: &str, value: &str| json!({"metadata": {"name": "d", field: value}, "spec": {"replicas": 4}});
    for (body, code, reason) in [
        (metadata("resourceVersion", "1"), 409, "Conflict"),
        (metadata("uid", "other"), 409, "Conflict"),
        (metadata("name", "e"), 400, "BadRequest"),
        (metadata("namespace", "b"), 400, "BadRequest"),
        (json!({"metadata": {"name": "d"}, "spec": {"replicas": -1}}), 422, "Invalid"),
        (json!({"metadata": {"name": "d"}, "spec": {"replicas": "4"}}), 400, "BadRequest"),
        (
            json!({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {"name": "d"}}),
            400,
            "BadRequest",
        ),
        (
            json!({"kind": "Scale", "apiVersion": "autoscaling/v2", "metadata": {"name": "d"}}),
            400,
            "BadRequest",
        ),
    ] {
        let reply = server.put(&url, body.clone()).await;
        assert_eq!((reply.code, reply.json()["reason"].as_str().unwrap()), (code, reason), "{body}");
    }
    let invalid = server.merge(&url, json!({"spec": {"replicas": -1}})).await.json();
    assert_eq!(invalid["details"]["kind"], "Scale");
    assert_eq!(invalid["details"]["causes"][0]["field"], "spec.replicas");
    assert_eq!(
        server.merge(&url, json!({"spec": {"replicas": "4"}})).await.code,
        422,
        "the patch result is validated"
    );
    assert_eq!(
        server.merge(&url, json!({"metadata": {"resourceVersion": "1"}, "spec": {"replicas": 4}})).await.code,
        409
    );

    let unknown = json!({"metadata": {"name": "d"}, "spec": {"replicas": 4, "extra": 1}});
    let strict = server.put(&format!("{url}?fieldValidation=Strict"), unknown.clone()).await;
    assert_eq!(strict.code, 400);
    let preview = server.put(&format!("{url}?dryRun=All"), unknown).await;
    assert_eq!(
        (preview.code, preview.header("warning")),
        (200, "299 - \"unknown field \\\"spec.extra\\\"\"")
    );
    assert_eq!(preview.json()["spec"]["replicas"], 4);
    assert_eq!(server.get(&url).await.json()["spec"]["replicas"], 1, "a dry run stores nothing");

    let table = ("accept", "application/json;as=Table;v=v1;g=meta.example.test");
    let table = server.send("GET", &url, &[table], "").await.json();
    assert_eq!(table["columnDefinitions"].as_array().unwrap().len(), 4);
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..3], [json!("d"), json!(1), json!(0)]);
    let partial = ("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.example.test");
    let partial = server.send("GET", &url, &[partial], "").await.json();
    assert_eq!(
        (&partial["kind"], &partial["metadata"]["uid"]),
        (&json!("PartialObjectMetadata"), &object["metadata"]["uid"])
    );

    let same = server.put(&url, json!({"metadata": {"name": "d"}, "spec": {"replicas": 1}})).await.json();
    assert_eq!(
        same["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"],
        "update without changes keeps the resourceVersion"
    );
    let without_replicas = server.put(&url, json!({"metadata": {"name": "d"}})).await.json();
    assert_eq!(without_replicas["spec"], json!({}), "missing replicas mean 0");
}

#[tokio::test]
async fn binding_assigns_pod_to_node() {
    let server = Server::start().await;
    let binding = |name: &str, node: &str| json!({"metadata": {"name": name, "annotations": {"by": "me"}}, "target": {"kind": "Node", "name": node}});
    for (pod_name, url, again) in
        [("p", format!("{PODS}/p/binding"), "n2"), ("q", "/api/v1/namespaces/a/bindings".to_owned(), "n1")]
    {
        let before = create(&server, PODS, pod(pod_name)).await;
        let preview = server.post(&format!("{url}?dryRun=All"), binding(pod_name, "n1")).await;
        assert_eq!(preview.code, 201);
        assert!(server.get(&format!("{PODS}/{pod_name}")).await.json()["spec"].get("nodeName").is_none());
        let bound = server.post(&url, binding(pod_name, "n1")).await;
        assert_eq!(
            (bound.code, bound.json()),
            (
                201,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
            )
        );
        let pod = server.get(&format!("{PODS}/{pod_name}")).await.json();
        assert_eq!(
            (&pod["spec"]["nodeName"], &pod["metadata"]["annotations"]),
            (&json!("n1"), &json!({"by": "me"}))
        );
        assert_eq!(pod["metadata"]["generation"], before["metadata"]["generation"]);
        let condition = &pod["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("PodScheduled"), &json!("True")));
        let rejected = server.post(&url, binding(pod_name, again)).await;
        assert_eq!((rejected.code, &rejected.json()["details"]["kind"]), (409, &json!("pods/binding")));
    }
    create(&server, PODS, pod("r")).await;
    let url = format!("{PODS}/r/binding");
    let binding_with_precondition =
        |field: &str| json!({"metadata": {"name": "r", field: "7"}, "target": {"name": "n"}});
    for (body, code) in [
        (binding("s", "n1"), 400),
        (binding_with_precondition("uid"), 409),
        (binding_with_precondition("resourceVersion"), 409),
        (json!({"metadata": {"name": "r"}, "target": {}}), 500),
        (json!({"metadata": {"name": "r"}, "target": {"kind": "Pod", "name": "n"}}), 500),
        (json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "r"}}), 400),
    ] {
        assert_eq!(server.post(&url, body.clone()).await.code, code, "{body}");
    }
    assert_eq!(server.post(&format!("{PODS}/gone/binding"), binding("gone", "n")).await.code, 404);
    assert_eq!(server.get(&url).await.code, 405);
    assert_eq!(server.get("/api/v1/namespaces/a/bindings").await.code, 405);
}

#[tokio::test]
async fn pod_subresources_change_only_their_fields() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}}}]}});
    create(&server, PODS, body).await;
    let strategic = ("content-type", "application/strategic-merge-patch+json");
    let patch = async |part: &str, body: Value| -> Reply {
        server.send("PATCH", &format!("{PODS}/p/{part}"), &[strategic], body.to_string()).await
    };
    let debug = json!({"metadata": {"labels": {"no": "1"}}, "spec": {"nodeName": "no",
        "ephemeralContainers": [{"name": "debug", "image": "i", "targetContainerName": "c"}]}});
    let pod = patch("ephemeralcontainers", debug).await.json();
    assert_eq!(pod["spec"]["ephemeralContainers"][0]["name"], "debug");
    assert_eq!(
        (&pod["metadata"]["generation"], pod["metadata"].get("labels"), pod["spec"].get("nodeName")),
        (&json!(2), None, None)
    );
    let changed = patch(
        "ephemeralcontainers",
        json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "j"}]}}),
    )
    .await;
    assert_eq!(
        (changed.code, &changed.json()["details"]["causes"][0]["field"]),
        (422, &json!("spec.ephemeralContainers"))
    );

    let more = json!({"spec": {"containers": [{"name": "c", "image": "j", "resources": {"limits": {"cpu": "300m"}}}]}});
    let pod = patch("resize", more).await.json();
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["resources"], json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "300m"}}));
    assert_eq!((&container["image"], &pod["metadata"]["generation"]), (&json!("i"), &json!(3)));
    let rejected = patch(
        "resize",
        json!({"spec": {"containers": [{"name": "c", "resources": {"limits": {"ephemeral-storage": "1Gi"}}}]}}),
    )
    .await;
    assert_eq!((rejected.code, &rejected.json()["details"]["causes"][0]["field"]), (422, &json!("spec")));
    for part in ["ephemeralcontainers", "resize", "status"] {
        assert_eq!(server.get(&format!("{PODS}/p/{part}")).await.json()["kind"], "Pod");
    }
}

/// Subresources with a connection are checked before a connection; missing objects return 404.
#[tokio::test]
async fn connected_subresource_is_checked_before_connection() {
    let server = Server::start().await;
    create(&server, PODS, pod("p")).await;
    let mut on_node = pod("on-node");
    on_node["spec"]["nodeName"] = json!("n");
    create(&server, PODS, on_node).await;
    let mut lost = pod("lost");
    lost["spec"]["nodeName"] = json!("gone");
    create(&server, PODS, lost).await;
    let mut two = pod("two");
    two["spec"]["containers"] = json!([{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]);
    create(&server, PODS, two).await;
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80, "name": "web"}]}});
    create(&server, "/api/v1/namespaces/a/services", service).await;
    create(&server, "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    for (name, address) in [("at-local-address", "127.0.0.1"), ("at-address", "192.0.2.1")] {
        let status = json!({"addresses": [{"type": "InternalIP", "address": address}]});
        create(&server, "/api/v1/nodes", json!({"metadata": {"name": name}, "status": status})).await;
        let mut there = pod(name);
        there["spec"]["nodeName"] = json!(name);
        create(&server, PODS, there).await;
    }
    for (method, path, code, text) in [
        ("GET", "pods/p/log", 204, ""),
        ("GET", "pods/p/log?container=other", 400, "container other is not valid for pod p"),
        ("GET", "pods/two/log", 400, "a container name must be specified for pod two, choose one of: [a b]"),
        ("GET", "pods/two/log?container=b", 204, ""),
        ("GET", "pods/p/log?tailLines=-1", 422, "tailLines: Invalid value: -1"),
        ("GET", "pods/p/log?limitBytes=0", 422, "limitBytes: Invalid value: 0"),
        (
            "GET",
            "pods/p/log?sinceSeconds=1&sinceTime=2024-01-01T00:00:00Z",
            422,
            "[]: Forbidden: at most one of",
        ),
        ("GET", "pods/p/log?sinceTime=yesterday", 400, "parsing time \"yesterday\""),
        ("GET", "pods/at-local-address/log", 400, "address not allowed"),
        ("POST", "pods/at-local-address/exec?stdout=1", 400, "address not allowed"),
        ("POST", "pods/at-address/exec?stdout=1", 400, "Upgrade request required"),
        ("GET", "pods/p/log?stream=Stdout", 422, "stream: Forbidden: may not be specified"),
        ("GET", "pods/lost/log", 404, "pods \"gone\" not found"),
        ("GET", "pods/on-node/log", 500, "no preferred addresses found; known addresses: []"),
        ("POST", "pods/p/exec", 400, "pod p does not have a host assigned"),
        ("POST", "pods/lost/attach", 404, "pods \"gone\" not found"),
        ("POST", "pods/on-node/exec", 500, "no preferred addresses found; known addresses: []"),
        ("GET", "pods/on-node/attach", 500, "no preferred addresses found; known addresses: []"),
        ("POST", "pods/on-node/portforward", 500, "no preferred addresses found; known addresses: []"),
        ("GET", "pods/p/proxy/a/b", 400, "address not allowed"),
        ("DELETE", "pods/p/proxy/a/b", 400, "address not allowed"),
        ("OPTIONS", "pods/p/proxy/a/b", 400, "address not allowed"),
        ("GET", "pods/a:b:c:d/proxy", 400, "invalid pod request"),
        ("GET", "services/a:b:c:d/proxy", 400, "invalid service request"),
        ("GET", "services/s:81/proxy", 503, "no service port 81 found for service \"s\""),
        ("GET", "services/s/proxy", 404, "services \"s\" not found"),
    ] {
        let reply = server.send(method, &format!("/api/v1/namespaces/a/{path}"), &[], "").await;
        assert_eq!(reply.code, code, "{method} {path}");
        if code != 204 {
            let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
            assert!(message.contains(text), "{path}: {message}");
        }
    }
    let endpoints = |subsets: Value| json!({"metadata": {"name": "s"}, "subsets": subsets});
    create(&server, "/api/v1/namespaces/a/endpoints", endpoints(json!([]))).await;
    let proxy = |name: &str| format!("/api/v1/namespaces/a/services/{name}/proxy/x");
    let message = |reply: Reply| reply.json()["message"].as_str().unwrap_or_default().to_owned();
    let reply = server.get(&proxy("s")).await;
    assert_eq!((reply.code, message(reply)), (503, "no endpoints available for service \"s\"".to_owned()));
    let subsets = json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"name": "web", "port": 80}]}]);
    let path = "/api/v1/namespaces/a/endpoints/s";
    assert_eq!(server.put(path, endpoints(subsets)).await.code, 200);
    for (name, text) in [
        ("s:web", "no endpoints available for service \"s:web\""),
        ("https:s:80", "no endpoints available for service \"https:s:80\""),
        ("s", "no endpoints available for service \"s\""),
        ("s:other", "no endpoints available for service \"s:other\""),
    ] {
        let reply = server.get(&proxy(name)).await;
        assert_eq!(reply.code, 503, "{name}");
        let message = message(reply);
        assert!(message.contains(text), "{name}: {message}");
    }
    let reply = server.get("/api/v1/nodes/n/proxy/metrics").await;
    assert_eq!(
        (reply.code, message(reply)),
        (500, "no preferred addresses found; known addresses: []".to_owned())
    );
    for (name, text) in [
        ("at-local-address", "address not allowed"),
        ("ftp:n:1", "invalid node request \"ftp:n:1\""),
        ("at-address:x", "invalid port \"x\" of node \"at-address\""),
    ] {
        let reply = server.get(&format!("/api/v1/nodes/{name}/proxy/metrics")).await;
        assert_eq!((reply.code, message(reply)), (400, text.to_owned()), "{name}");
    }
    for path in
        ["pods/gone/log", "services/gone/proxy/a", "pods/p/other", "pods/p/log/more", "pods/p/status/more"]
    {
        assert_eq!(server.get(&format!("/api/v1/namespaces/a/{path}")).await.code, 404, "{path}");
    }
    assert_eq!(server.send("PUT", &format!("{PODS}/p/log"), &[], "").await.code, 405);
}

/// A PodDisruptionBudget rejects evictions, or counts those that it allows.
#[tokio::test]
async fn eviction_respects_pod_disruption_budget() {
    let server = Server::start().await;
    let budgets =
        format!("/apis/{}/v1/namespaces/a/poddisruptionbudgets", server.api_state.names.group("policy"));
    let create_running_pod = async |name: &str| {
        create(&server, PODS, pod(name)).await;
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(server.merge(&format!("{PODS}/{name}/status"), json!({"status": status})).await.code, 200);
    };
    let evict = async |name: &str, body: Value| {
        let mut order = json!({"metadata": {"name": name}});
        order.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        server.post(&format!("{PODS}/{name}/eviction"), order).await
    };
    for name in ["p", "q", "r"] {
        create_running_pod(name).await;
    }
    assert_eq!(evict("p", json!({"metadata": {"name": "other"}})).await.code, 400);
    assert_eq!(evict("gone", json!({})).await.code, 404);
    let other = json!({"deleteOptions": {"preconditions": {"uid": "other"}}});
    assert_eq!(evict("p", other).await.code, 409);
    assert_eq!(server.get(&format!("{PODS}/p/eviction")).await.code, 405);

    // A budget without a selector selects no pod; an empty selector selects all pods.
    create(&server, &budgets, json!({"metadata": {"name": "none"}, "spec": {"minAvailable": 1}})).await;
    let preview = evict("p", json!({"deleteOptions": {"dryRun": ["All"]}})).await;
    assert_eq!((preview.code, server.get(&format!("{PODS}/p")).await.code), (201, 200), "a dry run");
    let evicted = evict("p", json!({})).await;
    assert_eq!((evicted.code, &evicted.json()["status"]), (201, &json!("Success")));
    assert_eq!(server.get(&format!("{PODS}/p")).await.code, 404);

    create(
        &server,
        &budgets,
        json!({"metadata": {"name": "all"}, "spec": {"minAvailable": 1, "selector": {}}}),
    )
    .await;
    let waiting = evict("q", json!({})).await;
    assert_eq!((waiting.code, waiting.header("retry-after")), (429, "10"), "the budget has no status yet");
    let url = format!("{budgets}/all/status");
    let count = |allowed: u32| json!({"status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "observedGeneration": 1}});
    assert_eq!(server.merge(&url, count(0)).await.code, 200);
    let rejected = evict("q", json!({})).await;
    assert_eq!((rejected.code, rejected.header("retry-after")), (429, ""));
    assert_eq!(rejected.json()["details"]["causes"][0]["reason"], "DisruptionBudget");
    assert_eq!(server.merge(&url, count(1)).await.code, 200);
    assert_eq!(evict("q", json!({})).await.code, 201);
    let charged = server.get(&format!("{budgets}/all")).await.json();
    assert_eq!(charged["status"]["disruptionsAllowed"], 0);
    assert!(charged["status"]["disruptedPods"].get("q").is_some());
    assert_eq!(evict("r", json!({})).await.code, 429);
    create(&server, PODS, pod("old")).await;
    let old = json!({"kind": "Eviction", "apiVersion": format!("{}/v1beta1", server.api_state.names.group("policy"))});
    assert_eq!(evict("old", old).await.code, 201, "eviction in version policy/v1beta1");
    let other = json!({"kind": "Eviction", "apiVersion": "apps/v1"});
    assert_eq!(evict("r", other).await.code, 400);
    create(&server, PODS, pod("pending")).await;
    assert_eq!(evict("pending", json!({})).await.code, 201, "pending pods need no budget");
    create(
        &server,
        &budgets,
        json!({"metadata": {"name": "too"}, "spec": {"minAvailable": 1, "selector": {}}}),
    )
    .await;
    assert_eq!(evict("r", json!({})).await.code, 500, "two budgets select the pod");
    assert_eq!(server.get(&format!("{PODS}/r")).await.code, 200);
}
