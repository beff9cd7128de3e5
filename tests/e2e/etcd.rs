//! The store in etcd with the programs: keys and values as kube-apiserver writes them, several servers, restarts, TLS.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prerequisites::etcd::{self, EtcdServer, Release};
use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, eventually, program};

use super::backup::backup;

pub(super) const MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub(super) const EVENTS: &str = "/api/v1/namespaces/default/events";

/// Runs `etcdctl` on a server, with a value as its input.
fn etcdctl(server: &EtcdServer, arguments: &[&str], input: &[u8]) -> Output {
    let program = etcd::programs(Release::Current).expect("etcd is installed").join("etcdctl");
    let mut command = Command::new(program);
    command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", server.url())).args(arguments);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("etcdctl runs");
    child.stdin.take().expect("an input").write_all(input).expect("the value is read");
    child.wait_with_output().expect("etcdctl ends")
}

/// The stored keys with a prefix: key, value, and the lease.
pub(super) fn stored(server: &EtcdServer, prefix: &str) -> Vec<(String, Vec<u8>, i64)> {
    let output = etcdctl(server, &["get", prefix, "--prefix", "--write-out=json"], b"");
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let decode = |value: &Value| STANDARD.decode(value.as_str().unwrap_or_default()).expect("base64");
    let rows = answer["kvs"].as_array().cloned().unwrap_or_default();
    let row = |kv: &Value| {
        let key = String::from_utf8(decode(&kv["key"])).expect("text");
        (key, decode(&kv["value"]), kv["lease"].as_i64().unwrap_or_default())
    };
    rows.iter().map(row).collect()
}

fn options(server: &EtcdServer) -> Options {
    Options::kubernetes().flag(&format!("--etcd-servers={}", server.url()))
}

