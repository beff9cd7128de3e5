//! Client connections: direct or through a proxy, then TLS if the URL requires TLS.

use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, Write};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use super::tls_end::{RecordTracker, TolerantStream};
use super::{Settings, SettingsError};
use crate::client_config::check_proxy;

/// Maximum time to connect, including the proxy and TLS. The time limit of a call can end it earlier.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle time of a TCP connection before the first keep-alive probe.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

type ConnectError = Box<dyn std::error::Error + Send + Sync>;

/// Proxy between client and server. The URL may contain a password: `Debug` does not show it.
#[derive(Clone, Default)]
pub enum Proxy {
    /// The proxy that the environment names when the client is created; never for loopback addresses.
    #[default]
    Environment,
    /// No proxy; the environment is ignored.
    None,
    /// One proxy for all servers: `http`, `https`, `socks5` or `socks5h`, optionally with `user:password@`.
    Url(String),
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Proxy::Environment => "Environment",
            Proxy::None => "None",
            Proxy::Url(_) => "Url(..)",
        })
    }
}

impl Proxy {
    fn build_route(&self) -> Result<Route, SettingsError> {
        match self {
            Proxy::Environment => Ok(Route::Environment(Arc::new(Matcher::from_env()))),
            Proxy::None => Ok(Route::Direct),
            Proxy::Url(url) => {
                check_proxy(url).map_err(|error| SettingsError(error.to_string()))?;
                Ok(Route::Always(Arc::new(Matcher::builder().all(url.as_str()).no("").build())))
            }
        }
    }
}

/// The route of a connection to its destination: directly, or through the proxy that a matcher selects.
#[derive(Clone)]
enum Route {
    Direct,
    Environment(Arc<Matcher>),
    Always(Arc<Matcher>),
}

impl Route {
    fn proxy(&self, destination: &Uri) -> Option<Intercept> {
        match self {
            Route::Direct => None,
            Route::Always(matcher) => matcher.intercept(destination),
            Route::Environment(matcher) => {
                let host = destination.host()?.trim_matches(['[', ']']);
                let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
                if is_local { None } else { matcher.intercept(destination) }
            }
        }
    }
}

/// Creates connections for the pool.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector,
    route: Route,
    tls: Arc<ClientConfig>,
    /// TLS configuration for a connection to a proxy: no client certificate, HTTP/1.1 only.
    proxy_tls: Arc<ClientConfig>,
    server_name: Option<ServerName<'static>>,
    accepts_missing_close: bool,
}

impl Connector {
    pub(super) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let proxy_tls = settings.trust.tls()?;
        let mut tls = proxy_tls.clone();
        if let Some(identity) = &settings.identity {
            identity.configure(&mut tls);
        }
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let server_name = settings.server_name.as_deref().map(|name| {
            ServerName::try_from(name.to_owned())
                .map_err(|_| SettingsError(format!("`{name}` is not a valid TLS server name")))
        });
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(KEEP_ALIVE_INTERVAL));
        Ok(Connector {
            tcp,
            route: settings.proxy.build_route()?,
            tls: Arc::new(tls),
            proxy_tls: Arc::new(proxy_tls),
            server_name: server_name.transpose()?,
            accepts_missing_close: settings.accepts_missing_close,
        })
    }

    async fn connect(self, destination: Uri) -> Result<Stream, ConnectError> {
        let https = destination.scheme_str() == Some("https");
        let io: Stream = match self.route.proxy(&destination) {
            None => Box::new(self.tcp.clone().call(destination.clone()).await?),
            Some(proxy) => self.connect_through(&proxy, with_port(destination.clone(), https)?).await?,
        };
        if !https {
            return Ok(io);
        }
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => host_name(&destination)?,
        };
        let stream = TokioIo::new(io);
        let connector = TlsConnector::from(self.tls);
        if !self.accepts_missing_close {
            return Ok(Box::new(TokioIo::new(connector.connect(name, stream).await?)));
        }
        let (tracked, is_between_records) = RecordTracker::new(stream);
        let tls = connector.connect(name, tracked).await?;
        Ok(Box::new(TokioIo::new(TolerantStream::new(tls, is_between_records))))
    }

    /// Connects to a destination through a proxy.
    async fn connect_through(&self, proxy: &Intercept, destination: Uri) -> Result<Stream, ConnectError> {
        let address = proxy.uri().clone();
        if address.scheme_str().is_some_and(|scheme| scheme.starts_with("socks5")) {
            let mut socks = SocksV5::new(address, self.tcp.clone());
            if let Some((user, password)) = proxy.raw_auth() {
                socks = socks.with_auth(user.to_owned(), password.to_owned());
            }
            return Ok(Box::new(socks.call(destination).await?));
        }
        let to_proxy = ProxyConnector { tcp: self.tcp.clone(), tls: Arc::clone(&self.proxy_tls) };
        let mut tunnel = Tunnel::new(address, to_proxy);
        if let Some(auth) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        Ok(tunnel.call(destination).await?)
    }
}

/// Adds port 80 to an `http` URL without a port, for which the tunnel would use port 443.
fn with_port(uri: Uri, https: bool) -> Result<Uri, ConnectError> {
    if https || uri.port().is_some() {
        return Ok(uri);
    }
    let host = uri.host().unwrap_or_default().to_owned();
    let mut parts = uri.into_parts();
    parts.authority = Some(format!("{host}:80").parse()?);
    Ok(Uri::from_parts(parts)?)
}

fn host_name(uri: &Uri) -> Result<ServerName<'static>, ConnectError> {
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    Ok(ServerName::try_from(host.to_owned())?)
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, destination: Uri) -> Self::Future {
        let connecting = self.clone().connect(destination);
        Box::pin(async { tokio::time::timeout(CONNECT_TIMEOUT, connecting).await? })
    }
}

/// Connects to a proxy. The tunnel through the proxy uses this connection.
#[derive(Clone)]
struct ProxyConnector {
    tcp: HttpConnector,
    tls: Arc<ClientConfig>,
}

impl Service<Uri> for ProxyConnector {
    type Response = Stream;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, proxy: Uri) -> Self::Future {
        let (mut tcp, tls) = (self.tcp.clone(), Arc::clone(&self.tls));
        Box::pin(async move {
            let plain: Stream = Box::new(tcp.call(proxy.clone()).await?);
            if proxy.scheme_str() != Some("https") {
                return Ok(plain);
            }
            let tls = TlsConnector::from(tls).connect(host_name(&proxy)?, TokioIo::new(plain)).await?;
            Ok(Box::new(TokioIo::new(tls)) as Stream)
        })
    }
}

/// TCP or TLS connection, direct or through a proxy.
pub(super) type Stream = Box<dyn Io>;

/// Connection of any kind.
pub(super) trait Io: Read + Write + Send + Unpin {
    /// Whether the server has selected HTTP/2 in the TLS handshake.
    fn is_http2(&self) -> bool;
}

impl Io for TokioIo<TcpStream> {
    fn is_http2(&self) -> bool {
        false
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for TokioIo<TlsStream<S>> {
    fn is_http2(&self) -> bool {
        self.inner().get_ref().1.alpn_protocol() == Some(b"h2")
    }
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Io for TokioIo<TolerantStream<TlsStream<S>>> {
    fn is_http2(&self) -> bool {
        self.inner().stream.get_ref().1.alpn_protocol() == Some(b"h2")
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        if self.as_ref().is_http2() { Connected::new().negotiated_h2() } else { Connected::new() }
    }
}
