//! Tests of the client against TLS servers of this process on loopback.

mod remote;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use http::Response;
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::body::Body;
use crate::certs::{Authority, PemPair, ensure_serving_pair};
use crate::listener::Listener;
use crate::server::{ConnectionInfo, ServerOptions, serve};
use crate::tls::{ServingTls, TlsFiles};

const LIMITS: Limits = Limits { within: Duration::from_secs(60), bytes: 10_000 };

/// Request as the server received it.
#[derive(Clone, Debug)]
struct RecordedRequest {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
    /// Address of the client: two requests with the same port came over the same connection.
    peer: SocketAddr,
    fingerprint: Option<[u8; 32]>,
    /// Number of certificates that the client sent.
    chain: usize,
}

impl RecordedRequest {
    fn header(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }
}

type Reply = Response<Body>;
type Script = Arc<dyn Fn(&RecordedRequest) -> Option<Reply> + Send + Sync>;

/// Test server with a certificate of its own authority, for `localhost` and 127.0.0.1.
///
/// The script of a test returns the reply to a request. None if the server sends no reply, and the client
/// waits.
struct Server {
    dir: TempDir,
    address: SocketAddr,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

fn reply(status: u16, body: &str) -> Option<Reply> {
    Some(Response::builder().status(status).body(Body::from(body.to_owned())).unwrap())
}

impl Server {
    async fn start(script: impl Fn(&RecordedRequest) -> Option<Reply> + Send + Sync + 'static) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let pair = ensure_serving_pair(dir.path(), &["localhost".to_owned(), "127.0.0.1".to_owned()], now())
            .unwrap();
        let files = TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() };
        let tls = ServingTls::load(files).unwrap();
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.unwrap();
        let address = listener.address().unwrap();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, script): (_, Script) = (Arc::clone(&requests), Arc::new(script));
        let handler = move |request: Request<Incoming>, connection: Arc<ConnectionInfo>| {
            let (log, script) = (Arc::clone(&log), Arc::clone(&script));
            async move {
                let (head, body) = request.into_parts();
                let body = body::read(body, 100_000, LIMITS.within).await.unwrap();
                let recorded = RecordedRequest {
                    method: head.method,
                    path: head.uri.path_and_query().map_or(String::new(), ToString::to_string),
                    headers: head.headers,
                    body,
                    peer: connection.peer.unwrap(),
                    fingerprint: connection.client_fingerprint,
                    chain: connection.client_chain.len(),
                };
                log.lock().push(recorded.clone());
                match script(&recorded) {
                    Some(reply) => reply,
                    None => std::future::pending().await,
                }
            }
        };
        tokio::spawn(serve(
            listener,
            Some(tls),
            Arc::new(handler),
            ServerOptions::default(),
            std::future::pending::<()>(),
        ));
        Server { dir, address, requests }
    }

    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.address.port())
    }

    fn trust(&self) -> Trust {
        Trust::from_pem(&std::fs::read(self.ca()).unwrap()).unwrap()
    }

    fn ca(&self) -> std::path::PathBuf {
        self.dir.path().join("ca.crt")
    }

    fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().clone()
    }

    fn connections(&self) -> usize {
        self.requests().iter().map(|request| request.peer).collect::<BTreeSet<_>>().len()
    }
}

#[expect(clippy::disallowed_methods, reason = "certificates are checked against the machine's clock")]
fn now() -> Timestamp {
    Timestamp::now()
}

fn client_pair(dir: &Path, user: &str) -> PemPair {
    let authority =
        Authority::ensure(&dir.join("users.crt"), &dir.join("users.key"), "users", now()).unwrap();
    authority.client(user, &[], Duration::from_secs(3600), now()).unwrap()
}

fn build_client(settings: Settings) -> Client {
    Client::new(&Settings { proxy: Proxy::None, ..settings }).unwrap()
}

