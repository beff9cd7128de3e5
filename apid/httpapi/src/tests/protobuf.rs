//! Protobuf requests and responses, with messages declared here by their published field numbers.

use std::collections::BTreeMap;

use apimachinery::codec::Limits;
use apimachinery::object::Object;
use http_body_util::BodyExt as _;
use prost::Message;
use schema::Schema;
use serde_json::{Value, json};

use super::{MAPS, Reply, Server, map};

const PROTOBUF: &str = "application/vnd.svc.protobuf";
const MAGIC: [u8; 4] = [0x6b, 0x38, 0x73, 0x00];

#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", optional, tag = "2")]
    raw: Option<Vec<u8>>,
    #[prost(string, optional, tag = "3")]
    content_encoding: Option<String>,
    #[prost(string, optional, tag = "4")]
    content_type: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, optional, tag = "1")]
    api_version: Option<String>,
    #[prost(string, optional, tag = "2")]
    kind: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ConfigMap {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(btree_map = "string, string", tag = "2")]
    data: BTreeMap<String, String>,
    #[prost(btree_map = "string, bytes", tag = "3")]
    binary_data: BTreeMap<String, Vec<u8>>,
    #[prost(bool, optional, tag = "4")]
    immutable: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "3")]
    namespace: Option<String>,
    #[prost(string, optional, tag = "5")]
    uid: Option<String>,
    #[prost(string, optional, tag = "6")]
    resource_version: Option<String>,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, optional, tag = "1")]
    seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    nanos: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct List {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ListMeta>,
    #[prost(message, repeated, tag = "2")]
    items: Vec<ConfigMap>,
}

#[derive(Clone, PartialEq, Message)]
struct ListMeta {
    #[prost(string, optional, tag = "2")]
    resource_version: Option<String>,
    #[prost(string, optional, tag = "3")]
    continue_token: Option<String>,
    #[prost(int64, optional, tag = "4")]
    remaining: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct WatchEvent {
    #[prost(string, optional, tag = "1")]
    kind: Option<String>,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "vec", optional, tag = "1")]
    raw: Option<Vec<u8>>,
}

/// Returns apiVersion, kind and message of a body in its envelope.
fn open(body: &[u8]) -> (String, String, Vec<u8>) {
    let unknown = Unknown::decode(body.strip_prefix(&MAGIC).expect("magic bytes")).unwrap();
    assert_eq!(unknown.content_encoding.unwrap_or_default(), "");
    assert_eq!(unknown.content_type.unwrap_or_default(), "");
    let TypeMeta { api_version, kind } = unknown.type_meta.unwrap();
    (api_version.unwrap(), kind.unwrap(), unknown.raw.unwrap())
}

fn envelope(type_meta: Option<(&str, &str)>, raw: &impl Message) -> Vec<u8> {
    let type_meta = type_meta.map(|(api_version, kind)| TypeMeta {
        api_version: Some(api_version.into()),
        kind: Some(kind.into()),
    });
    let unknown = Unknown { type_meta, raw: Some(raw.encode_to_vec()), ..Unknown::default() };
    [&MAGIC[..], &unknown.encode_to_vec()].concat()
}

async fn get(server: &Server, url: &str, accept: &str) -> Reply {
    server.send("GET", url, &[("accept", accept)], "").await
}

/// Decodes a body in its envelope to a JSON tree.
fn tree(body: &[u8], schema: &str) -> Value {
    let (api_version, kind, raw) = open(body);
    let schema = Schema::of(schema).unwrap();
    let mut object = schema.read_protobuf(&raw, Limits::BODY).unwrap();
    schema.conform(&mut object).unwrap();
    object.set_type(&api_version, &kind);
    object.into_value()
}

#[tokio::test]
async fn object_response_is_protobuf_envelope() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "one", "labels": {"l": "v"}}, "data": {"b": "2", "a": "1"},
        "binaryData": {"bytes": "AAEC"}, "immutable": true});
    let json = server.post(MAPS, body).await.json();
    let object_url = format!("{MAPS}/one");
    let reply = get(&server, &object_url, PROTOBUF).await;
    assert_eq!((reply.code, reply.header("content-type")), (200, PROTOBUF));
    let (api_version, kind, raw) = open(&reply.body);
    assert_eq!((api_version.as_str(), kind.as_str()), ("v1", "ConfigMap"));
    let decoded = ConfigMap::decode(&raw[..]).unwrap();
    assert_eq!(json!(decoded.data), json["data"]);
    assert_eq!(decoded.binary_data["bytes"], [0, 1, 2]);
    assert_eq!(decoded.immutable, Some(true));
    let meta = decoded.metadata.unwrap();
    for (field, value) in [
        ("name", &meta.name),
        ("namespace", &meta.namespace),
        ("uid", &meta.uid),
        ("resourceVersion", &meta.resource_version),
    ] {
        assert_eq!(json["metadata"][field].as_str(), value.as_deref(), "{field}");
    }
    assert_eq!(json!(meta.labels), json["metadata"]["labels"]);
    let created = meta.creation_timestamp.unwrap();
    assert!(created.seconds.unwrap() > 1_700_000_000 && created.nanos == Some(0));
    // The comparison includes fields that the messages of this test do not declare.
    assert_eq!(tree(&reply.body, "core/v1.ConfigMap"), json);
    let head = server.send("HEAD", &object_url, &[("accept", PROTOBUF)], "").await;
    assert_eq!(head.header("content-length"), reply.body.len().to_string());
}

