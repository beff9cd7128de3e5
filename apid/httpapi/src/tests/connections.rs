//! Watches and lists over real connections: WebSocket, and clients that do not read, over HTTP/1.1 and
//! HTTP/2.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use serving::listener::Listener;
use serving::server::ServerOptions;
use storage::cache::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::super::Api;
use super::{MAPS, Server, map};

/// Serves on a port that the system chooses.
pub(super) async fn serve(server: &Server) -> SocketAddr {
    let listener = Listener::tcp(IpAddr::V4(Ipv4Addr::LOCALHOST), 0).await.unwrap();
    let address = listener.address().unwrap();
    let api = Arc::new(Api::new(Arc::clone(&server.http_state)).unwrap());
    let forever = std::future::pending();
    tokio::spawn(serving::server::serve(listener, None, api, ServerOptions::default(), forever));
    address
}

/// Connects a WebSocket client; returns response headers, status code and connection.
async fn websocket(address: SocketAddr, url: &str, headers: &str) -> (HeaderMap, u16, TcpStream) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET {url} HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n{headers}\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    let text = String::from_utf8(answer).unwrap();
    let mut lines = text.lines();
    let code = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let pairs = lines.filter_map(|line| line.split_once(": "));
    let headers =
        pairs.map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()));
    (headers.collect(), code, stream)
}

/// Reads a server message; returns opcode and payload.
async fn message(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let read_frame = async {
        let (first, second) = (stream.read_u8().await.unwrap(), stream.read_u8().await.unwrap());
        assert_eq!((first & 0xf0, second & 0x80), (0x80, 0), "the frame is final and unmasked");
        let length = match second {
            126 => stream.read_u16().await.unwrap().into(),
            127 => stream.read_u64().await.unwrap(),
            length => u64::from(length),
        };
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        (first & 0x0f, payload)
    };
    tokio::time::timeout(DEADLINE, read_frame).await.unwrap()
}

const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n";

#[tokio::test]
async fn watch_over_websocket_sends_events_and_closes() {
    let server = Server::start().await;
    let address = serve(&server).await;
    server.post(MAPS, map("a", "1")).await;
    // The bearer protocol is a credential; the server selects the next protocol.
    let protocols =
        "Sec-WebSocket-Protocol: base64url.bearer.authorization.example.test.dG9rZW4, one, two\r\n";
    let url = format!("{MAPS}?watch=1&timeoutSeconds=3600");
    let (headers, code, mut json) = websocket(address, &url, &format!("{KEY}{protocols}")).await;
    assert_eq!(
        (code, &headers["sec-websocket-accept"]),
        (101, &"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=".parse().unwrap())
    );
    assert_eq!(headers["sec-websocket-protocol"], "one");
    let accept = format!("{KEY}Accept: application/vnd.svc.protobuf\r\n");
    let (headers, code, mut protobuf) =
        websocket(address, &format!("{url}&resourceVersion=0"), &accept).await;
    assert_eq!((code, headers.get("sec-websocket-protocol")), (101, None));
    server.post(MAPS, map("b", &"x".repeat(70_000))).await;
    for name in ["a", "b"] {
        let (opcode, text) = message(&mut json).await;
        let event: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            (opcode, &event["type"], &event["object"]["metadata"]["name"]),
            (1, &json!("ADDED"), &json!(name))
        );
        let (opcode, bytes) = message(&mut protobuf).await;
        assert_eq!(
            (opcode, &bytes[..7]),
            (2, &b"\x0a\x05ADDED"[..]),
            "a Protobuf event without length prefix"
        );
    }
    // A ping with mask 0, then a close.
    json.write_all(&[0x89, 0x82, 0, 0, 0, 0, b'h', b'i']).await.unwrap();
    assert_eq!(message(&mut json).await, (10, b"hi".to_vec()));
    json.write_all(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8]).await.unwrap();
    assert_eq!(message(&mut json).await, (8, vec![0x03, 0xe8]));
    assert_eq!(json.read(&mut [0]).await.unwrap(), 0, "the server closes the connection");
    server.stop.send(true).unwrap();
    assert_eq!(message(&mut protobuf).await, (8, 1000_u16.to_be_bytes().to_vec()));
}

#[tokio::test]
async fn invalid_websocket_watch_returns_plain_http_response() {
    let server = Server::start().await;
    let address = serve(&server).await;
    server.post(MAPS, map("a", "1")).await;
    for (url, headers, code) in [
        (format!("{MAPS}?watch=1"), "Sec-WebSocket-Version: 13\r\n", 400),
        (format!("{MAPS}?watch=1"), "Sec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13\r\n", 400),
        (
            format!("{MAPS}?watch=1"),
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 8\r\n",
            400,
        ),
        (format!("{MAPS}?watch=1&labelSelector=a+in"), KEY, 400),
        (format!("{MAPS}?watch=1&resourceVersion=words"), KEY, 500),
        (MAPS.to_owned(), KEY, 200),
    ] {
        let (_, got, _) = websocket(address, &url, headers).await;
        assert_eq!(got, code, "{url} {headers}");
    }
    let now = server.api_state.store.revision();
    server.put(&format!("{MAPS}/a"), map("a", "2")).await;
    server.api_state.store.compact(server.api_state.store.revision()).await.unwrap();
    let (_, code, mut expired) =
        websocket(address, &format!("{MAPS}?watch=1&resourceVersion={now}"), KEY).await;
    let event: Value = serde_json::from_slice(&message(&mut expired).await.1).unwrap();
    assert_eq!((code, &event["type"], &event["object"]["code"]), (101, &json!("ERROR"), &json!(410)));
    assert_eq!(message(&mut expired).await.0, 8);
}

