//! Generated keys and certificates: certificate authority, serving and client certificates; all ECDSA P-256.
//!
//! # Contract
//!
//! Files are generated once and kept. A serving certificate that lacks a required name or is due for renewal
//! ([`is_renewal_due`]) is reissued for its existing key, with its names and its lifetime. An authority of the bundle in
//! the same directory must have issued it. A serving certificate of any other issuer is used unchanged, as by
//! kube-apiserver. An incomplete pair (a key without its certificate, or vice versa) is an error.
//!
//! The first certificate of the file of the authority signs. During the rotation of a CA, more certificates follow, and the
//! file of the key has the keys of both.
//! No certificate is valid for longer than the authority that signs it.
//!
//! # Invariants
//!
//! INVARIANT (keys are kept): no function overwrites an existing key or certificate authority.
//! INVARIANT (keys are private): a key file has mode 0600 from the moment it exists; files appear complete,
//! by rename.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
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
use x509_parser::x509::SubjectPublicKeyInfo;

pub mod facts;
pub mod requests;
pub mod revocation;
pub mod rotation;
mod subject;

/// Validity of a certificate authority.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Validity of serving and client certificates, unless the caller asks for another one.
pub const DEFAULT_VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);
/// Maximum time from which a certificate is due for renewal to its end.
const RENEWAL_WINDOW: Duration = Duration::from_secs(30 * 24 * 3600);
/// A certificate is due for renewal at the latest when this part of its lifetime is left, for short lifetimes.
const RENEWAL_PART: u32 = 3;
/// Length of the serial number of a certificate in bytes.
const SERIAL_BYTES: usize = 16;
/// Time from `notBefore` of a new certificate to its creation, to tolerate clients whose clocks are behind.
const BACKDATING: Duration = Duration::from_secs(3600);

/// The problem of a file without certificates.
const NO_CERTIFICATE: &str = "has no certificate in PEM";

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
    /// The authority signs nothing after its end.
    #[error("the CA expired at {0}, so no certificate that it signs is valid: replace the CA")]
    ExpiredAuthority(Timestamp),
}

impl CertError {
    /// A file with a problem.
    pub fn unusable(path: &Path, problem: impl ToString) -> Self {
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

/// The conditions for issuing a serving certificate, and its lifetime.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServingPolicy {
    /// Lifetime of an issued certificate. None keeps the lifetime of the present certificate.
    pub validity: Option<Duration>,
    /// The certificates of the authorities of the bundle that are reissued although they are not due for renewal.
    pub early: EarlyRenewal,
}

/// The certificates that are reissued although they are not due for renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyRenewal {
    /// None.
    #[default]
    Never,
    /// Those of an authority that no longer signs.
    EarlierAuthority,
    /// All.
    Always,
}

impl EarlyRenewal {
    /// Whether a certificate is reissued. `is_current_issuer`: the authority that signs has issued it.
    pub fn applies(self, is_current_issuer: bool) -> bool {
        match self {
            EarlyRenewal::Never => false,
            EarlyRenewal::EarlierAuthority => !is_current_issuer,
            EarlyRenewal::Always => true,
        }
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
    // `apid certs` holds the same lock. A file system without locks does not stop a server.
    let _lock = std::fs::File::open(dir).and_then(|folder| folder.lock().map(|()| folder)).ok();
    ensure_serving_pair_with(dir, names, ServingPolicy::default(), now)
}

/// [`ensure_serving_pair`] with a policy, for a caller that has locked the folder.
///
/// # Errors
///
/// See [`CertError`].
pub fn ensure_serving_pair_with(
    dir: &Path,
    names: &[String],
    policy: ServingPolicy,
    now: Timestamp,
) -> Result<ServingPair, CertError> {
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
    if has_cert && is_access_denied(&pair.ca_key) && policy.early != EarlyRenewal::Always {
        tracing::warn!(
            key = %pair.ca_key.display(),
            "the key of the CA is not readable, so the serving certificate is not checked for renewal; give the file to \
             the user of the server"
        );
        return Ok(pair);
    }
    let authority = Authority::ensure(&pair.ca, &pair.ca_key, &authority_name(now), now)?;
    let mut all_names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    // A server may listen on the unspecified address (`0.0.0.0`, `::`), but no client connects to it.
    let dialable_names =
        names.iter().filter(|name| !name.parse::<IpAddr>().is_ok_and(|ip| ip.is_unspecified()));
    all_names.extend(dialable_names.cloned());
    let mut validity = policy.validity.unwrap_or(DEFAULT_VALIDITY);
    if has_cert {
        let present = PresentCertificate::read(&pair, &authority)?;
        if present.is_kept(&all_names, policy.early, now) {
            return Ok(pair);
        }
        all_names.extend(present.names);
        validity = policy.validity.unwrap_or(present.lifetime);
    }
    all_names.sort();
    all_names.dedup();
    let key = if has_key { read_key(&pair.key)? } else { KeyPair::generate()? };
    let certificate = authority.issue_serving_certificate(&all_names, validity, now, &key)?;
    // The key is written first, so that no certificate exists without its key.
    if !has_key {
        write(&pair.key, key.serialize_pem().as_bytes(), 0o600)?;
    }
    write(&pair.cert, pem(&certificate).as_bytes(), 0o644)?;
    Ok(pair)
}

/// Returns the common name of a new authority.
///
/// Revocation lists name their CA, so a CA that replaces another one within a second needs a name of its own.
fn authority_name(now: Timestamp) -> String {
    format!("serving-ca@{}", now.as_nanosecond())
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
    /// DER form of the SubjectPublicKeyInfo.
    public_key: Vec<u8>,
    not_after: Timestamp,
    /// Further authorities of the file, such as the previous one during a rotation.
    others: Vec<OtherAuthority>,
}

/// An authority that does not sign: subject, key identifier and end of validity.
type OtherAuthority = (Vec<u8>, Option<Vec<u8>>, Timestamp);

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

