//! Generated keys and certificates: certificate authority, serving and client certificates; all ECDSA P-256.
//!
//! # Contract
//!
//! Files are generated once and kept. A serving certificate that lacks a required name or expires within a
//! month is reissued for its existing key. The authority in the same directory must have issued it. A serving
//! certificate of any other issuer is used unchanged, as by kube-apiserver. An incomplete pair (a key without
//! its certificate, or the reverse) is an error.
//!
//! # Invariants
//!
//! INVARIANT (keys are kept): no function overwrites an existing key or certificate authority.
//! INVARIANT (keys are private): a key file has mode 0600 from the moment it exists; files appear complete,
//! by rename.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SerialNumber,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate, X509Version};

pub mod requests;
mod subject;

/// Validity of a certificate authority.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Validity of a serving certificate.
const SERVING_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// A serving certificate that expires within this time is reissued.
const RENEWAL_WINDOW: Duration = Duration::from_secs(30 * 24 * 3600);
/// Length of the serial number of a certificate in bytes.
const SERIAL_BYTES: usize = 16;
/// Time from `notBefore` of a new certificate to its creation, to tolerate clients whose clocks are behind.
const BACKDATING: Duration = Duration::from_secs(3600);

/// Error from generating or reading certificates.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// A file could not be read or written, has invalid content, or is missing while the other file of its pair
    /// exists.
    #[error("{path}: {problem}", path = path.display())]
    Unusable {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem.
        problem: String,
    },
    /// A name is not allowed in a certificate, or the generator failed.
    #[error("cannot make a certificate: {0}")]
    Generate(String),
}

impl CertError {
    fn unusable(path: &Path, problem: impl ToString) -> Self {
        CertError::Unusable { path: path.to_owned(), problem: problem.to_string() }
    }

    fn not_an_authority(path: &Path) -> Self {
        Self::unusable(path, "is not the certificate of a CA, so no certificate that it signs is valid")
    }

    fn missing_key(path: &Path) -> Self {
        let remedy = "restore the key or remove the certificate";
        Self::unusable(path, format!("missing, but its certificate exists; {remedy}"))
    }

    fn missing_certificate(path: &Path) -> Self {
        let remedy = "restore the certificate or remove the key";
        Self::unusable(path, format!("missing, but its key exists; {remedy}"))
    }
}

impl From<rcgen::Error> for CertError {
    fn from(error: rcgen::Error) -> Self {
        CertError::Generate(error.to_string())
    }
}

/// Files of a serving certificate and of the authority that signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingPair {
    /// Certificate, PEM.
    pub cert: PathBuf,
    /// Key, PEM, mode 0600.
    pub key: PathBuf,
    /// Certificate of the authority, PEM, which clients trust.
    pub ca: PathBuf,
    /// Key of the authority, PEM, mode 0600.
    pub ca_key: PathBuf,
}

impl ServingPair {
    /// Uses the file names `apiserver.crt`, `apiserver.key`, `ca.crt` and `ca.key` in a directory.
    pub fn in_dir(dir: &Path) -> Self {
        ServingPair {
            cert: dir.join("apiserver.crt"),
            key: dir.join("apiserver.key"),
            ca: dir.join("ca.crt"),
            ca_key: dir.join("ca.key"),
        }
    }
}

/// Certificate with its key. `Debug` shows neither.
pub struct PemPair {
    /// Certificate, PEM.
    pub cert: String,
    /// Key, PEM (PKCS #8).
    pub key: String,
}

impl std::fmt::Debug for PemPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PemPair { .. }")
    }
}

