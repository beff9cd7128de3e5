//! Reverse proxying of one request.
//!
//! # Contract
//!
//! [`forward`] sends a request of a client to a backend and returns the answer for the client. Bodies are streamed in
//! both directions; a side that does not read stops the other. A request for an upgrade becomes a [`Tunnel`] if the
//! backend answers 101.
//!
//! # Invariants
//!
//! INVARIANT (answer or tunnel): the connection of the client leaves HTTP only after the backend has answered 101. Any
//! other answer to an upgrade request is an answer in HTTP, and the connection to the backend ends with it. A request
//! that follows on the connection of the client is authenticated and authorized as any other. The 101 names a
//! protocol that the client requested; a switch to HTTP or TLS is never forwarded.
//! INVARIANT (no redirect): a redirect is returned to the client or becomes an error; apid follows none.
//!
//! # Reference
//!
//! Kubernetes' `UpgradeAwareHandler` and `proxy.Transport`. As there, a backend that answers an upgrade request with a
//! status below 400 other than 101 gives the client an error.

use std::net::IpAddr;

use apimachinery::status::{Reason, Status};
use apimachinery::user::UserInfo;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use hyper::upgrade::OnUpgrade;
use serving::body::Body;

use crate::headers::{self, UnsendableUser};
use crate::rewriting::{self, BackendNames};
use crate::{FORWARDED_BY, Hops, LoopDetected, Target, Transport, TransportError, Tunnel, UpgradeAnswer};

const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Body of the answer to a redirect of an aggregated API, with the words of Kubernetes.
const REDIRECT_REJECTED: &str = "the backend attempted to redirect this request, which is not permitted";

/// The options for forwarding a request.
pub struct Forward<'a> {
    /// The name of this process in forwarded requests.
    pub hops: &'a Hops,
    /// Connections to the backend.
    pub transport: &'a Transport,
    /// The backend.
    pub target: &'a Target,
    /// Path and query at the backend, encoded, with a leading slash.
    pub path_and_query: String,
    /// Address of the client, for `X-Forwarded-For`.
    pub client: Option<IpAddr>,
    /// The appearance of the backend to the client.
    pub appearance: Appearance,
    /// User to name in `X-Remote-*`; None for backends that do not trust this server.
    pub user: Option<&'a UserInfo>,
    /// Further headers for the backend, which replace those of the client.
    pub extra_headers: Vec<(HeaderName, HeaderValue)>,
}

/// The appearance of a backend to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appearance {
    /// Below a path of this server: `Location` and `Set-Cookie` get the prefix. The backend gets the header `Host` of
    /// the client.
    Below {
        /// Path up to and with `proxy`, encoded, without slash at the end.
        prefix: String,
    },
    /// As a part of this server: the backend gets its own name as `Host`, and a redirect becomes 502.
    Aggregated,
}

/// The answer of a backend. `Debug` shows the status only.
pub enum Forwarded {
    /// A response in HTTP.
    Response(Response<Body>),
    /// 101. The caller sends the head to the client and runs the tunnel.
    Upgraded {
        /// The head of the response.
        head: http::response::Parts,
        /// The connection.
        tunnel: Tunnel,
    },
}

impl std::fmt::Debug for Forwarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Forwarded::Response(response) => write!(f, "Response({})", response.status()),
            Forwarded::Upgraded { head, .. } => write!(f, "Upgraded({})", head.status),
        }
    }
}

