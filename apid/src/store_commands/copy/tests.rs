//! Copies between an embedded store and a real etcd, in both directions.

use std::os::unix::fs::PermissionsExt as _;

use prerequisites::etcd::{EtcdServer, Release};
use serde_json::json;
use storage::Row;
use storage::engine::fjall::{FjallStore, Options};

use super::*;
use crate::config::StorageMediaType;

fn on_runtime<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test)
}

fn open(dir: &Path) -> FjallStore {
    let identity = Identity { preset: "kubernetes".to_owned(), api_domain: DEFAULT_API_DOMAIN.to_owned() };
    let options =
        Options { reserve_bytes: 0, ..Options::new(dir.join(STORE), identity, Arc::new(SystemClock::new())) };
    FjallStore::open(options, Arc::new(Observers(Vec::new()))).unwrap()
}

/// Fills the embedded store of a directory.
fn fill(dir: &Path) -> Vec<Row> {
    std::fs::create_dir_all(dir).unwrap();
    on_runtime(async {
        let store = open(dir);
        let objects = [
            ("core/configmaps/team/a", "v1", "ConfigMap"),
            ("core/services/team/a", "v1", "Service"),
            ("apps/deployments/team/a", "apps/v1", "Deployment"),
            ("custom/example.com/widgets/team/a", "example.com/v1", "Widget"),
        ];
        for (key, api_version, kind) in objects {
            let object = json!({
                "apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "namespace": "team", "uid": "u"}
            });
            // The stored form, with defaults.
            let names = Names::new(Preset::Kubernetes, "").unwrap();
            let values = ReferenceValues::new(&names, StorageMediaType::Json);
            let value = values.read(key, &object.to_string().into()).unwrap();
            store.commit(key, Op::Create(value)).await.unwrap();
        }
        // The keys of a large resource fill several pages; other resources follow in another order in etcd.
        for number in 0..6 {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": {"large": "x".repeat(1_000_000)},
                "metadata": {"name": format!("large-{number}"), "namespace": "team", "uid": "u"},
            });
            let mut object = apimachinery::object::Object(object.as_object().unwrap().clone());
            let key = format!("core/configmaps/team/large-{number}");
            let registry = kinds::Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
            registry.of_key(&key).unwrap().schema.conform(&mut object).unwrap();
            store.commit(&key, Op::Create(kinds::entry::encode(&object))).await.unwrap();
        }
        store.commit("/apid/continue-key", Op::Create(Bytes::from_static(b"\0\xff"))).await.unwrap();
        let rows = store.range("", "", 0, None).await.unwrap().rows;
        store.close().await;
        rows
    })
}

/// Key and value of all rows.
fn content(rows: &[Row]) -> Vec<(String, Bytes)> {
    rows.iter().map(|row| (row.key.to_string(), row.value.clone())).collect()
}

fn command(words: &[&str]) -> ExitCode {
    run(words.iter().map(|&word| word.to_owned()).collect())
}

#[test]
fn copy_to_etcd_and_back_keeps_the_objects_and_raises_revisions() {
    let Some(server) = EtcdServer::start(Release::Current, &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let (from, to) = (first.to_str().unwrap(), second.to_str().unwrap());
    let rows = fill(&first);
    let servers = format!("--etcd-servers={}", server.url());
    assert_eq!(command(&["copy", "--from", from, "--to", "etcd", &servers]), ExitCode::SUCCESS);
    assert!(!first.join("copy.backup").exists(), "no file with objects stays");
    let again = command(&["copy", "--from", from, "--to", "etcd", &servers]);
    assert_ne!(again, ExitCode::SUCCESS, "a cluster with objects is no target");

    let file = folder.path().join("backup");
    let to_file = format!("--to={}", file.display());
    assert_eq!(command(&["backup", &servers, &to_file]), ExitCode::SUCCESS);
    assert_eq!(command(&["copy", "--from=etcd", "--to", to, &servers]), ExitCode::SUCCESS);
    let mode = std::fs::metadata(&second).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700, "others cannot read the data directory");
    let copied = on_runtime(async {
        let store = open(&second);
        assert!(store.revision().0 > offline::REVISION_GAP);
        let rows_copied = store.range("", "", 0, None).await.unwrap().rows;
        let revisions = rows_copied.iter().map(|row| row.revision);
        assert!(revisions.min() > rows.iter().map(|row| row.revision).max(), "no revision is used again");
        store.close().await;
        rows_copied
    });
    assert_eq!(content(&copied), content(&rows));

    // The backup of the cluster is restored below another prefix, and the keys of the backup are sorted.
    let from_file = format!("--from={}", file.display());
    let other = "--etcd-prefix=/other";
    assert_eq!(command(&["restore", &servers, other, &from_file]), ExitCode::SUCCESS);
    let mut reader = ArchiveReader::open(&file).unwrap();
    let mut keys = Vec::new();
    while let Some((key, _, value)) = reader.next_object().unwrap() {
        assert!(value.starts_with(b"{") || key.starts_with("/apid/"), "{key}");
        keys.push(key);
    }
    assert!(keys.is_sorted(), "{keys:?}");
}

