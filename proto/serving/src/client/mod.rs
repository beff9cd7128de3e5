//! HTTPS client: private CA bundle, client certificate, proxy; requests limited in size and time.
//!
//! [`Client`] is the connection pool for known URLs, such as the discovery documents of identity providers.
//! [`Remote`] uses a [`Client`] and implements a client configuration file: a server with the credentials of
//! a user, which may change while the process runs. [`retry`] implements retries for webhooks.
//!
//! # Contract
//!
//! The server chooses HTTP/1.1 or HTTP/2. Connections are reused; HTTP/2 connections are pinged. A call ends
//! within [`Limits::within`], including name resolution, connection, handshake and response. A response is
//! complete or an error; every status is a response. The client returns redirects and does not follow them. A
//! client without a proxy in its settings uses the proxy of the environment (`HTTPS_PROXY`, `HTTP_PROXY`,
//! `ALL_PROXY`, `NO_PROXY`), never for loopback addresses.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay out): no error and no `Debug` in this module contains a header, a body or a key.
//! INVARIANT (verified peer): only [`Trust::Insecure`] accepts an unverified certificate; it must be set
//! explicitly.

mod connect;
pub mod remote;
pub mod retry;
mod tls_end;

use std::error::Error;
use std::time::Duration;

use apimachinery::codec::{self, DecodeError};
use apimachinery::object::Value;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::{self, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::body;
use connect::Connector;

pub use crate::trust::{Identity, SettingsError, Trust};
pub use connect::Proxy;
pub use remote::Remote;

/// Time after which an unused connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum number of idle connections per server.
const MAX_IDLE_CONNECTIONS: usize = 32;
/// Interval of pings on a silent HTTP/2 connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time for the response to a ping, after which the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// Settings for connections to servers.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Server certificates to trust.
    pub trust: Trust,
    /// Name to verify in the certificate of the server and to send as SNI; None means the host of the URL.
    pub server_name: Option<String>,
    /// Client certificate for servers that request one.
    pub identity: Option<Identity>,
    /// Proxy to use.
    pub proxy: Proxy,
    /// `User-Agent`.
    pub user_agent: String,
    /// Whether a TLS connection may end without the alert `close_notify`, as in Go.
    ///
    /// An attacker can then cut a response that has neither a length nor chunks. So only [`Remote`] has this
    /// setting: its responses are JSON objects or have checksums, so a truncated one is invalid.
    pub accepts_missing_close: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            trust: Trust::System,
            server_name: None,
            identity: None,
            proxy: Proxy::Environment,
            user_agent: concat!("apid/", env!("CARGO_PKG_VERSION")).to_owned(),
            accepts_missing_close: false,
        }
    }
}

/// Limits of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time from the start of the call to the last byte of the response.
    pub within: Duration,
    /// Maximum size of the response body in bytes.
    pub bytes: usize,
}

/// Error of a call without a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call took longer than [`Limits::within`].
    #[error("no response within {0:?}")]
    Timeout(Duration),
    /// No connection: name not resolved, connection refused, handshake failed, or rejected by the proxy.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The connection ended before the response was complete, or the peer did not send valid HTTP.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The response body is larger than [`Limits::bytes`].
    #[error("the response is larger than {0} bytes")]
    TooLarge(usize),
    /// The URL or a header is invalid.
    #[error("the request cannot be sent: {0}")]
    Request(String),
    /// No credentials are available for the request.
    #[error("no credentials: {0}")]
    Credentials(String),
}

/// Complete response. The body may contain secrets: `Debug` shows only its length.
#[derive(Clone)]
pub struct ClientResponse {
    /// Status code, unchanged.
    pub status: StatusCode,
    /// Headers, unchanged.
    pub headers: HeaderMap,
    /// Body of at most [`Limits::bytes`] bytes.
    pub body: Bytes,
}

impl std::fmt::Debug for ClientResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientResponse")
            .field("status", &self.status)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl ClientResponse {
    /// Decodes the body as JSON.
    ///
    /// # Errors
    ///
    /// The body is not JSON, or nests too deeply.
    pub fn json(&self) -> Result<Value, DecodeError> {
        let limits = codec::Limits { bytes: self.body.len(), ..codec::Limits::BODY };
        codec::json::decode(&self.body, limits).map(|decoded| decoded.value)
    }

    /// Returns `Retry-After` in whole seconds; HTTP dates are ignored.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }
}

