//! A KMS plugin that hangs, fails, names another key, restarts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use encryption::Encryption;
use encryption::kms::KmsEnvironment;
use encryption::kms::mock::{Behavior, MockPlugin};
use encryption::kms::protocol::Method;
use serde_json::{Value, json};
use storage::cache::{Cache, Limits};
use storage::engine::memory::MemoryStore;
use storage::{Change, Error, Observer, Observers, Op, Store, unreadable_reason};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::environment::{Readable, for_secrets, kms_environment, names, start, start_with};

const KEY: &str = "/registry/secrets/default/a";
const OTHER: &str = "/registry/secrets/default/b";
const PLAIN: &[u8] = b"{\"kind\":\"Secret\"}";

fn file(socket: &Path) -> Value {
    file_with_timeout(socket, "200ms")
}

fn file_with_timeout(socket: &Path, timeout: &str) -> Value {
    let endpoint = format!("unix://{}", socket.display());
    let kms = json!({"apiVersion": "v2", "name": "plug", "endpoint": endpoint, "timeout": timeout});
    for_secrets(&json!([{"kms": kms}, {"identity": {}}]))
}

/// A plugin with one key that serves a socket in a new folder.
fn served_plugin() -> (TempDir, PathBuf, MockPlugin, JoinHandle<()>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("kms.sock");
    let plugin = MockPlugin::new("id-1", [1; 32]);
    let server = plugin.serve(&socket);
    (dir, socket, plugin, server)
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))))
}

