//! Streams of containers below kubectl: refused upgrades, WebSocket v4 and v5, slow readers, shutdown of a node.

use std::time::Duration;

use serde_json::{Value, json};
use tests::harness::{Options, eventually, tls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::cluster_node::ClusterNode;

/// Streams at once in the test of memory.
pub(super) const STREAMS: usize = 100;
/// Maximum growth of the memory of apid with [`STREAMS`] streams, in kB.
pub(super) const MAX_GROWTH_KB: u64 = 16 * 1024;

/// A connection to apid with hand-made HTTP.
struct Connection(TlsStream<TcpStream>);

impl Connection {
    async fn open(node: &ClusterNode) -> Self {
        let port = node.plane.admin().port();
        let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("apid listens");
        let name = "localhost".try_into().expect("a name");
        Connection(tls(&["http/1.1"]).connect(name, stream).await.expect("TLS"))
    }

    /// Sends a request head of the administrator. `headers` ends each line with CRLF.
    async fn request(&mut self, method: &str, path: &str, headers: &str) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: apid\r\nAuthorization: Bearer admin-token\r\n{headers}\r\n"
        );
        self.0.write_all(head.as_bytes()).await.expect("apid reads");
    }

    /// Reads a response head.
    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.expect("a response head"));
        }
        String::from_utf8(head).expect("text")
    }

    /// Reads a response with its body.
    async fn response(&mut self) -> (String, String) {
        let head = self.head().await;
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(": ")?;
            name.eq_ignore_ascii_case("content-length").then(|| value.parse().ok())?
        });
        let mut body = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut body).await.expect("a body");
        (head, String::from_utf8_lossy(&body).into_owned())
    }

    /// Reads a WebSocket frame. Returns its first byte and payload.
    async fn frame(&mut self) -> (u8, Vec<u8>) {
        let first = self.0.read_u8().await.expect("a frame");
        let length = match self.0.read_u8().await.expect("a length") {
            126 => u64::from(self.0.read_u16().await.expect("a length")),
            127 => self.0.read_u64().await.expect("a length"),
            short => u64::from(short),
        };
        let mut payload = vec![0; usize::try_from(length).expect("a size")];
        self.0.read_exact(&mut payload).await.expect("a payload");
        (first, payload)
    }

    /// Sends a masked binary message.
    async fn send(&mut self, payload: &[u8]) {
        let length = u8::try_from(payload.len()).expect("a short message");
        let frame = [&[0x82, 0x80 | length, 0, 0, 0, 0][..], payload].concat();
        self.0.write_all(&frame).await.expect("apid reads");
    }
}

const EXEC: &str = "/api/v1/namespaces/default/pods/q/exec";
const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n";

fn websocket(protocol: &str) -> String {
    format!(
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: {protocol}\r\n"
    )
}

/// CVE-2018-1002105: after a refused upgrade, requests of the client must not reach the node as requests of the server.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_upgrade_leaves_no_connection_to_node() {
    let node = ClusterNode::start(Options::kubernetes()).await;
    for (code, path, headers, expected) in [
        (200, format!("{EXEC}?command=ls&stdout=1"), SPDY.to_owned(), 500),
        (302, format!("{EXEC}?command=ls&stdout=1"), SPDY.to_owned(), 500),
        (403, format!("{EXEC}?command=ls&stdout=1"), SPDY.to_owned(), 403),
        (403, format!("{EXEC}?command=ls&stdout=1"), websocket("v4.channel.k8s.io"), 403),
        (
            403,
            "/api/v1/namespaces/default/pods/q/portforward".to_owned(),
            websocket("SPDY/3.1+portforward.k8s.io"),
            403,
        ),
        (
            200,
            "/api/v1/namespaces/default/pods/q/portforward".to_owned(),
            websocket("SPDY/3.1+portforward.k8s.io"),
            500,
        ),
    ] {
        node.kubelet.refuse_upgrades(Some(code));
        let mut connection = Connection::open(&node).await;
        let method = if headers.contains("SPDY/3.1\r") { "POST" } else { "GET" };
        connection.request(method, &path, &headers).await;
        // The attack: a request for the node, right behind the upgrade.
        connection.request("GET", "/containerLogs/default/q/c?attack", "").await;
        let (head, body) = connection.response().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {expected} ")), "{headers}{head}{body}");
        let mut rest = Vec::new();
        let wait = tokio::time::timeout(Duration::from_secs(2), connection.0.read_to_end(&mut rest)).await;
        // Either the connection has ended, or apid has answered the second request itself.
        let rest = String::from_utf8_lossy(&rest).into_owned();
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 404 "), "{wait:?} {rest}");
    }
    node.kubelet.refuse_upgrades(None);
    let requests = node.kubelet.requests();
    assert!(!requests.iter().any(|request| request.contains("attack")), "{requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_need_upgrade_and_node_that_answers() {
    let node = ClusterNode::start(Options::kubernetes()).await;
    let admin = node.plane.admin();
    let refused = admin.post(&format!("{EXEC}?command=ls&stdout=1"), &Value::Null).await;
    assert_eq!(refused.expect(400)["message"], "Upgrade request required");
    let elsewhere = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    admin.patch("/api/v1/nodes/n1/status", "application/merge-patch+json", &elsewhere).await.expect(200);
    let log = admin.get("/api/v1/namespaces/default/pods/q/log").await.expect(500);
    assert_eq!(
        log["message"],
        "Get \"https://127.0.0.1:1/containerLogs/default/q/c\": dial tcp 127.0.0.1:1: connect: connection refused"
    );
    let mut connection = Connection::open(&node).await;
    connection.request("POST", &format!("{EXEC}?command=ls&stdout=1"), SPDY).await;
    let (head, body) = connection.response().await;
    assert!(head.starts_with("HTTP/1.1 500 "), "{head}");
    let expected = "error dialing backend: dial tcp 127.0.0.1:1: connect: connection refused";
    assert!(body.contains(expected), "{body}");
    // As in kube-apiserver, a translated command reports the failure on its error channel.
    let mut connection = Connection::open(&node).await;
    connection.request("GET", &format!("{EXEC}?command=ls&stdout=1"), &websocket("v5.channel.k8s.io")).await;
    let head = connection.head().await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("v5.channel.k8s.io"), "{head}");
    assert_eq!(connection.frame().await, (0x82, vec![1]));
    let (_, status) = connection.frame().await;
    assert!(String::from_utf8_lossy(&status).contains("connection refused"), "{status:?}");
    assert_eq!(connection.frame().await.0, 0x88);
}