    /// Reads the authority that signs: that of the first certificate of the file. The file of keys may have more keys.
    ///
    /// # Errors
    ///
    /// See [`CertError`].
    pub fn load(cert: &Path, key: &Path) -> Result<Self, CertError> {
        let certificates = read_certificates(cert)?;
        let key_pair = read_private_keys(key)?
            .into_iter()
            .map(|key| key.pair)
            .find(|key| certificates.first().is_some_and(|certificate| matches_key(certificate, key)));
        let key_pair = key_pair.ok_or_else(|| {
            let problem = format!("is not the key of the first certificate of {}", cert.display());
            CertError::unusable(key, problem)
        })?;
        Self::of_bundle(cert, &certificates, 0, key_pair)
    }

    /// Reads each authority of a bundle whose key is in the file of keys, in the order of the keys.
    ///
    /// # Errors
    ///
    /// See [`CertError`].
    pub fn load_all(cert: &Path, key: &Path) -> Result<Vec<Self>, CertError> {
        let certificates = read_certificates(cert)?;
        let index = |key: &KeyPair| certificates.iter().position(|certificate| matches_key(certificate, key));
        let keys = read_private_keys(key)?.into_iter().filter_map(|key| Some((index(&key.pair)?, key.pair)));
        keys.map(|(index, key)| Self::of_bundle(cert, &certificates, index, key)).collect()
    }

