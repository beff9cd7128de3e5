//! Custom kinds: a definition adds a kind to every endpoint, and its deletion removes the kind.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::{MAPS, Server, map};
use controllers::DefinitionController;

pub(super) const DEFINITIONS: &str = "/apis/apiextensions.example.test/v1/customresourcedefinitions";
pub(super) const WIDGETS: &str = "/apis/shop.example.com/v1/namespaces/a/widgets";
const TABLE: (&str, &str) = ("accept", "application/json;as=Table;v=v1;g=meta.example.test");

/// Starts a server with the definition controller.
pub(super) async fn start() -> Server {
    with_controller(Server::start().await).await
}

pub(super) async fn with_controller(server: Server) -> Server {
    let controller = Arc::new(DefinitionController::new(&server.controller_state));
    controller.load().await.unwrap();
    tokio::spawn(controller.run());
    tokio::spawn(controllers::clean_up_definitions(Arc::clone(&server.controller_state)));
    server
}

/// Polls until the result is `Some`.
pub(super) async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut poll: impl FnMut() -> F,
) -> T {
    for _ in 0..1000 {
        if let Some(found) = poll().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within 10 s: {what}");
}

pub(super) fn version(name: &str, is_storage: bool) -> Value {
    json!({
        "name": name, "served": true, "storage": is_storage,
        "schema": {"openAPIV3Schema": {"type": "object", "description": "A thing on sale.", "properties": {
            "spec": {"type": "object", "properties": {
                "size": {"type": "integer", "default": 1, "maximum": 9, "description": "Size in units."},
                "color": {"type": "string"},
            }},
            "status": {"type": "object", "properties": {
                "size": {"type": "integer"}, "selector": {"type": "string"}}},
        }}},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size",
            "statusReplicasPath": ".status.size", "labelSelectorPath": ".status.selector"}},
        "additionalPrinterColumns": [{"name": "Color", "type": "string", "jsonPath": ".spec.color"}],
        "selectableFields": [{"jsonPath": ".spec.color"}],
    })
}

pub(super) fn definition(versions: &[Value]) -> Value {
    json!({
        "metadata": {"name": "widgets.shop.example.com"},
        "spec": {"group": "shop.example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": versions},
    })
}

/// A definition of the kind Thing in a group, with one version that has this schema of `spec`.
pub(super) fn definition_of_thing(group: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.example.test/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec}}}}]},
    })
}

pub(super) fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "shop.example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

fn condition(definition: &Value, name: &str) -> Value {
    let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|condition| condition["type"] == name).unwrap_or_default()["status"].clone()
}

/// Creates a definition and waits until it is established.
pub(super) async fn define(server: &Server, definition: Value) -> Value {
    let created = server.post(DEFINITIONS, definition).await;
    assert_eq!(created.code, 201, "{}", String::from_utf8_lossy(&created.body));
    let url = format!("{DEFINITIONS}/{}", created.json()["metadata"]["name"].as_str().unwrap());
    eventually("the condition Established", || async {
        let definition = server.get(&url).await.json();
        (condition(&definition, "Established") == "True").then_some(definition)
    })
    .await
}

