//! Stored objects of each release: the fixtures of all releases are restored and read by this release.
//!
//! `tests/golden/RELEASE` has the backup of a store of a release, and the objects in it as that release served
//! them. `UPDATE=1 cargo test -p tests --test system stored_objects` creates the objects of `objects.jsonl` on
//! this release and rewrites both files of this release. The fixture of an earlier release never changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually, program};

use super::backup::backup;

/// Flags that serve all versions and keep old events and certificate requests.
pub(super) const FLAGS: [&str; 4] = [
    "--runtime-config=api/all=true",
    "--feature-gates=ClusterTrustBundle=true,DRADeviceTaints=true,StorageVersionMigrator=true",
    "--event-ttl=876000h",
    "--controllers=*,-certificatesigningrequest-cleaner-controller,-root-ca-certificate-publisher-controller",
];
/// Metadata that the server sets.
pub(super) const SERVER_METADATA: [&str; 5] =
    ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"];
/// The group version of the aggregated server of the fixture, which does not run.
const AGGREGATED: &str = "/apis/kept.example.com/v1";
/// Resources without an object in the fixture.
///
/// No store has component statuses. The server makes the IP addresses, and a controller finishes each migration.
const NOT_IN_FIXTURE: [&str; 3] = ["componentstatuses", "ipaddresses", "storageversionmigrations"];

/// The folders of releases with a fixture.
fn releases() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let folders = fs::read_dir(golden).expect("the folder").map(|entry| entry.expect("an entry").path());
    folders.filter(|folder| folder.join("objects.jsonl").is_file()).collect()
}

/// The collection path and the object of each line of a fixture.
pub(super) fn objects(folder: &Path) -> Vec<(String, Value)> {
    let text = fs::read_to_string(folder.join("objects.jsonl")).expect("the objects");
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        (line["collection"].as_str().expect("a path").to_owned(), line["object"].clone())
    };
    text.lines().map(line).collect()
}

pub(super) fn path_of(collection: &str, object: &Value) -> String {
    format!("{collection}/{}", object["metadata"]["name"].as_str().expect("a name"))
}

/// The resource of a collection, such as `pods`.
pub(super) fn resource_of(collection: &str) -> &str {
    collection.rsplit('/').next().unwrap_or_default()
}

async fn start(data: Option<PathBuf>) -> ControlPlane {
    let options = Options { data_dir: data, ..Options::kubernetes() };
    ControlPlane::start(FLAGS.iter().fold(options, |options, flag| options.flag(flag))).await
}

/// Whether a value has all fields of a recorded value.
fn includes(actual: &Value, recorded: &Value) -> bool {
    match (actual, recorded) {
        (Value::Object(actual), Value::Object(recorded)) => recorded
            .iter()
            .all(|(name, value)| actual.get(name).is_some_and(|actual| includes(actual, value))),
        (Value::Array(actual), Value::Array(recorded)) => {
            actual.len() == recorded.len() && actual.iter().zip(recorded).all(|(a, r)| includes(a, r))
        }
        _ => actual == recorded,
    }
}

/// The paths of all collections that a server lists.
async fn collections(client: &Client) -> Vec<String> {
    let groups = client.get("/apis").await.expect(200);
    let mut documents = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().expect("groups") {
        for version in group["versions"].as_array().expect("versions") {
            documents.push(format!("/apis/{}", version["groupVersion"].as_str().expect("a version")));
        }
    }
    let mut paths = Vec::new();
    for document in documents {
        if document == AGGREGATED {
            continue;
        }
        for resource in client.get(&document).await.expect(200)["resources"].as_array().expect("resources") {
            let can_list = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&"list".into()));
            let name = resource["name"].as_str().expect("a name");
            if can_list && !name.contains('/') {
                paths.push(format!("{document}/{name}"));
            }
        }
    }
    paths
}

/// Rewrites the fixture of this release.
async fn update(folder: &Path) {
    let plane = start(None).await;
    let admin = plane.admin();
    let mut lines = String::new();
    for (collection, object) in objects(folder) {
        let mut body = object.clone();
        let metadata = body["metadata"].as_object_mut().expect("metadata");
        metadata.retain(|name, _| !SERVER_METADATA.contains(&name.as_str()));
        // A new definition is served after its names are accepted.
        eventually(&collection, || async {
            let response = admin.post(&collection, &body).await;
            assert!([201, 404, 409].contains(&response.status), "{collection}: {}", response.text());
            (response.status != 404).then_some(())
        })
        .await;
    }
    // The controllers have finished their writes to new objects.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    for (collection, object) in objects(folder) {
        let mut object = admin.get(&path_of(&collection, &object)).await.expect(200);
        object["metadata"].as_object_mut().expect("metadata").remove("managedFields");
        lines.push_str(&format!("{}\n", json!({"collection": collection, "object": object})));
    }
    let file = folder.join("store.backup");
    drop(fs::remove_file(&file));
    let output = backup(&plane, "admin", &file);
    assert!(output.status.success(), "{output:?}");
    fs::write(folder.join("objects.jsonl"), lines).expect("the objects");
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_objects_of_each_release_are_readable() {
    let own = env!("CARGO_PKG_VERSION").rsplit_once('.').expect("a version").0;
    assert!(!releases().is_empty());
    for folder in releases() {
        if folder.ends_with(own) && std::env::var_os("UPDATE").is_some() {
            update(&folder).await;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let restored = Command::new(program("apid"))
            .args(["store", "restore", "--data-dir"])
            .arg(dir.path())
            .arg("--from")
            .arg(folder.join("store.backup"))
            .output()
            .expect("apid runs");
        assert!(restored.status.success(), "{restored:?}");
        let plane = start(Some(dir.path().to_owned())).await;
        let admin = plane.admin();
        for (collection, mut recorded) in objects(&folder) {
            let path = path_of(&collection, &recorded);
            let response = eventually(&path, || async {
                let response = admin.get(&path).await;
                (response.status != 404).then_some(response)
            })
            .await;
            let actual = response.expect(200);
            assert_eq!(actual["metadata"]["uid"], recorded["metadata"]["uid"], "{path}");
            // A restored store has revisions of its own, and controllers go on writing the status.
            recorded["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
            recorded.as_object_mut().expect("an object").remove("status");
            assert!(includes(&actual, &recorded), "{path}\n{actual}\n{recorded}");
        }
        let recorded: Vec<String> =
            objects(&folder).iter().map(|(collection, _)| resource_of(collection).to_owned()).collect();
        for path in collections(&admin).await {
            let resource = resource_of(&path);
            // A later release has resources that the fixture of this release lacks.
            if folder.ends_with(own) && !NOT_IN_FIXTURE.contains(&resource) {
                assert!(
                    recorded.iter().any(|known| known == resource),
                    "{path}: objects.jsonl has no object"
                );
            }
            assert_eq!(admin.get(&path).await.status, 200, "{path}: each stored object is readable");
        }
    }
}