    /// Builds the authority of one certificate of a bundle. `path` is the file of the bundle.
    fn of_bundle(
        path: &Path,
        certificates: &[CertificateDer<'static>],
        index: usize,
        key: KeyPair,
    ) -> Result<Self, CertError> {
        let unusable = |problem: &dyn std::fmt::Display| CertError::unusable(path, problem);
        let certificate = certificates.get(index).ok_or_else(|| unusable(&NO_CERTIFICATE))?;
        let issuer = Issuer::from_ca_cert_der(certificate, key).map_err(|error| unusable(&error))?;
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| unusable(&error))?;
        if !is_authority(&parsed) {
            return Err(CertError::not_an_authority(path));
        }
        let not_after = end_of_validity(&parsed).map_err(|error| unusable(&error))?;
        let identity = |parsed: &X509Certificate<'_>| {
            (parsed.subject().as_raw().to_vec(), subject_key(parsed).map(<[u8]>::to_vec))
        };
        let (subject, key_id) = identity(&parsed);
        let public_key = parsed.public_key().raw.to_vec();
        let other = |(_, der): (usize, &CertificateDer<'_>)| {
            let (_, parsed) = X509Certificate::from_der(der).ok()?;
            let (subject, key_id) = identity(&parsed);
            Some((subject, key_id, end_of_validity(&parsed).ok()?))
        };
        let others = certificates.iter().enumerate().filter(|(other, _)| *other != index);
        let others = others.filter_map(other).collect();
        Ok(Authority { issuer, subject, key_id, public_key, not_after, others })
    }

    /// Whether this authority issued a certificate.
    fn has_issued(&self, certificate: &X509Certificate<'_>) -> bool {
        is_issued_by(certificate, &self.subject, self.key_id.as_deref())
    }

    /// Returns the end of the authority that issued a certificate: this one, or another one of its file.
    fn end_of_issuer(&self, certificate: &X509Certificate<'_>) -> Option<Timestamp> {
        let is_issuer =
            |(subject, key, _): &&OtherAuthority| is_issued_by(certificate, subject, key.as_deref());
        let other = || self.others.iter().find(is_issuer).map(|(.., end)| *end);
        if self.has_issued(certificate) { Some(self.not_after) } else { other() }
    }

    /// The lifetime of a certificate that replaces another one: that of the other one, unless the end of its issuer
    /// has shortened it.
    pub fn renewed_lifetime(&self, certificate: &facts::CertificateFacts) -> Duration {
        let parsed = X509Certificate::from_der(&certificate.der);
        let issuer_end = parsed.ok().and_then(|(_, parsed)| self.end_of_issuer(&parsed));
        renewed_lifetime(certificate.lifetime(), certificate.not_after, issuer_end)
    }

    /// Returns the subject of the authority as text.
    pub fn name(&self) -> String {
        let name = x509_parser::x509::X509Name::from_der(&self.subject);
        name.map(|(_, name)| name.to_string()).unwrap_or_default()
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
        let mut params = params(names, now, self.limit_validity(validity, now)?)?;
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
        self.client_with_subject(&subject::encode_name(groups, user), validity, now)
    }

    /// Issues a client certificate with a new key for a subject in DER, such as that of an earlier certificate.
    ///
    /// # Errors
    ///
    /// The authority has expired, or the generator failed.
    pub fn client_with_subject(
        &self,
        subject: &[u8],
        validity: Duration,
        now: Timestamp,
    ) -> Result<PemPair, CertError> {
        let mut params = params(&[], now, self.limit_validity(validity, now)?)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = self.sign(params, &key, subject)?;
        Ok(PemPair { cert: pem(&certificate), key: key.serialize_pem() })
    }

    /// Shortens a validity that would last longer than the authority.
    ///
    /// # Errors
    ///
    /// The authority has expired.
    fn limit_validity(&self, validity: Duration, now: Timestamp) -> Result<Duration, CertError> {
        let left = since_epoch(self.not_after).saturating_sub(since_epoch(now));
        if left.is_zero() {
            return Err(CertError::ExpiredAuthority(self.not_after));
        }
        Ok(validity.min(left))
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

/// Whether a certificate is due for renewal: a month before its end, with short lifetimes when a third is left.
pub fn is_renewal_due(not_before: Timestamp, not_after: Timestamp, now: Timestamp) -> bool {
    let lifetime = since_epoch(not_after).saturating_sub(since_epoch(not_before));
    let window = RENEWAL_WINDOW.min(lifetime / RENEWAL_PART);
    now < not_before || since_epoch(now) + window >= since_epoch(not_after)
}

/// The serving certificate on disk.
struct PresentCertificate {
    /// Whether an authority of the bundle issued the certificate.
    is_own: bool,
    /// Whether the authority that signs has issued the certificate.
    is_current_issuer: bool,
    not_before: Timestamp,
    not_after: Timestamp,
    /// The lifetime of the certificate that replaces this one.
    lifetime: Duration,
    /// DNS names and addresses.
    names: Vec<String>,
}

impl PresentCertificate {
    /// Reads the certificate.
    ///
    /// # Errors
    ///
    /// The certificate is unreadable, or the key file does not belong to a certificate of the authority.
    fn read(pair: &ServingPair, authority: &Authority) -> Result<Self, CertError> {
        let certificate = CertificateDer::from_pem_slice(read(&pair.cert)?.as_bytes())
            .map_err(|error| CertError::unusable(&pair.cert, error))?;
        let Ok((_, leaf)) = X509Certificate::from_der(&certificate) else {
            return Err(CertError::unusable(&pair.cert, "not an X.509 certificate"));
        };
        let (issuer_end, is_current_issuer) = (authority.end_of_issuer(&leaf), authority.has_issued(&leaf));
        let is_own = issuer_end.is_some();
        if is_own && !matches_key(&certificate, &read_key(&pair.key)?) {
            return Err(CertError::unusable(&pair.key, format!("is not the key of {}", pair.cert.display())));
        }
        let unusable = |error| CertError::unusable(&pair.cert, error);
        let not_before = Timestamp::from_second(leaf.validity().not_before.timestamp()).map_err(unusable)?;
        let not_after = end_of_validity(&leaf).map_err(unusable)?;
        let lifetime = since_epoch(not_after).saturating_sub(since_epoch(not_before) + BACKDATING);
        let lifetime = renewed_lifetime(lifetime, not_after, issuer_end);
        let names = alternative_names(&leaf);
        Ok(PresentCertificate { is_own, is_current_issuer, not_before, not_after, lifetime, names })
    }

    /// Whether the certificate stays in use. A certificate of an unknown issuer always stays. Others stay while they
    /// cover all names and are not due for renewal, unless `early` applies.
    fn is_kept(&self, names: &[String], early: EarlyRenewal, now: Timestamp) -> bool {
        let covers = |name: &String| {
            let address = name.parse::<IpAddr>();
            self.names.iter().any(|known| match &address {
                Ok(address) => known.parse::<IpAddr>() == Ok(*address),
                Err(_) => known == name,
            })
        };
        !self.is_own
            || (!early.applies(self.is_current_issuer)
                && !is_renewal_due(self.not_before, self.not_after, now)
                && names.iter().all(covers))
    }
}

/// The lifetime of a certificate that replaces one with a lifetime and an end. `issuer_end`: the end of its issuer.
fn renewed_lifetime(lifetime: Duration, end: Timestamp, issuer_end: Option<Timestamp>) -> Duration {
    if issuer_end.is_some_and(|issuer_end| end >= issuer_end) { DEFAULT_VALIDITY } else { lifetime }
}

/// Returns the DNS names and addresses of a certificate.
fn alternative_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let text = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(dns) => Some((*dns).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let address = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = address.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    };
    names.filter_map(text).collect()
}