#[test]
fn copied_events_have_a_lifetime() {
    let Some(server) = EtcdServer::start(Release::Current, &[]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().to_str().unwrap();
    fill(folder.path());
    on_runtime(async {
        let store = open(folder.path());
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "team", "uid": "u"},
            "involvedObject": {},
        });
        let mut event = apimachinery::object::Object(event.as_object().unwrap().clone());
        let registry = kinds::Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
        registry.of_key("core/events/team/e").unwrap().schema.conform(&mut event).unwrap();
        store.commit("core/events/team/e", Op::Create(kinds::entry::encode(&event))).await.unwrap();
        store.close().await;
    });
    let servers = format!("--etcd-servers={}", server.url());
    let copied = command(&["copy", "--from", from, "--to", "etcd", "--event-ttl=3s", &servers]);
    assert_eq!(copied, ExitCode::SUCCESS);
    let flags = CopyFlags::augment_args(clap::Command::new("test").no_binary_name(true));
    let words = [servers, "--etcd-compaction-interval=200ms".to_owned()];
    let flags = CopyFlags::from_arg_matches(&flags.get_matches_from(words)).unwrap();
    on_runtime(async {
        let (store, _) = flags.open(None).await.unwrap();
        let compacted = store.compacted();
        let mut seconds = 0;
        while store.get("core/events/team/e", None).await.unwrap().is_some() {
            seconds += 1;
            assert!(seconds < 60, "etcd does not remove the Event");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(store.get("core/services/team/a", None).await.unwrap().is_some(), "other objects stay");
        assert_eq!(store.compacted(), compacted, "the command does not compact");
        store.close().await;
    });
}

#[test]
fn copy_needs_etcd_at_one_side_and_its_servers() {
    for words in [
        &["copy"][..],
        &["copy", "--from=/a", "--to=/b", "--etcd-servers=http://127.0.0.1:1"],
        &["copy", "--from=etcd", "--to=etcd", "--etcd-servers=http://127.0.0.1:1"],
        &["copy", "--from=etcd", "--to=/b"],
        &["copy", "--from=etcd", "--unknown"],
        &["backup", "--etcd-servers=http://127.0.0.1:1"],
    ] {
        assert_eq!(command(words), ExitCode::from(64), "{words:?}");
    }
}

#[test]
fn cluster_of_events_is_rejected_by_all_commands() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<String>>();
    assert!(
        is_command(&words("backup --etcd-servers http://a:1"))
            && is_command(&words("restore --etcd-servers=http://a:1"))
    );
    assert!(
        !is_command(&words("backup --data-dir d --etcd-servers-overrides=/events#http://a:1")),
        "another command"
    );
    for (word, places) in [("backup", "--to f"), ("restore", "--from f"), ("copy", "--from d --to etcd")] {
        let text = format!("{places} --etcd-servers=http://a:1 --etcd-servers-overrides=/events#http://b:1");
        let command = CopyFlags::augment_args(clap::Command::new("test").no_binary_name(true));
        let flags = CopyFlags::from_arg_matches(&command.get_matches_from(words(&text))).unwrap();
        let error = on_runtime(flags.run(word)).unwrap_err();
        assert!(matches!(error, CopyError::Usage(_)), "{word}: {error}");
        assert!(error.to_string().contains("`--etcd-servers-overrides`: "), "{word}: {error}");
    }
}

#[test]
fn encrypted_objects_are_copied_with_their_providers_only() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("encryption.yaml");
    let names = Names::new(Preset::Kubernetes, "").unwrap();
    let configuration = json!({
        "kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1",
        "resources": [{"resources": ["secrets"], "providers": [
            {"aesgcm": {"keys": [{"name": "k", "secret": "yCRbk8PwW8jX1xeeR3HL1Nkk/I6F6gQ2IEgScymIm7s="}]}}
        ]}],
    });
    std::fs::write(&file, configuration.to_string()).unwrap();
    let flags = |prefix: &str, providers: Option<&Path>| {
        let mut words = vec![format!("--etcd-prefix={prefix}")];
        words.extend(providers.map(|file| format!("--encryption-provider-config={}", file.display())));
        let command = CopyFlags::augment_args(clap::Command::new("test").no_binary_name(true));
        CopyFlags::from_arg_matches(&command.get_matches_from(words)).unwrap()
    };
    let secret = json!({
        "kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s", "namespace": "team"}, "type": "Opaque"
    });
    let plain = Bytes::from(secret.to_string());
    on_runtime(async {
        let key = "core/secrets/team/s";
        let converter = Converter::new(&flags("/other", Some(&file)), &names).await.unwrap();
        let (embedded, _) = converter.encryption.as_ref().unwrap();
        let stored = encrypt(embedded, key, plain.clone()).await.unwrap();
        assert!(stored.starts_with(ENCRYPTED_PREFIX));
        let moved = converter.to_cluster(key, &stored).await.unwrap();
        assert!(moved.starts_with(ENCRYPTED_PREFIX) && moved != stored);
        let back = converter.to_embedded(key, &moved).await.unwrap();
        let decrypted = decrypt(embedded, key, &back).await.unwrap();
        let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        assert_eq!(json(&decrypted)["type"], "Opaque");
        let keyless = Converter::new(&flags("/other", None), &names).await.unwrap();
        for result in [keyless.to_cluster(key, &stored).await, keyless.to_embedded(key, &moved).await] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("set `--encryption-provider-config`"), "{error}");
        }
        let same_prefix = Converter::new(&flags("/registry", None), &names).await.unwrap();
        assert_eq!(same_prefix.to_cluster(key, &stored).await.unwrap(), stored);
    });
}