pub(super) fn events(body: &[u8]) -> Vec<Value> {
    std::str::from_utf8(body).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Memory for the versions of a kind does not grow with the square of their number.
#[tokio::test]
async fn converters_of_many_versions_share_list_of_versions() {
    let server = Server::start().await;
    let versions: Vec<Value> = (1..=100).map(|i| version(&format!("v{i}"), i == 1)).collect();
    let mut definition = definition(&versions);
    definition["status"]["acceptedNames"] = definition["spec"]["names"].clone();
    let definition = Object::from_value(definition).unwrap();
    let resources = kinds::custom::resources(&definition, &server.api_state.names).unwrap();
    server.api_state.kinds.serve(resources.clone());
    for resource in &resources {
        let collection = server.api_state.kinds.collection(resource).unwrap();
        assert_eq!(collection.converter.is_some(), resource.is_other_version());
        let references = Arc::strong_count(resource);
        assert!(!resource.is_other_version() || references < 20, "{references}");
    }
}

#[tokio::test]
async fn long_lists_of_names_are_in_discovery_of_each_version() {
    let server = start().await;
    let mut definition = definition(&[version("v1", true), version("v2", false)]);
    let names: Vec<String> = (0..100).map(|i| format!("wd{i}")).collect();
    definition["spec"]["names"]["shortNames"] = json!(names);
    define(&server, definition).await;
    for version in ["v1", "v2"] {
        let url = format!("/apis/shop.example.com/{version}");
        let compact = server.get(&url).await;
        assert_eq!(compact.header("content-type"), "application/json");
        let compact = compact.json();
        assert_eq!(compact["resources"][0]["shortNames"], json!(names));
        let indented = server.get(&format!("{url}?pretty=true")).await;
        assert!(indented.body.starts_with(b"{\n") && indented.json() == compact);
        let yaml = server.send("GET", &url, &[("accept", "application/yaml")], "").await;
        assert_eq!(yaml.header("content-type"), "application/yaml");
        assert!(String::from_utf8_lossy(&yaml.body).contains("- wd99\n"));
    }
    let accept = ("accept", "application/json;g=apidiscovery.example.test;v=v2;as=APIGroupDiscoveryList");
    let aggregated = server.send("GET", "/apis", &[accept], "").await;
    let tag = aggregated.header("etag").to_owned();
    let document = aggregated.json();
    let groups = document["items"].as_array().unwrap();
    let group = groups.iter().find(|group| group["metadata"]["name"] == "shop.example.com").unwrap();
    for version in group["versions"].as_array().unwrap() {
        assert_eq!(version["resources"][0]["shortNames"], json!(names));
    }
    let known = server.send("GET", "/apis", &[accept, ("if-none-match", &tag)], "").await;
    assert_eq!(known.code, 304);
}

#[tokio::test]
async fn established_kind_is_served_by_every_endpoint() {
    let server = start().await;
    assert_eq!(server.get(WIDGETS).await.code, 404);
    let definition = define(&server, definition(&[version("v1", true)])).await;
    assert_eq!(definition["status"]["acceptedNames"]["listKind"], "WidgetList");
    assert_eq!(condition(&definition, "NamesAccepted"), "True");

    let created = server.post(WIDGETS, widget("x", json!({"color": "red", "weight": 3}))).await;
    assert_eq!(created.code, 201);
    let created = created.json();
    assert_eq!(created["spec"], json!({"size": 1, "color": "red"}), "unknown fields are dropped");
    assert_eq!(created["metadata"]["generation"], 1);
    let wrong = server.post(WIDGETS, widget("y", json!({"size": "big"}))).await;
    assert_eq!(
        (wrong.code, wrong.json()["details"]["causes"][0]["field"].clone()),
        (422, json!("spec.size"))
    );
    let strict =
        server.post(&format!("{WIDGETS}?fieldValidation=Strict"), widget("y", json!({"weight": 1}))).await;
    assert_eq!(strict.code, 400);
    assert_eq!(server.post(WIDGETS, widget("y", json!({"color": "blue"}))).await.code, 201);

    let list = server.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dblue")).await.json();
    assert_eq!((&list["kind"], &list["items"][0]["metadata"]["name"]), (&json!("WidgetList"), &json!("y")));
    assert_eq!(list["items"][0]["kind"], "Widget", "items of custom lists have a type");
    assert_eq!(server.post(MAPS, map("m", "v")).await.code, 201);
    let maps = server.get(MAPS).await.json();
    assert!(maps["items"][0]["metadata"].is_object() && maps["items"][0]["kind"].is_null(), "{maps}");
    assert_eq!(server.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D1")).await.code, 400);
    let named = server.get(&format!("{WIDGETS}?fieldSelector=metadata.name%3Dx")).await.json();
    assert_eq!(named["items"].as_array().map(Vec::len), Some(1));
    let table = server.send("GET", WIDGETS, &[TABLE], "").await.json();
    assert_eq!(table["columnDefinitions"][1]["name"], "Color");
    assert_eq!(table["rows"][0]["cells"], json!(["x", "red"]));

    let strategic = ("content-type", "application/strategic-merge-patch+json");
    assert_eq!(server.send("PATCH", &format!("{WIDGETS}/x"), &[strategic], "{}").await.code, 415);
    let protobuf = "application/vnd.svc.protobuf";
    assert_eq!(server.send("GET", WIDGETS, &[("accept", protobuf)], "").await.code, 406);
    assert_eq!(server.send("POST", WIDGETS, &[("content-type", protobuf)], &b"k8s\0"[..]).await.code, 415);
    let either = format!("{protobuf}, application/json");
    let fallback = server.send("GET", WIDGETS, &[("accept", &either)], "").await;
    assert_eq!((fallback.code, fallback.header("content-type")), (200, "application/json"));

    let listed = server.get("/apis/shop.example.com/v1").await.json();
    let names: Vec<&Value> = listed["resources"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
    assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    assert_eq!(listed["resources"][1]["kind"], "Widget");
    let accept = ("accept", "application/json;g=apidiscovery.example.test;v=v2;as=APIGroupDiscoveryList");
    let aggregated = server.send("GET", "/apis", &[accept], "").await;
    assert!(String::from_utf8_lossy(&aggregated.body).contains("\"resource\":\"widgets\""));
    let api = server.get("/openapi/v3/apis/shop.example.com/v1").await.json();
    let schema = &api["components"]["schemas"]["com.example.shop.v1.Widget"];
    assert_eq!(schema["description"], "A thing on sale.");
    assert_eq!(schema["properties"]["spec"]["properties"]["size"]["description"], "Size in units.");
    assert_eq!(schema["x-svc-group-version-kind"][0]["kind"], "Widget");
    let swagger = server.get("/openapi/v2").await.json();
    assert!(swagger["definitions"]["com.example.shop.v1.Widget"].is_object());
}

#[tokio::test]
async fn status_and_scale_follow_definition() {
    let server = start().await;
    define(&server, definition(&[version("v1", true)])).await;
    let mut body = widget("x", json!({"size": 2}));
    body["status"] = json!({"size": 7});
    assert!(server.post(WIDGETS, body).await.json().get("status").is_none());
    let url = format!("{WIDGETS}/x");
    let status = json!({"status": {"size": 1, "selector": "a=b"}, "spec": null});
    let patched = server.merge(&format!("{url}/status"), status).await.json();
    assert_eq!((&patched["status"]["size"], &patched["spec"]["size"]), (&json!(1), &json!(2)));
    assert_eq!(patched["metadata"]["generation"], 1);
    let scale = server.get(&format!("{url}/scale")).await.json();
    assert_eq!(
        (&scale["spec"], &scale["status"]),
        (&json!({"replicas": 2}), &json!({"replicas": 1, "selector": "a=b"}))
    );
    assert_eq!(server.merge(&format!("{url}/scale"), json!({"spec": {"replicas": 5}})).await.code, 200);
    let scaled = server.get(&url).await.json();
    assert_eq!((&scaled["spec"]["size"], &scaled["metadata"]["generation"]), (&json!(5), &json!(2)));
    assert_eq!(server.merge(&format!("{url}/scale"), json!({"spec": {"replicas": -1}})).await.code, 422);
    let body = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}, "spec": {"replicas": 6}});
    let scaled = server.put(&format!("{url}/scale"), body).await;
    assert_eq!(
        (scaled.code, &scaled.json()["spec"]["replicas"]),
        (200, &json!(6)),
        "needs no resourceVersion"
    );
    let stale = server.put(&url, widget("x", json!({"size": 3}))).await;
    assert_eq!(stale.code, 422, "an update needs a resourceVersion");
}

