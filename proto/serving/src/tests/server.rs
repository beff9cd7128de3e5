//! Tests of the HTTP server over loopback: both protocols, limits and shutdown.

use super::*;
use crate::body;
use crate::certs::{Authority, ensure_serving_pair};
use crate::tls::TlsFiles;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioExecutor;
use rustls_pki_types::pem::PemObject;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Running server.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    stop: oneshot::Sender<()>,
    ended: JoinHandle<ShutdownResult>,
}

impl Running {
    /// Shuts the server down and waits for the end.
    pub(super) async fn stop(self) -> ShutdownResult {
        self.stop.send(()).unwrap();
        self.ended.await.unwrap()
    }
}

pub(super) async fn start<H: Handler>(
    handler: H,
    tls: Option<Arc<ServingTls>>,
    options: ServerOptions,
) -> Running {
    let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.unwrap();
    let address = listener.address().unwrap();
    let (stop, stopped) = oneshot::channel();
    let shutdown = async {
        let _ = stopped.await;
    };
    let ended = tokio::spawn(serve(listener, tls, Arc::new(handler), options, shutdown));
    Running { address, stop, ended }
}

/// Handler that responds with the path and the body of the request.
pub(super) async fn echo(request: Request<Incoming>, connection: Arc<ConnectionInfo>) -> Response<Body> {
    assert!(connection.peer.is_some());
    let path = request.uri().path().to_owned();
    let answer = match body::read(request.into_body(), 1000, Duration::from_secs(60)).await {
        Ok(body) => format!("{path} {}", String::from_utf8_lossy(&body)),
        Err(e) => format!("{path} {e}"),
    };
    Response::new(Body::from(answer))
}

async fn connect_http2(address: SocketAddr) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(super) fn post(path: &str, body: &str) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{path}")).body(Full::from(body.to_owned())).unwrap()
}

pub(super) async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Sends raw bytes and returns the whole response.
pub(super) async fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn both_protocols_are_served_and_bodies_limited() {
    let server = start(echo, None, ServerOptions::default()).await;
    let mut http2 = connect_http2(server.address).await;
    assert_eq!(text(http2.send_request(post("/a", "hello")).await.unwrap()).await, "/a hello");
    let long = "x".repeat(1001);
    assert_eq!(
        text(http2.send_request(post("/b", &long)).await.unwrap()).await,
        "/b the body is larger than 1000 bytes"
    );

    let request = b"POST /c HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhiGET /d HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let answers = raw(server.address, request).await;
    assert!(answers.contains("\r\n\r\n/c hi") && answers.ends_with("/d "), "{answers}");

    drop(http2);
    server.stop.send(()).unwrap();
    assert_eq!(server.ended.await.unwrap(), ShutdownResult::Clean);
    assert!(TcpStream::connect(server.address).await.is_err(), "the listener is closed");
}

