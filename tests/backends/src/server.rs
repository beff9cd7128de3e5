//! A TLS server for HTTP/1.1 and HTTP/2 with upgrades, whose connections all end when it is dropped.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serving::body::Body;
use serving::certs::Authority;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// An error of the start of a server.
pub type StartError = Box<dyn Error + Send + Sync>;

/// A serving certificate with its key and the authority that signed it; all PEM.
#[derive(Clone)]
pub struct ServingCertificate {
    /// The certificate.
    pub cert: String,
    /// The key of the certificate.
    pub key: String,
    /// The certificate of the authority, which clients trust.
    pub ca: String,
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServingCertificate { .. }")
    }
}

/// Validity of a generated certificate.
const VALIDITY: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

impl ServingCertificate {
    /// Generates an authority and a certificate for DNS names and addresses.
    ///
    /// # Errors
    ///
    /// A name is not allowed in a certificate, or the authority cannot be written to a temporary folder.
    #[expect(clippy::disallowed_methods, reason = "a server of tests runs on the machine's time")]
    pub fn generate(names: &[String]) -> Result<Self, StartError> {
        let now = jiff::Timestamp::now();
        let folder = tempfile::tempdir()?;
        let (ca, key) = (folder.path().join("ca.crt"), folder.path().join("ca.key"));
        let pair = Authority::ensure(&ca, &key, "backend-ca", now)?.serving(names, VALIDITY, now)?;
        Ok(ServingCertificate { cert: pair.cert, key: pair.key, ca: std::fs::read_to_string(ca)? })
    }
}

/// Properties of the client of a connection.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// The certificate of the client, DER, verified against the CA bundle of the server; None without one.
    pub certificate: Option<Bytes>,
}

/// A running server.
pub struct Server {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Starts a server. `client_ca`: the PEM bundle that client certificates must come from; None asks for none.
    ///
    /// # Errors
    ///
    /// The address is in use, or a certificate is invalid.
    pub async fn start<H, F>(
        address: SocketAddr,
        certificate: &ServingCertificate,
        client_ca: Option<&str>,
        handler: H,
    ) -> Result<Self, StartError>
    where
        H: Fn(Request<Incoming>, Peer) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Response<Body>, CloseConnection>> + Send + 'static,
    {
        let acceptor = TlsAcceptor::from(Arc::new(tls_config(certificate, client_ca)?));
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(async move {
            // Dropped with this task, so that all connections end with the server.
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                while connections.try_join_next().is_some() {}
                let (acceptor, handler) = (acceptor.clone(), handler.clone());
                connections.spawn(async move {
                    // A client that rejects the certificate ends the handshake.
                    drop(stream.set_nodelay(true));
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let chain = stream.get_ref().1.peer_certificates();
                    let certificate = chain.and_then(|chain| chain.first());
                    let peer = Peer { certificate: certificate.map(|der| Bytes::copy_from_slice(der)) };
                    let service = service_fn(move |request| handler(request, peer.clone()));
                    let server = auto::Builder::new(TokioExecutor::new());
                    // A connection that a peer cuts is no failure of the server.
                    drop(server.serve_connection_with_upgrades(TokioIo::new(stream), service).await);
                });
            }
        });
        Ok(Server { address, accepting })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Ends the connection without a response.
#[derive(Clone, Copy, Debug)]
pub struct CloseConnection;

impl std::fmt::Display for CloseConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the handler ends the connection")
    }
}

impl Error for CloseConnection {}

impl From<Infallible> for CloseConnection {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

fn tls_config(certificate: &ServingCertificate, client_ca: Option<&str>) -> Result<ServerConfig, StartError> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(certificate.cert.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes())?;
    let builder = ServerConfig::builder();
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(bundle) => {
            let mut roots = RootCertStore::empty();
            for authority in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
                roots.add(authority?)?;
            }
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated();
            builder.with_client_cert_verifier(verifier.build()?)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
