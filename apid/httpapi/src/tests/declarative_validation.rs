//! Declarative validation beside the hand-written one, with injected differences.

use std::sync::Arc;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use serde_json::{Value, json};
use storage::Op;

use super::Server;
use verbs::{Validator, type_table_validator};

const CONTROLLERS: &str = "/api/v1/namespaces/a/replicationcontrollers";
const MISMATCHES: &str = "apiserver_validation_declarative_validation_mismatch_total";
/// The short name of the same count (D-METRIC-12).
const SHORT_MISMATCHES: &str = "declarative_validation_mismatch_total";
const PANICS: &str = "apiserver_validation_declarative_validation_panic_total";
const BOTH_GATES: &str = "DeclarativeValidation=true,DeclarativeValidationTakeover=true";
const TAKEOVER_ONLY: &str = "DeclarativeValidation=false,DeclarativeValidationTakeover=true";

fn controller(name: &str, replicas: i64) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"app": "x"}, "template": {
            "metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}
    })
}

/// A validation of ReplicationControllers that finds no errors.
fn accept_all() -> Validator {
    validator_returning(FieldErrors::new())
}

/// A validation of ReplicationControllers that always returns the same errors.
fn validator_returning(errors: FieldErrors) -> Validator {
    Arc::new(move |resource, _, _| (resource.name() == "ReplicationController").then(|| errors.clone()))
}

/// A validation that rejects each ReplicationController.
fn reject_all() -> Validator {
    let path = FieldPath::new("spec.minReadySeconds");
    let error = FieldError::invalid(&path, 0, "must be greater than or equal to 5").with_tag("minimum");
    validator_returning(error.into())
}

async fn count(server: &Server, name: &str) -> u64 {
    let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn invalid_replicas_have_equal_errors_in_both_validations() {
    for gates in ["", BOTH_GATES] {
        let server = Server::start_with_gates(gates).await;
        assert_eq!(server.post(CONTROLLERS, controller("good", 2)).await.code, 201);
        let reply = server.post(CONTROLLERS, controller("bad", -1)).await;
        assert_eq!(reply.code, 422);
        let causes = &reply.json()["details"]["causes"];
        assert_eq!(causes.as_array().map(Vec::len), Some(1), "{causes}");
        assert_eq!(causes[0]["field"], "spec.replicas");
        assert_eq!(causes[0]["message"], "Invalid value: -1: must be greater than or equal to 0");
        let good = format!("{CONTROLLERS}/good");
        let reply = server.merge(&good, json!({"spec": {"minReadySeconds": -1}})).await;
        assert_eq!(
            (reply.code, &reply.json()["details"]["causes"][0]["field"]),
            (422, &"spec.minReadySeconds".into())
        );
        assert_eq!((count(&server, MISMATCHES).await, count(&server, PANICS).await), (0, 0), "{gates}");
    }
}

#[tokio::test]
async fn mismatch_is_counted_and_decided_by_the_gates() {
    for (gates, validator, replicas, code, mismatches) in [
        ("", accept_all(), -1, 422, 1),
        ("", reject_all(), 1, 201, 1),
        (BOTH_GATES, accept_all(), -1, 201, 1),
        (BOTH_GATES, reject_all(), 1, 422, 1),
        (BOTH_GATES, reject_all(), -1, 422, 2),
        (TAKEOVER_ONLY, accept_all(), -1, 422, 0),
        (TAKEOVER_ONLY, reject_all(), 1, 201, 0),
    ] {
        let server = Server::start_with_validator(gates, validator).await;
        let before = count(&server, MISMATCHES).await;
        let reply = server.post(CONTROLLERS, controller("x", replicas)).await;
        assert_eq!(reply.code, code, "{gates} {replicas}");
        assert_eq!(count(&server, MISMATCHES).await - before, mismatches, "{gates} {replicas}");
        assert_eq!(count(&server, SHORT_MISMATCHES).await, count(&server, MISMATCHES).await);
    }
}

#[tokio::test]
async fn untagged_errors_stay_under_takeover() {
    let server = Server::start_with_validator(BOTH_GATES, accept_all()).await;
    let mut controller = controller("x", -1);
    controller["spec"]["selector"] = json!({"app": "other"});
    let reply = server.post(CONTROLLERS, controller).await;
    assert_eq!(reply.code, 422);
    let causes = reply.json()["details"]["causes"].as_array().unwrap().clone();
    assert!(!causes.is_empty() && causes.iter().all(|cause| cause["field"] != "spec.replicas"), "{causes:?}");
}

#[tokio::test]
async fn panic_of_declarative_validation_fails_a_write_only_under_takeover() {
    let panicking: Validator = Arc::new(|resource, object, context| match resource.name() {
        "ReplicationController" => panic!("an injected panic"),
        _ => type_table_validator()(resource, object, context),
    });
    for (gates, code) in [("", 201), (BOTH_GATES, 422)] {
        let server = Server::start_with_validator(gates, panicking.clone()).await;
        let reply = server.post(CONTROLLERS, controller("x", 1)).await;
        assert_eq!(reply.code, code, "{gates}");
        assert_eq!(count(&server, PANICS).await, 1, "{gates}");
    }
}

#[tokio::test]
async fn update_of_object_stored_under_takeover_returns_422_without_it() {
    let faulty = Server::start_with_validator(BOTH_GATES, accept_all()).await;
    assert_eq!(faulty.post(CONTROLLERS, controller("x", -1)).await.code, 201);
    let key =
        faulty.api_state.kinds.registry().find("", "v1", "replicationcontrollers").unwrap().key("a", "x");
    let row = faulty.api_state.store.get(&key, None).await.unwrap().unwrap();

    let server = Server::start_with_gates("DeclarativeValidation=false").await;
    server.api_state.store.commit(&key, Op::Create(row.value)).await.unwrap();
    let path = format!("{CONTROLLERS}/x");
    let stored = server.get(&path).await.json();
    assert_eq!(stored["spec"]["replicas"], -1);
    let mut changed = stored.clone();
    changed["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(server.put(&path, changed.clone()).await.code, 422);
    changed["spec"]["replicas"] = json!(1);
    assert_eq!(server.put(&path, changed).await.code, 200);
}
