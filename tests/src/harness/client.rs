//! HTTP client of the tests, with a bearer token or a client certificate.
//!
//! The client uses one connection per request. Only [`Client::verifying`] verifies the server (loopback only).

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use serving::client::{Identity, Trust};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::eventually;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Address of a server under test.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Client of one control plane as one user.
#[derive(Clone)]
pub struct Client {
    address: IpAddr,
    port: u16,
    token: Option<String>,
    tls: TlsConnector,
}

/// A complete response.
#[derive(Debug)]
pub struct TestResponse {
    /// Status code.
    pub status: u16,
    /// Headers.
    pub headers: HeaderMap,
    /// Raw body.
    pub body: Bytes,
}

/// Returns the body of a request with an object; null is an empty body.
pub fn request_body(object: &Value) -> Vec<u8> {
    if object.is_null() { Vec::new() } else { object.to_string().into_bytes() }
}

impl TestResponse {
    /// Returns the body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the first value of a header, `""` if absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
    }

    /// Asserts the status code, printing the body on failure, and returns the JSON.
    pub fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        self.json()
    }
}

impl Client {
    /// Creates a client with a bearer token or without credentials.
    pub fn new(port: u16, token: Option<String>) -> Self {
        Client { address: LOOPBACK, port, token, tls: connector(None) }
    }

    /// Creates a client with a client certificate chain and its key, both PEM, and without token.
    pub fn with_certificate(port: u16, chain: &str, key: &str) -> Self {
        Client { address: LOOPBACK, port, token: None, tls: connector(Some(&identity(chain, key))) }
    }

    /// Creates a client with a client certificate chain and its key that verifies the server; all PEM.
    pub fn verifying(port: u16, chain: &str, key: &str, authorities: &str) -> Self {
        let trust = Trust::from_pem(authorities.as_bytes()).expect("a CA bundle in PEM");
        let tls = configuration(&trust, Some(&identity(chain, key)));
        Client { address: LOOPBACK, port, token: None, tls: TlsConnector::from(Arc::new(tls)) }
    }

    /// Returns the same client of a server at another address; without this, the address is 127.0.0.1.
    pub fn at(self, address: IpAddr) -> Self {
        Client { address, ..self }
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends GET.
    pub async fn get(&self, path: &str) -> TestResponse {
        self.request("GET", path, &[], b"").await
    }

    /// Sends POST with JSON.
    pub async fn post(&self, path: &str, body: &Value) -> TestResponse {
        self.request("POST", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }

    /// Sends PUT with JSON.
    pub async fn put(&self, path: &str, body: &Value) -> TestResponse {
        self.request("PUT", path, &[("content-type", "application/json")], body.to_string().as_bytes()).await
    }

    /// Sends PATCH. `kind` is the media type of the patch.
    pub async fn patch(&self, path: &str, kind: &str, body: &Value) -> TestResponse {
        self.request("PATCH", path, &[("content-type", kind)], body.to_string().as_bytes()).await
    }

    /// Sends DELETE without a body.
    pub async fn delete(&self, path: &str) -> TestResponse {
        self.request("DELETE", path, &[], b"").await
    }

    /// Waits until GET responds with 404.
    pub async fn wait_until_deleted(&self, path: &str) {
        eventually(path, || async { (self.get(path).await.status == 404).then_some(()) }).await;
    }

    /// Waits until the CustomResourceDefinition at a path has the condition Established.
    pub async fn wait_until_established(&self, path: &str) {
        let is_established =
            |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
        eventually("the condition Established", || async {
            let definition = self.get(path).await.expect(200);
            let conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(is_established).then_some(())
        })
        .await;
    }

    /// Sends any request; panics without a response.
    pub async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> TestResponse {
        match self.try_request(method, path, headers, body).await {
            Ok(answer) => answer,
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// Sends a request to a server that may be down.
    pub async fn try_request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<TestResponse, Error> {
        let (parts, body) = self.open(method, path, headers, body).await?.into_parts();
        Ok(TestResponse {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await?.to_bytes(),
        })
    }

    /// Opens a watch; the path contains the query.
    pub async fn watch(&self, path: &str) -> WatchStream {
        let response = self.open("GET", path, &[], b"").await.expect("a response to the watch");
        assert_eq!(response.status(), 200, "watch {path}");
        WatchStream { body: response.into_body(), buffer: BytesMut::new() }
    }

    /// Opens an HTTP/1.1 connection for many requests, one after the other.
    pub async fn connect(&self) -> Result<Session, Error> {
        let stream = TcpStream::connect((self.address, self.port)).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(ServerName::try_from("localhost")?, stream).await?;
        let (send, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Session { send, token: self.token.clone() })
    }

    async fn open(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<http::Response<Incoming>, Error> {
        self.connect().await?.open(method, path, headers, body).await
    }
}

/// A connection for many requests, one after the other.
pub struct Session {
    send: http1::SendRequest<Full<Bytes>>,
    token: Option<String>,
}

impl Session {
    /// Sends a request and reads the whole response. After an error the connection is unusable.
    pub async fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Result<TestResponse, Error> {
        self.request_of_type("application/json", method, path, body).await
    }

    /// Sends a merge patch and reads the whole response. After an error the connection is unusable.
    pub async fn merge(&mut self, path: &str, patch: &[u8]) -> Result<TestResponse, Error> {
        self.request_of_type("application/merge-patch+json", "PATCH", path, patch).await
    }

    async fn request_of_type(
        &mut self,
        content_type: &str,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<TestResponse, Error> {
        self.send.ready().await?;
        let (parts, body) =
            self.open(method, path, &[("content-type", content_type)], body).await?.into_parts();
        Ok(TestResponse {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await?.to_bytes(),
        })
    }

    async fn open(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<http::Response<Incoming>, Error> {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Ok(self.send.send_request(request.body(Full::new(Bytes::copy_from_slice(body)))?).await?)
    }
}

/// Events of a watch.
pub struct WatchStream {
    body: Incoming,
    buffer: BytesMut,
}

impl WatchStream {
    /// Returns the next event; None when the server has ended the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                return Some(serde_json::from_slice(&line).expect("an event is JSON"));
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}

/// Returns a TLS connector that accepts every server certificate and offers `protocols` in ALPN.
pub fn tls(protocols: &[&str]) -> TlsConnector {
    let mut config = configuration(&Trust::Insecure, None);
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

fn connector(identity: Option<&Identity>) -> TlsConnector {
    TlsConnector::from(Arc::new(configuration(&Trust::Insecure, identity)))
}

fn identity(chain: &str, key: &str) -> Identity {
    Identity::from_pem(chain.as_bytes(), key.as_bytes()).expect("a chain and its key in PEM")
}

fn configuration(trust: &Trust, identity: Option<&Identity>) -> ClientConfig {
    let mut tls = trust.tls().expect("valid authorities");
    if let Some(identity) = identity {
        identity.configure(&mut tls);
    }
    tls
}
