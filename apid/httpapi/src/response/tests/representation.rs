//! Chunked lists and objects, compared with a reference model that encodes whole documents.

use apimachinery::clock::ManualClock;
use apimachinery::codec;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use schema::key_order::Ordered;
use schema::write_message;
use serde_json::{Value, json};
use storage::{Op, Revision};

use super::*;
use crate::response::chunked_document::{BufferedChunks, CHUNK_CAPACITY, Gzip, collect_document};
use crate::response::list_source::list_metadata;
use crate::tests::{MAPS, Server, map};
use verbs::{ListResult, UnreadableObjects, envelope};

/// The reference model: encodes a whole list at once.
impl Representation {
    fn reference_list(&self, listed: &ListResult) -> Vec<u8> {
        let metadata = list_metadata(listed);
        let objects =
            listed.items.iter().map(|item| ResponseObject::from_item(Arc::clone(item)).object().unwrap());
        let value = match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) => {
                if let Format::Protobuf(_) = self.format {
                    return self.reference_messages(listed, metadata);
                }
                return self.reference_encode(self.reference_json(listed));
            }
            Shape::Metadata(version) => {
                let items = objects.map(|object| self.partial_object(self.convert(object).unwrap(), version));
                json!({
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": self.meta_version(version),
                    "metadata": metadata,
                    "items": items.collect::<Vec<_>>(),
                })
            }
            Shape::Table(version) => {
                let rows = objects.map(|object| self.row(object, version).unwrap()).collect();
                self.table(version, metadata, true, rows)
            }
        };
        match self.format {
            Format::Protobuf(_) => protobuf::document(&value).unwrap(),
            _ => self.reference_encode(serde_json::to_vec(&Ordered::new(&value)).unwrap()),
        }
    }

    fn reference_json(&self, listed: &ListResult) -> Vec<u8> {
        let mut out = self.opening(listed);
        for (i, item) in listed.items.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            let shown = ResponseObject::from_item(Arc::clone(item));
            if !self.is_sent_as_stored() {
                let mut object = self.convert(shown.object().unwrap()).unwrap();
                object.remove("kind");
                object.remove("apiVersion");
                let schema = Schema::of_kind(&self.api_version(), self.resource.name());
                let value = object.into_value();
                out.extend(serde_json::to_vec(&Ordered::of_type(&value, schema)).unwrap());
            } else {
                shown.write_json(&mut out, false).unwrap();
            }
        }
        out.extend_from_slice(b"]}");
        out
    }

    fn reference_messages(&self, listed: &ListResult, metadata: Value) -> Vec<u8> {
        let schema = Schema::of_kind(&self.api_version(), self.resource.name()).unwrap();
        let mut out = Vec::new();
        envelope::write(&self.api_version(), &self.resource.names.list, &mut out, |out| {
            let metadata = Object::from_value(metadata).unwrap();
            write_message(1, out, |out| {
                Schema::of("meta/v1.ListMeta").unwrap().write_protobuf(&metadata, out)
            });
            for item in &listed.items {
                let object =
                    self.convert(ResponseObject::from_item(Arc::clone(item)).object().unwrap()).unwrap();
                write_message(2, out, |out| schema.write_protobuf(&object, out));
            }
        });
        out
    }

    fn reference_object(&self, shown: &ResponseObject) -> Vec<u8> {
        let object = shown.object().unwrap();
        let value = match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) if self.is_sent_as_stored() => {
                let mut json = Vec::new();
                shown.write_json(&mut json, true).unwrap();
                if let Format::Protobuf(_) = self.format {
                    json.clear();
                    protobuf::write_object(&object, &mut json).unwrap();
                    return json;
                }
                return self.reference_encode(json);
            }
            Shape::Own | Shape::AggregatedDiscovery(_) => self.convert(object).unwrap().into_value(),
            Shape::Metadata(version) => self.partial_object(self.convert(object).unwrap(), version),
            Shape::Table(version) => {
                let metadata = json!({"resourceVersion": object.resource_version()});
                let rows = vec![self.row(object, version).unwrap()];
                self.table(version, metadata, true, rows)
            }
        };
        match self.format {
            Format::Protobuf(_) => protobuf::document(&value).unwrap(),
            _ => self.reference_encode(serde_json::to_vec(&Ordered::new(&value)).unwrap()),
        }
    }

    /// Encodes JSON in the requested format.
    fn reference_encode(&self, json: Vec<u8>) -> Vec<u8> {
        if self.format == Format::Json && !self.pretty {
            return json;
        }
        let value: Value = serde_json::from_slice(&json).unwrap();
        match self.format {
            Format::Yaml => codec::yaml::encode(&value),
            Format::Cbor => codec::cbor::encode(&value),
            Format::Json | Format::Protobuf(_) => {
                let mut text = serde_json::to_vec_pretty(&Ordered::new(&value)).unwrap();
                text.push(b'\n');
                text
            }
        }
    }
}