/// A Scale of the object `x`.
fn scale(replicas: i64) -> Value {
    json!({
        "apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": "x"}, "spec": {"replicas": replicas},
    })
}

/// The owners of the replicas are those of the field that `specReplicasPath` names.
#[tokio::test]
async fn scale_of_custom_object_tracks_owners_of_replicas_field() {
    let server = start().await;
    define(&server, definition(&[version("v1", true)])).await;
    let (url, scale_url) = (format!("{WIDGETS}/x"), format!("{WIDGETS}/x/scale"));
    let intent = widget("x", json!({"size": 3, "color": "red"}));
    assert_eq!(server.apply_with(&url, "author", "", &intent).await.code, 201);
    let conflict = server.apply_with(&scale_url, "scaler", "", &scale(4)).await;
    assert_eq!(conflict.code, 409, "{}", conflict.json());
    assert_eq!(conflict.json()["details"]["causes"][0]["field"], ".spec.replicas");
    assert_eq!(server.apply_with(&scale_url, "scaler", "&force=true", &scale(4)).await.code, 200);
    let owned_size = |object: &Value| -> Vec<Value> {
        let entries = object["metadata"]["managedFields"].as_array().unwrap().iter();
        let owners = entries.filter(|entry| entry["fieldsV1"]["f:spec"]["f:size"].is_object());
        owners.map(|entry| json!([entry["manager"], entry["operation"], entry["subresource"]])).collect()
    };
    let object = server.get(&url).await.json();
    assert_eq!(object["spec"], json!({"size": 4, "color": "red"}));
    assert_eq!(owned_size(&object), [json!(["scaler", "Apply", "scale"])]);
    let patch = json!({"spec": {"replicas": 5}});
    assert_eq!(server.merge(&format!("{scale_url}?fieldManager=other"), patch).await.code, 200);
    let object = server.get(&url).await.json();
    assert_eq!(owned_size(&object), [json!(["other", "Update", "scale"])]);
}

