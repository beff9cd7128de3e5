//! An HTTPS client: one server, own authorities, a client certificate, a proxy; requests of bounded size and time.
//!
//! [`Client`] is the connection pool, for whoever knows the URL (discovery documents of identity providers). [`Remote`]
//! stands on it and is what a client configuration file describes: a server with the credentials of a user, which
//! change while the process runs. [`retry`] holds the patience that webhooks need.
//!
//! # Contract
//!
//! HTTP/1.1 and HTTP/2 as the server chooses; connections are reused, and those of HTTP/2 are pinged. A call ends within
//! [`Limits::within`], all of it: name, connection, handshake, answer. An answer is whole or an error; any status is an
//! answer. Redirects are not followed: the answer is the redirect. Without a proxy of its own a client asks the
//! environment (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`), never for loopback addresses.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay out): no error and no `Debug` here holds a header, a body or a key.
//! INVARIANT (verified peer): only [`Trust::Anyone`] accepts a certificate that is not proven; it must be asked for.

mod connect;
pub mod remote;
pub mod retry;
mod trust;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::codec::{self, DecodeError};
use apimachinery::object::Value;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::Full;
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::body;
use connect::Connector;

pub use connect::Proxy;
pub(crate) use connect::check_proxy;
pub use remote::Remote;
pub use trust::{Identity, Trust};

/// An unused connection is closed after so long.
const IDLE: Duration = Duration::from_secs(90);
/// Unused connections kept to one server.
const IDLE_CONNECTIONS: usize = 32;
/// A silent HTTP/2 connection is pinged so often, and is given up when no answer comes in time.
const PING: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(15);

/// How servers are reached.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which certificates of servers are believed.
    pub trust: Trust,
    /// The name that the server's certificate must bear, and that is sent in the handshake; None: the URL's host.
    pub server_name: Option<String>,
    /// The certificate shown to servers that ask for one.
    pub identity: Option<Identity>,
    /// What stands between.
    pub proxy: Proxy,
    /// `User-Agent`.
    pub user_agent: String,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            trust: Trust::System,
            server_name: None,
            identity: None,
            proxy: Proxy::Environment,
            user_agent: concat!("apid/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// Settings that no client can be made of: the sentence says which and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// What one call may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the first step to the last byte of the answer.
    pub within: Duration,
    /// The most bytes of an answer's body.
    pub bytes: usize,
}

/// Why a call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It took longer than [`Limits::within`].
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// No connection: the name is unknown, nobody listens, the handshake failed, the proxy refused.
    #[error("cannot connect: {0}")]
    Unreachable(String),
    /// The connection ended before the answer was whole, or what came is no HTTP.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// The answer's body is larger than [`Limits::bytes`].
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The URL or a header cannot be sent.
    #[error("the request cannot be sent: {0}")]
    Request(String),
    /// No credentials could be had for the request.
    #[error("no credentials: {0}")]
    Credentials(String),
}

/// An answer, whole. Its body may hold secrets: `Debug` shows the length only.
#[derive(Clone)]
pub struct Answer {
    /// Any.
    pub status: StatusCode,
    /// As sent.
    pub headers: HeaderMap,
    /// At most [`Limits::bytes`].
    pub body: Bytes,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Errors
    ///
    /// It is none, or nests too deep.
    pub fn json(&self) -> Result<Value, DecodeError> {
        let limits = codec::Limits { bytes: self.body.len(), ..codec::Limits::BODY };
        codec::json::decode(&self.body, limits).map(|decoded| decoded.value)
    }

    /// `Retry-After` in whole seconds; dates are not read.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }
}

/// A pool of connections made with the same settings. Cheap to clone; all clones share it.
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
    /// Nothing is connected yet.
    ///
    /// # Errors
    ///
    /// A name or a proxy that cannot be used; no authorities on this machine when those are wanted.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let connector = Connector::new(settings)?;
        let user_agent = HeaderValue::from_str(&settings.user_agent)
            .map_err(|_| SettingsError(format!("`{}` cannot be a user agent", settings.user_agent)))?;
        let inner = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .http2_keep_alive_interval(PING)
            .http2_keep_alive_timeout(PING_ANSWER)
            .build(connector);
        Ok(Client { inner, user_agent })
    }

    /// `GET` of a URL, asking for JSON.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn get(&self, url: &str, limits: Limits) -> Result<Answer, CallError> {
        self.send(request(Method::GET, url, Bytes::new())?, limits).await
    }

    /// `POST` of a JSON body to a URL.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn post_json(&self, url: &str, body: Bytes, limits: Limits) -> Result<Answer, CallError> {
        self.send(request(Method::POST, url, body)?, limits).await
    }

    /// Any request to an absolute `http` or `https` URL.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn send(&self, mut request: Request<Bytes>, limits: Limits) -> Result<Answer, CallError> {
        request.headers_mut().entry(header::USER_AGENT).or_insert_with(|| self.user_agent.clone());
        let call = async {
            let answered = self.inner.request(request.map(Full::new)).await;
            let (head, mut incoming) = answered.map_err(|e| failure(&e))?.into_parts();
            let body = body::collect(&mut incoming, limits.bytes).await.map_err(|e| match e {
                body::ReadError::TooLarge(limit) => CallError::TooLarge(limit),
                body::ReadError::Timeout => CallError::Timeout(limits.within),
                body::ReadError::Broken(problem) => CallError::Broken(problem),
            })?;
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(limits.within, call).await.unwrap_or(Err(CallError::Timeout(limits.within)))
    }
}

/// A request that sends and wants JSON.
///
/// # Errors
///
/// [`CallError::Request`]: the URL is none.
pub fn request(method: Method, url: &str, body: Bytes) -> Result<Request<Bytes>, CallError> {
    let uri: Uri = url.parse().map_err(|e| CallError::Request(format!("the URL: {e}")))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none_or(str::is_empty) {
        return Err(CallError::Request("the URL must begin with https:// and name a host".to_owned()));
    }
    let json = HeaderValue::from_static("application/json");
    let mut request = Request::builder().method(method).uri(uri).header(header::ACCEPT, json.clone());
    if !body.is_empty() {
        request = request.header(header::CONTENT_TYPE, json);
    }
    request.body(body).map_err(|e| CallError::Request(e.to_string()))
}

fn failure(error: &legacy::Error) -> CallError {
    let text = chain(error);
    if error.is_connect() { CallError::Unreachable(text) } else { CallError::Broken(text) }
}

/// What an error and its sources say, the outermost first, each thing once.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut said = Vec::<String>::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if said.last().is_none_or(|last| !last.ends_with(&text)) {
            said.push(text);
        }
        next = error.source();
    }
    // The library's own outermost word says only that there was an error.
    let skip = usize::from(said.len() > 1);
    said.into_iter().skip(skip).collect::<Vec<_>>().join(": ")
}

/// The provider of all cryptography here.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

#[cfg(test)]
mod tests;
