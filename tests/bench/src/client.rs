//! Client of the benchmarks: HTTP/1.1 or HTTP/2 over TLS, with little CPU time of its own.
//!
//! The client does not verify the server.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use serving::client::Trust;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Media type of requests and responses, unless a benchmark chooses another.
const JSON: &str = "application/json";

/// Error of a benchmark.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Server under measurement.
#[derive(Clone)]
pub struct Target {
    /// Host and port, such as `127.0.0.1:6443`.
    pub address: String,
    /// Bearer token; `""`: none.
    pub token: String,
    tls: TlsConnector,
    tls_http2: TlsConnector,
}

impl Target {
    /// Parses `https://host:port`.
    ///
    /// # Errors
    ///
    /// The URL has another scheme, or TLS cannot be configured.
    pub fn new(url: &str, token: &str) -> Result<Self, Error> {
        let address =
            url.strip_prefix("https://").ok_or("the server must be https://host:port")?.trim_end_matches('/');
        // The certificate of the server is not verified, because benchmarks connect to the loopback address.
        let config = Trust::Insecure.tls()?;
        let mut config_http2 = config.clone();
        config_http2.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Target {
            address: address.to_owned(),
            token: token.to_owned(),
            tls: TlsConnector::from(Arc::new(config)),
            tls_http2: TlsConnector::from(Arc::new(config_http2)),
        })
    }

    /// Returns the same server with another bearer token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Target { token: token.to_owned(), ..self.clone() }
    }

    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// The connection or the TLS handshake fails.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(ServerName::try_from("localhost")?, stream).await?;
        let (send, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Connection { send, token: self.token.clone(), accept: JSON, accept_encoding: "" })
    }

    /// Opens an HTTP/2 connection for concurrent requests.
    ///
    /// # Errors
    ///
    /// The connection or the TLS handshake fails.
    pub async fn connect_http2(&self) -> Result<Http2Connection, Error> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls_http2.connect(ServerName::try_from("localhost")?, stream).await?;
        let (send, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Http2Connection { send, token: self.token.clone() })
    }
}

/// HTTP/1.1 connection.
pub struct Connection {
    send: SendRequest<Full<Bytes>>,
    /// Bearer token of the next requests.
    pub token: String,
    /// Header `Accept` of the next requests.
    pub accept: &'static str,
    /// Header `Accept-Encoding` of the next requests; `""`: none.
    pub accept_encoding: &'static str,
}

impl Connection {
    /// Sends a request and returns the response with its body unread.
    ///
    /// # Errors
    ///
    /// The connection broke.
    pub async fn open(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<http::Response<Incoming>, Error> {
        let mut request = request(method, path, &self.token, self.accept, body)?;
        if !self.accept_encoding.is_empty() {
            let encoding = HeaderValue::from_static(self.accept_encoding);
            request.headers_mut().insert("accept-encoding", encoding);
        }
        self.send.ready().await?;
        Ok(self.send.send_request(request).await?)
    }

    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    ///
    /// The connection broke.
    pub async fn call(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Error> {
        let response = self.open(method, path, body).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}

/// HTTP/2 connection.
pub struct Http2Connection {
    send: http2::SendRequest<Full<Bytes>>,
    token: String,
}

impl Http2Connection {
    /// Sends a `GET` and returns the response with its body unread.
    ///
    /// # Errors
    ///
    /// The connection broke.
    pub async fn open(&mut self, path: &str) -> Result<http::Response<Incoming>, Error> {
        let path = format!("https://localhost{path}");
        let request = request(Method::GET, &path, &self.token, JSON, Bytes::new())?;
        self.send.ready().await?;
        Ok(self.send.send_request(request).await?)
    }
}

fn request(
    method: Method,
    path: &str,
    token: &str,
    accept: &str,
    body: Bytes,
) -> Result<Request<Full<Bytes>>, Error> {
    let mut request = Request::builder().method(method).uri(path).header("accept", accept);
    if path.starts_with('/') {
        request = request.header("host", "localhost");
    }
    if !token.is_empty() {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    if !body.is_empty() {
        request = request.header("content-type", "application/json");
    }
    Ok(request.body(Full::new(body))?)
}
