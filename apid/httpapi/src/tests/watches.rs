//! Watches: complete, ordered events in every representation.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use serving::body::Body;

use super::{MAPS, Server, map};
use crate::response::chunked_document::CHUNK_CAPACITY;

/// The lines of a watch stream.
pub(super) struct Lines {
    body: Body,
    rest: Vec<u8>,
}

impl Lines {
    pub(super) async fn open(server: &Server, url: &str) -> Self {
        let response = server.open("GET", url, &[], "".into()).await;
        assert_eq!(response.status(), 200, "{url}");
        Lines { body: response.into_body(), rest: Vec::new() }
    }

    /// Returns the next event; None at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(Duration::from_secs(30), self.body.frame())
                .await
                .expect("stream frame within 30 s");
            self.rest.extend_from_slice(frame?.unwrap().data_ref().unwrap());
        }
    }

    /// Returns type, name and content of the next events.
    async fn take(&mut self, count: usize) -> Vec<(String, String, String)> {
        let mut all = Vec::new();
        for _ in 0..count {
            let event = self.next().await.expect("event before the end of the stream");
            let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
            let object = &event["object"];
            all.push((text(&event["type"]), text(&object["metadata"]["name"]), text(&object["data"]["k"])));
        }
        all
    }
}

fn events(list: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    list.iter().map(|(a, b, c)| ((*a).to_owned(), (*b).to_owned(), (*c).to_owned())).collect()
}

#[tokio::test]
async fn watch_with_max_timeout_seconds_is_served() {
    let server = Server::start().await;
    let url = format!("{MAPS}?watch=1&timeoutSeconds={}&allowWatchBookmarks=true", i64::MAX);
    let mut watch = Lines::open(&server, &url).await;
    server.post(MAPS, map("a", "1")).await;
    assert_eq!(watch.take(1).await, events(&[("ADDED", "a", "1")]));
}

#[tokio::test]
async fn watch_sends_existing_objects_then_changes() {
    let server = Server::start().await;
    server.post(MAPS, map("a", "1")).await;
    let list = server.get(MAPS).await.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut newest = Lines::open(&server, &format!("{MAPS}?watch")).await;
    let mut from_version = Lines::open(&server, &format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    let mut by_name = Lines::open(&server, &format!("{MAPS}/b?watch=true")).await;
    let mut old_path =
        Lines::open(&server, &format!("/api/v1/watch/namespaces/a/configmaps?resourceVersion={version}"))
            .await;
    server.post(MAPS, map("b", "1")).await;
    server.put(&format!("{MAPS}/a"), map("a", "2")).await;
    server.delete(&format!("{MAPS}/b"), Value::Null).await;
    server.post("/api/v1/namespaces/b/configmaps", map("elsewhere", "1")).await;
    server.post(MAPS, map("c", "1")).await;
    let changes = [("ADDED", "b", "1"), ("MODIFIED", "a", "2"), ("DELETED", "b", "1"), ("ADDED", "c", "1")];
    assert_eq!(newest.take(5).await, events(&[&[("ADDED", "a", "1")], &changes[..]].concat()));
    assert_eq!(from_version.take(4).await, events(&changes));
    assert_eq!(old_path.take(4).await, events(&changes));
    assert_eq!(by_name.take(2).await, events(&[changes[0], changes[2]]));
}

#[tokio::test]
async fn large_initial_event_is_sent_in_chunks() {
    let server = Server::start().await;
    let value = "x".repeat(300_000);
    for name in ["large", "other"] {
        assert_eq!(server.post(MAPS, map(name, &value)).await.code, 201);
    }
    server.post(MAPS, map("small", "1")).await;
    let response = server.open("GET", &format!("{MAPS}?watch=1"), &[], "".into()).await;
    let (mut body, mut stream) = (response.into_body(), Vec::new());
    while stream.iter().filter(|byte| **byte == b'\n').count() < 3 {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(frame.len() <= CHUNK_CAPACITY, "{} bytes", frame.len());
        stream.extend_from_slice(&frame);
    }
    let lines = stream.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let objects: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
    for (event, name) in objects.iter().zip(["large", "other", "small"]) {
        let stored = server.get(&format!("{MAPS}/{name}")).await.json();
        assert_eq!(*event, json!({"type": "ADDED", "object": stored}));
    }
}

#[tokio::test]
async fn large_event_is_encoded_on_the_work_pool_once() {
    let server = Server::start().await;
    let value = "x".repeat(300_000);
    assert_eq!(server.post(MAPS, map("a", &value)).await.code, 201);
    let accept = [("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.example.test")];
    let open_watch = async || {
        let response = server.open("GET", &format!("{MAPS}?watch=1"), &accept, "".into()).await;
        Lines { body: response.into_body(), rest: Vec::new() }
    };
    let (mut first, mut second) = (open_watch().await, open_watch().await);
    let tasks = || server.api.pool().started_tasks();
    for (lines, before) in [(&mut first, tasks()), (&mut second, tasks() + 1)] {
        assert_eq!(tasks(), before);
        assert_eq!(lines.take(1).await, events(&[("ADDED", "a", "")]));
        assert_eq!(tasks(), before + 1, "each watch encodes its initial events");
    }
    assert_eq!(server.put(&format!("{MAPS}/a"), map("a", &format!("{value}y"))).await.code, 200);
    server.post(MAPS, map("small", "1")).await;
    let before = tasks();
    for lines in [&mut first, &mut second] {
        assert_eq!(lines.take(2).await, events(&[("MODIFIED", "a", ""), ("ADDED", "small", "")]));
    }
    assert_eq!(tasks(), before + 1, "the watches share the encoding of a change");
}

#[tokio::test]
async fn converted_initial_events_are_encoded_on_the_work_pool_in_one_turn() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        assert_eq!(server.post(MAPS, map(name, "1")).await.code, 201);
    }
    let tasks = || server.api.pool().started_tasks();
    for (accept, expected) in
        [("application/json", 0), ("application/json;as=Table;g=meta.example.test;v=v1", 1)]
    {
        let before = tasks();
        let response = server.open("GET", &format!("{MAPS}?watch=1"), &[("accept", accept)], "".into()).await;
        let mut lines = Lines { body: response.into_body(), rest: Vec::new() };
        let kinds: Vec<String> = lines.take(3).await.into_iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, ["ADDED"; 3]);
        assert_eq!(tasks() - before, expected, "{accept}");
    }
}