#[tokio::test]
async fn ambiguous_request_head_is_rejected_and_ends_the_connection() {
    let server = start(echo, None, ServerOptions::default()).await;
    for (head, code) in [
        ("GET / HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\nContent-Length: 2\r\n\r\nhi", "417"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"),
        ("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", "400"),
    ] {
        let answer = raw(server.address, head.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{head}: {answer}");
    }
    let http_1_0 = raw(server.address, b"GET /old HTTP/1.0\r\n\r\n").await;
    assert!(http_1_0.contains("200 OK") && http_1_0.ends_with("/old "), "{http_1_0}");
}

#[tokio::test]
async fn request_heads_are_limited_in_time_and_size() {
    let options = ServerOptions {
        header_timeout: Duration::from_millis(20),
        max_header_bytes: 10_000,
        ..ServerOptions::default()
    };
    let server = start(echo, None, options).await;
    // `raw` returns only because the server closes the connection: the head of the request is never complete.
    raw(server.address, b"GET / HTTP/1.1\r\nHost:").await;
    let head = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(20_000));
    assert!(!raw(server.address, head.as_bytes()).await.contains("200 OK"));
    let mut http2 = connect_http2(server.address).await;
    let mut request = post("/", "");
    request.headers_mut().insert("x", "y".repeat(20_000).parse().unwrap());
    let refused = match http2.send_request(request).await {
        Ok(response) => response.status() == http::StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        Err(_) => true,
    };
    assert!(refused);
    raw(server.address, b"garbage\r\n\r\n").await;
    assert!(
        raw(server.address, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .contains("200 OK")
    );
}

#[tokio::test]
async fn graceful_shutdown_finishes_responses_and_rejects_new_streams() {
    let (entered, mut entries) = tokio::sync::mpsc::unbounded_channel();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let waiting = Arc::clone(&gate);
    let handler = move |request: Request<Incoming>, _: Arc<ConnectionInfo>| {
        let (entered, waiting) = (entered.clone(), Arc::clone(&waiting));
        async move {
            if request.uri().path() == "/held" {
                entered.send(()).unwrap();
                let _ = waiting.acquire().await;
            }
            Response::new(Body::from("done"))
        }
    };
    let server = start(handler, None, ServerOptions::default()).await;
    let mut http2 = connect_http2(server.address).await;
    let mut other = http2.clone();
    let pending =
        tokio::spawn(async move { text(http2.send_request(post("/held", "")).await.unwrap()).await });
    entries.recv().await.unwrap();
    server.stop.send(()).unwrap();
    // The client has received GOAWAY when it can open no new stream.
    while other.send_request(post("/", "")).await.is_ok() {}
    assert!(!pending.is_finished());
    gate.add_permits(1);
    assert_eq!(pending.await.unwrap(), "done");
    drop(other);
    assert_eq!(server.ended.await.unwrap(), ShutdownResult::Clean);
}

#[tokio::test]
async fn connection_with_many_cancelled_requests_takes_no_new_ones() {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let waiting = Arc::clone(&gate);
    let handler = move |request: Request<Incoming>, _: Arc<ConnectionInfo>| {
        let waiting = Arc::clone(&waiting);
        async move {
            match request.uri().path() {
                "/held" => drop(waiting.acquire().await),
                "/pending" => std::future::pending().await,
                _ => {}
            }
            Response::new(Body::from("done"))
        }
    };
    let server = start(handler, None, ServerOptions::default()).await;
    let mut http2 = connect_http2(server.address).await;
    let held = tokio::spawn(http2.send_request(post("/held", "")));
    let is_ended = async {
        // A request that is dropped after a poll resets its stream. The pause lets the server accept the request
        // before its reset: h2 closes a connection with many resets of requests that wait to be accepted.
        while http2.ready().await.is_ok() {
            let request = http2.send_request(post("/pending", ""));
            let _ = tokio::time::timeout(Duration::from_millis(4), request).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), is_ended).await.expect("the server sends GOAWAY");
    gate.add_permits(1);
    assert_eq!(text(held.await.unwrap().unwrap()).await, "done");
    let mut again = connect_http2(server.address).await;
    assert_eq!(text(again.send_request(post("/", "")).await.unwrap()).await, "done");
}

/// The clients read nothing, read a trickle, or read nothing and send pings.
#[tokio::test]
async fn clients_that_do_not_read_delay_the_shutdown_by_less_than_five_seconds() {
    let handler = |_: Request<Incoming>, _: Arc<ConnectionInfo>| async {
        Response::new(Body::from(vec![b'x'; 64 << 20]))
    };
    let server = start(handler, None, ServerOptions::default()).await;
    let http1 = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(http1).await.unwrap();
    let mut trickling = TcpStream::connect(server.address).await.unwrap();
    trickling.write_all(http1).await.unwrap();
    let trickle = tokio::spawn(async move {
        let mut part = [0; 1000];
        while trickling.read(&mut part).await.is_ok_and(|read| read > 0) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut http2 = connect_http2(server.address).await;
    let unread = http2.send_request(post("/", "")).await.unwrap();
    let address = server.address;
    let pings = tokio::spawn(async move {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";
        connection.write_all(&[&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], settings].concat()).await.unwrap();
        connection.write_all(b"\0\0\x06\x01\x05\0\0\0\x01\x82\x84\x86\x01\x01x").await.unwrap();
        while connection.write_all(b"\0\0\x08\x06\0\0\0\0\0pingping").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let started = Instant::now();
    let result = server.stop().await;
    let elapsed = started.elapsed();
    assert!(result == ShutdownResult::Clean && elapsed < Duration::from_secs(5), "{result:?} {elapsed:?}");
    assert!(elapsed > READ_GRACE, "{elapsed:?}");
    drop((silent, unread));
    trickle.abort();
    pings.abort();
}

#[tokio::test]
async fn client_that_reads_its_response_slowly_gets_all_of_it_during_the_shutdown() {
    const SIZE: usize = 2 << 20;
    let handler = |_: Request<Incoming>, _: Arc<ConnectionInfo>| async {
        let (sender, body) = body::channel(1);
        tokio::spawn(async move {
            for _ in 0..SIZE / (32 << 10) {
                tokio::time::sleep(Duration::from_millis(100)).await;
                drop(sender.send(Bytes::from(vec![b'x'; 32 << 10])).await);
            }
        });
        Response::new(body)
    };
    let server = start(handler, None, ServerOptions::default()).await;
    let mut http2 = connect_http2(server.address).await;
    let response = http2.send_request(post("/", "")).await.unwrap();
    let reading = tokio::spawn(text(response));
    assert_eq!(server.stop().await, ShutdownResult::Clean);
    assert_eq!(reading.await.unwrap().len(), SIZE);
}

#[tokio::test]
async fn graceful_shutdown_deadline_cuts_open_connections() {
    let handler = |_: Request<Incoming>, _: Arc<ConnectionInfo>| async {
        let (sender, body) = body::channel(1);
        sender.send(Bytes::from("event")).await.unwrap();
        tokio::spawn(async move { sender.closed().await });
        Response::new(body)
    };
    let server =
        start(handler, None, ServerOptions { drain: Duration::from_millis(10), ..ServerOptions::default() })
            .await;
    let mut http2 = connect_http2(server.address).await;
    let mut watch = http2.send_request(post("/", "")).await.unwrap().into_body();
    assert_eq!(watch.frame().await.unwrap().unwrap().into_data().unwrap(), "event");
    server.stop.send(()).unwrap();
    assert_eq!(server.ended.await.unwrap(), ShutdownResult::Cut);
    assert!(watch.frame().await.is_none_or(|frame| frame.is_err()));
}

#[tokio::test]
async fn handler_panic_ends_only_its_request() {
    let handler = |request: Request<Incoming>, _: Arc<ConnectionInfo>| async move {
        assert_ne!(request.uri().path(), "/panic", "wanted");
        Response::new(Body::from("fine"))
    };
    let server = start(handler, None, ServerOptions::default()).await;
    let mut http2 = connect_http2(server.address).await;
    assert!(http2.send_request(post("/panic", "")).await.is_err());
    let mut again = connect_http2(server.address).await;
    assert_eq!(text(again.send_request(post("/", "")).await.unwrap()).await, "fine");
}

#[tokio::test]
async fn handler_gets_client_certificate_chain() {
    use apimachinery::clock::{Clock, SystemClock};
    let now = SystemClock::new().now();
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], now).unwrap();
    let tls = ServingTls::load(TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() }).unwrap();
    let authority = Authority::load(&pair.ca, &pair.ca_key).unwrap();
    let identity = authority.client("ada", &[], Duration::from_secs(3600), now).unwrap();
    let handler = |request: Request<Incoming>, connection: Arc<ConnectionInfo>| async move {
        assert!(connection.tls);
        assert_eq!(connection.client_fingerprint.is_some(), !connection.client_chain.is_empty());
        Response::new(Body::from(format!("{:?} {}", request.version(), connection.client_chain.len())))
    };
    let options = ServerOptions { handshake_timeout: Duration::from_secs(5), ..ServerOptions::default() };
    let server = start(handler, Some(tls), options).await;

    for (protocol, with_certificate, expected) in
        [("h2", true, "HTTP/2.0 1"), ("h2", false, "HTTP/2.0 0"), ("http/1.1", true, "HTTP/1.1 1")]
    {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(crate::tls::certificates(&pair.ca).unwrap().remove(0)).unwrap();
        let builder = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
        let mut config = if with_certificate {
            let chain =
                vec![rustls_pki_types::CertificateDer::from_pem_slice(identity.cert.as_bytes()).unwrap()];
            let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(server.address).await.unwrap();
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config))
            .connect("localhost".try_into().unwrap(), stream);
        let io = TokioIo::new(stream.await.unwrap());
        let answer = if protocol == "h2" {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            sender.send_request(post("/", "")).await.unwrap()
        } else {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            let mut request = post("/", "");
            request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static("localhost"));
            sender.send_request(request).await.unwrap()
        };
        assert_eq!(text(answer).await, expected, "{protocol}");
    }
    for plain in ["GET / HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let answer = raw(server.address, plain.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{answer}");
        assert!(answer.ends_with("Client sent an HTTP request to an HTTPS server.\n"), "{answer}");
    }
    drop(server.stop);
    assert_eq!(server.ended.await.unwrap(), ShutdownResult::Clean);
}

#[tokio::test]
async fn silent_handshake_is_closed_after_timeout() {
    let now = jiff::Timestamp::from_second(1_700_000_000).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], now).unwrap();
    let tls = ServingTls::load(TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() }).unwrap();
    let options = ServerOptions { handshake_timeout: Duration::from_millis(10), ..ServerOptions::default() };
    let server = start(echo, Some(tls), options).await;
    assert_eq!(raw(server.address, b"").await, "", "closed by the server");
}