/// Generates an authority and a serving certificate in a directory, or keeps existing files.
///
/// A generated certificate covers `localhost`, `127.0.0.1` and `::1`; `names` adds DNS names and addresses.
/// A directory with a serving certificate and without a complete authority gets no authority: the files
/// [`ServingPair::ca`] and [`ServingPair::ca_key`] may then be missing.
///
/// # Errors
///
/// See [`CertError`].
pub fn ensure_serving_pair(dir: &Path, names: &[String], now: Timestamp) -> Result<ServingPair, CertError> {
    make_dir(dir)?;
    let pair = ServingPair::in_dir(dir);
    let (has_cert, has_key) = (pair.cert.exists(), pair.key.exists());
    let has_authority = pair.ca.exists() && pair.ca_key.exists();
    if has_cert && !has_key {
        return Err(CertError::missing_key(&pair.key));
    }
    if has_key && !has_cert && !has_authority {
        return Err(CertError::missing_certificate(&pair.cert));
    }
    if has_cert && !has_authority {
        return Ok(pair);
    }
    let authority =
        Authority::ensure(&pair.ca, &pair.ca_key, &format!("serving-ca@{}", now.as_second()), now)?;
    let mut all_names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    // A server may listen on the unspecified address (`0.0.0.0`, `::`), but no client connects to it.
    let dialable_names =
        names.iter().filter(|name| !name.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()));
    all_names.extend(dialable_names.cloned());
    all_names.sort();
    all_names.dedup();
    if has_cert && certificate_is_kept(&pair, &authority, &all_names, now)? {
        return Ok(pair);
    }
    let key = if has_key { read_key(&pair.key)? } else { KeyPair::generate()? };
    let certificate = authority.issue_serving_certificate(&all_names, SERVING_VALIDITY, now, &key)?;
    // The key is written first, so that no certificate exists without its key.
    if !has_key {
        write(&pair.key, key.serialize_pem().as_bytes(), 0o600)?;
    }
    write(&pair.cert, pem(&certificate).as_bytes(), 0o644)?;
    Ok(pair)
}

/// Generates a private key (ECDSA P-256, PKCS #8 in PEM) with mode 0600, or keeps an existing one.
///
/// # Errors
///
/// See [`CertError`].
pub fn ensure_key(path: &Path) -> Result<(), CertError> {
    if path.exists() {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        make_dir(dir)?;
    }
    let key = KeyPair::generate()?;
    write(path, key.serialize_pem().as_bytes(), 0o600)
}

/// Certificate authority with its private key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// DER form of the subject. `issuer` keeps one value per attribute type only.
    subject: Vec<u8>,
    /// Subject key identifier.
    key_id: Option<Vec<u8>>,
    not_after: Timestamp,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority { .. }")
    }
}

impl Authority {
    /// Reads an authority from its files, or generates one when both files are absent.
    ///
    /// # Errors
    ///
    /// See [`CertError`].
    pub fn ensure(cert: &Path, key: &Path, common_name: &str, now: Timestamp) -> Result<Self, CertError> {
        match (cert.exists(), key.exists()) {
            (true, true) => Self::load(cert, key),
            (true, false) => Err(CertError::missing_key(key)),
            (false, true) => Err(CertError::missing_certificate(cert)),
            (false, false) => {
                let generated = Self::generate(common_name, now)?;
                write(key, generated.key.as_bytes(), 0o600)?;
                write(cert, generated.cert.as_bytes(), 0o644)?;
                Self::load(cert, key)
            }
        }
    }

