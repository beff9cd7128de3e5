//! TLS for serving: certificate files that are reloaded, and client certificates with proof of possession
//! only.
//!
//! # Contract
//!
//! The server offers TLS 1.2 and 1.3, ALPN `h2` and `http/1.1`, and tickets for resumption. It requests a
//! client certificate and does not require one. New connections use the last valid files: an invalid file is
//! logged, and the previous files stay in use.
//!
//! # Invariants
//!
//! INVARIANT (possession only): the handshake proves that the client possesses the key of its certificate, and
//! nothing more. The chain is passed on unverified. Users of [`client_chain`] must verify the chain before
//! they trust any name in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ProducesTickets, ServerConfig};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, DistinguishedName, InconsistentKeys, OtherError};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::certs;
use crate::handshake_signatures::verify_handshake_signatures;
use crate::reload::{Snapshot, Watch};
use crate::trust::parse_certificates;

/// TLS files of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain, PEM, leaf first.
    pub cert: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
    /// CA bundles whose subject names are sent to clients as a hint for choosing a certificate.
    ///
    /// The handshake does not verify anything against them.
    pub client_cas: Vec<PathBuf>,
}

impl TlsFiles {
    fn paths(&self) -> impl Iterator<Item = PathBuf> {
        [&self.cert, &self.key].into_iter().chain(&self.client_cas).cloned()
    }
}

/// Error from loading TLS files.
///
/// A file is unreadable or not PEM of the expected kind, certificate and key do not match, or the TLS library
/// rejects them.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {problem}", path = path.display())]
pub struct TlsError {
    /// Path of the file; of a pair, the path of the certificate.
    pub path: PathBuf,
    /// Description of the problem.
    pub problem: String,
}

impl TlsError {
    fn new(path: &Path, problem: impl ToString) -> Self {
        TlsError { path: path.to_owned(), problem: problem.to_string() }
    }
}

/// TLS configuration of a server. New connections use the current configuration.
pub struct ServingTls {
    files: TlsFiles,
    current: ArcSwap<ServerConfig>,
    tickets: Arc<dyn ProducesTickets>,
    snapshot: Mutex<Snapshot>,
    /// Expiration of the serving certificate in seconds since 1970; 0: unknown.
    expiration: AtomicI64,
    /// Whether the last change of the files was rejected.
    is_change_rejected: AtomicBool,
}

impl std::fmt::Debug for ServingTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServingTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl ServingTls {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// See [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let snapshot = Snapshot::new(files.paths());
        let tickets = aws_lc_rs::Ticketer::new().map_err(|e| TlsError::new(&files.cert, e))?;
        let current = ArcSwap::from_pointee(build_config(&files, &tickets)?);
        let expiration = AtomicI64::new(expiration(&files.cert).unwrap_or_default());
        Ok(Arc::new(ServingTls {
            files,
            current,
            tickets,
            snapshot: Mutex::new(snapshot),
            expiration,
            is_change_rejected: AtomicBool::new(false),
        }))
    }

    /// Returns the configuration for a new connection.
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }

    /// Returns the expiration of the serving certificate in seconds since 1970; None if it is unknown.
    pub fn expiration(&self) -> Option<i64> {
        Some(self.expiration.load(Ordering::Relaxed)).filter(|seconds| *seconds != 0)
    }

    /// Whether the last change of the files was rejected, so that earlier files are in use.
    pub fn is_change_rejected(&self) -> bool {
        self.is_change_rejected.load(Ordering::Relaxed)
    }

    /// Reloads the files if their content changed; true when a new configuration is in use.
    ///
    /// # Errors
    ///
    /// The problem with the new files; the previous configuration stays in use.
    pub fn reload(&self) -> Result<bool, TlsError> {
        let mut snapshot = self.snapshot.lock();
        if !snapshot.changed() {
            return Ok(false);
        }
        let config = build_config(&self.files, &self.tickets);
        self.is_change_rejected.store(config.is_err(), Ordering::Relaxed);
        self.current.store(Arc::new(config?));
        self.expiration.store(expiration(&self.files.cert).unwrap_or_default(), Ordering::Relaxed);
        Ok(true)
    }

    /// Reloads on change until the returned watch is dropped.
    ///
    /// Certificate and key that are replaced one after the other do not match for a moment: the previous pair
    /// stays in use until both are replaced.
    pub fn spawn_watch(self: &Arc<Self>) -> Watch {
        let tls = Arc::clone(self);
        Snapshot::new(self.files.paths()).watch(move || {
            match tls.reload() {
                Ok(true) => tracing::info!(cert = %tls.files.cert.display(), "tls files reloaded"),
                Ok(false) => {}
                Err(e) => tracing::error!(error = %e, "tls reload failed; using the previous files"),
            }
            // A failed reload is accepted as well: only a change of a file in the snapshot can fix it.
            true
        })
    }
}

