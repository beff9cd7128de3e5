//! HTTPS server on loopback with a self-signed certificate.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::client::Error;

/// Response of a [`TlsServer`].
pub type ServerResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// An HTTPS server that listens, but does not serve requests yet.
pub struct TlsServer {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    /// Certificate for `localhost` and `127.0.0.1`, PEM.
    pub certificate: String,
}

impl TlsServer {
    /// Listens on a port chosen by the system.
    ///
    /// # Errors
    ///
    /// The server cannot listen, or cannot create its certificate.
    pub async fn bind() -> Result<Self, Error> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let pair = rcgen::generate_simple_self_signed(names)?;
        let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![pair.cert.der().clone()], key)?;
        Ok(TlsServer {
            listener: TcpListener::bind("127.0.0.1:0").await?,
            acceptor: TlsAcceptor::from(Arc::new(config)),
            certificate: pair.cert.pem(),
        })
    }

    /// Returns the port.
    ///
    /// # Errors
    ///
    /// The system does not report the address.
    pub fn port(&self) -> Result<u16, Error> {
        Ok(self.listener.local_addr()?.port())
    }

    /// Answers requests over HTTP/1.1 until the program ends.
    ///
    /// # Errors
    ///
    /// The listener fails.
    pub async fn serve<Handler, Answer>(self, handler: Handler) -> Result<(), Error>
    where
        Handler: Fn(Request<Incoming>) -> Answer + Clone + Send + 'static,
        Answer: Future<Output = Result<ServerResponse, Error>> + Send + 'static,
    {
        loop {
            let (stream, _) = self.listener.accept().await?;
            stream.set_nodelay(true)?;
            let (acceptor, handler) = (self.acceptor.clone(), handler.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(handler));
                // An error of a connection concerns only its client.
                drop(connection.await);
            });
        }
    }
}
