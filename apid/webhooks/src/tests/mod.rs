//! Tests of calls and of the resolution of Services against servers on loopback.

mod calls;
mod services;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{ManualClock, SeededRng};
use apimachinery::names::{Names, Preset};
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forwarding::{AddressPolicy, ServiceLookup, ServiceMap, ServiceResolver};
use http::{Request, Response, Version};
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::json;
use serving::body::{self, Body};
use serving::certs::ensure_serving_pair;
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions, serve};
use serving::tls::{ServingTls, TlsFiles};
use tempfile::TempDir;

use crate::*;

/// A request as the webhook received it.
#[derive(Clone, Debug)]
struct ReceivedRequest {
    path: String,
    body: Bytes,
    version: Version,
    peer_port: u16,
    authorization: String,
}

/// Returns the reply of the webhook to a request: status and body. Returns None if the webhook does not reply.
type Script = Arc<dyn Fn(&ReceivedRequest) -> Option<(u16, Vec<u8>)> + Send + Sync>;

/// A webhook with a certificate for 127.0.0.1 and `hook.team.svc`.
struct Webhook {
    _dir: TempDir,
    port: u16,
    ca: String,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Webhook {
    async fn start(
        script: impl Fn(&ReceivedRequest) -> Option<(u16, Vec<u8>)> + Send + Sync + 'static,
    ) -> Webhook {
        let dir = tempfile::tempdir().unwrap();
        let hosts = ["127.0.0.1".to_owned(), "hook.team.svc".to_owned()];
        let pair = ensure_serving_pair(dir.path(), &hosts, now()).unwrap();
        let files = TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() };
        let tls = ServingTls::load(files).unwrap();
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.unwrap();
        let port = listener.address().unwrap().port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (log, script): (_, Script) = (Arc::clone(&received), Arc::new(script));
        let handler = move |request: Request<Incoming>, connection: Arc<ConnectionInfo>| {
            let (log, script) = (Arc::clone(&log), Arc::clone(&script));
            async move {
                let (head, body) = request.into_parts();
                let authorization = head.headers.get("authorization").map(|value| value.to_str().unwrap());
                let received = ReceivedRequest {
                    path: head.uri.path_and_query().unwrap().to_string(),
                    version: head.version,
                    peer_port: connection.peer.unwrap().port(),
                    authorization: authorization.unwrap_or_default().to_owned(),
                    body: body::read(body, 1 << 20, Duration::from_secs(60)).await.unwrap(),
                };
                log.lock().push(received.clone());
                match script(&received) {
                    Some((status, body)) => {
                        let mut response = Response::builder().status(status);
                        if body.starts_with(b"/") {
                            // A path in the body is also the target of a redirect.
                            response = response.header("location", body.as_slice());
                        }
                        response.body(Body::from(body)).unwrap()
                    }
                    None => std::future::pending().await,
                }
            }
        };
        // The server allows more streams than calls in flight, so that only the client limits the calls.
        let streams = u32::try_from(2 * MAX_CALLS_IN_FLIGHT).unwrap();
        let options = ServerOptions { max_concurrent_streams: streams, ..ServerOptions::default() };
        tokio::spawn(serve(listener, Some(tls), Arc::new(handler), options, std::future::pending::<()>()));
        let ca = STANDARD.encode(std::fs::read(dir.path().join("ca.crt")).unwrap());
        Webhook { _dir: dir, port, ca, received }
    }

    fn received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().clone()
    }

    fn origin(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Client configuration with a URL.
    fn url(&self, path: &str) -> ClientConfiguration {
        let url = format!("{}{path}", self.origin());
        ClientConfiguration::read(&json!({"url": url, "caBundle": self.ca})).unwrap()
    }

    /// Client configuration with the Service `hook` in the namespace `team`.
    fn service(&self) -> ClientConfiguration {
        let service = json!({"namespace": "team", "name": "hook", "path": "/check", "port": 8443});
        ClientConfiguration::read(&json!({"service": service, "caBundle": self.ca})).unwrap()
    }
}

/// Returns the system time, for the validity of certificates.
#[expect(clippy::disallowed_methods, reason = "certificates are checked against the machine's clock")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// The Service and the EndpointSlices that every lookup returns.
#[derive(Default)]
struct FixedServices {
    service: Option<Arc<Object>>,
    slices: Vec<Arc<Object>>,
}

impl FixedServices {
    fn new(service: Value, slices: &[Value]) -> Self {
        let object = |value: &Value| Arc::new(Object::from_value(value.clone()).unwrap());
        FixedServices { service: Some(object(&service)), slices: slices.iter().map(object).collect() }
    }
}

#[async_trait]
impl ServiceLookup for FixedServices {
    async fn service(&self, _: &str, _: &str) -> Result<Option<Arc<Object>>, Status> {
        Ok(self.service.clone())
    }

    async fn endpoint_slices(&self, _: &str) -> Result<Vec<Arc<Object>>, Status> {
        Ok(self.slices.clone())
    }
}

/// Creates clients whose clock moves only when the test moves it.
fn clients(stored: FixedServices, map: &str) -> (WebhookClients, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(Timestamp::UNIX_EPOCH));
    let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
    let map = ServiceMap::parse("map", map.as_bytes()).unwrap();
    let addresses = AddressPolicy::new(&["127.0.0.0/8".to_owned()]).unwrap();
    let rng = Arc::new(SeededRng::new(1));
    let services = ServiceResolver::new(Arc::new(stored), map, names.clone(), rng, Arc::new(addresses));
    let options = ClientOptions { services: Arc::new(services), names, clock: clock.clone() };
    let clients = WebhookClients::new(options);
    (clients, clock)
}

fn call(timeout: Duration) -> WebhookCall {
    WebhookCall { body: Bytes::from_static(b"{}"), timeout, response_bytes: 1000, sends_timeout: true }
}

const LONG_TIMEOUT: Duration = Duration::from_secs(60);