const PROTOBUF: Format = Format::Protobuf("application/vnd.svc.protobuf");

/// Returns all formats and shapes of a kind.
fn representations(server: &Server, resource: &Arc<Kind>, version: &str) -> Vec<Representation> {
    let mut all = Vec::new();
    for (format, pretty) in [
        (Format::Json, false),
        (Format::Json, true),
        (Format::Yaml, false),
        (Format::Cbor, false),
        (PROTOBUF, false),
    ] {
        for (shape, include) in [
            (Shape::Own, ""),
            (Shape::Metadata("v1"), ""),
            (Shape::Metadata("v1beta1"), ""),
            (Shape::Table("v1"), "None"),
            (Shape::Table("v1"), "Metadata"),
            (Shape::Table("v1beta1"), "Object"),
        ] {
            if matches!((format, shape), (Format::Protobuf(_), Shape::Table(_))) {
                continue;
            }
            let negotiated = Negotiation { format, shape };
            let result = Representation::new(&server.http_state, resource, version, negotiated, include);
            all.push(result.unwrap().with_pretty(pretty));
        }
    }
    all
}

fn list_result(items: &[Arc<Item>], continue_token: &str, remaining: Option<usize>) -> ListResult {
    ListResult {
        items: items.to_vec(),
        revision: Revision(77),
        continue_token: continue_token.to_owned(),
        remaining,
        uncached_bytes: 0,
        lease: None,
        unreadable: UnreadableObjects::default(),
    }
}

/// Reads all chunks, and checks their size and the held memory.
fn read(mut chunks: Box<dyn ChunkSource>, items: usize) -> Bytes {
    chunks.prepare().unwrap();
    let (exact, least) = (chunks.exact_size(), chunks.min_size());
    let mut out = Vec::new();
    loop {
        let large = if out.is_empty() { 0 } else { 500_000 };
        assert!(chunks.held_bytes() <= 8192 + items * 16 + large, "{}", chunks.held_bytes());
        let Some(chunk) = chunks.next() else { break };
        let chunk = chunk.unwrap();
        assert!(!chunk.is_empty() && chunk.len() <= 2 * CHUNK_CAPACITY, "{}", chunk.len());
        out.extend_from_slice(&chunk);
    }
    assert!(chunks.next().is_none());
    assert!(
        least <= out.len() && exact.is_none_or(|size| size == out.len()),
        "{least} {exact:?} {}",
        out.len()
    );
    out.into()
}