/// Whether the authority with this subject and subject key identifier issued a certificate, by the names in the
/// certificate.
fn is_issued_by(certificate: &X509Certificate<'_>, subject: &[u8], key_id: Option<&[u8]>) -> bool {
    certificate.issuer().as_raw() == subject
        && authority_key(certificate).is_some_and(|id| Some(id) == key_id)
}

/// As [`is_issued_by`], but the signature decides for a certificate without an authority key identifier, as other programs
/// make them.
fn is_signed_by(
    certificate: &X509Certificate<'_>,
    subject: &[u8],
    key_id: Option<&[u8]>,
    public_key: &SubjectPublicKeyInfo<'_>,
) -> bool {
    match authority_key(certificate) {
        Some(_) => is_issued_by(certificate, subject, key_id),
        None => {
            certificate.issuer().as_raw() == subject && certificate.verify_signature(Some(public_key)).is_ok()
        }
    }
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

/// Whether the process may not read a file.
fn is_access_denied(path: &Path) -> bool {
    fs::File::open(path).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// Reads the certificates of a PEM file, at least one.
fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertError> {
    let content = read(path)?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(content.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| CertError::unusable(path, error))?;
    if certificates.is_empty() { Err(CertError::unusable(path, NO_CERTIFICATE)) } else { Ok(certificates) }
}

/// A private key with its PEM block.
struct PrivateKey {
    block: pem::Pem,
    pair: KeyPair,
}

/// Reads the private keys of a PEM file, at least one.
fn read_private_keys(path: &Path) -> Result<Vec<PrivateKey>, CertError> {
    let blocks = pem::parse_many(read(path)?).map_err(|error| CertError::unusable(path, error))?;
    // A file of openssl can have parameters before the key.
    let keys = blocks.into_iter().filter(|block| block.tag().ends_with("PRIVATE KEY"));
    let keys: Vec<_> = keys
        .map(|block| {
            let pair = KeyPair::try_from(block.contents());
            pair.map(|pair| PrivateKey { block, pair }).map_err(|error| CertError::unusable(path, error))
        })
        .collect::<Result<_, _>>()?;
    if keys.is_empty() { Err(CertError::unusable(path, "has no private key in PEM")) } else { Ok(keys) }
}

/// Reads a private key.
fn read_key(path: &Path) -> Result<KeyPair, CertError> {
    KeyPair::from_pem(&read(path)?).map_err(|error| CertError::unusable(path, error))
}

fn read(path: &Path) -> Result<String, CertError> {
    fs::read_to_string(path).map_err(|error| CertError::unusable(path, error))
}

/// Creates a directory of mode 0700, including its parents.
///
/// # Errors
///
/// [`CertError::Unusable`].
pub fn make_dir(dir: &Path) -> Result<(), CertError> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| CertError::unusable(dir, error))
}

/// Writes a file under a temporary name, syncs it and renames it.
///
/// The file has its mode whatever the umask is. A file that root writes belongs to the owner of its folder, so that a
/// server with a user of its own can read its folder after a command of root.
///
/// # Errors
///
/// [`CertError::Unusable`].
pub fn write(path: &Path, content: &[u8], mode: u32) -> Result<(), CertError> {
    let part = path.with_added_extension(std::process::id().to_string());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let result: io::Result<()> = (|| {
        let _ = fs::remove_file(&part);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        let (folder_owner, owner) = (fs::metadata(folder)?, file.metadata()?.uid());
        if owner == 0 && folder_owner.uid() != 0 {
            std::os::unix::fs::fchown(&file, Some(folder_owner.uid()), Some(folder_owner.gid()))?;
        }
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        fs::File::open(folder)?.sync_all()
    })();
    if result.is_err() {
        let _ = fs::remove_file(&part);
    }
    result.map_err(|error| CertError::unusable(path, error))
}

/// Encodes a certificate as PEM.
fn pem(certificate: &[u8]) -> String {
    pem_block("CERTIFICATE", certificate)
}

/// Encodes DER as a PEM block with a label.
fn pem_block(label: &str, der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new(label, der), config)
}

#[cfg(test)]
#[path = "tests/certs.rs"]
mod tests;
