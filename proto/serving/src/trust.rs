//! TLS settings of clients: trusted server certificates, and the client certificate.

use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::handshake_signatures::verify_handshake_signatures;

/// Invalid client settings; the text names the setting and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(pub String);

/// Server certificates to trust.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Certificates issued by the CA bundle of this machine (`SSL_CERT_FILE` and `SSL_CERT_DIR` override it).
    #[default]
    System,
    /// Certificates that one of these authorities has issued, and server certificates that are in this list.
    Authorities(Vec<CertificateDer<'static>>),
    /// All certificates, without verification, for tests only: a man in the middle can read and change
    /// everything.
    Insecure,
}

impl Trust {
    /// Reads a CA bundle in PEM.
    ///
    /// # Errors
    ///
    /// The text contains no certificate, or an invalid one.
    pub fn from_pem(pem: &[u8]) -> Result<Self, SettingsError> {
        let authorities = parse_certificates(pem)?;
        build_root_store(&authorities)?;
        Ok(Trust::Authorities(authorities))
    }

    /// Builds a TLS client configuration with this trust, without client certificate and ALPN.
    ///
    /// # Errors
    ///
    /// An authority is invalid, or this machine has no CA bundle.
    pub fn tls(&self) -> Result<ClientConfig, SettingsError> {
        Ok(ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| SettingsError(e.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(self.build_verifier()?)
            .with_no_client_auth())
    }

    pub(crate) fn build_verifier(&self) -> Result<Arc<dyn ServerCertVerifier>, SettingsError> {
        let provider = provider();
        let webpki = |roots: RootCertStore| {
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|e| SettingsError(e.to_string()))
        };
        Ok(match self {
            Trust::System => webpki(system_roots()?)?,
            Trust::Authorities(authorities) => Arc::new(ListedVerifier {
                listed: authorities.clone(),
                webpki_verifier: webpki(build_root_store(authorities)?)?,
                provider,
            }),
            Trust::Insecure => Arc::new(InsecureSkipVerify { provider }),
        })
    }
}

/// Parses all certificates of a PEM text.
pub(crate) fn parse_certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, SettingsError> {
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|e| SettingsError(e.to_string()))?;
    if certificates.is_empty() {
        return Err(SettingsError("contains no certificate".to_owned()));
    }
    Ok(certificates)
}

pub(crate) fn build_root_store(
    authorities: &[CertificateDer<'static>],
) -> Result<RootCertStore, SettingsError> {
    let mut store = RootCertStore::empty();
    for authority in authorities {
        store.add(authority.clone()).map_err(|e| SettingsError(format!("invalid CA certificate: {e}")))?;
    }
    Ok(store)
}

fn system_roots() -> Result<RootCertStore, SettingsError> {
    let native = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(native.certs);
    if store.is_empty() {
        let reason = native.errors.first().map_or(String::new(), |e| format!(": {e}"));
        return Err(SettingsError(format!("this machine has no CA bundle{reason}; configure a CA file")));
    }
    Ok(store)
}

/// Client certificate with its key. `Debug` shows neither.
#[derive(Clone)]
pub struct Identity {
    key: Arc<CertifiedKey>,
    digest: digest::Digest,
}

impl Identity {
    /// Reads a certificate with its intermediates, and its key, both in PEM.
    ///
    /// # Errors
    ///
    /// The certificate or the key is invalid or missing, or they do not match. The error contains nothing of
    /// the key.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, SettingsError> {
        let chain = parse_certificates(certificate)
            .map_err(|e| SettingsError(format!("the client certificate: {e}")))?;
        // The error of the PEM reader is not used, because it could quote the key.
        let parsed = PrivateKeyDer::from_pem_slice(key)
            .map_err(|_| SettingsError("the client key: contains no private key in PEM".to_owned()))?;
        let signer = provider()
            .key_provider
            .load_private_key(parsed)
            .map_err(|_| SettingsError("the client key: has an unsupported type".to_owned()))?;
        let certified = CertifiedKey::new(chain, signer);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(_) => {
                let problem = "the client key does not belong to the client certificate";
                return Err(SettingsError(problem.to_owned()));
            }
        }
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&certificate.len().to_le_bytes());
        context.update(certificate);
        context.update(key);
        Ok(Identity { key: Arc::new(certified), digest: context.finish() })
    }

    /// Returns the certificate with its key.
    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.key)
    }

    /// Makes a TLS configuration send the certificate to servers that request one.
    pub fn configure(&self, tls: &mut ClientConfig) {
        tls.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(Arc::clone(&self.key)));
    }
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.digest.as_ref() == other.digest.as_ref()
    }
}

impl Eq for Identity {}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({} certificates)", self.key.cert.len())
    }
}

/// Verifier that trusts certificates from the listed authorities, and listed server certificates themselves.
///
/// Many servers have a self-signed certificate, which configurations list instead of an authority. For such a
/// certificate the verifier checks the name and the validity only.
#[derive(Debug)]
struct ListedVerifier {
    listed: Vec<CertificateDer<'static>>,
    webpki_verifier: Arc<WebPkiServerVerifier>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ListedVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !self.listed.iter().any(|listed| listed.as_ref() == leaf.as_ref()) {
            return self.webpki_verifier.verify_server_cert(leaf, intermediates, name, ocsp, now);
        }
        verify_server_name(&ParsedCertificate::try_from(leaf)?, name)?;
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now < parsed.validity().not_before.timestamp() {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > parsed.validity().not_after.timestamp() {
            return Err(CertificateError::Expired.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    verify_handshake_signatures!(provider);
}

/// Verifier that accepts every server certificate and checks only that the server possesses its key.
#[derive(Debug)]
struct InsecureSkipVerify {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for InsecureSkipVerify {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    verify_handshake_signatures!(provider);
}

/// Cryptography provider of TLS clients.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}