#[tokio::test]
async fn watch_sends_deleted_event_when_object_leaves_label_selector() {
    let server = Server::start().await;
    let labelled_map = |value: &str, label: &str| {
        let metadata = json!({"name": "a", "labels": {"t": label}});
        json!({"metadata": metadata, "data": {"k": value}})
    };
    let mut lines = Lines::open(&server, &format!("{MAPS}?watch=1&labelSelector=t%3Dx")).await;
    server.post(MAPS, labelled_map("1", "x")).await;
    for (value, label) in [("2", "y"), ("3", "y"), ("4", "x")] {
        server.put(&format!("{MAPS}/a"), labelled_map(value, label)).await;
    }
    let last = server.delete(&format!("{MAPS}/a"), Value::Null).await;
    assert_eq!(last.code, 200);
    let want = [("ADDED", "a", "1"), ("DELETED", "a", "1"), ("ADDED", "a", "4"), ("DELETED", "a", "4")];
    assert_eq!(lines.take(4).await, events(&want));
}

#[tokio::test]
async fn watch_from_compacted_or_invalid_resource_version_fails() {
    let server = Server::start().await;
    for i in 0..4 {
        server.post(MAPS, map(&format!("m{i}"), "1")).await;
    }
    let now = server.api_state.store.revision();
    server.api_state.store.compact(now).await.unwrap();
    let mut expired = Lines::open(&server, &format!("{MAPS}?watch=1&resourceVersion=1")).await;
    let event = expired.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(expired.next().await, None);
    assert_eq!(server.get(&format!("{MAPS}?watch=1&resourceVersion=words")).await.code, 500);
    assert_eq!(server.get(&format!("{MAPS}?watch=1&sendInitialEvents=true")).await.code, 422);
    let yaml = server.send("GET", &format!("{MAPS}?watch=1"), &[("accept", "application/yaml")], "").await;
    assert_eq!(yaml.code, 406);
}

#[tokio::test]
async fn watch_ends_at_timeout_after_bookmark() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let url = format!("{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true");
    let mut lines = Lines::open(&server, &url).await;
    assert_eq!(lines.next().await.unwrap()["type"], "ADDED");
    let bookmark = lines.next().await.unwrap();
    let version = bookmark["object"]["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(version, server.api_state.cache.revision().to_string());
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"resourceVersion": version}});
    assert_eq!(bookmark, json!({"type": "BOOKMARK", "object": object}));
    assert_eq!(lines.next().await, None);
    let mut silent = Lines::open(&server, &format!("{MAPS}?watch=1&timeoutSeconds=1")).await;
    assert_eq!(silent.next().await.unwrap()["type"], "ADDED");
    assert_eq!(silent.next().await, None);
}

