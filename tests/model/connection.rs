//! Connection to a server, HTTP/1.1 or HTTP/2, reused for many requests; and the lines of a watch.

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::ServerName;
use serde_json::Value;
use tests::harness::tls;
use tokio::net::TcpStream;

/// Error of a request without a response.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Port of a server, and the credentials for it.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// Port on the loopback address.
    pub port: u16,
    /// Bearer token.
    pub token: &'static str,
}

/// HTTP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// One request at a time.
    Http1,
    /// Many requests at a time.
    Http2,
}

/// A connection to a server.
pub struct Connection {
    address: Address,
    link: Link,
}

enum Link {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// A complete response.
pub struct JsonResponse {
    /// Status code.
    pub code: u16,
    /// Body as JSON; null if it is not JSON.
    pub body: Value,
}

impl Connection {
    /// Opens a connection.
    pub async fn open(address: Address, protocol: Protocol) -> Result<Connection, Error> {
        let stream = TcpStream::connect(("127.0.0.1", address.port)).await?;
        stream.set_nodelay(true)?;
        let offered = match protocol {
            Protocol::Http1 => "http/1.1",
            Protocol::Http2 => "h2",
        };
        let stream = tls(&[offered]).connect(ServerName::try_from("localhost")?, stream).await?;
        let io = TokioIo::new(stream);
        let link = match protocol {
            Protocol::Http1 => {
                let (send, connection) = http1::handshake(io).await?;
                tokio::spawn(connection);
                Link::Http1(send)
            }
            Protocol::Http2 => {
                let (send, connection) = http2::handshake(TokioExecutor::new(), io).await?;
                tokio::spawn(connection);
                Link::Http2(send)
            }
        };
        Ok(Connection { address, link })
    }

    /// Sends a request; returns when the head of the response arrives.
    pub async fn send(
        &mut self,
        method: &str,
        path: &str,
        media_type: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let uri = match self.link {
            Link::Http1(_) => path.to_owned(),
            Link::Http2(_) => format!("https://localhost{path}"),
        };
        let mut request = Request::builder().method(method).uri(uri);
        if matches!(self.link, Link::Http1(_)) {
            request = request.header("host", "localhost");
        }
        let request = request
            .header("authorization", format!("Bearer {}", self.address.token))
            .header("content-type", media_type)
            .body(Full::new(body))?;
        match &mut self.link {
            Link::Http1(send) => {
                send.ready().await?;
                Ok(send.send_request(request).await?)
            }
            Link::Http2(send) => {
                send.ready().await?;
                Ok(send.send_request(request).await?)
            }
        }
    }

    /// Sends a request and reads the whole response.
    pub async fn ask(
        &mut self,
        method: &str,
        path: &str,
        media_type: &str,
        body: &Value,
    ) -> Result<JsonResponse, Error> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let (head, body) = self.send(method, path, media_type, body).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(JsonResponse {
            code: head.status.as_u16(),
            body: serde_json::from_slice(&body).unwrap_or_default(),
        })
    }
}

/// The lines of a watch response.
pub struct Lines {
    body: Incoming,
    buffer: BytesMut,
}

impl Lines {
    /// Creates the lines of a response body; nothing is read yet.
    pub fn new(body: Incoming) -> Lines {
        Lines { body, buffer: BytesMut::new() }
    }

    /// Returns the next line; None at the end or when the connection broke. Cancel-safe.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Some(serde_json::from_slice(&line).expect("a line of a watch is JSON"));
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