#[tokio::test]
async fn server_certificates_are_verified_per_trust_settings() {
    let server = Server::start(|_| reply(200, "{}")).await;
    let other = Server::start(|_| reply(200, "{}")).await;
    let by_ip = server.url("/");
    let by_name = format!("https://localhost:{}/", server.address.port());
    let own_leaf = Trust::from_pem(&std::fs::read(server.dir.path().join("apiserver.crt")).unwrap()).unwrap();
    let name = |name: &str| Some(name.to_owned());
    for (trust, server_name, url, expected) in [
        (server.trust(), None, &by_ip, None),
        (server.trust(), None, &by_name, None),
        (server.trust(), name("localhost"), &by_ip, None),
        (own_leaf.clone(), None, &by_ip, None),
        (Trust::Insecure, None, &by_ip, None),
        (Trust::Insecure, name("elsewhere"), &by_ip, None),
        (server.trust(), name("elsewhere"), &by_ip, Some("certificate not valid for name \"elsewhere\"")),
        (own_leaf, name("elsewhere"), &by_ip, Some("NotValidForName")),
        // The reason is an unknown issuer, or a bad signature if both authorities were created in the same
        // second and so have the same name.
        (other.trust(), None, &by_ip, Some("invalid peer certificate")),
    ] {
        let label = format!("{trust:?} {server_name:?} {url}");
        let client = build_client(Settings { trust, server_name, ..Settings::default() });
        match (client.get(url, LIMITS).await, expected) {
            (Ok(answer), None) => assert_eq!(answer.status, 200),
            (Err(CallError::Unreachable(problem)), Some(expected)) => {
                assert!(problem.contains("invalid peer certificate"), "{problem}");
                assert!(problem.contains(expected) || expected == "NotValidForName", "{problem}");
            }
            (actual, _) => panic!("{label}: {actual:?}"),
        }
    }
    let system = Client::new(&Settings { proxy: Proxy::None, ..Settings::default() });
    if let Ok(system) = system {
        assert!(matches!(system.get(&by_ip, LIMITS).await, Err(CallError::Unreachable(_))));
    }
}

