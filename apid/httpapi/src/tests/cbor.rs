//! CBOR behind its feature gate (requirements D-MT-8 to -18, -32).

use apimachinery::codec::{Limits, cbor};
use bytes::Bytes;
use serde_json::{Value, json};

use super::custom_kinds::{define, definition_of_thing, events, with_controller};
use super::{MAPS, Reply, Server, map};

const CBOR: &str = "application/cbor";

async fn get(server: &Server, url: &str) -> Reply {
    server.send("GET", url, &[("accept", CBOR)], "").await
}

/// Decodes a body as one CBOR item.
fn decode_item(body: &[u8]) -> Value {
    assert!(body.starts_with(&[0xd9, 0xd9, 0xf7]), "the body begins with the self-describing tag");
    cbor::decode(body, Limits::BODY).unwrap().value
}

#[tokio::test]
async fn cbor_is_read_and_written_for_built_in_kinds() {
    let server = Server::start_with_gates("CBORServingAndStorage=true").await;
    let send = async |method: &str, url: &str, media_type: &str, body: Value| {
        let headers = [("content-type", media_type), ("accept", CBOR)];
        server.send(method, url, &headers, cbor::encode(&body)).await
    };
    let created = send("POST", MAPS, CBOR, map("one", "1")).await;
    assert_eq!((created.code, created.header("content-type")), (201, CBOR));
    let object_url = format!("{MAPS}/one");
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let pods = "/api/v1/namespaces/a/pods";
    assert_eq!(send("POST", pods, CBOR, pod).await.code, 201);
    for url in [object_url.as_str(), MAPS, "/api/v1/namespaces/a/pods/p", pods, "/api/v1", "/apis"] {
        let reply = get(&server, url).await;
        assert_eq!((reply.code, reply.header("content-type")), (200, CBOR), "{url}");
        assert_eq!(decode_item(&reply.body), server.get(url).await.json(), "{url}");
    }
    let changed = send("PUT", &object_url, CBOR, map("one", "2")).await;
    assert_eq!((changed.code, &decode_item(&changed.body)["data"]["k"]), (200, &json!("2")));
    let status = get(&server, &format!("{MAPS}/none")).await;
    assert_eq!((status.code, &decode_item(&status.body)["kind"]), (404, &json!("Status")));
    let table = server
        .send("GET", MAPS, &[("accept", "application/cbor;as=Table;g=meta.example.test;v=v1")], "")
        .await;
    assert_eq!(decode_item(&table.body)["kind"], "Table");
    let unknown = json!({"metadata": {"name": "u"}, "nope": 1});
    let warned = send("POST", MAPS, CBOR, unknown.clone()).await;
    assert_eq!((warned.code, warned.header("warning")), (201, r#"299 - "unknown field \"nope\"""#));
    assert_eq!(send("POST", &format!("{MAPS}?fieldValidation=Strict"), CBOR, unknown).await.code, 400);
    let headers = [("content-type", CBOR)];
    let duplicate = b"\xa1\x48metadata\xa2\x44name\x41x\x44name\x41y".to_vec();
    for validation in ["Strict", "Warn", "Ignore"] {
        let url = format!("{MAPS}?fieldValidation={validation}");
        assert_eq!(server.send("POST", &url, &headers, duplicate.clone()).await.code, 400, "{validation}");
    }
    let indefinite = b"\xbf\x48metadata\xbf\x44name\x5f\x41i\x41n\xff\xff\xff".to_vec();
    assert_eq!(server.send("POST", MAPS, &headers, indefinite).await.code, 201);
    for broken in [&b""[..], b"\xa1", b"{}", b"\x01", b"\x9f\xff"] {
        assert_eq!(server.send("POST", MAPS, &headers, broken.to_vec()).await.code, 400, "{broken:?}");
    }
    assert_eq!(send("DELETE", &object_url, CBOR, json!({"gracePeriodSeconds": 0})).await.code, 200);
}

#[tokio::test]
async fn cbor_apply_configuration_is_applied() {
    let server = Server::start_with_gates("CBORServingAndStorage=true").await;
    let object_url = format!("{MAPS}/one?fieldManager=m");
    let intent =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"k": "v"}});
    let headers = [("content-type", "application/apply-patch+cbor")];
    let applied = server.send("PATCH", &object_url, &headers, cbor::encode(&intent)).await;
    let field = &applied.json()["metadata"]["managedFields"][0];
    assert_eq!((applied.code, &field["operation"], &field["manager"]), (201, &json!("Apply"), &json!("m")));
    let twice = b"\xa2\x44kind\x49ConfigMap\x44kind\x49ConfigMap".to_vec();
    for broken in [b"\xa1".to_vec(), b"{}".to_vec(), twice] {
        assert_eq!(server.send("PATCH", &object_url, &headers, broken.clone()).await.code, 400, "{broken:?}");
    }
    for other in ["json-patch", "merge-patch", "strategic-merge-patch"] {
        let media_type = format!("application/{other}+cbor");
        let reply =
            server.send("PATCH", &object_url, &[("content-type", &media_type)], cbor::encode(&intent)).await;
        assert_eq!(reply.code, 415, "{other}");
    }
}