/// A manager keeps one entry when the version of its entry is no longer served, and other managers still see it.
#[tokio::test]
async fn owner_of_replicas_in_unserved_version_stays_owner() {
    let server = start().await;
    let defined = define(&server, definition(&[version("v1", true), version("v1beta1", false)])).await;
    let url = format!("{WIDGETS}/x");
    assert_eq!(server.post(WIDGETS, widget("x", json!({"size": 3}))).await.code, 201);
    let scale_in = |version: &str| format!("{url}/scale").replace("/v1/", &format!("/{version}/"));
    assert_eq!(server.apply_with(&scale_in("v1beta1"), "scaler", "&force=true", &scale(4)).await.code, 200);
    let mut spec = defined["spec"].clone();
    spec["versions"][1]["served"] = json!(false);
    let changed =
        server.merge(&format!("{DEFINITIONS}/widgets.shop.example.com"), json!({"spec": spec})).await;
    assert_eq!(changed.code, 200);
    eventually("the version is not served", || async {
        (server.get(&scale_in("v1beta1")).await.code == 404).then_some(())
    })
    .await;
    assert_eq!(server.apply_with(&scale_in("v1"), "other", "", &scale(5)).await.code, 409);
    assert_eq!(server.apply_with(&scale_in("v1"), "scaler", "", &scale(6)).await.code, 200);
    let object = server.get(&url).await.json();
    assert_eq!(object["spec"]["size"], 6);
    let entries = object["metadata"]["managedFields"].as_array().unwrap().iter();
    let of_scaler: Vec<&Value> = entries.filter(|entry| entry["manager"] == "scaler").collect();
    assert_eq!(of_scaler.len(), 1, "{of_scaler:?}");
    assert!(of_scaler[0]["fieldsV1"]["f:spec"]["f:size"].is_object(), "{of_scaler:?}");
}

#[tokio::test]
async fn server_side_apply_tracks_owners_of_custom_fields() {
    let server = start().await;
    define(&server, definition(&[version("v1", true)])).await;
    let url = format!("{WIDGETS}/x");
    let apply = |manager: &'static str, body: Value| {
        let (server, url) = (&server, format!("{url}?fieldManager={manager}"));
        async move {
            server
                .send("PATCH", &url, &[("content-type", "application/apply-patch+yaml")], body.to_string())
                .await
        }
    };
    assert_eq!(apply("one", widget("x", json!({"size": 2, "color": "red"}))).await.code, 201);
    assert_eq!(apply("two", widget("x", json!({"size": 3}))).await.code, 409);
    assert_eq!(apply("two", widget("x", json!({"size": 2}))).await.code, 200);
    let reduced = apply("one", widget("x", json!({"size": 2}))).await.json();
    assert_eq!(reduced["spec"], json!({"size": 2}), "the field without an owner is removed");
}

