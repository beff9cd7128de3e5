//! Messages of authd on the mirror stream: epoch, readiness, and write batches.

use std::collections::BTreeMap;

use authproto::auth::authz_client::AuthzClient;
use authproto::auth::object_write::Verb;
use authproto::auth::{
    self, covers_request::What, mirror_demand::Demand, mirror_object::Kind, mirror_update::Update,
};

use super::harness::{Authd, Mirror, binding, role, user};

/// The result of a batch with this outcome of each write; success if absent.
fn write_result(batch: &auth::WriteBatch, failure_code: Option<u32>, revision: u64) -> Update {
    let outcome = match failure_code {
        Some(code) => Err(auth::Failure { code, ..auth::Failure::default() }),
        None => Ok(()),
    };
    let outcomes = vec![auth::WriteOutcome::from(outcome); batch.writes.len()];
    Update::WriteResult(auth::WriteResult { id: batch.id, outcomes, revision })
}

#[tokio::test]
async fn default_policy_is_written_once_before_ready() {
    let authd = Authd::start(&["--authorization-mode=RBAC"]).await;
    let mut mirror = authd.mirror().await;
    let epoch = match mirror.demand().await.unwrap() {
        Demand::Epoch(epoch) => epoch,
        other => panic!("{other:?}"),
    };
    assert!(epoch.instance.len() == 36 && epoch.generation == 1, "{epoch:?}");
    assert!(!mirror.ready().await.ready, "not before the snapshot");
    mirror.synced(1).await;
    let batch = mirror.batch().await;
    assert_eq!(batch.controller, "bootstrap-policy");
    let names: Vec<(&str, &str)> =
        batch.writes.iter().map(|w| (w.resource.as_str(), w.name.as_str())).collect();
    for expected in [
        ("clusterroles", "cluster-admin"),
        ("clusterroles", "system:discovery"),
        ("clusterrolebindings", "cluster-admin"),
        ("roles", "extension-apiserver-authentication-reader"),
    ] {
        assert!(names.contains(&expected), "{expected:?}");
    }
    assert!(batch.writes.iter().all(|write| write.verb() == Verb::Create));
    // A failure is retried as a new batch.
    mirror.send(write_result(&batch, Some(500), 1)).await;
    let again = mirror.batch().await;
    assert!(again.id != batch.id && again.writes.len() == batch.writes.len());
    mirror.send(write_result(&again, None, 2)).await;
    assert!(mirror.ready().await.ready);

    // A second mirror stream gets the same epoch.
    let mut second = authd.mirror().await;
    assert_eq!(second.demand().await.unwrap(), Demand::Epoch(epoch));
}

#[tokio::test]
async fn aggregated_role_rules_are_written_back() {
    let authd = Authd::start(&["--authorization-mode=RBAC"]).await;
    let mut mirror = authd.mirror().await;
    mirror.synced(1).await;
    let batch = mirror.batch().await;
    mirror.send(write_result(&batch, None, 1)).await;
    let labels: BTreeMap<String, String> = [("to".to_owned(), "sum".to_owned())].into();
    let selector = auth::LabelSelector { match_labels: labels.clone(), match_expressions: Vec::new() };
    let sum =
        auth::MirrorRole { aggregation: vec![selector], aggregates: true, ..auth::MirrorRole::default() };
    mirror.put(2, "", "sum", Kind::ClusterRole(sum)).await;
    let part = auth::MirrorObject {
        name: "part".into(),
        labels,
        kind: Some(Kind::ClusterRole(role(&["get"], &["pods"]))),
        ..auth::MirrorObject::default()
    };
    mirror.send(Update::Put(auth::MirrorPut { revision: 3, object: Some(part) })).await;
    let batch = mirror.batch().await;
    assert_eq!(batch.controller, "clusterrole-aggregation-controller");
    let [write] = batch.writes.as_slice() else { panic!("{batch:?}") };
    assert_eq!(
        (write.verb(), write.resource.as_str(), write.name.as_str()),
        (Verb::Apply, "clusterroles", "sum")
    );
    let body: serde_json::Value = serde_json::from_slice(&write.body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "apiVersion": format!("{}/v1", write.group), "kind": "ClusterRole", "metadata": {"name": "sum"},
            "rules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}],
        })
    );
}

#[tokio::test]
async fn mirror_with_other_names_preset_is_rejected() {
    let authd = Authd::start(&["--authorization-mode=RBAC"]).await;
    let error = Mirror::begin(authd.channel().await, "svc", "svc.internal").await.err().unwrap();
    assert_eq!(error.code(), tonic::Code::FailedPrecondition, "{error:?}");
    let dir = tempfile::tempdir().unwrap();
    let authd = Authd::start_in(dir, &["--authorization-mode=RBAC", "--api-domain=x.example"]).await;
    assert!(Mirror::begin(authd.channel().await, "svc", "svc.internal").await.is_err());
    assert!(Mirror::begin(authd.channel().await, "svc", "x.example").await.is_ok());
}

#[tokio::test]
async fn malformed_update_ends_mirror_stream() {
    let authd = Authd::start(&["--authorization-mode=RBAC"]).await;
    let mut mirror = authd.mirror().await;
    mirror.send(Update::Put(auth::MirrorPut { revision: 1, object: None })).await;
    let ended = loop {
        match mirror.demand().await {
            Ok(_) => (),
            Err(status) => break status,
        }
    };
    assert_eq!(ended.code(), tonic::Code::InvalidArgument, "{ended:?}");
}

#[tokio::test]
async fn rules_and_escalation_checks_over_grpc() {
    let authd = Authd::start(&["--authorization-mode=RBAC"]).await;
    let mirror = authd.mirror().await;
    mirror.put(2, "a", "r", Kind::Role(role(&["get"], &["pods"]))).await;
    mirror.put(3, "a", "b", Kind::RoleBinding(binding("Role", "r", "alice"))).await;
    mirror.synced(3).await;
    let mut authz = AuthzClient::new(authd.channel().await);
    let at_least = Some(auth::Revisions { rbac_cluster: 3, ..auth::Revisions::default() });
    let request = auth::RulesRequest {
        user: Some(user("alice", &[])),
        namespace: "a".into(),
        at_least: at_least.clone(),
    };
    let rules = authz.rules(request).await.unwrap().into_inner();
    assert_eq!((rules.rules.len(), rules.incomplete), (1, false));
    let ask = |verbs: &[&str]| auth::CoversRequest {
        user: Some(user("alice", &["dev"])),
        namespace: "a".into(),
        what: Some(What::Role(auth::RoleWrite {
            resource: "roles".into(),
            name: String::new(),
            rules: role(verbs, &["pods"]).rules,
            aggregates: false,
        })),
        at_least: at_least.clone(),
    };
    assert!(authz.covers(ask(&["get"])).await.unwrap().into_inner().allowed);
    let response = authz.covers(ask(&["get", "delete"])).await.unwrap().into_inner();
    assert!(!response.allowed && !response.role_not_found && response.missing.len() == 1, "{response:?}");
    assert_eq!(
        response.message,
        "user \"alice\" (groups=[\"dev\"]) is attempting to grant RBAC permissions not currently held:\n\
         {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"
    );
}