#[tokio::test]
async fn watch_events_have_type_and_resource_version_of_change() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/a");
    let begin = server.api_state.cache.revision();
    let mut lines = Lines::open(&server, &format!("{MAPS}?watch=1&resourceVersion={begin}")).await;
    server.post(MAPS, map("a", "1")).await;
    server.put(&object_url, map("a", "2")).await;
    server.merge(&object_url, json!({"data": {"k": "3"}})).await;
    server.merge(&object_url, json!({"data": {"k": "3"}})).await;
    server.delete(&object_url, Value::Null).await;
    let mut versions = Vec::new();
    for (kind, content) in [("ADDED", "1"), ("MODIFIED", "2"), ("MODIFIED", "3"), ("DELETED", "3")] {
        let event = lines.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["data"]["k"]), (&json!(kind), &json!(content)));
        assert_eq!(event.as_object().unwrap().len(), 2, "an event has only type and object");
        assert_eq!(event["object"]["kind"], "ConfigMap");
        versions
            .push(event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
    }
    assert_eq!(
        versions,
        (1..=4).map(|i| begin.0 + i).collect::<Vec<_>>(),
        "consecutive resourceVersions, including the deletion"
    );
}

#[tokio::test]
async fn watch_from_resource_version_0_or_none_sends_initial_events() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        server.post(MAPS, map(name, "1")).await;
    }
    for query in ["", "&resourceVersion=0", "&resourceVersion="] {
        let mut lines = Lines::open(&server, &format!("{MAPS}?watch=1{query}")).await;
        let all = [("ADDED", "a", "1"), ("ADDED", "b", "1"), ("ADDED", "c", "1")];
        assert_eq!(lines.take(3).await, events(&all), "{query}");
        server.put(&format!("{MAPS}/b"), map("b", query)).await;
        assert_eq!(lines.take(1).await, events(&[("MODIFIED", "b", query)]));
        server.put(&format!("{MAPS}/b"), map("b", "1")).await;
    }
}

