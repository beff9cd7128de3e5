//! Objects that the layer of encryption could not decrypt, above a store without encryption.

use bytes::Bytes;
use serde_json::{Value, json};
use storage::{Op, unreadable_value};

use super::watches::Lines;
use super::{MAPS, Server, map};

const TEXT: &str = "cipher: message authentication failed";

/// Stores a value for a ConfigMap.
async fn store(server: &Server, name: &str, value: Bytes) {
    let registry = server.api_state.kinds.registry();
    let key = registry.find("", "v1", "configmaps").unwrap().key("a", name);
    server.api_state.store.commit(&key, Op::Create(value)).await.unwrap();
}

#[tokio::test]
async fn damaged_object_is_named_and_deleted_only_with_gate_and_option() {
    let ignore_read_error = || json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
    let path = format!("{MAPS}/bad");
    for gate in [false, true] {
        let gates = if gate { "AllowUnsafeMalformedObjectDeletion=true" } else { "" };
        let server = Server::start_with_gates(gates).await;
        server.post(MAPS, map("good", "v")).await;
        store(&server, "bad", unreadable_value(TEXT)).await;
        let transformation = format!("data from the storage is not transformable revision=0: {TEXT}");
        let corrupt = |key: &str| {
            format!(
                "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: \
                 {transformation}"
            )
        };
        let read = if gate { corrupt("/configmaps/a/bad") } else { TEXT.to_owned() };
        let write = if gate { transformation.clone() } else { TEXT.to_owned() };
        let message = |text: &str| format!("Internal error occurred: {text}");
        for (reply, expected) in [
            (server.get(&path).await, message(&read)),
            (server.delete(&path, Value::Null).await, message(&read)),
            (server.merge(&path, json!({"data": {"k": "w"}})).await, message(&write)),
            (server.put(&path, map("bad", "w")).await, message(&write)),
        ] {
            assert_eq!(reply.code, 500, "{gate}: {}", reply.json());
            assert_eq!(reply.json()["message"], expected, "{gate}");
        }
        assert_eq!(server.post(MAPS, map("bad", "w")).await.code, 409, "{gate}");
        for reply in [server.get(MAPS).await, server.delete(MAPS, Value::Null).await] {
            let status = reply.json();
            assert_eq!(reply.code, 500, "{gate}: {status}");
            if gate {
                assert_eq!(status["reason"], "StorageReadError");
                assert_eq!(status["message"], "failed to read one or more configmaps from the storage");
                let cause = &status["details"]["causes"][0];
                assert_eq!(cause["field"], "/registry/configmaps/a/bad");
                assert_eq!(cause["message"], corrupt("/registry/configmaps/a/bad"));
            } else {
                let text = format!("unable to transform key \"/registry/configmaps/a/bad\": {TEXT}");
                assert_eq!(status["message"], message(&text));
            }
        }
        // The other objects stay usable, and a failed deletecollection deletes nothing.
        assert_eq!(server.get(&format!("{MAPS}/good")).await.code, 200, "{gate}");
        assert_eq!(server.merge(&format!("{MAPS}/good"), json!({"data": {"k": "w"}})).await.code, 200);
        let reply = server.delete(&path, ignore_read_error()).await;
        assert_eq!(reply.code, if gate { 200 } else { 500 }, "{}", reply.json());
        assert_eq!(server.get(MAPS).await.code, if gate { 200 } else { 500 });
    }
}

#[tokio::test]
async fn encrypted_object_without_a_configuration_is_named() {
    let server = Server::start().await;
    store(&server, "bad", Bytes::from_static(b"k8s:enc:aesgcm:v1:g1:abcdefgh")).await;
    let reply = server.get(&format!("{MAPS}/bad")).await;
    assert_eq!(reply.code, 500);
    let text = "Internal error occurred: identity transformer tried to read encrypted data";
    assert_eq!(reply.json()["message"], text);
}

#[tokio::test]
async fn watch_leaves_out_an_unreadable_object_and_ends_after_its_deletion() {
    let server = Server::start_with_gates("AllowUnsafeMalformedObjectDeletion=true").await;
    store(&server, "bad", unreadable_value(TEXT)).await;
    server.post(MAPS, map("good", "v")).await;
    let mut watch = Lines::open(&server, &format!("{MAPS}?watch=true&resourceVersion=0")).await;
    let first = watch.next().await.unwrap();
    assert_eq!((&first["type"], &first["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("good")));
    server.post(MAPS, map("later", "v")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["name"], "later");
    let options = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
    assert_eq!(server.delete(&format!("{MAPS}/bad"), options).await.code, 200);
    let end = watch.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(410)), "{end}");
}