    /// Reads an authority from its files.
    ///
    /// # Errors
    ///
    /// See [`CertError`].
    pub fn load(cert: &Path, key: &Path) -> Result<Self, CertError> {
        let cert_pem = read(cert)?;
        let key_pair = read_key(key)?;
        let certificate =
            CertificateDer::from_pem_slice(cert_pem.as_bytes()).map_err(|e| CertError::unusable(cert, e))?;
        if !matches_key(&certificate, &key_pair) {
            return Err(CertError::unusable(key, format!("is not the key of {}", cert.display())));
        }
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key_pair).map_err(|e| CertError::unusable(cert, e))?;
        let (_, parsed) =
            X509Certificate::from_der(&certificate).map_err(|e| CertError::unusable(cert, e))?;
        if !is_authority(&parsed) {
            return Err(CertError::not_an_authority(cert));
        }
        let not_after = end_of_validity(&parsed).map_err(|e| CertError::unusable(cert, e))?;
        let (subject, key_id) =
            (parsed.subject().as_raw().to_vec(), subject_key(&parsed).map(<[u8]>::to_vec));
        Ok(Authority { issuer, subject, key_id, not_after })
    }

    /// Returns the end of the validity of the authority.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Generates an authority that is valid for ten years.
    ///
    /// # Errors
    ///
    /// The name is not allowed in a certificate.
    pub fn generate(common_name: &str, now: Timestamp) -> Result<PemPair, CertError> {
        let mut params = params(&[], now, AUTHORITY_VALIDITY)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        Ok(PemPair { cert: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
    }

    /// Issues a serving certificate for DNS names and addresses.
    ///
    /// # Errors
    ///
    /// A name is not allowed in a certificate.
    pub fn serving(
        &self,
        names: &[String],
        validity: Duration,
        now: Timestamp,
    ) -> Result<PemPair, CertError> {
        let key = KeyPair::generate()?;
        let certificate = self.issue_serving_certificate(names, validity, now, &key)?;
        Ok(PemPair { cert: pem(&certificate), key: key.serialize_pem() })
    }

    /// Issues a serving certificate for a key.
    fn issue_serving_certificate(
        &self,
        names: &[String],
        validity: Duration,
        now: Timestamp,
        key: &KeyPair,
    ) -> Result<Vec<u8>, CertError> {
        let mut params = params(names, now, validity)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params, key, &subject::encode_name(&[], "apiserver"))
    }

    /// Issues a client certificate: the username becomes the common name, the groups become organizations.
    ///
    /// # Errors
    ///
    /// A name is not allowed in a certificate.
    pub fn client(
        &self,
        user: &str,
        groups: &[String],
        validity: Duration,
        now: Timestamp,
    ) -> Result<PemPair, CertError> {
        let mut params = params(&[], now, validity)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = self.sign(params, &key, &subject::encode_name(groups, user))?;
        Ok(PemPair { cert: pem(&certificate), key: key.serialize_pem() })
    }

    /// Signs a certificate for a key with a subject in DER, and returns its DER form.
    fn sign(
        &self,
        mut params: CertificateParams,
        key: &impl PublicKeyData,
        subject: &[u8],
    ) -> Result<Vec<u8>, CertError> {
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(key, &self.issuer)?;
        let names = [(subject::ISSUER, self.subject.as_slice()), (subject::SUBJECT, subject)];
        subject::replace_names(certificate.der(), &names, self.issuer.key())
            .ok_or_else(|| CertError::Generate("issuer and subject could not be set".to_owned()))
    }
}

/// Builds parameters of a certificate for digital signatures, with subject alternative names and validity.
fn params(names: &[String], now: Timestamp, validity: Duration) -> Result<CertificateParams, CertError> {
    let mut params = CertificateParams::new(names)?;
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_epoch(now).saturating_sub(BACKDATING);
    params.not_after = epoch + (since_epoch(now) + validity);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.serial_number = Some(generate_serial_number()?);
    Ok(params)
}

/// Generates a random serial number: two certificates for one key never have the same number.
fn generate_serial_number() -> Result<SerialNumber, CertError> {
    let mut serial = [0; SERIAL_BYTES];
    aws_lc_rs::rand::fill(&mut serial)
        .map_err(|_| CertError::Generate("the system returned no random bytes".to_owned()))?;
    Ok(SerialNumber::from_slice(&serial))
}

/// Whether a certificate can be that of a CA: certificates that it signs can be valid.
///
/// A certificate of X.509 version 3 needs the basic constraint of a CA. Key usages, where they exist, must contain
/// the signing of certificates. kube-apiserver trusts no other issuer.
pub fn is_authority(certificate: &X509Certificate<'_>) -> bool {
    let is_ca = match certificate.basic_constraints() {
        Ok(Some(constraints)) => constraints.value.ca,
        Ok(None) => certificate.version.0 < X509Version::V3.0,
        Err(_) => false,
    };
    let signs_certificates = match certificate.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
        Err(_) => false,
    };
    is_ca && signs_certificates
}

fn since_epoch(time: Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0))
}

/// Returns the end of the validity of the first certificate of a PEM text. Returns None if the text has no certificate.
pub fn not_after(text: &[u8]) -> Option<Timestamp> {
    let certificate = CertificateDer::from_pem_slice(text).ok()?;
    let (_, certificate) = X509Certificate::from_der(&certificate).ok()?;
    end_of_validity(&certificate).ok()
}

