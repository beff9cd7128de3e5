//! Logs and streams of containers: responses to log, exec, attach and portforward.
//!
//! # Contract
//!
//! [`verbs::node_request`] has checked the request and found the kubelet. A log is a response in plain text. The other
//! subresources need an upgrade to SPDY/3.1 or WebSocket; [`forwarding::streams`] says which of them this server
//! translates. The streams run in a task, which ends with either side or at the shutdown of the server.
//!
//! # Invariants
//!
//! INVARIANT (answer or streams): except for translated streams, the client gets 101 only after the node has answered
//! 101. Any other answer of a node is an ordinary response, and the connection to the node ends with it. Translated
//! streams have no connection to a node before its 101, and never leave the WebSocket protocol.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use apimachinery::status::{Details, Reason, Status};
use bytes::Bytes;
use forwarding::streams::translator::NodeConnection;
use forwarding::streams::{
    self, ClientProtocol, CommandStreams, Outcome, STREAM_PROTOCOL_VERSION, TUNNEL_PREFIX,
};
use forwarding::{
    Appearance, Forward, Forwarded, Forwarding, Transport, TransportError, UpgradeAnswer, UpgradedStream,
};
use http::header::{CONNECTION, HeaderName, UPGRADE};
use http::response::Parts as ResponseHead;
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serving::body::{Body, BodyError};
use tokio::sync::watch;
use verbs::{ApiState, Call, ConnectOptions, NodeRequest};

use crate::long_running;
use crate::request_context::RequestContext;
use crate::response::respond::ApiResponse;
use crate::stream::OnDrop;
use crate::websocket::Handshake;

/// The protocol of the streams of a node.
const SPDY: &str = "SPDY/3.1";
/// Versions of the channel protocol that this server speaks with nodes, in the order of preference.
const CHANNEL_VERSIONS: [&str; 4] = ["v5", "v4", "v3", "v2"];
/// Maximum time for a node to answer to an upgrade.
const NODE_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum size of an error text of a node in bytes.
const MAX_ERROR_BYTES: usize = 50_000;
/// Characters that stay in a query, except blanks, which become `+`.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b' ');

/// Handles a request for log, exec, attach or portforward.
///
/// # Errors
///
/// Those of [`verbs::node_request`]. 429 above the limit of the user. 400 for streams without an upgrade. 500 if the node cannot be reached or does not
/// upgrade.
pub(super) async fn handle(
    context: &RequestContext,
    call: &Call<'_>,
    options: &ConnectOptions,
) -> Result<ApiResponse, Status> {
    context.begin_forwarded()?;
    let request = verbs::node_request(call, options).await?;
    let forwarding = &call.api_state.forwarding;
    let Some(request) = request else { return Ok(ApiResponse::empty(204)) };
    let path_and_query = path_and_query(&request);
    if call.subresource == "log" {
        let is_unverified = options.insecure_skip_tls_verify_backend;
        context.http_state.stream_metrics.count_log(is_unverified);
        let transport = if is_unverified { &forwarding.insecure_kubelets } else { &forwarding.kubelets };
        let at_shutdown = if options.follow { AtShutdown::End } else { AtShutdown::Fail };
        return log(context, call, transport, &request, &path_and_query, at_shutdown).await;
    }
    let names = &call.api_state.names;
    let channels = names.group("channel");
    let (version_5, domain) = (format!("v5.{channels}"), format!(".{}", names.api_domain()));
    let protocol = ClientProtocol::of(&context.head.headers, call.subresource, &version_5, &domain);
    if !forwarding::headers::is_upgrade(&context.head.headers) {
        return Err(Status::bad_request("Upgrade request required"));
    }
    match protocol {
        ClientProtocol::PassThrough => pass_through(context, call, &request, path_and_query).await,
        ClientProtocol::Translated => translate(context, call, request, &path_and_query, &version_5).await,
        ClientProtocol::Tunnelled(protocols) => {
            tunnel(context, call, &request, &path_and_query, &protocols).await
        }
    }
}

