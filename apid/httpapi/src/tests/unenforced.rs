//! Kinds that apid stores but does not enforce: every write carries a warning.

use std::sync::Arc;

use apimachinery::clock::SeededRng;
use kinds::{BuiltInKind, UnenforcedKind};
use serde_json::json;

use super::{Reply, Server};

const APPLY: &str = "application/apply-patch+yaml";
const GADGETS: &str = "/apis/apps/v1/namespaces/a/gadgets";

const UNENFORCED: UnenforcedKind = UnenforcedKind { warning: "this server has no gadgets yet", gate: None };
const KINDS: &[BuiltInKind] = &[BuiltInKind {
    unenforced: Some(&UNENFORCED),
    ..BuiltInKind::namespaced("apps/v1.ControllerRevision", "gadgets")
}];

fn warnings(reply: &Reply) -> Vec<&str> {
    reply.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn write_of_unenforced_kind_carries_warning() {
    let server = Server::start_with_kinds(Arc::new(SeededRng::new(7)), &[KINDS]).await;
    let object = json!({"metadata": {"name": "g"}, "data": {"color": "red"}, "revision": 1});
    let object_url = format!("{GADGETS}/g");
    let dry = server.post(&format!("{GADGETS}?dryRun=All"), object.clone()).await;
    let created = server.post(GADGETS, object).await;
    let patched = server.merge(&object_url, json!({"metadata": {"labels": {"a": "1"}}})).await;
    let unchanged = server.merge(&object_url, json!({})).await;
    let updated = server.put(&object_url, patched.json()).await;
    let (api_version, kind) = (&created.json()["apiVersion"].clone(), &created.json()["kind"].clone());
    let intent = json!({
        "apiVersion": api_version, "kind": kind, "metadata": {"name": "g", "labels": {"b": "1"}}, "revision": 1,
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
        assert_eq!(reply.code, code, "{what}: {}", String::from_utf8_lossy(&reply.body));
        let found = warnings(&reply);
        assert!(found.iter().any(|text| text.contains("no gadgets")), "{what}: {found:?}");
    }
    assert!(warnings(&server.get(&object_url).await).is_empty(), "a read has a warning");
    let counts = controllers::unenforced::count(&server.api_state).await.unwrap();
    assert_eq!(counts.iter().map(|(_, count)| *count).collect::<Vec<_>>(), [1], "{counts:?}");
}

#[tokio::test]
async fn write_of_api_service_carries_no_warning() {
    let server = Server::start().await;
    for service in [json!(null), json!({"namespace": "a", "name": "s"})] {
        let name = if service.is_null() { "local.example" } else { "remote.example" };
        let object = json!({
            "metadata": {"name": format!("v1.{name}")},
            "spec": {"group": name, "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10,
                "service": service},
        });
        let created = server.post("/apis/apiregistration.example.test/v1/apiservices", object).await;
        assert_eq!((created.code, warnings(&created).len()), (201, 0));
    }
    assert_eq!(controllers::unenforced::count(&server.api_state).await.unwrap(), []);
}
