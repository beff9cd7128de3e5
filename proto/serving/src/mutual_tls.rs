//! TLS between processes of one installation: both ends have a certificate of one authority.
//!
//! # Contract
//!
//! Both ends speak TLS 1.3 with the protocol `h2`. The server requires a client certificate of its authority whose common
//! name is in a list. The client verifies the server certificate against its authority and the host of the URL. Each new
//! connection uses the newest valid files. A changed file that is invalid is logged, its previous content stays in use, and it is
//! read again after [`VERIFICATION_INTERVAL`]; the bundle of authorities does not depend on the certificate and the key of this
//! end. An open connection ends within [`VERIFICATION_INTERVAL`] after the newest valid bundle does not accept the certificate
//! of its other end any more, or after that certificate expires.
//!
//! The server limits connections without a finished handshake in time and number, in total and for each peer address
//! ([`crate::connection_limits`]). The connections of one address do not keep those of others from their handshakes.
//!
//! # Invariants
//!
//! INVARIANT (full handshake): no connection resumes an earlier session, so each one is verified against the present
//! authority and names.
//! INVARIANT (withdrawn trust): the removal of an authority from its file ends the connections of its certificates, if the file
//! stays valid and not empty.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{CertificateError, ClientConfig, DistinguishedName, ServerConfig};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::connection_closer::ConnectionCloser;
use crate::connection_limits::{Connections, Handshakes};
use crate::handshake_signatures::verify_handshake_signatures;
use crate::plain_http::{self, FirstByte};
use crate::reload::Snapshot;
use crate::trust::{Identity, SettingsError, Trust, build_root_store, parse_certificates};
use crate::verified_stream::VerifiedStream;

/// The only protocol of the connections.
const HTTP2: &[u8] = b"h2";
/// The longest time from an accepted connection to the end of its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the certificates of open connections are verified again.
const VERIFICATION_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of connections without a finished handshake. Each holds a socket.
const MAX_UNFINISHED: usize = 1024;

/// The files of one end, all PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutualTlsFiles {
    /// CA bundle that verifies the other end.
    pub authority: PathBuf,
    /// Certificate of this end, with its chain.
    pub certificate: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
}

impl MutualTlsFiles {
    fn snapshot(&self) -> Snapshot {
        Snapshot::new([&self.authority, &self.certificate, &self.key].map(PathBuf::clone))
    }

    fn identity(&self) -> Result<Identity, SettingsError> {
        let (certificate, key) = (read(&self.certificate)?, read(&self.key)?);
        Identity::from_pem(&certificate, &key).map_err(|error| {
            SettingsError(format!("{}, {}: {error}", self.certificate.display(), self.key.display()))
        })
    }