/// Pool of connections with the same settings. Clones are cheap and share the pool.
#[derive(Clone)]
pub struct Client {
    inner: legacy::Client<Connector, Full<Bytes>>,
    user_agent: HeaderValue,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("user_agent", &self.user_agent).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client without connecting.
    ///
    /// # Errors
    ///
    /// An invalid name, proxy or user agent; no CA bundle on this machine when [`Trust::System`] needs one.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let connector = Connector::new(settings)?;
        let user_agent = HeaderValue::from_str(&settings.user_agent)
            .map_err(|_| SettingsError(format!("`{}` is not a valid user agent", settings.user_agent)))?;
        let inner = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(MAX_IDLE_CONNECTIONS)
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .build(connector);
        Ok(Client { inner, user_agent })
    }

    /// Sends `GET` to a URL and accepts JSON.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn get(&self, url: &str, limits: Limits) -> Result<ClientResponse, CallError> {
        self.send(request(Method::GET, url, Bytes::new())?, limits).await
    }

    /// Sends a request to an absolute `http` or `https` URL.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn send(&self, request: Request<Bytes>, limits: Limits) -> Result<ClientResponse, CallError> {
        let call = async {
            let response = self.start_call(request).await.map_err(|error| call_error(&error))?;
            let (head, mut incoming) = response.into_parts();
            let body = body::collect(&mut incoming, limits.bytes).await.map_err(|e| match e {
                body::ReadError::TooLarge(limit) => CallError::TooLarge(limit),
                body::ReadError::Timeout => CallError::Timeout(limits.within),
                body::ReadError::Broken(problem) => CallError::Broken(problem),
            })?;
            Ok(ClientResponse { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(limits.within, call).await.unwrap_or(Err(CallError::Timeout(limits.within)))
    }

    /// Sends a request and returns its response before the body has arrived, for bodies of any size.
    ///
    /// # Errors
    ///
    /// See [`CallError`]; `within` limits the time to the head of the response.
    pub async fn send_for_stream(
        &self,
        request: Request<Bytes>,
        within: Duration,
    ) -> Result<Response<Incoming>, CallError> {
        match tokio::time::timeout(within, self.start_call(request)).await {
            Ok(response) => response.map_err(|error| call_error(&error)),
            Err(_) => Err(CallError::Timeout(within)),
        }
    }

    /// Sends a request. The result is the response when its head has arrived.
    ///
    /// This is no `async fn`, so that the code of the HTTP client is compiled in this crate and not in each crate that
    /// sends requests.
    fn start_call(&self, mut request: Request<Bytes>) -> ResponseFuture {
        request.headers_mut().entry(header::USER_AGENT).or_insert_with(|| self.user_agent.clone());
        self.inner.request(request.map(Full::new))
    }
}

/// Builds a request that sends and accepts JSON.
///
/// # Errors
///
/// [`CallError::Request`]: the URL is invalid.
pub fn request(method: Method, url: &str, body: Bytes) -> Result<Request<Bytes>, CallError> {
    let uri: Uri = url.parse().map_err(|e| CallError::Request(format!("the URL: {e}")))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(CallError::Request(
            "the URL must begin with http:// or https:// and contain a host".to_owned(),
        ));
    }
    let json = HeaderValue::from_static("application/json");
    let mut request = Request::builder().method(method).uri(uri).header(header::ACCEPT, json.clone());
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, json);
    }
    request.body(body).map_err(|e| CallError::Request(e.to_string()))
}

fn call_error(error: &legacy::Error) -> CallError {
    let text = error_chain(error);
    if error.is_connect() { CallError::Unreachable(text) } else { CallError::Broken(text) }
}

/// Joins the messages of an error and its sources, outermost first, without repetitions.
fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut messages = Vec::<String>::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if messages.last().is_none_or(|last| !last.ends_with(&text)) {
            messages.push(text);
        }
        next = error.source();
    }
    // The outermost message comes from the HTTP library and says only that an error occurred.
    let skip = usize::from(messages.len() > 1);
    messages.into_iter().skip(skip).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests;
