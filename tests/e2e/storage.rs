//! Storage end to end: full disk, quota, expiry of Events, `apid store` commands, and corruption.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use tests::disk::Disk;
use tests::harness::{Client, ControlPlane, Options, WatchStream, eventually, program};
use tests::mount::Mount;
use tests::namespace::run_inside;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MIB: u64 = 1 << 20;

fn map(name: &str, size: usize) -> Value {
    json!({"metadata": {"name": name}, "data": {"value": "x".repeat(size)}})
}

/// Waits for the next watch event of a type.
async fn next_event(watch: &mut WatchStream, kind: &str) -> Value {
    let next = async {
        loop {
            let event = watch.next().await.expect("the watch goes on");
            if event["type"] == kind {
                return event["object"].clone();
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), next).await.unwrap_or_else(|_| panic!("no {kind} comes"))
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().expect("a version").parse().expect("a number")
}

/// Asserts a 503 Status for full storage without a Retry-After header, with which kubectl would wait in silence.
fn assert_storage_full(answer: &tests::harness::TestResponse) {
    let status = answer.expect(503);
    assert_eq!(
        (&status["kind"], &status["reason"]),
        (&json!("Status"), &json!("ServiceUnavailable")),
        "{status}"
    );
    assert!(status["message"].as_str().unwrap_or_default().contains("storage is full"), "{status}");
    assert!(answer.header("retry-after").is_empty());
}

#[test]
fn full_disk_returns_503_and_recovers_automatically() {
    run_inside("storage::full_disk_returns_503_and_recovers_automatically", || {
        let dir = tempfile::tempdir().expect("a folder");
        let mount = Mount::new(Disk::new(), dir.path()).expect("a mount");
        mount.set_capacity(Some(2048 * MIB));
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(fill_and_free(&mount));
        drop(runtime);
        mount.unmount().expect("nothing is open");
    });
}

async fn fill_and_free(mount: &Mount) {
    let total_and_free_bytes = || {
        let disk = rustix::fs::statvfs(mount.dir()).expect("the free space");
        (disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)
    };
    // The mounted disk does not support sockets.
    let sockets = tempfile::tempdir().expect("a folder");
    let options = Options { data_dir: Some(mount.dir().join("data")), ..Options::default() };
    let socket = format!("--authd-socket={}", sockets.path().join("authd").display());
    let mut plane = ControlPlane::start(options.flag(&socket)).await;
    let (client, pid) = (plane.admin(), plane.pid());
    let mut watch = client.watch(&format!("{MAPS}?watch=1")).await;
    client.post(MAPS, &map("first", 10)).await.expect(201);
    client.post(MAPS, &map("second", 10)).await.expect(201);
    next_event(&mut watch, "ADDED").await;
    for free in [200 * MIB, 0] {
        let (size, left) = total_and_free_bytes();
        mount.set_capacity(Some(size - left + free));
        let refused = eventually("writes are rejected", || async {
            let name = format!("more-{free}");
            let answer = client.post(MAPS, &map(&name, 10)).await;
            if answer.status == 201 {
                client.delete(&format!("{MAPS}/{name}")).await;
            }
            // apid measures the free space ten times a second. A write before that may get the error of the
            // disk.
            answer.text().contains("storage is full").then_some(answer)
        })
        .await;
        assert_storage_full(&refused);
        assert_storage_full(&client.put(&format!("{MAPS}/first"), &map("first", 20)).await);
        client.get(&format!("{MAPS}/first")).await.expect(200);
        let list = client.get(MAPS).await.expect(200);
        assert!(list["items"].as_array().is_some_and(|items| items.len() >= 2), "{list}");
        client.get(&format!("{MAPS}?resourceVersion=0")).await.expect(200);
        assert_eq!(client.get("/livez").await.status, 200);
        let doomed = if free > 0 { "second" } else { "first" };
        let deleted = client.delete(&format!("{MAPS}/{doomed}")).await;
        if free > 0 {
            deleted.expect(200);
            // With 200 MiB left, deletes are permitted because they free space. Earlier deletes of this test
            // may precede this event.
            while next_event(&mut watch, "DELETED").await["metadata"]["name"] != "second" {}
        } else {
            assert_storage_full(&deleted);
        }
        mount.set_capacity(Some(2048 * MIB));
        let back = format!("back-{free}");
        eventually("writes are accepted again", || async {
            (client.post(MAPS, &map(&back, 10)).await.status == 201).then_some(())
        })
        .await;
        while next_event(&mut watch, "ADDED").await["metadata"]["name"] != back.as_str() {}
        assert_eq!(plane.pid(), pid);
    }
    plane.stop().await;
    plane.launch().await;
    for (name, code) in [("first", 200), ("second", 404), ("back-0", 200)] {
        plane.admin().get(&format!("{MAPS}/{name}")).await.expect(code);
    }
    plane.stop().await;
}

#[tokio::test]
async fn full_storage_quota_returns_503_until_objects_are_deleted() {
    // The full store shortens its history by itself. A shorter history would end the watch of a slow client.
    let plane = ControlPlane::start(Options::default().flag("--storage-quota=12Mi")).await;
    let client = plane.admin();
    let mut made = 0;
    let refused = loop {
        let answer = client.post(MAPS, &map(&format!("large-{made}"), 900_000)).await;
        if answer.status != 201 {
            break answer;
        }
        made += 1;
        assert!(made < 40, "the quota is not enforced");
    };
    assert_storage_full(&refused);
    assert!(made > 4, "the quota rejected object {made}");
    client.get(&format!("{MAPS}/large-0")).await.expect(200);
    let mut watch = client.watch(&format!("{MAPS}?watch=1")).await;
    for number in 0..made {
        client.delete(&format!("{MAPS}/large-{number}")).await.expect(200);
        next_event(&mut watch, "DELETED").await;
    }
    eventually("writes are accepted again", || async {
        (client.post(MAPS, &map("again", 900_000)).await.status == 201).then_some(())
    })
    .await;
    assert_eq!(next_event(&mut watch, "ADDED").await["metadata"]["name"], "again");
}

fn involved_object() -> Value {
    json!({"kind": "Namespace", "namespace": "default", "name": "default"})
}

#[tokio::test]
async fn expired_events_are_deleted_in_both_api_groups_after_restart() {
    let mut plane = ControlPlane::start(Options::kubernetes().flag("--event-ttl=3s")).await;
    let core = "/api/v1/namespaces/default/events";
    let newer = format!("{}/namespaces/default/events", plane.api("events", "v1"));
    let post = async |client: &Client, name: &str| {
        let event = json!({"metadata": {"name": name}, "involvedObject": involved_object(), "reason": "Tested", "type": "Normal"});
        client.post(core, &event).await.expect(201)
    };
    let client = plane.admin();
    let mut watches = Vec::new();
    for path in [core, &newer] {
        watches.push(client.watch(&format!("{path}?watch=1&fieldSelector=metadata.name=old")).await);
    }
    let old = post(&client, "old").await;
    client.post("/api/v1/namespaces/default/configmaps", &map("stays", 10)).await.expect(201);
    for (watch, api) in watches.iter_mut().zip(["v1", "events.k8s.io/v1"]) {
        next_event(watch, "ADDED").await;
        let deleted = next_event(watch, "DELETED").await;
        assert_eq!((&deleted["metadata"]["name"], &deleted["apiVersion"]), (&json!("old"), &json!(api)));
        assert!(version(&deleted) > version(&old), "the revision of the deletion");
    }
    client.get(&format!("{core}/old")).await.expect(404);
    post(&client, "before-restart").await;
    plane.kill();
    plane.launch().await;
    let client = plane.admin();
    eventually("the Event expires after a restart", || async {
        (client.get(&format!("{core}/before-restart")).await.status == 404).then_some(())
    })
    .await;
    client.get("/api/v1/namespaces/default/configmaps/stays").await.expect(200);
}

/// Runs `apid store` on a data directory.
fn store(word: &str, data: &Path, flags: &[String]) -> Output {
    Command::new(program("apid"))
        .args(["store", word, "--data-dir"])
        .arg(data)
        .args(flags)
        .output()
        .expect("the program runs")
}

fn exit_code_and_output(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// After a restore from a backup, clients with newer resourceVersions get 410 and list again.
///
/// No resourceVersion is reused.
#[tokio::test]
async fn restored_store_continues_above_all_seen_revisions() {
    let mut plane = ControlPlane::start(Options::default()).await;
    let (data, file) = (plane.data_dir(), plane.dir().join("backup"));
    let client = plane.admin();
    for number in 0..5 {
        client.post(MAPS, &map(&format!("kept-{number}"), 100)).await.expect(201);
    }
    let (code, text) = exit_code_and_output(&store("check", &data, &[]));
    assert_eq!(code, Some(1), "a running server locks the store: {text}");
    assert!(text.contains("in use"), "{text}");
    plane.stop().await;
    let (code, text) = exit_code_and_output(&store("check", &data, &[]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.ends_with("sound\n"), "{text}");
    let to = [format!("--to={}", file.display())];
    let (code, text) = exit_code_and_output(&store("backup", &data, &to));
    assert_eq!(code, Some(0), "{text}");
    // Clients see writes after the backup, which the restore loses.
    plane.launch().await;
    let client = plane.admin();
    for number in 0..20 {
        client.post(MAPS, &map(&format!("lost-{number}"), 10)).await.expect(201);
    }
    let seen = client.get(&format!("{MAPS}?limit=3")).await.expect(200);
    let newest = version(&seen);
    let token = seen["metadata"]["continue"].as_str().expect("a token").to_owned();
    plane.stop().await;
    std::fs::remove_dir_all(data.join("store")).expect("the store was there");
    let from = [format!("--from={}", file.display())];
    let (code, text) = exit_code_and_output(&store("restore", &data, &from));
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = exit_code_and_output(&store("restore", &data, &from));
    assert_eq!(code, Some(1), "restore must not replace an existing store: {text}");
    plane.launch().await;
    let client = plane.admin();
    let continued = client.get(&format!("{MAPS}?limit=3&continue={token}")).await;
    assert_eq!(continued.expect(410)["reason"], "Expired");
    let stale = client.request("GET", &format!("{MAPS}?watch=1&resourceVersion={newest}"), &[], b"").await;
    assert!(stale.status == 410 || stale.text().contains("\"code\":410"), "{}", stale.text());
    let list = client.get(MAPS).await.expect(200);
    let names: Vec<_> =
        list["items"].as_array().expect("items").iter().map(|item| &item["metadata"]["name"]).collect();
    assert!(names.contains(&&json!("kept-4")) && !names.contains(&&json!("lost-0")), "{names:?}");
    assert!(version(&list) > newest + 1_000_000, "{} after {newest}", version(&list));
    let mut watch = client.watch(&format!("{MAPS}?watch=1&resourceVersion={}", version(&list))).await;
    let made = client.post(MAPS, &map("anew", 10)).await.expect(201);
    let added = next_event(&mut watch, "ADDED").await;
    assert_eq!((version(&added), &added["metadata"]["name"]), (version(&made), &json!("anew")));
    assert!(version(&made) > version(&list));
    let kept = client.get(&format!("{MAPS}/kept-0")).await.expect(200);
    let mut changed = kept.clone();
    changed["data"] = json!({"value": "changed"});
    client.put(&format!("{MAPS}/kept-0"), &changed).await.expect(200);
    plane.stop().await;
    assert_eq!(store("check", &data, &[]).status.code(), Some(0));
}

/// With a flipped byte in the journal, the start fails and reports the lost revisions.
///
/// `apid store repair` keeps all other changes, including later changes.
#[tokio::test]
async fn damaged_store_fails_startup_and_is_repaired() {
    let mut plane = ControlPlane::start(Options::default()).await;
    let data = plane.data_dir();
    for number in 0..20 {
        plane.admin().post(MAPS, &map(&format!("m-{number:02}"), 3000)).await.expect(201);
    }
    plane.stop().await;
    let journal = data.join("store/fjall/0.jnl");
    let mut bytes = std::fs::read(&journal).expect("the journal");
    let name = b"configmaps/default/m-10\0";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("its row");
    bytes[at + 1000] ^= 1;
    std::fs::write(&journal, &bytes).expect("written");
    let refused = plane.command().output().expect("the program runs");
    let (code, text) = exit_code_and_output(&refused);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("revisions") && text.contains("are missing"), "{text}");
    assert_eq!(
        std::fs::read(&journal).expect("the journal"),
        bytes,
        "a failed start must not change the journal"
    );
    let (code, text) = exit_code_and_output(&store("check", &data, &[]));
    assert_eq!(code, Some(2), "{text}");
    for words in ["lost: some or all of the revisions", "readable after that", "apid store repair"] {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("harmless"), "{text}");
    let backup = store("backup", &data, &[format!("--to={}", data.join("file").display())]);
    assert_eq!(exit_code_and_output(&backup).0, Some(2), "a damaged store is not backed up");
    let (code, text) = exit_code_and_output(&store("repair", &data, &[]));
    assert_eq!(code, Some(3), "repair reports lost changes: {text}");
    assert!(data.join("store.damaged").is_dir());
    let (code, text) = exit_code_and_output(&store("repair", &data, &[]));
    assert_eq!(code, Some(0), "a second repair finds nothing to repair: {text}");
    plane.launch().await;
    let client = plane.admin();
    for (name, code) in [("m-00", 200), ("m-09", 200), ("m-10", 404), ("m-11", 200), ("m-19", 200)] {
        client.get(&format!("{MAPS}/{name}")).await.expect(code);
    }
    client.post(MAPS, &map("m-10", 10)).await.expect(201);
}

/// The first batch of the journal contains the identity of the store: preset and API domain.
#[tokio::test]
async fn store_without_identity_is_repaired_only_with_names_flags() {
    let mut plane = ControlPlane::start(Options::kubernetes()).await;
    let data = plane.data_dir();
    plane.admin().post(MAPS, &map("kept", 10)).await.expect(201);
    plane.stop().await;
    let journal = data.join("store/fjall/0.jnl");
    let mut bytes = std::fs::read(&journal).expect("the journal");
    let at = bytes.windows(11).position(|window| window == b"kubernetes\n").expect("the identity");
    bytes[at] ^= 1;
    std::fs::write(&journal, &bytes).expect("written");
    let (code, text) = exit_code_and_output(&store("repair", &data, &[]));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("--names") && text.contains("--api-domain"), "{text}");
    assert!(!data.join("store.damaged").exists());
    let (code, text) = exit_code_and_output(&store("repair", &data, &["--names=kubernetes".to_owned()]));
    assert_eq!(code, Some(0), "repair must lose nothing: {text}");
    plane.launch().await;
    plane.admin().get(&format!("{MAPS}/kept")).await.expect(200);
}

/// The Event expiry task stops before the store is closed, so that a clean shutdown logs no error.
#[tokio::test]
async fn event_expiry_logs_nothing_at_graceful_shutdown() {
    let mut plane = ControlPlane::start(Options::default()).await;
    plane.admin().post(MAPS, &map("any", 10)).await.expect(201);
    plane.stop().await;
    let log = plane.log();
    let loud: Vec<_> = log.lines().filter(|line| line.contains("expiry")).collect();
    assert!(loud.is_empty(), "{loud:#?}");
}
