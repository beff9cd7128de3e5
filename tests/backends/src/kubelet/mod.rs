//! A kubelet: logs, exec, attach, port-forward and statistics of one node, for tests.
//!
//! # Contract
//!
//! Each request needs a client certificate. Containers are folders of this machine without isolation: exec runs the
//! command as a child process, port-forward connects to the loopback address. A container exists if
//! [`Kubelet::add_container`] has added it.
//!
//! | Path | Method | Protocols |
//! |---|---|---|
//! | `/containerLogs/NAMESPACE/POD/CONTAINER` | GET | HTTP |
//! | `/exec/NAMESPACE/POD/CONTAINER`, `/attach/…` | GET, POST | SPDY/3.1 with v2 to v4; WebSocket with v4 and v5 |
//! | `/portForward/NAMESPACE/POD` | GET, POST | SPDY/3.1 |
//! | `/healthz`, `/metrics`, `/metrics/resource`, `/stats/summary`, `/pods` | any | HTTP |

mod commands;
mod logs;
mod port_forward;
mod process;
mod spdy;
mod stats;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serving::body::Body;

pub use logs::Log;

use crate::server::{CloseConnection, Peer, Server, ServingCertificate, StartError};

/// A running kubelet.
pub struct Kubelet {
    server: Server,
    state: Arc<State>,
}

/// The state that all requests share.
#[derive(Default)]
struct State {
    /// The name of the node in statistics.
    node_name: Mutex<String>,
    /// Logs of containers, by `NAMESPACE/POD/CONTAINER`.
    containers: Mutex<BTreeMap<String, Arc<Log>>>,
    /// Each request as `METHOD PATH?QUERY PROTOCOL`.
    requests: Mutex<Vec<String>>,
    /// Sizes of terminals that clients sent, in JSON.
    sizes: Mutex<Vec<String>>,
    /// The status code of the response to upgrades; None upgrades.
    refusal: Mutex<Option<u16>>,
}

impl Kubelet {
    /// Starts a kubelet. `client_ca`: the PEM bundle that client certificates must come from.
    ///
    /// # Errors
    ///
    /// The address is in use, or a certificate is invalid.
    pub async fn start(
        address: SocketAddr,
        certificate: &ServingCertificate,
        client_ca: &str,
    ) -> Result<Self, StartError> {
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let handler = move |request: Request<Incoming>, peer: Peer| {
            let state = Arc::clone(&shared);
            async move { Ok::<_, CloseConnection>(handle(&state, request, &peer)) }
        };
        let server = Server::start(address, certificate, Some(client_ca), handler).await?;
        Ok(Kubelet { server, state })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Sets the name of the node in statistics.
    pub fn set_node_name(&self, name: &str) {
        name.clone_into(&mut self.state.node_name.lock());
    }

    /// Adds a container. Returns its log.
    pub fn add_container(&self, namespace: &str, pod: &str, container: &str) -> Arc<Log> {
        let name = format!("{namespace}/{pod}/{container}");
        Arc::clone(self.state.containers.lock().entry(name).or_default())
    }

    /// Returns the requests so far, as `METHOD PATH?QUERY PROTOCOL`.
    pub fn requests(&self) -> Vec<String> {
        self.state.requests.lock().clone()
    }

    /// Returns the sizes of terminals that clients sent so far, in JSON.
    pub fn terminal_sizes(&self) -> Vec<String> {
        self.state.sizes.lock().clone()
    }

    /// Refuses all later upgrades with a status code, and leaves the connections open; None ends the refusal.
    pub fn refuse_upgrades(&self, code: Option<u16>) {
        *self.state.refusal.lock() = code;
    }
}

/// A decoded query.
struct Query(Vec<(String, String)>);

impl Query {
    fn parse(query: &str) -> Self {
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Query(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .map(|(name, value)| (decode(name), decode(value)))
                .collect(),
        )
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn text<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.all(name).next()
    }

    fn switch(&self, name: &str) -> bool {
        matches!(self.text(name), Some("1" | "true"))
    }
}

fn handle(state: &Arc<State>, request: Request<Incoming>, peer: &Peer) -> Response<Body> {
    let protocol = header(request.headers(), "upgrade").unwrap_or("HTTP").to_owned();
    state.requests.lock().push(format!("{} {} {protocol}", request.method(), request.uri()));
    if peer.certificate.is_none() {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized");
    }
    let refusal = *state.refusal.lock();
    if let Some(code) =
        refusal.filter(|_| protocol != "HTTP").and_then(|code| StatusCode::from_u16(code).ok())
    {
        return text(code, "the kubelet refuses upgrades");
    }
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let container_of = |namespace: &str, pod: &str, container: &str| {
        state.containers.lock().get(&format!("{namespace}/{pod}/{container}")).cloned()
    };
    if let Some(response) = stats::respond(state, &segments) {
        return response;
    }
    match segments.as_slice() {
        ["containerLogs", namespace, pod, container] => match container_of(namespace, pod, container) {
            Some(log) => log.respond(&query),
            None => text(StatusCode::NOT_FOUND, &format!("pod {pod:?} not found")),
        },
        [action @ ("exec" | "attach"), namespace, pod, container] => {
            if container_of(namespace, pod, container).is_none() {
                return text(StatusCode::NOT_FOUND, &format!("container not found ({container:?})"));
            }
            commands::respond(Arc::clone(state), request, &query, *action == "attach")
        }
        ["portForward", _, _] => port_forward::respond(request),
        _ => text(StatusCode::NOT_FOUND, "404 page not found"),
    }
}

/// A response with a text.
fn text(code: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{text}\n").into_bytes()));
    *response.status_mut() = code;
    response
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the elements of a header that may occur several times.
fn elements(headers: &HeaderMap, name: &str) -> Vec<String> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|element| element.trim().to_owned()).collect()
}

/// The 101 response to an upgrade.
fn switching(headers: &HashMap<&'static str, String>) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in headers {
        if let Ok(value) = http::HeaderValue::from_str(value) {
            response.headers_mut().insert(*name, value);
        }
    }
    response
}