#[tokio::test]
async fn cbor_watch_is_cbor_sequence() {
    let server = Server::start_with_gates("CBORServingAndStorage=true").await;
    for name in ["a", "b"] {
        server.post(MAPS, map(name, name)).await;
    }
    let url = format!("{MAPS}?watch=1&timeoutSeconds=1");
    let json: Vec<Value> = {
        let reply = server.get(&url).await;
        let lines = reply.body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
    };
    for accept in [CBOR, "application/cbor-seq"] {
        let reply = server.send("GET", &url, &[("accept", accept)], "").await;
        assert_eq!((reply.code, reply.header("content-type")), (200, "application/cbor-seq"));
        let starts: Vec<usize> =
            (0..reply.body.len()).filter(|at| reply.body[*at..].starts_with(&[0xd9, 0xd9, 0xf7])).collect();
        let ends = starts.iter().skip(1).copied().chain([reply.body.len()]);
        let events: Vec<Value> =
            starts.iter().zip(ends).map(|(start, end)| decode_item(&reply.body[*start..end])).collect();
        assert_eq!(events, json, "{accept}");
    }
}

/// The stored bytes of a key.
async fn stored(server: &Server, key: &str) -> Bytes {
    server.api_state.store.get(key, None).await.unwrap().unwrap().value
}

#[tokio::test]
async fn custom_objects_are_stored_as_cbor_behind_the_gate_and_read_in_both_formats() {
    let widgets = "/apis/shop.example.com/v1/namespaces/a/things";
    let thing = |name: &str| {
        json!({"apiVersion": "shop.example.com/v1", "kind": "Thing", "metadata": {"name": name},
            "spec": {"size": 1, "share": 0.5, "text": "\u{e9}", "none": [], "large": 1_u64 << 60,
                "negative": -1, "smallest": i64::MIN, "dotted.key": true}})
    };
    let definition = definition_of_thing(
        "shop.example.com",
        json!({"type": "object", "x-svc-preserve-unknown-fields": true}),
    );
    let mut bodies = Vec::new();
    for (gates, is_cbor) in [("CBORServingAndStorage=true", true), ("", false)] {
        let server = with_controller(Server::start_with_gates(gates).await).await;
        define(&server, definition.clone()).await;
        assert_eq!(server.post(widgets, thing("x")).await.code, 201);
        let key = "custom/shop.example.com/things/a/x";
        let bytes = stored(&server, key).await;
        assert_eq!(bytes.starts_with(&[0xd9, 0xd9, 0xf7]), is_cbor, "{gates}");
        // The other format, as another setting of the gate has stored it.
        let object = kinds::entry::parse(&bytes).unwrap();
        let other = if is_cbor { kinds::entry::encode(&object) } else { kinds::entry::encode_cbor(object) };
        let row = server.api_state.store.get(key, None).await.unwrap().unwrap();
        let op = storage::Op::Update(other.clone(), row.revision);
        let committed = server.api_state.store.commit(key, op).await.unwrap();
        let url = format!("{widgets}/x");
        let read = server.get(&format!("{url}?resourceVersion={}", committed.revision.0)).await;
        assert_eq!((read.code, &read.json()["spec"]), (200, &thing("x")["spec"]));
        let exact = format!("{widgets}?resourceVersion={}&resourceVersionMatch=Exact", row.revision.0);
        let list = server.get(&exact).await.json();
        assert_eq!(list["items"][0]["spec"], thing("x")["spec"], "the history has the first format");
        let watch = format!("{widgets}?watch=1&timeoutSeconds=1&resourceVersion={}", row.revision.0);
        assert_eq!(events(&server.get(&watch).await.body)[0]["object"]["spec"], thing("x")["spec"]);
        let changed = server.merge(&url, json!({"metadata": {"labels": {"a": "b"}}})).await;
        assert_eq!(changed.code, 200);
        assert_eq!(stored(&server, key).await.starts_with(&[0xd9, 0xd9, 0xf7]), is_cbor, "{gates}");
        let mut body = server.get(&url).await.json();
        body["metadata"] = Value::Null;
        bodies.push(body);
    }
    assert_eq!(bodies[0], bodies[1]);
}

#[tokio::test]
async fn built_in_kinds_and_definitions_are_stored_as_json() {
    let server = Server::start_with_gates("CBORServingAndStorage=true").await;
    server.post(MAPS, map("one", "1")).await;
    assert!(stored(&server, "core/configmaps/a/one").await.starts_with(b"{"));
}

#[tokio::test]
async fn cbor_without_feature_gate_returns_406_or_415() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    assert_eq!(get(&server, &object_url).await.code, 406);
    let watch =
        server.send("GET", &format!("{MAPS}?watch=1"), &[("accept", "application/cbor-seq")], "").await;
    assert_eq!(watch.code, 406);
    for (method, url, media_type) in [
        ("POST", MAPS, CBOR),
        ("PUT", &object_url, CBOR),
        ("PATCH", &object_url, "application/apply-patch+cbor"),
    ] {
        let reply =
            server.send(method, url, &[("content-type", media_type)], cbor::encode(&map("one", "1"))).await;
        assert_eq!(reply.code, 415, "{method} {media_type}");
    }
}