fn end_of_validity(certificate: &X509Certificate<'_>) -> Result<Timestamp, jiff::Error> {
    Timestamp::from_second(certificate.validity().not_after.timestamp())
}

/// Whether a certificate belongs to a key.
fn matches_key(certificate: &CertificateDer<'_>, key: &KeyPair) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, parsed)| parsed.public_key().raw == key.subject_public_key_info().as_slice())
}

/// Whether the serving certificate on disk stays in use.
///
/// A certificate of the authority stays if [`is_current`]; a certificate of another issuer always stays.
///
/// # Errors
///
/// The certificate is unreadable, or the key file does not belong to a certificate of the authority.
fn certificate_is_kept(
    pair: &ServingPair,
    authority: &Authority,
    names: &[String],
    now: Timestamp,
) -> Result<bool, CertError> {
    let certificate = CertificateDer::from_pem_slice(read(&pair.cert)?.as_bytes())
        .map_err(|error| CertError::unusable(&pair.cert, error))?;
    let Ok((_, leaf)) = X509Certificate::from_der(&certificate) else {
        return Err(CertError::unusable(&pair.cert, "not an X.509 certificate"));
    };
    let is_issued_by_authority = leaf.issuer().as_raw() == authority.subject
        && authority_key(&leaf).is_some_and(|id| Some(id) == authority.key_id.as_deref());
    if !is_issued_by_authority {
        return Ok(true);
    }
    if !matches_key(&certificate, &read_key(&pair.key)?) {
        return Err(CertError::unusable(&pair.key, format!("is not the key of {}", pair.cert.display())));
    }
    Ok(is_current(&leaf, names, now))
}

/// Whether a certificate is valid, covers all names and does not expire within [`RENEWAL_WINDOW`].
fn is_current(leaf: &X509Certificate<'_>, names: &[String], now: Timestamp) -> bool {
    let alternatives = leaf.subject_alternative_name().ok().flatten();
    let covers = |name: &String| {
        let address = name.parse::<IpAddr>().ok();
        alternatives.as_ref().is_some_and(|names| {
            names.value.general_names.iter().any(|general| match (general, address) {
                (GeneralName::DNSName(dns), None) => dns == name,
                (GeneralName::IPAddress(bytes), Some(IpAddr::V4(ip))) => *bytes == ip.octets(),
                (GeneralName::IPAddress(bytes), Some(IpAddr::V6(ip))) => *bytes == ip.octets(),
                _ => false,
            })
        })
    };
    let validity = leaf.validity();
    let second = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    validity.not_before.timestamp() <= now.as_second()
        && validity.not_after.timestamp() > now.as_second().saturating_add(second(RENEWAL_WINDOW))
        && names.iter().all(covers)
}

/// Authority key identifier: identifies the key that signed a certificate.
fn authority_key<'c>(certificate: &'c X509Certificate<'_>) -> Option<&'c [u8]> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0),
        _ => None,
    })
}

/// Subject key identifier of a certificate.
fn subject_key<'c>(certificate: &'c X509Certificate<'_>) -> Option<&'c [u8]> {
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0),
        _ => None,
    })
}

/// Reads a private key.
fn read_key(path: &Path) -> Result<KeyPair, CertError> {
    KeyPair::from_pem(&read(path)?).map_err(|error| CertError::unusable(path, error))
}

fn read(path: &Path) -> Result<String, CertError> {
    fs::read_to_string(path).map_err(|error| CertError::unusable(path, error))
}

/// Creates a directory of mode 0700, including its parents.
fn make_dir(dir: &Path) -> Result<(), CertError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| CertError::unusable(dir, error))
}

/// Writes a file under a temporary name, syncs it and renames it. The file has its mode from the beginning.
///
/// # Errors
///
/// [`CertError::Unusable`].
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), CertError> {
    let part = path.with_added_extension(std::process::id().to_string());
    let result: io::Result<()> = (|| {
        let _ = fs::remove_file(&part);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        fs::File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    })();
    if result.is_err() {
        let _ = fs::remove_file(&part);
    }
    result.map_err(|error| CertError::unusable(path, error))
}

/// Encodes a certificate as PEM.
fn pem(certificate: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate), config)
}

#[cfg(test)]
#[path = "tests/certs.rs"]
mod tests;