/// A request without an answer of the backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The exchange failed.
    #[error("error trying to reach service: {0}")]
    Unreachable(TransportError),
    /// The exchange of an upgrade request failed before the request was sent.
    #[error("error dialing backend: {0}")]
    Dial(TransportError),
    /// The exchange of an upgrade request failed later.
    #[error("{0}")]
    Upgrade(TransportError),
    /// The backend answered an upgrade request with a status below 400.
    #[error("invalid upgrade response: status code {0}")]
    InvalidUpgrade(u16),
    /// The backend switched to a protocol that the client did not request.
    #[error("invalid upgrade response: the backend did not switch to the requested protocol")]
    ForeignProtocol,
    /// The request has come back to this process.
    #[error(transparent)]
    Loop(#[from] LoopDetected),
    /// The path or a header cannot be sent.
    #[error("the request cannot be forwarded: {0}")]
    Request(String),
    /// The user cannot be named to the backend.
    #[error(transparent)]
    User(#[from] UnsendableUser),
}

impl From<ForwardError> for Status {
    fn from(error: ForwardError) -> Status {
        let reason = match error {
            ForwardError::Loop(detected) => return detected.into(),
            ForwardError::Unreachable(_) => Reason::ServiceUnavailable,
            ForwardError::Request(_) | ForwardError::User(_) => Reason::BadRequest,
            ForwardError::Dial(_)
            | ForwardError::Upgrade(_)
            | ForwardError::InvalidUpgrade(_)
            | ForwardError::ForeignProtocol => Reason::Unknown,
        };
        Status::failure(reason, error.to_string())
    }
}

/// Forwards a request to a backend. The result is ready when the head of the response has arrived.
///
/// `head` is the request of the client with the extension that hyper adds to requests for an upgrade.
///
/// # Errors
///
/// See [`ForwardError`]. Dropping the future cancels the request.
pub async fn forward(head: &Parts, body: Body, forward: Forward<'_>) -> Result<Forwarded, ForwardError> {
    let client_upgrade = match headers::is_upgrade(&head.headers) {
        true => head.extensions.get::<OnUpgrade>().cloned(),
        false => None,
    };
    let request = backend_request(head, body, &forward, client_upgrade.is_some())?;
    match client_upgrade {
        Some(client) => forward_upgrade(head, request, &forward, client).await,
        None => {
            let response = forward.transport.send(forward.target, request).await;
            let response = response.map_err(ForwardError::Unreachable)?;
            Ok(Forwarded::Response(forward.for_client(head, response)))
        }
    }
}

async fn forward_upgrade(
    head: &Parts,
    request: Request<Body>,
    forward: &Forward<'_>,
    client: OnUpgrade,
) -> Result<Forwarded, ForwardError> {
    let answer = forward.transport.upgrade(forward.target, request).await.map_err(|error| {
        if error.is_connect() { ForwardError::Dial(error) } else { ForwardError::Upgrade(error) }
    })?;
    match answer {
        UpgradeAnswer::Upgraded { head: answer, .. }
            if !headers::switches_as_requested(&head.headers, &answer.headers) =>
        {
            Err(ForwardError::ForeignProtocol)
        }
        UpgradeAnswer::Upgraded { mut head, stream } => {
            headers::remove_cross_origin(&mut head.headers);
            Ok(Forwarded::Upgraded { head, tunnel: Tunnel::new(client, stream) })
        }
        UpgradeAnswer::Refused(response) if response.status().as_u16() >= 400 => {
            Ok(Forwarded::Response(forward.for_client(head, response)))
        }
        UpgradeAnswer::Refused(response) => Err(ForwardError::InvalidUpgrade(response.status().as_u16())),
    }
}

/// Builds the request for the backend.
fn backend_request(
    head: &Parts,
    body: Body,
    forward: &Forward<'_>,
    is_upgrade: bool,
) -> Result<Request<Body>, ForwardError> {
    let invalid = |error: &dyn std::fmt::Display| ForwardError::Request(error.to_string());
    let uri: Uri = forward.path_and_query.parse().map_err(|error| invalid(&error))?;
    let forwarded_by = forward.hops.next(&head.headers)?;
    let mut headers = headers::for_backend(&head.headers, forward.client);
    headers.insert(FORWARDED_BY, forwarded_by);
    if http_body::Body::is_end_stream(&body) && head.headers.contains_key(CONTENT_LENGTH) {
        // Some backends reject a POST without a length.
        headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
    }
    if !is_upgrade {
        headers.remove(http::header::CONNECTION);
        headers.remove(http::header::UPGRADE);
    }
    let mut insert = |name: HeaderName, text: &str| {
        let value = HeaderValue::from_str(text).map_err(|error| ForwardError::Request(error.to_string()))?;
        headers.insert(name, value);
        Ok::<(), ForwardError>(())
    };
    match &forward.appearance {
        Appearance::Below { prefix } => {
            if let Some(host) = request_host(head) {
                insert(HOST, host)?;
            }
            if !is_upgrade {
                insert(X_FORWARDED_URI, &format!("{prefix}{}", uri.path()))?;
            }
        }
        Appearance::Aggregated => {
            let authority = forward.target.authority();
            insert(HOST, &authority)?;
            if !is_upgrade {
                insert(X_FORWARDED_URI, uri.path())?;
                insert(X_FORWARDED_HOST, &authority)?;
                insert(X_FORWARDED_PROTO, "https")?;
            }
        }
    }
    for (name, value) in &forward.extra_headers {
        headers.insert(name, value.clone());
    }
    if let Some(user) = forward.user {
        headers::set_remote_user(&mut headers, user)?;
    }
    let mut request = Request::new(without_trailers(body));
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}

/// The host that the client asked for: the header `Host`, or the authority in HTTP/2.
fn request_host(head: &Parts) -> Option<&str> {
    let header = head.headers.get(HOST).and_then(|host| host.to_str().ok());
    header.or_else(|| head.uri.authority().map(|authority| authority.as_str()))
}

/// Drops the trailers of a body: a backend could take them for headers.
fn without_trailers(body: Body) -> Body {
    if body.as_whole().is_some() {
        return body;
    }
    Body::stream(WithoutTrailers(body))
}

impl Forward<'_> {
    /// Prepares a response of the backend for the client.
    fn for_client(&self, head: &Parts, mut response: Response<Body>) -> Response<Body> {
        let headers = response.headers_mut();
        headers::remove_hop_by_hop(headers);
        headers::remove_cross_origin(headers);
        match &self.appearance {
            Appearance::Below { prefix } => {
                let authority = self.target.authority();
                let request_host = request_host(head).unwrap_or_default();
                rewriting::rewrite(headers, &BackendNames { prefix, authority: &authority, request_host });
                response
            }
            Appearance::Aggregated if is_redirect(&response) => rejected_redirect(),
            Appearance::Aggregated => response,
        }
    }
}

fn is_redirect(response: &Response<Body>) -> bool {
    let has_location = response.headers().get(LOCATION).is_some_and(|location| !location.is_empty());
    response.status().is_redirection() && has_location
}

fn rejected_redirect() -> Response<Body> {
    let mut response = Response::new(Body::from(REDIRECT_REJECTED));
    *response.status_mut() = StatusCode::BAD_GATEWAY;
    *response.headers_mut() = HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (CONTENT_LENGTH, HeaderValue::from(REDIRECT_REJECTED.len())),
    ]);
    response
}

/// A body without its trailers.
struct WithoutTrailers(Body);

impl http_body::Body for WithoutTrailers {
    type Data = bytes::Bytes;
    type Error = serving::body::BodyError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
        let frame = std::task::ready!(std::pin::Pin::new(&mut self.0).poll_frame(context));
        // Trailers are the last frame.
        std::task::Poll::Ready(frame.filter(|frame| !matches!(frame, Ok(frame) if frame.is_trailers())))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.0.size_hint()
    }
}
