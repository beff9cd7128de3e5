//! Rolling upgrade: apids of two releases and of two media types on one etcd read and change the objects of each other.
//!
//! An apid that emulates the former release stores some kinds in an earlier version. The objects are those of the golden
//! record of a release.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tests::harness::{Client, Cluster, Options, eventually};

use super::stored_objects::{FLAGS, SERVER_METADATA, objects, path_of, resource_of};

/// The release whose objects are created.
const RELEASE: &str = "0.1";

/// Resources whose objects a controller or a cleaner of a server changes meanwhile, or that only one release has.
const MAINTAINED: [&str; 1] = ["storageversions"];

const MERGE: &str = "application/merge-patch+json";

fn options(flags: &[&str]) -> Options {
    // A gate that the former release lacks stops its start.
    let shared = FLAGS.iter().filter(|flag| !flag.starts_with("--feature-gates"));
    shared.chain(flags).fold(Options::kubernetes(), |options, flag| options.flag(flag))
}

/// The part of an object that all servers must show.
fn content(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().map(|fields| fields.remove("status"));
    let metadata = object["metadata"].as_object_mut();
    metadata.map(|metadata| metadata.remove("managedFields"));
    object
}

/// Creates an object. Returns whether the server serves the version.
async fn create(client: &Client, collection: &str, object: &Value) -> bool {
    let mut body = object.clone();
    let metadata = body["metadata"].as_object_mut().expect("metadata");
    metadata.retain(|name, _| !SERVER_METADATA.contains(&name.as_str()));
    let is_custom = collection.starts_with("/apis/shop.example.com/");
    let status = eventually(collection, || async {
        let response = client.post(collection, &body).await;
        assert!([201, 404, 409].contains(&response.status), "{collection}: {}", response.text());
        // A new definition is served after its names are accepted.
        (response.status != 404 || !is_custom).then_some(response.status)
    })
    .await;
    status != 404
}

#[tokio::test(flavor = "multi_thread")]
async fn apids_of_two_releases_read_and_change_the_objects_of_each_other() {
    let former = options(&["--emulated-version=1.32", "--storage-media-type=application/json"]);
    let Some(cluster) = Cluster::start_each(vec![former, options(&[])], 1).await else { return };
    let clients = [cluster.server(0).admin(), cluster.server(1).admin()];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(RELEASE);
    let mut created = Vec::new();
    for (number, (collection, object)) in objects(&folder).into_iter().enumerate() {
        let path = path_of(&collection, &object);
        // Servers with a definition of the other one serve the kind after a moment.
        if create(&clients[number % 2], &collection, &object).await {
            created.push((path, number));
        }
    }
    let mut different = BTreeMap::new();
    let mut compared = 0;
    for (path, number) in &created {
        let collection = path.rsplit_once('/').expect("a name").0;
        if MAINTAINED.contains(&resource_of(collection)) {
            continue;
        }
        let [creator, editor] = [&clients[number % 2], &clients[(number + 1) % 2]];
        // A version that one release lacks is served by the other one only.
        if editor.get(&format!("{collection}?limit=1")).await.status == 404 {
            continue;
        }
        let patch = json!({"metadata": {"labels": {"changed-by": "the-other-release"}}});
        let changed = editor.patch(path, MERGE, &patch).await;
        let (created, edited) = (creator.get(path).await, editor.get(path).await);
        let statuses = (changed.status, created.status, edited.status);
        let (created, edited) = (content(&created.json()), content(&edited.json()));
        if statuses != (200, 200, 200) || created != edited {
            different.insert(path.clone(), (statuses, changed.json()["message"].clone(), created, edited));
        }
        compared += 1;
    }
    assert!(different.is_empty(), "{} of {compared}: {different:#?}", different.len());
    assert!(compared > 50, "most objects are served by both releases: {compared}");
}

#[tokio::test(flavor = "multi_thread")]
async fn definition_changes_its_storage_version_while_both_apids_write() {
    let json = options(&["--storage-media-type=application/json"]);
    let Some(cluster) = Cluster::start_each(vec![json, options(&[])], 1).await else { return };
    let (first, second) = (cluster.server(0).admin(), cluster.server(1).admin());
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let versions = |stored: &str| -> Vec<Value> {
        let version =
            |name: &str| json!({"name": name, "served": true, "storage": name == stored, "schema": schema});
        ["v1", "v2"].map(version).into()
    };
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definition = json!({
        "metadata": {"name": "parts.rolling.example.com"},
        "spec": {
            "group": "rolling.example.com", "scope": "Namespaced", "versions": versions("v1"),
            "names": {"plural": "parts", "singular": "part", "kind": "Part", "listKind": "PartList"},
        },
    });
    first.post(definitions, &definition).await.expect(201);
    let parts = |version: &str| format!("/apis/rolling.example.com/{version}/namespaces/default/parts");
    for client in [&first, &second] {
        eventually("parts are served", || async {
            (client.get(&parts("v1")).await.status == 200).then_some(())
        })
        .await;
    }
    let part = |version: &str, name: &str| {
        json!({
            "apiVersion": format!("rolling.example.com/{version}"), "kind": "Part",
            "metadata": {"name": name}, "spec": {"size": 1},
        })
    };
    first.post(&parts("v1"), &part("v1", "old")).await.expect(201);
    let change = json!({"spec": {"versions": versions("v2")}});
    second.patch(&format!("{definitions}/parts.rolling.example.com"), MERGE, &change).await.expect(200);
    // Both write at once, each with the definition that it has observed.
    for (number, client) in [&first, &second, &first, &second].into_iter().enumerate() {
        let version = if number < 2 { "v1" } else { "v2" };
        client.post(&parts(version), &part(version, &format!("new-{number}"))).await.expect(201);
    }
    for version in ["v1", "v2"] {
        for client in [&first, &second] {
            let list = client.get(&parts(version)).await.expect(200);
            let names: Vec<&str> = list["items"]
                .as_array()
                .expect("items")
                .iter()
                .filter_map(|item| item["metadata"]["name"].as_str())
                .collect();
            assert_eq!(names, ["new-0", "new-1", "new-2", "new-3", "old"], "{version}");
            assert!(
                list["items"].as_array().expect("items").iter().all(|item| item["spec"]["size"] == 1),
                "{list}"
            );
        }
    }
    let stored = &second.get(&format!("{definitions}/parts.rolling.example.com")).await.expect(200)["status"]
        ["storedVersions"];
    assert_eq!(*stored, json!(["v1", "v2"]), "objects of both versions are stored");
}
