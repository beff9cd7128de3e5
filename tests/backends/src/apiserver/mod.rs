//! An extension API server with the groups `flavors.example.com`, `metrics.k8s.io` and `echo.example.com`.
//!
//! # Contract
//!
//! | group | content |
//! |---|---|
//! | `flavors.example.com/v1` | the kind Flavor in namespaces: storage in memory, merge patches, Table, watch, an upgrade |
//! | `metrics.k8s.io/v1beta1` | use of CPU and memory of nodes and pods, for `kubectl top`; no Table |
//! | `echo.example.com/v1` | a response that tells what arrived; see [`echo`] |
//!
//! The server has discovery in both forms, and OpenAPI v2 and v3 with ETags. The model `ObjectMeta` of its OpenAPI v2
//! has the name of the model of apid and another content.
//!
//! With [`ApiServerOptions::proxy_ca`] a request needs a client certificate of that CA with an allowed common name, and
//! the header `X-Remote-User`; every other request gets 401. A created Flavor names its user in an annotation.

mod documents;
mod echo;
mod flavors;
mod metrics;
mod storage;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serving::body::Body;

use crate::server::{CloseConnection, Peer, Server, ServingCertificate, StartError};
pub use storage::Storage;

/// Options of the server.
#[derive(Clone, Debug)]
pub struct ApiServerOptions {
    /// The PEM bundle that the certificates of proxies must come from; None accepts every client.
    pub proxy_ca: Option<String>,
    /// The common names that certificates of proxies may have; empty: each name.
    pub allowed_names: Vec<String>,
    /// The time that each response waits.
    pub delay: Duration,
    /// Whether `/apis` also has the aggregated form.
    pub has_aggregated_discovery: bool,
    /// Whether the server has OpenAPI 3.
    pub has_openapi_v3: bool,
    /// The answer to `deletecollection`.
    pub delete_collection: DeleteCollection,
    /// The page size of lists of Flavors. Without one, a list has a single page.
    pub page: Option<usize>,
    /// The maximum number of Flavors of a list. A longer list fails with status 500.
    pub max_listed: Option<usize>,
    /// The stored Flavors; several servers may share them, one after the other.
    pub storage: Arc<Storage>,
}

impl Default for ApiServerOptions {
    fn default() -> Self {
        ApiServerOptions {
            proxy_ca: None,
            allowed_names: Vec::new(),
            delay: Duration::ZERO,
            has_aggregated_discovery: true,
            has_openapi_v3: true,
            delete_collection: DeleteCollection::default(),
            page: None,
            max_listed: None,
            storage: Arc::default(),
        }
    }
}

/// The verb `deletecollection` of Flavors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeleteCollection {
    /// Neither announced nor served.
    #[default]
    Absent,
    /// Announced and served.
    Served,
    /// Announced, and rejected with 405.
    Announced,
}

/// A request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// The method.
    pub method: String,
    /// The path, percent-encoded.
    pub path: String,
    /// The query without the question mark; empty without a query.
    pub query: String,
    /// The headers in their order, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body; empty for an upgrade.
    pub body: String,
    /// The common name of the client certificate.
    pub client: Option<String>,
}