/// Maximum time of any operation in a test.
const DEADLINE: Duration = Duration::from_secs(30);
/// Number of objects in a collection.
const OBJECTS: usize = 600;
/// Size of the value of each object in bytes.
const OBJECT_BYTES: usize = 50_000;
/// Maximum number of bytes that wait for a client that does not read.
///
/// The limit covers kernel buffers, the send buffer and one batch of events.
const MAX_BUFFERED_BYTES: usize = 16 << 20;

/// Reads a body to its end; returns its size and its complete events.
async fn read_to_end<B>(body: B) -> (usize, Vec<Value>)
where
    B: http_body::Body<Data = bytes::Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    read_rest(Vec::new(), body).await
}

/// Like [`read_to_end`], after the first frames were read.
async fn read_rest<B>(mut all: Vec<u8>, mut body: B) -> (usize, Vec<Value>)
where
    B: http_body::Body<Data = bytes::Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    while let Some(frame) = tokio::time::timeout(DEADLINE, body.frame()).await.unwrap() {
        all.extend_from_slice(frame.unwrap().data_ref().unwrap());
    }
    let lines = all.split(|b| *b == b'\n').filter(|line| !line.is_empty());
    (all.len(), lines.map(|line| serde_json::from_slice(line).unwrap()).collect())
}

/// Sends a GET with a small receive buffer; returns the response.
async fn get_with_small_buffer(
    address: SocketAddr,
    url: &str,
    accept: &str,
    http2: bool,
) -> Response<Incoming> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let io = TokioIo::new(socket.connect(address).await.unwrap());
    let request = Request::get(format!("http://{address}{url}")).header("accept", accept);
    let request = if http2 { request } else { request.header("host", "localhost") };
    let request = request.body(Empty::<bytes::Bytes>::new()).unwrap();
    let response = if http2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    };
    assert_eq!(response.status(), 200);
    response
}

/// JSON is sent item by item, YAML is encoded as a whole; the request deadline passes before the client
/// reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_list_is_aborted_at_request_timeout() {
    let server = Server::start_with_timeout(Duration::from_secs(3)).await;
    let address = serve(&server).await;
    for i in 0..OBJECTS {
        let created = server.post(MAPS, map(&format!("m{i:04}"), &"x".repeat(OBJECT_BYTES))).await;
        assert_eq!(created.code, 201);
    }
    let mut aborted = 0;
    for accept in ["application/json", "application/yaml"] {
        for http2 in [false, true] {
            let mut body = get_with_small_buffer(address, MAPS, accept, http2).await.into_body();
            let mut bytes = body.frame().await.unwrap().unwrap().into_data().unwrap().len();
            aborted += 1;
            let count = format!(
                "apiserver_request_aborts_total{{verb=\"LIST\",group=\"\",version=\"v1\",resource=\"configmaps\",subresource=\"\",scope=\"namespace\"}} {aborted}\n"
            );
            let counted = async {
                while !String::from_utf8_lossy(&server.get("/metrics").await.body).contains(&count) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            tokio::time::timeout(DEADLINE, counted).await.expect(&count);
            let ended = loop {
                match tokio::time::timeout(DEADLINE, body.frame())
                    .await
                    .expect("end of the body within the deadline")
                {
                    Some(Ok(frame)) => bytes += frame.data_ref().map_or(0, bytes::Bytes::len),
                    Some(Err(error)) => break Err(error),
                    None => break Ok(()),
                }
            };
            assert!(ended.is_err(), "{accept}: the body ended without an error (HTTP/2: {http2})");
            assert!(bytes < MAX_BUFFERED_BYTES, "{accept}: {bytes} bytes were buffered (HTTP/2: {http2})");
        }
    }
    let complete = get_with_small_buffer(address, MAPS, "application/json", false)
        .await
        .into_body()
        .collect()
        .await
        .unwrap();
    let list: Value = serde_json::from_slice(&complete.to_bytes()).unwrap();
    assert_eq!(
        list["items"].as_array().unwrap().len(),
        OBJECTS,
        "a client that reads gets the complete list"
    );
}