#[tokio::test]
async fn requests_are_json_and_share_connections() {
    let server = Server::start(|_| reply(201, r#"{"a": 1}"#)).await;
    let client = build_client(Settings {
        trust: server.trust(),
        user_agent: "tester/1".into(),
        ..Settings::default()
    });
    let answer = {
        let post = request(Method::POST, &server.url("/p?q=1"), Bytes::from("{}")).unwrap();
        client.send(post, LIMITS).await.unwrap()
    };
    assert_eq!((answer.status.as_u16(), answer.json().unwrap()["a"].as_u64()), (201, Some(1)));
    for _ in 0..5 {
        client.get(&server.url("/"), LIMITS).await.unwrap();
    }
    let requests = server.requests();
    assert_eq!(
        (requests[0].method.as_str(), requests[0].path.as_str(), &requests[0].body[..]),
        ("POST", "/p?q=1", &b"{}"[..])
    );
    assert_eq!(requests[0].header("content-type"), ["application/json"]);
    assert_eq!(requests[0].header("accept"), ["application/json"]);
    assert_eq!(requests[0].header("user-agent"), ["tester/1"]);
    assert_eq!((requests[1].method.as_str(), requests[1].header("content-type").len()), ("GET", 0));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn client_certificate_is_sent_to_server() {
    let server = Server::start(|_| reply(200, "{}")).await;
    let jane = client_pair(server.dir.path(), "jane");
    let identity = Identity::from_pem(jane.cert.as_bytes(), jane.key.as_bytes()).unwrap();
    for identity in [Some(identity), None] {
        let is_sent = identity.is_some();
        let client = build_client(Settings { trust: server.trust(), identity, ..Settings::default() });
        client.get(&server.url("/"), LIMITS).await.unwrap();
        assert_eq!(server.requests().last().unwrap().fingerprint.is_some(), is_sent);
    }
    let bob = client_pair(server.dir.path(), "bob");
    for (cert, key, expected) in [
        (jane.cert.as_str(), bob.key.as_str(), "the client key does not belong to the client certificate"),
        (jane.cert.as_str(), "hunter2", "the client key: contains no private key in PEM"),
        ("hunter2", jane.key.as_str(), "the client certificate: contains no certificate"),
    ] {
        assert_eq!(Identity::from_pem(cert.as_bytes(), key.as_bytes()).unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn client_calls_are_limited_in_time_and_size() {
    let server = Server::start(|request| match request.path.as_str() {
        "/slow" => None,
        "/moved" => Some(
            Response::builder()
                .status(302)
                .header("location", "https://127.0.0.1:1/")
                .body(Body::empty())
                .unwrap(),
        ),
        _ => reply(200, &"x".repeat(1001)),
    })
    .await;
    let client = build_client(Settings { trust: server.trust(), ..Settings::default() });
    let get = |path: &str, limits: Limits| {
        let (client, url) = (client.clone(), server.url(path));
        async move { client.get(&url, limits).await }
    };
    let short = Limits { within: Duration::from_millis(50), ..LIMITS };
    assert_eq!(get("/slow", short).await.unwrap_err(), CallError::Timeout(short.within));
    let small = Limits { bytes: 1000, ..LIMITS };
    assert_eq!(get("/large", small).await.unwrap_err(), CallError::TooLarge(1000));
    assert_eq!(get("/large", Limits { bytes: 1001, ..LIMITS }).await.unwrap().body.len(), 1001);
    assert_eq!(get("/moved", LIMITS).await.unwrap().status, 302, "redirects are not followed");
    for url in ["", "h/p", "ftp://h/", "https://", "https://a b/"] {
        assert!(matches!(client.get(url, LIMITS).await, Err(CallError::Request(_))), "{url}");
    }
}

#[tokio::test]
async fn closed_connections_return_distinct_errors() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(async move {
        // The server reads a request without TLS and closes the connection. It closes a second connection, on
        // which the client begins TLS, at once.
        let (mut stream, _) = listener.accept().await.unwrap();
        let read = stream.read(&mut [0; 1000]).await.unwrap();
        assert!(read > 0);
        drop(stream);
        drop(listener.accept().await.unwrap());
    });
    let client = build_client(Settings { trust: Trust::Insecure, ..Settings::default() });
    let broken = client.get(&format!("http://127.0.0.1:{port}/"), LIMITS).await;
    assert!(matches!(broken, Err(CallError::Broken(_))), "{broken:?}");
    let hung_up = client.get(&format!("https://127.0.0.1:{port}/"), LIMITS).await;
    assert!(matches!(hung_up, Err(CallError::Unreachable(_))), "{hung_up:?}");
    served.await.unwrap();
    let refused = client.get(&format!("https://127.0.0.1:{port}/"), LIMITS).await;
    let Err(CallError::Unreachable(problem)) = refused else { panic!("{refused:?}") };
    assert!(problem.contains("refused"), "{problem}");
}

/// A TLS server that ends each connection without `close_notify`, after a response without a length.
async fn start_abrupt_server() -> (Trust, String) {
    use rustls_pki_types::pem::PemObject as _;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &["127.0.0.1".to_owned()], now()).unwrap();
    let chain = CertificateDer::pem_file_iter(&pair.cert).unwrap().map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let trust = Trust::from_pem(&std::fs::read(dir.path().join("ca.crt")).unwrap()).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = acceptor.accept(stream).await.unwrap();
            assert!(stream.read(&mut [0; 1000]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n{}").await.unwrap();
            stream.flush().await.unwrap();
            let (mut tcp, _) = stream.into_inner();
            tcp.shutdown().await.unwrap();
        }
    });
    (trust, url)
}

#[tokio::test]
async fn end_of_connection_without_close_notify_is_an_error_unless_accepted() {
    let (trust, url) = start_abrupt_server().await;
    for accepts_missing_close in [true, false] {
        let settings = Settings { trust: trust.clone(), accepts_missing_close, ..Settings::default() };
        let result = build_client(settings).get(&url, LIMITS).await;
        assert_eq!(result.is_ok(), accepts_missing_close, "{result:?}");
    }
}

/// Acts as a proxy for one connection; returns the request that opened the tunnel.
async fn tunnel(listener: TcpListener) -> String {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(client.read_u8().await.unwrap());
    }
    let request = String::from_utf8(request).unwrap();
    let target = request.split(' ').nth(1).unwrap().to_owned();
    let mut server = TcpStream::connect(target).await.unwrap();
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    tokio::spawn(async move { tokio::io::copy_bidirectional(&mut client, &mut server).await });
    request
}

#[tokio::test]
async fn proxy_tunnels_handshake_and_gets_proxy_credentials() {
    let server = Server::start(|_| reply(200, "{}")).await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let proxy = format!("http://me:pass@127.0.0.1:{}", listener.local_addr().unwrap().port());
    let settings = Settings { trust: server.trust(), proxy: Proxy::Url(proxy), ..Settings::default() };
    assert!(!format!("{settings:?}").contains("pass@"));
    let client = Client::new(&settings).unwrap();
    let tunnelled = tokio::spawn(tunnel(listener));
    assert_eq!(client.get(&server.url("/"), LIMITS).await.unwrap().status, 200);
    let request = tunnelled.await.unwrap();
    assert!(
        request.starts_with(&format!("CONNECT 127.0.0.1:{} HTTP/1.1\r\n", server.address.port())),
        "{request}"
    );
    assert!(request.contains("Proxy-Authorization: Basic bWU6cGFzcw==\r\n"), "{request}");
    for bad in ["", "proxy:80", "ftp://p", "http://"] {
        let settings = Settings { proxy: Proxy::Url(bad.to_owned()), ..Settings::default() };
        assert!(Client::new(&settings).is_err(), "{bad}");
    }
}

#[test]
fn debug_output_contains_no_secret() {
    let mut headers = HeaderMap::new();
    headers.insert("x", HeaderValue::from_static("hunter2"));
    let answer = ClientResponse { status: StatusCode::OK, headers, body: Bytes::from("hunter2") };
    assert!(!format!("{answer:?}").contains("hunter2"));
}

/// Server of `openssl s_server` with one version of TLS.
struct OpenSslServer {
    process: std::process::Child,
    port: String,
}

impl Drop for OpenSslServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl OpenSslServer {
    /// Starts the server with a certificate of `dir`. Returns None if the program is missing.
    fn start(dir: &Path, version: &str) -> Option<OpenSslServer> {
        use std::io::{BufRead as _, BufReader};
        use std::process::{Command, Stdio};
        let process = Command::new("openssl")
            .args(["s_server", version, "-cipher", "DEFAULT@SECLEVEL=0", "-accept", "127.0.0.1:0", "-www"])
            .args(["-cert", "apiserver.crt", "-key", "apiserver.key"])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = match process {
            Ok(process) => process,
            Err(error) => {
                prerequisites::skip("openssl", &error.to_string());
                return None;
            }
        };
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let port = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("ACCEPT ")?.rsplit_once(':').map(|(_, port)| port.to_owned()));
        Some(OpenSslServer { process, port: port.expect("the server prints its port") })
    }
}

/// Webhooks, token issuers and key sets use this client (requirement A-OIDC-11).
#[tokio::test(flavor = "multi_thread")]
async fn server_with_outdated_tls_version_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let pair = ensure_serving_pair(dir.path(), &[], now()).unwrap();
    let trust = Trust::from_pem(&std::fs::read(&pair.ca).unwrap()).unwrap();
    for (version, is_accepted) in [("-tls1_1", false), ("-tls1_2", true), ("-tls1_3", true)] {
        let Some(server) = OpenSslServer::start(dir.path(), version) else { return };
        let client = build_client(Settings { trust: trust.clone(), ..Settings::default() });
        let answer = client.get(&format!("https://localhost:{}/", server.port), LIMITS).await;
        match answer {
            Ok(answer) => assert!(is_accepted && answer.status == 200, "{version}: {answer:?}"),
            Err(error) => {
                let text = error.to_string();
                assert!(!is_accepted, "{version}: {text}");
                assert!(text.contains("ProtocolVersion") || text.contains("version"), "{version}: {text}");
            }
        }
    }
}