impl SeenRequest {
    /// Returns the values of a header, in order.
    pub fn header(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// A running extension API server.
pub struct ApiServer {
    server: Server,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
}

/// The state that requests share.
struct State {
    options: ApiServerOptions,
    seen: Arc<Mutex<Vec<SeenRequest>>>,
}

impl ApiServer {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// The address is in use, or a certificate is invalid.
    pub async fn start(
        address: SocketAddr,
        certificate: &ServingCertificate,
        options: ApiServerOptions,
    ) -> Result<Self, StartError> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let proxy_ca = options.proxy_ca.clone();
        let state = Arc::new(State { options, seen: Arc::clone(&seen) });
        let handler = move |request, peer| {
            let state = Arc::clone(&state);
            async move { handle(&state, request, &peer).await }
        };
        let server = Server::start(address, certificate, proxy_ca.as_deref(), handler).await?;
        Ok(ApiServer { server, seen })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns and forgets the requests that have arrived, in order.
    pub fn take_seen(&self) -> Vec<SeenRequest> {
        std::mem::take(&mut self.seen.lock())
    }
}

/// A response, or the end of the connection.
type Answer = Result<Response<Body>, CloseConnection>;

async fn handle(state: &State, mut request: Request<Incoming>, peer: &Peer) -> Answer {
    let upgrade =
        request.headers().contains_key(http::header::UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let client = peer.certificate.as_ref().and_then(common_name);
    let body = match upgrade {
        // The bytes after an upgrade are no body.
        Some(_) => Bytes::new(),
        None => body.collect().await.map_err(|_| CloseConnection)?.to_bytes(),
    };
    let seen = seen_request(&head, &body, client.clone());
    state.seen.lock().push(seen.clone());
    tokio::time::sleep(state.options.delay).await;
    let Some(user) = authenticate(&state.options, &head.headers, client.as_deref()) else {
        return Ok(failure(401, "Unauthorized", "Unauthorized"));
    };
    let segments: Vec<&str> = head.uri.path().split('/').skip(1).collect();
    match segments.as_slice() {
        ["apis"] | ["apis", _] | ["apis", _, _] | ["openapi", ..] => {
            Ok(documents::respond(&head, &state.options))
        }
        ["apis", flavors::GROUP, flavors::VERSION, rest @ ..] => {
            Ok(flavors::respond(&state.options, &head, rest, &body, &user, upgrade))
        }
        ["apis", metrics::GROUP, metrics::VERSION, rest @ ..] => Ok(metrics::respond(&head, rest)),
        ["apis", echo::GROUP, echo::VERSION, ..] => echo::respond(&head, &seen).await,
        _ => Ok(text(404, "404 page not found\n")),
    }
}

/// Returns the user of a request; None for a request that must be rejected.
fn authenticate(options: &ApiServerOptions, headers: &HeaderMap, client: Option<&str>) -> Option<String> {
    let user = headers.get("x-remote-user").and_then(|value| value.to_str().ok()).map(str::to_owned);
    if options.proxy_ca.is_none() {
        return Some(user.unwrap_or_default());
    }
    let is_allowed = |name: &&str| {
        options.allowed_names.is_empty() || options.allowed_names.iter().any(|allowed| allowed == name)
    };
    client.filter(is_allowed)?;
    user.filter(|user| !user.is_empty())
}

fn common_name(certificate: &Bytes) -> Option<String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.to_owned())
}

fn seen_request(head: &Parts, body: &Bytes, client: Option<String>) -> SeenRequest {
    let headers = head.headers.iter().map(|(name, value)| {
        (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    SeenRequest {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: headers.collect(),
        body: String::from_utf8_lossy(body).into_owned(),
        client,
    }
}

/// Whether the client accepts one of these parts of a media type. Without `Accept` it accepts everything.
fn accepts(head: &Parts, parts: &[&str]) -> bool {
    let accepted = head.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut accepted = accepted.peekable();
    accepted.peek().is_none() || accepted.any(|value| parts.iter().any(|part| value.contains(part)))
}

/// Whether the client accepts JSON.
fn accepts_json(head: &Parts) -> bool {
    accepts(head, &["application/json", "application/*", "*/*"])
}

/// Returns the decoded value of a query parameter; empty without the parameter.
fn parameter(head: &Parts, name: &str) -> String {
    let pairs = head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let mut values = pairs.filter(|(known, _)| *known == name).map(|(_, value)| value);
    let value = values.next().unwrap_or_default().replace("%3D", "=").replace("%3d", "=");
    value.replace("%2C", ",").replace("%2c", ",").replace("%2F", "/").replace("%2f", "/")
}

fn document(status: u16, value: &Value) -> Response<Body> {
    respond(status, "application/json", format!("{value}\n"))
}

fn text(status: u16, text: &str) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", text.to_owned())
}

fn respond(status: u16, media_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

/// Returns a Status of a failure.
fn failure(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    document(code, &status)
}
