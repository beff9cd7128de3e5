//! The store over an engine: no plain text below, plain text above, stale values, reload.

use std::path::Path;
use std::sync::Arc;

use apimachinery::clock::SystemClock;
use bytes::Bytes;
use encryption::rewrite;
use parking_lot::Mutex;
use serde_json::{Value, json};
use storage::cache::{Cache, Limits, WatchError};
use storage::engine::fjall::offline::{self, ArchiveEncoder, EncryptedObjects};
use storage::engine::fjall::{FjallStore, Identity, Options};
use storage::engine::memory::MemoryStore;
use storage::form::{Form, FormedStore};
use storage::{
    Change, ENCRYPTED_PREFIX, Error, Observer, Observers, Op, Revision, Store, unreadable_reason,
    unreadable_value,
};

use crate::environment::{Readable, for_secrets, names, start};

const KEY: &str = "/registry/secrets/default/a";
const OTHER: &str = "/registry/secrets/default/b";
const PLAIN: &[u8] = br#"{"kind":"Secret","data":{"password":"plain-text-of-a-secret"}}"#;
/// Text of [`PLAIN`] that no file may contain.
const NEEDLE: &[u8] = b"plain-text-of-a-secret";
const KEY_A: &str = "yCRbk8PwW8jX1xeeR3HL1Nkk/I6F6gQ2IEgScymIm7s=";
const KEY_B: &str = "n8RPBiVgeRS1MofKFASR08NfYyp4moZITLYC2/aV9Sc=";

/// A provider with keys by name.
fn keys(provider: &str, keys: &[(&str, &str)]) -> Value {
    let keys: Vec<Value> =
        keys.iter().map(|(name, secret)| json!({"name": name, "secret": secret})).collect();
    json!({provider: {"keys": keys}})
}

fn identity() -> Value {
    json!({"identity": {}})
}

#[derive(Default)]
struct Recorder(Mutex<Vec<Change>>);

impl Observer for Recorder {
    fn observe(&self, changes: &[Change]) {
        self.0.lock().extend_from_slice(changes);
    }
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))))
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle)
}