/// Waits until the health of the plugin has a text or, with `""`, is good.
async fn wait_for_health(encryption: &Encryption, text: &str) {
    for _ in 0..500 {
        match encryption.kms_health() {
            Ok(()) if text.is_empty() => return,
            Err(reason) if !text.is_empty() && reason.contains(text) => return,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
    panic!("{:?} instead of {text:?}", encryption.kms_health());
}

async fn create(store: &Arc<dyn Store>, key: &str) -> Result<(), Error> {
    store.commit(key, Op::Create(Bytes::from_static(PLAIN))).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_serves_many_values_and_reads_need_one_call() {
    let (_dir, socket, plugin, server) = served_plugin();
    let engine = memory();
    let store = start(&file(&socket)).await.store(Arc::clone(&engine));
    for number in 0..50 {
        create(&store, &format!("{KEY}{number}")).await.unwrap();
    }
    assert_eq!((plugin.calls(Method::Encrypt), plugin.calls(Method::Decrypt)), (1, 0));
    // Another process reads the values.
    let reader = start(&file(&socket)).await.store(Arc::clone(&engine));
    let page = reader.range("/registry/secrets/", "", 0, None).await.unwrap();
    assert!(page.rows.len() == 50 && page.rows.iter().all(|row| row.value == PLAIN));
    assert_eq!(plugin.calls(Method::Decrypt), 1);
    assert!(reader.is_stale(&format!("{KEY}0")).await.is_ok_and(|stale| !stale));
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_with_known_keys_and_writes_go_on_while_the_plugin_fails() {
    let (_dir, socket, plugin, server) = served_plugin();
    let encryption = start(&file(&socket)).await;
    let store = encryption.store(memory());
    create(&store, KEY).await.unwrap();
    for (index, (behavior, text)) in [
        (Behavior::Unhealthy("not today".to_owned()), "kms-provider-0: kmsv2 Provider plug is not healthy, error: got unexpected healthz status: not today"),
        (Behavior::Failing, "code = Unavailable desc = the mock plugin fails"),
        (Behavior::Hanging, "code = DeadlineExceeded"),
    ]
    .into_iter()
    .enumerate()
    {
        plugin.behave(behavior);
        wait_for_health(&encryption, text).await;
        assert_eq!(store.get(KEY, None).await.unwrap().unwrap().value, PLAIN);
        create(&store, &format!("{OTHER}{index}")).await.unwrap();
        plugin.behave(Behavior::Healthy);
        wait_for_health(&encryption, "").await;
    }
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn value_of_a_key_that_is_not_in_memory_is_unavailable_while_the_plugin_hangs() {
    let (_dir, socket, plugin, server) = served_plugin();
    let engine = memory();
    create(&start(&file(&socket)).await.store(Arc::clone(&engine)), KEY).await.unwrap();
    let encryption = start(&file(&socket)).await;
    let store = encryption.store(Arc::clone(&engine));
    plugin.behave(Behavior::Hanging);
    let error = store.get(KEY, None).await.unwrap_err();
    assert!(matches!(&error, Error::Unavailable(text) if text.contains("failed to decrypt DEK")), "{error}");
    plugin.behave(Behavior::Healthy);
    assert_eq!(store.get(KEY, None).await.unwrap().unwrap().value, PLAIN);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_key_of_the_plugin_makes_earlier_values_stale() {
    let (_dir, socket, plugin, server) = served_plugin();
    let encryption = start(&file(&socket)).await;
    let store = encryption.store(memory());
    create(&store, KEY).await.unwrap();
    assert!(!store.is_stale(KEY).await.unwrap());
    plugin.use_key("id-2", [2; 32]);
    for _ in 0..500 {
        if store.is_stale(KEY).await.unwrap() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let row = store.get(KEY, None).await.unwrap().unwrap();
    assert_eq!(row.value, PLAIN);
    store.commit(KEY, Op::Update(row.value, row.revision)).await.unwrap();
    assert!(!store.is_stale(KEY).await.unwrap());
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn start_without_the_plugin_serves_other_resources_and_recovers() {
    let (_dir, socket, plugin, server) = served_plugin();
    let engine = memory();
    create(&start(&file(&socket)).await.store(Arc::clone(&engine)), KEY).await.unwrap();
    server.abort();
    std::fs::remove_file(&socket).unwrap();
    let encryption = start(&file(&socket)).await;
    let store = encryption.store(Arc::clone(&engine));
    wait_for_health(&encryption, "failed to perform status section of the healthz check").await;
    for error in [store.get(KEY, None).await.unwrap_err(), create(&store, OTHER).await.unwrap_err()] {
        let Error::Unavailable(text) = &error else { panic!("{error}") };
        assert!(text.contains("got unexpected nil transformer") && text.contains("plug"), "{text}");
    }
    create(&store, "/registry/configmaps/default/m").await.unwrap();
    let server = plugin.serve(&socket);
    wait_for_health(&encryption, "").await;
    assert_eq!(store.get(KEY, None).await.unwrap().unwrap().value, PLAIN);
    create(&store, OTHER).await.unwrap();
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn value_of_a_forgotten_key_is_damaged_and_its_neighbor_is_readable() {
    let (_dir, socket, plugin, server) = served_plugin();
    let engine = memory();
    create(&start(&file(&socket)).await.store(Arc::clone(&engine)), KEY).await.unwrap();
    plugin.use_key("id-2", [2; 32]);
    plugin.forget_key("id-1");
    let encryption = start(&file(&socket)).await;
    let store = encryption.store(Arc::clone(&engine));
    create(&store, OTHER).await.unwrap();
    let rows = store.range("/registry/secrets/", "", 0, None).await.unwrap().rows;
    assert_eq!(
        unreadable_reason(&rows[0].value),
        Some("failed to decrypt DEK, error: rpc error: code = NotFound desc = unknown key id id-1")
    );
    assert_eq!(rows[1].value, PLAIN);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn observer_decrypts_old_values_of_an_earlier_process() {
    struct LastOld(parking_lot::Mutex<Option<Bytes>>);
    impl Observer for LastOld {
        fn observe(&self, changes: &[Change]) {
            *self.0.lock() =
                changes.last().and_then(|change| change.old.as_ref()).map(|row| row.value.clone());
        }
    }
    let (_dir, socket, _plugin, server) = served_plugin();
    let first = start(&file(&socket)).await;
    let (value, last) = {
        let engine = memory();
        create(&first.store(Arc::clone(&engine)), KEY).await.unwrap();
        (
            engine.get(KEY, None).await.unwrap().unwrap().value,
            Arc::new(LastOld(parking_lot::Mutex::new(None))),
        )
    };
    let encryption = start(&file(&socket)).await;
    let engine: Arc<dyn Store> = Arc::new(MemoryStore::new(encryption.observer(last.clone())));
    let revision = engine.commit(KEY, Op::Create(value)).await.unwrap().revision;
    let store = encryption.store(Arc::clone(&engine));
    store.commit(KEY, Op::Delete(revision)).await.unwrap();
    assert_eq!(last.0.lock().as_deref(), Some(PLAIN));
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn change_during_a_failure_of_the_plugin_is_readable_after_another_read() {
    let (_dir, socket, plugin, server) = served_plugin();
    let earlier = memory();
    create(&start(&file(&socket)).await.store(Arc::clone(&earlier)), KEY).await.unwrap();
    let value = earlier.get(KEY, None).await.unwrap().unwrap().value;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    let on_recovery = Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let encryption = start_with(&file(&socket), KmsEnvironment { on_recovery, ..kms_environment() }).await;
    let cache = Arc::new(Cache::new(Limits::default()));
    let engine: Arc<dyn Store> = Arc::new(MemoryStore::new(encryption.observer(cache.clone())));
    let store = encryption.store(Arc::clone(&engine));
    cache.attach(&store);
    let resource = cache.resource("/registry/secrets/", Readable);
    resource.snapshot().await.unwrap();
    plugin.behave(Behavior::Hanging);
    wait_for_health(&encryption, "DeadlineExceeded").await;
    let before = calls.load(Ordering::Relaxed);
    engine.commit(KEY, Op::Create(value)).await.unwrap();
    let is_readable = async || {
        let (item, _) = resource.get(KEY).await.unwrap();
        item.unwrap().entry().is_ok_and(|value| value == PLAIN)
    };
    assert!(!is_readable().await);
    assert_eq!(calls.load(Ordering::Relaxed), before + 1, "another read is requested");
    assert!(!cache.refresh_unreadable().await, "the plugin still hangs");
    plugin.behave(Behavior::Healthy);
    assert!(cache.refresh_unreadable().await);
    assert!(is_readable().await);
    server.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_with_another_timeout_keeps_the_keys_of_the_plugin() {
    let (dir, socket, plugin, server) = served_plugin();
    let engine = memory();
    create(&start(&file(&socket)).await.store(Arc::clone(&engine)), KEY).await.unwrap();
    let encryption = start(&file(&socket)).await;
    let store = encryption.store(Arc::clone(&engine));
    assert_eq!(store.get(KEY, None).await.unwrap().unwrap().value, PLAIN);
    let calls = || (plugin.calls(Method::Encrypt), plugin.calls(Method::Decrypt));
    assert_eq!(calls(), (2, 1));
    let path = dir.path().join("enc.yaml");
    std::fs::write(&path, file_with_timeout(&socket, "300ms").to_string()).unwrap();
    encryption.reload(&path, &names()).await.unwrap();
    assert_eq!(store.get(KEY, None).await.unwrap().unwrap().value, PLAIN);
    create(&store, OTHER).await.unwrap();
    assert_eq!(calls(), (2, 1));
    server.abort();
}

/// Records all changes.
#[derive(Default)]
struct Recorder(parking_lot::Mutex<Vec<Change>>);

impl Observer for Recorder {
    fn observe(&self, changes: &[Change]) {
        self.0.lock().extend_from_slice(changes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_is_called_once_for_an_unknown_key() {
    let (_dir, socket, plugin, server) = served_plugin();
    let recorder = Arc::new(Recorder::default());
    let engine: Arc<dyn Store> = Arc::new(MemoryStore::new(recorder.clone()));
    let earlier = start(&file(&socket)).await.store(Arc::clone(&engine));
    for number in 0..3 {
        create(&earlier, &format!("{KEY}{number}")).await.unwrap();
    }
    let changes = std::mem::take(&mut *recorder.0.lock());
    let encryption = start(&file(&socket)).await;
    plugin.behave(Behavior::Hanging);
    encryption.observer(recorder.clone()).observe(&changes);
    let observed = std::mem::take(&mut *recorder.0.lock());
    let reasons: Vec<_> =
        observed.iter().filter_map(|change| unreadable_reason(change.new.as_ref()?)).collect();
    assert!(reasons.len() == 3 && reasons.iter().all(|reason| reason.contains("DeadlineExceeded")));
    assert_eq!(plugin.calls(Method::Decrypt), 1, "one call for the batch");
    plugin.behave(Behavior::Healthy);
    plugin.use_key("id-2", [2; 32]);
    plugin.forget_key("id-1");
    let page = encryption.store(engine).range("/registry/secrets/", "", 0, None).await.unwrap();
    assert_eq!(page.rows.iter().filter(|row| unreadable_reason(&row.value).is_some()).count(), 3);
    assert_eq!(plugin.calls(Method::Decrypt), 2, "one call for the page");
    server.abort();
}