    /// Reads the certificates of the authority.
    fn authorities(&self) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
        let invalid = |error: SettingsError| SettingsError(format!("{}: {error}", self.authority.display()));
        let authorities = parse_certificates(&read(&self.authority)?).map_err(invalid)?;
        build_root_store(&authorities).map_err(invalid)?;
        Ok(authorities)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SettingsError> {
    std::fs::read(path).map_err(|error| SettingsError(format!("{}: {error}", path.display())))
}

/// The configuration of one end, made of its files.
struct End<C, V: ?Sized> {
    config: Arc<C>,
    /// Verifies the certificates of other ends.
    verifier: Arc<V>,
}

type ServerEnd = End<ServerConfig, dyn ClientCertVerifier>;
type ClientEnd = End<ClientConfig, dyn ServerCertVerifier>;

/// The newest valid content of the files.
#[derive(Clone)]
struct Content {
    identity: Identity,
    authorities: Vec<CertificateDer<'static>>,
}

/// Makes an end of the content of its files.
type BuildEnd<E> = dyn Fn(&Content) -> Result<E, SettingsError> + Send + Sync;

/// One end, which follows its files.
struct Current<E> {
    files: MutualTlsFiles,
    build: Box<BuildEnd<E>>,
    state: Mutex<State<E>>,
}

struct State<E> {
    snapshot: Snapshot,
    content: Content,
    end: Arc<E>,
    /// The failure of the last reload; None when the newest files are in use.
    failure: Option<Failure>,
}

/// A failed reload.
struct Failure {
    problem: String,
    /// The time of the next attempt without a change: a file can be unreadable for a moment.
    retry: Instant,
}

impl<E> Current<E> {
    /// Reads the files with `build`.
    fn load(
        files: MutualTlsFiles,
        build: impl Fn(&Content) -> Result<E, SettingsError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, SettingsError> {
        let snapshot = files.snapshot();
        let content = Content { identity: files.identity()?, authorities: files.authorities()? };
        let end = Arc::new(build(&content)?);
        let state = Mutex::new(State { snapshot, content, end, failure: None });
        Ok(Arc::new(Current { files, build: Box::new(build), state }))
    }

    /// Returns the end of the newest valid files; reads changed files, and those of a failed reload when a retry is due.
    fn get(&self) -> Arc<E> {
        let mut state = self.state.lock();
        let is_retry_due = state.failure.as_ref().is_some_and(|failure| failure.retry <= Instant::now());
        if state.snapshot.changed() || is_retry_due {
            let failure = self.reload(&mut state).err().map(|error| Failure {
                problem: error.to_string(),
                retry: Instant::now() + VERIFICATION_INTERVAL,
            });
            let is_known =
                |new: &Failure| state.failure.as_ref().is_some_and(|earlier| earlier.problem == new.problem);
            match &failure {
                None => tracing::info!(certificate = %self.files.certificate.display(), "tls files reloaded"),
                Some(new) if is_known(new) => {}
                Some(new) => {
                    tracing::error!(error = new.problem, "tls reload failed; using the previous content");
                }
            }
            state.failure = failure;
        }
        Arc::clone(&state.end)
    }

    /// Takes the content of the valid files.
    ///
    /// # Errors
    ///
    /// The problems of the invalid files.
    fn reload(&self, state: &mut State<E>) -> Result<(), SettingsError> {
        let (identity, authorities) = (self.files.identity(), self.files.authorities());
        let problems = [identity.as_ref().err(), authorities.as_ref().err()];
        let problems: Vec<String> = problems.into_iter().flatten().map(SettingsError::to_string).collect();
        let content = Content {
            identity: identity.unwrap_or_else(|_| state.content.identity.clone()),
            authorities: authorities.unwrap_or_else(|_| state.content.authorities.clone()),
        };
        state.end = Arc::new((self.build)(&content)?);
        state.content = content;
        if problems.is_empty() { Ok(()) } else { Err(SettingsError(problems.join("; "))) }
    }
}

/// Returns the certificate of the other end, and the rest of its chain.
fn chain_of_peer(
    connection: &rustls::CommonState,
) -> io::Result<(CertificateDer<'static>, Vec<CertificateDer<'static>>)> {
    let chain = connection.peer_certificates().and_then(<[_]>::split_first);
    let (leaf, rest) = chain.ok_or_else(|| io::Error::other(rustls::Error::NoCertificatesPresented))?;
    Ok((leaf.clone(), rest.to_vec()))
}

/// The accepting end.
pub struct MutualTlsServer {
    current: Arc<Current<ServerEnd>>,
    verification_interval: Duration,
    /// Connections without a finished handshake.
    unfinished: Arc<Connections>,
    handshakes: Handshakes,
}

impl std::fmt::Debug for MutualTlsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MutualTlsServer").field("files", &self.current.files).finish_non_exhaustive()
    }
}

impl MutualTlsServer {
    /// Reads the files. `names` are the common names of the accepted client certificates.
    ///
    /// # Errors
    ///
    /// A file is not readable or invalid; the text names the file.
    pub fn load(files: MutualTlsFiles, names: Vec<String>) -> Result<Self, SettingsError> {
        let names: Arc<[String]> = names.into();
        let current = Current::load(files, move |content| server_end(content, &names))?;
        Ok(MutualTlsServer {
            current,
            verification_interval: VERIFICATION_INTERVAL,
            unfinished: Connections::new(MAX_UNFINISHED),
            handshakes: Handshakes::new(),
        })
    }

