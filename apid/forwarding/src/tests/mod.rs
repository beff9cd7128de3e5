//! Tests of exchanges with backends on loopback, through a server that forwards each request.

mod attacks;
mod exchanges;
mod upgrades;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::SystemRng;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Version};
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;
use serving::body::{self, Body};
use serving::certs::ensure_serving_pair;
use serving::client::Trust;
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions, serve};
use serving::tls::{ServingTls, TlsFiles};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::*;

/// A time that a correct exchange does not need.
const LONG: Duration = Duration::from_secs(30);

#[expect(clippy::disallowed_methods, reason = "certificates are checked against the machine's clock")]
fn now() -> Timestamp {
    Timestamp::now()
}

fn loopback() -> AddressPolicy {
    AddressPolicy::new(&["127.0.0.0/8".to_owned()]).unwrap()
}

fn target(scheme: Scheme, port: u16) -> Target {
    Target::at_address(scheme, Ipv4Addr::LOCALHOST.into(), port, &loopback()).unwrap()
}

/// A request as a backend received it.
#[derive(Clone, Debug)]
struct Received {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
    version: Version,
    peer: SocketAddr,
    /// Number of certificates of the client.
    chain: usize,
}

impl Received {
    fn header(&self, name: &str) -> Vec<&str> {
        self.headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
    }
}

type Reply = Option<Response<Body>>;
type Script = Arc<dyn Fn(&Received) -> Reply + Send + Sync>;

/// A backend in HTTP, with or without TLS. Its script returns None for a request without a response.
struct Backend {
    dir: TempDir,
    port: u16,
    scheme: Scheme,
    received: Arc<Mutex<Vec<Received>>>,
}

fn reply(status: u16, text: impl Into<Bytes>) -> Reply {
    Some(Response::builder().status(status).body(Body::from(text)).unwrap())
}

impl Backend {
    async fn start(scheme: Scheme, script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Backend {
        let dir = tempfile::tempdir().unwrap();
        let hosts = ["127.0.0.1".to_owned(), "backend.team.svc".to_owned()];
        let pair = ensure_serving_pair(dir.path(), &hosts, now()).unwrap();
        let files = TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() };
        let tls = (scheme == Scheme::Https).then(|| ServingTls::load(files).unwrap());
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.unwrap();
        let port = listener.address().unwrap().port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (log, script): (_, Script) = (Arc::clone(&received), Arc::new(script));
        let handler = move |request: Request<Incoming>, connection: Arc<ConnectionInfo>| {
            let (log, script) = (Arc::clone(&log), Arc::clone(&script));
            async move {
                let (head, body) = request.into_parts();
                let received = Received {
                    method: head.method,
                    path: head.uri.path_and_query().map_or(String::new(), ToString::to_string),
                    headers: head.headers,
                    version: head.version,
                    peer: connection.peer.unwrap(),
                    chain: connection.client_chain.len(),
                    body: body::read(body, 1 << 20, LONG).await.unwrap(),
                };
                log.lock().push(received.clone());
                match script(&received) {
                    Some(response) => response,
                    None => std::future::pending().await,
                }
            }
        };
        let options = ServerOptions::default();
        tokio::spawn(serve(listener, tls, Arc::new(handler), options, std::future::pending::<()>()));
        Backend { dir, port, scheme, received }
    }

    fn target(&self) -> Target {
        target(self.scheme, self.port)
    }

    fn received(&self) -> Vec<Received> {
        self.received.lock().clone()
    }

    fn connections(&self) -> usize {
        self.received().iter().map(|request| request.peer).collect::<BTreeSet<_>>().len()
    }

    fn ca(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    fn trust(&self) -> Trust {
        Trust::from_pem(&std::fs::read(self.ca()).unwrap()).unwrap()
    }
}

fn settings() -> TransportSettings {
    TransportSettings {
        trust: Trust::Insecure,
        server_name: None,
        credentials: None,
        connect_timeout: LONG,
        http2: true,
    }
}

fn transport() -> Transport {
    Transport::new(settings()).unwrap()
}

fn get(path: &str) -> Request<Body> {
    Request::builder().uri(path).body(Body::empty()).unwrap()
}

async fn text(response: Response<Body>) -> String {
    use http_body_util::BodyExt as _;
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// A backend that writes bytes of its own. The number of connections is in the argument of the script.
struct RawBackend {
    port: u16,
    /// The heads of the requests.
    heads: Arc<Mutex<Vec<String>>>,
}

impl RawBackend {
    /// Starts a backend. `serve` gets each connection after its first request head, and the number of the connection.
    async fn start<F>(serve: impl Fn(TcpStream, usize) -> F + Send + Sync + 'static) -> RawBackend
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heads);
        tokio::spawn(async move {
            for number in 0.. {
                let Ok((mut stream, _)) = listener.accept().await else { return };
                if let Some(head) = read_head(&mut stream).await {
                    log.lock().push(head);
                    tokio::spawn(serve(stream, number));
                }
            }
        });
        RawBackend { port, heads }
    }

    fn target(&self) -> Target {
        target(Scheme::Http, self.port)
    }
}

/// Reads up to the end of a head; None at the end of the stream.
async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

/// A server that forwards all requests to one target.
struct Proxy {
    address: SocketAddr,
    ended_tunnels: tokio::sync::mpsc::UnboundedReceiver<TunnelBytes>,
}

impl Proxy {
    async fn start(target: Target, appearance: Appearance, user: Option<UserInfo>) -> Proxy {
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.unwrap();
        let address = listener.address().unwrap();
        let transport = Arc::new(transport());
        let hops = Hops::new(&SystemRng);
        let (tunnel_ends, ended_tunnels) = tokio::sync::mpsc::unbounded_channel();
        let handler = move |request: Request<Incoming>, connection: Arc<ConnectionInfo>| {
            let (transport, target, appearance) =
                (Arc::clone(&transport), target.clone(), appearance.clone());
            let (user, tunnel_ends, hops) = (user.clone(), tunnel_ends.clone(), hops.clone());
            async move {
                let (head, body) = request.into_parts();
                let forwarding = Forward {
                    hops: &hops,
                    transport: &transport,
                    target: &target,
                    path_and_query: head.uri.path_and_query().unwrap().to_string(),
                    client: connection.peer.map(|peer| peer.ip()),
                    appearance,
                    user: user.as_ref(),
                    extra_headers: Vec::new(),
                };
                match forward(&head, Body::stream(body), forwarding).await {
                    Ok(Forwarded::Response(response)) => response,
                    Ok(Forwarded::Upgraded { head, tunnel }) => {
                        tokio::spawn(async move { tunnel_ends.send(tunnel.run().await) });
                        Response::from_parts(head, Body::empty())
                    }
                    Err(error) => {
                        let status = Status::from(error);
                        Response::builder().status(status.code).body(Body::from(status.message)).unwrap()
                    }
                }
            }
        };
        let options = ServerOptions::default();
        tokio::spawn(serve(listener, None, Arc::new(handler), options, std::future::pending::<()>()));
        Proxy { address, ended_tunnels }
    }

    async fn below(target: Target, prefix: &str) -> Proxy {
        Proxy::start(target, Appearance::Below { prefix: prefix.to_owned() }, None).await
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request in HTTP/1.1 and returns everything up to the end of the connection.
    async fn exchange(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}
