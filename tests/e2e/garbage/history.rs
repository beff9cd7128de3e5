//! All changes of the objects of a round, ordered by revision.

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, eventually};

use super::graph::{KINDS, NAME_PREFIX, NAMESPACES};

/// Name of the object that marks the end of a round in each collection.
///
/// A watch that has delivered this object has delivered all changes of the round.
const END_MARKER: &str = "last-of-round";

/// The resourceVersion of each collection at the start of a round, in the order of the kinds.
pub struct StartVersions(Vec<String>);

/// A change of one object.
pub struct Change {
    pub revision: u64,
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub event: String,
    /// The new object, or the last state of a deleted object.
    pub object: Value,
}

/// Reads the resourceVersions at the start of a round.
pub async fn start_versions(plane: &ControlPlane) -> StartVersions {
    let admin = plane.admin();
    let mut versions = Vec::new();
    for kind in &KINDS {
        let list = admin.get(&kind.path("")).await.expect(200);
        versions.push(list["metadata"]["resourceVersion"].as_str().expect("a version").to_owned());
    }
    StartVersions(versions)
}

/// The current objects of the round.
pub async fn objects(admin: &Client) -> Vec<Value> {
    let mut all = Vec::new();
    for kind in &KINDS {
        let list = admin.get(&kind.path("")).await.expect(200);
        for item in list["items"].as_array().expect("items") {
            if item["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(NAME_PREFIX)) {
                let mut item = item.clone();
                item["kind"] = kind.kind.into();
                all.push(item);
            }
        }
    }
    all
}

/// Waits until the objects satisfy the condition.
pub async fn wait_for_objects(plane: &ControlPlane, expected: impl Fn(&[Value]) -> bool) {
    let admin = plane.admin();
    let (admin, expected) = (&admin, &expected);
    eventually("the expected objects", || async move {
        let objects = objects(admin).await;
        expected(&objects).then_some(())
    })
    .await;
}

/// All changes since these resourceVersions.
pub async fn changes_since(plane: &ControlPlane, since: &StartVersions) -> Vec<Change> {
    let admin = plane.admin();
    let mut changes = Vec::new();
    for (kind, version) in KINDS.iter().zip(&since.0) {
        let home = if kind.namespaced { NAMESPACES[0] } else { "" };
        let mut last = json!({"metadata": {"name": END_MARKER}});
        if kind.kind == "IngressClass" {
            last["spec"] = json!({"controller": "example.com/none"});
        }
        let last = admin.post(&kind.path(home), &last).await.expect(201);
        let path = format!("{}?watch=1&resourceVersion={version}", kind.path(""));
        let mut watch = admin.watch(&path).await;
        loop {
            let event = watch.next().await.expect("the watch reaches the last object");
            let object = &event["object"];
            if object["metadata"]["uid"] == last["metadata"]["uid"] {
                break;
            }
            let name = object["metadata"]["name"].as_str().expect("a name");
            if name.starts_with(NAME_PREFIX) {
                let revision = object["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok());
                let event = event["type"].as_str().expect("a type").to_owned();
                changes.push(Change {
                    revision: revision.expect("a version"),
                    event,
                    object: object.clone(),
                });
            }
        }
        admin.delete(&format!("{}/{END_MARKER}", kind.path(home))).await.expect(200);
    }
    changes.sort_by_key(|change| change.revision);
    changes
}