    /// Secures an accepted connection of a peer. A client without TLS gets a sentence in plain HTTP.
    ///
    /// # Errors
    ///
    /// The client speaks no TLS 1.3, its certificate is not accepted, its handshake takes longer than
    /// [`HANDSHAKE_TIMEOUT`], or other connections need its place: [`io::ErrorKind::ResourceBusy`].
    pub async fn accept(
        &self,
        stream: TcpStream,
        peer: IpAddr,
    ) -> io::Result<VerifiedStream<server::TlsStream<TcpStream>>> {
        let too_many = || {
            let text = "too many connections are in their TLS handshake";
            io::Error::new(io::ErrorKind::ResourceBusy, text)
        };
        let cut = ConnectionCloser::default();
        let _unfinished = self.unfinished.acquire(Some(peer), &cut).ok_or_else(too_many)?;
        let handshake = async {
            let mut permit = self.handshakes.acquire(Some(peer)).await;
            tokio::select! {
                result = self.complete_handshake(stream, peer) => result,
                () = permit.wait_until_cut() => Err(too_many()),
            }
        };
        let too_long = |_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long");
        tokio::select! {
            result = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake) => result.map_err(too_long)?,
            () = cut.closed() => Err(too_many()),
        }
    }

    async fn complete_handshake(
        &self,
        stream: TcpStream,
        peer: IpAddr,
    ) -> io::Result<VerifiedStream<server::TlsStream<TcpStream>>> {
        if stream.first_byte().await?.is_some_and(plain_http::is_plain_http) {
            plain_http::respond(stream).await?;
            return Err(io::Error::other("the client does not use TLS; use an https URL"));
        }
        let acceptor = TlsAcceptor::from(Arc::clone(&self.current.get().config));
        let stream = acceptor.accept(stream).await?;
        let (leaf, rest) = chain_of_peer(stream.get_ref().1)?;
        let current = Arc::clone(&self.current);
        let verify =
            move || current.get().verifier.verify_client_cert(&leaf, &rest, UnixTime::now()).map(drop);
        Ok(VerifiedStream::new(stream, peer.to_string(), self.verification_interval, Box::new(verify)))
    }
}

/// The connecting end.
pub struct MutualTlsClient {
    current: Arc<Current<ClientEnd>>,
    verification_interval: Duration,
}

impl std::fmt::Debug for MutualTlsClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MutualTlsClient").field("files", &self.current.files).finish_non_exhaustive()
    }
}

impl MutualTlsClient {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// A file is not readable or invalid; the text names the file.
    pub fn load(files: MutualTlsFiles) -> Result<Self, SettingsError> {
        let current = Current::load(files, client_end)?;
        Ok(MutualTlsClient { current, verification_interval: VERIFICATION_INTERVAL })
    }

    /// Secures a connection to a host: a DNS name or an address, which the certificate of the server must have.
    ///
    /// The server verifies the certificate of this end after the handshake, so its rejection is an error of the first
    /// read.
    ///
    /// # Errors
    ///
    /// The host is no name, or the handshake fails.
    pub async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<VerifiedStream<client::TlsStream<TcpStream>>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(&self.current.get().config));
        let stream = connector.connect(name.clone(), stream).await?;
        let (leaf, rest) = chain_of_peer(stream.get_ref().1)?;
        let current = Arc::clone(&self.current);
        let verify = move || {
            let end = current.get();
            end.verifier.verify_server_cert(&leaf, &rest, &name, &[], UnixTime::now()).map(drop)
        };
        Ok(VerifiedStream::new(stream, host.to_owned(), self.verification_interval, Box::new(verify)))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn server_end(content: &Content, names: &Arc<[String]>) -> Result<ServerEnd, SettingsError> {
    let provider = provider();
    let roots = build_root_store(&content.authorities)?;
    let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .map_err(|error| SettingsError(error.to_string()))?;
    let verifier: Arc<dyn ClientCertVerifier> =
        Arc::new(NamedClients { chain, names: Arc::clone(names), provider: Arc::clone(&provider) });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| SettingsError(error.to_string()))?
        .with_client_cert_verifier(Arc::clone(&verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(content.identity.certified_key())));
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(End { config: Arc::new(config), verifier })
}

fn client_end(content: &Content) -> Result<ClientEnd, SettingsError> {
    let verifier = Trust::Authorities(content.authorities.clone()).build_verifier()?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| SettingsError(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&verifier))
        .with_no_client_auth();
    content.identity.configure(&mut config);
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(End { config: Arc::new(config), verifier })
}

/// Verifier of client certificates: the chain leads to the authority, and the common name is in the list.
#[derive(Debug)]
struct NamedClients {
    chain: Arc<dyn ClientCertVerifier>,
    names: Arc<[String]>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for NamedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(leaf, intermediates, now)?;
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let mut names = parsed.subject().iter_common_name();
        // With two common names, readers could disagree on the name.
        let name = match (names.next(), names.next()) {
            (Some(name), None) => name.as_str().unwrap_or_default(),
            (Some(_), Some(_)) | (None, _) => "",
        };
        if !name.is_empty() && self.names.iter().any(|allowed| allowed == name) {
            return Ok(verified);
        }
        tracing::warn!(name, "client certificate with another common name refused");
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    verify_handshake_signatures!(provider);
}

#[cfg(test)]
#[path = "tests/mutual_tls.rs"]
mod tests;