#[tokio::test]
async fn watch_events_are_ordered_and_unique_across_reconnects() {
    let server = std::sync::Arc::new(Server::start().await);
    let mut last_version = server.api_state.cache.revision().0;
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let server = std::sync::Arc::clone(&server);
            tokio::spawn(async move {
                for i in 0..250 {
                    server.post(MAPS, map(&format!("w{writer}-{i}"), "1")).await;
                }
            })
        })
        .collect();
    let mut names = std::collections::BTreeSet::new();
    while names.len() < 1_000 {
        let mut lines = Lines::open(&server, &format!("{MAPS}?watch=1&resourceVersion={last_version}")).await;
        for _ in 0..100.min(1_000 - names.len()) {
            let event = lines.next().await.unwrap();
            let meta = &event["object"]["metadata"];
            let version = meta["resourceVersion"].as_str().unwrap().parse().unwrap();
            assert!(version > last_version, "events out of order");
            last_version = version;
            assert!(names.insert(meta["name"].as_str().unwrap().to_owned()), "event delivered twice");
        }
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn watch_sends_added_and_deleted_on_field_selector_transitions() {
    let server = Server::start().await;
    let pods = "/api/v1/namespaces/a/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let begin = server.api_state.cache.revision();
    let open_watch = async |phase: &str| {
        let url = format!("{pods}?watch=1&resourceVersion={begin}&fieldSelector=status.phase%3D{phase}");
        Lines::open(&server, &url).await
    };
    let (mut pending, mut running) = (open_watch("Pending").await, open_watch("Running").await);
    assert_eq!(server.post(pods, pod).await.code, 201);
    for phase in ["Running", "Failed"] {
        let status = json!({"status": {"phase": phase}});
        assert_eq!(server.merge(&format!("{pods}/p/status"), status).await.code, 200);
    }
    for (lines, phase) in [(&mut pending, "Pending"), (&mut running, "Running")] {
        for kind in ["ADDED", "DELETED"] {
            let event = lines.next().await.unwrap();
            assert_eq!((&event["type"], &event["object"]["status"]["phase"]), (&json!(kind), &json!(phase)));
        }
    }
}

#[tokio::test]
async fn bookmark_of_quiet_collection_has_store_revision() {
    let server = Server::start().await;
    let begin = server.api_state.cache.revision();
    let url = |from: &str| {
        format!("{MAPS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion={from}")
    };
    let mut quiet = Lines::open(&server, &url(&begin.to_string())).await;
    for i in 0..3 {
        server.post("/api/v1/namespaces/a/secrets", json!({"metadata": {"name": format!("s{i}")}})).await;
    }
    let bookmark = quiet.next().await.unwrap();
    let bookmark_version = bookmark["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    assert_eq!((&bookmark["type"], bookmark_version.parse().unwrap()), (&json!("BOOKMARK"), begin.0 + 3));
    assert_eq!(bookmark["object"]["apiVersion"], "v1");
    server.api_state.store.compact(server.api_state.store.revision()).await.unwrap();
    let mut again = Lines::open(&server, &url(&bookmark_version)).await;
    server.post(MAPS, map("a", "1")).await;
    assert_eq!(again.take(1).await, events(&[("ADDED", "a", "1")]), "the watch resumes at the bookmark");
    let mut expired = Lines::open(&server, &url(&begin.to_string())).await;
    assert_eq!(expired.next().await.unwrap()["object"]["code"], 410);
}

#[tokio::test]
async fn watch_from_future_resource_version_sends_no_events_before_it() {
    let server = Server::start().await;
    let next = server.api_state.cache.revision().0 + 2;
    let mut waiting = Lines::open(&server, &format!("{MAPS}?watch=1&resourceVersion={next}")).await;
    let url = format!("{MAPS}?watch=1&resourceVersion=99999&timeoutSeconds=1&allowWatchBookmarks=true");
    let mut never = Lines::open(&server, &url).await;
    for name in ["a", "b", "c"] {
        server.post(MAPS, map(name, "1")).await;
    }
    assert_eq!(
        waiting.take(1).await,
        events(&[("ADDED", "c", "1")]),
        "events after the requested resourceVersion"
    );
    assert_eq!(never.next().await, None, "no bookmark before the requested resourceVersion");
}

#[tokio::test]
async fn initial_events_end_with_bookmark_then_changes_follow() {
    let server = Server::start_with_gates("WatchList=true").await;
    for name in ["a", "b"] {
        server.post(MAPS, map(name, "1")).await;
    }
    let now = server.api_state.cache.revision();
    let initial = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    for (query, marked) in [
        ("&allowWatchBookmarks=true".to_owned(), true),
        ("&allowWatchBookmarks=true&resourceVersion=0".to_owned(), true),
        (format!("&allowWatchBookmarks=true&resourceVersion={now}"), true),
        ("&allowWatchBookmarks=true&resourceVersion=1".to_owned(), true),
        (String::new(), false),
    ] {
        let mut lines = Lines::open(&server, &format!("{MAPS}?{initial}{query}")).await;
        assert_eq!(lines.take(2).await, events(&[("ADDED", "a", "1"), ("ADDED", "b", "1")]), "{query}");
        if marked {
            let mark = lines.next().await.unwrap();
            let meta = &mark["object"]["metadata"];
            assert_eq!(
                (&mark["type"], &meta["annotations"]["example.test/initial-events-end"]),
                (&json!("BOOKMARK"), &json!("true"))
            );
            let list = meta["annotations"]["example.test/initial-events-list-blueprint"].as_str().unwrap();
            let list: Value = serde_json::from_slice(&STANDARD.decode(list).unwrap()).unwrap();
            assert_eq!((&list["kind"], &list["items"]), (&json!("ConfigMapList"), &Value::Null));
            let bookmark_version: u64 = meta["resourceVersion"].as_str().unwrap().parse().unwrap();
            assert!(bookmark_version >= now.0, "{query}");
        }
        server.put(&format!("{MAPS}/a"), map("a", "2")).await;
        assert_eq!(lines.take(1).await, events(&[("MODIFIED", "a", "2")]), "{query}");
        server.put(&format!("{MAPS}/a"), map("a", "1")).await;
        assert_eq!(lines.take(1).await, events(&[("MODIFIED", "a", "1")]), "no event is repeated");
    }
    let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let count = r#"apiserver_watch_list_duration_seconds_count{group="",version="v1",resource="configmaps",scope="namespace"} 4"#;
    assert!(metrics.contains(count), "{metrics}");
}

#[tokio::test]
async fn watch_events_in_every_representation() {
    let server = Server::start().await;
    let begin = server.api_state.cache.revision();
    let meta = "g=meta.example.test;v=v1";
    let table = format!("application/json;as=Table;{meta}");
    let partial = format!("application/json;as=PartialObjectMetadata;{meta}");
    server.post(MAPS, map("a", "1")).await;
    server.put(&format!("{MAPS}/a"), map("a", "2")).await;
    server.delete(&format!("{MAPS}/a"), Value::Null).await;
    let end = server.api_state.cache.revision();
    for (accept, query, kind) in [
        ("application/json", "", "ConfigMap"),
        (partial.as_str(), "", "PartialObjectMetadata"),
        (table.as_str(), "", "Table"),
        (table.as_str(), "&includeObject=Object", "Table"),
        (table.as_str(), "&includeObject=None", "Table"),
    ] {
        let url = format!(
            "{MAPS}?watch=1&resourceVersion={begin}&timeoutSeconds=1{query}&allowWatchBookmarks=true"
        );
        // Twice: the second watch uses the cached encoding of the first.
        let [first, second] = [
            server.send("GET", &url, &[("accept", accept)], "").await,
            server.send("GET", &url, &[("accept", accept)], "").await,
        ];
        assert_eq!(first.header("content-type"), "application/json", "{accept}");
        if kind != "Table" {
            assert_eq!(first.body, second.body, "{accept}");
        }
        let lines = second.body.split(|b| *b == b'\n').filter(|line| !line.is_empty());
        let events_sent: Vec<Value> = lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
        let types: Vec<_> = events_sent.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["ADDED", "MODIFIED", "DELETED", "BOOKMARK"], "{accept}");
        for (i, event) in events_sent.iter().enumerate() {
            let object = &event["object"];
            assert_eq!(object["kind"], kind, "{accept}");
            if i == 3 {
                assert_eq!(object["metadata"], json!({"resourceVersion": end.to_string()}));
                let own = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": object["metadata"]});
                let partial = json!({
                    "kind": "PartialObjectMetadata", "apiVersion": "meta.example.test/v1", "metadata": object["metadata"],
                });
                match (kind, query) {
                    ("Table", "") => assert_eq!(object["rows"][0]["object"], partial),
                    ("Table", "&includeObject=Object") => assert_eq!(object["rows"][0]["object"], own),
                    ("Table", _) => assert_eq!(object["rows"][0]["object"], Value::Null),
                    ("ConfigMap", _) => assert_eq!(*object, own),
                    _ => assert_eq!(*object, partial),
                }
                assert_eq!(object["columnDefinitions"], Value::Null);
            } else if kind == "Table" {
                assert_eq!(
                    object["columnDefinitions"].is_array(),
                    i == 0,
                    "only the first event has column definitions"
                );
                let row = &object["rows"][0];
                assert_eq!(row["cells"][0], "a");
                let kind = match query {
                    "" => json!("PartialObjectMetadata"),
                    "&includeObject=Object" => json!("ConfigMap"),
                    _ => Value::Null,
                };
                assert_eq!(row["object"]["kind"], kind, "{query}");
            } else {
                assert_eq!(object["metadata"]["name"], "a");
                assert_eq!(object.get("data").is_some(), kind == "ConfigMap");
            }
        }
    }
}

#[tokio::test]
async fn graceful_shutdown_ends_watches() {
    let server = Server::start().await;
    let mut lines = Lines::open(&server, &format!("{MAPS}?watch=1")).await;
    server.stop.send(true).unwrap();
    assert_eq!(lines.next().await, None);
}

#[tokio::test]
async fn watch_of_many_objects_as_table_yields_between_batches() {
    let server = Server::start().await;
    for i in 0..300 {
        assert_eq!(server.post(MAPS, map(&format!("m{i}"), &"x".repeat(3000))).await.code, 201);
    }
    let table = [("accept", "application/json;as=Table;g=meta.example.test;v=v1")];
    let url = format!("{MAPS}?watch=1&timeoutSeconds=30");
    let mut body = server.open("GET", &url, &table, "".into()).await.into_body();
    let turns = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&turns);
    let other = tokio::spawn(async move {
        loop {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    });
    let mut events = 0;
    while events < 300 {
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        events += frame.iter().filter(|byte| **byte == b'\n').count();
    }
    other.abort();
    let turns = turns.load(std::sync::atomic::Ordering::Relaxed);
    assert!(turns >= 8, "another task of the thread ran {turns} times");
}
