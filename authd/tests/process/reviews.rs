//! Reviews over gRPC. Unit tests of the reviews cover their contents.

use authproto::auth::review_client::ReviewClient;
use authproto::auth::{self, mirror_object::Kind, review_response::Outcome};
use serde_json::{Value, json};

use super::harness::{Authd, binding, role, user};

#[tokio::test]
async fn review_returns_object_or_status() {
    let authd = Authd::start(&["--authorization-mode=RBAC"]).await;
    let mirror = authd.mirror().await;
    mirror.put(2, "a", "r", Kind::Role(role(&["get"], &["pods"]))).await;
    mirror.put(3, "a", "b", Kind::RoleBinding(binding("Role", "r", "alice"))).await;
    mirror.synced(3).await;
    let mut reviews = ReviewClient::new(authd.channel().await);
    let request = |resource: &str, object: Value| auth::ReviewRequest {
        resource: resource.into(),
        user: Some(user("alice", &["system:authenticated"])),
        object: object.to_string().into_bytes().into(),
        at_least: Some(auth::Revisions { rbac_cluster: 3, ..auth::Revisions::default() }),
        ..auth::ReviewRequest::default()
    };
    let pods = json!({"verb": "get", "resource": "pods", "namespace": "a"});
    let object = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": pods}});
    let answer = reviews.create(request("selfsubjectaccessreviews", object)).await.unwrap().into_inner();
    let Some(Outcome::Object(bytes)) = answer.outcome else { panic!("{answer:?}") };
    let object: Value = serde_json::from_slice(&bytes).unwrap();
    let reason = r#"RBAC: allowed by RoleBinding "b/a" of Role "r" to User "alice""#;
    assert_eq!(object["status"], json!({"allowed": true, "reason": reason}));

    let answer =
        reviews.create(request("subjectaccessreviews", json!({"spec": {}}))).await.unwrap().into_inner();
    let Some(Outcome::Status(bytes)) = answer.outcome else { panic!("{answer:?}") };
    let status: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!((&status["code"], &status["reason"]), (&json!(422), &json!("Invalid")));

    let unknown = reviews.create(request("selfsubjectnonsense", json!({}))).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::Unimplemented);
}
