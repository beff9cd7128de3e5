//! Tests of the limits for hostile connections: unwritten responses, handshakes, connections without a
//! request.

use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use apimachinery::clock::{Clock, SystemClock};
use futures_util::{FutureExt as _, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper_util::rt::TokioExecutor;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::tests::{echo, post, raw, start, text};
use super::*;
use crate::certs::ensure_serving_pair;
use crate::tls::TlsFiles;

/// Encodes an HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the first bytes of an HTTP/2 client with a stream window of `window` bytes and a large connection
/// window.
fn preface(window: u32) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let mut settings = vec![0, 4];
    settings.extend(window.to_be_bytes());
    bytes.extend(frame(4, 0, 0, &settings));
    bytes.extend(frame(8, 0, 0, &(1_u32 << 30).to_be_bytes()));
    bytes
}

/// Encodes the HEADERS frame of `GET /` with the authority `x`.
fn get(stream: u32) -> Vec<u8> {
    frame(1, 0x5, stream, &[0x82, 0x84, 0x86, 0x01, 1, b'x'])
}

/// Number of bytes of the response chunks that exist, that is, that hyper has not dropped.
#[derive(Clone, Default)]
struct LiveBytes(Arc<AtomicUsize>);

struct Chunk(Vec<u8>, LiveBytes);

impl AsRef<[u8]> for Chunk {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.1.0.fetch_sub(self.0.len(), Ordering::SeqCst);
    }
}

impl LiveBytes {
    fn chunk(&self) -> Bytes {
        let bytes = vec![b'x'; 32 * 1024];
        self.0.fetch_add(bytes.len(), Ordering::SeqCst);
        Bytes::from_owner(Chunk(bytes, self.clone()))
    }

