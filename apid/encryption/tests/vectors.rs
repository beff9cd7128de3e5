//! Values that kube-apiserver encrypted decrypt here, and damaged ones fail with its texts.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use encryption::kms::mock::MockPlugin;
use serde_json::Value;
use storage::engine::memory::MemoryStore;
use storage::{Observers, Op, Store, unreadable_reason};

use crate::environment::start;

/// The lines of a recording.
fn lines(folder: &Path, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn bytes(value: &Value) -> Vec<u8> {
    STANDARD.decode(value.as_str().unwrap()).unwrap()
}

fn key(value: &Value) -> [u8; 32] {
    bytes(value).try_into().unwrap()
}

/// Replaces the socket of the recorded KMS provider.
fn with_socket(configuration: &Value, socket: &Path) -> Value {
    let text = configuration.to_string().replace("/keys/kms.sock", socket.to_str().unwrap());
    serde_json::from_str(&text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_recorded_value_decrypts() {
    let Some(folder) = prerequisites::encryption() else { return };
    let vectors = lines(&folder, "vectors.jsonl");
    let mut checked = 0;
    for config in lines(&folder, "configs.jsonl") {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("kms.sock");
        let plugin = MockPlugin::default();
        for known in config["kms"].as_array().into_iter().flatten() {
            plugin.use_key(known["key_id"].as_str().unwrap(), key(&known["kek"]));
        }
        let server = plugin.serve(&socket);
        let encryption = start(&with_socket(&config["encryption"], &socket)).await;
        let engine: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))));
        let store = encryption.store(Arc::clone(&engine));
        for vector in vectors.iter().filter(|vector| vector["config"] == config["config"]) {
            let (name, value) = (vector["key"].as_str().unwrap(), bytes(&vector["value"]));
            engine.commit(name, Op::Create(value.into())).await.unwrap();
            let row = store.get(name, None).await.unwrap().unwrap();
            assert_eq!(row.value, bytes(&vector["plain"]), "{} {name}", config["config"]);
            checked += 1;
        }
        server.abort();
    }
    assert_eq!(checked, vectors.len(), "each vector belongs to a configuration");
}

#[tokio::test(flavor = "multi_thread")]
async fn wildcard_rules_select_the_recorded_providers() {
    let Some(folder) = prerequisites::encryption() else { return };
    let configs = lines(&folder, "configs.jsonl");
    let mut checked = 0;
    for line in lines(&folder, "star.jsonl") {
        let config = configs.iter().find(|config| config["config"] == line["config"]).unwrap();
        let encryption = start(&config["encryption"]).await;
        let engine: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))));
        let name = line["key"].as_str().unwrap();
        encryption.store(Arc::clone(&engine)).commit(name, Op::Create(Bytes::from("{}"))).await.unwrap();
        let stored = engine.get(name, None).await.unwrap().unwrap().value;
        let expected = line["value_starts"].as_str().unwrap();
        match expected.strip_prefix("k8s:enc:") {
            Some(_) => assert!(stored.starts_with(expected.as_bytes()), "{line}: {stored:?}"),
            None => assert_eq!(stored, "{}", "{line}"),
        }
        checked += 1;
    }
    assert_eq!(checked, 134);
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_values_fail_with_the_recorded_text() {
    let Some(folder) = prerequisites::encryption() else { return };
    let mut checked = 0;
    for line in lines(&folder, "damaged.jsonl") {
        let (Some(put), Some(name)) = (line["value_put"].as_str(), line["key"].as_str()) else { continue };
        let get = line["answers"].as_array().unwrap().iter().find(|answer| {
            answer["request"]
                .as_str()
                .is_some_and(|request| request.starts_with("GET ") && !request.contains('?'))
        });
        let Some(get) = get else { continue };
        let encryption = start(&line["config"]).await;
        let engine: Arc<dyn Store> = Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))));
        let store = encryption.store(Arc::clone(&engine));
        engine.commit(name, Op::Create(STANDARD.decode(put).unwrap().into())).await.unwrap();
        let row = store.get(name, None).await.unwrap().unwrap();
        let message = get["body"]["message"].as_str().unwrap_or_default();
        let is_transformation = !message.contains("not decodable")
            && ["json:", "no kind", "illegal base64", "proto"].iter().all(|text| !message.contains(text));
        match (get["status"].as_u64(), unreadable_reason(&row.value)) {
            (Some(200), reason) => assert_eq!(reason, None, "{}", line["case"]),
            (_, Some(reason)) => assert!(message.ends_with(reason), "{}: {reason}: {message}", line["case"]),
            (_, None) => assert!(!is_transformation, "{}: {message}", line["case"]),
        }
        checked += 1;
    }
    assert!(checked > 30, "{checked} recorded cases are checked");
}