/// Encodes the path and the query of a request to a kubelet.
fn path_and_query(request: &NodeRequest) -> String {
    let encode = |text: &str| utf8_percent_encode(text, QUERY).to_string().replace(' ', "+");
    let query: Vec<String> =
        request.query.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
    if query.is_empty() { request.path.clone() } else { format!("{}?{}", request.path, query.join("&")) }
}

/// Returns the log of a container.
async fn log(
    context: &RequestContext,
    call: &Call<'_>,
    transport: &Transport,
    request: &NodeRequest,
    path_and_query: &str,
    at_shutdown: AtShutdown,
) -> Result<ApiResponse, Status> {
    let failure = |error: &dyn std::fmt::Display| {
        let url = format!("{}{path_and_query}", request.target.origin());
        Status::failure(Reason::Unknown, format!("Get {url:?}: {error}"))
    };
    let get = Request::get(path_and_query).body(Body::empty()).map_err(|error| failure(&error))?;
    let answer = until_stopped(call.api_state, transport.send(&request.target, get)).await?;
    let response = answer.map_err(|error| {
        if matches!(error, TransportError::Tls(_)) {
            context.http_state.stream_metrics.count_log_tls_failure();
        }
        failure(&error)
    })?;
    if !(200..=206).contains(&response.status().as_u16()) {
        return Err(log_failure(call.name, response).await);
    }
    let finish = long_running::begin(context, &call.collection.kind, 200).await;
    let stopping = call.api_state.stopping.clone();
    let body = StoppableBody::new(
        long_running::limit_unwritten(response.into_body()),
        finish,
        stopping,
        at_shutdown,
    );
    Ok(ApiResponse::plain_stream(Body::stream(body)))
}

/// Returns the Status for an unsuccessful response to a request for a log.
async fn log_failure(pod: &str, response: Response<Body>) -> Status {
    let code = response.status().as_u16();
    let text = match read_error(response).await {
        Ok(text) => text,
        Err(error) => return Status::internal(error),
    };
    match code {
        500 => Status::internal(text),
        400 => Status::bad_request(text),
        _ => {
            let details = Details { name: pod.to_owned(), kind: "pods/log".to_owned(), ..Details::default() };
            Status::of_response(code, &format!(" pods/log {pod}"), &text).with_details(details)
        }
    }
}