pub(super) fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"key": value}})
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_share_a_store_and_keep_the_objects_after_a_restart() {
    let Some(server) = EtcdServer::start(Release::Current, &[]) else { return };
    let mut first = ControlPlane::start(options(&server)).await;
    let second = ControlPlane::start(options(&server)).await;
    let (admin, other) = (first.admin(), second.admin());
    let ready = admin.get("/readyz?verbose").await.text();
    assert!(ready.contains("[+]etcd ok") && ready.contains("[+]etcd-readiness ok"), "{ready}");

    let mut watch = other.watch(&format!("{MAPS}?watch=1&fieldSelector=metadata.name=shared")).await;
    let created = admin.post(MAPS, &map("shared", "one")).await.expect(201);
    let event = watch.next().await.expect("an event of the other server");
    assert_eq!((event["type"].as_str(), &event["object"]), (Some("ADDED"), &created));
    let updated = other.put(&format!("{MAPS}/shared"), &map("shared", "two")).await.expect(200);
    let version = updated["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    let path = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=NotOlderThan");
    let list = admin.get(&path).await.expect(200);
    let items = list["items"].as_array().expect("items");
    assert!(items.iter().any(|item| item["data"]["key"] == "two"), "{list}");
    // This revision has no change of an object: the server learns from etcd that it has passed.
    let put = etcdctl(&server, &["put", "/elsewhere", "x", "--write-out=json"], b"");
    let put: Value = serde_json::from_slice(&put.stdout).expect("JSON");
    let path = format!("{MAPS}?resourceVersion={}", put["header"]["revision"]);
    other.get(&path).await.expect(200);

    let [(key, value, 0)] = &stored(&server, "/registry/configmaps/default/shared")[..] else {
        panic!("one key without a lease")
    };
    assert_eq!(key, "/registry/configmaps/default/shared");
    assert!(value.starts_with(b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap"), "{value:?}");

    let event = json!({
        "metadata": {"name": "happened"}, "involvedObject": {"namespace": "default"}, "reason": "Test"
    });
    admin.post(EVENTS, &event).await.expect(201);
    let events = stored(&server, "/registry/events/default/happened");
    assert!(matches!(&events[..], [(_, _, lease)] if *lease != 0), "an Event has a lease");
    let metrics = admin.get("/metrics").await.text();
    let series = "etcd_requests_total{operation=\"create\",type=\"configmaps\"}";
    assert!(metrics.contains(series), "{metrics}");

    first.stop().await;
    first.launch().await;
    let admin = first.admin();
    let found = admin.get(&format!("{MAPS}/shared")).await.expect(200);
    assert_eq!(
        (&found["data"]["key"], &found["metadata"]["uid"]),
        (&json!("two"), &created["metadata"]["uid"])
    );
    other.delete(&format!("{MAPS}/shared")).await.expect(200);
    eventually("the deletion is known", || async {
        (admin.get(&format!("{MAPS}/shared")).await.status == 404).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backup_of_encrypted_objects_is_restored_in_both_engines() {
    let Some(server) = EtcdServer::start(Release::Current, &[]) else { return };
    let dir = tempfile::tempdir().expect("a folder");
    let (file, to, data) = (dir.path().join("enc.json"), dir.path().join("backup"), dir.path().join("data"));
    let keys = json!([{"name": "k", "secret": "yCRbk8PwW8jX1xeeR3HL1Nkk/I6F6gQ2IEgScymIm7s="}]);
    let rule = json!({"resources": ["secrets"], "providers": [{"aesgcm": {"keys": keys}}]});
    let configuration = json!({
        "kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": [rule]
    });
    fs::write(&file, configuration.to_string()).expect("the configuration is written");
    let encryption = format!("--encryption-provider-config={}", file.display());
    let secrets = "/api/v1/namespaces/default/secrets";
    let plane = ControlPlane::start(options(&server).flag("--etcd-prefix=/place").flag(&encryption)).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"word": "hidden"}});
    plane.admin().post(secrets, &secret).await.expect(201);
    let output = tokio::task::block_in_place(|| backup(&plane, "admin", &to));
    assert!(output.status.success(), "{output:?}");
    let content = fs::read(&to).expect("the backup");
    assert!(!content.windows(8).any(|window| window == b"aGlkZGVu"), "the Secret is not in clear text");

    // A server without the key says so.
    let other = ControlPlane::start(options(&server).flag("--etcd-prefix=/place")).await;
    let output = tokio::task::block_in_place(|| backup(&other, "admin", &dir.path().join("refused")));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for words in ["503", "key `core/secrets/default/s` is encrypted", "--encryption-provider-config"] {
        assert!(text.contains(words), "{text}");
    }
    drop(other);

    let restore = |flags: &[&str]| {
        let mut command = Command::new(program("apid"));
        let output = command.args(["store", "restore"]).args(flags).arg("--from").arg(&to).output();
        let output = output.expect("apid runs");
        assert!(output.status.success(), "{output:?}");
    };
    restore(&[&format!("--data-dir={}", data.display())]);
    restore(&[&format!("--etcd-servers={}", server.url()), "--etcd-prefix=/copy", &encryption]);
    let embedded = Options { data_dir: Some(data), ..Options::kubernetes() };
    for options in [embedded, options(&server).flag("--etcd-prefix=/copy")] {
        let plane = ControlPlane::start(options.flag(&encryption)).await;
        let read = plane.admin().get(&format!("{secrets}/s")).await.expect(200);
        assert_eq!(read["data"]["word"], "aGlkZGVu");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_kube_apiserver_are_served_as_recorded() {
    let Some(folder) = prerequisites::etcd_data() else { return };
    let Some(server) = EtcdServer::start(Release::Current, &[]) else { return };
    let lines = |name: &str| -> Vec<Value> {
        let text = fs::read_to_string(folder.join(name)).expect("a recording");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    for line in lines("keys.jsonl") {
        let key = line["key"].as_str().expect("a key");
        let value = STANDARD.decode(line["value"].as_str().expect("a value")).expect("base64");
        let output = etcdctl(&server, &["put", "--", key], &value);
        assert!(output.status.success(), "{key}: {output:?}");
    }
    // The owners of recorded objects are not recorded.
    let flags = ["--service-cluster-ip-range=10.0.0.0/24", "--enable-garbage-collector=false"];
    let plane =
        ControlPlane::start(flags.into_iter().fold(options(&server), |options, flag| options.flag(flag)))
            .await;
    let admin = plane.admin();
    let mut different = HashMap::new();
    for line in lines("served.jsonl") {
        let path = line["path"].as_str().expect("a path");
        let answer = admin.get(path).await;
        let mut body = if answer.status == 200 { answer.json() } else { json!({"status": answer.status}) };
        let mut expected = line["body"].clone();
        for object in [&mut body, &mut expected] {
            if let Some(metadata) = object["metadata"].as_object_mut() {
                metadata.remove("resourceVersion");
            }
        }
        if body != expected {
            different.insert(path.to_owned(), (body, expected));
        }
    }
    // These objects are written by the start and by the controllers, which the recorded server did not have.
    let maintained = [
        "/namespaces/kube-system",
        "/namespaces/closing",
        "/apiservices/",
        "/flowcontrol.apiserver.k8s.io/",
        "/endpoints/kubernetes",
        "/endpointslices/kubernetes",
        "/resourcequotas/",
        "/validatingadmissionpolicies/",
        "/certificatesigningrequests/",
        // Outdated identity Leases are removed.
        "/leases/kube-system/apiserver-",
        "/servicecidrs/",
        "/clusterroles/admin",
        "/clusterroles/edit",
        "/clusterroles/view",
        "/clusterroles/system:controller:expand-controller",
        "/clusterroles/system:controller:persistent-volume-binder",
    ];
    different.retain(|path, _| !maintained.iter().any(|part| path.contains(part)));
    assert!(different.is_empty(), "{}: {different:#?}", different.len());
    let kept = ["/registry/ranges/serviceips", "/registry/masterleases/192.0.2.10", "compact_rev_key"];
    for key in kept {
        assert_eq!(stored(&server, key).len(), 1, "{key} is kept");
    }
}

/// Makes a CA and certificates with openssl.
fn certificates(folder: &Path) {
    let script = "set -e; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca \
        -keyout ca.key -out ca.crt 2>/dev/null; \
        for name in server client; do \
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$name -keyout $name.key -out $name.csr 2>/dev/null; \
        printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth\\n' >$name.ext; \
        openssl x509 -req -in $name.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile $name.ext -out $name.crt 2>/dev/null; \
        done";
    let output = Command::new("sh").arg("-c").arg(script).current_dir(folder).output().expect("sh runs");
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_with_client_certificates_is_used() {
    let folder = tempfile::tempdir().expect("a folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name);
    let flag = |flag: &str, name: &str| format!("--{flag}={}", file(name).display());
    let flags = [
        flag("cert-file", "server.crt"),
        flag("key-file", "server.key"),
        flag("trusted-ca-file", "ca.crt"),
        "--client-cert-auth".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let Some(server) = EtcdServer::start(Release::Current, &flags) else { return };
    let options = options(&server)
        .flag(&flag("etcd-cafile", "ca.crt"))
        .flag(&flag("etcd-certfile", "client.crt"))
        .flag(&flag("etcd-keyfile", "client.key"))
        .flag("--storage-media-type=application/json");
    let plane = ControlPlane::start(options).await;
    plane.admin().post(MAPS, &map("secured", "x")).await.expect(201);
    let found: PathBuf = plane.data_dir().join("store");
    assert!(!found.exists(), "no embedded store exists");
}