/// Waits until the server closes a connection whose client takes single bytes.
///
/// Writes or reads of the client then fail.
async fn wait_until_closed(stream: &mut TcpStream, sent: &[u8]) {
    let closed = async {
        while stream.write_all(sent).await.is_ok() && stream.read_u8().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, closed).await.expect("the server closes the connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_connection_is_closed_at_request_timeout() {
    let server = Server::start_with_timeout(Duration::from_secs(3)).await;
    let address = serve(&server).await;
    let url = format!("{MAPS}?watch=1&timeoutSeconds=3600");
    let (_, code, mut watch) = websocket(address, &url, KEY).await;
    assert_eq!(code, 101);
    for i in 0..OBJECTS {
        let created = server.post(MAPS, map(&format!("m{i:04}"), &"x".repeat(OBJECT_BYTES))).await;
        assert_eq!(created.code, 201);
    }
    let mut list = TcpStream::connect(address).await.unwrap();
    list.write_all(format!("GET {MAPS} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    // An empty ping, and an empty line, which may precede an HTTP request.
    wait_until_closed(&mut watch, &[0x89, 0x80, 0, 0, 0, 0]).await;
    wait_until_closed(&mut list, b"\r\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_watch_client_has_bounded_buffer_and_can_resume() {
    let limits = Limits { ring_bytes: 1 << 20, ..Limits::default() };
    for http2 in [false, true] {
        let server = Server::start_with_cache_limits(limits).await;
        let address = serve(&server).await;
        let url = format!("{MAPS}?watch=1&resourceVersion={}", server.api_state.cache.revision());
        let response = get_with_small_buffer(address, &url, "application/json", http2).await;
        let mut body = response.into_body();
        // The client reads one event before it stops, so that the stream has started.
        server.post(MAPS, map("m0000", "x")).await;
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        for i in 1..OBJECTS {
            server.post(MAPS, map(&format!("m{i:04}"), &"x".repeat(OBJECT_BYTES))).await;
        }
        let (bytes, late) = read_to_end(body).await;
        assert!(bytes < MAX_BUFFERED_BYTES, "{bytes} bytes were buffered (HTTP/2: {http2})");
        let mut events = vec![serde_json::from_slice::<Value>(&first).unwrap()];
        events.extend(late);
        assert!(events.len() < OBJECTS, "all {OBJECTS} events were buffered (HTTP/2: {http2})");
        assert!(
            events.iter().all(|event| event["type"] == "ADDED"),
            "the stream ends without an ERROR event"
        );
        let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
        assert!(
            metrics.contains(r#"apiserver_terminated_watchers_total{resource="configmaps"} 1"#),
            "{metrics}"
        );

        let name = |event: &Value| event["object"]["metadata"]["name"].as_str().unwrap().to_owned();
        let mut names: Vec<String> = events.iter().map(name).collect();
        while names.len() < OBJECTS {
            let last = server.get(&format!("{MAPS}/{}", names.last().unwrap())).await.json();
            let last = last["metadata"]["resourceVersion"].as_str().unwrap();
            let url = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={last}");
            let response = server.open("GET", &url, &[], "".into()).await;
            names.extend(read_to_end(response.into_body()).await.1.iter().map(name));
        }
        let all: Vec<String> = (0..OBJECTS).map(|i| format!("m{i:04}")).collect();
        assert_eq!(names, all, "the watch resumes without a gap");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_list_is_aborted_when_superseded_objects_exceed_limit() {
    let server = Server::start_with_cache_limits(Limits { ring_bytes: 1 << 20, ..Limits::default() }).await;
    let content = |letter: &str| letter.repeat(900_000);
    for i in 0..4 {
        server.post(MAPS, map(&format!("m{i:04}"), &content("x"))).await;
    }
    let mut lists = Vec::new();
    for query in
        ["", "?resourceVersion=0", "?labelSelector=!a", "?limit=3", "?fieldSelector=metadata.name%3Dm0003"]
    {
        let (url, headers) = (format!("{MAPS}{query}"), [("accept-encoding", "gzip")]);
        lists.push(server.open("GET", &url, &headers, "".into()).await.into_body());
    }
    let other_url = MAPS.replace("/a/", "/b/");
    server.post(&other_url, map("m0000", &content("x"))).await;
    let other_list = server.open("GET", &other_url, &[], "".into()).await.into_body();
    for letter in ["y", "z"] {
        for i in 0..4 {
            server.put(&format!("{MAPS}/m{i:04}"), map(&format!("m{i:04}"), &content(letter))).await;
        }
    }
    for list in lists {
        let end = tokio::time::timeout(DEADLINE, list.collect()).await.expect("end of the list");
        assert!(end.is_err(), "a list with superseded objects is aborted");
    }
    assert!(other_list.collect().await.is_ok(), "a list without superseded objects is not aborted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_watch_events_of_slow_client_are_dropped() {
    let server = Server::start_with_cache_limits(Limits { ring_bytes: 1 << 20, ..Limits::default() }).await;
    for i in 0..OBJECTS {
        server.post(MAPS, map(&format!("m{i:04}"), &"x".repeat(OBJECT_BYTES))).await;
    }
    let response = server.open("GET", &format!("{MAPS}?watch=1"), &[], "".into()).await;
    let mut body = response.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    for i in 0..100 {
        server.put(&format!("{MAPS}/m{i:04}"), map(&format!("m{i:04}"), &"y".repeat(OBJECT_BYTES))).await;
    }
    let (bytes, events) = read_rest(first.to_vec(), body).await;
    assert!(bytes < 2 << 20 && events.len() < OBJECTS, "{bytes} bytes were buffered");
}
