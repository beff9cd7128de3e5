//! Server-side apply: shared ownership, conflicts, removed and forced fields.

use serde_json::{Value, json};

use super::managed_fields::{entry, owned_fields};
use super::{MAPS, Reply, Server};

impl Server {
    /// Applies as a field manager. `query`: further parameters, each after a `&`.
    pub(super) async fn apply_with(&self, url: &str, manager: &str, query: &str, body: &Value) -> Reply {
        let url = format!("{url}?fieldManager={manager}{query}");
        self.send("PATCH", &url, &[("content-type", "application/apply-patch+yaml")], body.to_string()).await
    }

    /// Applies as a field manager and asserts success.
    pub(super) async fn apply(&self, url: &str, manager: &str, body: Value) -> Value {
        let reply = self.apply_with(url, manager, "", &body).await;
        assert!(matches!(reply.code, 200 | 201), "{manager} applies {body}: {reply:?}");
        reply.json()
    }
}

/// An apply configuration of a ConfigMap.
fn map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": data})
}

fn object_url() -> String {
    format!("{MAPS}/one")
}

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/a/deployments";

fn deployment(spec: Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
}

fn web(containers: Value) -> Value {
    deployment(json!({"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}}))
}

/// The causes of a conflict: message and field.
fn causes(reply: &Reply) -> Vec<(String, String)> {
    assert_eq!((reply.code, &reply.json()["reason"]), (409, &json!("Conflict")), "{reply:?}");
    let causes = reply.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap().to_owned();
    causes
        .iter()
        .inspect(|cause| assert_eq!(cause["reason"], "FieldManagerConflict"))
        .map(|cause| (text(cause, "message"), text(cause, "field")))
        .collect()
}

#[tokio::test]
async fn apply_creates_then_patches_object() {
    let server = Server::start().await;
    let created = server.apply_with(&object_url(), "m1", "", &map(json!({"a": "1"}))).await;
    assert_eq!(created.code, 201, "{created:?}");
    let entry_of = entry(&created.json(), "m1", "Apply").unwrap();
    assert_eq!(entry_of["fieldsV1"], json!({"f:data": {"f:a": {}}}));
    assert_eq!((&entry_of["apiVersion"], &entry_of["fieldsType"]), (&json!("v1"), &json!("FieldsV1")));

    let changed = server.apply_with(&object_url(), "m1", "", &map(json!({"a": "2", "b": "2"}))).await;
    assert_eq!((changed.code, &changed.json()["data"]), (200, &json!({"a": "2", "b": "2"})));
    let again = server.apply_with(&object_url(), "m1", "", &map(json!({"a": "2", "b": "2"}))).await;
    assert_eq!(
        again.json(),
        changed.json(),
        "the same configuration changes neither resourceVersion nor time"
    );

    let yaml = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\ndata:\n  a: three\n";
    let url = format!("{}?fieldManager=m1", object_url());
    let yaml = server.send("PATCH", &url, &[("content-type", "application/apply-patch+yaml")], yaml).await;
    assert_eq!(yaml.json()["data"], json!({"a": "three"}), "b has no owner and is removed");
}

#[tokio::test]
async fn apply_conflict_returns_409_with_every_field() {
    let server = Server::start().await;
    server.apply(&object_url(), "m1", map(json!({"a": "1", "b": "1"}))).await;
    let before = server.get(&object_url()).await.body;
    let rejected =
        server.apply_with(&object_url(), "m2", "", &map(json!({"a": "2", "b": "2", "c": "2"}))).await;
    let conflict_with_m1 = |field: &str| (r#"conflict with "m1""#.to_owned(), field.to_owned());
    assert_eq!(causes(&rejected), [conflict_with_m1(".data.a"), conflict_with_m1(".data.b")]);
    assert_eq!(server.get(&object_url()).await.body, before, "the object is unchanged");

    let forced = server.apply_with(&object_url(), "m2", "&force=true", &map(json!({"a": "2"}))).await;
    assert_eq!((forced.code, &forced.json()["data"]), (200, &json!({"a": "2", "b": "1"})));
    assert_eq!(owned_fields(&forced.json(), "m2"), json!({"f:data": {"f:a": {}}}));
    assert_eq!(owned_fields(&forced.json(), "m1"), json!({"f:data": {"f:b": {}}}));

    // A manager that changes a value with another verb owns it, and applies conflict with that manager.
    server.merge(&format!("{}?fieldManager=m3", object_url()), json!({"data": {"b": "3"}})).await;
    let rejected = server.apply_with(&object_url(), "m1", "", &map(json!({"b": "1"}))).await;
    let [(message, field)] = &causes(&rejected)[..] else { panic!("{rejected:?}") };
    assert!(message.starts_with(r#"conflict with "m3" using v1"#), "{message}");
    assert_eq!(field, ".data.b");
}

#[tokio::test]
async fn fields_applied_by_two_managers_are_shared() {
    let server = Server::start().await;
    server.apply(&object_url(), "m1", map(json!({"a": "1", "own": "1"}))).await;
    let shared = server.apply(&object_url(), "m2", map(json!({"a": "1"}))).await;
    assert_eq!(owned_fields(&shared, "m1"), json!({"f:data": {"f:a": {}, "f:own": {}}}));
    assert_eq!(owned_fields(&shared, "m2"), json!({"f:data": {"f:a": {}}}));

    let rejected = server.apply_with(&object_url(), "m1", "", &map(json!({"a": "2", "own": "1"}))).await;
    assert_eq!(causes(&rejected), [(r#"conflict with "m2""#.to_owned(), ".data.a".to_owned())]);

    let dropped = server.apply(&object_url(), "m1", map(json!({"own": "1"}))).await;
    assert_eq!(dropped["data"], json!({"a": "1", "own": "1"}), "the value has another owner");
    assert_eq!(owned_fields(&dropped, "m1"), json!({"f:data": {"f:own": {}}}));
    assert_eq!(owned_fields(&dropped, "m2"), json!({"f:data": {"f:a": {}}}));

    let reduced = server
        .apply(
            &object_url(),
            "m1",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}),
        )
        .await;
    assert_eq!(reduced["data"], json!({"a": "1"}), "a field without owner is removed");
    assert_eq!(entry(&reduced, "m1", "Apply"), None, "a manager without fields has no entry");
}

#[tokio::test]
async fn field_removed_by_apply_returns_to_default() {
    let server = Server::start().await;
    let url = format!("{DEPLOYMENTS}/web");
    let mut body = web(json!([{"name": "app", "image": "app:1"}]));
    body["spec"]["replicas"] = json!(3);
    assert_eq!(server.apply(&url, "m1", body.clone()).await["spec"]["replicas"], 3);
    body["spec"].as_object_mut().unwrap().remove("replicas");
    let applied = server.apply(&url, "m1", body).await;
    assert_eq!(applied["spec"]["replicas"], 1);
    assert_eq!(owned_fields(&applied, "m1")["f:spec"].get("f:replicas"), None);
}

#[tokio::test]
async fn partial_apply_configuration_result_is_validated() {
    let server = Server::start().await;
    let url = format!("{DEPLOYMENTS}/web");
    let rejected = server.apply_with(&url, "m1", "", &deployment(json!({"replicas": 2}))).await;
    assert_eq!((rejected.code, &rejected.json()["reason"]), (422, &json!("Invalid")), "missing selector");
    assert_eq!(server.get(&url).await.code, 404);
    server.apply(&url, "m1", web(json!([{"name": "app", "image": "app:1"}]))).await;
    let partial = server.apply(&url, "m2", deployment(json!({"replicas": 2}))).await;
    assert_eq!(partial["spec"]["replicas"], 2);
    assert_eq!(partial["spec"]["template"]["spec"]["containers"][0]["image"], "app:1");
}

#[tokio::test]
async fn apply_merges_lists_by_list_type() {
    let server = Server::start().await;
    let url = format!("{DEPLOYMENTS}/web");
    let mut body = web(json!([{"name": "app", "image": "app:1", "args": ["-a"],
        "ports": [{"containerPort": 53}]}]));
    body["metadata"]["finalizers"] = json!(["example.test/one"]);
    server.apply(&url, "m1", body).await;
    let mut second = deployment(json!({"template": {"spec": {"containers": [
        {"name": "app", "ports": [{"containerPort": 53, "protocol": "UDP"}]},
        {"name": "side", "image": "side:1"}]}}}));
    second["metadata"]["finalizers"] = json!(["example.test/two"]);
    let merged = server.apply(&url, "m2", second).await;

    // One list is merged by name, one by port number and protocol with its default, and one is a set.
    let containers = merged["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let names: Vec<&Value> = containers.iter().map(|c| &c["name"]).collect();
    assert_eq!(names, ["app", "side"]);
    let ports = containers[0]["ports"].as_array().unwrap();
    assert_eq!(ports.iter().map(|p| p["protocol"].as_str().unwrap()).collect::<Vec<_>>(), ["TCP", "UDP"]);
    assert_eq!(merged["metadata"]["finalizers"], json!(["example.test/one", "example.test/two"]));
    let m2 = owned_fields(&merged, "m2");
    assert_eq!(m2["f:metadata"], json!({"f:finalizers": {"v:\"example.test/two\"": {}}}));
    let item = &m2["f:spec"]["f:template"]["f:spec"]["f:containers"][r#"k:{"name":"app"}"#];
    assert_eq!(item["."], json!({}));
    assert_eq!(
        item["f:ports"],
        json!({r#"k:{"containerPort":53,"protocol":"UDP"}"#:
        {".": {}, "f:containerPort": {}, "f:protocol": {}}})
    );

    // An atomic list has one owner, who replaces the whole list.
    let args = |args: Value| {
        deployment(json!({"template": {"spec": {"containers": [{"name": "app", "args": args}]}}}))
    };
    let path = r#".spec.template.spec.containers[name="app"].args"#;
    let rejected = server.apply_with(&url, "m3", "", &args(json!(["-a", "-b"]))).await;
    assert_eq!(causes(&rejected), [(r#"conflict with "m1""#.to_owned(), path.to_owned())]);
    let forced = server.apply_with(&url, "m3", "&force=true", &args(json!(["-b"]))).await.json();
    assert_eq!(forced["spec"]["template"]["spec"]["containers"][0]["args"], json!(["-b"]));
    let args_of = |manager: &str| {
        owned_fields(&forced, manager)["f:spec"]["f:template"]["f:spec"]["f:containers"][r#"k:{"name":"app"}"#]
            .get("f:args")
            .cloned()
    };
    assert_eq!((args_of("m1"), args_of("m3")), (None, Some(json!({}))));
}

/// The forms of keys in field sets: fields, items of maps of lists, items of sets, and items themselves.
#[tokio::test]
async fn owned_fields_name_items_by_key_or_value() {
    let server = Server::start().await;
    let url = "/api/v1/namespaces/a/pods/web";
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "finalizers": ["example.test/one"], "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i", "args": ["-a"], "ports": [{"containerPort": 80, "protocol": "TCP"}]}]},
    });
    let applied = server.apply(url, "m1", pod).await;
    let container = json!({
        ".": {}, "f:name": {}, "f:image": {}, "f:args": {},
        "f:ports": {r#"k:{"containerPort":80,"protocol":"TCP"}"#: {".": {}, "f:containerPort": {}, "f:protocol": {}}},
    });
    assert_eq!(
        owned_fields(&applied, "m1"),
        json!({
            "f:metadata": {"f:finalizers": {r#"v:"example.test/one""#: {}}, "f:labels": {"f:app": {}}},
            "f:spec": {"f:containers": {r#"k:{"name":"c"}"#: container}},
        })
    );
}

#[tokio::test]
async fn apply_merges_maps_by_map_type() {
    let server = Server::start().await;
    let url = "/api/v1/namespaces/a/services/web";
    let service = |metadata: Value, spec: Value| {
        let mut body = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        body["metadata"]["name"] = json!("web");
        body
    };
    let port = json!([{"port": 80}]);
    server
        .apply(
            url,
            "m1",
            service(json!({"labels": {"a": "1"}}), json!({"ports": port, "selector": {"app": "web"}})),
        )
        .await;
    let granular = server.apply(url, "m2", service(json!({"labels": {"b": "2"}}), json!({}))).await;
    assert_eq!(granular["metadata"]["labels"], json!({"a": "1", "b": "2"}));
    let rejected =
        server.apply_with(url, "m2", "", &service(json!({}), json!({"selector": {"tier": "front"}}))).await;
    assert_eq!(causes(&rejected), [(r#"conflict with "m1""#.to_owned(), ".spec.selector".to_owned())]);
}

#[tokio::test]
async fn invalid_apply_options_or_body_are_rejected() {
    let server = Server::start().await;
    let map_with = |member: &str, value: Value| {
        let mut body = map(json!({"a": "1"}));
        body[member] = value;
        body
    };
    let anonymous = server.apply_with(&object_url(), "", "", &map(json!({}))).await;
    assert_eq!(
        (anonymous.code, &anonymous.json()["details"]["causes"][0]["field"]),
        (422, &json!("fieldManager"))
    );
    let owners = json!({"name": "one", "managedFields": [{"manager": "m9"}]});
    for (what, body, code) in [
        ("another kind", map_with("kind", json!("Secret")), 400),
        ("another version", map_with("apiVersion", json!("v2")), 400),
        ("no kind", map_with("kind", json!(null)), 400),
        ("another name", map_with("metadata", json!({"name": "two"})), 400),
        ("no name", map_with("metadata", json!({})), 400),
        ("another namespace", map_with("metadata", json!({"name": "one", "namespace": "b"})), 400),
        ("owners", map_with("metadata", owners), 400),
        ("a list", json!([1]), 400),
        ("another type", map_with("data", json!([])), 400),
        ("a uid of nothing", map_with("metadata", json!({"name": "one", "uid": "u"})), 409),
    ] {
        let reply = server.apply_with(&object_url(), "m1", "", &body).await;
        assert_eq!((what, reply.code), (what, code), "{reply:?}");
        assert_eq!(reply.json()["kind"], "Status");
    }
    let owners = server
        .apply_with(
            &object_url(),
            "m1",
            "",
            &map_with("metadata", json!({"name": "one", "managedFields": [{}]})),
        )
        .await;
    assert_eq!(owners.json()["message"], "metadata.managedFields must be nil");
    assert_eq!(server.get(&object_url()).await.code, 404);

    // Unknown fields, with each value of `fieldValidation`.
    let extra = map_with("extra", json!(1));
    assert_eq!(server.apply_with(&object_url(), "m1", "&fieldValidation=Strict", &extra).await.code, 400);
    let warned = server.apply_with(&object_url(), "m1", "", &extra).await;
    assert_eq!(warned.code, 201);
    assert!(warned.header("warning").contains("unknown field"), "{warned:?}");
    assert_eq!(
        server.apply_with(&object_url(), "m1", "&fieldValidation=Ignore", &extra).await.header("warning"),
        ""
    );

    // A stale resourceVersion is a conflict. The current resourceVersion succeeds; for a missing object, any
    // resourceVersion succeeds.
    let stale = server
        .apply_with(
            &object_url(),
            "m1",
            "",
            &map_with("metadata", json!({"name": "one", "resourceVersion": "1"})),
        )
        .await;
    assert_eq!(stale.code, 409, "{stale:?}");
    let current = server.get(&object_url()).await.json()["metadata"]["resourceVersion"].clone();
    let fits = server
        .apply_with(
            &object_url(),
            "m1",
            "",
            &map_with("metadata", json!({"name": "one", "resourceVersion": current})),
        )
        .await;
    assert_eq!(fits.code, 200, "{fits:?}");
    let two =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "two", "resourceVersion": "7"}});
    assert_eq!(server.apply_with(&format!("{MAPS}/two"), "m1", "", &two).await.code, 201);

    // Dry run.
    let dry = server.apply_with(&object_url(), "m1", "&dryRun=All", &map(json!({"a": "9"}))).await;
    assert_eq!((dry.code, &dry.json()["data"]["a"]), (200, &json!("9")));
    assert_eq!(server.get(&object_url()).await.json()["data"]["a"], "1");
}

#[tokio::test]
async fn kubectl_apply_migrates_client_side_fields() {
    let server = Server::start().await;
    const LAST: &str = "kubectl.example.test/last-applied-configuration";
    let map_with_last_applied = |data: Value, last: Value| {
        let mut body = map(data);
        body["metadata"]["annotations"] = json!({LAST: last.to_string()});
        body
    };
    let client_side = map_with_last_applied(json!({"a": "1"}), map(json!({"a": "1"})));
    server.post(&format!("{MAPS}?fieldManager=kubectl-client-side-apply"), client_side).await;

    // Another manager keeps the annotation and conflicts. The manager `kubectl` takes over its own
    // client-side fields.
    let other = server.apply_with(&object_url(), "other", "", &map(json!({"a": "2"}))).await;
    assert_eq!(other.code, 409);
    let shared = server.apply(&object_url(), "other", map(json!({"b": "1"}))).await;
    assert_eq!(shared["metadata"]["annotations"][LAST], map(json!({"a": "1"})).to_string());
    let migrated = server.apply(&object_url(), "kubectl", map(json!({"a": "2"}))).await;
    assert_eq!(migrated["data"]["a"], "2");
    let last: Value =
        serde_json::from_str(migrated["metadata"]["annotations"][LAST].as_str().unwrap()).unwrap();
    assert_eq!(last["data"], json!({"a": "2"}), "the annotation is updated");

    // Without the annotation, apply adds none.
    let two =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "two"}, "data": {"a": "1"}});
    let fresh = server.apply(&format!("{MAPS}/two"), "kubectl", two).await;
    assert_eq!(fresh["metadata"].get("annotations"), None);
}
