//! Watches tell what happened, in order, to those who may know.

use std::time::Duration;

use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use serving::body::Body;

use super::{MAPS, Server, map};

/// The lines of a stream.
struct Lines {
    body: Body,
    rest: Vec<u8>,
}

impl Lines {
    async fn open(server: &Server, url: &str) -> Self {
        let response = server.open("GET", url, &[], "".into()).await;
        assert_eq!(response.status(), 200, "{url}");
        Lines { body: response.into_body(), rest: Vec::new() }
    }

    /// The next event; None at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = tokio::time::timeout(Duration::from_secs(30), self.body.frame())
                .await
                .expect("a frame or the end");
            self.rest.extend_from_slice(frame?.unwrap().data_ref().unwrap());
        }
    }

    /// Type, name and content of the next events.
    async fn take(&mut self, count: usize) -> Vec<(String, String, String)> {
        let mut all = Vec::new();
        for _ in 0..count {
            let event = self.next().await.expect("an event");
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
async fn a_watch_may_be_asked_for_that_outlasts_the_clock() {
    let server = Server::start().await;
    let url = format!("{MAPS}?watch=1&timeoutSeconds={}&allowWatchBookmarks=true", i64::MAX);
    let mut watch = Lines::open(&server, &url).await;
    server.post(MAPS, map("a", "1")).await;
    assert_eq!(watch.take(1).await, events(&[("ADDED", "a", "1")]));
}

#[tokio::test]
async fn what_exists_and_then_each_change() {
    let server = Server::start().await;
    server.post(MAPS, map("a", "1")).await;
    let list = server.get(MAPS).await.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut newest = Lines::open(&server, &format!("{MAPS}?watch")).await;
    let mut from = Lines::open(&server, &format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    let mut item = Lines::open(&server, &format!("{MAPS}/b?watch=true")).await;
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
    assert_eq!(from.take(4).await, events(&changes));
    assert_eq!(old_path.take(4).await, events(&changes));
    assert_eq!(item.take(2).await, events(&[changes[0], changes[2]]));
}

#[tokio::test]
async fn leaving_a_selector_is_a_deletion_with_the_old_content() {
    let server = Server::start().await;
    let labelled = |value: &str, label: &str| json!({"metadata": {"name": "a", "labels": {"t": label}}, "data": {"k": value}});
    let mut lines = Lines::open(&server, &format!("{MAPS}?watch=1&labelSelector=t%3Dx")).await;
    server.post(MAPS, labelled("1", "x")).await;
    for (value, label) in [("2", "y"), ("3", "y"), ("4", "x")] {
        server.put(&format!("{MAPS}/a"), labelled(value, label)).await;
    }
    let last = server.delete(&format!("{MAPS}/a"), Value::Null).await;
    assert_eq!(last.code, 200);
    let want = [("ADDED", "a", "1"), ("DELETED", "a", "1"), ("ADDED", "a", "4"), ("DELETED", "a", "4")];
    assert_eq!(lines.take(4).await, events(&want));
}

#[tokio::test]
async fn versions_that_a_watch_cannot_begin_at() {
    let server = Server::start().await;
    for i in 0..4 {
        server.post(MAPS, map(&format!("m{i}"), "1")).await;
    }
    let now = server.plane.store.revision();
    server.plane.store.compact(now).await.unwrap();
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
async fn a_watch_ends_by_itself_after_a_bookmark() {
    let server = Server::start().await;
    let mut lines =
        Lines::open(&server, &format!("{MAPS}?watch=1&timeoutSeconds=1&allowWatchBookmarks=true")).await;
    let bookmark = lines.next().await.unwrap();
    assert_eq!((&bookmark["type"], &bookmark["object"]["kind"]), (&json!("BOOKMARK"), &json!("ConfigMap")));
    assert_eq!(bookmark["object"]["metadata"].as_object().unwrap().len(), 1);
    assert_eq!(lines.next().await, None);
    let mut silent = Lines::open(&server, &format!("{MAPS}?watch=1&timeoutSeconds=1")).await;
    assert_eq!(silent.next().await, None);
}

#[tokio::test]
async fn stopping_ends_all_watches() {
    let server = Server::start().await;
    let mut lines = Lines::open(&server, &format!("{MAPS}?watch=1")).await;
    server.stop.send(true).unwrap();
    assert_eq!(lines.next().await, None);
}
