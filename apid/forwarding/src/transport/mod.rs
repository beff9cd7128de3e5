//! Connections to backends: HTTP/1.1 and HTTP/2 with reuse, and connections that leave HTTP after an upgrade.
//!
//! # Contract
//!
//! [`Transport::send`] sends one request and returns the response when its head has arrived; bodies are streamed in
//! both directions. [`Transport::upgrade`] does the same on a connection of its own and returns the byte stream of a
//! connection that the backend has upgraded. The head has no time limit: the caller drops the future. A redirect is
//! a response like any other.
//!
//! # Invariants
//!
//! INVARIANT (one request, one response): bytes that a backend sends outside of a response close the connection. A
//! connection whose request was cancelled is closed, so that a late response reaches no other request.
//! INVARIANT (bounded heads): a response head is at most [`MAX_HEAD_BYTES`] long and has at most
//! [`MAX_HEAD_FIELDS`] fields. Trailers have the same limit.
//! INVARIANT (bounded connections): a transport has at most 4,000 open connections, at most 1,000 of them to one
//! target, so that a backend that does not answer leaves connections to the others. Idle connections count too; at
//! a limit they are closed.
//! INVARIANT (bounded memory): a connection buffers at most [`MAX_HEAD_BYTES`] in HTTP/1.1, and
//! [`STREAM_WINDOW`] for each stream in HTTP/2. A slow reader stops only its own stream: the window of an HTTP/2
//! connection is the sum of the windows of [`MAX_STREAMS`].

mod dial;
mod error;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode, Uri};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use moka::sync::Cache;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serving::body::Body;
use serving::client::{SettingsError, Trust};

use crate::{ClientCredentials, Target, headers};
use dial::{Connection, ConnectionPermit, Dialer};
pub use error::TransportError;
use pool::Pool;

/// Maximum size of a response head in bytes.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum number of fields of a response head.
pub const MAX_HEAD_FIELDS: usize = 256;
/// Flow control window of an HTTP/2 stream in bytes.
pub const STREAM_WINDOW: u32 = 64 * 1024;
/// Maximum number of concurrent streams of an HTTP/2 connection.
pub const MAX_STREAMS: u32 = 32;

/// Maximum number of targets with idle connections.
const MAX_TARGETS: u64 = 4096;
/// Time after which the connections of an unused target are closed.
const TARGET_IDLE_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum time to wait for a connection while idle connections close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Settings of a transport.
#[derive(Clone, Debug)]
pub struct TransportSettings {
    /// Server certificates to trust.
    pub trust: Trust,
    /// Name to verify in server certificates and to send as SNI; None means the host of the target.
    pub server_name: Option<String>,
    /// Client certificate for backends that request one.
    pub credentials: Option<Arc<ClientCredentials>>,
    /// Maximum time for the connection and for the TLS handshake.
    pub connect_timeout: Duration,
    /// Whether a backend may choose HTTP/2.
    pub http2: bool,
}

/// Connections with the same settings. Shared by reference.
pub struct Transport {
    dialer: Dialer,
    pools: Cache<Target, Arc<Pool>>,
}

/// The byte stream of an upgraded connection. Begins with the bytes that arrived together with the response head.
pub type UpgradedStream = TokioIo<Upgraded>;

/// The answer of a backend to an upgrade request. `Debug` shows the status only.
pub enum UpgradeAnswer {
    /// 101, and the connection that left HTTP.
    Upgraded {
        /// The head of the response.
        head: http::response::Parts,
        /// The connection.
        stream: UpgradedStream,
    },
    /// Another response. The connection ends with its body.
    Refused(Response<Body>),
}

impl std::fmt::Debug for UpgradeAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UpgradeAnswer::Upgraded { head, .. } => write!(f, "Upgraded({})", head.status),
            UpgradeAnswer::Refused(response) => write!(f, "Refused({})", response.status()),
        }
    }
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}