#[tokio::test]
async fn request_body_is_protobuf_envelope() {
    let server = Server::start().await;
    let message = |name: &str| ConfigMap {
        metadata: Some(ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }),
        data: BTreeMap::from([("k".into(), "v".into())]),
        ..ConfigMap::default()
    };
    let send = async |method: &str, url: &str, media_type: &str, body: Vec<u8>| {
        server.send(method, url, &[("content-type", media_type), ("accept", "application/json")], body).await
    };
    let typed = envelope(Some(("v1", "ConfigMap")), &message("whole"));
    let created = send("POST", MAPS, PROTOBUF, typed.clone()).await;
    assert_eq!((created.code, &created.json()["data"]), (201, &json!({"k": "v"})));
    assert_eq!(send("PUT", &format!("{MAPS}/whole"), PROTOBUF, typed.clone()).await.code, 200);
    assert_eq!(send("POST", MAPS, PROTOBUF, envelope(None, &message("untyped"))).await.code, 201);
    for (what, media_type, body, code) in [
        ("no magic bytes", PROTOBUF, typed[4..].to_vec(), 400),
        ("cut off", PROTOBUF, typed[..typed.len() - 9].to_vec(), 400),
        ("nothing", PROTOBUF, Vec::new(), 400),
        ("another kind", PROTOBUF, envelope(Some(("v1", "Secret")), &message("x")), 400),
        ("another version", PROTOBUF, envelope(Some(("v2", "ConfigMap")), &message("x")), 400),
        ("not JSON", "application/json", typed.clone(), 400),
        ("the other preset's name", "application/vnd.kubernetes.protobuf", typed.clone(), 415),
    ] {
        let reply = send("POST", MAPS, media_type, body).await;
        assert_eq!(reply.code, code, "{what}: {reply:?}");
        assert_eq!(reply.json()["kind"], "Status", "{what}");
    }
    // DeleteOptions with a grace period of 0.
    #[derive(Clone, PartialEq, Message)]
    struct DeleteOptions {
        #[prost(int64, optional, tag = "1")]
        grace_period_seconds: Option<i64>,
    }
    let options = envelope(Some(("v1", "DeleteOptions")), &DeleteOptions { grace_period_seconds: Some(0) });
    assert_eq!(send("DELETE", &format!("{MAPS}/whole"), PROTOBUF, options).await.code, 200);
}

#[tokio::test]
async fn protobuf_lists_and_partial_object_metadata() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        server.post(MAPS, map(name, name)).await;
    }
    // Twice: the second response comes from the message cache.
    for _ in 0..2 {
        let reply = get(&server, MAPS, "application/vnd.svc.protobuf, application/json").await;
        let (api_version, kind, raw) = open(&reply.body);
        assert_eq!((api_version.as_str(), kind.as_str()), ("v1", "ConfigMapList"));
        let list = List::decode(&raw[..]).unwrap();
        let json = server.get(MAPS).await.json();
        let metadata = list.metadata.unwrap();
        assert_eq!(metadata.resource_version.as_deref(), json["metadata"]["resourceVersion"].as_str());
        for (item, json) in list.items.iter().zip(json["items"].as_array().unwrap()) {
            assert_eq!(json!(item.data), json["data"]);
            let version = item.metadata.as_ref().unwrap().resource_version.as_deref();
            assert_eq!(version, json["metadata"]["resourceVersion"].as_str());
        }
        assert_eq!(list.items.len(), 3);
        server.merge(&format!("{MAPS}/b"), json!({"data": {"k": "changed"}})).await;
    }
    let page = get(&server, &format!("{MAPS}?limit=2"), PROTOBUF).await;
    let list = List::decode(&open(&page.body).2[..]).unwrap();
    let metadata = list.metadata.unwrap();
    assert_eq!((list.items.len(), metadata.remaining), (2, Some(1)));
    let next = format!("{MAPS}?limit=2&continue={}", metadata.continue_token.unwrap());
    assert_eq!(List::decode(&open(&get(&server, &next, PROTOBUF).await.body).2[..]).unwrap().items.len(), 1);

    let partial = format!("{PROTOBUF};as=PartialObjectMetadataList;g=meta.example.test;v=v1");
    let list = get(&server, MAPS, &partial).await;
    let (api_version, kind, raw) = open(&list.body);
    assert_eq!((api_version.as_str(), kind.as_str()), ("meta.example.test/v1", "PartialObjectMetadataList"));
    let items = List::decode(&raw[..]).unwrap().items;
    assert_eq!(items.len(), 3);
    assert!(items.iter().all(|item| item.metadata.as_ref().unwrap().uid.is_some() && item.data.is_empty()));
    let table = "application/vnd.svc.protobuf;as=Table;g=meta.example.test;v=v1";
    assert_eq!(get(&server, MAPS, table).await.code, 406);
    let reply =
        get(&server, MAPS, &format!("{table},application/json;as=Table;g=meta.example.test;v=v1")).await;
    assert_eq!(reply.json()["kind"], "Table");
}

