//! Read checks for the authors of admission policies and bindings.

use std::collections::BTreeSet;
use std::sync::Arc;

use authproto::auth::AuthorizeRequest;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Reply, Server};
use audit::AuditLog;
use authclient::Auth;

const GROUP: &str = "/apis/admissionregistration.example.test/v1";

/// A server that denies reads, except those in the set, written as `group/version/resource/namespace/name`.
async fn server_with_reads(reads: &[&str]) -> (Server, Arc<Mutex<Vec<String>>>) {
    let reads: BTreeSet<String> = reads.iter().map(|read| (*read).to_owned()).collect();
    let denied = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&denied);
    let is_allowed = move |request: &AuthorizeRequest| {
        let Some(attributes) = request.attributes.as_ref().filter(|attributes| attributes.verb == "get")
        else {
            return true;
        };
        let read = [
            &attributes.group,
            &attributes.version,
            &attributes.resource,
            &attributes.namespace,
            &attributes.name,
        ];
        let read = read.map(String::as_str).join("/");
        let is_allowed = reads.contains(&read);
        if !is_allowed {
            log.lock().push(read);
        }
        is_allowed
    };
    let server = Server::start_with_audit(|clock| Auth::allow_if(clock, is_allowed), AuditLog::off()).await;
    (server, denied)
}

async fn write(server: &Server, method: &str, path: &str, user: &str, body: &Value) -> Reply {
    let token = format!("Bearer {user}");
    let headers = [("content-type", "application/json"), ("authorization", token.as_str())];
    server.send(method, &format!("{GROUP}/{path}"), &headers, body.to_string()).await
}

fn policy(param_kind: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods"]});
    json!({"metadata": {"name": "p"}, "spec": {
        "paramKind": param_kind, "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "params != null"}],
    }})
}

fn binding(param_ref: Value) -> Value {
    json!({"metadata": {"name": "b"}, "spec": {
        "policyName": "p", "validationActions": ["Warn"], "paramRef": param_ref,
    }})
}

#[tokio::test]
async fn author_of_policy_without_read_access_to_param_kind_gets_422() {
    for (param_kind, check) in [
        (json!({"apiVersion": "v1", "kind": "Secret"}), "/v1/secrets/*/*"),
        (json!({"apiVersion": "apps/v1", "kind": "Deployment"}), "apps/v1/deployments/*/*"),
        (json!({"apiVersion": "no.such/v2", "kind": "Nothing"}), "no.such/v2/*/*/*"),
    ] {
        let path = "validatingadmissionpolicies";
        let (server, denied) = server_with_reads(&[]).await;
        let object = policy(param_kind.clone());
        let rejected = write(&server, "POST", path, "alice", &object).await;
        assert_eq!(rejected.code, 422, "{rejected:?}");
        assert_eq!(denied.lock().last().map(String::as_str), Some(check));
        let status = rejected.json();
        let cause = &status["details"]["causes"][0];
        assert_eq!(
            (&cause["field"], &cause["reason"]),
            (&json!("spec.paramKind"), &json!("FieldValueForbidden"))
        );
        let (kind, version) = (&param_kind["kind"], &param_kind["apiVersion"]);
        let message = format!(
            "Forbidden: user &{{alice  [] map[]}} must have \"get\" permission on all objects of the referenced \
             paramKind (kind={}, apiVersion={})",
            kind.as_str().unwrap(),
            version.as_str().unwrap()
        );
        assert_eq!(cause["message"], message);
        assert_eq!(write(&server, "POST", path, "root@system:masters", &object).await.code, 201);

        let (server, _) = server_with_reads(&[check]).await;
        assert_eq!(write(&server, "POST", path, "alice", &object).await.code, 201);
    }
}

#[tokio::test]
async fn update_that_keeps_param_kind_needs_no_read_access() {
    let (server, _) = server_with_reads(&[]).await;
    let mut object = policy(json!({"apiVersion": "v1", "kind": "Secret"}));
    let path = "validatingadmissionpolicies";
    let created = write(&server, "POST", path, "root@system:masters", &object).await.json();
    let path = format!("{path}/p");
    object["metadata"] = created["metadata"].clone();
    object["spec"]["failurePolicy"] = json!("Ignore");
    let updated = write(&server, "PUT", &path, "alice", &object).await;
    assert_eq!(updated.code, 200, "{updated:?}");
    object = updated.json();
    object["spec"]["paramKind"]["kind"] = json!("ConfigMap");
    assert_eq!(write(&server, "PUT", &path, "alice", &object).await.code, 422);
    object["spec"].as_object_mut().unwrap().remove("paramKind");
    object["spec"]["validations"][0]["expression"] = json!("true");
    let updated = write(&server, "PUT", &path, "alice", &object).await;
    assert_eq!(updated.code, 200, "{updated:?}");
}

#[tokio::test]
async fn author_of_binding_without_read_access_to_param_ref_gets_422() {
    let by_name = json!({"name": "one", "namespace": "team", "parameterNotFoundAction": "Deny"});
    let by_labels = json!({"selector": {"matchLabels": {"a": "b"}}, "parameterNotFoundAction": "Allow"});
    let path = "validatingadmissionpolicybindings";
    for (has_policy, param_ref, check) in [
        (true, &by_name, "/v1/secrets/team/one"),
        (true, &by_labels, "/v1/secrets//"),
        (false, &by_name, "*/*/*/team/one"),
    ] {
        for reads in [vec![], vec![check]] {
            let (server, denied) = server_with_reads(&reads).await;
            if has_policy {
                let policy = policy(json!({"apiVersion": "v1", "kind": "Secret"}));
                let policies = "validatingadmissionpolicies";
                assert_eq!(write(&server, "POST", policies, "root@system:masters", &policy).await.code, 201);
            }
            let written = write(&server, "POST", path, "alice", &binding(param_ref.clone())).await;
            if reads.is_empty() {
                assert_eq!(written.code, 422, "{written:?}");
                assert_eq!(denied.lock().last().map(String::as_str), Some(check));
                let status = written.json();
                let cause = &status["details"]["causes"][0];
                assert_eq!(cause["field"], "spec.paramRef");
                assert_eq!(
                    cause["message"],
                    "Forbidden: user &{alice  [] map[]} does not have \"get\" permission on the object referenced by \
                     paramRef"
                );
            } else {
                assert_eq!(written.code, 201, "{written:?}");
            }
        }
    }
}

#[tokio::test]
async fn each_update_of_binding_with_param_ref_needs_read_access() {
    let (server, _) = server_with_reads(&[]).await;
    let path = "validatingadmissionpolicybindings";
    let reference = json!({"name": "one", "parameterNotFoundAction": "Deny"});
    let created = write(&server, "POST", path, "root@system:masters", &binding(reference)).await;
    let mut object = created.json();
    object["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(write(&server, "PUT", &format!("{path}/b"), "alice", &object).await.code, 422);
}
