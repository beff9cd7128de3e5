//! Effects of admission policies on responses.

use serde_json::{Value, json};

use super::Server;

const GROUP: &str = "/apis/admissionregistration.example.test/v1";
const MAPS: &str = "/api/v1/namespaces/a/configmaps";
const PODS: &str = "/api/v1/namespaces/a/pods";

/// Creates a policy whose expressions are false for each write of a resource, and its binding.
///
/// `action` is the validation action of the binding.
async fn add_policy(server: &Server, name: &str, resource: &str, operation: &str, action: &str) {
    let validation = json!({"expression": "false", "message": "one"});
    add_policy_with(server, (name, resource, operation, action), json!([validation, validation])).await;
}

/// Creates a policy with these validations, and its binding.
async fn add_policy_with(
    server: &Server,
    (name, resource, operation, action): (&str, &str, &str, &str),
    validations: Value,
) {
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]});
    let policy = json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [rule]}, "validations": validations,
    }});
    let binding =
        json!({"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": [action]}});
    for (path, object) in
        [("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)]
    {
        let created = server.post(&format!("{GROUP}/{path}"), object).await;
        assert_eq!(created.code, 201, "{created:?}");
    }
}

fn warnings(headers: &http::HeaderMap) -> Vec<&str> {
    headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn denied_write_has_warnings_of_body_and_of_other_policies() {
    let server = Server::start().await;
    add_policy(&server, "deny", "configmaps", "*", "Deny").await;
    add_policy(&server, "warn", "configmaps", "*", "Warn").await;
    let denied = server.post(MAPS, json!({"metadata": {"name": "m"}, "nope": 1})).await;
    assert_eq!(denied.code, 422, "{denied:?}");
    assert_eq!(denied.json()["kind"], "Status");
    let warned = "299 - \"Validation failed for ValidatingAdmissionPolicy 'warn' with binding 'warn': one\"";
    assert_eq!(warnings(&denied.headers), ["299 - \"unknown field \\\"nope\\\"\"", warned]);
}

#[tokio::test]
async fn policy_does_not_validate_deletion_that_waits_for_grace_period() {
    let server = Server::start().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n",
        "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(server.post(PODS, pod).await.code, 201);
    let path = format!("{PODS}/p");
    assert_eq!(server.delete(&path, Value::Null).await.code, 200);
    add_policy(&server, "deny", "pods", "DELETE", "Deny").await;
    assert_eq!(server.delete(&path, Value::Null).await.code, 200);
    let shortened = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1});
    assert_eq!(server.delete(&path, shortened).await.code, 422);
}

/// Policies decide about connections before anything else is checked.
#[tokio::test]
async fn connection_is_validated_before_the_object_is_read() {
    let server = Server::start().await;
    let shown = "request.operation + ' ' + request.kind.kind + ' ' + request.name + ' ' + request.subResource + ' ' + \
        string(request.options == null) + ' ' + \
        (has(object.command) && object.command != null ? object.command.join(',') : '-') + ' ' + \
        (has(object.path) ? object.path : '-') + ' ' + (has(object.ports) ? string(object.ports[0]) : '-') + ' ' + \
        string(has(object.stdout) && object.stdout) + ' ' + (has(object.container) ? object.container : '-')";
    for (name, resource) in [("pods", "pods/*"), ("services", "services/proxy"), ("nodes", "nodes/proxy")] {
        let validation = json!([{"expression": "false", "messageExpression": shown}]);
        add_policy_with(&server, (name, resource, "CONNECT", "Deny"), validation).await;
    }
    let namespace = "/api/v1/namespaces/a";
    for (method, path, expected) in [
        ("POST", "pods/p/exec?command=ls&command=-l&stdout=1", "PodExecOptions p exec true ls,-l - - true -"),
        ("GET", "pods/p/exec?container=c&stdout=false", "PodExecOptions p exec true - - - false c"),
        ("POST", "pods/p/attach?stdout=&command=ls", "PodAttachOptions p attach true - - - true -"),
        ("POST", "pods/p/portforward?ports=80", "PodPortForwardOptions p portforward true - - 80 false -"),
        ("GET", "pods/p/proxy", "PodProxyOptions p proxy true - - - false -"),
        ("PUT", "pods/p:80/proxy/a%20b/", "PodProxyOptions p:80 proxy true - /a b/ - false -"),
        ("GET", "services/s/proxy/x", "ServiceProxyOptions s proxy true - /x - false -"),
    ] {
        let reply = server.send(method, &format!("{namespace}/{path}"), &[], "").await;
        assert_eq!(reply.code, 422, "{path}: {reply:?}");
        let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.ends_with(&format!("CONNECT {expected}")), "{path}: {message}");
    }
    let node = server.get("/api/v1/nodes/n/proxy/metrics").await;
    assert_eq!(node.code, 422);
    let message = node.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.ends_with("CONNECT NodeProxyOptions n proxy true - /metrics - false -"), "{message}");
    assert_eq!(server.get(&format!("{namespace}/pods/p/log")).await.code, 404, "a log is a read");
    assert_eq!(server.post(&format!("{namespace}/pods/p/portforward?ports=x"), Value::Null).await.code, 400);
}