/// The files below a folder that contain a text.
fn files_with(folder: &Path, needle: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, needle));
        } else if contains(&std::fs::read(&path).unwrap(), needle) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn open_fjall(dir: &Path, observer: Arc<dyn Observer>) -> Arc<dyn Store> {
    let identity = Identity { preset: "kubernetes".to_owned(), api_domain: "svc.internal".to_owned() };
    let options = Options {
        reserve_bytes: 0,
        memtable_bytes: 64 << 10,
        on_stall: Arc::new(|_| ()),
        ..Options::new(dir, identity, Arc::new(SystemClock::new()))
    };
    Arc::new(FjallStore::open(options, observer).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_file_and_no_backup_contains_plain_text() {
    for provider in ["none", "aescbc", "aesgcm", "secretbox"] {
        let dir = tempfile::tempdir().unwrap();
        let providers = match provider {
            "none" => json!([identity()]),
            _ => json!([keys(provider, &[("k", KEY_A)])]),
        };
        let encryption = start(&for_secrets(&providers)).await;
        let recorder = Arc::new(Recorder::default());
        let engine = open_fjall(&dir.path().join("store"), encryption.observer(recorder.clone()));
        let store = encryption.store(Arc::clone(&engine));
        for number in 0..200 {
            let key = format!("{KEY}{number}");
            let created = store.commit(&key, Op::Create(Bytes::from_static(PLAIN))).await.unwrap().revision;
            if number % 2 == 0 {
                store.commit(&key, Op::Update([PLAIN, b" "].concat().into(), created)).await.unwrap();
            }
        }
        assert!(
            recorder.0.lock().iter().all(|change| contains(change.new.as_ref().unwrap(), NEEDLE)),
            "{provider}: the observer sees plain values"
        );
        let mut archive = Vec::new();
        let names = Identity { preset: "kubernetes".to_owned(), api_domain: "svc.internal".to_owned() };
        let revision = store.revision();
        let mut encoder = ArchiveEncoder::begin(&names, revision.0, &mut archive);
        for row in store.stored_rows_within("", "", 1 << 20, revision).await.unwrap().rows {
            encoder.add(&row.key, row.revision.0, &row.value, &mut archive);
        }
        encoder.finish(&mut archive);
        store.close().await;
        drop((store, engine));
        offline::backup(&dir.path().join("store"), &dir.path().join("offline.backup")).unwrap();
        let is_plain = provider == "none";
        assert_eq!(!files_with(dir.path(), NEEDLE).is_empty(), is_plain, "{provider}");
        assert_eq!(contains(&archive, NEEDLE), is_plain, "{provider}: backup of a running server");
        // A restored store has the same values.
        let restored = dir.path().join("restored");
        let archived = offline::restore(&dir.path().join("offline.backup"), &restored, 0).unwrap().archived;
        let report = offline::check(&restored).unwrap();
        assert!(report.is_sound());
        let expected = EncryptedObjects(if is_plain { 0 } else { 200 });
        assert_eq!((archived.encrypted, report.encrypted), (expected, expected), "{provider}");
        let line = "200 objects are encrypted: a server needs the same `--encryption-provider-config`";
        assert_eq!(report.to_string().contains(line), !is_plain, "{report}");
        let engine = open_fjall(&restored, Arc::new(Observers(Vec::new())));
        let row = encryption.store(engine).get(&format!("{KEY}1"), None).await.unwrap().unwrap();
        assert_eq!(row.value, PLAIN, "{provider}");
        assert_eq!(files_with(&restored, NEEDLE).is_empty(), !is_plain, "{provider}: restored store");
    }
}

/// Decrypts a value of [`KEY_A`] with AES-GCM that is bound to `key`.
fn open_aes_gcm(stored: &[u8], bound_to: &str) -> Vec<u8> {
    use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    use base64::Engine as _;
    let body = stored.strip_prefix(b"k8s:enc:aesgcm:v1:k:").unwrap();
    let key = base64::engine::general_purpose::STANDARD.decode(KEY_A).unwrap();
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap());
    let (nonce, sealed) = body.split_at(12);
    let nonce = Nonce::try_assume_unique_for_key(nonce).unwrap();
    let mut sealed = sealed.to_vec();
    key.open_in_place(nonce, Aad::from(bound_to.as_bytes()), &mut sealed).unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn written_values_have_the_documented_format() {
    let encryption = start(&for_secrets(&json!([keys("aesgcm", &[("k", KEY_A)])]))).await;
    let engine = memory();
    encryption.store(Arc::clone(&engine)).commit(KEY, Op::Create(Bytes::from_static(PLAIN))).await.unwrap();
    let stored = engine.get(KEY, None).await.unwrap().unwrap().value;
    assert_eq!(open_aes_gcm(&stored, KEY), PLAIN);
}

/// In a cluster, the values have another form inside of their encryption, and are bound to the keys there.
#[tokio::test(flavor = "multi_thread")]
async fn backup_of_a_cluster_has_encrypted_values_of_an_embedded_store() {
    struct Reversed;

    impl Form for Reversed {
        fn read(&self, _: &str, value: &Bytes) -> Result<Bytes, String> {
            Ok(value.iter().rev().copied().collect())
        }

        fn write(&self, key: &str, value: &Bytes) -> Result<Bytes, String> {
            self.read(key, value)
        }
    }

    let map = "/registry/configmaps/default/m";
    let encryption = start(&for_secrets(&json!([keys("aesgcm", &[("k", KEY_A)])]))).await;
    let engine = memory();
    let store = FormedStore::new(Arc::new(Reversed), encryption.store(Arc::clone(&engine)));
    for key in [KEY, map] {
        store.commit(key, Op::Create(Bytes::from_static(PLAIN))).await.unwrap();
    }
    let rows = store.stored_rows_within("", "", 1 << 20, store.revision()).await.unwrap().rows;
    let [in_map, in_secret] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((&*in_map.key, &in_map.value[..]), (map, PLAIN));
    assert_eq!(open_aes_gcm(&in_secret.value, &KEY.replace("/registry/", "/archive/")), PLAIN);

    let other = start(&for_secrets(&json!([keys("aesgcm", &[("k", KEY_B)])]))).await;
    let without = start(&json!({
        "kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
        "resources": [{"resources": ["configmaps"], "providers": [identity()]}],
    }))
    .await;
    for encryption in [other, without] {
        let store = FormedStore::new(Arc::new(Reversed), encryption.store(Arc::clone(&engine)));
        let refused = store.stored_rows_within("", "", 1 << 20, store.revision()).await.unwrap_err();
        assert!(refused.to_string().contains(&format!("key `{KEY}` is encrypted")), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn value_of_another_key_is_not_readable_with_authenticated_keys() {
    for (provider, is_readable) in [("aesgcm", false), ("aescbc", true), ("secretbox", true)] {
        let encryption = start(&for_secrets(&json!([keys(provider, &[("k", KEY_A)])]))).await;
        let engine = memory();
        let store = encryption.store(Arc::clone(&engine));
        store.commit(KEY, Op::Create(Bytes::from_static(PLAIN))).await.unwrap();
        let stored = engine.get(KEY, None).await.unwrap().unwrap().value;
        engine.commit(OTHER, Op::Create(stored)).await.unwrap();
        let row = store.get(OTHER, None).await.unwrap().unwrap();
        assert_eq!(row.value == PLAIN, is_readable, "{provider}");
        // The damaged value does not stop the read of its neighbor.
        let page = store.range("/registry/secrets/", "", 0, None).await.unwrap();
        assert_eq!(page.rows[0].value, PLAIN, "{provider}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn value_of_an_earlier_key_or_provider_is_stale() {
    let old = keys("secretbox", &[("old", KEY_A)]);
    let first = start(&for_secrets(&json!([old]))).await;
    let engine = memory();
    first.store(Arc::clone(&engine)).commit(KEY, Op::Create(Bytes::from_static(PLAIN))).await.unwrap();
    for (providers, is_stale) in [
        (json!([old, identity()]), false),
        (json!([keys("secretbox", &[("new", KEY_B), ("old", KEY_A)])]), true),
        (json!([keys("aesgcm", &[("new", KEY_B)]), old]), true),
        (json!([identity(), old]), true),
    ] {
        let encryption = start(&for_secrets(&providers)).await;
        let store = encryption.store(Arc::clone(&engine));
        assert_eq!(store.is_stale(KEY).await.unwrap(), is_stale, "{providers}");
        assert_eq!(store.get(KEY, None).await.unwrap().unwrap().value, PLAIN, "{providers}");
        assert!(!store.is_stale("/registry/secrets/default/none").await.unwrap());
    }
    let plain = memory();
    plain.commit(KEY, Op::Create(Bytes::from_static(PLAIN))).await.unwrap();
    let encryption = start(&for_secrets(&json!([old, identity()]))).await;
    assert!(encryption.store(plain).is_stale(KEY).await.unwrap(), "a plain value is stale under a provider");
}

#[tokio::test(flavor = "multi_thread")]
async fn rewrite_encrypts_all_stale_values_and_names_unreadable_ones() {
    let encryption = start(&for_secrets(&json!([keys("aesgcm", &[("k", KEY_A)]), identity()]))).await;
    let engine = memory();
    for number in 0..1200 {
        let key = format!("{KEY}{number:04}");
        engine.commit(&key, Op::Create(Bytes::from_static(PLAIN))).await.unwrap();
    }
    engine.commit("/registry/configmaps/default/m", Op::Create(Bytes::from("{}"))).await.unwrap();
    let damaged = Bytes::from_static(b"k8s:enc:aesgcm:v1:gone:damaged");
    engine.commit(OTHER, Op::Create(damaged.clone())).await.unwrap();
    // An interrupted rewrite has written a part.
    let store = encryption.store(Arc::clone(&engine));
    let row = engine.get(&format!("{KEY}0000"), None).await.unwrap().unwrap();
    store.commit(&row.key, Op::Update(row.value, row.revision)).await.unwrap();

    let mut reports = Vec::new();
    let done = rewrite(&encryption, &engine, |progress| reports.push(progress.rewritten)).await.unwrap();
    assert_eq!((done.objects, done.rewritten, done.unreadable), (1202, 1199, 1));
    assert_eq!(&*done.unreadable_keys[0].0, OTHER);
    assert!(reports.len() > 2 && reports.is_sorted(), "{reports:?}");
    for row in engine.range("/registry/secrets/", "", 0, None).await.unwrap().rows {
        assert!(row.value.starts_with(ENCRYPTED_PREFIX), "{}", row.key);
    }
    assert_eq!(engine.get(OTHER, None).await.unwrap().unwrap().value, damaged);
    let again = rewrite(&encryption, &engine, |_| ()).await.unwrap();
    assert_eq!(again.rewritten, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn rewrite_reads_few_large_values_at_once() {
    let encryption = start(&for_secrets(&json!([keys("aesgcm", &[("k", KEY_A)])]))).await;
    let engine = memory();
    for number in 0..9 {
        let value = Bytes::from(vec![b' '; 1_000_000]);
        engine.commit(&format!("/registry/configmaps/default/{number}"), Op::Create(value)).await.unwrap();
    }
    let mut reports = Vec::new();
    rewrite(&encryption, &engine, |progress| reports.push(progress.objects)).await.unwrap();
    assert_eq!(reports, [4, 8, 9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn conflict_carries_the_plain_row_and_unreadable_value_is_not_written() {
    let encryption = start(&for_secrets(&json!([keys("secretbox", &[("k", KEY_A)])]))).await;
    let store = encryption.store(memory());
    let created = store.commit(KEY, Op::Create(Bytes::from_static(PLAIN))).await.unwrap().revision;
    let conflict = store.commit(KEY, Op::Update(Bytes::from("{}"), Revision(99))).await.unwrap_err();
    let Error::Conflict(row) = conflict else { panic!("{conflict}") };
    assert_eq!((row.value, row.revision), (Bytes::from_static(PLAIN), created));
    let exists = store.commit(KEY, Op::Create(Bytes::from("{}"))).await.unwrap_err();
    assert!(matches!(exists, Error::Exists(row) if row.value == PLAIN));
    let error = store.commit(KEY, Op::Update(unreadable_value("x"), created)).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn encrypted_value_of_a_resource_without_a_rule_is_not_readable() {
    let encryption = start(&for_secrets(&json!([keys("secretbox", &[("k", KEY_A)])]))).await;
    let engine = memory();
    let key = "/registry/configmaps/default/m";
    engine.commit(key, Op::Create(Bytes::from_static(b"k8s:enc:aesgcm:v1:g1:abcdefgh"))).await.unwrap();
    let row = encryption.store(engine).get(key, None).await.unwrap().unwrap();
    assert_eq!(unreadable_reason(&row.value), Some("identity transformer tried to read encrypted data"));
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_uses_a_good_file_and_keeps_the_configuration_after_a_bad_one() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("enc.yaml");
    let old = keys("secretbox", &[("old", KEY_A)]);
    let encryption = start(&for_secrets(&json!([old]))).await;
    let engine = memory();
    let store = encryption.store(Arc::clone(&engine));
    store.commit(KEY, Op::Create(Bytes::from_static(PLAIN))).await.unwrap();
    let hash = encryption.hash();
    std::fs::write(&file, "kind: Other").unwrap();
    assert!(encryption.reload(&file, &names()).await.is_err());
    assert_eq!(encryption.hash(), hash);
    let new = for_secrets(&json!([keys("aesgcm", &[("new", KEY_B)]), old]));
    std::fs::write(&file, new.to_string()).unwrap();
    encryption.reload(&file, &names()).await.unwrap();
    assert_ne!(encryption.hash(), hash);
    assert!(store.is_stale(KEY).await.unwrap());
    store.commit(OTHER, Op::Create(Bytes::from_static(PLAIN))).await.unwrap();
    let stored = engine.get(OTHER, None).await.unwrap().unwrap().value;
    assert!(stored.starts_with(b"k8s:enc:aesgcm:v1:new:"));
    assert_eq!(store.get(KEY, None).await.unwrap().unwrap().value, PLAIN);
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_object_is_readable_again_after_a_reload_with_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("enc.yaml");
    let right = for_secrets(&json!([keys("aesgcm", &[("k", KEY_A)])]));
    let engine = memory();
    start(&right)
        .await
        .store(Arc::clone(&engine))
        .commit(KEY, Op::Create(Bytes::from_static(PLAIN)))
        .await
        .unwrap();
    let encryption = start(&for_secrets(&json!([keys("aesgcm", &[("k", KEY_B)])]))).await;
    let store = encryption.store(Arc::clone(&engine));
    let cache = Cache::new(Limits::default());
    cache.attach(&store);
    let resource = cache.resource("/registry/secrets/", Readable);
    resource.snapshot().await.unwrap();
    let is_readable = async || {
        let (item, _) = resource.get(KEY).await.unwrap();
        item.unwrap().entry().is_ok_and(|value| value == PLAIN)
    };
    assert!(!is_readable().await);
    // The watcher has delivered the object as unreadable, so its reader must list again.
    let mut watcher = resource.watch("/registry/secrets/", storage::Revision(0)).await.unwrap();
    let delivered = watcher.next().await.unwrap();
    assert!(delivered[0].after().unwrap().entry().is_err());
    let waiting = tokio::spawn(async move { watcher.next().await });
    let mut changes = store.watch("/registry/", store.revision()).await.unwrap();
    assert!(cache.refresh_unreadable().await, "nothing became readable");
    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    assert!(!waiting.is_finished());
    std::fs::write(&file, right.to_string()).unwrap();
    encryption.reload(&file, &names()).await.unwrap();
    assert!(cache.refresh_unreadable().await);
    assert!(is_readable().await);
    assert!(matches!(changes.next().await, Err(Error::Compacted { .. })), "readers read the store again");
    let expired = |error| matches!(error, WatchError::Store(Error::Compacted { .. }));
    let ended = tokio::time::timeout(std::time::Duration::from_secs(10), waiting).await;
    assert!(expired(ended.expect("the watcher ends").unwrap().unwrap_err()));
    assert!(expired(resource.watch("/registry/secrets/", storage::Revision(0)).await.err().unwrap()));
    let (_, mut next) = resource.snapshot_and_watch("/registry/secrets/").await.unwrap();
    let wait = std::time::Duration::from_millis(20);
    assert!(tokio::time::timeout(wait, next.next()).await.is_err(), "a new watch continues");
}