    /// Waits until the number does not change for 200 ms, and returns it.
    async fn wait_until_stable(&self) -> usize {
        let mut last = usize::MAX;
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let now = self.0.load(Ordering::SeqCst);
            if now == last {
                return now;
            }
            last = now;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_http2_connections_hold_limited_response_bytes() {
    const CONNECTIONS: usize = 4;
    for window in [0, i32::MAX.cast_unsigned()] {
        let live_bytes = LiveBytes::default();
        let counter = live_bytes.clone();
        let handler = move |_: Request<Incoming>, _: Arc<ConnectionInfo>| {
            let counter = counter.clone();
            let endless = stream::repeat_with(move || Ok::<_, Infallible>(Frame::data(counter.chunk())));
            async move { Response::new(Body::stream(StreamBody::new(endless))) }
        };
        let server = start(handler, None, ServerOptions::default()).await;
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut client = TcpStream::connect(server.address).await.unwrap();
            let mut bytes = preface(window);
            (0..250).for_each(|i| bytes.extend(get(2 * i + 1)));
            client.write_all(&bytes).await.unwrap();
            clients.push(client);
        }
        let held = live_bytes.wait_until_stable().await;
        assert!(held > 0, "the responses have begun");
        assert!(held <= CONNECTIONS * 4 * 1024 * 1024, "{held} bytes are held (window {window})");
        drop(clients);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_stream_leaves_other_streams_of_its_connection_running() {
    let handler = |request: Request<Incoming>, _: Arc<ConnectionInfo>| async move {
        let size = if request.uri().path() == "/large" { 8 << 20 } else { 100_000 };
        Response::new(Body::from(vec![b'x'; size]))
    };
    let server = start(handler, None, ServerOptions::default()).await;
    let io = TokioIo::new(TcpStream::connect(server.address).await.unwrap());
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    client.initial_connection_window_size(1 << 30).initial_stream_window_size(1 << 20);
    let (mut http2, connection) = client.handshake(io).await.unwrap();
    tokio::spawn(connection);
    let mut stalled = Vec::new();
    for _ in 0..50 {
        stalled.push(http2.send_request(post("/large", "")).await.unwrap());
    }
    for _ in 0..20 {
        let answer = http2.send_request(post("/", "")).await.unwrap();
        assert_eq!(text(answer).await.len(), 100_000);
    }
    assert_eq!(text(stalled.remove(0)).await.len(), 8 << 20, "a stalled response continues");
}

#[tokio::test]
async fn http1_request_with_many_header_lines_reaches_handler() {
    let handler = |request: Request<Incoming>, _: Arc<ConnectionInfo>| async move {
        Response::new(Body::from(format!("{} fields", request.headers().len())))
    };
    let server = start(handler, None, ServerOptions::default()).await;
    for (lines, answer) in [(10, "12 fields"), (99, "101 fields"), (250, "252 fields"), (255, " 431 ")] {
        let head =
            format!("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}\r\n", "a: b\r\n".repeat(lines));
        let found = raw(server.address, head.as_bytes()).await;
        assert!(found.contains(answer), "{lines} lines: {found}");
    }
}

#[tokio::test]
async fn connection_without_request_is_closed_in_header_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], SystemClock::new().now()).unwrap();
    let tls = ServingTls::load(TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() }).unwrap();
    let options = ServerOptions { header_timeout: Duration::from_millis(50), ..ServerOptions::default() };
    let plain = start(echo, None, options.clone()).await;
    let assert_closed = async |bytes: &[u8]| {
        let answer = tokio::time::timeout(Duration::from_secs(10), raw(plain.address, bytes)).await;
        assert!(answer.is_ok(), "still open after {:?}", String::from_utf8_lossy(bytes));
    };
    assert_closed(b"").await;
    assert_closed(b"PRI * HT").await;
    assert_closed(&preface(1000)).await;

    let server = start(echo, Some(tls), options).await;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(crate::tls::certificates(&pair.ca).unwrap().remove(0)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(server.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect("localhost".try_into().unwrap(), stream).await.unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
    assert!(ended.is_ok(), "still open");
}

#[tokio::test]
async fn request_burst_on_http2_connection_does_not_delay_other_connection() {
    let peers = Arc::new(Mutex::new(Vec::new()));
    let recorded_peers = Arc::clone(&peers);
    let handler = move |_: Request<Incoming>, info: Arc<ConnectionInfo>| {
        std::thread::sleep(Duration::from_micros(100));
        recorded_peers.lock().push(info.peer);
        std::future::ready(Response::new(Body::from("")))
    };
    let server = start(handler, None, ServerOptions::default()).await;
    let mut connections = Vec::new();
    for _ in 0..2 {
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        connection.write_all(&preface(1000)).await.unwrap();
        // The first byte of the server shows that it serves the connection.
        connection.read_u8().await.unwrap();
        connections.push(connection);
    }
    let requests: Vec<u8> = (0..100).flat_map(|i| get(2 * i + 1)).collect();
    connections[0].write_all(&requests).await.unwrap();
    connections[1].write_all(&get(1)).await.unwrap();
    while peers.lock().len() < 101 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let second_client = Some(connections[1].local_addr().unwrap());
    let position = peers.lock().iter().position(|peer| *peer == second_client).unwrap();
    assert!(position < 50, "{position} requests of the burst were handled first");
}

#[tokio::test]
async fn short_frames_on_http2_connection_yield_to_other_tasks() {
    const CAPACITY: usize = 1 << 20;
    let (mut client, server_stream) = tokio::io::duplex(CAPACITY);
    client.write_all(&preface(1000)).await.unwrap();
    let window_update = frame(8, 0, 0, &1_u32.to_be_bytes());
    let frames = window_update.repeat(CAPACITY / window_update.len());
    // The server is not started, so the write stops at the capacity.
    let mut written = client.write(&frames).await.unwrap();
    let server = Arc::new(Server {
        tls: None,
        handler: Arc::new(echo),
        handshakes: Handshakes::new(),
        options: ServerOptions::default(),
    });
    let (_phase, phases) = watch::channel(Phase::Serving);
    let permit = Connections::new(1).acquire(None, &ConnectionCloser::default()).unwrap();
    tokio::spawn(async move {
        server.serve_http(server_stream, ConnectionInfo::default(), &permit, phases).await;
    });
    let mut longest_read = 0;
    let other_task = tokio::spawn(poll_fn(move |context| {
        // The free capacity is the number of bytes that the server has read since the last poll of this task.
        let rest = &frames[written % window_update.len()..];
        if let Some(read) = client.write(rest).now_or_never() {
            let read = read.unwrap();
            longest_read = longest_read.max(read);
            written += read;
        }
        context.waker().wake_by_ref();
        if written < 3 * CAPACITY { Poll::Pending } else { Poll::Ready(longest_read) }
    }));
    let longest_read = other_task.await.unwrap();
    assert!(longest_read < CAPACITY / 4, "the server reads {longest_read} bytes in one turn");
}

#[tokio::test]
async fn http2_connection_that_resets_streams_rapidly_is_closed() {
    let server = start(echo, None, ServerOptions::default()).await;
    let mut bytes = preface(1000);
    for i in 0..5_000 {
        bytes.extend(get(2 * i + 1));
        bytes.extend(frame(3, 0, 2 * i + 1, &8_u32.to_be_bytes()));
    }
    let answer = tokio::time::timeout(Duration::from_secs(10), raw(server.address, &bytes)).await.unwrap();
    // The debug data of GOAWAY, which has the code ENHANCE_YOUR_CALM.
    assert!(answer.contains("too_many_resets"), "{answer:?}");
}

/// Sends requests on one HTTP/2 connection, and resets each after a pause, until the server cuts the connection.
/// Without a pause, a request and its reset are one write.
///
/// The client acknowledges no PING frame, so the server does not learn that its GOAWAY frame arrived.
async fn reset_until_connection_is_cut(address: SocketAddr, pause: Duration) {
    let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
    write.write_all(&preface(1000)).await.unwrap();
    let attack = async {
        for stream in (1..).step_by(2) {
            let reset = frame(3, 0, stream, &8_u32.to_be_bytes());
            let parts =
                if pause.is_zero() { vec![[get(stream), reset].concat()] } else { vec![get(stream), reset] };
            for part in parts {
                if write.write_all(&part).await.is_err() {
                    return;
                }
                tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
            }
        }
    };
    let is_cut = async {
        let mut answer = Vec::new();
        let _ = read.read_to_end(&mut answer).await;
    };
    let cut = async {
        tokio::select! { () = attack => {}, () = is_cut => {} }
    };
    tokio::time::timeout(Duration::from_secs(60), cut).await.expect("the server cuts the connection");
}

#[tokio::test]
async fn http2_connection_that_ignores_shutdown_after_cancelled_requests_is_cut() {
    let handler = |_: Request<Incoming>, _: Arc<ConnectionInfo>| std::future::pending::<Response<Body>>();
    let server = start(handler, None, ServerOptions::default()).await;
    // The pause lets the server begin the request before the reset arrives.
    reset_until_connection_is_cut(server.address, Duration::from_millis(2)).await;
}

#[tokio::test]
async fn requests_that_arrive_with_their_reset_count_as_cancelled_and_call_no_handler() {
    let calls = Arc::new(AtomicUsize::new(0));
    let call_count = Arc::clone(&calls);
    let handler = move |_: Request<Incoming>, _: Arc<ConnectionInfo>| {
        call_count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Response::new(Body::from("done")))
    };
    let server = start(handler, None, ServerOptions::default()).await;
    reset_until_connection_is_cut(server.address, Duration::ZERO).await;
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn silent_handshakes_beyond_limit_are_cut_for_others() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], SystemClock::new().now()).unwrap();
    let tls = ServingTls::load(TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() }).unwrap();
    let options = ServerOptions { handshake_timeout: Duration::from_secs(600), ..ServerOptions::default() };
    let server = start(echo, Some(tls), options).await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
    }
    let mut oldest = silent.remove(0);
    let closed = tokio::time::timeout(Duration::from_secs(10), oldest.read_u8()).await;
    assert!(closed.is_ok_and(|read| read.is_err()), "the oldest handshake is closed");
    let last = silent.pop().unwrap();
    let open = tokio::time::timeout(Duration::from_millis(100), async move { last.readable().await }).await;
    assert!(open.is_err(), "the newest handshake continues");
}