/// Policies see the options of the operation, not those of the request.
#[tokio::test]
async fn patch_shows_the_options_of_the_operation() {
    let server = Server::start().await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "b"}});
    assert_eq!(server.post(MAPS, map).await.code, 201);
    let shown = "request.options.kind + ' ' + request.options.fieldValidation + ' ' + \
        string(has(request.options.force)) + ' ' + request.options.fieldManager";
    let validation = json!([{"expression": "false", "messageExpression": shown}]);
    add_policy_with(&server, ("show", "configmaps", "*", "Deny"), validation).await;
    let parameters = "fieldManager=me&fieldValidation=Strict";
    let apply =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"x": "y"}});
    for (content_type, name, body, expected) in [
        ("application/merge-patch+json", "m", json!({"data": {"x": "y"}}), "UpdateOptions"),
        ("application/strategic-merge-patch+json", "m", json!({"data": {"x": "y"}}), "UpdateOptions"),
        (
            "application/json-patch+json",
            "m",
            json!([{"op": "add", "path": "/data/x", "value": "y"}]),
            "UpdateOptions",
        ),
        ("application/apply-patch+yaml", "m", apply.clone(), "UpdateOptions"),
        (
            "application/apply-patch+yaml",
            "n",
            {
                let mut apply = apply.clone();
                apply["metadata"]["name"] = json!("n");
                apply
            },
            "CreateOptions",
        ),
    ] {
        let force = if content_type.contains("apply") { "&force=true" } else { "" };
        let path = format!("{MAPS}/{name}?{parameters}{force}");
        let reply = server.send("PATCH", &path, &[("content-type", content_type)], body.to_string()).await;
        assert_eq!(reply.code, 422, "{reply:?}");
        let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.ends_with(&format!("{expected} Strict false me")), "{content_type}: {message}");
    }
}

/// Only the creation of the eviction is admitted, as in kube-apiserver.
#[tokio::test]
async fn eviction_is_not_admitted_as_deletion_of_the_pod() {
    let server = Server::start().await;
    let pod = |name: &str| {
        json!({"metadata": {"name": name, "finalizers": ["example.test/keep"]},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}})
    };
    for name in ["p", "q"] {
        assert_eq!(server.post(PODS, pod(name)).await.code, 201);
    }
    add_policy(&server, "deletes", "pods", "DELETE", "Deny").await;
    let evict = async |name: &str| {
        server.post(&format!("{PODS}/{name}/eviction"), json!({"metadata": {"name": name}})).await.code
    };
    assert_eq!(server.delete(&format!("{PODS}/p"), Value::Null).await.code, 422);
    assert_eq!(evict("p").await, 201);
    let evicted = server.get(&format!("{PODS}/p")).await.json();
    assert!(evicted["metadata"]["deletionTimestamp"].is_string(), "{evicted}");
    let conditions = evicted["status"]["conditions"].as_array().unwrap();
    let condition = conditions.iter().find(|condition| condition["type"] == "DisruptionTarget").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("EvictionByEvictionAPI"))
    );
    assert_eq!(condition["message"], "Eviction API: evicting");
    assert!(condition["lastTransitionTime"].is_string());
    add_policy(&server, "evictions", "pods/eviction", "CREATE", "Deny").await;
    assert_eq!(evict("q").await, 422);
    assert!(server.get(&format!("{PODS}/q")).await.json()["status"].get("conditions").is_none());
}