#[tokio::test(flavor = "multi_thread")]
async fn websocket_commands_work_with_both_versions_of_channels() {
    let node = ClusterNode::start(Options::kubernetes()).await;
    for (version, protocol) in [("v4", "websocket"), ("v5", "SPDY/3.1")] {
        let mut connection = Connection::open(&node).await;
        let path = format!("{EXEC}?command=head&command=-n1&stdin=1&stdout=1&stderr=1");
        connection.request("GET", &path, &websocket(&format!("{version}.channel.k8s.io"))).await;
        let head = connection.head().await;
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains(version), "{head}");
        connection.send(b"\x00a line\nand more").await;
        let (mut stdout, mut status) = (Vec::new(), Vec::new());
        while let (0x82, payload) = connection.frame().await {
            match payload.split_first() {
                Some((1, data)) => stdout.extend_from_slice(data),
                Some((3, data)) => status.extend_from_slice(data),
                _ => {}
            }
        }
        assert_eq!(stdout, b"a line\n");
        assert!(String::from_utf8_lossy(&status).contains("Success"), "{version}: {status:?}");
        let last = node.kubelet.requests().pop().unwrap_or_default();
        assert!(last.ends_with(protocol) && last.contains("command=head&command=-n1"), "{last}");
    }
}

/// Clients that start a command with endless output and read none of it.
#[tokio::test(flavor = "multi_thread")]
async fn hundred_streams_with_slow_readers_need_little_memory() {
    let node = ClusterNode::start(Options::kubernetes()).await;
    let endless = format!("{EXEC}?command=cat&command=/dev/zero&stdout=1");
    // The first streams fill caches.
    let mut connections = Vec::new();
    for kind in 0..4 {
        connections.push(slow_stream(&node, kind, &endless).await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = resident_kb(node.plane.pid());
    for number in 0..STREAMS {
        connections.push(slow_stream(&node, number % 3, &endless).await);
    }
    // All buffers of the connections fill.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let after = resident_kb(node.plane.pid());
    let growth = after.saturating_sub(before);
    println!("{STREAMS} slow streams: {growth} kB");
    assert!(growth < MAX_GROWTH_KB, "memory grew by {growth} kB from {before} kB");
    let logs = node.kubelet.requests().len();
    assert!(logs > STREAMS, "{logs}");
    // A stream still delivers after the wait, and ends with its client.
    let (first, payload) = connections[0].frame().await;
    assert_eq!((first, payload[0]), (0x82, 1));
    drop(connections);
    eventually("long-running requests end", || async {
        let metrics = node.plane.admin().get("/metrics").await.text();
        let running = metrics
            .lines()
            .filter(|line| line.starts_with("apiserver_longrunning_requests") && line.contains("exec"));
        running.clone().all(|line| line.ends_with(" 0")).then_some(())
    })
    .await;
}

/// Opens a stream: a command over WebSocket that apid translates, one that the kubelet serves, or one over SPDY.
async fn slow_stream(node: &ClusterNode, kind: usize, endless: &str) -> Connection {
    let mut connection = Connection::open(node).await;
    match kind {
        0 | 3 => connection.request("GET", endless, &websocket("v5.channel.k8s.io")).await,
        1 => connection.request("GET", endless, &websocket("v4.channel.k8s.io")).await,
        _ => connection.request("POST", endless, SPDY).await,
    }
    let head = connection.head().await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    if kind == 2 {
        // SYN_STREAM of the error stream and of standard output.
        let mut headers = forwarding::spdy::headers::HeaderEncoder::default();
        for (stream, purpose) in [(1, "error"), (3, "stdout")] {
            let block = headers.encode(&[("streamtype", purpose)]);
            let frame = forwarding::spdy::frame::syn_stream(stream, &block);
            connection.0.write_all(&frame).await.expect("apid reads");
        }
    }
    connection
}

/// Resident memory of a process in kB.
pub(super) fn resident_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).expect("a size")
}