#[tokio::test]
async fn connection_beyond_limit_is_closed_and_others_are_served() {
    let server = start(echo, None, ServerOptions { max_connections: 2, ..ServerOptions::default() }).await;
    // The limit per address is half of the limit of all connections.
    let mut first = TcpStream::connect(server.address).await.unwrap();
    first.write_all(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    assert_eq!(first.read_u8().await.unwrap(), b'H');
    assert_eq!(raw(server.address, b"GET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await, "");
    drop(first);
    let served = async {
        while !raw(server.address, b"GET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .contains("/c")
        {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), served).await.unwrap();
}

#[tokio::test]
async fn silent_connection_gives_way_to_new_connection_at_the_limit() {
    let server = start(echo, None, ServerOptions { max_connections: 2, ..ServerOptions::default() }).await;
    // The limit per address is half of the limit of all connections.
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let request = b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    assert_eq!(raw(server.address, request).await, "", "the silent connection is within its grace");
    tokio::time::sleep(connection_limits::SILENCE_GRACE).await;
    assert!(raw(server.address, request).await.contains("/a"));
    assert!(silent.read_u8().await.is_err(), "the silent connection is closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_does_not_read_its_response_is_cut_while_server_drains() {
    let handler = |request: Request<Incoming>, _: Arc<ConnectionInfo>| async move {
        if request.uri().path() == "/slow" {
            tokio::time::sleep(READ_GRACE + MAX_STALL + Duration::from_secs(2)).await;
            return Response::new(Body::from("late"));
        }
        Response::new(Body::from(vec![b'x'; 64 << 20]))
    };
    let server = start(handler, None, ServerOptions::default()).await;
    let address = server.address;
    let mut stalled = TcpStream::connect(address).await.unwrap();
    stalled.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut half_sent = TcpStream::connect(address).await.unwrap();
    half_sent.write_all(b"GET / HTTP/1.1\r\nHost").await.unwrap();
    let slow = tokio::spawn(async move { raw(address, b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await });
    stalled.readable().await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let begun = Instant::now();
    assert_eq!(server.stop().await, ShutdownResult::Clean);
    let seconds = begun.elapsed().as_secs();
    assert!((5..30).contains(&seconds), "{seconds} s");
    assert!(slow.await.unwrap().ends_with("late"), "a handler that works is not cut");
}

#[test]
fn accept_failures_are_logged_once_a_minute_with_their_number() {
    let mut failures = AcceptFailures::default();
    assert_eq!(failures.count(), Some(1));
    assert_eq!([failures.count(), failures.count()], [None, None]);
    failures.last_report =
        failures.last_report.and_then(|reported| reported.checked_sub(FAILURE_LOG_INTERVAL));
    assert_eq!(failures.count(), Some(3));
}

#[tokio::test]
async fn connection_with_request_outlives_header_timeout() {
    let handler = |_: Request<Incoming>, _: Arc<ConnectionInfo>| async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        Response::new(Body::from("late"))
    };
    let options = ServerOptions { header_timeout: Duration::from_millis(50), ..ServerOptions::default() };
    let server = start(handler, None, options).await;
    let answer = raw(server.address, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.ends_with("late"), "{answer}");
}
