//! Kinds that apid stores but does not enforce: every write carries a warning.

use serde_json::{Value, json};

use super::{Reply, Server};

const APPLY: &str = "application/apply-patch+yaml";

/// Returns URL of the collection, a valid object, and a word of the warning.
fn objects() -> Vec<(&'static str, Value, &'static str)> {
    vec![(
        "/apis/apiregistration.example.test/v1/apiservices",
        json!({
            "metadata": {"name": "v1.other.example"},
            "spec": {
                "group": "other.example", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
                "service": {"namespace": "a", "name": "s"}, "insecureSkipTLSVerify": true,
            },
        }),
        "does not forward",
    )]
}

fn warnings(reply: &Reply) -> Vec<&str> {
    reply.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn write_of_unenforced_kind_carries_warning() {
    let server = Server::start().await;
    for (url, object, words) in objects() {
        let object_url = format!("{url}/{}", object["metadata"]["name"].as_str().unwrap());
        let dry = server.post(&format!("{url}?dryRun=All"), object.clone()).await;
        let created = server.post(url, object.clone()).await;
        let patched = server.merge(&object_url, json!({"metadata": {"labels": {"a": "1"}}})).await;
        let unchanged = server.merge(&object_url, json!({})).await;
        let updated = server.put(&object_url, patched.json()).await;
        let (api_version, kind) = (&created.json()["apiVersion"].clone(), &created.json()["kind"].clone());
        let intent = json!({
            "apiVersion": api_version, "kind": kind, "metadata": {"name": object["metadata"]["name"], "labels": {"b": "1"}},
        });
        let apply = format!("{object_url}?fieldManager=tool");
        let applied = server.send("PATCH", &apply, &[("content-type", APPLY)], intent.to_string()).await;
        for (what, code, reply) in [
            ("dry run", 201, dry),
            ("create", 201, created),
            ("patch", 200, patched),
            ("patch without change", 200, unchanged),
            ("update", 200, updated),
            ("apply", 200, applied),
        ] {
            assert_eq!(reply.code, code, "{what} {object_url}: {}", String::from_utf8_lossy(&reply.body));
            let found = warnings(&reply);
            assert!(found.iter().any(|text| text.contains(words)), "{what} {object_url}: {found:?}");
        }
        assert!(warnings(&server.get(&object_url).await).is_empty(), "read of {object_url} has a warning");
    }
    let counts = controllers::unenforced::count(&server.api_state).await.unwrap();
    assert_eq!(counts.len(), 1, "{counts:?}");
    assert!(counts.iter().all(|(_, count)| *count == 1), "{counts:?}");
}

#[tokio::test]
async fn write_of_local_api_service_carries_no_warning() {
    let server = Server::start().await;
    let local = json!({
        "metadata": {"name": "v1.other.example"},
        "spec": {"group": "other.example", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10},
    });
    let created = server.post("/apis/apiregistration.example.test/v1/apiservices", local).await;
    assert_eq!((created.code, warnings(&created).len()), (201, 0));
    assert_eq!(controllers::unenforced::count(&server.api_state).await.unwrap(), []);
}