#[tokio::test]
async fn every_response_kind_has_protobuf_encoding() {
    let server = Server::start().await;
    for (url, code, schema) in [
        ("/api", 200, "meta/v1.APIVersions"),
        ("/apis", 200, "meta/v1.APIGroupList"),
        ("/apis/apps", 200, "meta/v1.APIGroup"),
        ("/api/v1", 200, "meta/v1.APIResourceList"),
        ("/apis/apps/v1", 200, "meta/v1.APIResourceList"),
        ("/api/v1/namespaces/a", 200, "core/v1.Namespace"),
        ("/api/v1/namespaces/a/configmaps/none", 404, "meta/v1.Status"),
        ("/api/v1/configmaps?limit=x", 400, "meta/v1.Status"),
    ] {
        let (reply, json) = (get(&server, url, PROTOBUF).await, server.get(url).await);
        assert_eq!((reply.code, reply.header("content-type")), (code, PROTOBUF), "{url}");
        let mut want = Object::from_value(json.json()).unwrap();
        Schema::of(schema).unwrap().conform(&mut want).unwrap();
        let api_version = want.api_version().to_owned();
        want.set("apiVersion", if api_version.is_empty() { "v1" } else { &api_version });
        assert_eq!(tree(&reply.body, schema), want.into_value(), "{url}");
    }
    let aggregated = format!("{PROTOBUF};g=apidiscovery.example.test;v=v2;as=APIGroupDiscoveryList");
    let reply = get(&server, "/apis", &aggregated).await;
    assert_eq!(reply.header("content-type"), aggregated);
    let groups = tree(&reply.body, "apidiscovery/v2.APIGroupDiscoveryList");
    assert!(groups["items"].as_array().unwrap().len() > 10);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i",
        "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "0.1"}},
        "livenessProbe": {"tcpSocket": {"port": "http"}}}]}});
    let json = server.post("/api/v1/namespaces/a/pods", pod).await.json();
    let reply = get(&server, "/api/v1/namespaces/a/pods/p", PROTOBUF).await;
    assert_eq!(tree(&reply.body, "core/v1.Pod"), json);
}

#[tokio::test]
async fn protobuf_watch_is_stream_of_length_prefixed_frames() {
    let server = Server::start().await;
    server.post(MAPS, map("a", "1")).await;
    let url = format!("{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true");
    let response = server.open("GET", &url, &[("accept", PROTOBUF)], "".into()).await;
    assert_eq!(response.headers()["content-type"], "application/vnd.svc.protobuf;stream=watch");
    server.merge(&format!("{MAPS}/a"), json!({"data": {"k": "2"}})).await;
    server.delete(&format!("{MAPS}/a"), json!(null)).await;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let events: Vec<_> =
        frames(&body).into_iter().map(|(kind, object)| (kind, tree(&object, "core/v1.ConfigMap"))).collect();
    let contents: Vec<_> =
        events.iter().map(|(kind, object)| (kind.as_str(), &object["data"]["k"])).collect();
    let data = [json!("1"), json!("2"), json!("2"), json!(null)];
    let kinds = ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"];
    assert_eq!(contents, kinds.into_iter().zip(&data).collect::<Vec<_>>());
    let versions: Vec<u64> = events
        .iter()
        .map(|(_, object)| object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap())
        .collect();
    assert!(versions[..3].is_sorted_by(|a, b| a < b) && versions[3] >= versions[2], "{versions:?}");
    // The same events as JSON, compared by resourceVersion.
    let since = versions[0];
    let json = server.get(&format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={since}")).await;
    let lines = json.body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    let json: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    for (event, (kind, object)) in json.iter().zip(&events[1..3]) {
        assert_eq!((event["type"].as_str().unwrap(), &event["object"]), (kind.as_str(), object));
    }
    let expired = get(&server, &format!("{MAPS}?watch=1&resourceVersion=x"), PROTOBUF).await;
    assert_eq!((expired.code, open(&expired.body).1.as_str()), (500, "Status"));
}

/// Returns type and object of each frame.
fn frames(mut rest: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut frames = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let (frame, after) = after.split_at(u32::from_be_bytes(*length) as usize);
        let event = WatchEvent::decode(frame).unwrap();
        frames.push((event.kind.unwrap(), event.object.unwrap().raw.unwrap()));
        rest = after;
    }
    frames
}