/// Reads the text of an unsuccessful response of a node, up to [`MAX_ERROR_BYTES`].
async fn read_error(response: Response<Body>) -> Result<String, BodyError> {
    let mut body = response.into_body();
    let mut text = Vec::new();
    while let Some(frame) = tokio::time::timeout(NODE_TIMEOUT, body.frame()).await? {
        text.extend_from_slice(frame?.data_ref().map_or(&[], Bytes::as_ref));
        if text.len() >= MAX_ERROR_BYTES {
            text.truncate(MAX_ERROR_BYTES);
            break;
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The end of a response body that a client sees when the server shuts down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtShutdown {
    /// A clean end, for bodies that have no end of their own, such as watches.
    End,
    /// A broken transfer, so that no client takes a part for the whole.
    Fail,
}

/// The body of a backend as a response body, which ends at the shutdown of the server.
pub(super) struct StoppableBody {
    body: Body,
    at_shutdown: AtShutdown,
    /// Whether the shutdown has ended the body.
    is_cut: bool,
    stopping: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Dropped with the body.
    _finish: OnDrop,
}

impl StoppableBody {
    /// `finish` is dropped with the body.
    pub(super) fn new(
        body: Body,
        finish: OnDrop,
        stopping: watch::Receiver<bool>,
        at_shutdown: AtShutdown,
    ) -> Self {
        let stopping = Box::pin(stopped(stopping));
        StoppableBody { body, at_shutdown, is_cut: false, stopping, _finish: finish }
    }
}

impl http_body::Body for StoppableBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if self.is_cut {
            return Poll::Ready(None);
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        // A body that is complete before the shutdown ends cleanly.
        if matches!(frame, Poll::Ready(None)) {
            return frame;
        }
        if self.stopping.as_mut().poll(context).is_pending() {
            return frame;
        }
        self.is_cut = true;
        match self.at_shutdown {
            AtShutdown::End => Poll::Ready(None),
            AtShutdown::Fail => {
                Poll::Ready(Some(Err("the server stopped before the end of the response".into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Waits for the answer of a backend.
///
/// # Errors
///
/// 503: the server stops first. The backend may have received the request, so the client is not told to repeat it.
pub(super) async fn until_stopped<T>(
    api_state: &ApiState,
    answer: impl Future<Output = T>,
) -> Result<T, Status> {
    tokio::select! {
        biased;
        answer = answer => Ok(answer),
        () = stopped(api_state.stopping.clone()) => {
            let text = "the server is stopping and the backend has not answered";
            Err(Status::failure(Reason::ServiceUnavailable, text))
        }
    }
}

/// Waits until the server stops.
async fn stopped(mut stopping: watch::Receiver<bool>) {
    if stopping.wait_for(|is_stopping| *is_stopping).await.is_err() {
        // Without a sender the server never stops.
        std::future::pending().await
    }
}

/// Runs streams in a task until they end or the server stops. `finish` is dropped with them.
pub(super) fn spawn(
    api_state: &ApiState,
    finish: OnDrop,
    streams: impl Future<Output = ()> + Send + 'static,
) {
    let stopping = api_state.stopping.clone();
    tokio::spawn(async move {
        let _finish = finish;
        tokio::select! {
            () = streams => {}
            () = stopped(stopping) => {}
        }
    });
}

/// Forwards the upgrade to the node, and then the bytes of both sides.
async fn pass_through(
    context: &RequestContext,
    call: &Call<'_>,
    request: &NodeRequest,
    path_and_query: String,
) -> Result<ApiResponse, Status> {
    let forward = Forward {
        hops: &call.api_state.forwarding.hops,
        transport: &call.api_state.forwarding.kubelets,
        target: &request.target,
        path_and_query,
        client: context.connection.peer.map(|peer| peer.ip()),
        appearance: Appearance::Below { prefix: String::new() },
        user: None,
        extra_headers: Vec::new(),
    };
    let answer = forwarding::forward(&context.head, Body::empty(), forward);
    match until_stopped(call.api_state, answer).await?? {
        Forwarded::Response(response) => Ok(ApiResponse::forwarded(response)),
        Forwarded::Upgraded { head, tunnel } => {
            let finish = long_running::begin(context, &call.collection.kind, 101).await;
            spawn(call.api_state, finish, async move {
                tunnel.run().await;
            });
            Ok(ApiResponse::switching_protocols(upgrade_headers(&head)))
        }
    }
}

/// Returns the headers of a 101 of a node for the client.
pub(super) fn upgrade_headers(head: &ResponseHead) -> Vec<(HeaderName, HeaderValue)> {
    head.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Translates the channels of a WebSocket to the SPDY streams of the node.
async fn translate(
    context: &RequestContext,
    call: &Call<'_>,
    request: NodeRequest,
    path_and_query: &str,
    version_5: &str,
) -> Result<ApiResponse, Status> {
    let handshake = Handshake::from_head(&context.head)?.ok_or_else(upgrade_required)?;
    let handshake = handshake.with_protocol(Some(version_5));
    let channels = call.api_state.names.group("channel");
    let versions: Vec<String> =
        CHANNEL_VERSIONS.iter().map(|version| format!("{version}.{channels}")).collect();
    let upgrade = node_upgrade(path_and_query, HeaderMap::new(), &versions)?;
    let has = |stream: &str| request.streams.contains(&stream);
    let streams =
        CommandStreams { stdin: has("stdin"), stdout: has("stdout"), stderr: has("stderr"), tty: has("tty") };
    let forwarding = std::sync::Arc::clone(&call.api_state.forwarding);
    let url = format!("{}{path_and_query}", request.target.origin());
    let response = ApiResponse::switching_protocols(handshake.headers.clone());
    let counter = context.http_state.stream_metrics.clone();
    let finish = long_running::begin(context, &call.collection.kind, 101).await;
    spawn(call.api_state, finish, async move {
        let client = match handshake.upgrade().await {
            Ok(client) => client,
            Err(error) => return tracing::debug!(%error, "websocket upgrade failed; command not started"),
        };
        let node = connect_node(&forwarding, &request, upgrade, &url);
        match streams::translate(client, node, streams).await {
            Ok(outcome) => counter.count_translated(outcome.code()),
            Err(error) => tracing::debug!(%error, "client ended the streams of a command"),
        }
    });
    Ok(response)
}

/// Connects to the node for the streams of a command. `url` appears in errors.
async fn connect_node(
    forwarding: &Forwarding,
    request: &NodeRequest,
    upgrade: Request<Body>,
    url: &str,
) -> Result<NodeConnection<UpgradedStream>, Outcome> {
    let failure = |error: &dyn std::fmt::Display| {
        Outcome::internal(format!("error sending request: Post {url:?}: {error}"))
    };
    let answer = forwarding.kubelets.upgrade(&request.target, upgrade);
    match tokio::time::timeout(NODE_TIMEOUT, answer).await {
        Err(_elapsed) => Err(failure(&"the node did not answer in time")),
        Ok(Err(error)) => Err(failure(&error)),
        Ok(Ok(UpgradeAnswer::Refused(response))) if response.status().is_redirection() => {
            Err(failure(&"redirect not allowed"))
        }
        Ok(Ok(UpgradeAnswer::Refused(response))) => {
            let body = read_error(response).await.unwrap_or_else(|error| error.to_string());
            Err(Outcome::refused(body.as_bytes()))
        }
        Ok(Ok(UpgradeAnswer::Upgraded { head, .. })) if !is_spdy(&head.headers) => {
            Err(Outcome::refused(b"the node did not upgrade to SPDY/3.1"))
        }
        Ok(Ok(UpgradeAnswer::Upgraded { head, stream })) => {
            let protocol = selected_protocol(&head.headers).unwrap_or_default().to_owned();
            Ok(NodeConnection { stream, protocol })
        }
    }
}

/// Carries the SPDY bytes in the messages of a WebSocket to the node.
async fn tunnel(
    context: &RequestContext,
    call: &Call<'_>,
    request: &NodeRequest,
    path_and_query: &str,
    protocols: &[String],
) -> Result<ApiResponse, Status> {
    let handshake = Handshake::from_head(&context.head)?.ok_or_else(upgrade_required)?;
    let failure = |text: String| Status::failure(Reason::Unknown, text);
    let client = context.connection.peer.map(|peer| peer.ip());
    let mut headers = forwarding::headers::for_backend(&context.head.headers, client);
    let websocket_headers =
        headers.keys().filter(|name| name.as_str().starts_with("sec-websocket-")).cloned();
    for name in websocket_headers.collect::<Vec<_>>() {
        headers.remove(name);
    }
    let upgrade = node_upgrade(path_and_query, headers, protocols)?;
    let counter = &context.http_state.stream_metrics;
    let answer = call.api_state.forwarding.kubelets.upgrade(&request.target, upgrade);
    let answer = until_stopped(call.api_state, answer).await?;
    let (head, stream) = match answer {
        Err(error) => {
            counter.count_tunnelled(500);
            let is_connect = error.is_connect();
            return Err(failure(if is_connect {
                format!("error dialing backend: {error}")
            } else {
                error.to_string()
            }));
        }
        Ok(UpgradeAnswer::Refused(response)) => {
            let code = response.status().as_u16();
            counter.count_tunnelled(code);
            return match code {
                400.. => Ok(ApiResponse::forwarded(response)),
                _ => Err(failure(format!("invalid upgrade response: status code {code}"))),
            };
        }
        Ok(UpgradeAnswer::Upgraded { head, .. }) if !is_spdy(&head.headers) => {
            counter.count_tunnelled(500);
            return Err(failure("unable to upgrade: missing upgrade headers in response".to_owned()));
        }
        Ok(UpgradeAnswer::Upgraded { head, stream }) => (head, stream),
    };
    counter.count_tunnelled(101);
    let selected = selected_protocol(&head.headers)
        .filter(|selected| protocols.iter().any(|offered| offered == selected));
    let selected = selected.map(|protocol| format!("{TUNNEL_PREFIX}{protocol}"));
    let handshake = handshake.with_protocol(selected.as_deref());
    let response = ApiResponse::switching_protocols(handshake.headers.clone());
    let finish = long_running::begin(context, &call.collection.kind, 101).await;
    spawn(call.api_state, finish, async move {
        let client = match handshake.upgrade().await {
            Ok(client) => client,
            Err(error) => return tracing::debug!(%error, "websocket upgrade failed; tunnel ended"),
        };
        if let Err(error) = streams::tunnel(client, stream).await {
            tracing::debug!(%error, "tunnel ended");
        }
    });
    Ok(response)
}

/// Builds the request for SPDY streams of a node.
fn node_upgrade(
    path_and_query: &str,
    mut headers: HeaderMap,
    protocols: &[String],
) -> Result<Request<Body>, Status> {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
    headers.remove(&STREAM_PROTOCOL_VERSION);
    for protocol in protocols {
        let value =
            HeaderValue::from_str(protocol).map_err(|error| Status::bad_request(error.to_string()))?;
        headers.append(&STREAM_PROTOCOL_VERSION, value);
    }
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path_and_query.parse().map_err(Status::internal)?;
    *request.headers_mut() = headers;
    Ok(request)
}

fn is_spdy(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(SPDY.as_bytes()))
}

/// Returns the protocol that the node selected for its streams.
fn selected_protocol(headers: &HeaderMap) -> Option<&str> {
    headers.get(&STREAM_PROTOCOL_VERSION)?.to_str().ok().map(str::trim).filter(|name| !name.is_empty())
}

fn upgrade_required() -> Status {
    Status::bad_request("Upgrade request required")
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt as _, stream};
    use http_body_util::StreamBody;

    use super::*;

    #[test]
    fn query_is_encoded_as_in_kube_apiserver() {
        // See `QUERY`: a blank is a plus sign, a comma and a colon are escaped.
        for (text, expected) in
            [("a b", "a+b"), ("80,90", "80%2C90"), ("T03:04", "T03%3A04"), ("é+&=", "%C3%A9%2B%26%3D")]
        {
            let encoded = utf8_percent_encode(text, QUERY).to_string().replace(' ', "+");
            assert_eq!(encoded, expected);
        }
    }

    #[tokio::test]
    async fn shutdown_cuts_a_body_and_ends_a_followed_one() {
        for (at_shutdown, is_complete, is_error) in [
            (AtShutdown::End, false, false),
            (AtShutdown::Fail, false, true),
            (AtShutdown::Fail, true, false),
        ] {
            let (stop, stopping) = watch::channel(false);
            let first = stream::iter([Ok::<_, BodyError>(Frame::data(Bytes::from_static(b"part")))]);
            let body = match is_complete {
                true => Body::stream(StreamBody::new(first)),
                false => Body::stream(StreamBody::new(first.chain(stream::pending()))),
            };
            let mut body = StoppableBody::new(body, OnDrop::new(|| ()), stopping, at_shutdown);
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "part");
            stop.send_replace(true);
            let last = body.frame().await;
            assert_eq!(last.is_some_and(|last| last.is_err()), is_error, "{at_shutdown:?}");
            assert!(body.frame().await.is_none(), "{at_shutdown:?}");
        }
    }

    #[tokio::test]
    async fn failures_of_logs_have_texts_of_kube_apiserver() {
        for (code, text, expected_code, expected) in [
            (
                404,
                "pod \"p\" not found",
                404,
                "the server could not find the requested resource ( pods/log p)",
            ),
            (400, "no such option", 400, "no such option"),
            (500, "broken", 500, "Internal error occurred: broken"),
            (
                502,
                "bad",
                502,
                "an error on the server (\"bad\") has prevented the request from succeeding ( pods/log p)",
            ),
            (403, "not you", 403, "not you ( pods/log p)"),
            (
                301,
                "",
                301,
                "the server responded with the status code 301 but did not return more information ( pods/log p)",
            ),
        ] {
            let mut response = Response::new(Body::from(text));
            *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
            let status = log_failure("p", response).await;
            assert_eq!((status.code, status.message.as_str()), (expected_code, expected));
        }
    }
}