/// Reads the expiration of the first certificate of a PEM file.
fn expiration(path: &Path) -> Option<i64> {
    certs::not_after(&std::fs::read(path).ok()?).map(Timestamp::as_second)
}

/// Returns the certificate chain of the client, leaf first, DER; empty without a certificate.
pub fn client_chain(connection: &rustls::ServerConnection) -> Vec<Bytes> {
    let chain = connection.peer_certificates().unwrap_or_default();
    chain.iter().map(|certificate| Bytes::copy_from_slice(certificate)).collect()
}

/// Reads all certificates of a PEM file.
///
/// # Errors
///
/// The file is not readable, contains no certificate, or contains invalid data.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = std::fs::read(path).map_err(|e| TlsError::new(path, e))?;
    parse_certificates(&bytes).map_err(|e| TlsError::new(path, e))
}

/// Checks that a PEM file contains certificates of CAs only, at least one.
///
/// # Errors
///
/// The file is not readable, contains invalid data, no certificate, or one that is not of a CA.
pub fn check_authorities(path: &Path) -> Result<(), TlsError> {
    subjects(path).map(drop)
}

fn build_config(files: &TlsFiles, tickets: &Arc<dyn ProducesTickets>) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let pair_error = |problem: String| TlsError::new(&files.cert, problem);
    let chain = certificates(&files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| TlsError::new(&files.key, e))?;
    let key = provider.key_provider.load_private_key(key).map_err(|e| pair_error(e.to_string()))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(e) => return Err(pair_error(format!("does not belong to {}: {e}", files.key.display()))),
    }
    let mut hints: Vec<DistinguishedName> = Vec::new();
    for file in &files.client_cas {
        hints.extend(subjects(file)?);
    }
    let verifier = Arc::new(PossessionOnly { hints, provider: Arc::clone(&provider) });
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| pair_error(e.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = Arc::clone(tickets);
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// Reads the subject names of a CA bundle. A certificate that is not one of a CA is an error.
fn subjects(path: &Path) -> Result<Vec<DistinguishedName>, TlsError> {
    let certificates = certificates(path)?;
    let subject = |(number, certificate): (usize, &CertificateDer<'_>)| {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| TlsError::new(path, e))?;
        if !certs::is_authority(&parsed) {
            let problem = format!("certificate {number}: not the certificate of a CA");
            return Err(TlsError::new(path, problem));
        }
        Ok(DistinguishedName::from(parsed.subject().as_raw().to_vec()))
    };
    (1..).zip(&certificates).map(subject).collect()
}

/// Verifier of client certificates that accepts any chain with a leaf of version 3 and verifies only the handshake
/// signature of the leaf.
#[derive(Debug)]
struct PossessionOnly {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for PossessionOnly {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        check_version(leaf).map(|()| ClientCertVerified::assertion())
    }

    verify_handshake_signatures!(provider);
}

/// Error: the TLS library does not support the X.509 version of a client certificate.
#[derive(Debug, thiserror::Error)]
#[error("the client certificate is X.509 version {0}: issue a version 3 certificate")]
struct UnsupportedVersion(u32);

/// Rejects a leaf certificate of X.509 version 1 or 2 with a clear error.
///
/// The verification of the handshake signature finds other defects.
fn check_version(leaf: &CertificateDer<'_>) -> Result<(), rustls::Error> {
    match X509Certificate::from_der(leaf) {
        Ok((_, parsed)) if parsed.version.0 < 2 => {
            let error = UnsupportedVersion(parsed.version.0 + 1);
            Err(CertificateError::Other(OtherError(Arc::new(error))).into())
        }
        _ => Ok(()),
    }
}

/// Returns the reason of a failed handshake if the client certificate is the cause; None for other causes.
pub(crate) fn client_certificate_error(error: &std::io::Error) -> Option<String> {
    let tls_error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    match tls_error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(reason))) => {
            Some(reason.to_string())
        }
        rustls::Error::InvalidCertificate(reason) => Some(format!("{reason:?}")),
        _ => None,
    }
}

#[cfg(test)]
#[path = "tests/tls.rs"]
mod tests;
