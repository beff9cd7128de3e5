//! Limits of requests and users: large work off the I/O threads, in-flight limits, slow bodies, unsent
//! responses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use apimachinery::object::Object;
use flowcontrol::Configuration;
use futures_util::future::join_all;
use http_body_util::BodyExt as _;
use serde_json::json;
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions};
use storage::Op;
use storage::cache::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::super::{Api, RequestBody};
use super::{MAPS, Server, map};

/// Bytes of text in a large object: most of the size limit of a ConfigMap.
const LARGE: usize = 900_000;

/// Counts how often the only thread of the runtime is free while a future runs.
async fn count_idle_polls<F: Future>(work: F) -> (F::Output, u64) {
    let (is_done, idle_polls) = (AtomicBool::new(false), AtomicU64::new(0));
    let count = async {
        while !is_done.load(Ordering::Relaxed) {
            idle_polls.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
    };
    let work = async {
        let output = work.await;
        is_done.store(true, Ordering::Relaxed);
        output
    };
    let (output, ()) = tokio::join!(work, count);
    (output, idle_polls.into_inner())
}

#[tokio::test]
async fn large_body_leaves_the_io_thread_free() {
    let server = Server::start().await;
    let mut labels = serde_json::Map::new();
    for i in 0..20_000 {
        labels.insert(format!("key-{i}"), "not a label value!".into());
    }
    let body = json!({"metadata": {"name": "large", "labels": labels}});
    let (reply, idle_polls) = count_idle_polls(server.post(MAPS, body)).await;
    assert_eq!(reply.code, 422);
    assert!(idle_polls > 1_000, "the I/O thread was free {idle_polls} times");
}

#[tokio::test]
async fn small_part_of_large_collection_is_listed_on_the_io_thread() {
    let server = Server::start().await;
    for i in 0..1_500 {
        assert_eq!(server.post(MAPS, map(&format!("m{i}"), "v")).await.code, 201);
    }
    let other = "/api/v1/namespaces/b/configmaps";
    assert_eq!(server.post(other, map("m", "v")).await.code, 201);
    let selector: Vec<String> = (0..100).map(|i| format!("!key-{i}")).collect();
    let selector = format!("{MAPS}?limit=500&labelSelector={}", selector.join(","));
    for (url, count, is_inline) in [
        (MAPS, 1_500, false),
        (&format!("{MAPS}?limit=500"), 500, true),
        (&format!("{MAPS}?limit=500&resourceVersion=0"), 1_500, false),
        (&format!("{MAPS}?fieldSelector=metadata.name=m7"), 1, true),
        (other, 1, true),
        (&selector, 500, false),
    ] {
        let before = server.api.pool().started_tasks();
        let list = server.get(url).await.json();
        assert_eq!(list["items"].as_array().unwrap().len(), count, "{url}");
        assert_eq!(server.api.pool().started_tasks() == before, is_inline, "{url}");
    }
}

#[tokio::test]
async fn long_query_is_parsed_on_the_work_pool() {
    let server = Server::start().await;
    let values: Vec<String> = (0..5_000).map(|i| i.to_string()).collect();
    for (url, is_inline) in [
        (format!("{MAPS}?labelSelector=number+in+({})", values[..500].join(",")), true),
        (format!("{MAPS}?labelSelector=number+in+({})", values.join(",")), false),
    ] {
        let before = server.api.pool().started_tasks();
        assert_eq!(server.get(&url).await.code, 200);
        assert_eq!(server.api.pool().started_tasks() == before, is_inline, "{} bytes", url.len());
    }
}

#[tokio::test]
async fn large_list_leaves_the_io_thread_free() {
    let server = Server::start().await;
    for i in 0..1_500 {
        assert_eq!(server.post(MAPS, map(&format!("m{i}"), "v")).await.code, 201);
    }
    let accept = [("accept", "application/json;as=Table;v=v1;g=meta.example.test")];
    let (reply, idle_polls) = count_idle_polls(server.send("GET", MAPS, &accept, "")).await;
    assert_eq!((reply.code, reply.json()["rows"].as_array().unwrap().len()), (200, 1_500));
    assert!(idle_polls > 1_000, "the I/O thread was free {idle_polls} times");
}

async fn serve(server: &Server) -> SocketAddr {
    let listener = Listener::tcp(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).await.unwrap();
    let address = listener.address().unwrap();
    let api = Arc::new(Api::new(Arc::clone(&server.http_state)).unwrap());
    let forever = std::future::pending();
    tokio::spawn(serving::server::serve(listener, None, api, ServerOptions::default(), forever));
    address
}

/// Sends the head of a create request and the first byte of its body.
async fn begin_create(address: SocketAddr, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {MAPS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Reads the status code of a response.
async fn code(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    std::str::from_utf8(&line).unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn slow_bodies_take_no_in_flight_permit() {
    let server = Server::start_with_limits(0, 2).await;
    let address = serve(&server).await;
    let mut slow = Vec::new();
    for _ in 0..8 {
        slow.push(begin_create(address, 1_000).await);
    }
    let body = map("quick", "v").to_string();
    let mut quick = begin_create(address, body.len()).await;
    quick.write_all(&body.as_bytes()[1..]).await.unwrap();
    assert_eq!(code(&mut quick).await, 201);
}

/// An object of flow control with a name, a uid and a specification.
fn flow_object(name: &str, spec: serde_json::Value) -> Object {
    Object::from_value(json!({"metadata": {"name": name, "uid": format!("{name}-uid")}, "spec": spec}))
        .unwrap()
}

#[tokio::test]
async fn request_above_limit_of_its_level_gets_429_with_headers_of_its_schema() {
    let server = Server::start_with_fairness().await;
    let limited = json!({"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}});
    let level = flow_object("level", json!({"type": "Limited", "limited": limited}));
    let rule = json!({
        "subjects": [{"kind": "User", "user": {"name": "*"}}],
        "resourceRules": [{"verbs": ["list"], "apiGroups": [""], "resources": ["configmaps"], "namespaces": ["a"]}],
    });
    let spec =
        json!({"priorityLevelConfiguration": {"name": "level"}, "matchingPrecedence": 1, "rules": [rule]});
    let schema = flow_object("a-schema", spec);
    server.http_state.flow_control().unwrap().configure(&Configuration::from_objects([&schema], [&level]));
    // The first list waits for a future revision and holds the only seat.
    let slow = format!("{MAPS}?resourceVersion=99999999&timeout=1s");
    let (slow, rejected) = tokio::join!(server.get(&slow), server.get(MAPS));
    assert_eq!((slow.code, slow.header("x-pf-flowschema-uid")), (504, "a-schema-uid"));
    assert_eq!((rejected.code, &*rejected.body), (429, &b"Too many requests, please try again later.\n"[..]));
    assert_eq!(rejected.header("retry-after"), "1");
    assert_eq!(rejected.header("x-pf-flowschema-uid"), "a-schema-uid");
    assert_eq!(rejected.header("x-pf-prioritylevel-uid"), "level-uid");
    assert_eq!(server.get(MAPS).await.code, 200, "the seat is free again");
}

#[tokio::test]
async fn heavy_requests_that_wait_for_a_slot_hold_no_seat() {
    let server = Server::start_with_fairness().await;
    assert_eq!(server.post(MAPS, map("large", &"x".repeat(100_000))).await.code, 201);
    assert_eq!(server.post(MAPS, map("small", "v")).await.code, 201);
    let limited = |shares: u32| {
        let reject = json!({"type": "Reject"});
        json!({"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares, "borrowingLimitPercent": 0, "limitResponse": reject,
        }})
    };
    // Five of 600 seats.
    let levels = [flow_object("level", limited(5)), flow_object("others", limited(595))];
    let rule = json!({
        "subjects": [{"kind": "User", "user": {"name": "*"}}],
        "resourceRules": [{"verbs": ["get"], "apiGroups": [""], "resources": ["configmaps"], "namespaces": ["a"]}],
    });
    let spec =
        json!({"priorityLevelConfiguration": {"name": "level"}, "matchingPrecedence": 1, "rules": [rule]});
    let schema = flow_object("a-schema", spec);
    server.http_state.flow_control().unwrap().configure(&Configuration::from_objects([&schema], &levels));
    // A large object that is not sent as it is stored is heavy; these requests wait for a future version.
    let heavy = format!("{MAPS}/large?pretty=true&resourceVersion=99999999&timeout=1s");
    let heavy = join_all((0..12).map(|_| server.get(&heavy)));
    let small = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        server.get(&format!("{MAPS}/small")).await.code
    };
    let (heavy, small) = tokio::join!(heavy, small);
    assert_eq!(small, 200, "four heavy requests have a slot and a seat, the others neither");
    assert!(heavy.iter().all(|reply| reply.code == 504), "{heavy:?}");
}

#[tokio::test]
async fn requests_that_wait_for_documents_hold_no_seat() {
    let server = Server::start_with_fairness().await;
    let limited = json!({
        "nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"},
    });
    let level = flow_object("level", json!({"type": "Limited", "limited": limited}));
    let rule = json!({
        "subjects": [{"kind": "User", "user": {"name": "*"}}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    });
    let spec =
        json!({"priorityLevelConfiguration": {"name": "level"}, "matchingPrecedence": 1, "rules": [rule]});
    let schema = flow_object("schema", spec);
    server.http_state.flow_control().unwrap().configure(&Configuration::from_objects([&schema], [&level]));
    // Another build is under way.
    let build = Arc::clone(&server.http_state.openapi_builds).lock_owned().await;
    let version = async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        let version = server.get("/version").await;
        drop(build);
        version
    };
    let (document, version) = tokio::join!(server.get("/openapi/v3"), version);
    assert_eq!((document.code, version.code), (200, 200), "the only seat of the level was free");
    assert_eq!(version.header("x-pf-flowschema-uid"), "schema-uid");
}

#[tokio::test]
async fn slow_bodies_above_user_limit_return_429() {
    let server = Server::start().await;
    let address = serve(&server).await;
    let mut slow = Vec::new();
    for _ in 0..4 {
        slow.push(begin_create(address, 3 << 20).await);
    }
    // The limit of a user is two slow bodies of 3 MiB.
    let (mut rejected, mut kept) = (0, 0);
    for stream in &mut slow {
        let answered = tokio::time::timeout(std::time::Duration::from_secs(3), code(stream)).await;
        match answered {
            Ok(code) => {
                assert_eq!(code, 429);
                rejected += 1;
            }
            Err(_) => kept += 1,
        }
    }
    assert_eq!((rejected, kept), (2, 2));
}

#[tokio::test]
async fn unsent_responses_above_limit_return_429_until_read() {
    let server = Server::start().await;
    assert_eq!(server.post(MAPS, map("large", &"x".repeat(900_000))).await.code, 201);
    let connection = Arc::new(ConnectionInfo::default());
    let get = || async {
        let (head, ()) = http::Request::get(format!("{MAPS}?pretty=true")).body(()).unwrap().into_parts();
        server
            .api
            .handle_request(head, RequestBody::Whole(bytes::Bytes::new()), Arc::clone(&connection))
            .await
    };
    let mut unread = Vec::new();
    let rejected = loop {
        let response = get().await;
        if response.status() != 200 {
            break response;
        }
        unread.push(response);
        assert!(unread.len() < 100, "unsent responses of a connection are not limited");
    };
    assert_eq!(rejected.status(), 429);
    assert_eq!(rejected.headers()["retry-after"], "1");
    let body = rejected.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap()["reason"], "TooManyRequests");
    drop(unread);
    assert_eq!(get().await.into_body().collect().await.unwrap().to_bytes().len() / 900_000, 1);
    assert_eq!(connection.unsent_bytes.load(Ordering::Relaxed), 0);
}

/// Returns the versions of a ConfigMap after a create and `updates` updates with large contents.
async fn versions_of_large_map(server: &Server, updates: usize) -> Vec<String> {
    let mut versions = Vec::new();
    for i in 0..=updates {
        let content = format!("{i}{}", "x".repeat(LARGE));
        let response = match i {
            0 => server.post(MAPS, map("large", &content)).await,
            _ => server.put(&format!("{MAPS}/large"), map("large", &content)).await,
        };
        versions.push(response.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
    }
    versions
}

/// Returns the first frame of a response body if it arrives within a second. The frame is unsent until it is dropped.
async fn first_frame(
    response: &mut http::Response<serving::body::Body>,
) -> Option<http_body::Frame<bytes::Bytes>> {
    let frame = tokio::time::timeout(std::time::Duration::from_secs(1), response.body_mut().frame());
    frame.await.ok().flatten().and_then(Result::ok)
}

/// The least and the largest number of watches of one user that may hold a different large event each.
///
/// A watch holds the objects before and after its change, and the encoded event.
const HOLDERS: std::ops::RangeInclusive<usize> = (32 << 20) / (3 * LARGE)..=(32 << 20) / LARGE + 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_watches_hold_large_events_up_to_user_limit() {
    // In the ring of 1 MiB only the last event remains, so each other watch reads its own event from the history.
    for ring_bytes in [1 << 20, 1 << 30] {
        let limits = Limits { ring_bytes, ..Limits::default() };
        let server = Server::start_with_cache_limits(limits).await;
        let versions = versions_of_large_map(&server, 60).await;
        let connection = Arc::new(ConnectionInfo::default());
        let mut watches = Vec::new();
        for version in &versions[..60] {
            let url = format!("{MAPS}?watch=1&resourceVersion={version}");
            watches.push(get_unread(&server, &url, &connection).await);
        }
        let admitted_count = watches.iter().filter(|watch| watch.status() == 200).count();
        assert_eq!(admitted_count, 60, "an open watch holds no event before its body is polled");
        let frames = join_all(watches.iter_mut().map(first_frame)).await;
        let holder_count = frames.iter().flatten().count();
        assert!(HOLDERS.contains(&holder_count), "{holder_count} watches hold an event (ring: {ring_bytes})");
        watches.truncate(frames.iter().position(Option::is_none).unwrap() + 1);
        let mut waiting_watch = watches.pop().unwrap();
        drop((watches, frames));
        let frame = first_frame(&mut waiting_watch).await;
        assert!(frame.is_some(), "a waiting watch continues after other watches are closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_watch_of_user_above_limit_ends_at_its_timeout() {
    let server = Server::start().await;
    let versions = versions_of_large_map(&server, 60).await;
    let connection = Arc::new(ConnectionInfo::default());
    let url = format!("{MAPS}?watch=1&resourceVersion={}", versions[0]);
    let mut waiting_watch = get_unread(&server, &format!("{url}&timeoutSeconds=3"), &connection).await;
    let mut holders = Vec::new();
    for version in &versions[..60] {
        let url = format!("{MAPS}?watch=1&resourceVersion={version}");
        holders.push(get_unread(&server, &url, &connection).await);
    }
    let _held_frames = join_all(holders.iter_mut().map(first_frame)).await;
    let end = tokio::time::timeout(std::time::Duration::from_secs(6), waiting_watch.body_mut().frame()).await;
    assert!(end.expect("the watch ends before the maximum of a wait").is_none());
}

/// Replaces the label `n` of a ConfigMap in the store: a write of no user.
async fn relabel(server: &Server, name: &str, n: usize) {
    let key = server.api_state.kinds.registry().find("", "v1", "configmaps").unwrap().key("a", name);
    let row = server.api_state.store.get(&key, None).await.unwrap().unwrap();
    let mut object = kinds::entry::decode(&row.value, row.revision).unwrap();
    object.set_meta("labels", json!({"n": n.to_string()}));
    let value = kinds::entry::encode(&object);
    server.api_state.store.commit(&key, Op::Update(value, row.revision)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_watches_take_different_large_events_up_to_user_limit() {
    let server = Server::start().await;
    let mut object = map("large", &"x".repeat(LARGE));
    object["metadata"]["labels"] = json!({"n": "0"});
    assert_eq!(server.post(MAPS, object).await.code, 201);
    let connection = Arc::new(ConnectionInfo::default());
    let mut tasks = Vec::new();
    let version = server.api_state.cache.revision();
    for n in 1..=60 {
        let url = format!("{MAPS}?watch=1&resourceVersion={version}&labelSelector=n%3D{n}");
        let mut watch = get_unread(&server, &url, &connection).await;
        tasks.push(tokio::spawn(async move { (watch.body_mut().frame().await, watch) }));
    }
    for n in 1..=60 {
        relabel(&server, "large", n).await;
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // The watches beyond the limit take no event while the others hold theirs.
    let holders_are_stable = async {
        let mut count = 0;
        loop {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            let finished = tasks.iter().filter(|task| task.is_finished()).count();
            if finished == count && HOLDERS.contains(&finished) {
                return;
            }
            count = finished;
        }
    };
    let deadline = std::time::Duration::from_secs(10);
    let _ = tokio::time::timeout(deadline, holders_are_stable).await;
    let mut holders = Vec::new();
    for task in tasks {
        match task.is_finished() {
            true => holders.push(task.await.unwrap().0.expect("a frame").expect("an event")),
            false => task.abort(),
        }
    }
    assert!(HOLDERS.contains(&holders.len()), "{} watches hold an event", holders.len());
}

/// Starts a GET and leaves the response unread.
async fn get_unread(
    server: &Server,
    url: &str,
    connection: &Arc<ConnectionInfo>,
) -> http::Response<serving::body::Body> {
    let (head, ()) = http::Request::get(url).body(()).unwrap().into_parts();
    server.api.handle_request(head, RequestBody::Whole(bytes::Bytes::new()), Arc::clone(connection)).await
}

/// Creates large objects, updates all of them, and returns the URL of the list before the updates.
async fn list_before_updates(server: &Server, objects: usize) -> String {
    let content = "x".repeat(LARGE);
    for i in 0..objects {
        assert_eq!(server.post(MAPS, map(&format!("m{i:02}"), &content)).await.code, 201);
    }
    let list = server.get(&format!("{MAPS}?limit=1")).await.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    for i in 0..objects {
        let name = format!("m{i:02}");
        assert_eq!(server.put(&format!("{MAPS}/{name}"), map(&name, "new")).await.code, 200);
    }
    format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact")
}

#[tokio::test]
async fn superseded_objects_of_list_count_as_unsent_until_read() {
    let server = Server::start().await;
    let old_list = list_before_updates(&server, 4).await;
    let connection = Arc::new(ConnectionInfo::default());
    let unsent = || connection.unsent_bytes.load(Ordering::Relaxed);
    let newest = get_unread(&server, MAPS, &connection).await;
    assert!(unsent() < LARGE, "{} bytes: the watch cache owns current objects", unsent());
    drop(newest);
    let old = get_unread(&server, &old_list, &connection).await;
    assert_eq!(old.status(), 200);
    assert!((4 * LARGE..5 * LARGE).contains(&unsent()), "{} bytes", unsent());
    let body = old.into_body().collect().await.unwrap().to_bytes();
    assert_eq!((body.len() / LARGE, unsent()), (4, 0));
}

#[tokio::test]
async fn list_of_superseded_objects_above_user_limit_returns_429() {
    let server = Server::start().await;
    let old_list = list_before_updates(&server, 40).await;
    assert_eq!(server.get(&format!("{old_list}&limit=5")).await.code, 200);
    let rejected = server.get(&old_list).await;
    assert_eq!((rejected.code, rejected.header("retry-after")), (429, "1"));
    assert_eq!(server.get(&format!("{old_list}&limit=5")).await.code, 200, "the reservation is released");
}

#[tokio::test]
async fn list_at_old_revision_runs_on_the_work_pool() {
    let server = Server::start().await;
    let old_list = list_before_updates(&server, 2).await;
    let first = server.get(&format!("{old_list}&limit=1")).await.json();
    let token = first["metadata"]["continue"].as_str().unwrap();
    for (url, is_inline) in [
        (old_list.clone(), false),
        (old_list.replace("&resourceVersionMatch=Exact", "&limit=1"), false),
        (format!("{MAPS}?limit=1&continue={token}"), false),
        (format!("{old_list}&labelSelector=!a"), false),
        (old_list.replace("=Exact", "=NotOlderThan"), true),
        (format!("{MAPS}?limit=1"), true),
    ] {
        let before = server.api.pool().started_tasks();
        assert_eq!(server.get(&url).await.code, 200, "{url}");
        assert_eq!(server.api.pool().started_tasks() == before, is_inline, "{url}");
    }
}

#[tokio::test]
async fn unread_versions_of_large_object_above_user_limit_return_429() {
    let server = Server::start().await;
    let url = format!("{MAPS}/large");
    assert_eq!(server.post(MAPS, map("large", "v")).await.code, 201);
    let connection = Arc::new(ConnectionInfo::default());
    let mut unread = Vec::new();
    let code = loop {
        let content = format!("{}{}", unread.len(), "x".repeat(LARGE));
        let code = server.put(&url, map("large", &content)).await.code;
        if code != 200 {
            break code;
        }
        unread.push(get_unread(&server, &url, &connection).await);
        assert!(unread.len() < 100, "the versions of an object in unread responses are not limited");
    };
    assert_eq!((code, unread.len()), (429, (32 << 20) / LARGE + 1));
    unread.truncate(10);
    assert_eq!(server.get(&url).await.code, 200);
}

#[tokio::test]
async fn unread_responses_with_one_version_of_large_object_are_not_limited() {
    let server = Server::start().await;
    let url = format!("{MAPS}/large");
    assert_eq!(server.post(MAPS, map("large", &"x".repeat(LARGE))).await.code, 201);
    let connection = Arc::new(ConnectionInfo::default());
    let mut unread = Vec::new();
    for _ in 0..100 {
        unread.push(get_unread(&server, &url, &connection).await);
    }
    assert!(unread.iter().all(|response| response.status() == 200));
}

#[tokio::test]
async fn flood_of_waiting_lists_above_in_flight_limit_returns_429_with_retry_after() {
    let server = Server::start_with_limits(1, 0).await;
    let api = &server.api;
    let connection = Arc::new(ConnectionInfo::default());
    let list = async |path: String| {
        let request = http::Request::get(path).body(()).unwrap();
        let body = RequestBody::Whole(bytes::Bytes::new());
        api.handle_request(request.into_parts().0, body, Arc::clone(&connection)).await
    };
    // Each list waits for a future revision, so that all lists run at the same time.
    let lists = join_all((0..60).map(|_| list(format!("{MAPS}?resourceVersion=99999999&timeout=1s"))));
    let refused: Vec<_> = lists.await.into_iter().filter(|response| response.status() == 429).collect();
    assert_eq!(refused.len(), 59, "the limit is one list");
    for response in refused {
        assert_eq!(response.headers()["retry-after"], "1");
    }
    // Lists that do not wait run one after the other on the I/O thread, so none of them exceeds the limit.
    let lists = join_all((0..60).map(|_| list(MAPS.to_owned()))).await;
    assert!(lists.iter().all(|response| response.status() == 200));
}