impl Transport {
    /// Creates a transport without connecting.
    ///
    /// # Errors
    ///
    /// An invalid server name; no CA bundle on this machine when [`Trust::System`] needs one.
    pub fn new(settings: TransportSettings) -> Result<Self, SettingsError> {
        let TransportSettings { trust, server_name, credentials, connect_timeout, http2 } = settings;
        let server_name = server_name.map(|name| {
            ServerName::try_from(name.clone())
                .map_err(|_| SettingsError(format!("`{name}` is not a valid TLS server name")))
        });
        let tls: ClientConfig = trust.tls()?;
        let dialer = Dialer::new(tls, server_name.transpose()?, credentials, connect_timeout, http2);
        let pools = Cache::builder().max_capacity(MAX_TARGETS).time_to_idle(TARGET_IDLE_TIMEOUT).build();
        Ok(Transport { dialer, pools })
    }

    /// Sends a request in origin form (`/path?query`) and returns the response when its head has arrived.
    ///
    /// The header `Host` is the target unless the request has one. Dropping the future cancels the request.
    ///
    /// # Errors
    ///
    /// See [`TransportError`]. A request that a reused connection did not take is sent on a new connection.
    pub async fn send(
        &self,
        target: &Target,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, TransportError> {
        prepare(&mut request, target)?;
        let pool = self.pools.get_with_by_ref(target, Arc::default);
        pool.send(self, target, request).await
    }

    /// Takes a free connection of a target; closes the idle connections of all targets if there is none.
    async fn permit(&self, target: &Target, pool: &Pool) -> Result<ConnectionPermit, TransportError> {
        if let Some(permit) = self.dialer.permit(&pool.free) {
            return Ok(permit);
        }
        let busy = || TransportError::Busy(target.authority());
        let closed: usize = self.pools.iter().map(|(_, pool)| pool.close_idle()).sum();
        if closed == 0 {
            return Err(busy());
        }
        // The tasks of the idle connections end them.
        let wait = tokio::time::timeout(CLOSE_TIMEOUT, self.dialer.wait_for_permit(&pool.free));
        wait.await.ok().flatten().ok_or_else(busy)
    }

    /// Sends an upgrade request on a connection of its own in HTTP/1.1.
    ///
    /// # Errors
    ///
    /// See [`TransportError`].
    pub async fn upgrade(
        &self,
        target: &Target,
        mut request: Request<Body>,
    ) -> Result<UpgradeAnswer, TransportError> {
        prepare(&mut request, target)?;
        let broken = |error: hyper::Error| TransportError::of_exchange(target, &error);
        let pool = self.pools.get_with_by_ref(target, Arc::default);
        let permit = self.permit(target, &pool).await?;
        let stream = self.dialer.connect_http1(target, permit).await?;
        let handshake = http1_builder().handshake::<_, Body>(stream).await;
        let (mut sender, connection) = handshake.map_err(broken)?;
        // The task ends with the connection, which ends when the sender and the response are dropped.
        tokio::spawn(async move { drop(connection.with_upgrades().await) });
        let mut response = sender.send_request(request).await.map_err(broken)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(UpgradeAnswer::Refused(response.map(Body::stream)));
        }
        let upgraded = hyper::upgrade::on(&mut response).await.map_err(broken)?;
        let (head, _) = response.into_parts();
        Ok(UpgradeAnswer::Upgraded { head, stream: TokioIo::new(upgraded) })
    }
}

/// Sets the header `Host` if the request has none, and removes the origin from the URI.
fn prepare(request: &mut Request<Body>, target: &Target) -> Result<(), TransportError> {
    headers::set_default_host(request.headers_mut(), target)?;
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map(Uri::from).unwrap_or_default();
    Ok(())
}

/// The limits of connections in HTTP/1.1.
fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES).max_header_size(MAX_HEAD_BYTES).max_headers(MAX_HEAD_FIELDS);
    builder
}