#[tokio::test]
async fn object_is_served_in_every_version() {
    let server = start().await;
    define(&server, definition(&[version("v1", false), version("v2", true)])).await;
    assert_eq!(server.post(WIDGETS, widget("x", json!({"color": "red"}))).await.code, 201);
    for name in ["v1", "v2"] {
        let url = WIDGETS.replace("/v1/", &format!("/{name}/"));
        let object = server.get(&format!("{url}/x")).await.json();
        assert_eq!(object["apiVersion"], format!("shop.example.com/{name}"));
        assert_eq!(object["spec"], json!({"color": "red", "size": 1}));
        let listed = server.get(&url).await.json();
        assert_eq!(listed["items"][0]["apiVersion"], format!("shop.example.com/{name}"));
    }
    let group = server.get("/apis/shop.example.com").await.json();
    assert_eq!(group["preferredVersion"]["version"], "v2");
}

#[tokio::test]
async fn each_version_of_definition_has_its_own_schema_and_columns() {
    let server = start().await;
    let mut second = version("v2", true);
    second["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"]["maximum"] = json!(99);
    second["additionalPrinterColumns"] =
        json!([{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]);
    define(&server, definition(&[version("v1", false), second])).await;
    let second = WIDGETS.replace("/v1/", "/v2/");
    let large_widget = |version: &str| {
        let mut object = widget("x", json!({"size": 50, "color": "red"}));
        object["apiVersion"] = format!("shop.example.com/{version}").into();
        object
    };
    assert_eq!(server.post(WIDGETS, large_widget("v1")).await.code, 422, "at most 9 in v1");
    assert_eq!(server.post(&second, large_widget("v2")).await.code, 201, "at most 99 in v2");
    for (url, cells) in [(WIDGETS, json!(["x", "red"])), (&second, json!(["x", 50]))] {
        let table = server.send("GET", url, &[TABLE], "").await.json();
        assert_eq!(table["rows"][0]["cells"], cells, "{url}");
    }
}

#[tokio::test]
async fn removed_fields_and_missing_required_fields_of_definitions_are_rejected() {
    let server = start().await;
    let change = |pointer: &str, value: Value| {
        let mut changed = definition(&[version("v1", true)]);
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let parent = changed.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match value {
            Value::Null => drop(parent.remove(name)),
            value => drop(parent.insert(name.to_owned(), value)),
        }
        changed
    };
    let strict = format!("{DEFINITIONS}?fieldValidation=Strict");
    let root = "/spec/versions/0/schema/openAPIV3Schema";
    for (changed, code, part) in [
        (change("/spec/scope", Value::Null), 422, "spec.scope"),
        (change("/spec/versions/0/schema", Value::Null), 422, "spec.versions[0].schema.openAPIV3Schema"),
        (change(&format!("{root}/properties/spec/type"), Value::Null), 422, "properties[spec].type"),
        (change("/spec/preserveUnknownFields", json!(true)), 422, "spec.preserveUnknownFields"),
        (change(&format!("{root}/x-svc-list-map-keys"), json!("k")), 400, "list-map-keys of type []string"),
        (change("/spec/version", json!("v1")), 400, "unknown field \\\"spec.version\\\""),
        (change("/spec/validation", json!({"openAPIV3Schema": {"type": "object"}})), 400, "spec.validation"),
        (change("/spec/subresources", json!({"status": {}})), 400, "spec.subresources"),
        (change("/spec/additionalPrinterColumns", json!([])), 400, "spec.additionalPrinterColumns"),
        (change("/spec/versions/0/additionalPrinterColumns/0/JSONPath", json!(".a")), 400, "JSONPath"),
    ] {
        let reply = server.post(&strict, changed).await;
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert_eq!(reply.code, code, "{part}: {text}");
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(server.post(&strict, definition(&[version("v1", true)])).await.code, 201);
}

#[tokio::test]
async fn changed_schema_applies_to_stored_objects_and_ends_watches_of_its_kind() {
    let server = start().await;
    define(&server, definition(&[version("v1", true)])).await;
    let other = json!({"metadata": {"name": "gears.shop.example.com"},
        "spec": {"group": "shop.example.com", "scope": "Cluster", "names": {"plural": "gears", "kind": "Gear"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}});
    define(&server, other).await;
    server.post(WIDGETS, widget("x", json!({"color": "red"}))).await;
    let watch = |url: &'static str| server.open("GET", url, &[], "".into());
    let mut of_widgets =
        watch("/apis/shop.example.com/v1/widgets?watch=1&timeoutSeconds=60").await.into_body();
    let frame = tokio::time::timeout(Duration::from_secs(20), of_widgets.frame()).await.unwrap();
    let received = events(&frame.unwrap().unwrap().into_data().unwrap());
    assert_eq!(received[0]["type"], "ADDED");
    let of_gears = watch("/apis/shop.example.com/v1/gears?watch=1&timeoutSeconds=60").await;

    let url = format!("{DEFINITIONS}/widgets.shop.example.com");
    let mut changed = version("v1", true);
    let properties = &mut changed["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    properties["color"] = Value::Null;
    properties.as_object_mut().unwrap().remove("color");
    properties["shape"] = json!({"type": "string", "default": "round"});
    changed.as_object_mut().unwrap().remove("selectableFields");
    assert_eq!(server.merge(&url, json!({"spec": {"versions": [changed]}})).await.code, 200);
    let end = tokio::time::timeout(Duration::from_secs(20), of_widgets.collect()).await;
    end.expect("the watch ends").unwrap();
    eventually("the new schema", || async {
        let object = server.get(&format!("{WIDGETS}/x")).await.json();
        (object["spec"] == json!({"size": 1, "shape": "round"})).then_some(())
    })
    .await;
    let list = server.get(WIDGETS).await.json();
    assert_eq!(list["items"][0]["spec"], json!({"size": 1, "shape": "round"}));

    // The watch of the other kind goes on.
    let mut body = of_gears.into_body();
    let gear = json!({"apiVersion": "shop.example.com/v1", "kind": "Gear", "metadata": {"name": "g"}});
    assert_eq!(server.post("/apis/shop.example.com/v1/gears", gear).await.code, 201);
    let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.unwrap();
    let event = events(frame.unwrap().unwrap().data_ref().unwrap());
    assert_eq!(event[0]["object"]["metadata"]["name"], "g");
}

#[tokio::test]
async fn deleted_definition_deletes_objects_and_honours_their_finalizers() {
    let server = start().await;
    define(&server, definition(&[version("v1", true)])).await;
    let mut held = widget("kept", json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/keep"]);
    assert_eq!(server.post(WIDGETS, held).await.code, 201);
    assert_eq!(server.post(WIDGETS, widget("x", json!({}))).await.code, 201);
    let watch = server.open("GET", &format!("{WIDGETS}?watch=1&timeoutSeconds=60"), &[], "".into()).await;
    // A client that reads all the time sees the deletions before the watch ends.
    let received = tokio::spawn(async move {
        tokio::time::timeout(Duration::from_secs(60), watch.into_body().collect()).await
    });
    let url = format!("{DEFINITIONS}/widgets.shop.example.com");
    let deleted = server.delete(&url, Value::Null).await.json();
    assert_eq!(
        deleted["metadata"]["finalizers"],
        json!(["customresourcecleanup.apiextensions.example.test"])
    );
    let terminating = deleted["status"]["conditions"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&terminating["type"], &terminating["reason"]),
        (&json!("Terminating"), &json!("InstanceDeletionPending"))
    );
    eventually("the deletion of objects", || async {
        let terminating = server.get(&format!("{WIDGETS}/kept")).await.json();
        let is_gone = server.get(&format!("{WIDGETS}/x")).await.code == 404;
        (is_gone && terminating["metadata"]["deletionTimestamp"].is_string()).then_some(())
    })
    .await;
    let rejected = server.post(WIDGETS, widget("y", json!({}))).await;
    let message = rejected.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(rejected.code, 403, "{message}");
    assert!(
        message.ends_with("create not allowed while custom resource definition is terminating"),
        "{message}"
    );
    assert_eq!(condition(&server.get(&url).await.json(), "Terminating"), "True");

    assert_eq!(
        server.merge(&format!("{WIDGETS}/kept"), json!({"metadata": {"finalizers": null}})).await.code,
        200
    );
    eventually("the deletion of the definition", || async {
        (server.get(&url).await.code == 404 && server.get(WIDGETS).await.code == 404).then_some(())
    })
    .await;
    let received = events(&received.await.unwrap().expect("the watch ends").unwrap().to_bytes());
    assert!(received.iter().any(|event| event["type"] == "DELETED"), "{received:?}");
    assert_eq!(server.get("/apis/shop.example.com/v1").await.code, 404);
    assert_eq!(server.get("/openapi/v3/apis/shop.example.com/v1").await.code, 404);
}