#[tokio::test]
async fn deletion_of_a_collection_shows_no_name() {
    let server = Server::start().await;
    assert_eq!(server.post(MAPS, json!({"metadata": {"name": "m"}})).await.code, 201);
    let shown =
        "(has(request.name) && request.name != '' ? request.name : 'none') + ' ' + oldObject.metadata.name";
    let validation = json!([{"expression": "false", "messageExpression": shown}]);
    add_policy_with(&server, ("show", "configmaps", "DELETE", "Deny"), validation).await;
    for (path, expected) in [(MAPS.to_owned(), "none m"), (format!("{MAPS}/m"), "m m")] {
        let reply = server.delete(&path, Value::Null).await;
        assert_eq!(reply.code, 422, "{reply:?}");
        let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.ends_with(expected), "{path}: {message}");
    }
}

/// A Binding on its own path is admitted as `bindings`, not as `pods/binding`.
#[tokio::test]
async fn binding_is_admitted_as_resource_of_its_path() {
    let server = Server::start().await;
    let pod = json!({"metadata": {"name": "p"},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(server.post(PODS, pod).await.code, 201);
    let shown = "request.resource.resource + '/' + (has(request.subResource) ? request.subResource : '') + ' ' + \
        request.kind.kind + ' ' + request.name";
    let validation = json!([{"expression": "false", "messageExpression": shown}]);
    for (name, resource) in [("own", "bindings"), ("pods", "pods/binding")] {
        add_policy_with(&server, (name, resource, "CREATE", "Deny"), validation.clone()).await;
    }
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    for (path, expected) in [
        ("/api/v1/namespaces/a/bindings".to_owned(), "bindings/ Binding p"),
        (format!("{PODS}/p/binding"), "pods/binding Binding p"),
    ] {
        let reply = server.post(&path, binding.clone()).await;
        assert_eq!(reply.code, 422, "{reply:?}");
        let message = reply.json()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.ends_with(expected), "{path}: {message}");
    }
}

/// apid creates the IPAddress objects of a Service, and policies decide about them.
#[tokio::test]
async fn addresses_of_a_service_are_admitted() {
    let server = Server::start().await;
    let service = |name: &str| json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 80}]}});
    let services = "/api/v1/namespaces/a/services";
    assert_eq!(server.post(services, service("before")).await.code, 201);
    let rule = json!({"apiGroups": ["networking.example.test"], "apiVersions": ["*"], "operations": ["CREATE"],
        "resources": ["ipaddresses"]});
    let shown = "'by ' + request.userInfo.username + ' for ' + object.spec.parentRef.name";
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "messageExpression": shown}]}});
    let binding =
        json!({"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    for (path, object) in
        [("validatingadmissionpolicies", policy), ("validatingadmissionpolicybindings", binding)]
    {
        assert_eq!(server.post(&format!("{GROUP}/{path}"), object).await.code, 201);
    }
    let refused = server.post(services, service("after")).await;
    assert_eq!(refused.code, 500, "{refused:?}");
    let message = refused.json()["message"].as_str().unwrap_or_default().to_owned();
    assert!(message.contains("failed to allocate a serviceIP"), "{message}");
    assert!(message.ends_with("by system:apiserver for after"), "{message}");
    assert_eq!(server.get(&format!("{services}/after")).await.code, 404);
    let mut headless = service("headless");
    headless["spec"]["clusterIP"] = json!("None");
    assert_eq!(server.post(services, headless).await.code, 201, "a Service without an address");
}