async fn check(server: &Server, group: &str, version: &str, plural: &str, objects: Vec<Value>) {
    let registry = server.api_state.kinds.registry();
    let resource = registry.find(&group_name(server, group), version, plural).unwrap();
    let prefix = match group {
        "" => format!("/api/{version}"),
        _ => format!("/apis/{}/{version}", group_name(server, group)),
    };
    let mut names = Vec::new();
    for object in objects {
        names.push(object["metadata"]["name"].as_str().unwrap().to_owned());
        let reply = server.post(&format!("{prefix}/namespaces/a/{plural}"), object).await;
        assert_eq!(reply.code, 201, "{:?}", reply.json());
    }
    let items = server.cached_items(resource, &names).await;
    for representation in representations(server, resource, version) {
        let Representation { format, shape, pretty, include, .. } = representation;
        let what = format!("{plural} {version} {format:?} {shape:?} {include:?} pretty {pretty}");
        for count in [0, 1, 2, items.len()] {
            let token = if count == 2 { "the-token" } else { "" };
            let list = || list_result(&items[..count], token, (count == 2).then_some(12));
            let encoded = read(representation.list(list()).unwrap(), count);
            assert!(encoded == representation.reference_list(&list()), "list of {count} {what}");
        }
        for item in [&items[0], &items[1]] {
            let object = ResponseObject::Cached(Arc::clone(item), Revision(78));
            let encoded = match representation.object(&object).unwrap() {
                EncodedObject::Whole(encoded) if matches!(format, Format::Protobuf(_)) => encoded,
                EncodedObject::Whole(json) => representation.reference_encode(json),
                EncodedObject::Chunks(mut chunks) => {
                    chunks.prepare().unwrap();
                    collect_document(chunks).unwrap().to_vec()
                }
            };
            assert!(encoded == representation.reference_object(&object), "object {what}");
        }
    }
}

fn group_name(server: &Server, group: &str) -> String {
    match group {
        "events" => server.api_state.names.group("events"),
        _ => group.to_owned(),
    }
}

/// Starts a server whose time stands still: cells show ages.
async fn start_with_fixed_time() -> Server {
    let clock = ManualClock::at("2026-01-02T03:04:05Z".parse().unwrap());
    Server::start_with_clock("CBORServingAndStorage=true", Arc::new(clock)).await
}

#[tokio::test]
async fn chunked_config_maps_equal_reference_model() {
    let server = start_with_fixed_time().await;
    let mut objects: Vec<Value> = (0..150)
        .map(|i| {
            let mut object =
                map(&format!("m{i:03}"), &"text\nof lines: \"quoted\" \u{e9}\u{1f600}\n".repeat(i % 40));
            object["metadata"]["labels"] = json!({"a": "1", "longer-key": "x"});
            object
        })
        .collect();
    // Objects larger than several chunks at the start, in the middle and at the end.
    for at in [0, 75, 149] {
        objects[at]["data"]["large"] = json!("0123456789\n".repeat(20_000));
    }
    check(&server, "", "v1", "configmaps", objects).await;
}

