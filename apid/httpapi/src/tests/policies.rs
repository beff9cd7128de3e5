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
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]});
    let policy = json!({"metadata": {"name": name}, "spec": {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "one"}, {"expression": "false", "message": "one"}],
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