#[tokio::test]
async fn chunked_pods_and_converted_kinds_equal_reference_model() {
    let server = start_with_fixed_time().await;
    let pod = |i: usize| {
        json!({
            "metadata": {"name": format!("p{i}"), "annotations": {"n": "x".repeat(i * 700)}},
            "spec": {"containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}]}]},
        })
    };
    check(&server, "", "v1", "pods", (0..90).map(pod).collect()).await;
    let event = |i: usize| {
        json!({
            "metadata": {"name": format!("e{i}")}, "regarding": {"kind": "Pod", "namespace": "a", "name": "p"},
            "type": "Normal", "reason": "Started", "action": "Starting", "note": "began".repeat(i),
            "eventTime": "2024-05-06T07:08:09.123456Z",
            "reportingController": "example.com/ctl", "reportingInstance": "ctl-0",
        })
    };
    check(&server, "events", "v1", "events", (0..90).map(event).collect()).await;
    let scaler = |i: usize| {
        json!({
            "metadata": {"name": format!("h{i}"), "annotations": {"n": "x".repeat(40_000 / (i + 1))}},
            "spec": {"maxReplicas": 5, "scaleTargetRef": {"kind": "Deployment", "name": "web"}},
        })
    };
    check(&server, "autoscaling", "v1", "horizontalpodautoscalers", (0..40).map(scaler).collect()).await;
}

#[tokio::test]
async fn list_with_an_unreadable_object_returns_500_in_every_representation() {
    let server = Server::start_with_gates("CBORServingAndStorage=true").await;
    let large = "0123456789".repeat(2000);
    for i in 0..40 {
        assert_eq!(server.post(MAPS, map(&format!("m{i:02}"), &large)).await.code, 201);
    }
    let key = server.api_state.kinds.registry().find("", "v1", "configmaps").unwrap().key("a", "torn");
    let torn = Bytes::from_static(br#"{"kind":"ConfigMap","metadata":{"na"#);
    server.api_state.store.commit(&key, Op::Create(torn)).await.unwrap();
    for accept in [
        "application/json",
        "application/yaml",
        "application/cbor",
        "application/vnd.svc.protobuf",
        "application/json;as=Table;g=meta.example.test;v=v1",
        "application/json;as=PartialObjectMetadataList;g=meta.example.test;v=v1",
        "application/vnd.svc.protobuf;as=PartialObjectMetadataList;g=meta.example.test;v=v1",
    ] {
        let headers = [("accept", accept), ("accept-encoding", "gzip")];
        assert_eq!(server.send("GET", MAPS, &headers, "").await.code, 500, "{accept}");
        assert_eq!(
            server.send("GET", &format!("{MAPS}?pretty=1"), &headers[..1], "").await.code,
            500,
            "{accept}"
        );
    }
}

#[tokio::test]
async fn large_response_is_chunked_in_every_representation() {
    let server = Server::start_with_gates("CBORServingAndStorage=true").await;
    let large = "0123456789".repeat(2000);
    for i in 0..40 {
        assert_eq!(server.post(MAPS, map(&format!("m{i:02}"), &large)).await.code, 201);
    }
    assert_eq!(server.post("/api/v1/namespaces/b/configmaps", map("one", &large.repeat(20))).await.code, 201);
    for url in [MAPS, "/api/v1/namespaces/b/configmaps", "/api/v1/namespaces/b/configmaps/one", "/openapi/v2"]
    {
        for accept in [
            "application/json",
            "application/yaml, */*",
            "application/cbor, */*",
            "application/vnd.svc.protobuf, */*",
            "application/json;as=Table;g=meta.example.test;v=v1, */*",
        ] {
            for query in ["", "?pretty=1&includeObject=Object"] {
                let url = format!("{url}{query}");
                let mut body =
                    server.open("GET", &url, &[("accept", accept)], Bytes::new()).await.into_body();
                assert!(body.as_whole().is_none_or(|whole| whole.len() < CHUNK_CAPACITY), "{url} {accept}");
                while let Some(frame) = body.frame().await {
                    let size = frame.unwrap().into_data().unwrap().len();
                    assert!(size <= 2 * CHUNK_CAPACITY, "{size} {url} {accept}");
                }
            }
        }
    }
}

#[tokio::test]
async fn openapi_document_buffer_is_shared_by_responses() {
    let server = Server::start().await;
    let mut firsts = Vec::new();
    for _ in 0..3 {
        let mut body = server.open("GET", "/openapi/v2", &[], Bytes::new()).await.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        firsts.push((first, body));
    }
    let places: Vec<_> = firsts.iter().map(|(first, _)| first.as_ptr()).collect();
    assert!(places.iter().all(|place| *place == places[0]), "{places:?}");
    drop(firsts);
    // Lets the timer tasks of the requests end.
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert!(
        server.documents().openapi.v2().unwrap().decompressed_now().is_none(),
        "the last response frees the document"
    );
}

#[tokio::test]
async fn bookmark_after_initial_events_has_empty_list_in_format_of_response() {
    let server = Server::start().await;
    let registry = server.api_state.kinds.registry();
    let resource = registry.find("", "v1", "configmaps").unwrap();
    let empty = |kind: &str, version: &str| {
        format!(r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{{}},"items":null}}"#)
    };
    let own = empty("ConfigMapList", "v1");
    let partial = empty("PartialObjectMetadataList", "meta.example.test/v1");
    let cbor = codec::cbor::encode(&serde_json::from_str(&own).unwrap());
    for (format, shape, expected) in [
        (Format::Json, Shape::Own, own.clone().into_bytes()),
        (Format::Cbor, Shape::Own, cbor),
        (Format::Json, Shape::Metadata("v1"), partial.into_bytes()),
        (Format::Json, Shape::Table("v1"), own.into_bytes()),
    ] {
        let new = |shape| {
            let negotiated = Negotiation { format, shape };
            Representation::new(&server.http_state, resource, "v1", negotiated, "").unwrap()
        };
        let bookmark = |initial: bool| -> Value {
            serde_json::from_slice(&new(shape).bookmark(Revision(7), initial, false).unwrap()).unwrap()
        };
        let metadata = |bookmark: Value| match shape {
            Shape::Table(_) => bookmark["rows"][0]["object"]["metadata"].clone(),
            _ => bookmark["metadata"].clone(),
        };
        let list =
            metadata(bookmark(true))["annotations"]["example.test/initial-events-list-blueprint"].clone();
        assert_eq!(STANDARD.decode(list.as_str().unwrap()).unwrap(), expected, "{format:?} {shape:?}");
        assert_eq!(metadata(bookmark(false)), json!({"resourceVersion": "7"}));
        if let Shape::Table(_) = shape {
            assert_eq!(bookmark(true)["metadata"], json!({"resourceVersion": "7"}));
        }
    }
}

#[tokio::test]
async fn discovery_document_buffer_is_shared_by_responses() {
    let server = Server::start_with_gates("CBORServingAndStorage=true").await;
    let aggregated =
        "application/yaml;g=apidiscovery.example.test;v=v2;as=APIGroupDiscoveryList, application/yaml";
    for url in ["/api/v1", "/apis"] {
        let json = server.get(url).await.json();
        for accept in [
            "application/json",
            "application/yaml",
            "application/cbor",
            "application/vnd.svc.protobuf",
            aggregated,
        ] {
            for query in ["", "?pretty=1"] {
                let mut held = Vec::new();
                for _ in 0..2 {
                    let url = format!("{url}{query}");
                    let response = server.open("GET", &url, &[("accept", accept)], Bytes::new()).await;
                    assert_eq!(response.status(), 200, "{url} {accept}");
                    let mut body = response.into_body();
                    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
                    held.push((first, body));
                }
                assert_eq!(held[0].0.as_ptr(), held[1].0.as_ptr(), "{url}{query} {accept}");
            }
        }
        let yaml = server.send("GET", url, &[("accept", "application/yaml")], "").await.body;
        assert_eq!(yaml, codec::yaml::encode(&json));
        let message = server.send("GET", url, &[("accept", "application/vnd.svc.protobuf")], "").await.body;
        assert_eq!(message, protobuf::document(&json).unwrap());
        let indented = server.get(&format!("{url}?pretty=1")).await.body;
        assert_eq!(indented, format!("{}\n", serde_json::to_string_pretty(&Ordered::new(&json)).unwrap()));
    }
}

#[tokio::test]
async fn unread_compressed_list_holds_no_compressor() {
    let server = Server::start().await;
    let names: Vec<String> = (0..20).map(|i| format!("m{i:02}")).collect();
    for name in &names {
        assert_eq!(server.post(MAPS, map(name, &"x".repeat(20_000))).await.code, 201);
    }
    let registry = server.api_state.kinds.registry();
    let resource = registry.find("", "v1", "configmaps").unwrap();
    let items = server.cached_items(resource, &names).await;
    let negotiated = Negotiation { format: Format::Json, shape: Shape::Own };
    let representation = Representation::new(&server.http_state, resource, "v1", negotiated, "").unwrap();
    let mut buffered = BufferedChunks::new(representation.list(list_result(&items, "", None)).unwrap());
    buffered.prepare_up_to(128 * 1024).unwrap();
    assert!(buffered.known_size().is_none());
    assert!(Gzip::new(Box::new(buffered)).held_bytes() < 1024);
}
